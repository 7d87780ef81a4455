"""Convolutions in float64 by PyTorch, and the distance of other results from them."""

from __future__ import annotations

import copy
import itertools
import math as mathematics
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn
from torch.func import functional_call

from convscope.convolution import swap
from convscope.cudnn.shape import Convolution
from convscope.timing.calls import Call


@dataclass(frozen=True)
class Reference:
    """A convolution in float64: the exact result, and for each output the root of the sum of its products' squares."""

    exact: torch.Tensor
    spread: torch.Tensor

    def error(self, output: torch.Tensor) -> float:
        """Return the largest elementwise error, relative to spread + |exact|; infinite where it is not finite.

        Results below the smallest normal number of the output's type are rounded by an absolute distance, which may be
        any share of them: that distance is no error. float16 reaches it with outputs of 6e-5.
        """
        number = torch.finfo(output.dtype)
        rounding = number.smallest_normal * number.eps / 2  # of subnormal numbers
        worst = 0.0
        for image, exact, spread in zip(output, self.exact, self.spread, strict=True):
            ratio = (image.double() - exact).abs_().sub_(rounding).clamp_(min=0) / (spread + exact.abs())
            ratio = torch.where(image == exact, 0.0, ratio)  # 0 where both are, whatever the spread
            worst = max(worst, float(ratio.nan_to_num_(nan=float("inf"), posinf=float("inf")).max()))
        return worst


def reference(x: torch.Tensor, weight: torch.Tensor, shape: Convolution) -> Reference:
    """Convolve in float64 by PyTorch, an image at a time."""
    wide = weight.double()
    exact, spread = [], []
    for image in x.split(1):
        given = image.double()
        exact.append(torch.nn.functional.conv3d(given, wide, None, *shape.options))
        squares = torch.nn.functional.conv3d(given.square_(), wide.square(), None, *shape.options)
        spread.append(squares.clamp_(min=0).sqrt_())  # a library that sums by transforms may leave -1e-17
    return Reference(torch.cat(exact), torch.cat(spread))


def relative_error(module: nn.Module, given: torch.Tensor, output: torch.Tensor, plain: bool = True) -> float | None:
    """Return the `relative_distance` of a convolution's output from the result for the same input in float64.

    That result is of the layer's original module, which a swapped one may not describe. A plain convolution takes a few
    images at a time, so that little memory is needed.
    """
    exact = reference_of(module)
    if given.dim() == _dimensions(module) + 1:
        given, output = given.unsqueeze(0), output.unsqueeze(0)
    image_bytes = _WIDE_BYTES * (given[:1].numel() + output[:1].numel())
    count = max(1, _CHUNK_BYTES // max(1, image_bytes)) if plain else len(given)
    parts = zip(given.split(count), output.split(count), strict=True)
    distances = [_squared_norms(result, exact(some.double())) for some, result in parts]
    return _ratio(*map(sum, zip(*distances, strict=True)))


def _dimensions(module: nn.Module) -> int:
    """Return the number of a convolution's spatial dimensions."""
    return module.dimensions if isinstance(module, Call) else 2


def relative_distance(output: torch.Tensor, reference: torch.Tensor) -> float | None:
    """Return ‖output − reference‖ / ‖reference‖, not finite where the output is not.

    Where the reference is 0 it is None for an output of 0, infinite for any other.
    """
    return _ratio(*_squared_norms(output, reference))


def _squared_norms(output: torch.Tensor, reference: torch.Tensor) -> tuple[float, float]:
    """Return ‖output − reference‖² and ‖reference‖²."""
    difference = torch.linalg.vector_norm(output.double() - reference)
    return float(difference) ** 2, float(torch.linalg.vector_norm(reference)) ** 2


def _ratio(squared_distance: float, squared_length: float) -> float | None:
    if squared_length:
        return mathematics.sqrt(squared_distance / squared_length)
    return None if squared_distance == 0 else mathematics.inf


def reference_of(module: nn.Module) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return the original module of a convolution, with its parameters and buffers in float64."""
    original = swap.original(module)
    tensors = itertools.chain(original.named_parameters(), original.named_buffers())
    wide = {name: tensor.double() if tensor.is_floating_point() else tensor for name, tensor in tensors}
    return lambda x: functional_call(original, wide, (x,))


_WIDE_BYTES = 8
_CHUNK_BYTES = 2**28  # of images in float64, input and output together

MARGIN = 2.0  # engines round elsewhere too (additions, activations), or with other transforms
INT8 = "int8"
_CHANNELS_IN_8_BITS = 32  # at least: first layers and depthwise ones are not for it
_STORED = {"float16": torch.float16, "bfloat16": torch.bfloat16}

Rounding = Callable[[torch.Tensor], torch.Tensor]


def rounding_error(model: nn.Module, given: torch.Tensor, dtype: str) -> float:
    """Return the distance that a model's output moves, relative to its length, if layers round to `dtype`.

    float32 is taken as TF32: the factors keep 10 digits, the results all. Layers are modules that are called: the
    products of `nn.MultiheadAttention` with its own weights are not rounded, and count as exact. The model is in
    float32, on the device of `given` (N × 3 × H × W), and left as it is.
    """
    with torch.no_grad():
        return relative_distance(rounded(model, dtype)(given), model(given).double()) or 0.0


def rounded(model: nn.Module, dtype: str) -> nn.Module:
    """Return a copy of a model whose layers round their factors, and their results where these are stored so.

    With "int8" convolutions of some channels alone do: filters over a step for each, images over one for all.
    """
    model = copy.deepcopy(model)
    if dtype == INT8:
        return _in_8_bits(model)
    stored = _STORED.get(dtype)
    rounding: Rounding = cut_to_tf32 if stored is None else lambda x: x.to(stored).to(x.dtype)
    for module in model.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            module.weight.data = rounding(module.weight.data)
            module.register_forward_pre_hook(lambda module, given: (rounding(given[0]), *given[1:]))
            if stored is not None:
                module.register_forward_hook(lambda module, given, result: rounding(result))
    return model


def _in_8_bits(model: nn.Module) -> nn.Module:
    for module in model.modules():
        if isinstance(module, nn.Conv2d) and module.in_channels // module.groups >= _CHANNELS_IN_8_BITS:
            weight = module.weight.data
            module.weight.data = to_steps(weight, weight.abs().amax((1, 2, 3), keepdim=True))
            module.register_forward_pre_hook(lambda _, given: (to_steps(given[0], given[0].abs().max()), *given[1:]))
    return model


def to_steps(x: torch.Tensor, largest: torch.Tensor) -> torch.Tensor:
    """Return numbers rounded to multiples of a 127th of the largest magnitude."""
    step = largest / 127
    return torch.where(step == 0, 0.0, (x / step).round() * step)


def cut_to_tf32(x: torch.Tensor) -> torch.Tensor:
    """Cut float32 off after 10 digits, as the matrix unit does with numbers from memory."""
    return (x.contiguous().view(torch.int32) & ~0x1FFF).view(torch.float32)
