"""Maxima of windows in images that lie with the channels last (NHWC).

    y[n, i, j, c] = max over the taps (r, s) of x[n, row(i, r), col(j, s), c]
    row(i, r) = i · stride + r · dilation - padding, and so col

What lies outside the image is no part of the maximum; what is not a number makes the maximum one, as in PyTorch. A
program does BLOCK_P output pixels × BLOCK_C channels, and reads neighbouring channels together.

Cost of N × C × H × W with b bytes an element: b N C (H W + P Q) bytes at least. Windows overlap, and the caches are to
serve what is read again.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
TAPS_MOST = 25  # each is unrolled
_CHANNELS, _ELEMENTS, _WARPS = 64, 1024, 4  # of a program
_SHORT = 2**31 - 1


@triton.jit(do_not_specialize=["in_h", "in_w", "out_h", "out_w", "pixels", "stride_h", "stride_w", "pad_h", "pad_w"])
def max_pool2d_last(
    x, y, channels, in_h, in_w, out_h, out_w, pixels, stride_h, stride_w, pad_h, pad_w, dil_h, dil_w,
    KERNEL_H: tl.constexpr, KERNEL_W: tl.constexpr, WHOLE: tl.constexpr, LONG: tl.constexpr,
    BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Do one block of pixels × channels; WHOLE: BLOCK_C divides the channels, so that no load of them needs a mask."""
    blocks = tl.cdiv(channels, BLOCK_C)
    c = (tl.program_id(0) % blocks) * BLOCK_C + tl.arange(0, BLOCK_C)
    p = tl.program_id(0) // blocks
    if LONG:
        p = p.to(tl.int64)
    p = p * BLOCK_P + tl.arange(0, BLOCK_P)
    image, at = p // (out_h * out_w), p % (out_h * out_w)
    row, col = at // out_w * stride_h - pad_h, at % out_w * stride_w - pad_w
    wanted = (p < pixels)[:, None]
    if not WHOLE:
        wanted = wanted & (c < channels)[None, :]
    best = tl.full((BLOCK_P, BLOCK_C), float("-inf"), x.dtype.element_ty)
    for r in tl.static_range(KERNEL_H):
        for s in tl.static_range(KERNEL_W):
            i, j = row + r * dil_h, col + s * dil_w
            inside = (i >= 0) & (i < in_h) & (j >= 0) & (j < in_w)
            start = ((image * in_h + i) * in_w + j) * channels
            values = tl.load(x + start[:, None] + c[None, :], mask=wanted & inside[:, None], other=float("-inf"))
            best = tl.where((values > best) | (values != values), values, best)  # not a number is no equal of itself
    tl.store(y + (p * channels)[:, None] + c[None, :], best, mask=wanted)


def takes(x: torch.Tensor, kernel: tuple[int, int]) -> bool:
    """Tell whether `max_pool2d` can do windows of this size in a tensor."""
    is_last = x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last)
    return is_last and x.dtype in DTYPES and kernel[0] * kernel[1] <= TAPS_MOST and x.numel() > 0


def max_pool2d(
    x: torch.Tensor, kernel: tuple[int, int], stride: tuple[int, int], padding: tuple[int, int],
    dilation: tuple[int, int], size: tuple[int, int],
) -> torch.Tensor:  # fmt: skip
    """Return the maxima of windows, N × C × P × Q with the channels last.

    Args:
        x: N × C × H × W, as `takes` wants it.
        kernel, stride, padding, dilation: rows and columns, as PyTorch's `max_pool2d` takes them.
        size: P and Q; of windows that begin outside the image there is none.
    """
    images, channels, in_h, in_w = x.shape
    y = torch.empty(images, channels, *size, dtype=x.dtype, device=x.device, memory_format=torch.channels_last)
    pixels, block_c = images * size[0] * size[1], min(_CHANNELS, triton.next_power_of_2(channels))
    block_p = _ELEMENTS // block_c
    max_pool2d_last[(triton.cdiv(pixels, block_p) * triton.cdiv(channels, block_c),)](
        x, y, channels, in_h, in_w, *size, pixels, *stride, *padding, *dilation, KERNEL_H=kernel[0],
        KERNEL_W=kernel[1], WHOLE=channels % block_c == 0, LONG=max(x.numel(), y.numel()) > _SHORT - block_p * channels,
        BLOCK_P=block_p, BLOCK_C=block_c, num_warps=_WARPS,
    )  # fmt: skip
    return y
