"""The measuring commands `run_*.py` and `profiler.py`, found, run and imported by file.

In a checkout they are files at its top. A wheel has them in `convscope/programs/` (`setup.py` puts them there), so that
it installs no top-level module but `convscope`.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from convscope.storage.paths import IS_CHECKOUT, PROGRAMS

PROFILER = "profiler"
_INSIDE = "convscope.programs.profiler"  # its name where `profiler` may be another module's
_SITES = ("site-packages", "dist-packages")


COMMANDS = {
    "run_profile": "profile",
    "run_verify": "verify",
    "run_training": "train",
    "run_inference": "infer",
    "run_conv3d": "conv3d",
    "run_dataset": "dataset",
}
"""Command of `convscope` that a program is the work of."""


def has_files() -> bool:
    """Tell whether the user has the programs as files: in a checkout, unless the script `convscope` was started."""
    return IS_CHECKOUT and Path(next(iter(sys.argv), "")).name != "convscope"


def called(program: str) -> str:
    """Return the name that the user runs a program by: "run_profile.py", from a wheel "convscope profile"."""
    return f"{program}.py" if has_files() else f"convscope {COMMANDS[program]}"


def command(program: str) -> list[str]:
    """Return the command that runs a program in a child: "run_verify"."""
    return [sys.executable, str(PROGRAMS / f"{program}.py")]


def again(name: str, file: str) -> list[str]:
    """Return the command that runs this process's program in a child, by the same name.

    Args:
        name: name the program goes by: "run_verify.py", or "convscope verify" under the command `convscope`.
        file: the program's `__file__`.
    """
    words = name.split()
    return [sys.executable, "-m", *words] if words[0] == "convscope" else [sys.executable, file]


def environment() -> dict[str, str]:
    """Return the environment of a child in which `convscope` can be imported.

    The folder of installed packages is not named: it would come before Python's own modules.
    """
    parent = Path(__file__).parents[2]
    own = [] if parent.name in _SITES else [str(parent)]
    return os.environ | {"PYTHONPATH": os.pathsep.join([*own, *filter(None, [os.environ.get("PYTHONPATH")])])}


def run(name: str, program: str, arguments: Sequence[str], description: str | None = None) -> int:
    """Run a program here; return its exit code.

    Args:
        name: name of the program in its usage and errors: "convscope profile".
        description: text at the top of its help; None for its own.
    """
    found = module(program)
    before = {"NAME": found.NAME, "__doc__": found.__doc__}
    vars(found).update({"NAME": name, "__doc__": description or found.__doc__})
    try:
        return int(found.main([*arguments]))
    finally:
        vars(found).update(before)


def module(program: str) -> ModuleType:
    """Return the module of a program; its folder stays first on `sys.path`."""
    if sys.path[:1] != [str(PROGRAMS)]:
        sys.path.insert(0, str(PROGRAMS))
    if _INSIDE in sys.modules:  # else it would be loaded twice
        sys.modules[PROFILER] = sys.modules[_INSIDE]
    return importlib.import_module(program)


def profiler() -> ModuleType:
    """Return the module of `profiler.py`, loaded once whether it is asked for here or imported by its name.

    Of a wheel it is loaded under a name inside the package: `profiler` may be a module of somebody else's.
    """
    path = PROGRAMS / f"{PROFILER}.py"
    for known in map(sys.modules.get, (PROFILER, _INSIDE)):
        file = getattr(known, "__file__", None)
        if known is not None and file and os.path.realpath(file) == os.path.realpath(path):
            return known
    name = PROFILER if IS_CHECKOUT and PROFILER not in sys.modules else _INSIDE
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} cannot be imported")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
