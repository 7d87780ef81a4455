"""Convolutions that no model has, drawn by chance over the range of those of networks.

Layers of a few models leave most of the range empty: a network with another width of its groups, or another kernel,
lies far from all of them. The convolution of a number is the same everywhere, so that more of them extend a collection.
"""

from __future__ import annotations

import functools
import itertools
import math
import random
from collections.abc import Sequence

from convscope.convolution.layer import Layer

ELEMENTS_LEAST, ELEMENTS_MOST = 2**14, 2**22
"""Elements of one image's input or output, whichever are more; VGG's first layers have 3.2 million."""
FILTER_ELEMENTS_MOST = 2**24
PRODUCTS_MOST = 2**31
"""Multiplications for one image, 2.1 thousand million; VGG's largest layers have 1.8."""
CHANNELS, SIDES_PX = (8, 2048), (5, 256)
"""Of convolutions without groups and depthwise ones; heights of inputs."""
GROUP_CHANNELS, GROUPS = (4, 128), (2, 64)
IMAGE_CHANNELS = 3
FIRST_FILTERS, FIRST_SIDES_PX = (16, 256), (64, 256)
"""Of convolutions of the three channels of an image."""
STEPS = (1, 2, 4, 8, 8, 16, 16, 32, 64)
"""Numbers that channels are a multiple of; what stands twice is twice as likely."""
DENSE = {
    (1, 1): 40, (3, 3): 35, (5, 5): 6, (7, 7): 5, (2, 2): 3, (4, 4): 2, (11, 11): 1, (1, 3): 2, (3, 1): 2, (1, 7): 2,
    (7, 1): 2,
}  # fmt: skip
"""Kernels of convolutions without groups, and in how many of a hundred draws each comes; not all draws are kept."""
GROUPED = {(3, 3): 70, (1, 1): 15, (5, 5): 15}
DEPTHWISE = {(3, 3): 45, (5, 5): 25, (7, 7): 25, (9, 9): 5}
DEFAULT_KINDS = ("dense", "grouped", "depthwise")
"""A convolution without groups; one in groups of several channels; one whose groups have one channel each."""
UNEVEN, UNIT = "uneven", 8
"""Grouped ones whose groups have a multiple of this many channels that is no power of two, as RegNets have."""
NARROW, NARROW_MOST = "narrow", 8
"""Grouped ones whose groups have few channels, as in the first stages of ResNeXts, and how many at most."""
IMAGE = "image"
"""Those without groups whose input is an image, of three channels: the first layer of a network."""
PATCHES = "patches"
"""Those without groups whose patches lie one beside the other: the stride is the kernel, as in ConvNeXts."""
LARGE, LARGE_LEAST = "large", 2**28
"""Those without groups of the most work, as in VGGs, and how many multiplications for one image at least."""
SQUEEZE = "squeeze"
"""A convolution of one pixel, to fewer channels or to more, as in squeeze-and-excitation; drawn apart."""
KINDS = (*DEFAULT_KINDS, UNEVEN, NARROW, IMAGE, PATCHES, LARGE, SQUEEZE)
SQUEEZED, RATIOS = (32, 2048), (2, 32)
"""Channels on the wide side of a squeeze, and their ratio to those on the other side."""


@functools.cache
def convolution(number: int) -> Layer:
    """Return the convolution of a number, at batch 1, without a bias."""
    draw = random.Random(f"convolution {number}")
    while True:
        layer = _any(draw, number)
        elements = max(math.prod(layer.input), math.prod(layer.output))
        is_usual = min(layer.output) > 0 and ELEMENTS_LEAST <= elements <= ELEMENTS_MOST
        if is_usual and layer.flops <= 2 * PRODUCTS_MOST and math.prod(layer.weight) <= FILTER_ELEMENTS_MOST:
            return layer


@functools.cache
def squeeze(number: int) -> Layer:
    """Return the squeeze of a number, at batch 1, without a bias."""
    draw = random.Random(f"squeeze {number}")
    wide = _channels(draw, *SQUEEZED)
    narrow = max(1, round(wide / _log_uniform(draw, *RATIOS)))
    channels = draw.choice(((wide, narrow), (narrow, wide)))
    return Layer.of_sizes(
        f"squeeze{number}", 0, batch=1, in_channels=channels[0], out_channels=channels[1], size=(1, 1), kernel=(1, 1)
    )


def first(count: int, kinds: Sequence[str]) -> list[Layer]:
    """Return the first `count` convolutions that are of one of these `KINDS`, at least one."""
    every = (layer for number in itertools.count() for layer in (convolution(number), squeeze(number)))
    return [*itertools.islice((layer for layer in every if kinds_of(layer) & {*kinds}), count)]


def kinds_of(layer: Layer) -> set[str]:
    """Return which of the `KINDS` a drawn convolution is of."""
    if layer.size == (1, 1):
        return {SQUEEZE}
    if layer.groups == 1:
        of_dense = {
            IMAGE: layer.in_channels == IMAGE_CHANNELS,
            PATCHES: layer.stride == layer.kernel != (1, 1),
            LARGE: layer.flops >= 2 * LARGE_LEAST,
        }
        return {"dense", *(kind for kind, is_of_it in of_dense.items() if is_of_it)}
    each = layer.in_channels // layer.groups
    if each == 1:
        return {"depthwise"}
    is_uneven = each % UNIT == 0 and each.bit_count() > 1
    return {"grouped", *([UNEVEN] if is_uneven else []), *([NARROW] if each <= NARROW_MOST else [])}


def _any(draw: random.Random, number: int) -> Layer:
    sizes = draw.choices((_dense, _grouped, _depthwise), (50, 30, 20))[0]
    in_channels, out_channels, groups, kernel = sizes(draw)
    sides_px = FIRST_SIDES_PX if in_channels == IMAGE_CHANNELS else SIDES_PX
    height = round(_log_uniform(draw, *sides_px))
    width = height if draw.random() < 0.9 else min(SIDES_PX[1], round(height * _log_uniform(draw, 0.5, 2)))
    stride, dilation, padding = (1, 1), (1, 1), tuple(extent // 2 for extent in kernel)
    if kernel in ((2, 2), (4, 4)):  # patches, one beside the other
        stride, padding = kernel, (0, 0)
    elif draw.random() < 0.2:
        stride = (4, 4) if kernel == (11, 11) else (2, 2)
    elif kernel == (3, 3) and draw.random() < 0.06:
        dilation = padding = (2, 2)
    elif draw.random() < 0.1:
        padding = (0, 0)
    return Layer.of_sizes(
        f"drawn{number}", 0, batch=1, in_channels=in_channels, out_channels=out_channels, size=(height, width),
        kernel=kernel, stride=stride, padding=padding, dilation=dilation, groups=groups,
    )  # fmt: skip


def _dense(draw: random.Random) -> tuple[int, int, int, tuple[int, int]]:
    """Return channels, filters, groups and the kernel; a few have the three channels of an image."""
    kernel = draw.choices([*DENSE], [*DENSE.values()])[0]
    is_first = draw.random() < (0.5 if kernel in ((7, 7), (11, 11), (4, 4)) else 0.04)
    if is_first:
        return IMAGE_CHANNELS, _channels(draw, *FIRST_FILTERS), 1, kernel
    return _channels(draw, *CHANNELS), _channels(draw, *CHANNELS), 1, kernel


def _grouped(draw: random.Random) -> tuple[int, int, int, tuple[int, int]]:
    each, groups = _channels(draw, *GROUP_CHANNELS), round(_log_uniform(draw, *GROUPS))
    more = draw.choice((1, 1, 1, 2))
    return each * groups, more * each * groups, groups, draw.choices([*GROUPED], [*GROUPED.values()])[0]


def _depthwise(draw: random.Random) -> tuple[int, int, int, tuple[int, int]]:
    channels = _channels(draw, *CHANNELS)
    return channels, channels, channels, draw.choices([*DEPTHWISE], [*DEPTHWISE.values()])[0]


def _channels(draw: random.Random, low: int, high: int) -> int:
    step = draw.choice(STEPS)
    return max(step, low, step * round(_log_uniform(draw, low, high) / step))


def _log_uniform(draw: random.Random, low: float, high: float) -> float:
    return math.exp(draw.uniform(math.log(low), math.log(high)))
