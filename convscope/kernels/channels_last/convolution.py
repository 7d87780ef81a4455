"""Convolution with bias, addition and activation in one kernel, channels last (NHWC), in 16 bits on the matrix unit.

    y[n, i, j, k] = f(bias[k] + added[n, i, j, k] + sum over r, s, c of w[k, r, s, c] · x[n, row(i, r), col(j, s), c])
    row(i, r) = i · stride + r · dilation - padding, and so col

Made for few pixels, as of one image: there a library's kernels have too few programs for the card, and each walks
alone through a long sum. A program does BLOCK_P pixels × BLOCK_K filters and a part of the sum; the parts of a block
are added in the same kernel (`shares`). Products are exact, sums are of float32, rounded once at the end.

Cost of N × C × H × W to K channels, P output pixels an image, R × S taps, b bytes an element: 2 N P K C R S operations;
b (N C H W + N P K + K C R S) bytes at least, of the L2 cache b N P K C R S (1 / BLOCK_P + 1 / BLOCK_K), and 8 N P K for
each part.
"""

from __future__ import annotations

import math
from functools import partial

import torch
import triton
import triton.language as tl

from convscope.cudnn.shape import dimensions
from convscope.kernels import autotune, following
from convscope.kernels.autotune import TunedBlocks
from convscope.kernels.blocks import Blocks2d, splits_for
from convscope.kernels.channels_last.activations import activated
from convscope.kernels.channels_last.shares import Shares, add_up
from convscope.kernels.channels_last.windows import Window
from convscope.kernels.following import follow

DTYPES = (torch.float16, torch.bfloat16)
_LANES = 8  # channels that are read together: 16 bytes
_LONG = 2**31
_LEAST_STEPS = 2  # of a part
_SPLITS_MOST, _LARGE = 8, 64 * 64
_FEWEST, _MANY = 0.4, 12  # programs a multiprocessor
_SHAPES = (  # pixels, filters, channels, warps, stages
    (128, 128, 64, 8, 3), (128, 64, 64, 4, 3), (64, 128, 64, 4, 3), (64, 64, 64, 4, 3), (64, 32, 64, 4, 3),
    (32, 64, 64, 4, 3), (32, 32, 128, 4, 3), (16, 64, 128, 4, 3),
)  # fmt: skip
_SIZES = [
    "eighths", "filter_eighths", "in_h", "in_w", "out_h", "out_w", "pixels", "kernel_h", "kernel_w", "stride_h",
    "stride_w", "pad_h", "pad_w", "dil_h", "dil_w", "parts",
]  # fmt: skip


@triton.jit(do_not_specialize=_SIZES)
def conv2d_last(
    x, w, bias, added, y, stored, arrived, eighths, filter_eighths, in_h, in_w, out_h, out_w, pixels, kernel_h,
    kernel_w, stride_h, stride_w, pad_h, pad_w, dil_h, dil_w, parts,
    ADD: tl.constexpr, KIND: tl.constexpr, WHOLE: tl.constexpr, EARLY: tl.constexpr,
    BLOCK_P: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Do one part of the sum of BLOCK_P pixels × BLOCK_K filters; program ids are (block, part).

    Channels and filters come as eighths, so that the compiler knows them to be multiples of 8. WHOLE: BLOCK_C divides
    the channels and BLOCK_K the filters.
    """
    block, part = tl.program_id(0), tl.program_id(1)
    channels, filters = eighths * 8, filter_eighths * 8
    across, steps = tl.cdiv(filters, BLOCK_K), tl.cdiv(channels, BLOCK_C)
    p = block // across * BLOCK_P + tl.arange(0, BLOCK_P)
    f = block % across * BLOCK_K + tl.arange(0, BLOCK_K)
    c = tl.arange(0, BLOCK_C)
    there, known = p < pixels, f < filters
    at = p % (out_h * out_w)
    row, col = at // out_w * stride_h - pad_h, at % out_w * stride_w - pad_w
    image = p // (out_h * out_w) * in_h
    all_steps = kernel_h * kernel_w * steps
    first = part * all_steps // parts
    tap, start = first // steps, first % steps * BLOCK_C
    total = tl.zeros((BLOCK_P, BLOCK_K), tl.float32)
    follow(EARLY)
    for _ in range(first, (part + 1) * all_steps // parts):
        i, j = row + tap // kernel_w * dil_h, col + tap % kernel_w * dil_w
        inside = (there & (i >= 0) & (i < in_h) & (j >= 0) & (j < in_w))[:, None]
        seen = x + (((image + i) * in_w + j) * channels)[:, None] + (start + c)[None, :]
        taps = w + ((f * (kernel_h * kernel_w) + tap) * channels)[None, :] + (start + c)[:, None]
        if WHOLE:
            values, factors = tl.load(seen, mask=inside, other=0.0), tl.load(taps)
        else:
            values = tl.load(seen, mask=inside & (start + c < channels)[None, :], other=0.0)
            factors = tl.load(taps, mask=(start + c < channels)[:, None] & known[None, :], other=0.0)
        total = tl.dot(values, factors, total)
        start += BLOCK_C
        tap = tl.where(start >= channels, tap + 1, tap)
        start = tl.where(start >= channels, 0, start)
    element = tl.arange(0, BLOCK_P)[:, None] * BLOCK_K + tl.arange(0, BLOCK_K)[None, :]
    total, is_last = add_up(total, stored, arrived, block, part, parts, element, BLOCK_P * BLOCK_K)
    if is_last:
        wanted = there[:, None] & known[None, :]
        place = (p * filters)[:, None] + f[None, :]
        total += tl.load(bias + f, mask=known, other=0.0).to(tl.float32)[None, :]
        if ADD:
            total += tl.load(added + place, mask=wanted, other=0.0).to(tl.float32)
        tl.store(y + place, activated(total, KIND), mask=wanted)


def takes(x: torch.Tensor, weight: torch.Tensor, size: tuple[int, int]) -> bool:
    """Tell whether `Convolution` is for an input, filters K × C × R × S without groups, and an output P × Q."""
    filters, channels = weight.shape[:2]
    fits = x.dim() == 4 and x.dtype == weight.dtype and x.dtype in DTYPES and x.shape[1] == channels
    lies = fits and x.is_contiguous(memory_format=torch.channels_last) and x.numel() > 0
    most = max(x.numel(), weight.numel(), len(x) * filters * math.prod(size))
    return lies and channels % _LANES == 0 and filters % _LANES == 0 and most < _LONG - 2**20


def _depth(most: int, channels: int) -> int:
    """Return the channels of a step: at most so many, and a divisor of all where a power of 2 from 32 on is one."""
    divisor = channels & -channels
    return min(most, divisor) if divisor >= 32 else min(most, 64, max(16, triton.next_power_of_2(channels)))


def candidates(channels: int, filters: int, taps: int, pixels: int, multiprocessors: int) -> list[Blocks2d]:
    """Return the blocks to be timed, each with the splits that come nearest to one program a multiprocessor.

    Left out are small blocks where there are many, large ones that many programs would have to share or that few
    filters would half fill.
    """
    found: list[Blocks2d] = []
    for block_p, block_k, most, warps, stages in _SHAPES:
        block_c = _depth(most, channels)
        programs = triton.cdiv(pixels, block_p) * triton.cdiv(filters, block_k)
        splits = splits_for(programs, taps * triton.cdiv(channels, block_c), multiprocessors, _LEAST_STEPS)
        best = min(splits, key=partial(_distance, programs, multiprocessors))
        is_small, is_half_empty = block_p * block_k < _LARGE, block_k >= 2 * filters
        fits = best <= _SPLITS_MOST and not is_half_empty and not (is_small and programs > _MANY * multiprocessors)
        if fits and programs * best >= _FEWEST * multiprocessors:
            found.append(Blocks2d("last", block_k, block_p, block_c, warps, stages, best))
    return found or [Blocks2d("last", 32, 32, _depth(64, channels), 4, 3)]


def _distance(programs: int, multiprocessors: int, splits: int) -> float:
    return abs(math.log(splits * programs / multiprocessors))


class Convolution:
    """A convolution with its bias, and an addition and an activation where wanted, by blocks chosen on the card.

    Args:
        weight: K × C × R × S.
        bias: K.
        window: its kernel is R × S.
        kind: an activation of `activations.activated`.
    """

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor, window: Window, kind: str = "") -> None:
        self._weight = weight.permute(0, 2, 3, 1).contiguous()
        self._bias, self._window, self._kind = bias, window, kind
        self._shares = Shares()

    def key(self, x: torch.Tensor, added: torch.Tensor | None) -> str:
        """Return the sizes, type and steps as text; blocks are chosen for each key."""
        sizes = map(dimensions, (x.shape, self._weight.shape, *self._window[1:]))
        steps = ["add"] * (added is not None) + [self._kind] * bool(self._kind)
        return " ".join(("last", *sizes, *steps, str(x.dtype).removeprefix("torch.")))

    def choose(self, x: torch.Tensor, added: torch.Tensor | None, size: tuple[int, int]) -> TunedBlocks[Blocks2d]:
        """Return the fastest blocks for an input and an output P × Q, from the cache on disk, or timed now.

        Raises:
            NothingFitsError: none runs on this card.
        """
        card = torch.cuda.get_device_properties(x.device)
        filters, height, width, channels = self._weight.shape
        offered = candidates(channels, filters, height * width, len(x) * math.prod(size), card.multi_processor_count)
        cache = autotune.BlockCache(autotune.cache_file(card.name, "conv2d_last"), Blocks2d)
        return cache.choose(self.key(x, added), offered, lambda blocks: lambda: self(x, added, size, blocks))

    def __call__(
        self, x: torch.Tensor, added: torch.Tensor | None, size: tuple[int, int], blocks: Blocks2d
    ) -> torch.Tensor:
        """Return activation(convolution + bias + added), N × K × P × Q with the channels last.

        Args:
            x: N × C × H × W, as `takes` wants it.
            added: of the output's size and type, channels last.
            size: P and Q.
        """
        (images, channels, in_h, in_w), filters = x.shape, len(self._weight)
        y = torch.empty(images, filters, *size, dtype=x.dtype, device=x.device, memory_format=torch.channels_last)
        pixels = images * math.prod(size)
        count = triton.cdiv(pixels, blocks.points) * triton.cdiv(filters, blocks.filters)
        shared = self._shares.memory(count, blocks.splits, blocks.points * blocks.filters, x.device)
        kernel, stride, padding, dilation = self._window
        conv2d_last[count, blocks.splits](
            x, self._weight, self._bias, added, y, *shared, channels // _LANES, filters // _LANES, in_h, in_w,
            *size, pixels, *kernel, *stride, *padding, *dilation, blocks.splits,
            ADD=added is not None, KIND=self._kind,
            WHOLE=channels % blocks.channels == 0 and filters % blocks.filters == 0,
            BLOCK_P=blocks.points, BLOCK_K=blocks.filters, BLOCK_C=blocks.channels, num_warps=blocks.warps,
            num_stages=blocks.stages, **following.options(x),
        )  # fmt: skip
        return y
