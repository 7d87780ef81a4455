"""Code of the user's own: the files that a model's classes lie in, and those that these import.

What is installed, and what comes with Python, is not followed: its versions stand in each run's environment.
"""

from __future__ import annotations

import functools
import hashlib
import os
import sys
import sysconfig
from pathlib import Path
from types import ModuleType

from torch import nn

_LIBRARIES = ("site-packages", "dist-packages")
_WITH_PYTHON = tuple(os.path.realpath(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib"))
_ITSELF = __name__.partition(".")[0]


OF_A_FILE = "convscope_model_"
"""Begins the names of modules that a file was imported as: that file counts by itself, and its name has its folder."""


def digest(model: nn.Module) -> str:
    """Return the SHA-256 of the files of one's own that the model's code lies in, by module name; "" without any.

    A file counts with what it held when this process first asked, which is what it has imported.
    """
    found: dict[str, str] = {}
    waiting = {type(each).__module__ for each in model.modules()}
    while waiting:
        name = waiting.pop()
        if name not in found and (path := _file_of(name)):
            found[name] = file_digest(path)
            waiting |= _used_by(sys.modules[name])
    own = [f"{name} {code}" for name, code in sorted(found.items()) if not name.startswith(OF_A_FILE)]
    return hashlib.sha256("\n".join(own).encode()).hexdigest() if own else ""


@functools.cache
def file_digest(path: str) -> str:
    """Return the SHA-256 of a file as it was at the first call, "" where it cannot be read."""
    try:
        return hashlib.sha256(Path(path).read_bytes()).hexdigest()
    except OSError:
        return ""


def _file_of(name: str) -> str | None:
    """Return the file of an imported module of one's own, None where it is none."""
    path = getattr(sys.modules.get(name), "__file__", None)
    if path is None or name.partition(".")[0] == _ITSELF:
        return None
    where = os.path.realpath(path)
    installed = where.startswith(_WITH_PYTHON) or not {*_LIBRARIES}.isdisjoint(Path(where).parts)
    return None if installed else where


def _used_by(module: ModuleType) -> set[str]:
    """Return the names of the modules that a module has imported, whole or something of them."""
    values = [*vars(module).values()]
    named = {value.__name__ for value in values if isinstance(value, ModuleType)}
    return named | {name for value in values if isinstance(name := getattr(value, "__module__", None), str)}
