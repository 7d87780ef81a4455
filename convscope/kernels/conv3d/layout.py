"""Layout of 3-D convolutions for the kernels beside this file: shapes, blocks, input and filters.

Tensors come and go as PyTorch has them, N × C × D × H × W, contiguous (`layout` "nchw") or in channels last ("nhwc").
Kernels that multiply matrices on Hopper's tensor cores want both factors with the summed index contiguous: the
channels. So an input that is not in channels last is copied to N × D × H × W × C first (in each call, inside what is
timed), and the filters to [filter, tap, channel] once. For TF32 both are rounded on the way (`kernels.tf32`). Along the
strides of a kernel 1 wide only what outputs read is copied. An input in channels last whose channels fill the steps of
the sum is read where it lies, in TF32 by the copy engine alone, which rounds what it fetches (`kernels.descriptors`);
for pointers it is copied.

The copy engine (`tuned.boxes`) fetches neighbouring pixels, not each second one. With a stride of two a tap sees pixels
that are all even or all odd: the *phases* of the input, as many along an axis as its stride. Within a phase a tap sees
neighbours. A copy has each phase as an image of its own. In place, which needs phases of one size, a phase is the image
with longer strides and another start, and five indices describe all of them: where one starts, counted in pixels, then
depth, height, width and channel.

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

import dataclasses
import functools
import math
from dataclasses import dataclass
from typing import Any

import torch

from convscope.cudnn.shape import Convolution
from convscope.kernels import reduction
from convscope.kernels.blocks import LONG_ELEMENTS
from convscope.kernels.blocks import Blocks3d as Blocks3d

LEAST_CHANNELS = 16  # of a step of a product
ALIGNED_BYTES = 16  # tensor descriptors and wide copies need strides that are multiples of this
FILTERS_PADDED = 128  # packed filters are a multiple of this, so that no load of them needs a mask
_FOLD_BELOW = 16
RUNS = (2, 4, 8)

Triple = tuple[int, ...]  # depth, height, width


@dataclass(frozen=True)
class Problem:
    """A convolution as a kernel for channels-last memory sees it; numbers of channels and filters are of a group.

    `size`, `kernel`, `stride`, `padding` and `output` are depth, height, width; `pitch` the distances in memory between
    starts, planes, rows and pixels, in elements. `sampled` says which pixels of an axis are read: each, each second …
    `phases` into how many they are divided along each axis. `size`, `stride` and `pitch` are of one phase of an image;
    there are `starts` of them to choose from, and `jump` says how many lie from one image to the next, and from phase
    to phase of depth, height and width. Of a copied input, `rows` is how many pixels a row has, `left` how many of them
    are zeros in front, `copied` how many channels. `window` is how many of the `channels` are a pixel's own; where it
    is folded the others are the next pixels'. A pixel of the output may be a run of outputs, which `filters` counts,
    too.
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
    starts: int
    jump: tuple[int, int, int, int]

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
    def elements(self) -> int:
        """The number of elements of the input, of all phases of all images."""
        return self.starts * self.pitch[0]


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
def problem(shape: Convolution, run: int = 1, in_phases: bool = False, in_place: bool = False) -> Problem:
    """Return a convolution as a kernel for channels-last memory sees it, with one of the `runs` of its outputs.

    Args:
        in_phases: have no strides, but phases of the input.
        in_place: those, where they lie; of a shape that `lies_in_phases`.
    """
    in_phases = in_phases or in_place
    images, groups, channels = shape.input[0], shape.groups, shape.input[1] // shape.groups
    kernel, stride, padding, dilation, output = (
        shape.kernel, shape.stride, shape.padding, shape.dilation, shape.output_size
    )  # fmt: skip
    folded = groups == 1 and channels < _FOLD_BELOW and dilation[2] == 1 and kernel[2] > 1
    sampled = _sampled(shape, in_phases)
    stride = each_divided(stride, sampled)
    phases = (*stride[:2], 1 if folded else stride[2]) if in_phases else (1, 1, 1)
    stride = each_divided(stride, phases)
    depth, height, width = each_divided(each_divided(shape.input[2:], sampled), phases)
    if folded:
        step, left = run * stride[2], padding[2]
        # Rows of the view begin `step` pixels apart, a multiple of 16 bytes.
        copied = rounded_up(channels, lanes(shape) // math.gcd(step if run > 1 else 1, lanes(shape)))
        window = (kernel[2] + step - stride[2]) * copied
        seen = rounded_up(window, LEAST_CHANNELS)
        output = *output[:2], output[2] // run
        # The last window of a row ends inside it; a convolution of width 1 steps by the stride.
        rows = max(left + width, (output[2] - 1) * step + -(-seen // copied))
        rows, width = rounded_up(rows, lanes(shape) // math.gcd(copied, lanes(shape))), output[2]
        kernel, stride, padding = (*kernel[:2], 1), (*stride[:2], 1), (*padding[:2], 0)
    else:
        seen, rows, step, left = rounded_up(channels, LEAST_CHANNELS), width, 1, 0
        window = seen
        copied = seen * groups
    pitch = (depth * height * rows * copied, height * rows * copied, rows * copied, step * copied)
    starts, jump = images * math.prod(phases), (1, images * phases[1] * phases[2], images * phases[2], images)
    found = Problem(
        groups, run * shape.weight[0] // groups, seen, images, (depth, height, width), kernel, stride, padding,
        dilation, output, pitch, copied, rows, left, folded, window, sampled, phases, starts, jump,
    )  # fmt: skip
    return _where_it_lies(found, shape) if in_place else found


def _where_it_lies(seen: Problem, shape: Convolution) -> Problem:
    """Return a problem that is as it is but for the memory of its input."""
    _, _, depth, height, width = shape.input
    of_d, of_h, of_w = (each * of * seen.copied for each, of in zip(seen.sampled, seen.phases, strict=True))
    pitch, pixels = (height * width * of_d, width * of_h, of_w), depth * height * width
    if math.prod(seen.phases) == 1:
        return dataclasses.replace(seen, pitch=(pixels * seen.copied, *pitch))
    jump = pixels, height * width, width, 1
    return dataclasses.replace(seen, pitch=(seen.copied, *pitch), starts=seen.images * pixels, jump=jump)


def lies_in_phases(shape: Convolution) -> bool:
    """Tell whether phases of an input can be read where it lies: each is as large as the others."""
    seen = problem(shape, in_phases=True)
    whole = all(size % phases == 0 for size, phases in zip(shape.input[2:], seen.phases, strict=True))
    few = shape.input[0] * math.prod(shape.input[2:]) < LONG_ELEMENTS
    return is_last(shape) and seen.copied == shape.input[1] and not seen.folded and whole and few


def _sampled(shape: Convolution, in_phases: bool) -> Triple:
    """Return which pixels of depth, height and width are read: each, or those at a stride."""
    if is_last(shape) and not rounds(shape) and not in_phases:
        return (1, 1, 1)  # pointers mostly read it where it lies
    axes = zip(shape.kernel, shape.stride, shape.padding, strict=True)
    return tuple(stride if taps == 1 and padding == 0 else 1 for taps, stride, padding in axes)


def vector(shape: Convolution) -> int:
    """Return the number of neighbouring pixels, or filters, that always lie together, aligned, in an output."""
    if is_last(shape):
        return 1 if shape.weight[0] // shape.groups % lanes(shape) else lanes(shape)
    return 1 if math.prod(shape.output[2:]) % 4 else 4


def lanes(shape: Convolution) -> int:
    """Return the number of elements in 16 bytes."""
    return ALIGNED_BYTES // int(getattr(torch, shape.dtype).itemsize)


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


def rounded_up(value: int, multiple: int) -> int:
    """Return the smallest multiple that is not below a value."""
    return -(-value // multiple) * multiple


def each_divided(values: Triple, by: Triple) -> Triple:
    """Return values divided by others, one by one, rounded up."""
    return tuple(-(-value // each) for value, each in zip(values, by, strict=True))
