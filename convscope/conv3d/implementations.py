"""Implementations of a 3-D convolution by name: the Triton kernels, cuDNN's algorithms, PyTorch.

All take and return N × C × D × H × W. Work on the input (a copy to channels last) is part of each call; work on the
filters is done once.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import torch

from convscope.convolution import algorithms, backends
from convscope.convolution.backends import PlanThread
from convscope.convolution.providers.legacy import CudnnProvider
from convscope.convolution.providers.others import TorchProvider
from convscope.cudnn.shape import Convolution
from convscope.errors import InputError
from convscope.kernels import conv3d as kernels
from convscope.kernels.autotune import BlockCache
from convscope.kernels.blocks import Blocks3d

T = TypeVar("T")
TORCH, BENCHMARK = "torch", "torch benchmark"
_CUDNN_PREFIX = "cudnn "
CUDNN = {_CUDNN_PREFIX + name: name for name in algorithms.NAMES_BY_CUDNN_NUMBER.values()}
NAMES = (*kernels.NAMES, *CUDNN, TORCH, BENCHMARK)

# Names of the kernels in the study that this one follows.
OLDER = {
    "implicitgemmdace": "gemm",
    "implicitgemmtiledonlydace": "gemm tiled",
    "implicitgemmwarptileddace": "gemm pipelined",
    "implicitgemmncdhwdace": "gemm ncdhw",
    "implicitgemmsplitkdace": "gemm split-k",
    "directconvncdhwdace": "direct",
    "directconvncdhwnobuffer": "direct merged",
    "directconvncdhwmergeddace": "direct merged buffered",
    "directconvncdhwtileic": "direct tiled",
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


def _name(text: str) -> str:
    plain = " ".join(text.lower().replace("_", " ").split())
    name = OLDER.get(plain, plain)
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
    return f"{name} needs a CUDA device" if device.type == "cpu" and name in (*CUDNN, BENCHMARK) else None


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
    """

    call: Callable[[torch.Tensor], torch.Tensor]
    renew: Callable[[], None]
    said: Callable[[], str | None]
    workspace_bytes: int | None = None


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
        if reason := why_not_here(name, self.device):
            return reason
        if name not in kernels.NAMES:
            return None
        from convscope.kernels.conv3d import catalogue

        return catalogue.why_no_kernel(name, shape)

    def run(self, name: str, work: Callable[[], T]) -> T:
        """Run work that calls an implementation, in the thread that has its plans."""
        if name != BENCHMARK:
            return work()
        with backends.searching():
            return self._thread.run(work)

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
                lambda x: kernel.run(x, weight), kernel.renew, lambda: str(kernel.blocks) if kernel.blocks else None
            )
        if name in CUDNN:
            plan = self._cudnn.plan(CUDNN[name], shape, self.device)
            self.callback(plan.close)
            return Prepared(lambda x: plan.run(x, weight, None), _nothing, _nothing, plan.workspace_bytes)
        own = self._torch.plan(TORCH, shape, self.device)
        return Prepared(lambda x: own.run(x, weight, None), _nothing, _nothing)


def _nothing() -> None:
    """Do nothing, and say nothing."""
