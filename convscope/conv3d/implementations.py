"""Implementations of a 3-D convolution by name: the Triton kernels, cuDNN's algorithms, PyTorch.

All take and return N × C × D × H × W, in the layout of the convolution: contiguous, or in channels last. Work on the
input (a copy to channels last) is part of each call. Work on the filters is done once where an implementation can keep
what it has made of them: this project's kernels can, and PyTorch where its weights lie in channels last.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

import torch

from convscope.convolution import algorithms, backends
from convscope.convolution.backends import PlanThread
from convscope.convolution.providers.legacy import CudnnProvider
from convscope.convolution.providers.others import TorchProvider
from convscope.convolution.providers.plan import Plan
from convscope.cudnn.shape import Convolution
from convscope.errors import InputError
from convscope.kernels import conv3d as kernels
from convscope.kernels.autotune import BlockCache
from convscope.kernels.blocks import Blocks3d
from convscope.kernels.packing import PackedFilters

T = TypeVar("T")
TORCH, BENCHMARK, TORCH_LAST = "torch", "torch benchmark", "torch channels last"
_SEARCHED = (BENCHMARK, TORCH_LAST)
TORCHS = (TORCH, *_SEARCHED)
_CUDNN_PREFIX = "cudnn "
CUDNN = {_CUDNN_PREFIX + name: name for name in algorithms.NAMES_BY_CUDNN_NUMBER.values()}
NAMES = (*kernels.NAMES, *CUDNN, TORCH, BENCHMARK, TORCH_LAST)


@dataclass(frozen=True)
class Older:
    """A kernel of the study that this one follows: the nearest one here, and what sets the two apart."""

    name: str
    nearest: str
    differs: str


_OWN = "written by hand, not derived by DaCe"
_BY_DACE = "DaCe's automatic optimisation of the same definition; here it is the definition, not optimised"
OLDER: Mapping[str, Older] = {
    each.name.lower(): each
    for each in (
        Older("implicitGemmdace", "gemm", "tuned by timing, with the copy engine; there DaCe optimised it"),
        Older("implicitGemmTiledonlydace", "gemm tiled", _OWN),
        Older("implicitGemmWarpTileddace", "gemm pipelined", f"{_OWN}; warps are tiled by the compiler"),
        Older("implicitGemmNCDHWdace", "gemm ncdhw", _OWN),
        Older("implicitGemmsplitKdace", "gemm split-k", _OWN),
        Older("directConvNCDHWdace", "direct", _BY_DACE),
        Older("directConvNCDHWnobuffer", "direct merged", _OWN),
        Older("directConvNCDHWmergeddace", "direct merged buffered", _OWN),
        Older("directConvNCDHWtileIC", "direct tiled", _OWN),
    )
}


def find(text: str, device: torch.device | None = None) -> tuple[str, ...]:
    """Return the implementations that "NAME,NAME" or "all" names, in the order of `NAMES`; underscores are spaces.

    Args:
        device: where it is a CPU, "all" names those that run there.

    Raises:
        InputError: there is none of that name.
    """
    if text.strip().lower() == "all":
        if device is None or device.type != "cpu":
            return NAMES
        return tuple(name for name in NAMES if why_not_here(name, device) is None)
    named = {_name(part) for part in text.split(",")}
    return tuple(name for name in NAMES if name in named)


def older_names(text: str) -> tuple[str, ...]:
    """Return a line for each name of the older study in "NAME,NAME": what it is taken as, and what that differs in."""
    asked = [OLDER[plain] for part in text.split(",") if (plain := part.lower().strip()) in OLDER]
    return tuple(f"{older.name} is taken as {older.nearest}: {older.differs}" for older in asked)


def _name(text: str) -> str:
    plain = " ".join(text.lower().replace("_", " ").split())
    name = OLDER[plain].nearest if plain in OLDER else plain
    if name not in NAMES:
        raise InputError(f"--implementation {text!r}: choose all, or some of {', '.join(NAMES)}")
    return name


def provider(name: str) -> str:
    """Return the library of an implementation: triton, cudnn or torch."""
    return "triton" if name in kernels.NAMES else "cudnn" if name in CUDNN else "torch"


def computes_in(name: str, shape: Convolution) -> str:
    """Return the arithmetic that an implementation may use: "fp32" (FMA), "tf32" or "fp16"."""
    if name in kernels.FMA_ONLY:
        return "fp32"
    return "fp16" if shape.dtype == "float16" else shape.math


def why_not_here(name: str, device: torch.device) -> str | None:
    """Return why no shape can be done by an implementation on a device: it needs a GPU, or Triton; else None."""
    if name in kernels.NAMES:
        if device.type == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
            return f"{name} needs a CUDA device (or TRITON_INTERPRET=1, which is slow)"
        try:
            from convscope.kernels.conv3d import catalogue as catalogue
        except ModuleNotFoundError as error:
            return f"{name} needs Triton ({error}): it comes with PyTorch's CUDA wheels"
    return f"{name} needs a CUDA device" if device.type == "cpu" and name in (*CUDNN, *_SEARCHED) else None


def why_not_in(name: str, layout: str) -> str | None:
    """Return why an implementation has nothing for a layout, "nchw" or "nhwc" (channels last), None where it has."""
    if layout == "nhwc" and name in kernels.PLANAR_ONLY:
        return f"{name} reads and writes NCDHW"
    return f"in NDHWC that is {BENCHMARK}" if layout == "nhwc" and name == TORCH_LAST else None


def cuts(name: str, shape: Convolution) -> list[Blocks3d] | list[None]:
    """Return the few block shapes that an implementation is tested with on a shape; None is its default."""
    if name not in kernels.NAMES:
        return [None]
    try:
        from convscope.kernels.conv3d import catalogue
    except ModuleNotFoundError:
        return [None]
    return catalogue.samples(name, shape)


@dataclass(frozen=True)
class Prepared:
    """An implementation ready for one shape and one tensor of filters.

    Attributes:
        call: convolves an input.
        renew: must be called when the filters were written to.
        said: returns, after the first call, the block shapes as text; None where there are none.
        pack: makes of the filters what is kept between calls, after the first call; None where nothing is.
    """

    call: Callable[[torch.Tensor], torch.Tensor]
    renew: Callable[[], None]
    said: Callable[[], str | None]
    workspace_bytes: int | None = None
    pack: Callable[[], object] | None = None


class Implementations(contextlib.ExitStack):
    """The implementations on one device; leave the `with` block, or close it, to give back what cuDNN holds.

    Args:
        cache: the choices of block shapes for the kernel that is tuned.
    """

    def __init__(self, device: torch.device, cache: BlockCache[Blocks3d]) -> None:
        super().__init__()
        self.device, self.cache = device, cache
        self._thread = self.enter_context(PlanThread(device))  # for the plans that benchmark chooses
        self._cudnn, self._torch = self.enter_context(contextlib.closing(CudnnProvider())), TorchProvider()

    def why_not(self, name: str, shape: Convolution) -> str | None:
        """Return why an implementation cannot do a shape here, as far as that is known without trying."""
        if reason := why_not_here(name, self.device) or why_not_in(name, shape.layout):
            return reason
        if name not in kernels.NAMES:
            return None
        from convscope.kernels.conv3d import catalogue

        return catalogue.why_no_kernel(name, shape)

    def run(self, name: str, work: Callable[[], T]) -> T:
        """Run work that calls an implementation: where PyTorch is to search, among all plans, in a thread for that."""
        return self._searched(work) if name in _SEARCHED else work()

    def train(self, name: str, work: Callable[[], T]) -> T:
        """Run work that calls an implementation and PyTorch's gradients: searched for, but for `torch` as it is.

        PyTorch keeps plans by thread, and would look for gradients in a thread of its own, in which those of another
        implementation may be chosen already. So gradients are computed in the thread of the call.
        """
        with torch.autograd.set_multithreading_enabled(False):
            return work() if name == TORCH else self._searched(work)

    def _searched(self, work: Callable[[], T]) -> T:
        def alone() -> T:
            with torch.autograd.set_multithreading_enabled(False):
                return work()

        with backends.searching(every=True):
            return self._thread.run(alone)

    def prepare(self, name: str, shape: Convolution, weight: torch.Tensor, blocks: Blocks3d | None = None) -> Prepared:
        """Make an implementation ready.

        Args:
            blocks: the block shapes of a Triton kernel, in place of its default or tuned ones.

        Raises:
            NotSupportedError: cuDNN refuses the algorithm for this shape.
            NotImplementedError: the kernels cannot do it.
        """
        if name in kernels.NAMES:
            from convscope.kernels.conv3d import catalogue

            kernel = catalogue.Conv3dPlan(name, shape, self.cache, blocks)
            return Prepared(
                lambda x: kernel.run(x, weight), kernel.renew, lambda: str(kernel.blocks) if kernel.blocks else None,
                pack=lambda: kernel.lay_out(weight),
            )  # fmt: skip
        if name in CUDNN:
            plan = self._cudnn.plan(CUDNN[name], shape, self.device)
            self.callback(plan.close)
            return Prepared(lambda x: plan.run(x, weight, None), _nothing, _nothing, plan.workspace_bytes)
        own = self._torch.plan(TORCH, shape, self.device)
        if name == TORCH_LAST:
            return _by_channels_last(own, weight)
        return Prepared(lambda x: own.run(x, weight, None), _nothing, _nothing)


def _by_channels_last(plan: Plan, weight: torch.Tensor) -> Prepared:
    """Return PyTorch's convolution in channels last of tensors that are not: both are copied in each call."""
    filters = PackedFilters()

    def pack() -> torch.Tensor:
        return backends.laid(weight.detach(), "nhwc")

    def call(x: torch.Tensor) -> torch.Tensor:
        return plan.run(backends.laid(x, "nhwc"), filters.of(weight, pack), None).contiguous()

    is_same = weight.shape[1] == 1 or max(weight.shape[2:]) == 1  # memory in both layouts
    return Prepared(call, filters.renew, _nothing, pack=None if is_same else pack)


def _nothing() -> None:
    """Do nothing, and say nothing."""
