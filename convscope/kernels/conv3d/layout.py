"""Layout of 3-D convolutions for the kernels beside this file: shapes, blocks, input and filters.

Tensors come and go as PyTorch has them, N × C × D × H × W, contiguous (`layout` "nchw") or in channels last ("nhwc").
Kernels that multiply matrices on Hopper's tensor cores want both factors with the summed index contiguous: the
channels. So an input that is not in channels last is copied to N × D × H × W × C first (in each call, inside what is
timed), and the filters to [filter, tap, channel] once. For TF32 both are rounded on the way (`kernels.tf32`): an input
in channels last is copied for that alone. In 16 bits, and in float32 without TF32, it is read where it lies, unless the
copy engine is to fetch it with a stride. Along the strides of a kernel 1 wide only what outputs read is copied.

The copy engine (`tuned.boxes`) fetches neighbouring pixels, not each second one. With a stride of two a tap sees pixels
that are all even or all odd, so the copy for it has the even ones together, an image of their own, and the odd ones:
the *phases* of the input, as many along an axis as its stride. Within a phase a tap sees neighbours.

A first layer has few channels, and a step of a matrix product wants at least 16. In channels-last memory the taps of a
kernel's row lie side by side: w · C + c. Seen from pixel w they are KW · C consecutive numbers, so a *view* of the same
memory whose rows overlap has KW · C channels and a kernel of width 1 (`Problem.folded`). Nothing is copied for it.
Where KW · C is no multiple of 16 a step goes on into the next pixels (`Problem.window`). Their filters are zero, which
is not enough: zero times infinity is NaN. So they are read as zeros, by a mask or by the limits of the descriptor.

Each row of such a view is read from the L2 cache for the filters of one output, few numbers for many bytes. A *run* of
neighbouring outputs shares most of it: two of them see 4 pixels of a row where each alone sees 3. So a row of the view
may be the KW + (run - 1) · stride pixels that a run sees, and each of its outputs has filters of its own, with zeros
for the pixels that it does not see: run · K filters, and a run-th of the rows. With 3 taps of 4 channels and runs of
two a row has the same 16 terms, and there are half the rows. (A kernel that takes runs must mind those zeros, too:
`tuned.boxes`.)
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl

from convscope.cudnn.shape import Convolution
from convscope.kernels import following, reduction
from convscope.kernels.blocks import LONG_ELEMENTS
from convscope.kernels.blocks import Blocks3d as Blocks3d
from convscope.kernels.following import follow
from convscope.kernels.tf32 import rounded, rounded_block, rounded_copy

LEAST_CHANNELS = 16  # of a step of a product
_ALIGNED_BYTES = 16  # tensor descriptors and wide copies need strides that are multiples of this
FILTERS_PADDED = 128  # packed filters are a multiple of this, so that no load of them needs a mask
_FOLD_BELOW = 16
RUNS, COPY_BLOCK = (2, 4, 8), 2048

Triple = tuple[int, ...]  # depth, height, width


@dataclass(frozen=True)
class Problem:
    """A convolution as a kernel for channels-last memory sees it; numbers of channels and filters are of a group.

    `size`, `kernel`, `stride`, `padding` and `output` are depth, height, width; `pitch` the distances in memory between
    images, planes, rows and pixels, in elements. `sampled` says which pixels of an axis are copied: each, each second …
    `phases` into how many images they are divided along each axis, `copied_images` are all of those. `size`, `stride`
    and `pitch` are of one of them. `rows` is how many pixels a row of the copied input has, `left` how many of them are
    zeros in front, `copied` how many channels. `window` is how many of the `channels` are a pixel's own; where it is
    folded the others are the next pixels'. A pixel of the output may be a run of outputs, which `filters` counts, too.
    """

    groups: int
    filters: int
    channels: int
    images: int
    size: Triple
    kernel: Triple
    stride: Triple
    padding: Triple
    dilation: Triple
    output: Triple
    pitch: tuple[int, int, int, int]
    copied: int
    rows: int
    left: int
    folded: bool
    window: int
    sampled: Triple
    phases: Triple

    @property
    def taps(self) -> int:
        """The number of positions of the kernel."""
        return math.prod(self.kernel)

    @property
    def pixels(self) -> int:
        """The number of output pixels of all images."""
        return self.images * math.prod(self.output)

    @property
    def unstrided(self) -> bool:
        """True where all pixels are copied, in their order: neither sampled nor in phases."""
        return self.sampled == self.phases == (1, 1, 1)

    @property
    def copied_images(self) -> int:
        """The number of images of the copied input: all phases of each."""
        return self.images * math.prod(self.phases)

    @property
    def elements(self) -> int:
        """The number of elements of the copied input."""
        return self.copied_images * self.pitch[0]


def by_axis(*names: str) -> list[str]:
    """Return "NAME_d", "NAME_h", "NAME_w" of each name: what kernels call the parts of a triple."""
    return [f"{name}_{axis}" for name in names for axis in "dhw"]


def rounds(shape: Convolution) -> bool:
    """Tell whether factors are rounded to TF32 before they are multiplied."""
    return shape.dtype == "float32" and shape.math == "tf32"


def is_last(shape: Convolution) -> bool:
    """Tell whether tensors lie in channels last."""
    return shape.layout == "nhwc"


def precision(shape: Convolution) -> str:
    """Return the input precision for `tl.dot`: "ieee" forbids TF32."""
    return "ieee" if shape.math == "fp32" and shape.dtype == "float32" else "tf32"


def of_products(shape: Convolution) -> dict[str, Any]:
    """Return what a kernel for N × C × D × H × W takes of the arithmetic of its products."""
    return {"PRECISION": precision(shape), "ROUND": rounds(shape)}


def runs(shape: Convolution) -> list[int]:
    """Return how many neighbouring outputs of a row may be computed as one: 1, and more in folded layers.

    Without the matrix unit there is nothing to gain: its kernels read other memory.
    """
    seen = problem(shape)
    shared = seen.folded and precision(shape) != "ieee"
    return [1, *(run for run in RUNS if shared and seen.output[2] % run == 0 and run * seen.filters <= FILTERS_PADDED)]


@functools.lru_cache(maxsize=1024)
def problem(shape: Convolution, run: int = 1, in_phases: bool = False) -> Problem:
    """Return a convolution as a kernel for channels-last memory sees it, with one of the `runs` of its outputs.

    Args:
        in_phases: have no strides, but phases of the input.
    """
    images, groups, channels = shape.input[0], shape.groups, shape.input[1] // shape.groups
    kernel, stride, padding, dilation, output = (
        shape.kernel, shape.stride, shape.padding, shape.dilation, shape.output_size
    )  # fmt: skip
    folded = groups == 1 and channels < _FOLD_BELOW and dilation[2] == 1 and kernel[2] > 1
    sampled = _sampled(shape, in_phases)
    stride = _each_divided(stride, sampled)
    phases = (*stride[:2], 1 if folded else stride[2]) if in_phases else (1, 1, 1)
    stride = _each_divided(stride, phases)
    depth, height, width = _each_divided(_each_divided(shape.input[2:], sampled), phases)
    if folded:
        step, left = run * stride[2], padding[2]
        # Rows of the view begin `step` pixels apart, a multiple of 16 bytes.
        copied = _up(channels, lanes(shape) // math.gcd(step if run > 1 else 1, lanes(shape)))
        window = (kernel[2] + step - stride[2]) * copied
        seen = _up(window, LEAST_CHANNELS)
        output = *output[:2], output[2] // run
        # The last window of a row ends inside it; a convolution of width 1 steps by the stride.
        rows = max(left + width, (output[2] - 1) * step + -(-seen // copied))
        rows, width = _up(rows, lanes(shape) // math.gcd(copied, lanes(shape))), output[2]
        kernel, stride, padding = (*kernel[:2], 1), (*stride[:2], 1), (*padding[:2], 0)
    else:
        seen, rows, step, left = _up(channels, LEAST_CHANNELS), width, 1, 0
        window = seen
        copied = seen * groups
    pitch = (depth * height * rows * copied, height * rows * copied, rows * copied, step * copied)
    return Problem(
        groups, run * shape.weight[0] // groups, seen, images, (depth, height, width), kernel, stride, padding,
        dilation, output, pitch, copied, rows, left, folded, window, sampled, phases,
    )  # fmt: skip


def _sampled(shape: Convolution, in_phases: bool) -> Triple:
    """Return which pixels of depth, height and width a copy of the input has: each, or those at a stride."""
    if is_last(shape) and not rounds(shape) and not in_phases:
        return (1, 1, 1)  # mostly read where it lies; in phases it is not
    axes = zip(shape.kernel, shape.stride, shape.padding, strict=True)
    return tuple(stride if taps == 1 and padding == 0 else 1 for taps, stride, padding in axes)


def pack(weight: torch.Tensor, shape: Convolution, run: int = 1) -> torch.Tensor:
    """Lay filters K × C/G × KD × KH × KW out as [group, filters, taps · channels], filters and channels padded.

    With a run, each filter stands there once for each output of it, one behind another.
    """
    seen = problem(shape, run)
    grouped = weight.unflatten(0, (shape.groups, -1)).permute(0, 1, 3, 4, 5, 2)  # G, K / G, KD, KH, KW, C / G
    if seen.folded:
        grouped = torch.nn.functional.pad(grouped, (0, seen.copied - grouped.shape[-1]))
        aside = [shape.stride[2] * output for output in range(run)]
        moved = [torch.nn.functional.pad(grouped, (0, 0, taps, aside[-1] - taps)) for taps in aside]
        grouped = torch.stack(moved, 2).flatten(1, 2).flatten(4, 5).unsqueeze(4)
    grouped = torch.nn.functional.pad(grouped, (0, seen.channels - grouped.shape[-1]))
    rows = rounded(grouped.flatten(2)) if rounds(shape) else grouped.flatten(2)
    return torch.nn.functional.pad(rows, (0, 0, 0, -rows.shape[1] % FILTERS_PADDED)).contiguous()


_COPY_SIZES = ["channels", "group_channels", "width", "rows", "left", "planes", "copied", "pixels", "depth", "height"]


@triton.jit(do_not_specialize=[*_COPY_SIZES, *by_axis("skip")])
def copy_channels_last(
    x, y, channels, group_channels, depth, height, width, rows, left, planes, copied, pixels, skip_d, skip_h, skip_w,
    BLOCK_S: tl.constexpr, BLOCK_C: tl.constexpr, LANES: tl.constexpr, LAST: tl.constexpr, ROUND: tl.constexpr,
    UNSTRIDED: tl.constexpr, PHASES: tl.constexpr, SAME_CHANNELS: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Copy BLOCK_S pixels × BLOCK_C channels of one image; program ids are (pixels, channels, image).

    Of an image of `pixels` pixels `depth` × `height` × `width` are copied. The copy has `planes` rows in all planes,
    `rows` pixels in a row, and `copied` channels, in units of LANES. Unless UNSTRIDED, planes, rows and pixels are read
    at a distance of `skip` pixels and written into PHASES. SAME_CHANNELS says that an input in channels last has the
    channels of the copy, none of them padding: then they are read LANES at a time. From other memory neighbouring
    threads are to read neighbouring pixels: the compiler goes by what is said to adjoin.
    """
    copied *= LANES
    at = tl.program_id(0) * BLOCK_S + tl.arange(0, BLOCK_S)
    c = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    image = tl.program_id(2).to(tl.int64)
    column = at % rows - left
    padded = copied // tl.cdiv(channels, group_channels)
    channel = c // padded * group_channels + c % padded
    inside = at < planes * rows
    there = inside & (column >= 0) & (column < width)
    real = (c % padded < group_channels) & (c < copied)
    if UNSTRIDED:
        pixel = at // rows * width + column
        place = image * planes * rows + at
    else:
        tall = tl.cdiv(height, PHASES[1]) * PHASES[1]
        d, h = at // rows // tall, at // rows % tall
        there = there & (d < depth) & (h < height)
        pixel = d * skip_d + h * skip_h + column * skip_w
        phase = (d % PHASES[0] * PHASES[1] + h % PHASES[1]) * PHASES[2] + at % rows % PHASES[2]
        row = d // PHASES[0] * (tall // PHASES[1]) + h // PHASES[1]
        place = (phase * tl.num_programs(2) + image) * (planes * rows // (PHASES[0] * PHASES[1] * PHASES[2]))
        place += row * (rows // PHASES[2]) + at % rows // PHASES[2]
    source = x + image * pixels * (copied if SAME_CHANNELS else channels)
    follow(EARLY)
    if SAME_CHANNELS:
        source += pixel[:, None].to(tl.int64) * copied + c[None, :]
        values = tl.load(source, mask=there[:, None] & (c // LANES < copied // LANES)[None, :], other=0.0)
    elif LAST:
        source += pixel[:, None].to(tl.int64) * channels + channel[None, :]
        values = tl.load(source, mask=there[:, None] & real[None, :], other=0.0)
    else:
        source += channel[:, None].to(tl.int64) * pixels + pixel[None, :]
        source = tl.max_contiguous(source, (1, 2))
        values = tl.trans(tl.load(source, mask=real[:, None] & there[None, :], other=0.0))
    if ROUND:
        values = rounded_block(values)
    place = y + place[:, None].to(tl.int64) * copied + c[None, :]
    tl.store(place, values, mask=inside[:, None] & (c // LANES < copied // LANES)[None, :])


def is_copied(shape: Convolution, in_phases: bool = False) -> bool:
    """Tell whether an input whose memory is aligned is copied before it is read."""
    return rounds(shape) or not _is_in_order(shape, in_phases)


def _is_in_order(shape: Convolution, in_phases: bool) -> bool:
    """Tell whether the numbers of an input lie as its `problem` has them."""
    seen = problem(shape, in_phases=in_phases)
    as_it_is = (seen.copied, seen.rows, seen.folded) == (shape.input[1], shape.input[-1], False)
    return is_last(shape) and seen.unstrided and as_it_is


def channels_last(x: torch.Tensor, shape: Convolution, run: int = 1, in_phases: bool = False) -> torch.Tensor:
    """Return the input as `problem` has it, flat, rounded where it is to be; a copy, on the current stream.

    What lies so already, and needs no rounding, is returned itself.
    """
    seen = problem(shape, run, in_phases)
    images, channels, _, height, width = x.shape
    if _is_in_order(shape, in_phases):
        lies = x.permute(0, 2, 3, 4, 1).view(-1)
        if rounds(shape):
            return rounded_copy(lies)
        return lies if x.data_ptr() % _ALIGNED_BYTES == 0 else lies.clone()
    copy = torch.empty(seen.elements, dtype=x.dtype, device=x.device)
    rows = seen.rows * seen.phases[2]
    planes = seen.pitch[0] * math.prod(seen.phases) // (seen.copied * rows)
    block_c = min(32, triton.next_power_of_2(seen.copied))
    block_s = min(COPY_BLOCK // block_c, triton.next_power_of_2(planes * rows))
    grid = (triton.cdiv(planes * rows, block_s), triton.cdiv(seen.copied, block_c), images)
    together = math.gcd(seen.copied, lanes(shape))
    by_d, by_h, by_w = seen.sampled
    copy_channels_last[grid](
        x, copy, channels, channels // shape.groups, *_each_divided(shape.input[2:], seen.sampled), rows, seen.left,
        planes, seen.copied // together, math.prod(x.shape[2:]), by_d * height * width, by_h * width, by_w,
        BLOCK_S=block_s, BLOCK_C=block_c, LANES=together, LAST=is_last(shape), ROUND=rounds(shape),
        UNSTRIDED=seen.unstrided, PHASES=seen.phases,
        SAME_CHANNELS=is_last(shape) and seen.copied == channels, num_warps=4, **following.options(x),
    )  # fmt: skip
    return copy


def vector(shape: Convolution) -> int:
    """Return the number of neighbouring pixels, or filters, that always lie together, aligned, in an output."""
    if is_last(shape):
        return 1 if shape.weight[0] // shape.groups % lanes(shape) else lanes(shape)
    return 1 if math.prod(shape.output[2:]) % 4 else 4


# What kernels take of a shape: one binary serves all sizes.
_OPTIONS = by_axis("out", "kernel", "stride", "pad", "dil")
PLANAR_SIZES = ["channels", "kernels", "groups", "pixels", "w_rows", "w_pitch", *by_axis("in"), *_OPTIONS]
CHANNELS_LAST_SIZES = [*PLANAR_SIZES, "window", "share", "pitch_n", *by_axis("size", "pitch")]


def launch_channels_last(
    kernel: Any, x: torch.Tensor, packed: torch.Tensor, shape: Convolution, blocks: Blocks3d, *last: int
) -> torch.Tensor:
    """Convolve N × C × D × H × W by a kernel for channels-last memory; its program ids are (block, group, split).

    It takes the pitches and the window of `Problem` in units of 16 bytes, which all of them are, and after them `last`.
    """
    copied, y, seen = channels_last(x, shape), split_output(x, shape, blocks.splits), problem(shape)
    grid = triton.cdiv(seen.pixels, blocks.pixels) * triton.cdiv(seen.filters, blocks.filters)
    kernel[grid, seen.groups, blocks.splits](
        copied, packed, y, seen.groups, seen.filters, seen.channels, *seen.size, *seen.output, *seen.kernel,
        *seen.stride, *seen.padding, *seen.dilation, seen.pixels, packed.shape[1], packed.shape[2] // blocks.depth,
        *(count // lanes(shape) for count in (*seen.pitch, seen.window)), *last, BLOCK_P=blocks.pixels,
        BLOCK_K=blocks.filters, BLOCK_C=blocks.depth, PRECISION=precision(shape), LANES=lanes(shape),
        VECTOR=vector(shape), LAST=is_last(shape), LONG=is_long(copied, y[0]), FOLDED=seen.folded,
        num_warps=blocks.warps, num_stages=blocks.stages, **following.options(x),
    )  # fmt: skip
    return add_splits(y, shape)


def lanes(shape: Convolution) -> int:
    """Return the number of elements in 16 bytes."""
    return _ALIGNED_BYTES // int(getattr(torch, shape.dtype).itemsize)


def depth_of(shape: Convolution, run: int = 1) -> int:
    """Return the number of terms of the sum in a step: 128 bytes of them where the channels allow it."""
    most = 8 * lanes(shape)
    return min(most, math.gcd(problem(shape, run).channels, most))


def split_output(x: torch.Tensor, shape: Convolution, splits: int) -> torch.Tensor:
    """Return memory for splits × N × K × D × H × W, K last where tensors have it: in float32 for partial sums."""
    dtype = x.dtype if splits == 1 else torch.float32
    images, filters, *size = shape.output
    output = (images, *size, filters) if is_last(shape) else (images, filters, *size)
    return torch.empty((splits, *output), dtype=dtype, device=x.device)


def add_splits(parts: torch.Tensor, shape: Convolution) -> torch.Tensor:
    """Return N × K × D × H × W: the partial sums of a split reduction, added up always in the same order."""
    output = parts[0] if parts.shape[0] == 1 else reduction.total(parts, getattr(torch, shape.dtype))
    return output.permute(0, 4, 1, 2, 3) if is_last(shape) else output


def is_long(*tensors: torch.Tensor) -> bool:
    """Tell whether elements are counted in 64 bits."""
    return max(tensor.numel() for tensor in tensors) >= LONG_ELEMENTS


def _up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


def _each_divided(values: Triple, by: Triple) -> Triple:
    """Return values divided by others, one by one, rounded up."""
    return tuple(-(-value // each) for value, each in zip(values, by, strict=True))
