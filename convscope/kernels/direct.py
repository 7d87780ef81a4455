"""Direct 2-D convolution: multiply and add as the definition says, no im2col in memory.

Each output is a sum over input channels and the taps (r, s) of the kernel,

    y[n, k, i, j] = bias[k] + Σ_c Σ_r Σ_s w[k, c, r, s] · x[n, c, i·stride + r·dilation - padding, …]

One program computes a block of BLOCK_K filters × BLOCK_P output pixels (of all images, numbered one after another) and
keeps it in registers; it walks through taps and channels, BLOCK_C channels a step:

    acc[BLOCK_K, BLOCK_P] = 0
    for each tap (r, s):
        for a block of channels:
            X = x[channels, the pixel that tap (r, s) sees from each output pixel]     from memory, 0 outside the image
            W = w[filters, channels, r, s]
            acc += W · X                                       BLOCK_K · BLOCK_P · BLOCK_C fused multiply-adds
    y[filters, pixels] = acc + bias

The input is read where it lies, nine times for a 3×3 kernel, of which the caches serve eight. `tl.dot` with
`input_precision="ieee"` on float32 is a loop of FMA instructions: no matrix unit, no TF32 (a test reads the machine
code). In float16 and bfloat16 the same product runs on the matrix unit: products are exact, sums are of float32, and
the result is rounded once, when it is stored.

Input and output lie in NCHW or in NHWC (channels last), both in the same layout, and nothing is copied: only addresses
differ, and whether neighbouring threads take neighbouring pixels (NCHW) or channels (NHWC). Three variants, told apart
by `Blocks2d.variant`:

    taps      as above; channels a multiple of 16
    gathered  a step takes 16 of all channels × taps, whatever their number (first layers have 3 channels): each row of
              X then has a tap of its own, and its address is worked out row by row
    thin      groups of few filters (depthwise): no product of matrices (`direct_thin`)

The filters are laid out once as [group, taps · channels, filters] (`pack`), so that a step reads whole lines of them.
With few pixels (7 × 7, batch 1) there are too few programs for a card: then the reduction is split between several,
each writes a partial sum, and `reduction` adds them in a fixed order, so that results are the same every time.

Cost of N × C × H × W to K channels with R × S taps and G groups, P output pixels an image:
    operations   2 N K P (C / G) R S
    bytes        b (N C H W + K (C / G) R S + N K P) at least, with b bytes an element; each program reads its X and W
                 anew, from the L2 cache: b (C / G) R S N P K (1 / BLOCK_K + 1 / BLOCK_P); each split writes and reads
                 4 N K P more
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from convscope.cudnn.shape import Convolution
from convscope.kernels import direct_thin
from convscope.kernels.blocks import LONG_ELEMENTS, Blocks2d, Candidate, is_float32, lanes, ranked, splits_for
from convscope.kernels.blocks import partial_bytes as workspace_bytes  # noqa: F401 - as every kernel says it
from convscope.kernels.conv3d.places import bits_inside

TRIED = 10  # block shapes that are timed for a shape
PITCH = 128  # the packed filters' rows are padded to a multiple of this, so that no load of them needs a mask
_TAPS_MOST = 32  # in one direction: a bit each in an integer

_SHAPES = (  # filters, pixels, channels, warps, stages, programs resident on a multiprocessor, efficiency
    (128, 64, 16, 4, 3, 2, 0.80),
    (64, 128, 16, 4, 3, 2, 0.76),
    (64, 32, 32, 2, 3, 7, 0.74),
    (32, 64, 32, 2, 3, 7, 0.70),
    (64, 64, 16, 4, 3, 4, 0.70),
    (64, 64, 16, 2, 3, 5, 0.70),
    (32, 128, 16, 4, 3, 4, 0.68),
    (32, 64, 16, 4, 3, 5, 0.60),
    (32, 64, 32, 4, 3, 5, 0.60),
    (32, 32, 32, 4, 3, 8, 0.50),
)
# For the matrix unit; the efficiency is against the peak of the FMA units, and a guess that only orders the candidates.
_HALF_SHAPES = (
    (128, 128, 64, 8, 3, 1, 5.0),
    (128, 128, 32, 8, 4, 1, 4.5),
    (128, 64, 64, 4, 3, 2, 4.5),
    (64, 128, 64, 4, 3, 2, 4.0),
    (64, 128, 32, 4, 4, 2, 3.6),
    (64, 64, 64, 4, 3, 3, 3.2),
    (64, 64, 32, 4, 4, 4, 3.0),
    (64, 32, 64, 4, 4, 4, 2.2),
    (64, 32, 32, 4, 4, 6, 2.0),
    (32, 64, 64, 4, 4, 4, 2.0),
    (32, 64, 32, 4, 4, 6, 1.8),
    (32, 32, 64, 2, 4, 6, 1.4),
    (128, 64, 16, 4, 4, 2, 3.0),
    (64, 64, 16, 4, 4, 4, 2.2),
    (32, 64, 16, 4, 4, 6, 1.4),
)

# One binary serves all sizes: none of these is compiled in when it is 1 or a multiple of 16.
_SIZES = ["channels", "kernels", "in_h", "in_w", "out_h", "out_w", "kernel_h", "kernel_w", "stride_h", "stride_w"]
_SIZES += ["pad_h", "pad_w", "dil_h", "dil_w", "groups", "pixels", "share"]


@triton.jit
def _added(acc, filters, values, PRECISION: tl.constexpr):
    """Return acc + filters · values, in float32."""
    if PRECISION == "hmma":
        acc = tl.dot(filters, values, acc)
    else:
        acc = tl.dot(filters, values, acc, input_precision=PRECISION)
    return acc


def _name(specialization):
    # In the kernel's name, because that is all that a profiler sees; HMMA is the instruction of products in 16 bits.
    return "direct_conv2d_hmma" if specialization.constants.get("PRECISION") == "hmma" else "direct_conv2d"


@triton.jit
def _pointwise(
    acc, x, filters, start, at, c, first, last, pixel, channel, w_pitch,
    BLOCK_C: tl.constexpr, VECTOR: tl.constexpr, PRECISION: tl.constexpr, LAST: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    """Return acc + the steps from `first` to `last` of a sum over channels alone, at pixels `at`."""
    seen = ((first * BLOCK_C + c) * channel)[:, None] + (start + at * pixel)[None, :]
    if LAST:
        seen = x + tl.multiple_of(seen, (LANES, 1))
    else:
        seen = x + tl.max_contiguous(tl.multiple_of(seen, (1, VECTOR)), (1, VECTOR if VECTOR > 1 else 2))
    for _ in range(first, last):
        acc = _added(acc, tl.trans(tl.load(filters)), tl.load(seen), PRECISION)
        filters += BLOCK_C * w_pitch
        seen += BLOCK_C * channel
    return acc


@triton.jit
def _by_taps(
    acc, x, filters, start, row, col, c, first, last, pixel, channel, channels, in_h, in_w, kernel_h, kernel_w, dil_h,
    dil_w, w_pitch, BLOCK_C: tl.constexpr, PRECISION: tl.constexpr, LAST: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    """Return acc + the steps from `first` to `last` of a sum over taps and, innermost, channels."""
    seen = (c * channel)[:, None] + (start + (row * in_w + col) * pixel)[None, :]
    # Neighbouring threads are to take neighbouring pixels: the compiler goes by where elements are said to adjoin.
    seen = tl.multiple_of(seen, (LANES, 1)) if LAST else tl.max_contiguous(seen, (1, 2))
    rows, cols = bits_inside(row, kernel_h, dil_h, in_h), bits_inside(col, kernel_w, dil_w, in_w)
    done = first * BLOCK_C
    r, s, of_tap = done // channels // kernel_w, done // channels % kernel_w, done % channels
    for _ in range(first, last):
        there = ((rows >> r) & (cols >> s) & 1) != 0
        tap = of_tap * channel + (r * dil_h * in_w + s * dil_w) * pixel
        if LAST:
            tap = tl.multiple_of(tap, LANES)
        values = tl.load(x + tap + seen, mask=there[None, :], other=0.0)
        acc = _added(acc, tl.trans(tl.load(filters)), values, PRECISION)
        filters += BLOCK_C * w_pitch
        of_tap += BLOCK_C
        s = tl.where(of_tap == channels, s + 1, s)
        of_tap = tl.where(of_tap == channels, 0, of_tap)
        r = tl.where(s == kernel_w, r + 1, r)
        s = tl.where(s == kernel_w, 0, s)
    return acc


@triton.jit
def _gathered(
    acc, x, filters, start, row, col, c, first, last, pixel, channel, channels, in_h, in_w, kernel_h, kernel_w, dil_h,
    dil_w, w_pitch, BLOCK_C: tl.constexpr, PRECISION: tl.constexpr, LAST: tl.constexpr,
):  # fmt: skip
    """Return acc + the steps from `first` to `last` of a sum in which each row has a tap of its own."""
    taps = kernel_h * kernel_w
    seen = start + (row * in_w + col) * pixel
    for step in range(first, last):
        q = step * BLOCK_C + c
        tap = q // channels if LAST else q % taps  # what lies together in memory follows one another
        r, s = tap // kernel_w * dil_h, tap % kernel_w * dil_w
        h, v = row[None, :] + r[:, None], col[None, :] + s[:, None]
        there = (q < taps * channels)[:, None] & (h >= 0) & (h < in_h) & (v >= 0) & (v < in_w)
        of_tap = q % channels if LAST else q // taps
        offsets = (of_tap * channel + (r * in_w + s) * pixel)[:, None] + seen[None, :]
        offsets = tl.max_contiguous(offsets, (2, 1) if LAST else (1, 2))
        values = tl.load(x + offsets, mask=there, other=0.0)
        acc = _added(acc, tl.trans(tl.load(filters)), values, PRECISION)
        filters += BLOCK_C * w_pitch
    return acc


@triton.jit
def _store(
    y, acc, image, at, k, group, kernels, groups, plane, wanted, VECTOR: tl.constexpr, LAST: tl.constexpr
):  # fmt: skip
    """Store filters k × pixels `at` where `wanted` says so."""
    if LAST:
        place = (group * kernels + k)[:, None] + ((image * plane + at) * (kernels * groups))[None, :]
        tl.store(y + tl.multiple_of(place, (VECTOR, 1)), acc, mask=wanted)
    else:
        place = ((image * groups + group) * kernels)[None, :] + k[:, None]
        place = place * plane + at[None, :]
        place = tl.max_contiguous(tl.multiple_of(place, (1, VECTOR)), (1, VECTOR if VECTOR > 1 else 2))
        tl.store(y + place, acc, mask=(k < kernels)[:, None] & wanted[None, :])


@triton.jit(do_not_specialize=_SIZES, repr=_name)
def direct_conv2d(
    x, w, bias, y,
    channels, kernels, in_h, in_w, out_h, out_w, pixels,
    kernel_h, kernel_w, stride_h, stride_w, pad_h, pad_w, dil_h, dil_w, groups, w_rows_pitch, w_pitch, share,
    BLOCK_K: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr, GATHERED: tl.constexpr,
    POINTWISE: tl.constexpr, VECTOR: tl.constexpr, LONG: tl.constexpr, PRECISION: tl.constexpr, LAST: tl.constexpr,
    LANES: tl.constexpr,
):  # fmt: skip
    """Do one block of filters × pixels; program ids are (block, group, split).

    `channels` and `kernels` are those of a group; a split does `share` steps of BLOCK_C. VECTOR outputs always lie
    together: it divides the pixels of an image, with LAST (NHWC) the filters of a group, and LANES the channels.
    POINTWISE: 1×1, stride 1, no padding, so that input and output pixels are the same.
    """
    k_blocks = tl.cdiv(kernels, BLOCK_K)
    group, split = tl.program_id(1), tl.program_id(2)
    k = (tl.program_id(0) % k_blocks) * BLOCK_K + tl.arange(0, BLOCK_K)
    p = (tl.program_id(0) // k_blocks) * BLOCK_P + tl.arange(0, BLOCK_P)
    c = tl.arange(0, BLOCK_C)
    if LAST:
        wanted = (k // VECTOR < kernels // VECTOR)[:, None] & (p < pixels)[None, :]
    else:
        wanted = (p // VECTOR) < (pixels // VECTOR)
    p = p % pixels  # the last block goes on at the first pixel, and does not store it
    image, at = p // (out_h * out_w), p % (out_h * out_w)
    if LONG:
        image = image.to(tl.int64)
    plane = in_h * in_w
    if LAST:
        pixel, channel = channels * groups, 1  # from one to the next
        start = image * plane * pixel + group * channels
    else:
        pixel, channel = 1, plane
        start = (image * groups + group) * channels * plane
    row, col = (at // out_w) * stride_h - pad_h, (at % out_w) * stride_w - pad_w
    first, last = split * share, min((split + 1) * share, tl.cdiv(kernel_h * kernel_w * channels, BLOCK_C))
    filters = w + (group * w_rows_pitch + first * BLOCK_C + c)[:, None] * w_pitch + k[None, :]
    acc = tl.zeros((BLOCK_K, BLOCK_P), tl.float32)
    if POINTWISE:
        acc = _pointwise(
            acc, x, filters, start, at, c, first, last, pixel, channel, w_pitch, BLOCK_C, VECTOR, PRECISION, LAST, LANES
        )
    elif not GATHERED:
        acc = _by_taps(
            acc, x, filters, start, row, col, c, first, last, pixel, channel, channels, in_h, in_w, kernel_h, kernel_w,
            dil_h, dil_w, w_pitch, BLOCK_C, PRECISION, LAST, LANES,
        )  # fmt: skip
    else:
        acc = _gathered(
            acc, x, filters, start, row, col, c, first, last, pixel, channel, channels, in_h, in_w, kernel_h, kernel_w,
            dil_h, dil_w, w_pitch, BLOCK_C, PRECISION, LAST,
        )  # fmt: skip
    acc += tl.load(bias + group * kernels + k, mask=k < kernels, other=0.0).to(tl.float32)[:, None]
    part = split.to(tl.int64) * pixels * kernels * groups
    y += part if PRECISION == "ieee" and not LAST else tl.multiple_of(part, VECTOR)
    _store(y, acc, image, at, k, group, kernels, groups, out_h * out_w, wanted, VECTOR, LAST)


def candidates(shape: Convolution, output: tuple[int, ...], multiprocessors: int) -> list[Blocks2d]:
    """Return the block shapes worth timing, the likeliest first."""
    filters, channels = shape.weight[0] // shape.groups, shape.weight[1]
    taps, pixels = shape.weight[2] * shape.weight[3], output[0] * output[2] * output[3]
    if filters < 16 and shape.groups > 1:
        return direct_thin.candidates(shape)
    every = []
    for block_k, block_p, block_c, warps, stages, resident, efficiency in (
        _SHAPES if is_float32(shape) else _HALF_SHAPES
    ):
        gathered = channels % block_c != 0 or max(shape.weight[2:]) > _TAPS_MOST
        if gathered and channels % 16 == 0 and max(shape.weight[2:]) <= _TAPS_MOST:
            continue  # smaller steps of this shape need no gathering
        programs = -(-filters // block_k) * -(-pixels // block_p) * shape.groups
        steps = -(-channels * taps // block_c)
        for splits in splits_for(programs, steps, multiprocessors, 4):
            blocks = Blocks2d("gathered" if gathered else "taps", block_k, block_p, block_c, warps, stages, splits)
            every.append(Candidate(blocks, programs, steps, block_k * block_p * block_c, resident, efficiency))
    return ranked(every, multiprocessors, 4 * filters * shape.groups * pixels, TRIED)


def pack(weight: torch.Tensor, shape: Convolution, blocks: Blocks2d) -> torch.Tensor:
    """Lay the filters K × C/G × R × S out as the variant reads them: [G, rows, filters], rows and filters padded.

    Their type is the weight's. "thin" has a layout of its own (`direct_thin.pack`).
    """
    if blocks.variant == "thin":
        return direct_thin.pack(weight, shape, PITCH)
    grouped = weight.unflatten(0, (shape.groups, -1))  # G, K / G, C / G, R, S
    order = (0, 3, 4, 2, 1) if shape.layout == "nhwc" or blocks.variant == "taps" else (0, 2, 3, 4, 1)
    rows = grouped.permute(order).flatten(1, 3)
    missing = -rows.shape[1] % blocks.channels, -rows.shape[2] % PITCH
    return torch.nn.functional.pad(rows, (0, missing[1], 0, missing[0])).contiguous()


def launch(
    x: torch.Tensor, packed: torch.Tensor, bias: torch.Tensor, y: torch.Tensor, shape: Convolution, blocks: Blocks2d
) -> None:
    """Convolve x (N × C × H × W, contiguous in the shape's layout) with packed filters on the current stream.

    Args:
        bias: of each filter; where the reduction is split it is added in each split.
        y: splits × N × K × P × Q, each split's partial sum in the memory order of the shape's layout.
    """
    if blocks.variant == "thin":
        direct_thin.launch(x, packed, bias, y, shape, blocks)
        return
    kernels, plane = y.shape[2] // shape.groups, y.shape[3] * y.shape[4]
    pixels = x.shape[0] * plane
    channels, last, element_bytes = shape.weight[1], shape.layout == "nhwc", x.element_size()
    steps = triton.cdiv(channels * shape.weight[2] * shape.weight[3], blocks.channels)
    grid = (triton.cdiv(kernels, blocks.filters) * triton.cdiv(pixels, blocks.points), shape.groups, blocks.splits)
    direct_conv2d[grid](
        x, packed, bias, y, channels, kernels, *x.shape[2:], *y.shape[3:], pixels, *shape.weight[2:], *shape.stride,
        *shape.padding, *shape.dilation, shape.groups, packed.shape[1], packed.shape[2],
        triton.cdiv(steps, blocks.splits),
        BLOCK_K=blocks.filters, BLOCK_P=blocks.points, BLOCK_C=blocks.channels, GATHERED=blocks.variant == "gathered",
        POINTWISE=is_pointwise(shape) and blocks.variant == "taps",
        VECTOR=lanes(element_bytes, kernels) if last else 1 if plane % 4 else lanes(element_bytes, plane),
        LONG=max(x.numel(), y[0].numel()) >= LONG_ELEMENTS, PRECISION="ieee" if is_float32(shape) else "hmma",
        LAST=last, LANES=lanes(element_bytes, channels) if last else 1,
        num_warps=blocks.warps, num_stages=blocks.stages,
    )  # fmt: skip


def is_pointwise(shape: Convolution) -> bool:
    """Tell whether input and output pixels are the same: 1×1, stride 1, no padding."""
    return shape.weight[2:] == (1, 1) and shape.stride == (1, 1) and shape.padding == (0, 0)


def reference(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, shape: Convolution) -> torch.Tensor:
    """Return the convolution by its definition, tap by tap, in the tensors' own type: slow, and plain to see."""
    (pad_h, pad_w), (stride_h, stride_w), (dil_h, dil_w) = shape.padding, shape.stride, shape.dilation
    padded = torch.nn.functional.pad(x, (pad_w, pad_w, pad_h, pad_h)).unflatten(1, (shape.groups, -1))
    filters = weight.unflatten(0, (shape.groups, -1))
    out_h = (padded.shape[3] - dil_h * (weight.shape[2] - 1) - 1) // stride_h + 1
    out_w = (padded.shape[4] - dil_w * (weight.shape[3] - 1) - 1) // stride_w + 1
    y = x.new_zeros(x.shape[0], weight.shape[0], out_h, out_w)
    for r in range(weight.shape[2]):
        for s in range(weight.shape[3]):
            seen = padded[..., r * dil_h :: stride_h, s * dil_w :: stride_w][..., :out_h, :out_w]
            y += torch.einsum("gkc,ngcij->ngkij", filters[..., r, s], seen).flatten(1, 2)
    return y if bias is None else y + bias.view(1, -1, 1, 1)
