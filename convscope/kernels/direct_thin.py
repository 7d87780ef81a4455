"""Direct 2-D convolution of groups of few filters (depthwise): the variant "thin" of `direct`.

Fused multiply-adds in float32, whatever the type of the tensors: there is no product of matrices in it. A program does
one filter × BLOCK_P pixels in NCHW, BLOCK_K filters × BLOCK_P pixels in NHWC. The bound is the memory; operations and
bytes are those of `direct`.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from convscope.cudnn.shape import Convolution
from convscope.kernels.blocks import Blocks2d, lanes

_SHAPES = ((128, 4), (256, 4), (512, 4), (1024, 8))  # pixels, warps
_LAST_SHAPES = ((64, 8, 4), (64, 16, 4), (64, 32, 4), (128, 16, 4), (32, 16, 4), (32, 64, 4), (16, 128, 4))

# One binary serves all sizes: none of these is compiled in when it is 1 or a multiple of 16.
_SIZES = ["channels", "kernels", "in_h", "in_w", "out_h", "out_w", "kernel_h"]
_SIZES += ["stride_h", "stride_w", "pad_h", "pad_w", "dil_h", "dil_w", "groups"]


@triton.jit(do_not_specialize=_SIZES)
def direct_conv2d_thin(
    x, w, bias, y,
    channels, kernels, in_h, in_w, out_h, out_w,
    kernel_h, stride_h, stride_w, pad_h, pad_w, dil_h, dil_w, groups,
    KERNEL_W: tl.constexpr, BLOCK_P: tl.constexpr,
):  # fmt: skip
    """Do one filter × BLOCK_P pixels of one image in NCHW; program ids are (block of pixels, filter, image)."""
    at = tl.program_id(0) * BLOCK_P + tl.arange(0, BLOCK_P)
    filter_at, image = tl.program_id(1), tl.program_id(2).to(tl.int64)
    row, col = (at // out_w) * stride_h - pad_h, (at % out_w) * stride_w - pad_w
    x += (image * groups + filter_at // kernels) * channels * in_h * in_w
    w += filter_at * channels * kernel_h * KERNEL_W
    acc = tl.zeros((BLOCK_P,), tl.float32) + tl.load(bias + filter_at).to(tl.float32)
    for step in range(channels * kernel_h):
        h = row + step % kernel_h * dil_h
        line = x + (step // kernel_h * in_h + h) * in_w + col
        for s in tl.static_range(KERNEL_W):
            v = col + s * dil_w
            there = (h >= 0) & (h < in_h) & (v >= 0) & (v < in_w)
            factor = tl.load(w + step * KERNEL_W + s).to(tl.float32)
            acc += factor * tl.load(line + s * dil_w, mask=there, other=0.0).to(tl.float32)
    tl.store(y + (image * groups * kernels + filter_at) * out_h * out_w + at, acc, mask=at < out_h * out_w)


@triton.jit(do_not_specialize=_SIZES)
def direct_conv2d_thin_last(
    x, w, bias, y,
    channels, kernels, in_h, in_w, out_h, out_w,
    kernel_h, stride_h, stride_w, pad_h, pad_w, dil_h, dil_w, groups, w_pitch,
    KERNEL_W: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_K: tl.constexpr, LANES: tl.constexpr, DEPTHWISE: tl.constexpr,
):  # fmt: skip
    """Do BLOCK_P pixels of one image × BLOCK_K filters in NHWC; program ids are (pixels, filters, image).

    DEPTHWISE: a group is one channel and one filter. LANES divides the filters of all groups.
    """
    at = tl.program_id(0) * BLOCK_P + tl.arange(0, BLOCK_P)
    k = tl.program_id(1) * BLOCK_K + tl.arange(0, BLOCK_K)
    filters = groups * kernels // LANES * LANES  # so that the compiler knows it to be a multiple
    image, pitch = tl.program_id(2).to(tl.int64), filters if DEPTHWISE else groups * channels
    row, col = (at // out_w) * stride_h - pad_h, (at % out_w) * stride_w - pad_w
    wanted = k // LANES < filters // LANES
    x += image * in_h * in_w * pitch
    seen = ((row * in_w + col) * pitch)[:, None] + (k if DEPTHWISE else k // kernels * channels)[None, :]
    acc = tl.zeros((BLOCK_P, BLOCK_K), tl.float32)
    acc += tl.load(bias + k, mask=wanted, other=0.0).to(tl.float32)[None, :]
    for step in range(channels * kernel_h):
        h = row + step % kernel_h * dil_h
        line = step % kernel_h * dil_h * in_w * pitch
        if not DEPTHWISE:
            line += step // kernel_h
        for s in tl.static_range(KERNEL_W):
            v = col + s * dil_w
            there = (h >= 0) & (h < in_h) & (v >= 0) & (v < in_w)
            values = tl.load(
                x + (line + s * dil_w * pitch) + seen, mask=there[:, None] & wanted[None, :], other=0.0
            ).to(tl.float32)
            factors = tl.load(w + (step * KERNEL_W + s) * w_pitch + k).to(tl.float32)
            acc += factors[None, :] * values
    place = (at * filters)[:, None] + k[None, :]
    y += image * out_h * out_w * filters
    tl.store(y + place, acc, mask=(at < out_h * out_w)[:, None] & wanted[None, :])


def candidates(shape: Convolution) -> list[Blocks2d]:
    """Return the block shapes worth timing, the likeliest first."""
    if shape.layout == "nhwc":
        return [Blocks2d("thin", many, points, 1, warps, 1) for many, points, warps in _LAST_SHAPES]
    return [Blocks2d("thin", 1, points, 1, warps, 1) for points, warps in _SHAPES]


def pack(weight: torch.Tensor, shape: Convolution, pitch: int) -> torch.Tensor:
    """Return the filters as they are for NCHW, as [channels · taps, K] for NHWC, K padded to a multiple of `pitch`."""
    if shape.layout != "nhwc":
        return weight.contiguous()
    rows = weight.flatten(1).t()
    return torch.nn.functional.pad(rows, (0, -rows.shape[1] % pitch)).contiguous()


def launch(
    x: torch.Tensor, packed: torch.Tensor, bias: torch.Tensor, y: torch.Tensor, shape: Convolution, blocks: Blocks2d
) -> None:
    """Convolve x with packed filters on the current stream; arguments as those of `direct.launch`."""
    *_, filters, out_h, out_w = y.shape
    groups, kernels, channels = shape.groups, filters // shape.groups, shape.weight[1]
    sizes = channels, kernels, *x.shape[2:], out_h, out_w, shape.weight[2]
    options = *shape.stride, *shape.padding, *shape.dilation, groups
    constants = {"KERNEL_W": shape.weight[3], "BLOCK_P": blocks.points}
    constants |= {"num_warps": blocks.warps, "num_stages": blocks.stages}
    across = triton.cdiv(out_h * out_w, blocks.points)
    if shape.layout == "nhwc":
        direct_conv2d_thin_last[across, triton.cdiv(filters, blocks.filters), x.shape[0]](
            x, packed, bias, y, *sizes, *options, packed.shape[1], BLOCK_K=blocks.filters,
            LANES=lanes(x.element_size(), filters), DEPTHWISE=channels == kernels == 1, **constants,
        )  # fmt: skip
    else:
        direct_conv2d_thin[across, filters, x.shape[0]](x, packed, bias, y, *sizes, *options, **constants)
