"""Samples of what chooses a plan, as samples of the plan that it runs: the kernels are the same.

What is chosen follows from the plans of the shape that cuDNN ranks (`ranked_plans`, which says what is not in the
list). Where they are not known, what chooses stays an algorithm of its own, which runs one kernel or another.

- cuDNN's own choice and its `implicit precomp gemm` run the first of them; so does PyTorch's, but for depthwise layers.
- `implicit gemm` runs the first of engines 0 and 28; where neither is in the list, engine 28 without knobs, or engine 0
  for dilated convolutions in 16 bits, which 28 does not compute.
- `gemm` runs engine 0 where it is in the list, else a matrix product of the unfolded image, which no plan does.
- PyTorch's search (`torch benchmark`) runs the fastest of the first ten, unless it takes what is not in the list: for
  1×1 layers that cuBLASLt may compute, depthwise ones, and by FMA, where Fourier transforms are among the fastest.

The kernels that ran say so (docs/prediction.md).
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
import pandas as pd

from convscope.dataset import ranked_plans

OF_CUDNN = ("guess", "implicit precomp gemm")
"""Algorithms that run the first plan of their shape."""
OF_PYTORCH = "torch"
"""PyTorch's own choice: the same, but for depthwise layers, for many of which PyTorch has a kernel of its own."""
SEARCH, TRIED = "torch benchmark", 10
"""PyTorch's search, and the plans that it tries at most (`torch.backends.cudnn.benchmark_limit`)."""
AMONG = {"implicit gemm": ("0", "28"), "gemm": ("0",)}
"""Engines that an algorithm runs the first one of."""
UNFOLDED, SEARCHED = "gemm (unfolded)", "torch benchmark (of plans)"
"""Names of what is no plan either, but known better than by the name of the algorithm."""
CHOOSERS = (*OF_CUDNN, OF_PYTORCH, *AMONG, SEARCH)
FFT = "fft"
"""In the names of kernels that no plan in the list has: a Fourier transform's."""
PLAN = "plan:"
COLUMN = "ranked_plans"


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

    Those whose kernels say that another plan ran, one that is not in the list, are not among the latter.
    """
    if COLUMN not in frame:
        return frame
    plans = chosen(frame)
    ran = frame["kernels"].fillna("") if "kernels" in frame else pd.Series("", frame.index)
    is_it = (plans != "") & ~ran.str.contains(FFT, regex=False).to_numpy(dtype=np.bool_)
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
    pairs = [(row, PLAN + plan) for row, plans in zip(rows, lists, strict=True) for plan in plans]
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
    algorithm, of_cublaslt, is_depthwise = frame["algorithm"], _may_be_of_cublaslt(frame), depthwise(frame)
    by_fma = (frame["dtype"] == "float32") & (frame["math"] == "fp32")
    in_list = ~of_cublaslt & ~(is_depthwise & algorithm.isin([OF_PYTORCH, SEARCH])) & ~(by_fma & (algorithm == SEARCH))
    dilated_in_16_bits = (frame["dtype"] != "float32") & (frame["dilation"] != "1x1")
    asked = pd.MultiIndex.from_arrays([algorithm, frame[COLUMN].fillna(""), in_list, dilated_in_16_bits])
    numbers, cases = pd.factorize(asked)
    return np.array([_chosen(*case) for case in cases], dtype=object)[numbers]


def _chosen(algorithm: str, ranked: str, in_list: bool, dilated_in_16_bits: bool) -> str:
    """Return what an algorithm runs of the plans of a shape, as `chosen` does.

    Args:
        in_list: nothing that is not in the list may be the first, or the fastest.
    """
    plans = ranked.split(ranked_plans.SEPARATOR)
    if not ranked or algorithm not in CHOOSERS:
        return ""
    if algorithm in AMONG:
        last = UNFOLDED if algorithm == "gemm" else PLAN + ("0" if dilated_in_16_bits else "28")
        return next((PLAN + plan for plan in plans if plan.split(":")[0] in AMONG[algorithm]), last)
    if not in_list:
        return ""
    return SEARCHED if algorithm == SEARCH else PLAN + plans[0]


def _may_be_of_cublaslt(frame: pd.DataFrame) -> pd.Series[bool]:
    """Tell where cuDNN may rank an engine first that is not in the list: cuBLASLt's, for 1×1 layers, but for FMA."""
    of_one = (frame["kernel_size"] == "1x1") & (frame["stride"] == "1x1") & (frame["groups"] == 1)
    return of_one & ~((frame["dtype"] == "float32") & (frame["math"] == "fp32"))
