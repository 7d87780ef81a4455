"""Depthwise convolution with bias and activation in one kernel, images with the channels last (NHWC).

    y[n, i, j, c] = f(bias[c] + sum over the taps (r, s) of w[r, s, c] · x[n, row(i, r), col(j, s), c])
    row(i, r) = i · stride + r · dilation - padding, and so col

Each channel has one filter, so there is no product of matrices in it: the bound is the memory. A program does BLOCK_P
output pixels × BLOCK_C channels in float32, reads neighbouring channels together, and stores once, activation included.

Cost of N × C × H × W with b bytes an element: b N C (H W + P Q) bytes at least, and 2 N C P Q R S operations. Windows
overlap; the caches serve what is read again.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from convscope.kernels.channels_last.activations import DTYPES, activated

TAPS_MOST = 49  # those of a row are unrolled
_CHANNELS, _ELEMENTS, _WARPS = (64, 32, 16), 1024, 4  # of a program
_SHORT = 2**31 - 1


@triton.jit(do_not_specialize=["in_h", "in_w", "out_h", "out_w", "pixels", "stride_h", "stride_w", "pad_h", "pad_w"])
def depthwise2d_last(
    x, taps, bias, y, channels, in_h, in_w, out_h, out_w, pixels, stride_h, stride_w, pad_h, pad_w, dil_h, dil_w,
    KERNEL_H: tl.constexpr, KERNEL_W: tl.constexpr, KIND: tl.constexpr, WHOLE: tl.constexpr, LONG: tl.constexpr,
    BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Do one block of pixels × channels; WHOLE: BLOCK_C divides the channels, so that pixels need no mask for them."""
    blocks = tl.cdiv(channels, BLOCK_C)
    c = (tl.program_id(0) % blocks) * BLOCK_C + tl.arange(0, BLOCK_C)
    p = tl.program_id(0) // blocks
    if LONG:
        p = p.to(tl.int64)
    p = p * BLOCK_P + tl.arange(0, BLOCK_P)
    image, at = p // (out_h * out_w), p % (out_h * out_w)
    row, col = at // out_w * stride_h - pad_h, at % out_w * stride_w - pad_w
    known = c < channels
    wanted = (p < pixels)[:, None]
    if not WHOLE:
        wanted = wanted & known[None, :]
    total = tl.zeros((BLOCK_P, BLOCK_C), tl.float32)
    total += tl.load(bias + c, mask=known, other=0.0).to(tl.float32)[None, :]
    for r in range(KERNEL_H):  # a loop: all taps at once would not fit the registers
        for s in tl.static_range(KERNEL_W):
            i, j = row + r * dil_h, col + s * dil_w
            inside = (i >= 0) & (i < in_h) & (j >= 0) & (j < in_w)
            start = ((image * in_h + i) * in_w + j) * channels
            values = tl.load(x + start[:, None] + c[None, :], mask=wanted & inside[:, None], other=0.0)
            tap = tl.load(taps + (r * KERNEL_W + s) * channels + c, mask=known, other=0.0)
            total += values.to(tl.float32) * tap.to(tl.float32)[None, :]
    tl.store(y + (p * channels)[:, None] + c[None, :], activated(total, KIND), mask=wanted)


def takes(x: torch.Tensor, kernel: tuple[int, int]) -> bool:
    """Tell whether `convolve` can do filters of this size over a tensor."""
    is_last = x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last)
    return is_last and x.dtype in DTYPES and kernel[0] * kernel[1] <= TAPS_MOST and x.numel() > 0


def convolve(
    x: torch.Tensor, taps: torch.Tensor, bias: torch.Tensor, kernel: tuple[int, int], stride: tuple[int, int],
    padding: tuple[int, int], dilation: tuple[int, int], size: tuple[int, int], kind: str = "",
) -> torch.Tensor:  # fmt: skip
    """Return activation(convolution + bias), N × C × P × Q with the channels last.

    Args:
        x: N × C × H × W, as `takes` wants it.
        taps: the filters R S × C.
        kernel, stride, padding, dilation: rows and columns, as PyTorch's `conv2d` takes them.
        size: P and Q.
        kind: an activation of `activations.activated`.
    """
    images, channels, in_h, in_w = x.shape
    y = torch.empty(images, channels, *size, dtype=x.dtype, device=x.device, memory_format=torch.channels_last)
    pixels = images * size[0] * size[1]
    block_c = min(_CHANNELS, key=lambda block: triton.cdiv(channels, block) * block)  # the least that are masked
    block_p = _ELEMENTS // block_c
    depthwise2d_last[(triton.cdiv(pixels, block_p) * triton.cdiv(channels, block_c),)](
        x, taps, bias, y, channels, in_h, in_w, *size, pixels, *stride, *padding, *dilation, KERNEL_H=kernel[0],
        KERNEL_W=kernel[1], KIND=kind, WHOLE=channels % block_c == 0,
        LONG=max(x.numel(), y.numel()) > _SHORT - block_p * channels, BLOCK_P=block_p, BLOCK_C=block_c,
        num_warps=_WARPS,
    )  # fmt: skip
    return y
