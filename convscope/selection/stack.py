"""Card and cuDNN that a selection is for: samples and predictors of others are never mixed with theirs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pandas as pd

from convscope import gpus
from convscope.cli.display import several
from convscope.errors import InputError
from convscope.selection import candidates
from convscope.storage import wording

if TYPE_CHECKING:
    from convscope.prediction.predictor import Predictor


@dataclass(frozen=True)
class Stack:
    """A card by its driver's name, with cuDNN and driver; on a CPU, which has no cuDNN, the processor's name."""

    gpu_name: str
    cudnn: str | None
    driver: str | None = None

    @property
    def device_type(self) -> str:
        """The kind of device, "cpu" or "cuda"."""
        return "cuda" if self.cudnn else "cpu"


def has(frame: pd.DataFrame, gpu: str | None) -> bool:
    """Tell whether samples are of a card; of any where none is named."""
    return gpu is None or bool(_meant(frame, gpu))


def narrowed(frame: pd.DataFrame, gpu: str | None, cudnn: str | None) -> tuple[Stack, pd.DataFrame]:
    """Return the one card and cuDNN that is meant, and its samples.

    Args:
        gpu, cudnn: None where the samples have only one.

    Raises:
        InputError: the samples have several, or none that is meant, or those of one shape were timed in several ways.
    """
    names, meant = sorted(frame["gpu_name"].unique()), _meant(frame, gpu)
    if len(meant) != 1:
        wrong = f"--gpu {gpu}" if gpu else "samples of several cards"
        raise InputError(f"{wrong}: name one of the samples' cards by --gpu: {'; '.join(names)}")
    here = frame[frame["gpu_name"] == meant[0]]
    versions = sorted({version or "" for version in here["cudnn"]})
    if cudnn is None and len(versions) > 1:
        listed = ", ".join(version or "none" for version in versions)
        raise InputError(f"samples of {meant[0]} by several versions of cuDNN: say --cudnn, one of {listed}")
    version = versions[0] if cudnn is None else cudnn
    if version not in versions:
        raise InputError(
            f"--cudnn {cudnn}: {meant[0]} has samples of {', '.join(filter(None, versions)) or 'no cuDNN'}"
        )
    here = here[here["cudnn"].map(lambda each: each or "") == version]
    _check_methods(here)
    return Stack(meant[0], version or None, _only(here["driver"])), here.reset_index(drop=True)


def _check_methods(here: pd.DataFrame) -> None:
    timed = here[here[["mean_ms", "timing_method", "in_height_px"]].notna().all(axis=1)]
    names = {name: wording.present(name) for name in timed["timing_method"].unique()}
    if len({*names.values()}) < 2:
        return
    methods = timed["timing_method"].map(names)
    shapes = candidates.keys(timed)
    mixed = methods.groupby(shapes).transform("nunique") > 1
    if mixed.any():
        listed, count = "; ".join(sorted(methods[mixed].unique())), len({*shapes[mixed.to_numpy()]})
        raise InputError(
            f"samples of {several(count, 'shape')} were timed in several ways, which cannot be compared: {listed}: "
            "leave a file out; convscope dataset package leaves out what earlier versions timed otherwise"
        )


def of_predictors(predictors: Iterable[Predictor], gpu: str | None, cudnn: str | None) -> Stack:
    """Return the stack where there are no samples of it: a card by name, and the cuDNN that was learned.

    Raises:
        InputError: no card is named, or several versions were learned.
    """
    if gpu is None:
        raise InputError("say the card by --gpu, as its driver names it")
    versions = sorted({version for each in predictors for version in each.learned.get("cudnn", ())})
    if cudnn is None and len(versions) != 1:
        raise InputError(f"the predictors learned from cuDNN {_listed(versions)}: say --cudnn")
    return Stack(gpu, (versions[0] if cudnn is None else cudnn) or None)


def check(predictor: Predictor, stack: Stack) -> None:
    """Raise InputError for a predictor that learned from another cuDNN, or does not say from which."""
    versions = predictor.learned.get("cudnn", ())
    if list(versions) != [stack.cudnn or ""]:
        here = f"cuDNN {stack.cudnn}" if stack.cudnn else "no cuDNN"
        raise InputError(
            f"the predictor of {predictor.target} learned from cuDNN {_listed(versions)}, and this is {here}: "
            "fit one to samples of it alone"
        )


def _meant(frame: pd.DataFrame, gpu: str | None) -> list[str]:
    names = sorted(frame["gpu_name"].unique())
    return [name for name in names if gpu in (None, name)] or [n for n in names if gpu and gpus.matches(gpu, n)]


def _listed(versions: Iterable[str]) -> str:
    return ", ".join(version or "none" for version in versions) or "unknown"


def _only(column: pd.Series[str]) -> str | None:
    """Return the one value that a column has, None where there are several or none."""
    found = {cell for cell in column if cell == cell and cell is not None}
    return found.pop() if len(found) == 1 else None
