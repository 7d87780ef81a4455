"""Kernels for tensor descriptors: boxes of pixels, and slices of them, whose input the copy engine fetches (`gemm`).

A layer with few channels may have its outputs in runs (`layout`). Then a number of the input meets zeros in the filters
of the outputs that do not see it, which is no harm unless the number is not finite. So each program says whether all
its sums are finite, and `gemm_apart`, launched behind it, computes the others once more, output by output.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from convscope.cudnn.shape import Convolution
from convscope.kernels import descriptors, following
from convscope.kernels.conv3d import layout
from convscope.kernels.conv3d.copies import inputs
from convscope.kernels.conv3d.layout import Blocks3d
from convscope.kernels.conv3d.places import are_filters, next_step, place_in
from convscope.kernels.conv3d.tuned.candidates import programs_of
from convscope.kernels.following import follow

_CHECKED = 128  # programs that one of `gemm_apart` looks at
_REGISTERS_MOST = 192  # of a thread, for sums: of 255

_BOX_SIZES = [
    *("kernels", "blocks", "jump", "kernel_h", "kernel_w", "groups", "w_rows", "steps", "share", "outputs"),
    *layout.by_axis("jump", "out", "pad", "dil", "tiles"),
]


@triton.jit
def _added(acc, values, filters, SWAPPED: tl.constexpr, PRECISION: tl.constexpr):
    """Return acc + values · filtersᵀ, turned over if `SWAPPED`."""
    if SWAPPED:
        acc = tl.dot(filters, values.T, acc, input_precision=PRECISION)
    else:
        acc = tl.dot(values, filters.T, acc, input_precision=PRECISION)
    return acc


@triton.jit
def _store(
    acc, y, image, d0, h0, w0, group, groups, k0, kernels, out_d, out_h, out_w, chosen,
    BOX_D: tl.constexpr, BOX_H: tl.constexpr, BOX_W: tl.constexpr, RUN: tl.constexpr, SWAPPED: tl.constexpr,
    VECTOR: tl.constexpr, LAST: tl.constexpr, LONG: tl.constexpr,
):  # fmt: skip
    """Store the sums of a box of pixels, each a RUN of outputs: of each run the one that is `chosen`, or all (-1)."""
    BLOCK_P: tl.constexpr = BOX_D * BOX_H * BOX_W
    sums = acc.T if SWAPPED else acc
    FILTERS: tl.constexpr = sums.shape[1] // RUN
    if RUN > 1:
        sums = sums.reshape(BLOCK_P, FILTERS, RUN).permute(0, 2, 1).reshape(BLOCK_P * RUN, FILTERS)
    i = tl.arange(0, BLOCK_P * RUN)
    ROW: tl.constexpr = BOX_W * RUN
    kernels, out_w = kernels // RUN, out_w * RUN
    k = k0 // RUN + tl.arange(0, FILTERS)
    d, h, v = d0 + i // (BOX_H * ROW), h0 + i // ROW % BOX_H, w0 * RUN + i % ROW
    # The compiler does not see that neighbouring pixels are wanted together, and would store them one by one.
    PIXELS: tl.constexpr = 1 if LAST else VECTOR
    wanted = tl.max_constancy((d < out_d) & (h < out_h) & (v // PIXELS < tl.cdiv(out_w, PIXELS)), [PIXELS])
    if chosen >= 0:
        wanted = wanted & (i % RUN == chosen)
    out_plane = out_d * out_h * out_w
    if LONG:
        image = image.to(tl.int64)
    place = place_in(image, group, groups, (d * out_h + h) * out_w + v, k, kernels, out_plane, VECTOR, LAST)
    tl.store(y + place, sums, mask=wanted[:, None] & are_filters(k, kernels, VECTOR, LAST)[None, :])


@triton.jit
def _are_finite(acc):
    """Return 1 where all sums of a block are finite, else 0."""
    return (tl.max(tl.max((acc - acc != 0.0).to(tl.int32), 1), 0) == 0).to(tl.int8)


@triton.jit
def _box_of(number, tiles_d, tiles_h, tiles_w, BOX_D: tl.constexpr, BOX_H: tl.constexpr, BOX_W: tl.constexpr):
    """Return the image, and the first depth, row and column, of a box by its number."""
    w0, h0 = number % tiles_w * BOX_W, number // tiles_w % tiles_h * BOX_H
    return number // (tiles_w * tiles_h * tiles_d), number // (tiles_w * tiles_h) % tiles_d * BOX_D, h0, w0


@triton.jit
def _tap_position(first, tap, pad, dil, PHASES: tl.constexpr):
    """Return where along an axis a tap sees the input from output `first`, and in which of PHASES."""
    at = tap * dil - pad
    if PHASES == 1:
        return first + at, 0
    phase = (at % PHASES + PHASES) % PHASES  # of a remainder with the sign of `at`
    return first + (at - phase) // PHASES, phase


@triton.jit
def _place(
    start, jump_d, jump_h, jump_w, d0, h0, w0, r, s, t, pad_d, pad_h, pad_w, dil_d, dil_h, dil_w,
    PHASES: tl.constexpr,
):  # fmt: skip
    """Return the start (of an image, or a phase of it), depth, row and column where a tap sees a box of outputs."""
    d, phase_d = _tap_position(d0, r, pad_d, dil_d, PHASES[0])
    h, phase_h = _tap_position(h0, s, pad_h, dil_h, PHASES[1])
    v, phase_w = _tap_position(w0, t, pad_w, dil_w, PHASES[2])
    return start + phase_d * jump_d + phase_h * jump_h + phase_w * jump_w, d, h, v


@triton.jit(do_not_specialize=_BOX_SIZES)
def gemm_boxes(
    x, w, y, finite, kernels, blocks, jump, jump_d, jump_h, jump_w, out_d, out_h, out_w, kernel_h, kernel_w,
    pad_d, pad_h, pad_w, dil_d, dil_h, dil_w, tiles_d, tiles_h, tiles_w, groups, w_rows, steps, share, outputs,
    BOX_D: tl.constexpr, BOX_H: tl.constexpr, BOX_W: tl.constexpr, RUN: tl.constexpr, BLOCK_K: tl.constexpr,
    BLOCK_C: tl.constexpr, PRECISION: tl.constexpr, VECTOR: tl.constexpr, LAST: tl.constexpr, LONG: tl.constexpr,
    PHASES: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Do one box of pixels × BLOCK_K filters over `share` steps; program ids are (block, group, split).

    `x` and `w` are tensor descriptors, `blocks` the blocks of channels of a group, `outputs` the elements of a split;
    `jump` leads from image to image and from phase to phase (`layout.Problem`). Where a pixel is a RUN of outputs,
    `finite` tells `gemm_apart` of each program whether its sums are.
    """
    BLOCK_P: tl.constexpr = BOX_D * BOX_H * BOX_W
    k_blocks = tl.cdiv(kernels, BLOCK_K)
    group, split = tl.program_id(1), tl.program_id(2)
    k0 = tl.program_id(0) % k_blocks * BLOCK_K
    image, d0, h0, w0 = _box_of(tl.program_id(0) // k_blocks, tiles_d, tiles_h, tiles_w, BOX_D, BOX_H, BOX_W)
    first = split * share
    last = min(first + share, steps)
    tl.assume(first < last)  # or a path around the loop sets the sums, and the assembler has each product wait
    SWAPPED: tl.constexpr = BLOCK_K >= 64
    acc = tl.zeros((BLOCK_K, BLOCK_P) if SWAPPED else (BLOCK_P, BLOCK_K), tl.float32)
    tap, start = first // blocks, first % blocks
    r, s, t = tap // (kernel_h * kernel_w), tap // kernel_w % kernel_h, tap % kernel_w
    follow(EARLY)
    for step in range(first, last):
        source, d, h, v = _place(
            image * jump, jump_d, jump_h, jump_w, d0, h0, w0, r, s, t, pad_d, pad_h, pad_w, dil_d, dil_h, dil_w,
            PHASES,
        )  # fmt: skip
        values = x.load([source, d, h, v, (group * blocks + start) * BLOCK_C]).reshape(BLOCK_P, BLOCK_C)
        filters = w.load([group * w_rows + k0, step * BLOCK_C])
        r, s, t, start = next_step(r, s, t, start, 1, blocks, kernel_h, kernel_w)
        acc = _added(acc, values, filters, SWAPPED, PRECISION)
    if RUN > 1:
        tl.store(finite + split * tl.num_programs(0) + tl.program_id(0), _are_finite(acc))
    y += tl.multiple_of(split.to(tl.int64) * outputs, VECTOR)
    _store(
        acc, y, image, d0, h0, w0, group, groups, k0, kernels, out_d, out_h, out_w, -1, BOX_D, BOX_H, BOX_W, RUN,
        SWAPPED, VECTOR, LAST, LONG,
    )  # fmt: skip


@triton.jit(do_not_specialize=[*_BOX_SIZES, "programs", "window", "aside"])
def gemm_apart(
    x, w, y, finite, kernels, blocks, jump, jump_d, jump_h, jump_w, out_d, out_h, out_w, kernel_h, kernel_w,
    pad_d, pad_h, pad_w, dil_d, dil_h, dil_w, tiles_d, tiles_h, tiles_w, w_rows, steps, share, outputs,
    programs, window, aside,
    TAPS: tl.constexpr, SLICES: tl.constexpr, BOX_D: tl.constexpr, BOX_H: tl.constexpr, BOX_W: tl.constexpr,
    RUN: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_C: tl.constexpr, PRECISION: tl.constexpr, VECTOR: tl.constexpr,
    LAST: tl.constexpr, LONG: tl.constexpr, PHASES: tl.constexpr, EARLY: tl.constexpr, EACH: tl.constexpr,
):  # fmt: skip
    """Compute once more, each output of a run by its own terms alone, what EACH of `programs` found not finite.

    A number that is not finite, times the zero of a filter whose taps lie elsewhere, is NaN. As `gemm_boxes` and
    `gemm_slices`; of one group, `window` the terms of one output of a run, each `aside` further than the one before.
    """
    split, begin = tl.program_id(1), tl.program_id(0) * EACH
    numbers = begin + tl.arange(0, EACH)
    row = finite + split * programs
    follow(EARLY)
    if tl.min(tl.load(row + numbers, mask=numbers < programs, other=1), 0) == 0:
        BLOCK_P: tl.constexpr = BOX_D * BOX_H * BOX_W
        k_blocks = tl.cdiv(kernels, BLOCK_K)
        first = split * share
        last = min(first + share, steps)
        y += tl.multiple_of(split.to(tl.int64) * outputs, VECTOR)
        for part in range(EACH * SLICES * RUN):
            number, output = begin + part // (SLICES * RUN), part % RUN
            if tl.load(row + number, mask=number < programs, other=1) == 0:
                image, d0, h0, w0 = _box_of(number // k_blocks, tiles_d, tiles_h, tiles_w, BOX_D * SLICES, BOX_H, BOX_W)
                d0 += part // RUN % SLICES
                k0 = number % k_blocks * BLOCK_K
                acc = tl.zeros((BLOCK_P, BLOCK_K), tl.float32)
                for at in range(TAPS * (last - first)):
                    step = at // (last - first) * steps + first + at % (last - first)
                    tap, c = step // blocks, step % blocks * BLOCK_C
                    r, s, t = tap // (kernel_h * kernel_w), tap // kernel_w % kernel_h, tap % kernel_w
                    source, d, h, v = _place(
                        image * jump, jump_d, jump_h, jump_w, d0, h0, w0, r, s, t, pad_d, pad_h, pad_w,
                        dil_d, dil_h, dil_w, PHASES,
                    )  # fmt: skip
                    term = c + tl.arange(0, BLOCK_C) - output * aside
                    values = x.load([source, d, h, v, c]).reshape(BLOCK_P, BLOCK_C)
                    values = tl.where(((term >= 0) & (term < window))[None, :], values, 0.0)
                    acc = _added(acc, values, w.load([k0, step * BLOCK_C]), False, PRECISION)
                _store(
                    acc, y, image, d0, h0, w0, 0, 1, k0, kernels, out_d, out_h, out_w, output, BOX_D, BOX_H, BOX_W, RUN,
                    False, VECTOR, LAST, LONG,
                )  # fmt: skip


@triton.jit
def _replaced(values, at: tl.constexpr, value):
    """Return a tuple with another value in one place."""
    return values[:at] + (value,) + values[at + 1 :]


@triton.jit(do_not_specialize=_BOX_SIZES)
def gemm_slices(
    x, w, y, finite, kernels, blocks, jump, jump_d, jump_h, jump_w, out_d, out_h, out_w, kernel_h, kernel_w,
    pad_d, pad_h, pad_w, dil_d, dil_h, dil_w, tiles_d, tiles_h, tiles_w, groups, w_rows, steps, share, outputs,
    TAPS: tl.constexpr, SLICES: tl.constexpr, SUMS: tl.constexpr, BOX_H: tl.constexpr, BOX_W: tl.constexpr,
    RUN: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_C: tl.constexpr, PRECISION: tl.constexpr, VECTOR: tl.constexpr,
    LAST: tl.constexpr, LONG: tl.constexpr, PHASES: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Do SLICES boxes of height × width, one behind another, × BLOCK_K filters; as `gemm_boxes`.

    `steps` are those of one tap in depth, of which there are TAPS, `dil_d` is 1. Each slice has SUMS sums, one or one
    for each tap in depth: a product waits for the one before it in its sum.
    """
    BLOCK_P: tl.constexpr = BOX_H * BOX_W
    k_blocks = tl.cdiv(kernels, BLOCK_K)
    group, split = tl.program_id(1), tl.program_id(2)
    k0 = tl.program_id(0) % k_blocks * BLOCK_K
    image, d0, h0, w0 = _box_of(tl.program_id(0) // k_blocks, tiles_d, tiles_h, tiles_w, SLICES, BOX_H, BOX_W)
    first = split * share
    last = min(first + share, steps)
    tl.assume(first < last)  # or a path around the loop sets the sums, and the assembler has each product wait
    SWAPPED: tl.constexpr = BLOCK_K >= 64
    sums = ()
    for _ in tl.static_range(SLICES * SUMS):
        sums = sums + (tl.zeros((BLOCK_K, BLOCK_P) if SWAPPED else (BLOCK_P, BLOCK_K), tl.float32),)
    follow(EARLY)
    for step in range(first, last):
        tap, c = step // blocks, (group * blocks + step % blocks) * BLOCK_C
        source, d, h, v = _place(
            image * jump, jump_d, jump_h, jump_w, d0, h0, w0, 0, tap // kernel_w, tap % kernel_w,
            pad_d, pad_h, pad_w, 1, dil_h, dil_w, PHASES,
        )  # fmt: skip
        filters = ()
        for r in tl.static_range(TAPS):
            filters = filters + (w.load([group * w_rows + k0, (r * steps + step) * BLOCK_C]),)
        for z in tl.static_range(SLICES + TAPS - 1):
            values = x.load([source, d + z, h, v, c]).reshape(BLOCK_P, BLOCK_C)
            for r in tl.static_range(TAPS):
                if z >= r and z - r < SLICES:
                    added = _added(sums[(z - r) * SUMS + r % SUMS], values, filters[r], SWAPPED, PRECISION)
                    sums = _replaced(sums, (z - r) * SUMS + r % SUMS, added)
    y += tl.multiple_of(split.to(tl.int64) * outputs, VECTOR)
    all_finite = tl.full((), 1, tl.int8)
    for z in tl.static_range(SLICES):
        total: tl.tensor = sums[z * SUMS]
        for r in tl.static_range(1, SUMS):
            total += sums[z * SUMS + r]
        if RUN > 1:
            all_finite = all_finite & _are_finite(total)
        _store(
            total, y, image, d0 + z, h0, w0, group, groups, k0, kernels, out_d, out_h, out_w, -1, 1, BOX_H, BOX_W, RUN,
            SWAPPED, VECTOR, LAST, LONG,
        )  # fmt: skip
    if RUN > 1:
        tl.store(finite + split * tl.num_programs(0) + tl.program_id(0), all_finite)


def sums(blocks: Blocks3d, taps: int) -> int:
    """Return the number of sums of "slices" for each output: one a tap in depth where the registers hold them."""
    registers = blocks.pixels * blocks.filters * taps // (32 * blocks.warps)
    return taps if registers <= _REGISTERS_MOST else 1


def shares(steps: int, splits: int) -> tuple[int, int]:
    """Return the steps of a split and the number of splits, at most `splits`, of which none is empty."""
    share = triton.cdiv(steps, splits)
    return share, triton.cdiv(steps, share)


def convolve(x: torch.Tensor, packed: torch.Tensor, shape: Convolution, blocks: Blocks3d) -> torch.Tensor:
    """Convolve N × C × D × H × W by "boxes" or "slices" on the current stream; filters as `filters.pack` has them."""
    source = inputs.fetched(x, shape, blocks.run)
    seen, (box_d, box_h, box_w) = source.problem, blocks.box
    slices, programs = blocks.variant == "slices", programs_of(seen, blocks) // seen.groups
    taps = seen.kernel[0] if slices else 1
    tiles = [-(-extent // side) for extent, side in zip(seen.output, blocks.box, strict=True)]
    steps = packed.shape[2] // blocks.depth // taps
    share, splits = shares(steps, blocks.splits)
    y = layout.split_output(x, shape, splits)
    size, block = [seen.starts, *seen.size, seen.window * seen.groups], [1 if slices else box_d, box_h, box_w]
    view = descriptors.of(source.values, size, [*seen.pitch, 1], [1, *block, blocks.depth], source.to_round)
    filters = TensorDescriptor.from_tensor(packed.flatten(0, 1), [blocks.filters, blocks.depth])
    finite = torch.empty(programs * splits if blocks.run > 1 else 1, dtype=torch.int8, device=x.device)
    common = (
        view, filters, y, finite, seen.filters, seen.channels // blocks.depth, *seen.jump, *seen.output,
        *seen.kernel[1:], *seen.padding, *seen.dilation, *tiles,
    )  # fmt: skip
    sizes = packed.shape[1], steps, share, y[0].numel()
    constants = {
        "BOX_H": box_h, "BOX_W": box_w, "RUN": blocks.run, "BLOCK_K": blocks.filters, "BLOCK_C": blocks.depth,
        "PRECISION": layout.precision(shape), "VECTOR": _vector(shape, blocks), "LAST": layout.is_last(shape),
        "LONG": layout.is_long(y[0]), "PHASES": seen.phases, "num_warps": blocks.warps, **following.options(x),
    }  # fmt: skip
    kernel, variant = gemm_boxes, {"BOX_D": box_d}
    if slices:
        kernel, variant = gemm_slices, {"TAPS": taps, "SLICES": box_d, "SUMS": sums(blocks, taps)}
    kernel[programs, seen.groups, splits](
        *common, seen.groups, *sizes, num_stages=blocks.stages, **variant, **constants
    )
    if blocks.run > 1:
        aside = shape.stride[2] * seen.copied
        gemm_apart[triton.cdiv(programs, _CHECKED), splits](
            *common, *sizes, programs, seen.window - (blocks.run - 1) * aside, aside, TAPS=taps,
            SLICES=box_d if slices else 1, BOX_D=1 if slices else box_d, EACH=_CHECKED, num_stages=1, **constants,
        )  # fmt: skip
    return layout.add_splits(y, shape)


def _vector(shape: Convolution, blocks: Blocks3d) -> int:
    """Return the number of neighbours in a box that always lie together, aligned: pixels of a row, or filters."""
    if layout.is_last(shape):
        return layout.vector(shape)
    return 1 if shape.output[-1] % 4 or blocks.box[2] * blocks.run % 4 else 4
