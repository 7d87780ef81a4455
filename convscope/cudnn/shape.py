"""Shape of a forward convolution of two or three spatial dimensions, and its arithmetic."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from convscope.cudnn.library import HALF_MATH_TYPE, HALF_TYPES, MATH_TYPES


@dataclass(frozen=True)
class Convolution:
    """The shape of a forward convolution: input N × C × spatial, weight K × C/groups × kernel, contiguous both.

    `layout` is "nchw", or "nhwc" for channels last in memory.
    `math` says whether float32 may be rounded to TF32; 16-bit types have the matrix unit at all times, as in PyTorch.
    """

    input: tuple[int, ...]
    weight: tuple[int, ...]
    padding: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int = 1
    dtype: str = "float32"
    math: str = "tf32"
    layout: str = "nchw"

    @property
    def math_type(self) -> int:
        """cuDNN's number of the arithmetic that is permitted (`cudnnMathType_t`)."""
        return HALF_MATH_TYPE if self.dtype in HALF_TYPES else MATH_TYPES[self.math]

    @property
    def output(self) -> tuple[int, ...]:
        """N × K × spatial of the output."""
        spatial = self.input[2:], self.weight[2:], self.padding, self.stride, self.dilation
        return self.input[0], self.weight[0], *output_extents(*spatial)


def output_extents(
    extents: Sequence[int],
    kernel: Sequence[int],
    padding: Sequence[int],
    stride: Sequence[int],
    dilation: Sequence[int],
) -> tuple[int, ...]:
    """Return the spatial extents of a convolution's output."""
    spatial = zip(extents, kernel, padding, stride, dilation, strict=True)
    return tuple((extent + 2 * pad - dil * (k - 1) - 1) // step + 1 for extent, k, pad, step, dil in spatial)
