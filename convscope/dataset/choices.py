"""Samples of what chooses a plan, as samples of the plan: the same kernels, of which it is known which ones.

The plan is the first one of the shape (`first_plans`, which says where it is wrong). Where that is not known, what
chooses stays an algorithm of its own, which runs one kernel or another.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
import pandas as pd

from convscope.dataset import first_plans

OF_CUDNN = ("guess", "implicit precomp gemm")
"""Algorithms that run the first plan of their shape."""
OF_PYTORCH = "torch"
"""PyTorch's own choice: the same, but for depthwise layers, for many of which PyTorch has a kernel of its own."""
CHOOSERS = (*OF_CUDNN, OF_PYTORCH)
PLAN = "plan:"
COLUMN = "first_plan"


def resolved(frame: pd.DataFrame, versions: Iterable[str] | None = None) -> pd.DataFrame:
    """Return samples, those by what chooses the first plan as samples by that plan.

    Args:
        versions: of cuDNN, whose plans are known; None is any.
    """
    if COLUMN not in frame:
        return frame
    plans = _plans(frame)
    if versions is not None:
        known = {first_plans.series(each) for each in versions if each}
        is_known = frame["cudnn"].map(lambda version: first_plans.series(version) in known).to_numpy(dtype=np.bool_)
        plans = np.where(is_known, plans, "")
    return frame.assign(algorithm=np.where(plans == "", frame["algorithm"], plans))


def with_plans(frame: pd.DataFrame) -> pd.DataFrame:
    """Return samples, and behind them those by what chooses the first plan once more, as samples by that plan."""
    if COLUMN not in frame:
        return frame
    plans = _plans(frame)
    chosen = frame[plans != ""].assign(algorithm=plans[plans != ""])
    return pd.concat([frame, chosen], ignore_index=True)


def depthwise(frame: pd.DataFrame) -> pd.Series[bool]:
    """Tell which convolutions have a group for each channel."""
    return (frame["groups"] > 1) & (frame["groups"] == frame["in_channels"])


def _plans(frame: pd.DataFrame) -> npt.NDArray[np.object_]:
    """Return the plan that each row's choice runs, "" where it is none, or not known."""
    chooses = frame["algorithm"].isin(OF_CUDNN) | ((frame["algorithm"] == OF_PYTORCH) & ~depthwise(frame))
    known = chooses & frame[COLUMN].notna()
    return np.where(known, PLAN + frame[COLUMN].fillna("").astype(str), "").astype(object)
