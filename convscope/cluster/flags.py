"""Settings by which folders are told apart, read from the flags of a job before `run_profile.py` has seen them.

A line of a history may be anybody's: what is none of the valid words is left out here, and refused by the run.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence

from convscope.storage.paths import LAYOUTS, Combination

# The command line takes an option's first letters for the option, as far as no other begins so.
_SHORTEST = {"--batch-size": "--b", "--dtype": "--dt", "--layout": "--layo"}
_COUNT = re.compile(r"\d{1,9}", re.ASCII)
OF_RUNS = ("float32", "float16", "bfloat16")  # the data types of a profile


def with_flags(each: Combination, flags: Sequence[str]) -> Combination:
    """Return a combination in the batch size, data type and layout of these flags; the last of a kind counts."""
    said = dict.fromkeys(_SHORTEST, "")
    for at, word in enumerate(flags):
        name, equals, value = word.partition("=")
        for option, shortest in _SHORTEST.items():
            if option.startswith(name) and name.startswith(shortest):
                said[option] = value if equals else next(iter(flags[at + 1 : at + 2]), "")
    count, dtype, layout = said.values()
    return dataclasses.replace(
        each,
        batch_size=int(count) if _COUNT.fullmatch(count) else each.batch_size,
        dtype=dtype if dtype in OF_RUNS else each.dtype,
        layout=layout if layout in LAYOUTS else each.layout,
    )


def of_line(each: Combination, flags: Sequence[str]) -> list[str]:
    """Return the flags that a combination needs behind these: data type and layout, where its line names others."""
    same = with_flags(Combination(each.model, each.algorithm, each.gpu), flags)
    if (same.dtype, same.layout) == (each.dtype, each.layout):
        return []
    return ["--dtype", each.dtype, "--layout", each.layout]
