"""Samples of several runs as one table: rows that stand in several files once, repeats all kept, conflicts listed.

A repeat is the same work on the same kind of card with the same cuDNN, measured again. Nothing is averaged.
"""

from __future__ import annotations

import itertools
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from pathlib import Path
from typing import Any

from convscope.dataset import ranked_plans, samples
from convscope.dataset.samples import ARITHMETIC, OUTDATED, SAMPLES, SHAPE, SHARE, WORK, SampleRow
from convscope.errors import InputError, StopError
from convscope.storage import wording
from convscope.storage.table import Table

WORK_ON_CARD = ("gpu_name", "cudnn", *WORK)
"""Columns that repeats share: what is computed, the kind of card, the library."""
_KEY, _WORK = attrgetter(*SAMPLES.unique), attrgetter(*WORK_ON_CARD)
_SHAPE = attrgetter("gpu_name", "cudnn", *SHAPE, *ARITHMETIC)
TIMES, STATUSES = "times apart", "other statuses"
_FINAL = ("ok", "unsupported", "wrong", "less precise")  # what the same software says of the same work each time
_OF_A_RUN = re.compile(r"\S+ (?P<card>(?:GPU|MIG)-\S+|cpu) (?P<start>\S*)")
_OF_PUBLISHED = re.compile(r"(?P<card>(?:GPU|MIG)-\S+|cpu) \S*")


class ContradictionError(StopError):
    """Rows with the same key, run included, say different things."""


@dataclass(frozen=True)
class Conflict:
    """Two repeats that do not agree, by their numbers in the table; of several, those that are farthest apart.

    Attributes:
        kind: `TIMES`, where the means are apart by more than their 95 % intervals together (`allowed_ms`); `STATUSES`,
            where one was measured and the other refused, or one is wrong.
    """

    sample: int
    other_sample: int
    kind: str
    mean_ms: float | None
    other_mean_ms: float | None
    apart_ms: float | None
    allowed_ms: float | None
    status: str
    other_status: str


CONFLICTS = Table(Conflict, unique=("sample", "other_sample"), first=9)


def merged(paths: Sequence[Path]) -> tuple[list[SampleRow], int]:
    """Return the samples of all files in the order of their keys, and the number of rows that stood in several.

    Raises:
        ContradictionError: two rows of the same key, run included, differ.
        InputError: a file is no table of samples.
    """
    found: dict[tuple[Any, ...], SampleRow] = {}
    different, again = [], 0
    for path in paths:
        for row in samples.rows(path):
            public = published(row)
            key = key_of(public)
            again += key in found
            earlier = found.get(key, public)
            if (both := _together(earlier, public)) is None:
                different.append(f"{path}: {title(public)}: {_differing(earlier, public)}")
            found[key] = both or earlier
    if different:
        more = f", and {len(different) - 1} more" if len(different) > 1 else ""
        raise ContradictionError(
            f"the same sample of the same run says two things: {different[0]}{more}: leave one of the files out"
        )
    if not found:
        raise InputError(f"{', '.join(map(str, paths))}: no samples in it: measure some, or import them")
    return in_order(found.values()), again


def _together(one: SampleRow, other: SampleRow) -> SampleRow | None:
    """Return the sample that both are, None where they differ; one may lack plans, which are not measured."""
    found = {*ranked_plans.together(one, other)}
    return found.pop() if len(found) == 1 else None


def without_outdated(rows: Sequence[SampleRow]) -> tuple[list[SampleRow], int]:
    """Return samples (as `merged` does) without those that an earlier version timed otherwise where a time is newer.

    With one newer time of a shape goes all that earlier versions have of it, refusals and candidates that were not
    tried anew too; an energy stays, as a sample without a time. Returns also the number of samples that went.
    """
    anew = {_shape_of(row) for row in rows if row.mean_ms is not None and row.timing_method == SHARE}
    outdated = [row.timing_method in OUTDATED and _shape_of(row) in anew for row in rows]
    kept = [_without_time(row) if out else row for row, out in zip(rows, outdated, strict=True)]
    found = [row for row, out in zip(kept, outdated, strict=True) if not out or row.energy_j is not None]
    return found, len(rows) - len(found)


def _shape_of(row: SampleRow) -> tuple[Any, ...]:
    shape: tuple[Any, ...] = _SHAPE(row)
    return shape


def _without_time(row: SampleRow) -> SampleRow:
    return replace(row, mean_ms=None, mean_ci95_ms=None, placements=None, timing_method=None)


def in_order(rows: Iterable[SampleRow]) -> list[SampleRow]:
    """Return samples in the order of their keys."""
    return sorted(rows, key=lambda row: _sortable(key_of(row)))


def key_of(row: SampleRow) -> tuple[Any, ...]:
    """Return the key of a sample."""
    key: tuple[Any, ...] = _KEY(row)
    return key


def published(row: SampleRow) -> SampleRow:
    """Return a sample as a published data set has it: without its host, its timing method in the present text."""
    return replace(row, run=public_run(row.run), timing_method=wording.present(row.timing_method))


def public_run(run: str) -> str:
    """Return the name of a run without its host."""
    named = _OF_A_RUN.fullmatch(run)
    return f"{named['card']} {named['start']}" if named else run


def card_of(run: str) -> str | None:
    """Return the UUID of the card that a published run was on, "cpu" of a processor; None where it does not say."""
    named = _OF_PUBLISHED.fullmatch(run)
    return named["card"] if named else None


def title(row: SampleRow) -> str:
    """Return the sample in a few words: "fft, 64-128 3x3 56x56 batch 1 float32 fp32 nchw on Tesla T4"."""
    size = f"{row.in_height_px or '?'}x{row.in_width_px or '?'}"
    shape = f"{row.in_channels}-{row.out_channels} {row.kernel_size} on {size}, batch {row.batch_size}"
    return f"{row.algorithm}, {shape}, {row.dtype} {row.math} {row.layout}, {row.gpu_name}"


def repeats(rows: Sequence[SampleRow]) -> Iterator[list[int]]:
    """Yield the numbers of the rows that are repeats of each other, at least two."""
    groups: dict[tuple[Any, ...], list[int]] = defaultdict(list)
    for number, row in enumerate(rows):
        groups[_WORK(row)].append(number)
    yield from (numbers for numbers in groups.values() if len(numbers) > 1)


def conflicts(rows: Sequence[SampleRow]) -> list[Conflict]:
    """Return the repeats that do not agree, one of each work and kind of conflict.

    A time without an interval is in no conflict: nobody knows how sure it is.
    """
    found = []
    for numbers in repeats(rows):
        pairs = [_conflict(rows, one, other) for one, other in itertools.combinations(numbers, 2)]
        for kind in (TIMES, STATUSES):
            of_kind = [each for each in pairs if each is not None and each.kind == kind]
            found += sorted(of_kind, key=lambda each: each.apart_ms or 0.0)[-1:]
    return found


def _conflict(rows: Sequence[SampleRow], one: int, other: int) -> Conflict | None:
    first, second = rows[one], rows[other]
    kind, apart_ms, allowed_ms = STATUSES, None, None
    if first.mean_ms is not None and second.mean_ms is not None and first.status == second.status == "ok":
        if first.mean_ci95_ms is None or second.mean_ci95_ms is None:
            return None
        kind, apart_ms = TIMES, abs(first.mean_ms - second.mean_ms)
        allowed_ms = first.mean_ci95_ms + second.mean_ci95_ms
        if apart_ms <= allowed_ms:
            return None
    elif first.status == second.status or not {first.status, second.status} <= {*_FINAL}:
        return None
    return Conflict(one, other, kind, first.mean_ms, second.mean_ms, apart_ms, allowed_ms, first.status, second.status)


def _sortable(key: Iterable[Any]) -> tuple[tuple[int, Any], ...]:
    return tuple((0, 0) if value is None else (1, value) for value in key)


def _differing(one: SampleRow, other: SampleRow) -> str:
    names = [name for name in SAMPLES.columns if getattr(one, name) != getattr(other, name)]
    return ", ".join(f"{name} {getattr(one, name)} and {getattr(other, name)}" for name in names[:3])
