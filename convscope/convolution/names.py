"""Names of models, known without importing PyTorch: a wrong one is refused in a moment.

A name says where a model comes from, and may end in arguments: `timm:convnext_tiny,drop_path_rate=0.1`.
"""

from __future__ import annotations

import ast
import contextlib
import difflib
import functools
import hashlib
import importlib.metadata
import importlib.util
import os
import re
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from convscope.errors import ElsewhereError, InputError

MODELS = ("vgg16", "densenet121", "resnet152", "googlenet", "alexnet", "resnet50")
PREFIX = "torchvision:"
TIMM, HF = "timm:", "hf:"
FILE, IMPORTED, EXPORTED, TABLE = "a file's callable", "a package's callable", "an exported program", "a table"
KINDS = "torchvision:NAME, timm:NAME, hf:NAME, FILE.py:callable, package.module:callable, FILE.pt2, layers.csv"
"""All forms of a name. FILE.py, package.module and FILE.pt2 are trusted: they are run, a .pt2 is unpickled."""
SMALLEST_INPUT_PX = 64  # every model takes images of this size and larger ones, but for these families:
_PARTICULAR = ("inception_v", "maxvit_", "vit_")

_REGISTERED = re.compile(r'^@register_model\((?:name="(\w+)")?\)$.*?^def (\w+)\(', re.MULTILINE | re.DOTALL)
_ARGUMENTS = re.compile(r",(?=[A-Za-z_]\w*=)")
_PATTERNS = (
    (FILE, re.compile(r".+\.py:[A-Za-z_]\w*")),
    (EXPORTED, re.compile(r".+\.pt2")),
    (TABLE, re.compile(r".+\.csv")),
    (IMPORTED, re.compile(r"(?!torchvision:|timm:|hf:)[A-Za-z_][\w.]*:[A-Za-z_][\w.]*", re.IGNORECASE)),
)
_OF_FILES = (FILE, EXPORTED, TABLE)
_LIBRARIES = {PREFIX: "torchvision", TIMM: "timm", HF: "transformers"}


@functools.cache
def torchvision_classifiers() -> frozenset[str] | None:
    """Return the classification models of the torchvision that is installed, read from its source; None without it."""
    return _registered("*.py")


@functools.cache
def torchvision_models() -> frozenset[str] | None:
    """Return all of its models but the quantised ones, which run on no GPU: of detection, segmentation, video too."""
    return _registered("**/*.py")


def listed() -> list[str]:
    """Return `MODELS`, and the other classification models of the torchvision that is installed, by name."""
    return [*MODELS, *(PREFIX + name for name in sorted(torchvision_classifiers() or ()) if name not in MODELS)]


def _registered(pattern: str) -> frozenset[str] | None:
    found = importlib.util.find_spec("torchvision")
    if found is None or not found.submodule_search_locations:
        return None
    folder = Path(found.submodule_search_locations[0], "models")
    paths = [path for path in folder.glob(pattern) if "quantization" not in path.parts]
    matches = [match for path in paths for match in _REGISTERED.findall(path.read_text("utf-8"))]
    return frozenset(given or function for given, function in matches)


def check_model(name: str, known: Collection[str] | None = None, is_elsewhere: bool = False) -> str:
    """Return a model's name in the spelling of folders and tables: one of `MODELS`, or one of the `KINDS`.

    Args:
        known: torchvision's names; None takes `torchvision_models`, and any name where there is none.
        is_elsewhere: a file whose folder is not on this machine is taken to be on another.

    Raises:
        ElsewhereError: there is no such folder, and not `is_elsewhere`.
        InputError: there is no such model, as far as that can be told without running code; the message has the kinds,
            and the names that are nearest.
    """
    base, *given = _ARGUMENTS.split(name.strip())
    arguments = "".join(f",{each}" for each in given)
    kind = kind_of(base)
    if kind in _OF_FILES:
        with contextlib.suppress(*[ElsewhereError] * is_elsewhere):
            _check_file(base)
        return base + arguments
    if kind == IMPORTED:
        return base + arguments
    plain = base.lower()
    if plain.startswith((TIMM, HF)):
        prefix = TIMM if plain.startswith(TIMM) else HF
        return prefix + base[len(prefix) :].strip() + arguments
    return _check_torchvision(base, plain, torchvision_models() if known is None else known) + arguments


def _check_torchvision(name: str, plain: str, known: Collection[str] | None) -> str:
    bare = plain.removeprefix(PREFIX)
    if bare in MODELS:
        return bare
    if not plain.startswith(PREFIX):
        if plain.endswith(".py"):
            raise InputError(f"{name}: name the callable in it that returns the model, {name}:NAME")
        near = nearest(bare, (*(PREFIX + each for each in known or ()), *MODELS))
        raise InputError(f"unknown model {name!r}: choose one of {', '.join(MODELS)}, or {KINDS}{near}")
    if known is not None and bare not in known:
        near = nearest(bare, [PREFIX + each for each in known])
        raise InputError(f"torchvision has no model {bare!r}: see --list-models{near}")
    return PREFIX + bare


def _check_file(name: str) -> None:
    path = path_of(name)
    if path.is_absolute() and not path.parent.is_dir():
        raise ElsewhereError(f"there is no folder {path.parent} on this machine")
    if not path.is_file():
        raise InputError(f"there is no file {path}: a model from a file is FILE.py:callable, FILE.pt2 or layers.csv")
    if path.suffix != ".py":
        return
    try:
        body = ast.parse(path.read_bytes()).body
    except (SyntaxError, ValueError) as error:
        raise InputError(f"{path} is no Python that can be read: {error}") from None
    if any(isinstance(each, ast.ImportFrom) and each.names[0].name == "*" for each in body):
        return
    defined = [each for statement in body for each in _names_of(statement)]
    wanted = name.rpartition(":")[2]
    if wanted not in defined:
        callables = [each.name for each in body if isinstance(each, (ast.FunctionDef, ast.ClassDef))]
        near = nearest(wanted, callables) or (f" (it has {', '.join(callables[:5])})" if callables else "")
        raise InputError(f"{path} defines no {wanted}{near}")


def _names_of(statement: ast.stmt) -> list[str]:
    """Return the names that a statement of a module defines, as far as they can be read."""
    nodes = list(ast.walk(statement)) if isinstance(statement, (ast.If, ast.Try, ast.With)) else [statement]
    found: list[str] = []
    for node in nodes:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            found.append(node.name)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            found += [(each.asname or each.name).partition(".")[0] for each in node.names]
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found += [each.id for target in targets for each in ast.walk(target) if isinstance(each, ast.Name)]
    return found


def kind_of(name: str) -> str | None:
    """Return which of the kinds that are the user's own a name is of; None for a library's."""
    base = _ARGUMENTS.split(name)[0]
    return next((kind for kind, pattern in _PATTERNS if pattern.fullmatch(base)), None)


def path_of(name: str) -> Path:
    """Return the file of a name that is of a file."""
    return Path(_ARGUMENTS.split(name)[0].partition(".py:")[0] + (".py" if ".py:" in name else ""))


def placed(name: str, folder: Path) -> str:
    """Return a name whose file is relative to a folder as one for the current folder; `slurm/stage.sh` does the same.

    A file is that of a model, or the folder of a configuration (`hf:FOLDER`).
    """
    if folder.resolve() == Path.cwd():
        return name
    base = without_arguments(name)
    if kind_of(base) in _OF_FILES:
        return os.path.join(folder, name)
    if base.startswith(HF) and (folder / base.removeprefix(HF)).is_dir():
        return HF + os.path.join(folder, name.removeprefix(HF))
    return name


def with_arguments(name: str, arguments: Sequence[str]) -> str:
    """Return a name with these arguments, `key=value` each.

    Raises:
        InputError: one is not of that form.
    """
    for each in arguments:
        if not re.match(r"[A-Za-z_]\w*=", each):
            raise InputError(f"--model-args {each}: write key=value")
    return ",".join([name, *arguments])


def arguments_of(name: str) -> dict[str, Any]:
    """Return the arguments of a name: Python's literals where they are such, else text."""
    pairs = (each.partition("=") for each in _ARGUMENTS.split(name)[1:])
    return {key: _literal(value) for key, _, value in pairs}


def without_arguments(name: str) -> str:
    """Return a name without its arguments."""
    return _ARGUMENTS.split(name)[0]


def _literal(value: str) -> Any:
    try:
        return ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return value


def digest(name: str) -> str:
    """Return the SHA-256 of the name and of the code that decides its model; "" where that is unknown.

    Of a file that is its content, of a library its version, of a package's module its file, which is not run.
    """
    kind = kind_of(name)
    try:
        if kind in _OF_FILES:
            code = path_of(name).read_bytes()
        elif kind == IMPORTED:
            found = importlib.util.find_spec(without_arguments(name).partition(":")[0])
            code = Path(found.origin).read_bytes() if found and found.origin else b""
        else:
            prefix = next((each for each in _LIBRARIES if name.startswith(each)), PREFIX)
            code = importlib.metadata.version(_LIBRARIES[prefix]).encode()
    except (OSError, ImportError, ValueError):
        return ""
    return hashlib.sha256(name.encode() + b" " + code).hexdigest()


def stamp(name: str) -> str:
    """Return the time and the size of a model's file, which change with it; "" without one."""
    if kind_of(name) not in _OF_FILES:
        return ""
    try:
        found = path_of(name).stat()
    except OSError:
        return ""
    return f"{found.st_mtime_ns} {found.st_size}"


def takes_usual_sizes(name: str) -> bool:
    """Tell whether a model is known to take square images of every size from `SMALLEST_INPUT_PX` on."""
    bare = name.removeprefix(PREFIX)
    known = torchvision_classifiers()
    is_classifier = name.startswith(PREFIX) and (known is None or bare in known)
    return name in MODELS or (is_classifier and not bare.startswith(_PARTICULAR))


def nearest(name: str, known: Collection[str]) -> str:
    """Return the names that are nearest to one, as the end of a message; "" where none is near."""
    by_bare = {each.removeprefix(PREFIX): each for each in known}
    near = difflib.get_close_matches(name, sorted(by_bare), n=2)
    return f" (nearest: {', '.join(by_bare[each] for each in near)})" if near else ""
