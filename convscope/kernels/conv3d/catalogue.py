"""The nine 3-D convolutions of this folder by name, in tutorial order, and one of them made ready for a shape."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import ModuleType

import torch

from convscope.cudnn.shape import Convolution
from convscope.kernels.autotune import BlockCache
from convscope.kernels.conv3d import (
    candidates,
    direct,
    direct_buffered,
    direct_merged,
    direct_tiled,
    gemm,
    gemm_ncdhw,
    gemm_pipelined,
    gemm_split,
    gemm_tiled,
)
from convscope.kernels.conv3d.layout import Blocks3d

_FILES: tuple[ModuleType, ...] = (
    direct,
    direct_merged,
    direct_buffered,
    direct_tiled,
    gemm_ncdhw,
    gemm_tiled,
    gemm_pipelined,
    gemm_split,
    gemm,
)
KERNELS: dict[str, ModuleType] = {file.NAME: file for file in _FILES}
FMA_ONLY = (direct.NAME, direct_merged.NAME)  # these never use the matrix unit
DTYPES = ("float32", "float16")
_TAPS_MOST = 31  # in one direction: a bit each in an integer
_IMAGE_MOST = 2**31  # elements


def why_not(shape: Convolution) -> str | None:
    """Return why the kernels here cannot do a convolution, or None where they can."""
    if shape.dtype not in DTYPES:
        return f"the Triton kernels take {' and '.join(DTYPES)}, not {shape.dtype}"
    if max(shape.weight[2:]) > _TAPS_MOST:
        return f"the Triton kernels take at most {_TAPS_MOST} taps in one direction"
    if max(math.prod(shape.input[1:]), math.prod(shape.output[1:])) >= _IMAGE_MOST:
        return "the Triton kernels take images of less than 2^31 elements"
    return None


class Conv3dPlan:
    """A convolution with one of `KERNELS`: blocks chosen and filters laid out at the first call, then only launches.

    The first call must not be captured in a graph. One plan is for one tensor of filters.

    Args:
        memory: the choices to take from and add to, for the kernel that is tuned.
        blocks: how to cut it; None leaves that to the kernel's default, or to tuning.

    Raises:
        NotImplementedError: the kernels cannot do it.
    """

    def __init__(
        self, name: str, shape: Convolution, memory: BlockCache[Blocks3d] | None = None, blocks: Blocks3d | None = None
    ) -> None:
        reason = why_not(shape)
        if reason:
            raise NotImplementedError(reason)
        self.name, self.shape, self.blocks = name, shape, blocks
        self._kernel, self._memory = KERNELS[name], memory
        self._packed: torch.Tensor | None = None

    def run(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """Convolve N × C × D × H × W on the current stream.

        Raises:
            errors.NothingFitsError: at the first call, no blocks fit the card.
        """
        if self.blocks is None:
            self.blocks = self._choose(x, weight)
        if self._packed is None:
            self._packed = self._kernel.pack(weight, self.shape, self.blocks)
        y: torch.Tensor = self._kernel.convolve(x, self._packed, self.shape, self.blocks)
        return y

    def renew(self) -> None:
        """Lay the filters out again at the next call: they were written to."""
        self._packed = None

    def _choose(self, x: torch.Tensor, weight: torch.Tensor) -> Blocks3d:
        if self._memory is None or self.name != gemm.NAME:  # the others are cut in one way
            blocks: Blocks3d = self._kernel.default(self.shape)
            return blocks
        candidates = self._kernel.candidates(self.shape)
        packed = self._kernel.pack(weight, self.shape, candidates[0])

        def launcher(blocks: Blocks3d) -> Callable[[], object]:
            return lambda: self._kernel.convolve(x, packed, self.shape, blocks)

        return self._memory.choose(key(self.name, self.shape), candidates, launcher, timed=x.is_cuda).blocks


def samples(name: str, shape: Convolution) -> list[Blocks3d] | list[None]:
    """Return the few cuts that a kernel is tested with on a shape; None is its default."""
    return candidates.samples(shape) if name == gemm.NAME else [None]


def key(name: str, shape: Convolution) -> str:
    """Return the kernel and shape as text: what blocks are chosen for."""
    sizes = (shape.input, shape.weight, shape.stride, shape.padding, shape.dilation)
    return f"{name} {' '.join('x'.join(map(str, size)) for size in sizes)} g{shape.groups} {shape.dtype} {shape.math}"
