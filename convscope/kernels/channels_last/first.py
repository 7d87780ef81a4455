"""First layers: convolution of few channels with bias and activation in one kernel, channels last (NHWC).

    y[n, i, j, k] = f(bias[k] + sum over the taps r, s and channels c of w[k, c, r, s] · x[n, row(i, r), col(j, s), c])
    row(i, r) = i · stride + r - padding, and so col

With three channels a pixel is no unit of memory: 6 bytes, where a thread reads 16 at once. But the pixels that a row of
the filter sees lie together, and so do those that a row of two neighbouring filters sees. A program does TOGETHER
output pixels that are neighbours in a row as one: its row of the image begins at a multiple of ALIGN elements, and each
filter is there TOGETHER times, shifted by the stride, with zeros around it. In a 7×7 layer with stride 2 that is 224
terms a sum in place of 147, but 56 loads of 8 bytes for two pixels in place of 294 of 2.

What is not finite in an image reaches the pixels that are done together, as 0 times it is not a number.

Cost of N × C × H × W to K channels, P × Q outputs and R × S taps with b bytes an element: b N (C H W + K P Q) bytes at
least, and 2 N K P Q R times the length of a row (`Packed.row`) operations.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from convscope.kernels import following
from convscope.kernels.channels_last.activations import activated
from convscope.kernels.following import follow

CHANNELS_MOST = 4
DTYPES = (torch.float16, torch.bfloat16)
_ROW_MOST = 256  # elements of a row: from here on a layer has many channels, or large filters
_TOGETHER = 2
_STEP, _PIXELS, _COLUMNS = 32, 64, (16, 128)  # of a program: terms a step, (joined) pixels, filters at least and most
_WARPS, _STAGES = 4, 3
_LONG = 2**31


@triton.jit(do_not_specialize=["in_h", "out_h", "out_w", "across", "joined", "stride", "step", "padding", "lead"])
def first_conv2d_last(
    x, w, bias, y, filters, in_h, row_length, out_h, out_w, across, joined, stride, step, padding, lead, pitch,
    KERNEL_H: tl.constexpr, ROW: tl.constexpr, ALIGN: tl.constexpr, STEPS: tl.constexpr, TOGETHER: tl.constexpr,
    KIND: tl.constexpr, LONG: tl.constexpr, EARLY: tl.constexpr, STEP: tl.constexpr, BLOCK_P: tl.constexpr,
    BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Do BLOCK_P joined pixels × BLOCK_K filters; program ids are (pixels, filters).

    `across` joined pixels make a row, `joined` all images; the filters of joined pixels follow one another, `pitch` of
    them in the packed weights.
    """
    p = tl.program_id(0) * BLOCK_P + tl.arange(0, BLOCK_P)
    f = tl.program_id(1) * BLOCK_K + tl.arange(0, BLOCK_K)
    line, at = p // across, p % across
    if LONG:
        line = line.to(tl.int64)
    row = line % out_h * stride - padding
    start = line // out_h * in_h * row_length
    edge = ALIGN * (at * step - lead)
    there = p < joined
    follow(EARLY)
    total = tl.zeros((BLOCK_P, BLOCK_K), tl.float32)
    for number in range(STEPS):
        k = number * STEP + tl.arange(0, STEP)
        i, e = row[:, None] + (k // ROW)[None, :], edge[:, None] + (k % ROW)[None, :]
        inside = (i >= 0) & (i < in_h) & (e >= 0) & (e < row_length)
        inside = inside & there[:, None] & (k < KERNEL_H * ROW)[None, :]
        values = tl.load(x + start[:, None] + (i * row_length + e), mask=inside, other=0.0)
        total = tl.dot(values, tl.load(w + k[:, None] * pitch + f[None, :]), total)
    known = f < TOGETHER * filters
    total += tl.load(bias + f % filters, mask=known, other=0.0).to(tl.float32)[None, :]
    wanted = there[:, None] & known[None, :] & ((at * TOGETHER)[:, None] + (f // filters)[None, :] < out_w)
    place = (line * out_w + at * TOGETHER) * filters
    tl.store(y + place[:, None] + f[None, :], activated(total, KIND), mask=wanted)


@dataclass(frozen=True)
class Packed:
    """Filters as the kernel reads them, and where they lie.

    Attributes:
        weight: terms × joined filters, both padded: R rows of `row` elements each, and TOGETHER shifted copies.
        bias: of each filter.
        kernel, stride, padding: rows and columns, as PyTorch's `conv2d` takes them.
        row: elements of the image that a row of a filter is applied to, zeros among its weights included.
        align: a divisor of the place where it begins, in elements of a row of the image.
        lead: multiples of `align` by which the first one begins before the image.
    """

    weight: torch.Tensor
    bias: torch.Tensor
    filters: int
    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]
    row: int
    align: int
    lead: int


def _layout(channels: int, kernel: int, stride: int, padding: int) -> tuple[int, int, int, int]:
    """Return the row's length, ALIGN, the lead, and the zeros before the first tap, all in elements but the lead."""
    align = math.gcd(_TOGETHER * stride * channels, 8)
    shift = -padding * channels % align
    length = shift + ((_TOGETHER - 1) * stride + kernel) * channels
    return -(-length // align) * align, align, (padding * channels + shift) // align, shift


def takes(weight: torch.Tensor, stride: tuple[int, int], padding: tuple[int, int]) -> bool:
    """Tell whether `convolve` is for filters K × C × R × S with this stride and padding."""
    if weight.dtype not in DTYPES or weight.shape[1] > CHANNELS_MOST:
        return False
    return row_of(weight, stride, padding) <= _ROW_MOST


def row_of(weight: torch.Tensor, stride: tuple[int, int], padding: tuple[int, int]) -> int:
    """Return `Packed.row` of filters K × C × R × S with this stride and padding."""
    return _layout(weight.shape[1], weight.shape[3], stride[1], padding[1])[0]


def pack(weight: torch.Tensor, bias: torch.Tensor, stride: tuple[int, int], padding: tuple[int, int]) -> Packed:
    """Lay filters K × C × R × S, which `takes` wants, out for the kernel."""
    filters, channels, height, width = weight.shape
    row, align, lead, shift = _layout(channels, width, stride[1], padding[1])
    terms = -(-height * row // _STEP) * _STEP
    columns = _columns(filters)
    pitch = -(-_TOGETHER * filters // columns) * columns
    packed = weight.new_zeros(terms, pitch)
    rows = weight.permute(2, 3, 1, 0).reshape(height, width * channels, filters)
    for r in range(height):
        for number in range(_TOGETHER):
            at = r * row + shift + number * stride[1] * channels
            packed[at : at + width * channels, number * filters : (number + 1) * filters] = rows[r]
    return Packed(packed, bias, filters, (height, width), stride, padding, row, align, lead)


def _columns(filters: int) -> int:
    """Return the joined filters of a program."""
    least, most = _COLUMNS
    columns: int = triton.next_power_of_2(_TOGETHER * filters)
    return max(least, min(most, columns))


def convolve(x: torch.Tensor, packed: Packed, kind: str = "") -> torch.Tensor:
    """Return activation(convolution + bias), N × K × P × Q with the channels last.

    Args:
        x: N × C × H × W, contiguous in channels last, of the filters' type.
        kind: an activation of `activations.activated`.
    """
    images, channels, in_h, in_w = x.shape
    heights = zip((in_h, in_w), packed.kernel, packed.stride, packed.padding, strict=True)
    out_h, out_w = ((size + 2 * pad - kernel) // stride + 1 for size, kernel, stride, pad in heights)
    y = torch.empty(
        images, packed.filters, out_h, out_w, dtype=x.dtype, device=x.device, memory_format=torch.channels_last
    )
    across = triton.cdiv(out_w, _TOGETHER)
    joined, (terms, pitch), columns = images * out_h * across, packed.weight.shape, _columns(packed.filters)
    first_conv2d_last[triton.cdiv(joined, _PIXELS), pitch // columns](
        x, packed.weight, packed.bias, y, packed.filters, in_h, in_w * channels, out_h, out_w, across, joined,
        packed.stride[0], _TOGETHER * packed.stride[1] * channels // packed.align, packed.padding[0], packed.lead,
        pitch, KERNEL_H=packed.kernel[0], ROW=packed.row, ALIGN=packed.align, STEPS=terms // _STEP, TOGETHER=_TOGETHER,
        KIND=kind, LONG=max(x.numel(), y.numel()) >= _LONG - _PIXELS * pitch, STEP=_STEP, BLOCK_P=_PIXELS,
        BLOCK_K=columns, num_warps=_WARPS, num_stages=_STAGES, **following.options(x),
    )  # fmt: skip
    return y
