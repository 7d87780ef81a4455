"""Who can do a 3-D convolution, by name: the Triton kernels, cuDNN's algorithms, PyTorch; one made ready for a shape.

All take and return N × C × D × H × W. What an implementation does to its input (a copy to channels last) is in each
call; what it does to its filters is done once.
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
from convscope.cudnn import legacy
from convscope.cudnn.shape import Convolution
from convscope.errors import InputError
from convscope.kernels.autotune import BlockCache
from convscope.kernels.conv3d import catalogue
from convscope.kernels.conv3d.layout import Blocks3d

T = TypeVar("T")
TORCH, BENCHMARK = "torch", "torch benchmark"
_CUDNN_PREFIX = "cudnn "
CUDNN = {_CUDNN_PREFIX + name: number for number, name in algorithms.NAMES_BY_CUDNN_NUMBER.items()}
NAMES = (*catalogue.KERNELS, *CUDNN, TORCH, BENCHMARK)

# As the study that this one follows called its kernels.
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


def find(text: str) -> tuple[str, ...]:
    """Return the implementations that "NAME,NAME" or "all" names, in the order of `NAMES`; underscores are spaces.

    Raises:
        InputError: there is none of that name.
    """
    if text.strip().lower() == "all":
        return NAMES
    wanted = {_name(part) for part in text.split(",")}
    return tuple(name for name in NAMES if name in wanted)


def _name(text: str) -> str:
    plain = " ".join(text.lower().replace("_", " ").split())
    name = OLDER.get(plain, plain)
    if name not in NAMES:
        raise InputError(f"--implementation {text!r}: choose all, or some of {', '.join(NAMES)}")
    return name


def provider(name: str) -> str:
    """Return whose an implementation is: triton, cudnn or torch."""
    return "triton" if name in catalogue.KERNELS else "cudnn" if name in CUDNN else "torch"


def computes_in(name: str, shape: Convolution) -> str:
    """Return the arithmetic that an implementation may use: "fp32" (FMA), "tf32" or "fp16"."""
    if name in catalogue.FMA_ONLY:
        return "fp32"
    return "fp16" if shape.dtype == "float16" else shape.math


@dataclass(frozen=True)
class Prepared:
    """An implementation ready for one shape and one tensor of filters.

    `renew` must be called when the filters were written to. `said` tells, after the first call, how it was cut.
    """

    call: Callable[[torch.Tensor], torch.Tensor]
    renew: Callable[[], None]
    said: Callable[[], str | None]
    workspace_bytes: int | None = None


class Implementations:
    """Makes implementations ready on one device; leave its `with` block, or close it, to let cuDNN go.

    Args:
        memory: the choices of blocks for the kernel that is tuned.
    """

    def __init__(self, device: torch.device, memory: BlockCache[Blocks3d]) -> None:
        self.device, self.memory = device, memory
        self._left = contextlib.ExitStack()
        self._aside = self._left.enter_context(PlanThread(device))  # for the plans that benchmark chooses
        self._handle: legacy.Handle | None = None

    def why_not(self, name: str, shape: Convolution) -> str | None:
        """Return why an implementation cannot do a shape here, as far as that is known without trying."""
        on_cpu = self.device.type == "cpu"
        if name in catalogue.KERNELS:
            if on_cpu and os.environ.get("TRITON_INTERPRET") != "1":
                return f"{name} needs a CUDA device (or TRITON_INTERPRET=1, which is slow)"
            return catalogue.why_not(shape)
        return f"{name} needs a CUDA device" if on_cpu and name != TORCH else None

    def run(self, name: str, work: Callable[[], T]) -> T:
        """Run work that calls an implementation, where it has to run."""
        if name != BENCHMARK:
            return work()
        with backends.searching():
            return self._aside.run(work)

    def prepare(self, name: str, shape: Convolution, weight: torch.Tensor, blocks: Blocks3d | None = None) -> Prepared:
        """Make an implementation ready.

        Args:
            blocks: how a Triton kernel is cut, in place of its default or what is tuned.

        Raises:
            cudnn.NotSupportedError: cuDNN refuses the algorithm for this shape.
            NotImplementedError: the kernels cannot do it.
        """
        if name in catalogue.KERNELS:
            plan = catalogue.Conv3dPlan(name, shape, self.memory, blocks)
            return Prepared(
                lambda x: plan.run(x, weight), plan.renew, lambda: str(plan.blocks) if plan.blocks else None
            )
        if name in CUDNN:
            return self._cudnn(CUDNN[name], shape, weight)
        options = shape.stride, shape.padding, shape.dilation, shape.groups
        return Prepared(lambda x: torch.nn.functional.conv3d(x, weight, None, *options), _nothing, _nothing)

    def _cudnn(self, number: int, shape: Convolution, weight: torch.Tensor) -> Prepared:
        if self._handle is None:
            self._handle = self._left.enter_context(legacy.Handle())
        handle, plan = self._handle, legacy.LegacyPlan(self._handle, shape, number)
        self._left.callback(plan.close)

        def call(x: torch.Tensor) -> torch.Tensor:
            handle.use_stream(torch.cuda.current_stream(x.device).cuda_stream)
            y = torch.empty(plan.output_shape, dtype=x.dtype, device=x.device)
            workspace = torch.empty(plan.workspace_bytes, dtype=torch.uint8, device=x.device)
            plan.run(x.data_ptr(), weight.data_ptr(), y.data_ptr(), workspace.data_ptr())
            return y

        return Prepared(call, _nothing, _nothing, plan.workspace_bytes)

    def close(self) -> None:
        """Let cuDNN go."""
        self._left.close()

    def __enter__(self) -> Implementations:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _nothing() -> None:
    """Have nothing to do, and nothing to say."""
