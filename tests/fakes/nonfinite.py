"""Inputs that hold NaN and infinities, and the comparison of an output with PyTorch's."""

from __future__ import annotations

import itertools

import torch

from convscope.cudnn.shape import Convolution

VALUES = {
    "nan": 0x7FC00000,
    "nan of a GPU": 0x7FFFFFFF,
    "negative nan": 0xFFFFFFFF - 2**32,
    "inf": 0x7F800000,
    "-inf": 0xFF800000 - 2**32,
}
"""Values that are not finite, by name, as the bits of a float32 (in a signed integer): the NaNs of a CPU and a GPU."""

CONV = {2: torch.nn.functional.conv2d, 3: torch.nn.functional.conv3d}


def planted(x: torch.Tensor, *names: str) -> torch.Tensor:
    """Return a copy of an input with these values in turn: in a corner, in the middle, and at the end of each image."""
    changed = x.float()
    value = itertools.cycle(torch.tensor([VALUES[name] for name in names], dtype=torch.int32).view(torch.float32))
    for image in changed:
        last = tuple(extent - 1 for extent in image.shape)
        for place in ((0, *(0 for _ in last[1:])), tuple(at // 2 for at in last), last):
            image[place] = next(value)
    return changed.to(x.dtype)


def expected(shape: Convolution, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Return PyTorch's convolution in float64."""
    options = shape.stride, shape.padding, shape.dilation, shape.groups
    return CONV[len(shape.size)](x.double(), weight.double(), None, *options)


def same(output: torch.Tensor, by_torch: torch.Tensor, bound: float) -> bool:
    """Tell whether NaN, each infinity and finite numbers are where PyTorch has them, the latter within a bound.

    The bound is of the norm of the finite numbers.
    """
    kinds = (torch.isnan, torch.isposinf, torch.isneginf)
    finite = by_torch.isfinite()
    return all(torch.equal(kind(output), kind(by_torch)) for kind in kinds) and close(output, by_torch, finite, bound)


def close(output: torch.Tensor, by_torch: torch.Tensor, where: torch.Tensor, bound: float) -> bool:
    """Tell whether the outputs selected by `where` are within a bound, which is of the norm of them all."""
    chosen = by_torch[where]
    return bool((output[where].double() - chosen).norm() <= bound * chosen.norm())


def seeing(shape: Convolution, unwanted: torch.Tensor) -> torch.Tensor:
    """Return which outputs see an input of which `unwanted` (as the input, bool) is True."""
    options = shape.stride, shape.padding, shape.dilation, shape.groups
    ones = torch.ones(shape.weight, dtype=torch.float64, device=unwanted.device)
    return CONV[len(shape.size)](unwanted.double(), ones, None, *options) > 0


def tiles(touched: torch.Tensor, side: int) -> torch.Tensor:
    """Return which outputs are in a tile of side × side that holds an output of which `touched` is True."""
    height, width = touched.shape[-2:]
    pooled = torch.nn.functional.max_pool2d(touched.double(), side, ceil_mode=True)
    return pooled.repeat_interleave(side, -2).repeat_interleave(side, -1)[..., :height, :width] > 0
