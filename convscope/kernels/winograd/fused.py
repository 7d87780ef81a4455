"""Fused Winograd convolution: transforms and products in one kernel (`transforms` has the algorithm).

One program does a block of filters and a block of tiles, all points:

    M[points, BLOCK_K, BLOCK_T] = 0
    for a block of channels:
        d = the (m + 2)² inputs of each of BLOCK_T tiles, from memory (0 outside the image)
        V = Bᵀ d B                                         additions in registers
        M += U[points, BLOCK_K, channels] · V[points, channels, BLOCK_T]       one product for each point
    Y = Aᵀ M A + bias, to memory

With few tiles (small images, batch 1) there are too few programs to fill a card. Then the channels are split between
several; each writes its own partial Y (the inverse transform is linear) and `reduction` adds them up in a fixed order.

Cost of N × C × H × W to K channels with m × m tiles, T = N ⌈H/m⌉ ⌈W/m⌉:
    operations   2 (m + 2)² C K T for the products, against 2 · 9 C K N H W of the definition: 2.25 and 4 times fewer;
                 about 32 (m = 2) or 156 (m = 4) additions for each tile and channel, repeated for every block of
                 BLOCK_K filters, because the transformed input never goes to memory
    bytes        b (C N H W + (m + 2)² C K + K N H W) at least, b bytes an element: the filters grow 1.8 or 4 times
Layouts: NCHW and NHWC, input and output in the same; only addresses differ, nothing is copied.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from convscope.cudnn.shape import Convolution
from convscope.kernels import tf32
from convscope.kernels.blocks import LONG_ELEMENTS, Blocks2d, Candidate, lanes, ranked, splits_for
from convscope.kernels.winograd.transforms import SHRINK, fits, precision, tile_of, times_at, times_bt

TRIED = 10  # block shapes that are timed for a shape
_CHANNELS = 16  # of a step: the least that a product takes

_SHAPES = (  # tile, filters, tiles, warps, stages, programs resident on a multiprocessor, efficiency
    (2, 64, 32, 16, 1, 1, 0.60),
    (2, 32, 32, 16, 1, 1, 0.50),
    (2, 32, 16, 8, 1, 2, 0.50),
    (4, 32, 16, 8, 1, 1, 0.50),
    (4, 16, 32, 8, 1, 1, 0.40),
    (4, 16, 16, 8, 1, 1, 0.40),
)
_TRANSFORM_COST = {2: 110, 4: 330}  # of one tile and channel, in instructions

# One binary serves all sizes: none of these is compiled in when it is 1 or a multiple of 16.
_SIZES = ["channels", "kernels", "in_h", "in_w", "out_h", "out_w", "tiles_h", "tiles_w", "tiles"]
_SIZES += ["pad_h", "pad_w", "groups", "c_share"]


@triton.jit
def _stack(v, at: tl.constexpr, step: tl.constexpr, count: tl.constexpr):
    """Join `count` (a power of two) blocks of a tuple along a new last axis of axes of two, least significant last."""
    if count == 2:
        return tl.join(v[at], v[at + step])
    else:
        return tl.join(_stack(v, at, 2 * step, count // 2), _stack(v, at + step, 2 * step, count // 2))


@triton.jit
def _unstack(m, count: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_T: tl.constexpr):
    """Split BLOCK_K × BLOCK_T × count into a tuple of `count` blocks, the inverse of `_stack`."""
    if count == 1:
        return (tl.reshape(m, (BLOCK_K, BLOCK_T)),)
    else:
        even, odd = tl.split(tl.reshape(m, (BLOCK_K, BLOCK_T, count // 2, 2)))
        evens = _unstack(even, count // 2, BLOCK_K, BLOCK_T)
        odds = _unstack(odd, count // 2, BLOCK_K, BLOCK_T)
        found = ()
        for i in tl.static_range(count // 2):
            found = found + (evens[i], odds[i])
        return found


@triton.jit
def _product(filters, v, at: tl.constexpr, count: tl.constexpr, sums, PRECISION: tl.constexpr, SHRINK: tl.constexpr):
    """Add U · V of `count` points from `at` on to sums[points, BLOCK_K, BLOCK_T]; `filters` are their addresses."""
    BLOCK_C: tl.constexpr = v[0].shape[0]
    BLOCK_T: tl.constexpr = v[0].shape[1]
    stacked = tl.permute(tl.reshape(_stack(v, at, 1, count), (BLOCK_C, BLOCK_T, count)), (2, 0, 1))
    factors = tl.permute(tl.load(filters), (0, 2, 1))
    if PRECISION == "hmma":
        if SHRINK != 1:
            stacked = stacked * SHRINK
        sums = tl.dot(factors, stacked.to(factors.dtype), sums)
    else:
        if PRECISION == "tf32":
            stacked = tf32.rounded_block(stacked)
        sums = tl.dot(factors, stacked, sums, input_precision=PRECISION)
    return sums


def _name(specialization):
    # In the kernel's name, because that is all that a profiler sees of the products' precision.
    precision = specialization.constants.get("PRECISION")
    return f"winograd_conv2d_{precision}" if precision in ("tf32", "hmma") else "winograd_conv2d"


@triton.jit
def _transformed(
    x, offsets, rows, cols, known, in_w, pixel, TILE: tl.constexpr, SIDE: tl.constexpr
):  # fmt: skip
    """Return Bᵀ d B of a block of channels × tiles, a tuple of its points; `known` are the channels there are."""
    d = ()
    for i in tl.static_range(SIDE):
        for j in tl.static_range(SIDE):
            there = ((rows >> i) & (cols >> j) & 1) != 0
            d = d + (tl.load(x + (i * in_w + j) * pixel + offsets, mask=there & known, other=0.0).to(tl.float32),)
    half = ()
    for j in tl.static_range(SIDE):
        half = half + times_bt(d, j, SIDE, TILE)
    v = ()
    for i in tl.static_range(SIDE):
        v = v + times_bt(half, i, SIDE, TILE)
    return v


@triton.jit
def _seen(
    image, group, top, left, c, channels, groups, in_h, in_w, LAST: tl.constexpr, LANES: tl.constexpr
):  # fmt: skip
    """Return where the first inputs of channels × tiles lie, and the distances of pixels and of channels."""
    plane = in_h * in_w
    if LAST:
        pixel, channel = channels // LANES * LANES * groups, 1  # known to be a multiple
        corner = image * plane * pixel + (top * in_w + left) * pixel + group * channels
    else:
        pixel, channel = 1, plane
        corner = (image * groups + group) * channels * plane + top * in_w + left
    # Neighbouring threads are to take neighbouring tiles: the compiler goes by where it is told elements adjoin.
    offsets = c[:, None] * channel + corner[None, :]
    offsets = tl.multiple_of(offsets, (LANES, 1)) if LAST else tl.max_contiguous(offsets, (1, 2))
    return offsets, pixel, channel


@triton.jit
def _store(
    y, m, bias, image, group, k, top, left, inside, kernels, groups, out_h, out_w,
    SHRINK: tl.constexpr, TILE: tl.constexpr, LAST: tl.constexpr, VECTOR: tl.constexpr,
):  # fmt: skip
    """Store Aᵀ M A + bias of a block of filters × tiles; `m` is a tuple of its points."""
    added = tl.load(bias + group * kernels + k, mask=k < kernels, other=0.0).to(tl.float32)[:, None]
    if LAST:
        pixel = kernels // VECTOR * VECTOR * groups
        place = ((image * (out_h * out_w) + top * out_w + left) * pixel)[None, :]
        place = tl.multiple_of(place + (group * kernels + k)[:, None], (VECTOR, 1))
        wanted = (k // VECTOR < kernels // VECTOR)[:, None] & inside[None, :]
    else:
        pixel = 1
        place = ((image * groups + group) * kernels)[None, :] + k[:, None]
        place = place * (out_h * out_w) + (top * out_w + left)[None, :]
        wanted = (k < kernels)[:, None] & inside[None, :]
    half = ()
    for j in tl.static_range(TILE + 2):
        half = half + times_at(m, j, TILE + 2, TILE)
    for i in tl.static_range(TILE):
        row = times_at(half, i, TILE, TILE)
        for j in tl.static_range(TILE):
            there = wanted & ((top + i < out_h) & (left + j < out_w))[None, :]
            value = row[j] if SHRINK == 1 else row[j] * (1 / (SHRINK * SHRINK))
            tl.store(y + place + (i * out_w + j) * pixel, value + added, mask=there)


@triton.jit(do_not_specialize=_SIZES, repr=_name)
def winograd_conv2d(
    x, u, bias, y,
    channels, kernels, in_h, in_w, out_h, out_w, tiles_h, tiles_w, tiles,
    pad_h, pad_w, groups, k_pitch, c_pitch, c_share,
    TILE: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_C: tl.constexpr,
    LONG: tl.constexpr, PRECISION: tl.constexpr, SHRINK: tl.constexpr, LAST: tl.constexpr, LANES: tl.constexpr,
    VECTOR: tl.constexpr,
):  # fmt: skip
    """Do one block of filters × tiles of a group; program ids are (block, group, split).

    With LAST (NHWC) LANES divides the channels of a group, VECTOR its filters.
    """
    SIDE: tl.constexpr = TILE + 2
    k_blocks = tl.cdiv(kernels, BLOCK_K)
    group, split = tl.program_id(1), tl.program_id(2)
    k = (tl.program_id(0) % k_blocks) * BLOCK_K + tl.arange(0, BLOCK_K)
    t = (tl.program_id(0) // k_blocks) * BLOCK_T + tl.arange(0, BLOCK_T)
    c = tl.arange(0, BLOCK_C)
    inside = t < tiles
    t = t % tiles
    image = t // (tiles_h * tiles_w)
    if LONG:
        image = image.to(tl.int64)
    top, left = (t // tiles_w) % tiles_h * TILE, t % tiles_w * TILE
    rows = fits(top - pad_h, SIDE, in_h)[None, :]
    cols = fits(left - pad_w, SIDE, in_w)[None, :]
    first, last = split * c_share, min((split + 1) * c_share, channels)
    offsets, pixel, channel = _seen(
        image, group, top - pad_h, left - pad_w, first + c, channels, groups, in_h, in_w, LAST, LANES
    )
    # Blocks are powers of two: the 36 points of m = 4 are 16 + 16 + 4.
    of_block = (group * (SIDE * SIDE) * c_pitch + first + c)[None, :, None] * k_pitch + k[None, None, :]
    filters = u + of_block + tl.arange(0, 16)[:, None, None] * (c_pitch * k_pitch)
    last_filters = u + of_block + (32 + tl.arange(0, 4))[:, None, None] * (c_pitch * k_pitch)
    sums = tl.zeros((16, BLOCK_K, BLOCK_T), tl.float32)
    if TILE == 4:
        more_sums = tl.zeros((16, BLOCK_K, BLOCK_T), tl.float32)
        last_sums = tl.zeros((4, BLOCK_K, BLOCK_T), tl.float32)
    for start in range(first, last, BLOCK_C):
        known = c // LANES < (channels - start) // LANES if LAST else start + c < channels
        v = _transformed(x, offsets, rows, cols, known[:, None], in_w, pixel, TILE, SIDE)
        sums = _product(filters, v, 0, 16, sums, PRECISION, SHRINK)
        if TILE == 4:
            more_sums = _product(filters + 16 * c_pitch * k_pitch, v, 16, 16, more_sums, PRECISION, SHRINK)
            last_sums = _product(last_filters, v, 32, 4, last_sums, PRECISION, SHRINK)
            last_filters += BLOCK_C * k_pitch
        filters += BLOCK_C * k_pitch
        offsets += BLOCK_C * channel
    m = _unstack(tl.permute(sums, (1, 2, 0)), 16, BLOCK_K, BLOCK_T)
    if TILE == 4:
        m = m + _unstack(tl.permute(more_sums, (1, 2, 0)), 16, BLOCK_K, BLOCK_T)
        m = m + _unstack(tl.permute(last_sums, (1, 2, 0)), 4, BLOCK_K, BLOCK_T)
    part = split.to(tl.int64) * groups * kernels * (tiles // (tiles_h * tiles_w)) * (out_h * out_w)
    y += tl.multiple_of(part, VECTOR) if LAST else part
    _store(
        y, m, bias, image, group, k, top, left, inside, kernels, groups, out_h, out_w, SHRINK, TILE, LAST, VECTOR
    )  # fmt: skip


def candidates(shape: Convolution, output: tuple[int, ...], multiprocessors: int) -> list[Blocks2d]:
    """Return the block shapes worth timing, the likeliest first. TF32 and 16 bits leave no digits for m = 4."""
    filters, steps = shape.weight[0] // shape.groups, -(-shape.weight[1] // _CHANNELS)
    every = []
    for tile, block_k, block_t, warps, stages, resident, efficiency in _SHAPES:
        if tile == 4 and precision(shape) != "ieee":
            continue
        tiles = output[0] * -(-output[2] // tile) * -(-output[3] // tile)
        programs = -(-filters // block_k) * -(-tiles // block_t) * shape.groups
        work = _CHANNELS * block_t * ((tile + 2) ** 2 * block_k + _TRANSFORM_COST[tile])
        for splits in splits_for(programs, steps, multiprocessors, 1):
            blocks = Blocks2d(f"F{tile}", block_k, block_t, _CHANNELS, warps, stages, splits)
            every.append(Candidate(blocks, programs, steps, work, resident, efficiency))
    elements = output[0] * output[1] * output[2] * output[3]
    return ranked(every, multiprocessors, 4 * elements, TRIED)


def launch(
    x: torch.Tensor, packed: torch.Tensor, bias: torch.Tensor, y: torch.Tensor, shape: Convolution, blocks: Blocks2d
) -> None:
    """Convolve x with packed filters on the current stream; arguments as those of `direct.launch`."""
    *_, filters, out_h, out_w = y.shape
    images, in_channels, in_h, in_w = x.shape
    tile, groups, kernels, channels = tile_of(blocks), shape.groups, filters // shape.groups, shape.weight[1]
    tiles_h, tiles_w = triton.cdiv(out_h, tile), triton.cdiv(out_w, tile)
    tiles = images * tiles_h * tiles_w
    share = triton.cdiv(triton.cdiv(channels, blocks.channels), blocks.splits) * blocks.channels
    grid = (triton.cdiv(kernels, blocks.filters) * triton.cdiv(tiles, blocks.points), groups, blocks.splits)
    last, element_bytes = shape.layout == "nhwc", x.element_size()
    winograd_conv2d[grid](
        x, packed, bias, y, channels, kernels, in_h, in_w, out_h, out_w, tiles_h, tiles_w, tiles,
        *shape.padding, groups, packed.shape[2], packed.shape[1], share,
        TILE=tile, BLOCK_K=blocks.filters, BLOCK_T=blocks.points, BLOCK_C=blocks.channels,
        LONG=max(in_channels * in_h * in_w * images, y[0].numel()) >= LONG_ELEMENTS,
        PRECISION=precision(shape), SHRINK=SHRINK.get(shape.dtype, 1), LAST=last,
        LANES=lanes(element_bytes, channels) if last else 1, VECTOR=lanes(element_bytes, kernels) if last else 1,
        num_warps=blocks.warps, num_stages=blocks.stages,
    )  # fmt: skip
