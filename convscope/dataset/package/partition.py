"""Files of splits of a published data set: for each split whether a sample is held back, learned from or left out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from convscope.dataset import parquet, splits
from convscope.dataset.calls import CallRow
from convscope.dataset.samples import SAMPLES, SHAPE, SPLITS, SampleRow
from convscope.errors import InputError

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

HELD_BACK, LEARNED, LEFT_OUT = "held back", "learned", "left out"
ROLES = (HELD_BACK, LEARNED, LEFT_OUT)
Roles = Mapping[str, Sequence[str]]
"""Of each split by its name, the role of each sample that takes part."""


def frame(rows: Sequence[SampleRow]) -> pd.DataFrame:
    """Return samples as `samples.read` returns them."""
    return parquet.frame_of(rows, SAMPLES)


def taking_part(every: pd.DataFrame) -> npt.NDArray[np.intp]:
    """Return the numbers of the samples that splits divide: those with a time and all sizes."""
    measured = (every["status"] == "ok") & every["mean_ms"].notna()
    return np.flatnonzero(measured & every[[*SHAPE]].notna().all(axis=1))


def roles(every: pd.DataFrame, kind: str, calls: Sequence[CallRow] = ()) -> Roles:
    """Return the splits of a kind over the samples that take part.

    Args:
        calls: as `splits.splits` takes them.

    Raises:
        InputError: the samples cannot be divided so.
    """
    kept = every.iloc[taking_part(every)].reset_index(drop=True)
    if kept.empty:
        raise InputError(f"split by {kind}: no sample has a time and sizes")
    found = {}
    for split in splits.splits(kept, kind, calls):
        if not split.held_back.any() or not split.learned.any():
            raise InputError(f"split by {kind}: {split.name} leaves nothing on one side: measure more")
        found[split.name] = np.where(split.held_back, HELD_BACK, np.where(split.learned, LEARNED, LEFT_OUT)).tolist()
    return found


def every_kind(every: pd.DataFrame, calls: Sequence[CallRow] = ()) -> tuple[dict[str, Roles], dict[str, str]]:
    """Return the splits of each kind that the samples can be divided by, and for each other kind why not."""
    tried = {kind: _tried(every, kind, calls) for kind in SPLITS}
    found = {kind: each for kind, each in tried.items() if not isinstance(each, str)}
    return found, {kind: each for kind, each in tried.items() if isinstance(each, str)}


def _tried(every: pd.DataFrame, kind: str, calls: Sequence[CallRow]) -> Roles | str:
    try:
        return roles(every, kind, calls)
    except InputError as error:
        return str(error).partition(": ")[2]


def schema(names: Sequence[str]) -> pa.Schema:
    """Return the columns of a file with these splits."""
    import pyarrow as pa

    number = pa.field(parquet.NUMBER, pa.int32(), nullable=False)
    return pa.schema([number, *(pa.field(name, pa.string(), nullable=False) for name in names)])


def content(every: pd.DataFrame, found: Roles) -> bytes:
    """Return the splits of a kind as a file."""
    columns = {parquet.NUMBER: taking_part(every).tolist(), **found}
    return parquet.packed(columns, schema([*found]))


def leaks(every: pd.DataFrame, kind: str, numbers: Sequence[int], found: Roles) -> Iterator[str]:
    """Yield what is learned from and held back at the same time in the splits of a kind.

    Args:
        numbers: the samples that `found` has roles of.
    """
    kept = every.iloc[list(numbers)]
    whole = {"family": "family", "gpu": "gpu_name"}.get(kind)
    shapes = splits.joined(kept, SHAPE) if kind in ("layer", "family", "size") else None
    for name, each in found.items():
        part = np.array(each, dtype=object)
        held_back, learned = part == HELD_BACK, part == LEARNED
        if shapes is not None:
            for label in sorted({*shapes[held_back]} & {*shapes[learned]}):
                yield _leak(name, f"the shape {label}", numbers, shapes == label, part)
        if whole is not None:
            label = name.removeprefix(f"{kind} ")
            own = kept[whole].to_numpy(dtype=object) == label
            if (own & held_back).any() and (own & learned).any():
                yield _leak(name, f"{whole} {label}", numbers, own, part)


def _leak(name: str, what: str, numbers: Sequence[int], own: npt.NDArray[np.bool_], part: splits.Labels) -> str:
    one, other = (numbers[np.flatnonzero(own & (part == role))[0]] for role in (HELD_BACK, LEARNED))
    return f"{name}: {what} is held back (sample {one}) and learned (sample {other})"
