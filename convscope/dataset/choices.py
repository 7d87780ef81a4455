"""Samples of what chooses a plan, as samples of the plan that it runs: the kernels are the same.

What is chosen follows from the plans of the shape that cuDNN ranks (`ranked_plans`). Where they are not known, what
chooses stays an algorithm of its own, which runs one kernel or another.

- cuDNN's own choice (`guess`), its `implicit precomp gemm` and PyTorch's (`torch`) run the first of them. The first two
  do not have the engine for depthwise layers (5), and the second has no Fourier transform (3). For depthwise layers
  PyTorch has kernels of its own, except in channels last.
- `implicit gemm` runs the first of engines 0 and 28; where neither is in the list, engine 28 without knobs, or engine 0
  for dilated convolutions in 16 bits, which 28 does not compute.
- `gemm` runs engine 0 where it is in the list, else a matrix product of the unfolded image, which no plan does.
- PyTorch's search (`torch benchmark`) runs the fastest of the first ten, except where PyTorch has kernels of its own.
- Engine 3 in float32 is the algorithm `fft`; in 16 bits no search took it.

A list that was asked for without a card lacks engines 3, 5 and 58. So it does not say what is chosen for 1×1 layers
that cuBLASLt (58) may compute, by PyTorch for depthwise ones, and by its search by FMA, where the fastest may be a
Fourier transform. For a few layers by FMA it says another plan than `guess` and `torch` run.

The kernels that ran say so (docs/prediction.md).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import numpy.typing as npt
import pandas as pd

from convscope.dataset import ranked_plans

OF_PYTORCH = "torch"
"""PyTorch's own choice."""
FIRST: Mapping[str, tuple[int, ...]] = {
    "guess": (ranked_plans.DEPTHWISE,),
    "implicit precomp gemm": (ranked_plans.DEPTHWISE, ranked_plans.FOURIER),
    OF_PYTORCH: (),
}
"""Algorithms that run the first plan of their shape, with the engines that they do not have."""
SEARCH, TRIED = "torch benchmark", 10
"""PyTorch's search, and the plans that it tries at most (`torch.backends.cudnn.benchmark_limit`)."""
AMONG = {"implicit gemm": (0, 28), "gemm": (0,)}
"""Engines that an algorithm runs the first one of."""
UNFOLDED, SEARCHED = "gemm (unfolded)", "torch benchmark (of plans)"
"""Names of what is no plan either, but known better than by the name of the algorithm."""
CHOOSERS = (*FIRST, *AMONG, SEARCH)
FFT = "fft"
"""The algorithm that engine 3 is, and what the kernels of Fourier transforms have in their names."""
PLAN = "plan:"
_FLOAT32, _HAS_FOURIER = "float32", rf"(?:^|;){ranked_plans.FOURIER}(?:[:;]|$)"
COLUMN, ABOUT = "ranked_plans", "ranked_for"
"""The plans of a sample, and whether a card was there when they were asked for."""


def can_be_asked_for(names: Iterable[str]) -> list[str]:
    """Return names of algorithms without those that are only learned."""
    return [name for name in names if name not in (UNFOLDED, SEARCHED)]


def resolved(frame: pd.DataFrame, versions: Iterable[str] | None = None) -> pd.DataFrame:
    """Return samples, those by what chooses a plan as samples by that plan.

    Args:
        versions: of cuDNN, whose plans are known; None is any.
    """
    if COLUMN not in frame:
        return frame
    plans = chosen(frame)
    if versions is not None:
        known = {ranked_plans.series(each) for each in versions if each}
        is_known = frame["cudnn"].map(lambda version: ranked_plans.series(version) in known).to_numpy(dtype=np.bool_)
        plans = np.where(is_known, plans, "")
    return frame.assign(algorithm=np.where(plans == "", frame["algorithm"], plans))


def with_plans(frame: pd.DataFrame) -> pd.DataFrame:
    """Return samples, and behind them those by what chooses a plan once more, as samples by that plan.

    Those whose kernels say that a Fourier transform ran which is not in the list are not among the latter.
    """
    if COLUMN not in frame:
        return frame
    plans = chosen(frame)
    ran = frame["kernels"].fillna("") if "kernels" in frame else pd.Series("", frame.index)
    has_fourier = (plans == SEARCHED) & frame[COLUMN].fillna("").str.contains(_HAS_FOURIER).to_numpy(dtype=np.bool_)
    is_other = ran.str.contains(FFT, regex=False).to_numpy(dtype=np.bool_) & (plans != FFT) & ~has_fourier
    is_it = (plans != "") & ~is_other
    return pd.concat([frame, frame[is_it].assign(algorithm=plans[is_it])], ignore_index=True)


def searched(frame: pd.DataFrame, engines: Iterable[str]) -> tuple[pd.DataFrame, npt.NDArray[np.intp]]:
    """Return the plans that searches (`SEARCHED`) try as rows of their own, and the number of the row that each is for.

    Args:
        engines: of plans, "plan:67"; others are left out.
    """
    if COLUMN not in frame:
        return frame.iloc[:0], np.zeros(0, dtype=np.intp)
    rows, known = np.flatnonzero((frame["algorithm"] == SEARCHED) & frame[COLUMN].notna()), {*engines}
    lists = [text.split(ranked_plans.SEPARATOR)[:TRIED] for text in frame[COLUMN].iloc[rows]]
    dtypes = frame["dtype"].iloc[rows]
    pairs = [
        (row, _named(plan, dtype)) for row, dtype, plans in zip(rows, dtypes, lists, strict=True) for plan in plans
    ]
    pairs = [(row, name) for row, name in pairs if ":".join(name.split(":")[:2]) in known]
    of = np.array([row for row, _ in pairs], dtype=np.intp)
    return frame.iloc[of].assign(algorithm=[name for _, name in pairs]).reset_index(drop=True), of


def depthwise(frame: pd.DataFrame) -> pd.Series[bool]:
    """Tell which convolutions have a group for each channel."""
    return (frame["groups"] > 1) & (frame["groups"] == frame["in_channels"])


def chosen(frame: pd.DataFrame) -> npt.NDArray[np.object_]:
    """Return what each row's choice runs: a plan, `UNFOLDED` or `SEARCHED`; "" for no choice, or an unknown one."""
    if frame.empty:
        return np.zeros(0, dtype=object)
    algorithm, dtype, of_pytorch = frame["algorithm"], frame["dtype"], frame["algorithm"].isin([OF_PYTORCH, SEARCH])
    is_own = of_pytorch & depthwise(frame) & (frame["layout"] != "nhwc")
    may_be_other = (
        _may_be_of_cublaslt(frame) | (of_pytorch & depthwise(frame)) | (_by_fma(frame) & (algorithm == SEARCH))
    )
    for_card = frame[ABOUT] == ranked_plans.CARD if ABOUT in frame else pd.Series(False, frame.index)
    in_list = ~is_own & (for_card | ~may_be_other)
    asked = [algorithm, frame[COLUMN].fillna(""), in_list, dtype, frame["dilation"] != "1x1"]
    numbers, cases = pd.factorize(pd.MultiIndex.from_arrays(asked))
    return np.array([_chosen(*case) for case in cases], dtype=object)[numbers]


def _chosen(algorithm: str, ranked: str, in_list: bool, dtype: str, is_dilated: bool) -> str:
    """Return what an algorithm runs of the plans of a shape, as `chosen` does.

    Args:
        in_list: nothing that is not in the list may be the first, or the fastest.
    """
    plans = ranked.split(ranked_plans.SEPARATOR)
    if not ranked or algorithm not in CHOOSERS:
        return ""
    if algorithm in AMONG:
        last = UNFOLDED if algorithm == "gemm" else PLAN + ("0" if is_dilated and dtype != _FLOAT32 else "28")
        return next((PLAN + plan for plan in plans if _engine(plan) in AMONG[algorithm]), last)
    if not in_list:
        return ""
    if algorithm == SEARCH:
        return SEARCHED
    has = (plan for plan in plans if _engine(plan) not in FIRST[algorithm])
    return next((_named(plan, dtype) for plan in has), "")


def _named(plan: str, dtype: str) -> str:
    """Return the algorithm that a plan in a list is; "" for one that is not known."""
    if _engine(plan) != ranked_plans.FOURIER:
        return PLAN + plan
    return FFT if dtype == _FLOAT32 else ""


def _engine(plan: str) -> int:
    return int(plan.split(":")[0])


def _by_fma(frame: pd.DataFrame) -> pd.Series[bool]:
    return (frame["dtype"] == _FLOAT32) & (frame["math"] == "fp32")


def _may_be_of_cublaslt(frame: pd.DataFrame) -> pd.Series[bool]:
    """Tell where cuDNN may rank the engine first that calls cuBLASLt: 1×1 layers, except by FMA."""
    of_one = (frame["kernel_size"] == "1x1") & (frame["stride"] == "1x1") & (frame["groups"] == 1)
    return of_one & ~_by_fma(frame)
