"""Convolutions of 8-bit integers on the matrix unit, channels last (NHWC), with all that follows in the same kernel.

    total[p, k] = sum over taps (r, s) and channels c of w[k, r, s, c] · x[pixel (r, s) of p, c]       int32, exact
    y[p, k] = activation(total · scale[k] + bias[k] + added[p, k] · added_step)                        float32

y is rounded to int8, or to 16 bits. Numbers and their steps are in `numbers`; scale[k] is the step of the input times
that of the filter. For an output in int8 scale, bias and added_step are over its step.

A program does a box of images × rows × columns of output pixels, BLOCK_P in all, × BLOCK_K filters. Tensor descriptors
have Hopper's copy engine fetch the box that a tap sees, zeros outside the image, and store the output. With stride 2 a
descriptor shows an image as N × H/2 × 2 × W/2 × 2C: what a tap sees is then a box of every other row and column again.

Cost of P output pixels, C → K channels, R × S taps: a byte for each number of the input that a tap sees, P K + K C R S
bytes more at least, and P K more with an addition; 2 P K C R S operations, at twice the rate of 16 bits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from convscope.cudnn.shape import dimensions, output_extents
from convscope.kernels import autotune, following
from convscope.kernels.autotune import TunedBlocks
from convscope.kernels.channels_last.windows import Window
from convscope.kernels.eight_bits.numbers import LARGEST, nearest, rounded, steps_of
from convscope.kernels.following import follow

KINDS = ("", "relu")
_CHANNELS_OF, _FILTERS_OF = 32, 64  # channels and filters are multiples of these
_DEPTH_MOST = 128
_SHAPES = (  # pixels, filters, warps, stages, persistent
    (256, 128, 8, 3, True),
    (128, 128, 4, 3, True),
    (128, 128, 4, 3, False),
    (256, 64, 8, 3, True),
    (128, 64, 4, 4, True),
    (128, 64, 4, 4, False),
    (64, 64, 4, 4, False),
)
_SMALLEST = 64, 64
_SIZES = ["images", "out_h", "out_w", "filters", "channels", "pad"]


@dataclass(frozen=True)
class Blocks8:
    """A block shape: the box of output pixels of a program (images, rows, columns), its filters, channels a step.

    `persistent`: the programs that multiprocessors hold, two of 4 warps or one, do all boxes, one after another.
    """

    box: tuple[int, int, int]
    filters: int
    channels: int
    warps: int
    stages: int
    persistent: bool = False

    def __str__(self) -> str:
        more = ", persistent" if self.persistent else ""
        block = f"{dimensions(self.box)}x{self.filters}x{self.channels}"
        return f"int8 {block}, {self.warps} warps, {self.stages} stages{more}"


@triton.jit
def _seen(
    x, n, i, j, c, tap, pad, channels, KERNEL: tl.constexpr, STRIDE: tl.constexpr, BLOCK_P: tl.constexpr,
    BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Return what a tap sees of channels from c on, BLOCK_P × BLOCK_C."""
    r, s = tap // KERNEL - pad, tap % KERNEL - pad
    if STRIDE == 1:
        found = x.load([n, i + r, j + s, c])
    else:
        odd_r, odd_s = r & 1, s & 1
        found = x.load([n, i + ((r - odd_r) >> 1), odd_r, j + ((s - odd_s) >> 1), odd_s * channels + c])
    return found.reshape(BLOCK_P, BLOCK_C)


@triton.jit(do_not_specialize=_SIZES)
def int8_conv2d(
    x, w, added, y, scale, bias, added_step, images, out_h, out_w, filters, channels, pad, programs,
    KERNEL: tl.constexpr, STRIDE: tl.constexpr, ADDS: tl.constexpr, RELU: tl.constexpr, EIGHT: tl.constexpr,
    BOX_N: tl.constexpr, BOX_H: tl.constexpr, BOX_W: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_C: tl.constexpr,
    PERSISTENT: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Do boxes of pixels × BLOCK_K filters; x, w, added and y are tensor descriptors. EIGHT: y is int8."""
    BLOCK_P: tl.constexpr = BOX_N * BOX_H * BOX_W
    across, tiles_h, tiles_w = tl.cdiv(filters, BLOCK_K), tl.cdiv(out_h, BOX_H), tl.cdiv(out_w, BOX_W)
    tiles, blocks = tl.cdiv(images, BOX_N) * tiles_h * tiles_w * across, channels // BLOCK_C
    follow(EARLY)
    first = tl.program_id(0)
    for tile in tl.range(first, tiles if PERSISTENT else first + 1, programs, flatten=PERSISTENT):
        k, box = tile % across * BLOCK_K, tile // across
        j, i, n = box % tiles_w * BOX_W, box // tiles_w % tiles_h * BOX_H, box // (tiles_w * tiles_h) * BOX_N
        total = tl.zeros((BLOCK_P, BLOCK_K), tl.int32)
        for step in range(KERNEL * KERNEL * blocks):
            tap, c = step // blocks, step % blocks * BLOCK_C
            seen = _seen(x, n, i, j, c, tap, pad, channels, KERNEL, STRIDE, BLOCK_P, BLOCK_C)
            total = tl.dot(seen, w.load([k, step * BLOCK_C]).T, total, out_dtype=tl.int32)
        f = k + tl.arange(0, BLOCK_K)
        result = total.to(tl.float32) * tl.load(scale + f, mask=f < filters, other=0.0)[None, :]
        result += tl.load(bias + f, mask=f < filters, other=0.0)[None, :]
        if ADDS:
            result += added.load([n, i, j, k]).reshape(BLOCK_P, BLOCK_K).to(tl.float32) * added_step
        if RELU:
            result = tl.maximum(result, 0.0)
        if EIGHT:
            numbers = nearest(result, 0.0 if RELU else -127.0)
            y.store([n, i, j, k], numbers.reshape(BOX_N, BOX_H, BOX_W, BLOCK_K))
        else:
            y.store([n, i, j, k], result.to(y.dtype).reshape(BOX_N, BOX_H, BOX_W, BLOCK_K))


def takes(weight: torch.Tensor, window: Window, kind: str) -> bool:
    """Tell whether `Convolution8` is for filters K × C × R × S without groups, with this activation."""
    filters, channels, *kernel = weight.shape
    is_square = len({*kernel}) == len({*window.stride}) == len({*window.padding}) == 1
    fits = channels % _CHANNELS_OF == 0 and filters % _FILTERS_OF == 0 and kind in KINDS
    fits = fits and math.prod(weight.shape[1:]) * LARGEST**2 < 2**31  # of a sum in int32
    return is_square and fits and window.stride[0] in (1, 2) and window.dilation == (1, 1)


def takes_size(size: Sequence[int], window: Window) -> bool:
    """Tell whether `Convolution8` is for an input N × C × H × W: with stride 2 both extents are even."""
    return math.prod(size) > 0 and (window.stride == (1, 1) or size[2] % 2 == size[3] % 2 == 0)


class Convolution8:
    """A convolution of int8 numbers by blocks chosen on the card.

    Args:
        weight: filters K × C × R × S that `takes` wants, in any floating-point type; they are rounded here.
        bias: of each filter.
        kind: the activation, one of `KINDS`.
        step, added_step, out_step: of the input, of what is added, and of the output, which is in 16 bits with None.
    """

    def __init__(
        self, weight: torch.Tensor, bias: torch.Tensor, window: Window, kind: str, step: float,
        added_step: float = 1.0, out_step: float | None = None, dtype: torch.dtype = torch.float16,
    ) -> None:  # fmt: skip
        steps = steps_of(weight)
        self._weight = rounded(weight.detach(), steps.view(-1, 1, 1, 1)).permute(0, 2, 3, 1).flatten(1).contiguous()
        over = 1 / (out_step or 1.0)
        self._scale, self._bias = steps * (step * over), bias.detach().float() * over
        self._added_step = added_step * over
        self._window, self._kind = window, kind
        self._dtype = dtype if out_step is None else torch.int8

    def size(self, x: torch.Tensor) -> tuple[int, int]:
        """Return the rows and columns of the output."""
        window = self._window
        rows, columns = output_extents(x.shape[2:], window.kernel, window.padding, window.stride, window.dilation)
        return rows, columns

    def is_for(self, x: torch.Tensor, added: torch.Tensor | None) -> bool:
        """Tell whether an input N × C × H × W, and what is added, are tensors that the kernel takes."""
        if x.dtype != torch.int8 or not x.is_cuda or not takes_size(x.shape, self._window):
            return False
        lies = x.is_contiguous(memory_format=torch.channels_last)
        if added is not None:
            shape = (len(x), len(self._weight), *self.size(x))
            lies = lies and (added.dtype, added.shape) == (torch.int8, shape)
            lies = lies and added.is_contiguous(memory_format=torch.channels_last)
        return lies

    def exactly(self, x: torch.Tensor, added: torch.Tensor | None = None) -> torch.Tensor:
        """Return what `__call__` does, by PyTorch, on any device: the sums in float64, which holds them exactly."""
        window, channels = self._window, x.shape[1]
        weight = self._weight.view(-1, *window.kernel, channels).permute(0, 3, 1, 2).double()
        total = torch.nn.functional.conv2d(x.double(), weight, None, window.stride, window.padding).float()
        y = total * self._scale.view(-1, 1, 1) + self._bias.view(-1, 1, 1)
        y = y if added is None else y + added.float() * self._added_step
        y = torch.relu(y) if self._kind == "relu" else y
        y = rounded(y, 1.0) if self._dtype == torch.int8 else y.to(self._dtype)
        return y.contiguous(memory_format=torch.channels_last)

    def key(self, x: torch.Tensor, added: torch.Tensor | None) -> str:
        """Return the sizes and steps as text; blocks are chosen for each key."""
        window = self._window
        sizes = map(dimensions, (x.shape, self._weight.shape, window.kernel, window.stride, window.padding))
        ends = self._kind, "" if added is None else "added", str(self._dtype).removeprefix("torch.")
        return " ".join(("int8", *sizes, *ends))

    def _sees_one_pixel(self) -> bool:
        return self._window == Window((1, 1), (1, 1), (0, 0), (1, 1))

    def candidates(self, x: torch.Tensor, multiprocessors: int) -> list[Blocks8]:
        """Return the blocks to be timed, each with the box that wastes the fewest pixels.

        Left out are large blocks that leave a part of the card idle, and persistent ones where nothing follows one
        another, or that are half as wide as the filters allow.
        """
        x = _as_line(x) if self._sees_one_pixel() else x
        images, channels = x.shape[:2]
        rows, columns = self.size(x)
        depth = min(_DEPTH_MOST, channels & -channels)
        found = []
        for pixels, filters, warps, stages, persistent in _SHAPES:
            box = box_of(pixels, images, rows, columns)
            blocks = Blocks8(box, filters, depth, warps, stages, persistent)
            programs = _tiles((images, rows, columns), len(self._weight), blocks)
            is_wide = filters <= len(self._weight) and not (persistent and 2 * filters <= min(128, len(self._weight)))
            least = multiprocessors * _resident(blocks) + 1 if persistent else multiprocessors
            if is_wide and (programs >= least or (pixels, filters) == _SMALLEST):
                found.append(blocks)
        return found

    def choose(self, x: torch.Tensor, added: torch.Tensor | None) -> TunedBlocks[Blocks8]:
        """Return the fastest blocks for an input, from the cache on disk, or timed now.

        Raises:
            NothingFitsError: none runs on this card.
        """
        card = torch.cuda.get_device_properties(x.device)
        cache = autotune.BlockCache(autotune.cache_file(card.name, "int8_conv2d"), Blocks8)
        blocks = self.candidates(x, card.multi_processor_count)
        return cache.choose(self.key(x, added), blocks, lambda blocks: lambda: self(x, added, blocks))

    def __call__(self, x: torch.Tensor, added: torch.Tensor | None, blocks: Blocks8) -> torch.Tensor:
        """Return the output N × K × P × Q, channels last, of an input that `is_for` it."""
        if self._sees_one_pixel():
            y = self._by_boxes(_as_line(x), None if added is None else _as_line(added), blocks)
            return y.permute(0, 2, 3, 1).reshape(len(x), *x.shape[2:], -1).permute(0, 3, 1, 2)
        return self._by_boxes(x, added, blocks)

    def _by_boxes(self, x: torch.Tensor, added: torch.Tensor | None, blocks: Blocks8) -> torch.Tensor:
        images, channels = x.shape[:2]
        rows, columns = self.size(x)
        filters, stride = len(self._weight), self._window.stride[0]
        size = images, filters, rows, columns
        y = torch.empty(size, dtype=self._dtype, device=x.device, memory_format=torch.channels_last)
        box = list(blocks.box)
        programs = _tiles((images, rows, columns), filters, blocks)
        if blocks.persistent:
            programs = min(programs, _multiprocessors(x.device) * _resident(blocks))
        out = TensorDescriptor.from_tensor(y.permute(0, 2, 3, 1), [*box, blocks.filters])
        other = out if added is None else TensorDescriptor.from_tensor(added.permute(0, 2, 3, 1), out.block_shape)
        weight = TensorDescriptor.from_tensor(self._weight, [blocks.filters, blocks.channels])
        int8_conv2d[programs,](
            _shown(x, stride, box, blocks.channels), weight, other, out, self._scale, self._bias, self._added_step,
            images, rows, columns, filters, channels, self._window.padding[0], programs,
            KERNEL=self._window.kernel[0], STRIDE=stride, ADDS=added is not None, RELU=self._kind == "relu",
            EIGHT=self._dtype == torch.int8, BOX_N=box[0], BOX_H=box[1], BOX_W=box[2], BLOCK_K=blocks.filters,
            BLOCK_C=blocks.channels, PERSISTENT=blocks.persistent, num_warps=blocks.warps, num_stages=blocks.stages,
            **following.options(x),
        )  # fmt: skip
        return y


def _as_line(x: torch.Tensor) -> torch.Tensor:
    """Return N × C × H × W, channels last, as one image of one row of the same memory."""
    return x.permute(0, 2, 3, 1).reshape(1, 1, -1, x.shape[1]).permute(0, 3, 1, 2)


def box_of(pixels: int, images: int, rows: int, columns: int) -> tuple[int, int, int]:
    """Return images × rows × columns, powers of 2 of so many pixels in all, that need the fewest boxes.

    Of several the one with the most columns, then rows: their pixels lie together.
    """
    powers = [2**power for power in range(pixels.bit_length())]
    boxes = [(pixels // (h * w), h, w) for h in powers for w in powers if h * w <= pixels]
    sizes = images, rows, columns
    return min(boxes, key=lambda box: (math.prod(map(triton.cdiv, sizes, box)), -box[2], -box[1]))


def _tiles(sizes: tuple[int, int, int], filters: int, blocks: Blocks8) -> int:
    """Return the boxes of images × rows × columns and blocks of filters that blocks make of an output."""
    return math.prod(map(triton.cdiv, (*sizes, filters), (*blocks.box, blocks.filters)))


def _resident(blocks: Blocks8) -> int:
    """Return the programs that a multiprocessor holds."""
    return 2 if blocks.warps == 4 else 1


def _multiprocessors(device: torch.device) -> int:
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def _shown(x: torch.Tensor, stride: int, box: list[int], depth: int) -> Any:
    """Return the descriptor of an input N × C × H × W, channels last; with stride 2 as N × H/2 × 2 × W/2 × 2C."""
    images, channels, rows, columns = x.shape
    pixels = x.permute(0, 2, 3, 1)
    if stride == 1:
        return TensorDescriptor.from_tensor(pixels, [*box, depth])
    halves = pixels.reshape(images, rows // 2, 2, columns // 2, 2 * channels)
    return TensorDescriptor.from_tensor(halves, [box[0], box[1], 1, box[2], depth])
