"""The nine 3-D kernels of this folder by name, in tutorial order, and the plan of one of them for a shape."""

from __future__ import annotations

from types import ModuleType

import torch

from convscope.cudnn.shape import Convolution
from convscope.kernels.autotune import BlockCache, Launch
from convscope.kernels.conv3d import (
    PLANAR_ONLY,
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
from convscope.kernels.conv3d.tuned import candidates
from convscope.kernels.plan import KernelPlan, has_long_images

_DIRECT: tuple[ModuleType, ...] = direct, direct_merged, direct_buffered, direct_tiled
_GEMM: tuple[ModuleType, ...] = gemm_ncdhw, gemm_tiled, gemm_pipelined, gemm_split, gemm
KERNELS: dict[str, ModuleType] = {file.NAME: file for file in (*_DIRECT, *_GEMM)}
DTYPES = ("float32", "float16")
_TAPS_MOST = 31  # in one direction: a bit each in an integer


def why_no_kernel(name: str, shape: Convolution) -> str | None:
    """Return why one of the 3-D kernels cannot do a convolution, or None where it can."""
    if shape.layout == "nhwc" and name in PLANAR_ONLY:
        return f"{name} reads and writes NCDHW"
    if shape.dtype not in DTYPES:
        return f"the Triton kernels take {' and '.join(DTYPES)}, not {shape.dtype}"
    if max(shape.kernel) > _TAPS_MOST:
        return f"the Triton kernels take at most {_TAPS_MOST} taps in one direction"
    if has_long_images(shape):
        return "the Triton kernels take images of less than 2^31 elements"
    return None


class Conv3dPlan(KernelPlan[Blocks3d]):
    """A 3-D convolution with one of `KERNELS`.

    Args:
        cache: the choices to take from and add to, for the kernel that is tuned.
        blocks: the block shapes; None leaves them to the kernel's default, or to tuning.

    Raises:
        NotImplementedError: the kernels cannot do it.
    """

    packs_in_graphs = True  # in a captured training step they change with each replay
    _keyed_by = ("dtype", "math")

    def __init__(
        self, algorithm: str, shape: Convolution, cache: BlockCache[Blocks3d] | None = None,
        blocks: Blocks3d | None = None,
    ) -> None:  # fmt: skip
        reason = why_no_kernel(algorithm, shape)
        if reason:
            raise NotImplementedError(reason)
        super().__init__(algorithm, KERNELS[algorithm], shape, blocks)
        self._cache = cache

    @property
    def key(self) -> str:
        """As `KernelPlan.key`, with the layout where it is channels last: older choices are of NCDHW."""
        return f"{super().key} nhwc" if self.shape.layout == "nhwc" else super().key

    def lay_out(self, weight: torch.Tensor) -> torch.Tensor:
        """Return the filters as the kernel reads them, made anew; the blocks must have been chosen."""
        assert self.blocks is not None, "a first run chooses the blocks"
        packed: torch.Tensor = self._kernel.pack(weight.detach(), self.shape, self.blocks)
        return packed

    def _launch(
        self, x: torch.Tensor, packed: torch.Tensor, bias: torch.Tensor | None, blocks: Blocks3d
    ) -> torch.Tensor:
        y: torch.Tensor = self._kernel.convolve(x, packed, self.shape, blocks)
        return y if bias is None else y.add_(bias.view(1, -1, 1, 1, 1))

    def _choose(self, x: torch.Tensor, weight: torch.Tensor) -> Blocks3d:
        if self._cache is None or self.algorithm != gemm.NAME:  # the others have one block shape
            default: Blocks3d = self._kernel.default(self.shape)
            return default
        candidates = self._kernel.candidates(self.shape)
        packed: dict[int, torch.Tensor] = {}

        def launcher(blocks: Blocks3d) -> Launch:
            if blocks.run not in packed:
                packed[blocks.run] = self._kernel.pack(weight, self.shape, blocks)
            return lambda: self._launch(x, packed[blocks.run], None, blocks)

        return self._keep(self._cache.choose(self.key, candidates, launcher, timed=x.is_cuda))


def samples(name: str, shape: Convolution) -> list[Blocks3d] | list[None]:
    """Return the few block shapes that a kernel is tested with on a shape; None is its default."""
    return candidates.samples(shape) if name == gemm.NAME else [None]
