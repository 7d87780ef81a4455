"""Winograd convolution as one algorithm: the fused kernel and the non-fused ones, of which the faster is chosen."""

from __future__ import annotations

import torch

from convscope.cudnn.shape import Convolution
from convscope.kernels.blocks import Blocks2d, partial_bytes
from convscope.kernels.winograd import fused, nonfused
from convscope.kernels.winograd.transforms import pack as pack

_FUSED_BESIDE = 4  # fused block shapes that are timed beside non-fused ones


def candidates(shape: Convolution, output: tuple[int, ...], multiprocessors: int) -> list[Blocks2d]:
    """Return the block shapes worth timing: non-fused ones only where there are tiles enough for them."""
    in_parts = nonfused.candidates(shape, output)
    in_one = fused.candidates(shape, output, multiprocessors)
    return in_parts + in_one[:_FUSED_BESIDE] if in_parts else in_one


def workspace_bytes(shape: Convolution, blocks: Blocks2d) -> int:
    """Return the memory that a run takes besides its tensors."""
    return nonfused.workspace_bytes(shape, blocks) if blocks.chunk else partial_bytes(shape, blocks)


def launch(
    x: torch.Tensor, packed: torch.Tensor, bias: torch.Tensor, y: torch.Tensor, shape: Convolution, blocks: Blocks2d
) -> None:
    """Convolve x with packed filters on the current stream; arguments as those of `direct.launch`."""
    kernels = nonfused if blocks.chunk else fused
    kernels.launch(x, packed, bias, y, shape, blocks)
