"""9 of 9. Implicit GEMM, auto-tuned: the ideas of the files before it, by the copy engine, in timed block shapes.

Variant "boxes": the output pixels of a program are a box of depth × height × width. The input that one tap sees is then
a box as well, the same box moved by the tap; a tensor descriptor describes it, and one instruction of one thread has
Hopper's copy engine (TMA) fetch BLOCK_P × BLOCK_C numbers. What lies outside the input arrives as zeros: no mask, no
address, no bit for each row in the loop:

    for each step (tap, block of channels):
        X[box, BLOCK_C] = x[image, box + tap · dilation - padding, channels]
        acc += X · W[filters, tap, channels]ᵀ                              wgmma, both factors from shared memory

A box of several rows reaches wgmma as its first factor by way of registers only, and then each product waits for the
one before it: with 64 filters or more the product is W · Xᵀ, and is turned over at the end.

Each step reads its blocks anew from the L2 cache: BLOCK_P · BLOCK_C + BLOCK_K · BLOCK_C numbers for
2 · BLOCK_P · BLOCK_K · BLOCK_C operations. A layer of 64 filters has less than 32 operations a byte in float32, however
large the block, and waits for that cache. Variant "slices" reads less: a program computes several neighbouring slices
of depth, and a slice of the input, once in shared memory, serves all taps in depth that see it from one of them:

    for each step (tap in height and width, block of channels):
        W[r] = weight[filters, r, s, t, channels] for the taps in depth r = 0, 1, 2
        for each slice z of the input, SLICES + 2 of them:
            X = x[image, z, box + (s, t) - padding, channels]
            acc[z - r] += X · W[r]ᵀ for each r with a slice z - r

Two slices of 128 pixels × 64 filters read 704 rows of BLOCK_C numbers for what "boxes" of 128 reads 1152 for. Without
stride, and without dilation in depth.

First layers come as a view with the taps of a row as channels (`layout`): the same kernels, and 9 steps of 16
for 3 × 3 × 3 taps of 4 channels. Variant "pipelined" is the seventh file's kernel, for strides and wherever it is
faster.

Without the matrix unit (float32 that may not be TF32) the factors lie better the other way round: pixels and filters
contiguous, the summed channels not, so that a thread reads four neighbours of each at once for its multiply-adds.
Variant "planar" does that: it reads N × C × D × H × W where it lies (channels last is copied to it), as the third
file's kernel, in one loop over all steps, in which the next blocks are always on their way. Where the channels fill no
step of 16 a step takes the channels of all taps of a row.

All may have their sum split as in the eighth. Which variant, block, box, stages, warps and splits:
`candidates` has a few for each shape, likeliest first, and `autotune` times them on the card once.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from convscope.cudnn.shape import Convolution
from convscope.kernels.conv3d import gemm_pipelined, layout
from convscope.kernels.conv3d.candidates import candidates as candidates
from convscope.kernels.conv3d.candidates import programs_of
from convscope.kernels.conv3d.layout import Blocks3d, are_filters, bits_inside, block_of, corner, next_step, place_in

NAME = "gemm"
_REGISTERS_MOST = 192  # of a thread, for sums: of 255

_BOX_SIZES = [
    *("kernels", "blocks", "kernel_h", "kernel_w", "groups", "w_rows", "steps", "share", "outputs"),
    *layout.by_axis("out", "pad", "dil", "tiles"),
]


@triton.jit
def _added(acc, values, filters, SWAPPED: tl.constexpr, PRECISION: tl.constexpr):
    """Return acc + values · filtersᵀ, turned over if `SWAPPED`."""
    if SWAPPED:
        acc = tl.dot(filters, values.T, acc, input_precision=PRECISION)
    else:
        acc = tl.dot(values, filters.T, acc, input_precision=PRECISION)
    return acc


@triton.jit(do_not_specialize=_BOX_SIZES)
def gemm_boxes(
    x, w, y, kernels, blocks, out_d, out_h, out_w, kernel_h, kernel_w, pad_d, pad_h, pad_w, dil_d, dil_h, dil_w,
    tiles_d, tiles_h, tiles_w, groups, w_rows, steps, share, outputs,
    BOX_D: tl.constexpr, BOX_H: tl.constexpr, BOX_W: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_C: tl.constexpr,
    PRECISION: tl.constexpr, VECTOR: tl.constexpr, LAST: tl.constexpr,
    LONG: tl.constexpr,
):  # fmt: skip
    """Do one box of pixels × BLOCK_K filters over `share` steps; program ids are (block, group, split).

    `x` and `w` are tensor descriptors, `blocks` the blocks of channels of a group, `outputs` the elements of a split.
    """
    BLOCK_P: tl.constexpr = BOX_D * BOX_H * BOX_W
    k_blocks = tl.cdiv(kernels, BLOCK_K)
    group, split = tl.program_id(1), tl.program_id(2)
    k0, tile = tl.program_id(0) % k_blocks * BLOCK_K, tl.program_id(0) // k_blocks
    w0, h0 = tile % tiles_w * BOX_W, tile // tiles_w % tiles_h * BOX_H
    d0, image = tile // (tiles_w * tiles_h) % tiles_d * BOX_D, tile // (tiles_w * tiles_h * tiles_d)
    first = split * share
    last = min(first + share, steps)
    SWAPPED: tl.constexpr = BLOCK_K >= 64
    acc = tl.zeros((BLOCK_K, BLOCK_P) if SWAPPED else (BLOCK_P, BLOCK_K), tl.float32)
    tap, start = first // blocks, first % blocks
    r, s, t = tap // (kernel_h * kernel_w), tap // kernel_w % kernel_h, tap % kernel_w
    for step in range(first, last):
        d, h, v = d0 - pad_d + r * dil_d, h0 - pad_h + s * dil_h, w0 - pad_w + t * dil_w
        values = x.load([image, d, h, v, (group * blocks + start) * BLOCK_C]).reshape(BLOCK_P, BLOCK_C)
        filters = w.load([group * w_rows + k0, step * BLOCK_C])
        r, s, t, start = next_step(r, s, t, start, 1, blocks, kernel_h, kernel_w)
        acc = _added(acc, values, filters, SWAPPED, PRECISION)
    i = tl.arange(0, BLOCK_P)
    k = k0 + tl.arange(0, BLOCK_K)
    d, h, v = d0 + i // (BOX_H * BOX_W), h0 + i // BOX_W % BOX_H, w0 + i % BOX_W
    # The compiler does not see that neighbouring pixels are wanted together, and would store them one by one.
    PIXELS: tl.constexpr = 1 if LAST else VECTOR
    wanted = tl.max_constancy((d < out_d) & (h < out_h) & (v // PIXELS < tl.cdiv(out_w, PIXELS)), [PIXELS])
    out_plane = out_d * out_h * out_w
    if LONG:
        image = image.to(tl.int64)
    place = place_in(image, group, groups, (d * out_h + h) * out_w + v, k, kernels, out_plane, VECTOR, LAST)
    y += tl.multiple_of(split.to(tl.int64) * outputs, VECTOR)
    filters_there = are_filters(k, kernels, VECTOR, LAST)
    tl.store(y + place, acc.T if SWAPPED else acc, mask=wanted[:, None] & filters_there[None, :])


@triton.jit
def _replaced(values, at: tl.constexpr, value):
    """Return a tuple with another value in one place."""
    return values[:at] + (value,) + values[at + 1 :]


@triton.jit(do_not_specialize=[name for name in _BOX_SIZES if name != "dil_d"])
def gemm_slices(
    x, w, y, kernels, blocks, out_d, out_h, out_w, kernel_h, kernel_w, pad_d, pad_h, pad_w, dil_h, dil_w,
    tiles_d, tiles_h, tiles_w, groups, w_rows, steps, share, outputs,
    TAPS: tl.constexpr, SLICES: tl.constexpr, SUMS: tl.constexpr, BOX_H: tl.constexpr, BOX_W: tl.constexpr,
    BLOCK_K: tl.constexpr, BLOCK_C: tl.constexpr, PRECISION: tl.constexpr, VECTOR: tl.constexpr, LAST: tl.constexpr,
    LONG: tl.constexpr,
):  # fmt: skip
    """Do SLICES boxes of height × width, one behind another, × BLOCK_K filters; as `gemm_boxes`.

    `steps` are those of one tap in depth, of which there are TAPS. Each slice has SUMS sums, one or one for each tap in
    depth: a product waits for the one before it in its sum.
    """
    BLOCK_P: tl.constexpr = BOX_H * BOX_W
    k_blocks = tl.cdiv(kernels, BLOCK_K)
    group, split = tl.program_id(1), tl.program_id(2)
    k0, tile = tl.program_id(0) % k_blocks * BLOCK_K, tl.program_id(0) // k_blocks
    w0, h0 = tile % tiles_w * BOX_W, tile // tiles_w % tiles_h * BOX_H
    d0, image = tile // (tiles_w * tiles_h) % tiles_d * SLICES, tile // (tiles_w * tiles_h * tiles_d)
    first = split * share
    last = min(first + share, steps)
    SWAPPED: tl.constexpr = BLOCK_K >= 64
    sums = ()
    for _ in tl.static_range(SLICES * SUMS):
        sums = sums + (tl.zeros((BLOCK_K, BLOCK_P) if SWAPPED else (BLOCK_P, BLOCK_K), tl.float32),)
    for step in range(first, last):
        tap, c = step // blocks, (group * blocks + step % blocks) * BLOCK_C
        h, v = h0 - pad_h + tap // kernel_w * dil_h, w0 - pad_w + tap % kernel_w * dil_w
        filters = ()
        for r in tl.static_range(TAPS):
            filters = filters + (w.load([group * w_rows + k0, (r * steps + step) * BLOCK_C]),)
        for z in tl.static_range(SLICES + TAPS - 1):
            values = x.load([image, d0 - pad_d + z, h, v, c]).reshape(BLOCK_P, BLOCK_C)
            for r in tl.static_range(TAPS):
                if z >= r and z - r < SLICES:
                    added = _added(sums[(z - r) * SUMS + r % SUMS], values, filters[r], SWAPPED, PRECISION)
                    sums = _replaced(sums, (z - r) * SUMS + r % SUMS, added)
    i = tl.arange(0, BLOCK_P)
    k = k0 + tl.arange(0, BLOCK_K)
    h, v = h0 + i // BOX_W, w0 + i % BOX_W
    PIXELS: tl.constexpr = 1 if LAST else VECTOR
    inside = tl.max_constancy((h < out_h) & (v // PIXELS < tl.cdiv(out_w, PIXELS)), [PIXELS])
    out_plane = out_d * out_h * out_w
    if LONG:
        image = image.to(tl.int64)
    y += tl.multiple_of(split.to(tl.int64) * outputs, VECTOR)
    for z in tl.static_range(SLICES):
        at = ((d0 + z) * out_h + h) * out_w + v
        place = place_in(image, group, groups, at, k, kernels, out_plane, VECTOR, LAST)
        total: tl.tensor = sums[z * SUMS]
        for r in tl.static_range(1, SUMS):
            total += sums[z * SUMS + r]
        wanted = (inside & (d0 + z < out_d))[:, None] & are_filters(k, kernels, VECTOR, LAST)[None, :]
        tl.store(y + place, total.T if SWAPPED else total, mask=wanted)


@triton.jit(do_not_specialize=[name for name in layout.PLANAR_SIZES if name != "w_pitch"] + ["blocks", "share"])
def gemm_planar(
    x, w, y, channels, kernels, in_d, in_h, in_w, out_d, out_h, out_w, kernel_d, kernel_h, kernel_w,
    stride_d, stride_h, stride_w, pad_d, pad_h, pad_w, dil_d, dil_h, dil_w, groups, pixels, w_rows, w_pitch,
    blocks, share, outputs,
    BLOCK_P: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_C: tl.constexpr, BY_ROW: tl.constexpr, VECTOR: tl.constexpr,
    LAST: tl.constexpr, LONG: tl.constexpr,
):  # fmt: skip
    """Do BLOCK_P pixels × BLOCK_K filters over `share` steps, in float32; program ids are (block, group, split).

    `blocks` are the steps of a tap, BY_ROW of the taps of a row; `outputs` the elements of a split.
    """
    group, split = tl.program_id(1), tl.program_id(2)
    c = tl.arange(0, BLOCK_C)
    out_plane, plane = out_d * out_h * out_w, in_d * in_h * in_w
    k, wanted, image, at = block_of(kernels, pixels, out_plane, BLOCK_P, BLOCK_K, 1 if LAST else VECTOR, LONG)
    depth, row, column = corner(at, out_h, out_w, stride_d, stride_h, stride_w, pad_d, pad_h, pad_w)
    depths, rows = bits_inside(depth, kernel_d, dil_d, in_d), bits_inside(row, kernel_h, dil_h, in_h)
    columns = bits_inside(column, kernel_w, dil_w, in_w)
    corners = (image * groups + group) * channels * plane + (depth * in_h + row) * in_w + column
    first = split * share
    last = min(first + share, w_rows // BLOCK_C)
    filters = w + (group * w_rows + first * BLOCK_C + c)[:, None] * w_pitch + k[None, :]
    width = 1 if BY_ROW else kernel_w
    tap, start = first // blocks, first % blocks * BLOCK_C
    r, s, t = tap // (kernel_h * width), tap // width % kernel_h, tap % width
    acc = tl.zeros((BLOCK_P, BLOCK_K), tl.float32)
    for _ in range(first, last):
        there = (depths >> r) & (rows >> s)
        shift = (r * dil_d * in_h + s * dil_h) * in_w
        if BY_ROW:
            q = start + c
            seen = corners[:, None] + (q % channels * plane + q // channels * dil_w)[None, :]
            bits = there[:, None] & (columns[:, None] >> (q // channels)[None, :])
            mask = ((bits & 1) != 0) & (q < channels * kernel_w)[None, :]
        else:
            shift += t * dil_w + start * plane
            seen = corners[:, None] + (c * plane)[None, :]
            mask = ((there & (columns >> t) & 1) != 0)[:, None]
        # Neighbouring threads are to take neighbouring pixels: the compiler goes by where elements are said to adjoin.
        values = tl.load(x + shift + tl.max_contiguous(seen, (2, 1)), mask=mask, other=0.0)
        acc = tl.dot(values, tl.load(filters), acc, input_precision="ieee")
        filters += BLOCK_C * w_pitch
        r, s, t, start = next_step(r, s, t, start, BLOCK_C, blocks * BLOCK_C, kernel_h, width)
    place = place_in(image, group, groups, at, k, kernels, out_plane, VECTOR, LAST)
    y += tl.multiple_of(split.to(tl.int64) * outputs, VECTOR)
    tl.store(y + place, acc, mask=wanted[:, None] & are_filters(k, kernels, VECTOR, LAST)[None, :])


@triton.jit(do_not_specialize=["pixels"])
def copy_planar(x, y, channels, pixels, BLOCK_S: tl.constexpr, BLOCK_C: tl.constexpr):
    """Copy BLOCK_S pixels × BLOCK_C channels of one image from channels last; ids are (pixels, channels, image)."""
    at = tl.program_id(0) * BLOCK_S + tl.arange(0, BLOCK_S)
    c = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    image = tl.program_id(2).to(tl.int64) * channels * pixels
    there = (at < pixels)[:, None] & (c < channels)[None, :]
    values = tl.load(x + image + at[:, None].to(tl.int64) * channels + c[None, :], mask=there)
    tl.store(y + image + c[:, None].to(tl.int64) * pixels + at[None, :], tl.trans(values), mask=tl.trans(there))


def default(shape: Convolution) -> Blocks3d:
    """Return the likeliest of the candidates, for use without tuning."""
    return candidates(shape)[0]


def sums(blocks: Blocks3d, taps: int) -> int:
    """Return the number of sums of "slices" for each output: one a tap in depth where the registers hold them."""
    registers = blocks.pixels * blocks.filters * taps // (32 * blocks.warps)
    return taps if registers <= _REGISTERS_MOST else 1


def pack(weight: torch.Tensor, shape: Convolution, blocks: Blocks3d) -> torch.Tensor:
    """Lay the filters out as the variant reads them."""
    if blocks.variant == "planar":
        return _pack_by_row(weight, shape, blocks.depth)
    return layout.pack(weight, shape)


def _pack_by_row(weight: torch.Tensor, shape: Convolution, steps_of: int) -> torch.Tensor:
    """Lay filters out as [group, rows, filters] for `gemm_planar`: rows are taps · channels, padded for each step.

    Where the channels fill no step, the taps of a row and their channels are padded together (`_is_by_row`).
    """
    grouped = weight.unflatten(0, (shape.groups, -1)).movedim(2, -1)  # G, K / G, KD, KH, KW, C / G
    if _is_by_row(shape, steps_of):
        grouped = grouped.flatten(4)
    grouped = torch.nn.functional.pad(grouped, (0, -grouped.shape[-1] % steps_of))
    rows = grouped.flatten(2).transpose(1, 2)
    return torch.nn.functional.pad(rows, (0, -rows.shape[2] % layout.FILTERS_PADDED)).contiguous()


def _is_by_row(shape: Convolution, steps_of: int) -> bool:
    """Tell whether steps of so many terms are filled better by the channels of all taps of a row than of each tap."""
    return shape.weight[1] % steps_of != 0


def convolve(x: torch.Tensor, packed: torch.Tensor, shape: Convolution, blocks: Blocks3d) -> torch.Tensor:
    """Convolve N × C × D × H × W with packed filters on the current stream; adds up the splits where there are some."""
    if blocks.variant == "pipelined":
        return gemm_pipelined.convolve(x, packed, shape, blocks)
    if blocks.variant == "planar":
        return _convolve_planar(x, packed, shape, blocks)
    copied, y = layout.channels_last(x, shape), layout.split_output(x, shape, blocks.splits)
    seen, (box_d, box_h, box_w) = layout.problem(shape), blocks.box
    slices = blocks.variant == "slices"
    tiles = [-(-extent // side) for extent, side in zip(seen.output, blocks.box, strict=True)]
    steps = packed.shape[2] // blocks.depth // (seen.kernel[0] if slices else 1)
    size, block = [seen.images, *seen.size, seen.window * seen.groups], [1 if slices else box_d, box_h, box_w]
    view = TensorDescriptor(copied, size, [*seen.pitch, 1], [1, *block, blocks.depth])
    filters = TensorDescriptor.from_tensor(packed.flatten(0, 1), [blocks.filters, blocks.depth])
    kernel, variant = gemm_boxes, {"BOX_D": box_d}
    if slices:
        kernel, variant = gemm_slices, {"TAPS": seen.kernel[0], "SLICES": box_d, "SUMS": sums(blocks, seen.kernel[0])}
    kernel[programs_of(seen, blocks) // seen.groups, seen.groups, blocks.splits](
        view, filters, y, seen.filters, seen.channels // blocks.depth, *seen.output, *seen.kernel[1:], *seen.padding,
        *seen.dilation[1 if slices else 0 :], *tiles, seen.groups, packed.shape[1], steps,
        triton.cdiv(steps, blocks.splits), y[0].numel(), BOX_H=box_h, BOX_W=box_w, BLOCK_K=blocks.filters,
        BLOCK_C=blocks.depth, PRECISION=layout.precision(shape), VECTOR=_vector(shape, blocks),
        LAST=layout.is_last(shape), LONG=layout.is_long(y[0]), num_warps=blocks.warps, num_stages=blocks.stages,
        **variant,
    )  # fmt: skip
    return layout.add_splits(y, shape)


def _planar(x: torch.Tensor, shape: Convolution) -> torch.Tensor:
    """Return the input as N × C × D × H × W, contiguous; a copy, on the current stream, where it lies otherwise."""
    if not layout.is_last(shape):
        return x
    images, channels, *size = x.shape
    copy = torch.empty((images, channels, *size), dtype=x.dtype, device=x.device)
    pixels = math.prod(size)
    block_c = min(32, triton.next_power_of_2(channels))
    block_s = min(layout.COPY_BLOCK // block_c, triton.next_power_of_2(pixels))
    grid = triton.cdiv(pixels, block_s), triton.cdiv(channels, block_c), images
    copy_planar[grid](x, copy, channels, pixels, BLOCK_S=block_s, BLOCK_C=block_c, num_warps=4)
    return copy


def _convolve_planar(x: torch.Tensor, packed: torch.Tensor, shape: Convolution, blocks: Blocks3d) -> torch.Tensor:
    copied, y = _planar(x, shape), layout.split_output(x, shape, blocks.splits)
    pixels, filters = shape.output[0] * math.prod(shape.output[2:]), shape.weight[0] // shape.groups
    steps, by_row = packed.shape[1] // blocks.depth, _is_by_row(shape, blocks.depth)
    grid = triton.cdiv(pixels, blocks.pixels) * triton.cdiv(filters, blocks.filters)
    gemm_planar[grid, shape.groups, blocks.splits](
        copied, packed, y, *layout.planar_sizes(shape), pixels, packed.shape[1], packed.shape[2],
        steps // math.prod(shape.kernel[: 2 if by_row else 3]), triton.cdiv(steps, blocks.splits), y[0].numel(),
        BLOCK_P=blocks.pixels, BLOCK_K=blocks.filters, BLOCK_C=blocks.depth, BY_ROW=by_row,
        VECTOR=layout.vector(shape), LAST=layout.is_last(shape), LONG=layout.is_long(copied, y[0]),
        num_warps=blocks.warps, num_stages=blocks.stages,
    )  # fmt: skip
    return layout.add_splits(y, shape)


def _vector(shape: Convolution, blocks: Blocks3d) -> int:
    """Return the number of neighbours in a box that always lie together, aligned: pixels of a row, or filters."""
    if layout.is_last(shape):
        return layout.vector(shape)
    return 1 if shape.output[-1] % 4 or blocks.box[2] % 4 else 4
