"""Shape of a forward convolution of two or three spatial dimensions, its arithmetic, and the work that follows."""

from __future__ import annotations

import dataclasses
import functools
import math as mathematics
from collections.abc import Sequence
from dataclasses import dataclass

from convscope.cudnn.library import HALF_MATH_TYPE, HALF_TYPES, MATH_TYPES

ELEMENT_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}


@dataclass(frozen=True)
class Axis:
    """Work of a convolution along one spatial axis.

    Attributes:
        outputs: the extent of the output; not positive where the kernel is larger than the padded input.
        products: pairs of an output and a tap that meet an element of the input, not of the padding.
        touched, taps: the elements and the taps that are in such a pair.
    """

    outputs: int
    products: int
    touched: int
    taps: int


@functools.cache
def along(extent: int, kernel: int, stride: int, padding: int, dilation: int) -> Axis:
    """Return the work along an axis of an input of this extent."""
    outputs = (extent + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1
    touched: set[int] = set()
    products = taps = 0
    for tap in range(kernel):
        start = tap * dilation - padding  # the place that the first output meets
        first = max(0, -(start // stride))  # the first output and the one behind the last that meet the input
        end = min(outputs, (extent - 1 - start) // stride + 1)
        if end > first:
            products, taps = products + end - first, taps + 1
            touched.update(range(start + first * stride, start + end * stride, stride))
    return Axis(outputs, products, len(touched), taps)


@dataclass(frozen=True)
class Geometry:
    """Sizes and options of a forward convolution: input N × C × spatial, weight K × C/groups × kernel.

    Spatial extents are (height, width) or (depth, height, width).
    """

    input: tuple[int, ...]
    weight: tuple[int, ...]
    padding: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int = 1

    @property
    def batch(self) -> int:
        """The number of images."""
        return self.input[0]

    @property
    def in_channels(self) -> int:
        """The channels of the input, of all groups."""
        return self.input[1]

    @property
    def out_channels(self) -> int:
        """The channels of the output, of all groups; also the number of filters."""
        return self.weight[0]

    @property
    def size(self) -> tuple[int, ...]:
        """The spatial extents of the input."""
        return self.input[2:]

    @property
    def kernel(self) -> tuple[int, ...]:
        """The spatial extents of the kernel."""
        return self.weight[2:]

    @property
    def output(self) -> tuple[int, ...]:
        """N × K × spatial of the output."""
        extents = output_extents(self.size, self.kernel, self.padding, self.stride, self.dilation)
        return self.batch, self.out_channels, *extents

    @property
    def output_size(self) -> tuple[int, ...]:
        """The spatial extents of the output."""
        return self.output[2:]

    @property
    def options(self) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], int]:
        """Stride, padding, dilation and groups: the arguments of PyTorch's convolutions after the bias."""
        return self.stride, self.padding, self.dilation, self.groups

    @property
    def terms(self) -> int:
        """The number of products that are summed up for one output."""
        return mathematics.prod(self.weight[1:])

    @property
    def flops(self) -> int:
        """The floating-point operations by the direct definition, a multiply and an add counting as two.

        Fast algorithms (FFT, Winograd) do fewer: this is the work of the definition, the same for every algorithm, so
        that rates compare.
        """
        return 2 * mathematics.prod(self.output) * self.terms

    @property
    def elements_read(self) -> int:
        """The elements of the input that a filter touches, and the weights of the taps that touch the image.

        A 1×1 kernel with stride 2 touches a quarter of an image.
        """
        spatial = zip(self.size, self.kernel, self.stride, self.padding, self.dilation, strict=True)
        axes = [along(*each) for each in spatial]
        touched = mathematics.prod(self.input[:2]) * mathematics.prod(axis.touched for axis in axes)
        return touched + mathematics.prod(self.weight[:2]) * mathematics.prod(axis.taps for axis in axes)

    def minimum_bytes(self, element_bytes: int = 4) -> int:
        """Return the bytes that must cross the memory at least: `elements_read`, and the output written once."""
        return (self.elements_read + mathematics.prod(self.output)) * element_bytes


@dataclass(frozen=True)
class Fused:
    """The operations after a convolution inside the same call, in this order: of others cuDNN 9.24 offers no plan.

    `swish` is SiLU, in the place of ReLU.
    """

    addition: bool = False
    bias: bool = False
    relu: bool = False
    swish: bool = False

    @property
    def count(self) -> int:
        """The number of operations that follow."""
        return self.addition + self.bias + self.relu + self.swish

    def __str__(self) -> str:
        return " ".join(field.name for field in dataclasses.fields(self) if getattr(self, field.name))


ALONE = Fused()


@dataclass(frozen=True)
class Convolution(Geometry):
    """A forward convolution as libraries and kernels take it: its geometry, data type, arithmetic and layout.

    `layout` is "nchw", or "nhwc" for channels last in memory; input and weight are contiguous in it.
    `math` says whether float32 may be rounded to TF32; 16-bit types have the matrix unit at all times, as in PyTorch.
    `fused` is what follows in the same call. `packed` says that the weight is contiguous channels last, whatever the
    layout of the others.
    """

    dtype: str = "float32"
    math: str = "tf32"
    layout: str = "nchw"
    fused: Fused = ALONE
    packed: bool = False

    @property
    def math_type(self) -> int:
        """cuDNN's number of the arithmetic that is permitted (`cudnnMathType_t`)."""
        return HALF_MATH_TYPE if self.dtype in HALF_TYPES else MATH_TYPES[self.math]


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


def dimensions(sizes: Sequence[int], short: bool = False) -> str:
    """Return sizes as tables write them, "3x3"; `short` writes equal ones once, "3"."""
    return str(sizes[0]) if short and len(set(sizes)) == 1 else "x".join(map(str, sizes))
