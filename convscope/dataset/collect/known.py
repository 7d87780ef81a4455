"""Shapes that existing samples have a time of: a collection that extends them does not measure these again."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pandas.api.types import is_numeric_dtype

from convscope.dataset import samples
from convscope.dataset.collect.coverage import Key
from convscope.dataset.collect.request import SETTINGS
from convscope.dataset.samples import ARITHMETIC, OUTDATED, SHAPE
from convscope.errors import InputError
from convscope.storage import wording


def shapes(paths: Sequence[Path], gpu_name: str | None) -> set[tuple[str, Key]]:
    """Return the shapes in files of samples that were timed by any algorithm, each with its setting.

    Times that an earlier version took in another way do not count.

    Args:
        gpu_name: the device that the collection is for; None is any.

    Raises:
        InputError: a file is no file of samples, or has samples of another device.
    """
    frame = samples.read(paths)
    others = sorted({*frame["gpu_name"]} - {gpu_name})
    if gpu_name is not None and others:
        files, what = ", ".join(map(str, paths)), f"{', '.join(others)}, this is {gpu_name}"
        raise InputError(f"--known {files}: it has samples of {what}: name samples of this one")
    outdated = frame["timing_method"].map(wording.present, na_action="ignore").isin(OUTDATED)
    timed = frame[frame["mean_ms"].notna() & ~outdated].dropna(subset=[*SHAPE])
    timed = timed.drop_duplicates([*ARITHMETIC, *SHAPE])
    names = {tuple(own.values()): setting for setting, own in SETTINGS.items()}
    settings = [names.get(each) for each in timed[[*ARITHMETIC]].itertuples(index=False, name=None)]
    is_number = {name: is_numeric_dtype(timed[name]) for name in SHAPE}
    cells = [timed[name].astype(int).astype(str) if is_number[name] else timed[name] for name in SHAPE]
    return {(setting, key) for setting, key in zip(settings, zip(*cells, strict=True), strict=True) if setting}
