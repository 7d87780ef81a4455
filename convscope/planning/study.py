"""Study file: many profiles in one TOML file, its combinations, and those that a rule excludes.

`run_profile.py --study FILE` runs those of the GPU that is here; `--list-combinations` with it prints the matrix that
the stages read.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from convscope.cli import fields
from convscope.convolution import algorithms, names
from convscope.errors import InputError
from convscope.profiling.preflight import by_layers
from convscope.profiling.request import DTYPES, Run, parse_shape
from convscope.storage.paths import LAYOUTS, Combination

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

# Every list multiplies the number of combinations.
LISTS: Mapping[str, type] = {
    "models": str,
    "algorithms": str,
    "gpus": str,
    "batch_sizes": int,
    "dtypes": str,
    "layouts": str,
    "input_shapes": str,
}
SETTINGS: Mapping[str, type] = {
    "warmup": int,
    "measure": int,
    "math": str,
    "unsupported": str,
    "provider": str,
    "max_workspace": str,
    "pretrained": bool,
    "seed": int,
    "no_energy": bool,
    "layer_energy": bool,
    "energy_warmup": float,
    "energy_precision": float,
    "energy_budget": float,
}
"""Further settings of all combinations, by their option's name, and the type of each."""
SIZES: Mapping[str, str] = {"count": "num_sizes", "range": "input_range", "list": "input_size"}
_WORDS = {str: "text in quotes", int: "a whole number", float: "a number", bool: "true or false"}


@dataclass(frozen=True)
class Study:
    """Content of a study file: its lists, and the fields that every line of its matrix has."""

    path: Path
    lists: Mapping[str, tuple[Any, ...]]
    sizes: tuple[str, ...]
    settings: tuple[str, ...]

    def lines(self, gpu: str | None = None) -> list[tuple[str, ...]]:
        """Return every combination as model, algorithm, GPU and fields, in the order of the file.

        Args:
            gpu: stands in where the file names no GPUs.

        Raises:
            InputError: the file names no GPUs, and none is given.
        """
        gpus = self.lists.get("gpus") or ((gpu.lower(),) if gpu else ())
        if not gpus:
            raise InputError(f'{self.path} names no GPUs: add gpus = ["h200"], or say which with --gpu NAME')
        lists = [self.lists[name] for name in ("models", "algorithms")]
        return [
            (model, algorithm, each, *self._fields(shape, *others))
            for model, algorithm, each, shape, *others in itertools.product(
                *lists, gpus, self.lists.get("input_shapes", ("",)), self.lists.get("dtypes", ("float32",)),
                self.lists.get("layouts", ("nchw",)), self.lists.get("batch_sizes", (1,)),
            )
        ]  # fmt: skip

    def _fields(self, shape: str, dtype: str, layout: str, batch_size: int) -> tuple[str, ...]:
        own = {"batch_size": batch_size, "dtype": dtype, "layout": layout, "input_shape": shape}
        given = {"batch_size": "batch_sizes", "dtype": "dtypes", "layout": "layouts", "input_shape": "input_shapes"}
        named = [f"{name}={value}" for name, value in own.items() if given[name] in self.lists]
        return (*named, *(() if shape else self.sizes), *self.settings)


@dataclass(frozen=True)
class Item:
    """One combination of a study: its line, its request, and why a rule excludes it, None where none does."""

    line: tuple[str, ...]
    run: Run | None
    why_not: str | None = None

    @property
    def text(self) -> str:
        """The line of a matrix; a comment with the reason where a rule excludes it."""
        if self.why_not is None:
            return "\t".join(self.line)
        model, algorithm, gpu, *settings = self.line
        named = Combination(model, algorithm, gpu, **fields.naming(fields.flags(settings)))
        return f"# {named}: {self.why_not}"


MakeRun = Callable[[str, str, str, Sequence[str]], Run]
"""Decides the request of a model, an algorithm and a GPU, by fields."""


def items(study: Study, gpu: str | None, make: MakeRun, note: Callable[[str], None]) -> list[Item]:
    """Return the combinations of a study, each with its request or the rule that excludes it.

    Args:
        gpu: as `Study.lines` takes it.
        note: called with a line where the layers cannot be checked.

    Raises:
        InputError: a setting that no run can have; the message begins with the file's name.
    """
    found: list[Item] = []
    for line in study.lines(gpu):
        if why := _why_not_on(line):
            found.append(Item(line, None, why))
            continue
        try:
            found.append(Item(line, make(line[0], line[1], line[2], line[3:])))
        except InputError as error:
            raise InputError(f"{study.path}: {error}") from None
    runs = [item.run for item in found if item.run]
    checked = iter(by_layers(runs, note))
    return [Item(item.line, *next(checked)) if item.run else item for item in found]


def items_of_gpu(every: Sequence[Item], gpu: str, path: Path, advice: str) -> list[Item]:
    """Return the combinations of a study that are for one GPU.

    Args:
        advice: end of the message where there are none.

    Raises:
        InputError: there are none.
    """
    found = [item for item in every if item.line[2] == gpu.lower()]
    if not found:
        raise InputError(f"{path} is for {', '.join(dict.fromkeys(item.line[2] for item in every))}, {advice}")
    return found


def _why_not_on(line: Sequence[str]) -> str | None:
    """Return why nothing runs the algorithm on this kind of device, by this provider, in this data type and layout."""
    algorithm, kind = algorithms.find(line[1]), "cpu" if line[2] == "cpu" else "cuda"
    asked = dict(field.split("=", 1) for field in line[3:])
    return (
        algorithms.why_not_on_device(algorithm, kind)
        or ("provider" in asked and algorithms.why_not_by_provider(algorithm, asked["provider"]))
        or algorithms.why_not_in(algorithm, kind, asked.get("dtype", "float32"), asked.get("layout", "nchw"))
    )


def read(path: Path) -> Study:
    """Read a study file.

    Raises:
        InputError: it cannot be read, or has a key, a type or a name that cannot be; the message begins with its name.
    """
    try:
        content = tomllib.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"--study {path} cannot be read ({error})") from None
    try:
        return _study(path, {name.replace("-", "_"): value for name, value in content.items()})
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def _study(path: Path, content: Mapping[str, Any]) -> Study:
    known = (*LISTS, "sizes", *SETTINGS)
    if unknown := [name for name in content if name not in known]:
        raise InputError(f"unknown key {unknown[0]!r}: choose of {', '.join(known)}")
    if missing := [name for name in ("models", "algorithms") if name not in content]:
        raise InputError(f'{missing[0]} is missing: write {missing[0]} = ["NAME"]')
    lists = {name: _list(name, content[name], kind) for name, kind in LISTS.items() if name in content}
    lists["models"] = tuple(names.check_model(name, is_elsewhere=True) for name in lists["models"])
    lists["algorithms"] = tuple(algorithms.find(name).name for name in lists["algorithms"])
    for name, valid in (("dtypes", DTYPES), ("layouts", tuple(LAYOUTS))):
        if wrong := [each for each in lists.get(name, ()) if each not in valid]:
            raise InputError(f"{name} has {wrong[0]!r}: choose of {', '.join(valid)}")
    if "gpus" in lists:
        lists["gpus"] = tuple(gpu.lower() for gpu in lists["gpus"])
    shapes = [parse_shape(shape) for shape in lists.get("input_shapes", ())]
    if shapes:
        lists["input_shapes"] = tuple(f"{height}x{width}" for height, width in shapes)
        if "sizes" in content:
            raise InputError("input_shapes and [sizes] exclude each other: each shape is one size")
    for name, values in lists.items():
        if len(set(values)) < len(values):
            raise InputError(f"{name} has an entry twice")
    settings = [_setting(name, content[name], kind) for name, kind in SETTINGS.items() if name in content]
    return Study(path, lists, _sizes(content.get("sizes", {})), fields.check([each for each in settings if each]))


def _list(name: str, value: object, kind: type) -> tuple[Any, ...]:
    if not isinstance(value, list) or not value or not all(type(each) is kind for each in value):
        raise InputError(f"{name} is {value!r}: it must be a list, each entry {_WORDS[kind]}")
    return tuple(value)


def _sizes(value: object) -> tuple[str, ...]:
    if not isinstance(value, dict):
        raise InputError(f"sizes is {value!r}: write [sizes], and below it count = 25 and range = [224, 512]")
    if unknown := [name for name in value if name not in SIZES]:
        raise InputError(f"[sizes] has an unknown key {unknown[0]!r}: choose of {', '.join(SIZES)}")
    found = []
    if "count" in value:
        found.append(_setting("num_sizes", value["count"], int))
    if "range" in value:
        ends = _list("range", value["range"], int)
        if len(ends) != 2:
            raise InputError(f"range is {value['range']!r}: write smallest and largest size, range = [224, 512]")
        found.append(f"input_range={ends[0]} {ends[1]}")
    if "list" in value:
        if found:
            raise InputError("list and the other keys of [sizes] exclude each other: it names each size")
        sizes = _list("list", value["list"], int)
        if len(set(sizes)) < len(sizes):
            raise InputError("list has an entry twice")
        found.append(f"input_size={','.join(map(str, sizes))}")
    return fields.check(found)


def _setting(name: str, value: object, kind: type) -> str:
    """Return a setting as a field; "" for a switch that is off."""
    if type(value) is not kind and not (kind is float and type(value) is int):
        raise InputError(f"{name} is {value!r}: it must be {_WORDS[kind]}")
    if kind in (int, float) and not value >= 0:  # type: ignore[operator]
        raise InputError(f"{name} is {value}: it must not be negative")
    if kind is bool:
        return f"{name}=true" if value else ""
    return f"{name}={value}"
