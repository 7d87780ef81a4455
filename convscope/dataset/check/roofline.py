"""Least time of a convolution that a card's peaks allow: its arithmetic, and what must cross its memory.

Both are bounds that no kernel can beat, so that a faster row is wrong, whoever measured it:

- Arithmetic: products with an element of the padding are not counted, for a kernel may leave them out. A Winograd or
  FFT algorithm does fewer products. None does fewer than one for each output and input channel: F(m, r) takes m + r - 1
  products for m outputs of an r-tap filter, and the half spectrum of an FFT more. That is the bound where such an
  algorithm ran, and where nobody knows what ran.
- Memory: of the input the elements that a filter touches, of the filters the taps that touch the image, all outputs,
  once each. What the cache holds of input and filters when the call begins, and of the output when it ends, crosses the
  memory in another call's time: the size of the cache is taken off both.

Consumer cards clock above their nominal boost; their arithmetic is allowed `CONSUMER_BOOST` times the peak.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

from convscope.cudnn.shape import ELEMENT_BYTES, Axis, along
from convscope.dataset.samples import SampleRow
from convscope.gpus import Gpu

CONSUMER_BOOST = 1.25
_CONSUMER = ("2080", "2080ti", "4090")
_MIB = 1 << 20


@dataclass(frozen=True)
class Work:
    """Work that no algorithm of its kind can leave out.

    Attributes:
        flops: a multiply and an add counting as two.
        read, written: elements of input and filters, and of the output.
    """

    flops: int
    read: int
    written: int


@dataclass(frozen=True)
class Floor:
    """The least time of a call, by arithmetic and by memory."""

    compute_ms: float
    memory_ms: float

    @property
    def time_ms(self) -> float:
        """The longer of the two."""
        return max(self.compute_ms, self.memory_ms)


def work(row: SampleRow, is_fast: bool) -> Work | None:
    """Return the work of a sample, None where its sizes are not known or give no output.

    Args:
        is_fast: the algorithm may be of the kind that does fewer products.
    """
    axes = _axes(row)
    if axes is None or row.groups is None:
        return None
    (high, wide), channels = axes, row.in_channels // row.groups
    products, outputs = high.products * wide.products, high.outputs * wide.outputs
    per_tap = row.batch_size * row.out_channels * channels
    return Work(
        flops=2 * per_tap * (min(products, outputs) if is_fast else products),
        read=row.batch_size * row.in_channels * high.touched * wide.touched
        + row.out_channels * channels * high.taps * wide.taps,
        written=row.batch_size * row.out_channels * outputs,
    )


def floor(row: SampleRow, gpu: Gpu, is_fast: bool) -> Floor | None:
    """Return the least time of a sample on a card, None where its sizes are not known or give no output."""
    least = work(row, is_fast)
    if least is None:
        return None
    tflops = max(gpu.tflops(row.dtype, row.math), gpu.tflops(row.dtype, "fp32"))
    tflops *= CONSUMER_BOOST if gpu.label in _CONSUMER else 1
    held = gpu.cache_mib * _MIB
    crossing = sum(max(0, each * ELEMENT_BYTES[row.dtype] - held) for each in (least.read, least.written))
    return Floor(least.flops / tflops / 1e9, crossing / gpu.bandwidth_gbps / 1e6)


def _axes(row: SampleRow) -> tuple[Axis, Axis] | None:
    if None in (row.in_height_px, row.in_width_px, row.stride, row.padding, row.dilation):
        return None
    texts = row.kernel_size, str(row.stride), str(row.padding), str(row.dilation)
    return _axes_of(int(row.in_height_px or 0), int(row.in_width_px or 0), *texts)


@functools.lru_cache(maxsize=4096)  # a shape has many samples
def _axes_of(height: int, width: int, *texts: str) -> tuple[Axis, Axis] | None:
    pairs = [[int(each) for each in text.split("x")] for text in texts]
    high, wide = (along(extent, *(pair[place] for pair in pairs)) for place, extent in enumerate((height, width)))
    return (high, wide) if min(high.outputs, wide.outputs) > 0 else None
