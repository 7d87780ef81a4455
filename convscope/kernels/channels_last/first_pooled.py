"""First layer and max pooling in one kernel, channels last (NHWC): the layer's output never reaches the memory.

    z[n, i, j, k] = f(bias[k] + sum over the taps r, s and channels c of w[k, c, r, s] · x[n, row(i, r), col(j, s), c])
    y[n, p, q, k] = max of z[n, 2 p + (-1, 0, 1), 2 q + (-1, 0, 1), k]

As in `first`, two neighbouring pixels of z are done as one. A pair is the even and the odd column that end a window,
whose first column is the odd one of the pair before it. A program walks down a strip of the image:

    for each row p of y:
        z[2 p], z[2 p + 1] from R + stride rows of x, each of which is read once for both
        even, odd = the larger of z[2 p - 1], z[2 p], z[2 p + 1]
        y[p] = the larger of even, odd, and odd of the pair before

The filters stay in shared memory. The first row of a strip is computed by the strip above it too, and the first pair of
a block of columns is only there for the next. What is not finite reaches pixels beside it, as in `first`.

Cost of N × C × H × W to K channels and P × Q maxima, b bytes an element: b N (C H W + K P Q) bytes at least, and
8 N K P Q R · 32 operations.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from convscope.kernels import following
from convscope.kernels.channels_last import first
from convscope.kernels.channels_last.activations import activated
from convscope.kernels.channels_last.first import Packed
from convscope.kernels.channels_last.windows import Window
from convscope.kernels.following import follow

POOL = Window((3, 3), (2, 2), (1, 1), (1, 1))
"""Windows of the pooling that this is for."""
_STEP = 32  # elements of a row of the image that a product takes
_KERNEL_MOST, _STRIDE_MOST = 7, 4  # rows: their filters fill a third of the shared memory
_PAIRS, _FILTERS, _WARPS = 64, 64, 4  # of a program
_ROWS_MOST = 28
_PROGRAMS = 2  # on a multiprocessor at a time
_LONG = 2**31


@triton.jit
def _seen(x, start, i, edge, there, in_h, row_length, ROW: tl.constexpr, STEP: tl.constexpr):
    """Return the elements of row i of an image that each pair sees, zeros outside: pairs × STEP."""
    k = tl.arange(0, STEP)
    e = edge[:, None] + k[None, :]
    inside = there[:, None] & (e >= 0) & (e < row_length) & (i >= 0) & (i < in_h) & (k < ROW)[None, :]
    return tl.load(x + (start + i * row_length) + e, mask=inside, other=0.0)


@triton.jit
def _taps(w, known, pitch, KERNEL_H: tl.constexpr, ROW: tl.constexpr, STEP: tl.constexpr):
    """Return the filters of each row of taps, STEP × joined filters, zeros behind the row."""
    k, taps = tl.arange(0, STEP), ()
    for r in tl.static_range(KERNEL_H):
        taps = taps + (
            tl.load(w + (r * ROW + k)[:, None] * pitch, mask=(k < ROW)[:, None] & known[None, :], other=0.0),
        )
    return taps


@triton.jit
def _outputs(total, bias, there, KIND: tl.constexpr, DTYPE: tl.constexpr):
    """Return activations of sums (pairs × 2 · filters), rounded, of the even and of the odd pixels; -inf for none."""
    PAIRS: tl.constexpr = total.shape[0]
    FILTERS: tl.constexpr = total.shape[1] // 2
    outputs = tl.where(there, activated(total + bias, KIND), float("-inf")).to(DTYPE)
    return tl.split(tl.permute(tl.reshape(outputs, (PAIRS, 2, FILTERS)), (0, 2, 1)))


@triton.jit
def _larger(one, other):
    return tl.maximum(one, other, propagate_nan=tl.PropagateNan.ALL)


@triton.jit(
    do_not_specialize=["in_h", "out_h", "out_w", "pool_h", "pool_w", "strips", "rows", "step", "padding", "lead"]
)
def first_pooled_last(
    x, w, bias, y, filters, in_h, row_length, out_h, out_w, pool_h, pool_w, strips, rows, step, padding, lead, pitch,
    KERNEL_H: tl.constexpr, STRIDE_H: tl.constexpr, ROW: tl.constexpr, ALIGN: tl.constexpr, KIND: tl.constexpr,
    LONG: tl.constexpr, EARLY: tl.constexpr, STEP: tl.constexpr, PAIRS: tl.constexpr, FILTERS: tl.constexpr,
):  # fmt: skip
    """Do `rows` rows of maxima × PAIRS - 1 columns × FILTERS; program ids are (strip, columns, filters)."""
    image, strip = tl.program_id(0) // strips, tl.program_id(0) % strips
    if LONG:
        image, strip = image.to(tl.int64), strip.to(tl.int64)
    lane = tl.arange(0, PAIRS)
    q = tl.program_id(1) * (PAIRS - 1) - 1 + lane
    c = tl.program_id(2) * FILTERS + tl.arange(0, FILTERS)
    half = tl.arange(0, 2 * FILTERS) // FILTERS
    f = tl.program_id(2) * FILTERS + tl.arange(0, 2 * FILTERS) % FILTERS
    follow(EARLY)
    taps = _taps(w + (half * filters + f)[None, :], f < filters, pitch, KERNEL_H, ROW, STEP)
    shift = tl.load(bias + f, mask=f < filters, other=0.0).to(tl.float32)[None, :]
    start, edge, there = image * in_h * row_length, ALIGN * (q * step - lead), (q >= 0) & (q * 2 < out_w)
    columns = there[:, None] & (q[:, None] * 2 + half[None, :] < out_w)
    before = tl.maximum(lane - 1, 0)[:, None] + tl.zeros((PAIRS, FILTERS), tl.int32)
    p0 = strip * rows
    total = tl.zeros((PAIRS, 2 * FILTERS), tl.float32)
    for r in tl.static_range(KERNEL_H):
        i = (p0 * 2 - 1) * STRIDE_H - padding + r
        total = tl.dot(_seen(x, start, i, edge, there, in_h, row_length, ROW, STEP), taps[r], total)
    even, odd = _outputs(total, shift, columns & (p0 > 0), KIND, y.dtype.element_ty)
    for p in range(p0, tl.minimum(p0 + rows, pool_h)):
        one = tl.zeros((PAIRS, 2 * FILTERS), tl.float32)
        two = tl.zeros((PAIRS, 2 * FILTERS), tl.float32)
        for r in tl.static_range(KERNEL_H + STRIDE_H):
            values = _seen(x, start, p * 2 * STRIDE_H - padding + r, edge, there, in_h, row_length, ROW, STEP)
            if r < KERNEL_H:
                one = tl.dot(values, taps[r], one)
            if r >= STRIDE_H:
                two = tl.dot(values, taps[r - STRIDE_H], two)
        even_one, odd_one = _outputs(one, shift, columns, KIND, y.dtype.element_ty)
        even_two, odd_two = _outputs(two, shift, columns & (p * 2 + 1 < out_h), KIND, y.dtype.element_ty)
        even, odd = _larger(_larger(even, even_one), even_two), _larger(_larger(odd, odd_one), odd_two)
        best = _larger(_larger(even, odd), tl.gather(odd, before, 0))
        place = ((image * pool_h + p) * pool_w + q)[:, None] * filters + c[None, :]
        tl.store(y + place, best, mask=((lane > 0) & (q < pool_w))[:, None] & (c < filters)[None, :])
        even, odd = even_two, odd_two


def takes(weight: torch.Tensor, stride: tuple[int, int], padding: tuple[int, int], pool: Window = POOL) -> bool:
    """Tell whether `convolve` is for the size of filters K × C × R × S, and a pooling behind them.

    Their type may be another one still; `first.takes` tells whether they can be packed as they are.
    """
    fits = weight.shape[1] <= first.CHANNELS_MOST and weight.shape[2] <= _KERNEL_MOST and stride[0] <= _STRIDE_MOST
    return fits and pool == POOL and first.row_of(weight, stride, padding) <= _STEP


def convolve(x: torch.Tensor, packed: Packed, kind: str = "") -> torch.Tensor:
    """Return the maxima of activation(convolution + bias) over the windows `POOL`, N × K × P × Q, channels last.

    Args:
        x: N × C × H × W, contiguous in channels last, of the filters' type.
        packed: by `first.pack`, of filters that `takes` wants.
        kind: an activation of `activations.activated`.
    """
    images, channels, in_h, in_w = x.shape
    given = zip((in_h, in_w), packed.kernel, packed.stride, packed.padding, strict=True)
    out_h, out_w = ((size + 2 * pad - kernel) // stride + 1 for size, kernel, stride, pad in given)
    size = (out_h - 1) // 2 + 1, (out_w - 1) // 2 + 1
    y = torch.empty(images, packed.filters, *size, dtype=x.dtype, device=x.device, memory_format=torch.channels_last)
    block = min(_FILTERS, max(8, triton.next_power_of_2(packed.filters)))
    across, blocks = triton.cdiv(size[1], _PAIRS - 1), triton.cdiv(packed.filters, block)
    rows = _rows(x, images * across * blocks, size[0])
    strips = triton.cdiv(size[0], rows)
    first_pooled_last[images * strips, across, blocks](
        x, packed.weight, packed.bias, y, packed.filters, in_h, in_w * channels, out_h, out_w, *size, strips, rows,
        2 * packed.stride[1] * channels // packed.align, packed.padding[0], packed.lead, packed.weight.shape[1],
        KERNEL_H=packed.kernel[0], STRIDE_H=packed.stride[0], ROW=packed.row, ALIGN=packed.align, KIND=kind,
        LONG=max(x.numel(), y.numel()) >= _LONG - _PAIRS * packed.filters, STEP=_STEP, PAIRS=_PAIRS, FILTERS=block,
        num_warps=_WARPS, num_stages=1, **following.options(x),
    )  # fmt: skip
    return y


def _rows(x: torch.Tensor, columns: int, height: int) -> int:
    """Return the rows of a program: a strip is long where many images, or `columns` of them, fill the card anyway."""
    card = torch.cuda.get_device_properties(x.device).multi_processor_count if x.is_cuda else 1
    rows: int = triton.cdiv(columns * height, _PROGRAMS * card)
    return max(1, min(_ROWS_MOST, height, rows))
