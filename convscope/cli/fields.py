"""Fields of a line of a matrix behind model, algorithm and GPU: settings of `run_profile.py`, "batch_size=8".

A field is the name of an option and its value; a switch has the value "true". `slurm/stage.sh` reads them too.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from typing import Any

from convscope.errors import InputError
from convscope.storage.paths import STAGES

_FIELD = re.compile(r"[a-z][a-z_]{0,40}=[A-Za-z0-9][A-Za-z0-9._ -]{0,99}", re.ASCII)
_NAMING = {
    "batch-size": r"\d{1,9}",
    "dtype": r"[a-z0-9]{1,20}",
    "layout": r"[a-z0-9]{1,20}",
    "input-shape": r"\d{1,9}[xX]\d{1,9}",
}


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

    Options may be abbreviated, as `run_profile.py` takes them.
    """
    if not words:
        return {}
    parser = argparse.ArgumentParser(add_help=False)
    for name in _NAMING:
        parser.add_argument(f"--{name}", nargs="?")
    found = vars(parser.parse_known_args(list(words))[0])
    said = {name: found[name.replace("-", "_")] or "" for name in _NAMING}
    kept = {name.replace("-", "_"): said[name] for name, form in _NAMING.items() if re.fullmatch(form, said[name])}
    settings: dict[str, Any] = kept
    if "batch_size" in kept:
        settings["batch_size"] = int(kept["batch_size"])
    if "input_shape" in kept:
        height, width = map(int, kept["input_shape"].lower().split("x"))
        settings["input_shape"] = None if height == width else f"{height}x{width}"
    return settings
