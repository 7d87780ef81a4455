"""Shapes that existing samples have a time of: a collection adds others, or renews those that are outdated."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pandas.api.types import is_numeric_dtype

from convscope.dataset import samples
from convscope.dataset.collect.request import SETTINGS
from convscope.dataset.collect.uses import Key, Use, layers_of
from convscope.dataset.samples import ARITHMETIC, OUTDATED, SHAPE
from convscope.errors import InputError
from convscope.storage import wording

if TYPE_CHECKING:
    import pandas as pd


def shapes(paths: Sequence[Path], gpu_name: str | None) -> set[tuple[str, Key]]:
    """Return the shapes in files of samples that were timed by any algorithm, each with its setting.

    Times that an earlier version took in another way do not count.

    Args:
        gpu_name: the device that the collection is for; None is any.

    Raises:
        InputError: a file is no file of samples, or has samples of another device.
    """
    timed, is_outdated = _timed("--known", paths, gpu_name)
    return {(setting, key) for setting, key in _with_settings(timed[~is_outdated]) if setting}


def outdated(paths: Sequence[Path], gpu_name: str | None) -> list[tuple[str, Use]]:
    """Return the shapes that earlier versions alone timed, in another way, each with its setting and a call of it.

    Arguments and errors are those of `shapes`; there is one more.

    Raises:
        InputError: no convolution has the shape of one of these samples.
    """
    timed, is_outdated = _timed("--renew", paths, gpu_name)
    done = {*_with_settings(timed[~is_outdated])}
    places = timed.loc[is_outdated, ["model", "input_size", "layer"]].itertuples(index=False, name=None)
    found: dict[tuple[str, Key], Use] = {}
    for (setting, key), (model, size, layer) in zip(_with_settings(timed[is_outdated]), places, strict=True):
        if setting and (setting, key) not in done:
            use = Use(model, None if size != size else int(size), layer, 0, key)  # NaN is not itself
            found.setdefault((setting, key), use)
    try:
        layers_of([use.key for use in found.values()])
    except InputError as error:
        reason = str(error).partition(": ")[2]
        raise InputError(
            f"--renew {', '.join(map(str, paths))}: no convolution has one of its shapes: {reason}"
        ) from None
    return [(setting, use) for (setting, _), use in found.items()]


def _timed(flag: str, paths: Sequence[Path], gpu_name: str | None) -> tuple[pd.DataFrame, pd.Series]:
    """Return the samples that have a time, those of one shape and way of timing once; and which are outdated."""
    frame = samples.read(paths)
    of, files = sorted({*frame["gpu_name"]}), ", ".join(map(str, paths))
    if gpu_name is None and len(of) > 1:
        raise InputError(f"{flag} {files}: samples of {', '.join(of)}: name those of one device")
    if gpu_name is not None and (others := [name for name in of if name != gpu_name]):
        what = f"{', '.join(others)}, this is {gpu_name}"
        raise InputError(f"{flag} {files}: it has samples of {what}: name samples of this one")
    timed = frame[frame["mean_ms"].notna()].dropna(subset=[*SHAPE])
    timed = timed.drop_duplicates([*ARITHMETIC, *SHAPE, "timing_method"])
    return timed, timed["timing_method"].map(wording.present, na_action="ignore").isin(OUTDATED)


def _with_settings(timed: pd.DataFrame) -> list[tuple[str | None, Key]]:
    """Return the shape of each sample with its setting, None where none is its own."""
    names = {tuple(own.values()): setting for setting, own in SETTINGS.items()}
    settings = [names.get(each) for each in timed[[*ARITHMETIC]].itertuples(index=False, name=None)]
    is_number = {name: is_numeric_dtype(timed[name]) for name in SHAPE}
    cells = [timed[name].astype(int).astype(str) if is_number[name] else timed[name] for name in SHAPE]
    return [*zip(settings, zip(*cells, strict=True), strict=True)]
