"""Fields of a line of a matrix behind model, algorithm and GPU: settings of `run_profile.py`, "batch_size=8".

A field is the name of an option and its value; a switch has the value "true". `slurm/stage.sh` reads them too.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from convscope.errors import InputError
from convscope.storage.paths import STAGES

_FIELD = re.compile(r"[a-z][a-z_]{0,40}=[A-Za-z0-9][A-Za-z0-9.,_ -]{0,99}", re.ASCII)
_NAMING = {
    "batch-size": ("--batch-size", r"\d{1,9}"),
    "dtype": ("--dt", r"[a-z0-9]{1,20}"),
    "layout": ("--layo", r"[a-z0-9]{1,20}"),
    "input-shape": ("--input-sh", r"\d{1,9}[xX]\d{1,9}"),
}
"""Options that name a folder: the shortest abbreviation that `run_profile.py` takes, and the form of the value."""


def check(fields: Sequence[str]) -> tuple[str, ...]:
    """Return fields as they are; InputError where one is no name and value, or a name stands twice."""
    for field in fields:
        if not _FIELD.fullmatch(field):
            raise InputError(f"{field!r} is no setting: write option=value, such as batch_size=8 or no_energy=true")
    names = [field.partition("=")[0] for field in fields]
    if len(set(names)) < len(names):
        raise InputError(f"{' '.join(fields)!r} has a setting twice")
    return tuple(fields)


def flags(fields: Sequence[str], stage: str = STAGES[-1]) -> list[str]:
    """Return fields as flags of `run_profile.py`; the number of sizes counts in the last stage only."""
    words: list[str] = []
    for name, _, value in (field.partition("=") for field in fields):
        if name != "num_sizes" or stage == STAGES[-1]:
            words += [f"--{name.replace('_', '-')}", *([] if value == "true" else value.split())]
    return words


def naming(words: Sequence[str]) -> dict[str, Any]:
    """Return those settings in flags that name a folder, as fields of `paths.Combination`; what is none is left out.

    Options may be abbreviated, as `run_profile.py` takes them; of one that stands twice the last counts. `suffix` in
    `slurm/stage.sh` does the same.
    """
    kept: dict[str, str] = {}
    for at, word in enumerate(words):
        option, has_value, value = word.partition("=")
        name = next((name for name, (least, _) in _NAMING.items() if _is_short_for(option, f"--{name}", least)), None)
        value = value if has_value else "".join(words[at + 1 : at + 2])
        if name and re.fullmatch(_NAMING[name][1], value, re.ASCII):
            kept[name.replace("-", "_")] = value
    settings: dict[str, Any] = kept
    if "batch_size" in kept:
        settings["batch_size"] = int(kept["batch_size"])
    if "input_shape" in kept:
        height, width = map(int, kept["input_shape"].lower().split("x"))
        settings["input_shape"] = None if height == width else f"{height}x{width}"
    return settings


def _is_short_for(option: str, name: str, least: str) -> bool:
    return option.startswith(least) and name.startswith(option)
