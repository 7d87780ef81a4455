"""Layer normalisation of rows, as of pixels with the channels last: one read, one write.

    y[r, c] = (x[r, c] - mean[r]) / sqrt(variance[r] + eps) · weight[c] + bias[c]

PyTorch's kernel has a block of threads for a row, most of which are idle where rows are short: ConvNeXt-Tiny's begin
with 96 elements. A program here does several whole rows. Sums are of float32, the variance that of the values less
their mean, and each result is rounded once.

Cost of R rows of C elements of b bytes: 2 b R C bytes.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from convscope.kernels import following
from convscope.kernels.channels_last.activations import DTYPES
from convscope.kernels.following import follow

WIDTH_MOST = 8192  # elements of a row: a program holds it in registers
_ELEMENTS, _OF_A_WARP = 2048, 512
_PROGRAMS = 264  # two for each multiprocessor of a large card
_SHORT = 2**31 - 2**20


@triton.jit(do_not_specialize=["rows"])
def layer_norm_rows(
    x, weight, bias, y, rows, width, eps,
    LONG: tl.constexpr, EARLY: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Do BLOCK_R rows; BLOCK_C is at least their width."""
    r, c = tl.program_id(0) * BLOCK_R + tl.arange(0, BLOCK_R), tl.arange(0, BLOCK_C)
    known = c < width
    wanted = (r < rows)[:, None] & known[None, :]
    if LONG:
        r = r.to(tl.int64)
    place = (r * width)[:, None] + c[None, :]
    follow(EARLY)
    factors = tl.load(weight + c, mask=known, other=0.0).to(tl.float32)[None, :]
    terms = tl.load(bias + c, mask=known, other=0.0).to(tl.float32)[None, :]
    values = tl.load(x + place, mask=wanted, other=0.0).to(tl.float32)
    values = tl.where(known[None, :], values - (tl.sum(values, 1) / width)[:, None], 0.0)
    scale = tl.rsqrt(tl.sum(values * values, 1) / width + eps)
    tl.store(y + place, values * scale[:, None] * factors + terms, mask=wanted)


def takes(x: Tensor, shape: tuple[int, ...], weight: Tensor | None, bias: Tensor | None) -> bool:
    """Tell whether `layer_norm` is for a tensor, normalised over dimensions of this shape, and its weight and bias."""
    if weight is None or bias is None or len(shape) != 1 or x.dim() < 1:
        return False
    fits = x.shape[-1] == weight.numel() == bias.numel() == shape[0] <= WIDTH_MOST
    same = x.dtype == weight.dtype == bias.dtype and x.dtype in DTYPES
    return fits and same and x.is_contiguous() and x.numel() > 0


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """Return x normalised over its last dimension, of tensors that `takes` wants."""
    width, y = x.shape[-1], x.new_empty(x.shape)
    rows, block_c = x.numel() // width, triton.next_power_of_2(width)
    several = triton.next_power_of_2(triton.cdiv(rows, _PROGRAMS))
    block_r = max(1, min(_ELEMENTS // block_c, several))
    layer_norm_rows[(triton.cdiv(rows, block_r),)](
        x, weight, bias, y, rows, width, eps, LONG=x.numel() > _SHORT, BLOCK_R=block_r, BLOCK_C=block_c,
        num_warps=max(1, min(8, block_r * block_c // _OF_A_WARP)), **following.options(x),
    )  # fmt: skip
    return y
