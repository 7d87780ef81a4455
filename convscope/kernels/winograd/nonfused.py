"""Non-fused Winograd convolution: three kernels, with the transformed tiles in memory between them.

The fused kernel keeps all points of a block in registers, which makes its blocks small, and transforms the input again
for each block of filters. With many tiles (large batches) it is faster to write the transformed input to memory once
and to multiply in full-size blocks (`transforms` has the algorithm):

    for a chunk of tiles, of all images one after another:
        V[points, channels, tiles] = Bᵀ d B                            `winograd_input`
        M[points, filters, tiles] = U[points, filters, channels] · V   `winograd_product`, a product for each point
        Y = Aᵀ M A + bias, to the outputs of these tiles               `winograd_output`

V and M are (m + 2)² / m² times as large as input and output. Short chunks keep them in the L2 cache, so that only input
and output pass through the card's memory; long ones fill the card better. Both are timed.

Cost of N × C × H × W to K channels with m × m tiles, T = N ⌈H/m⌉ ⌈W/m⌉:
    operations   2 (m + 2)² C K T for the products; about 32 (m = 2) or 156 (m = 4) additions for each tile and channel,
                 and about 24 or 100 for each tile and filter
    bytes        b (C N H W + K N H W), and (m + 2)² T (2 b C + 8 K) for V and M, in the L2 cache or in memory
Layouts: NCHW and NHWC, input and output in the same. V and M have tiles innermost in NCHW, channels in NHWC.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from convscope.cudnn.shape import Convolution
from convscope.kernels import tf32
from convscope.kernels.blocks import LONG_ELEMENTS, Blocks2d, is_float32, lanes
from convscope.kernels.winograd.transforms import SHRINK, fits, precision, tile_of, times_at, times_bt

_CHUNK_BYTES = (40 * 2**20, 2**29)  # V and M within the L2 cache; what a chunk's workspace may be at most
_LEAST_FILTERS = 16  # of a group: with fewer the products' blocks are empty
LEAST_TILES = {2: 256, 4: 64}  # fewer leave the products' blocks empty
_STEP, _BLOCK = 16, 128  # a chunk's tiles are a multiple of the first, a long chunk's of the second
_TRANSFORMED = 512  # bytes of the input that a program transforms in each of its points

_PRODUCTS = {  # filters, tiles, channels, warps, stages
    "ieee": ((128, 64, 16, 4, 4), (64, 128, 16, 4, 2), (64, 64, 16, 4, 3), (32, 128, 16, 4, 3)),
    "tf32": ((64, 128, 32, 4, 3), (128, 64, 32, 4, 3)),
    "hmma": ((64, 128, 32, 4, 3), (128, 64, 32, 4, 3), (128, 128, 64, 8, 3)),
}
_TRIED = 3  # of these, with each chunk

# One binary serves all sizes: none of these is compiled in when it is 1 or a multiple of 16.
_SIZES = ["channels", "in_h", "in_w", "tiles_w", "tiles_each", "tiles", "first", "pad_h", "pad_w"]
_OUT_SIZES = ["kernels", "out_h", "out_w", "tiles_w", "tiles_each", "tiles", "first"]


@triton.jit
def _tiles(tiles_w, tiles_each, tiles, first, TILE: tl.constexpr, BLOCK_T: tl.constexpr, LONG: tl.constexpr):
    """Return BLOCK_T tiles of a chunk: place in it, whether there is such a tile, image, top and left of its output."""
    place = tl.program_id(0) * BLOCK_T + tl.arange(0, BLOCK_T)
    t = first + place
    image, at = t // tiles_each, t % tiles_each
    if LONG:
        image = image.to(tl.int64)
    return place, t < tiles, image, at // tiles_w * TILE, at % tiles_w * TILE


@triton.jit(do_not_specialize=_SIZES)
def winograd_input(
    x, v, channels, pitch, in_h, in_w, tiles_w, tiles_each, tiles, first, chunk, pad_h, pad_w,
    TILE: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_T: tl.constexpr, LONG: tl.constexpr, PRECISION: tl.constexpr,
    SHRINK: tl.constexpr, LAST: tl.constexpr,
):  # fmt: skip
    """Transform BLOCK_C channels × BLOCK_T tiles; program ids are (tiles, channels of a group, group).

    `tiles_each` are the tiles of an image, `first` the first of the chunk, `chunk` its tiles; with LAST `pitch` are the
    channels of all groups, else the elements of an image's channel.
    """
    SIDE: tl.constexpr = TILE + 2
    group = tl.program_id(2)
    c = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    place, inside, image, top, left = _tiles(tiles_w, tiles_each, tiles, first, TILE, BLOCK_T, LONG)
    top, left = top - pad_h, left - pad_w
    rows, cols = tl.where(inside, fits(top, SIDE, in_h), 0), fits(left, SIDE, in_w)
    is_channel = c < channels
    if LAST:
        x += group * channels
        seen = (image * in_h * in_w * pitch + (top * in_w + left) * pitch)[None, :] + c[:, None]
    else:
        x += group * channels * pitch
        of_image = image * tl.num_programs(2) * channels * pitch
        seen = (of_image + top * in_w + left)[None, :] + (c * pitch)[:, None]
    d = ()
    for i in tl.static_range(SIDE):
        for j in tl.static_range(SIDE):
            there = ((rows >> i) & (cols >> j) & 1) != 0
            step = (i * in_w + j) * pitch if LAST else i * in_w + j
            d = d + (tl.load(x + step + seen, mask=there[None, :] & is_channel[:, None], other=0.0).to(tl.float32),)
    half = ()
    for j in tl.static_range(SIDE):
        half = half + times_bt(d, j, SIDE, TILE)
    to = place[None, :] * channels + c[:, None] if LAST else c[:, None] * chunk + place[None, :]
    v += group * (SIDE * SIDE) * channels * chunk
    wanted = is_channel[:, None] & (place < chunk)[None, :]
    for i in tl.static_range(SIDE):
        row = times_bt(half, i, SIDE, TILE)
        for j in tl.static_range(SIDE):
            value = row[j]
            if SHRINK != 1:
                value = value * SHRINK
            if PRECISION == "tf32":
                value = tf32.rounded_block(value)
            tl.store(v + (i * SIDE + j) * channels * chunk + to, value, mask=wanted)


def _name(specialization):
    # In the kernel's name, because that is all that a profiler sees of the products' precision.
    precision = specialization.constants.get("PRECISION")
    return f"winograd_product_{precision}" if precision in ("tf32", "hmma") else "winograd_product"


@triton.jit(do_not_specialize=["channels", "kernels"], repr=_name)
def winograd_product(
    u, v, m, channels, kernels, chunk, k_pitch, c_pitch,
    BLOCK_K: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_C: tl.constexpr, PRECISION: tl.constexpr, LAST: tl.constexpr,
    LANES: tl.constexpr,
):  # fmt: skip
    """Multiply filters by tiles at one point of a group; program ids are (block, point of a group)."""
    k_blocks = tl.cdiv(kernels, BLOCK_K)
    point = tl.program_id(1)
    k = (tl.program_id(0) % k_blocks) * BLOCK_K + tl.arange(0, BLOCK_K)
    t = (tl.program_id(0) // k_blocks) * BLOCK_T + tl.arange(0, BLOCK_T)
    c = tl.arange(0, BLOCK_C)
    row = tl.max_contiguous(tl.multiple_of(k % k_pitch, 16), 16)  # the last block goes on at the first filter
    filters = u + point * c_pitch * k_pitch + c[:, None] * k_pitch + row[None, :]
    v += point * channels * chunk
    tile = t % chunk
    if LAST:
        seen = v + tl.multiple_of(tile[None, :] * (channels // LANES * LANES) + c[:, None], (LANES, 1))
    else:
        seen = v + c[:, None] * chunk + tl.max_contiguous(tl.multiple_of(tile, 8), 8)[None, :]
    acc = tl.zeros((BLOCK_K, BLOCK_T), tl.float32)
    for start in range(0, channels, BLOCK_C):
        left = channels - start
        there = c // LANES < left // LANES if LAST else c < left
        values = tl.load(seen, mask=there[:, None], other=0.0)
        factors = tl.load(filters, mask=(c < left)[:, None], other=0.0)
        if PRECISION == "hmma":
            acc = tl.dot(tl.trans(factors), values, acc)
        else:
            acc = tl.dot(tl.trans(factors), values, acc, input_precision=PRECISION)
        filters += BLOCK_C * k_pitch
        seen += BLOCK_C if LAST else BLOCK_C * chunk
    m += point * kernels * chunk
    to = t[None, :] * kernels + k[:, None] if LAST else k[:, None] * chunk + t[None, :]
    tl.store(m + to, acc, mask=(k < kernels)[:, None] & (t < chunk)[None, :])


@triton.jit
def _row(values, TILE: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_T: tl.constexpr):
    """Join the TILE blocks of a tuple along a new last axis."""
    if TILE == 2:
        return tl.join(values[0], values[1])
    else:
        pairs = tl.join(tl.join(values[0], values[2]), tl.join(values[1], values[3]))
        return tl.reshape(pairs, (BLOCK_K, BLOCK_T, TILE))


@triton.jit(do_not_specialize=_OUT_SIZES)
def winograd_output(
    m, bias, y, kernels, pitch, out_h, out_w, tiles_w, tiles_each, tiles, first, chunk,
    TILE: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_T: tl.constexpr, LONG: tl.constexpr, SHRINK: tl.constexpr,
    LAST: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Transform BLOCK_K filters × BLOCK_T tiles of products back; program ids are (tiles, filters of a group, group).

    `pitch` as in `winograd_input`, of the output. WIDE: TILE divides the rows of the output, in NCHW.
    """
    SIDE: tl.constexpr = TILE + 2
    group = tl.program_id(2)
    k = tl.program_id(1) * BLOCK_K + tl.arange(0, BLOCK_K)
    place, inside, image, top, left = _tiles(tiles_w, tiles_each, tiles, first, TILE, BLOCK_T, LONG)
    wanted = (k < kernels)[:, None] & ((place < chunk) & inside)[None, :]
    seen = place[None, :] * kernels + k[:, None] if LAST else k[:, None] * chunk + place[None, :]
    m += group * (SIDE * SIDE) * kernels * chunk
    points = ()
    for i in tl.static_range(SIDE * SIDE):
        points = points + (tl.load(m + i * kernels * chunk + seen, mask=wanted, other=0.0),)
    half = ()
    for j in tl.static_range(SIDE):
        half = half + times_at(points, j, SIDE, TILE)
    added = tl.load(bias + group * kernels + k, mask=k < kernels, other=0.0).to(tl.float32)[:, None]
    if LAST:
        y += group * kernels
        to = (image * out_h * out_w * pitch + (top * out_w + left) * pitch)[None, :] + k[:, None]
    else:
        y += group * kernels * pitch
        of_image = image * tl.num_programs(2) * kernels * pitch
        to = (of_image + top * out_w + left)[None, :] + (k * pitch)[:, None]
    for i in tl.static_range(TILE):
        row = times_at(half, i, TILE, TILE)
        done = ()
        for j in tl.static_range(TILE):
            value = row[j] if SHRINK == 1 else row[j] * (1 / (SHRINK * SHRINK))
            done = done + (value + added,)
        is_row = wanted & (top + i < out_h)[None, :]
        if WIDE:
            line = _row(done, TILE, BLOCK_K, BLOCK_T)
            spot = tl.multiple_of((to + i * out_w)[:, :, None] + tl.arange(0, TILE)[None, None, :], (1, 1, TILE))
            tl.store(y + spot, line, mask=is_row[:, :, None])
        else:
            for j in tl.static_range(TILE):
                there = is_row & (left + j < out_w)[None, :]
                tl.store(y + to + ((i * out_w + j) * pitch if LAST else i * out_w + j), done[j], mask=there)


def candidates(shape: Convolution, output: tuple[int, ...]) -> list[Blocks2d]:
    """Return the block shapes worth timing, the likeliest first; none where there are few tiles, or thin groups.

    In float32 those of m = 4 only, which multiplies least; TF32 and 16 bits leave no digits for it.
    """
    arithmetic = precision(shape)
    tile = 4 if arithmetic == "ieee" else 2
    tiles = output[0] * -(-output[2] // tile) * -(-output[3] // tile)
    if tiles < LEAST_TILES[tile] or shape.weight[0] // shape.groups < _LEAST_FILTERS:
        return []
    filters = max(shape.weight[0] // shape.groups, min(block[0] for block in _PRODUCTS[arithmetic]))
    products = [block for block in _PRODUCTS[arithmetic] if block[0] <= filters][:_TRIED]
    one = workspace_bytes(shape, Blocks2d(f"F{tile}", 0, 0, 0, 0, 0, chunk=1))
    chunks = {_chunk(tiles, one, most): None for most in reversed(_CHUNK_BYTES)}
    return [Blocks2d(f"F{tile}", *block, chunk=chunk) for chunk in chunks for block in products]


def _chunk(tiles: int, tile_bytes: int, most_bytes: int) -> int:
    """Return the tiles of a chunk: as few chunks of like size as the workspace permits."""
    chunks = -(-tiles * tile_bytes // most_bytes)
    each = -(-tiles // chunks)
    step = _STEP if each <= _BLOCK else _BLOCK
    return -(-each // step) * step


def workspace_bytes(shape: Convolution, blocks: Blocks2d) -> int:
    """Return the memory for V, in the tensors' type, and M, of float32, for one chunk."""
    points, element_bytes = (tile_of(blocks) + 2) ** 2, 4 if is_float32(shape) else 2
    return points * blocks.chunk * (element_bytes * shape.in_channels + 4 * shape.out_channels)


def launch(
    x: torch.Tensor, packed: torch.Tensor, bias: torch.Tensor, y: torch.Tensor, shape: Convolution, blocks: Blocks2d
) -> None:
    """Convolve x with packed filters on the current stream; arguments as those of `direct.launch`, without splits."""
    *_, filters, out_h, out_w = y.shape
    images, _, in_h, in_w = x.shape
    tile, groups, kernels, channels = tile_of(blocks), shape.groups, filters // shape.groups, shape.weight[1]
    tiles_w = triton.cdiv(out_w, tile)
    tiles_each = triton.cdiv(out_h, tile) * tiles_w
    tiles, batches = images * tiles_each, groups * (tile + 2) ** 2
    last, arithmetic, shrink = shape.layout == "nhwc", precision(shape), SHRINK.get(shape.dtype, 1)
    v = torch.empty(batches * channels * blocks.chunk, dtype=x.dtype, device=x.device)
    m = torch.empty(batches * kernels * blocks.chunk, dtype=torch.float32, device=x.device)
    program = _TRANSFORMED // x.element_size()  # channels × tiles
    block_c, block_k = (min(triton.next_power_of_2(n), program // 4) if last else 1 for n in (channels, kernels))
    common = {"TILE": tile, "LONG": max(x.numel(), y.numel()) >= LONG_ELEMENTS, "SHRINK": shrink, "LAST": last}
    for first in range(0, tiles, blocks.chunk):
        chunk = min(blocks.chunk, triton.cdiv(tiles - first, _STEP) * _STEP)
        where = tiles_w, tiles_each, tiles, first, chunk
        winograd_input[(triton.cdiv(chunk, program // block_c), triton.cdiv(channels, block_c), groups)](
            x, v, channels, channels * groups if last else in_h * in_w, in_h, in_w, *where, *shape.padding,
            BLOCK_C=block_c, BLOCK_T=program // block_c, PRECISION=arithmetic, **common,
        )  # fmt: skip
        winograd_product[(triton.cdiv(kernels, blocks.filters) * triton.cdiv(chunk, blocks.points), batches)](
            packed, v, m, channels, kernels, chunk, packed.shape[2], packed.shape[1],
            BLOCK_K=blocks.filters, BLOCK_T=blocks.points, BLOCK_C=blocks.channels, PRECISION=arithmetic, LAST=last,
            LANES=lanes(x.element_size(), channels) if last else 1, num_warps=blocks.warps, num_stages=blocks.stages,
        )  # fmt: skip
        winograd_output[(triton.cdiv(chunk, program // block_k), triton.cdiv(kernels, block_k), groups)](
            m, bias, y, kernels, kernels * groups if last else out_h * out_w, out_h, out_w, *where,
            BLOCK_K=block_k, BLOCK_T=program // block_k, WIDE=not last and out_w % tile == 0, **common,
        )  # fmt: skip
