"""Agreement of an engine with eager PyTorch in float32, image by image.

The outputs for all images have much in common: an engine that ignores its input would be close to all of them. So an
error counts against the distance between outputs: of n images with the outputs y_i and their mean m, the scale is
√(Σ ‖y_i − m‖² / n). On it an engine that ignores its input is wrong by 1 or more, one that returns the output of
another image by about √2.
"""

from __future__ import annotations

import dataclasses
import math as mathematics
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import nn

from convscope.convolution import tolerance
from convscope.convolution.layer import Layer
from convscope.convolution.reference import INT8, MARGIN, rounded

JUDGED_IMAGES = 8  # that the scale is taken from
_MOST = 0.5  # beyond it an engine that ignores its input could pass
_AT_ONCE = 64  # images that are rounded together: this takes more memory than the pass itself
_TF32_CUT = 2.0**-10  # the most that a factor loses whose digits are cut off
_OUTPUT_ROUNDOFF = {
    **tolerance.STORAGE_ROUNDOFF,
    "float32": tolerance.UNIT_ROUNDOFF["fp32"],
    INT8: tolerance.STORAGE_ROUNDOFF["bfloat16"],  # the last layers are in 16 bits
}


@dataclass(frozen=True)
class Agreement:
    """Scale of errors, and the largest error that is allowed on it.

    Attributes:
        dtype: the data type whose roundings move the outputs, and so allow an error.
        share: of that movement is allowed for; below 1 where the engine rounds less than the model that is rounded.
    """

    scale: float
    allowed: float
    dtype: str = "float32"
    share: float = 1.0

    def error(self, outputs: torch.Tensor, exact: torch.Tensor) -> float:
        """Return the largest error of an image (the first dimension), not finite where an output is not."""
        if outputs.shape != exact.shape:
            return mathematics.inf
        return float(_lengths(outputs.double() - exact.double()).max()) / self.scale

    def over(self, model: nn.Module, images: torch.Tensor, exact: torch.Tensor) -> Agreement:
        """Return the agreement for these images too: roundings may move one of them further than those so far.

        Args:
            model: as in `judged`.
            exact: the outputs for `images`, as float64.

        Raises:
            ValueError: the roundings move an output too far for an error to show.
        """
        allowed = MARGIN * _moved(model, images, exact, self.dtype, self.share) / self.scale
        _check(allowed, self.dtype)
        return dataclasses.replace(self, allowed=max(self.allowed, allowed))


def judged(model: nn.Module, images: torch.Tensor, layers: Iterable[Layer], dtype: str, math: str) -> Agreement:
    """Return how outputs of a model are judged.

    Allowed is twice the largest error of an image if the layers round to `dtype`. In float32 without TF32 the reference
    rounds as much as an engine; there the roundings are those of TF32, scaled down.

    Args:
        model: in float32, on the device of `images` (N × 3 × H × W); it is left as it is.
        layers: the model's convolutions and fully connected layers.
        dtype: the data type in which the engine stores numbers, "int8" for the factors of convolutions alone; `math` is
            "fp32" or "tf32", for float32.

    Raises:
        ValueError: nothing can be judged: outputs are alike, or the roundings move them about as much as they differ.
    """
    with torch.no_grad():
        exact = model(images).double()
    scale = mathematics.sqrt(float(_lengths(exact - exact.mean(0)).square().mean()))
    if not scale > 1e-12 * float(_lengths(exact).max()):
        raise ValueError("its outputs are alike for all images, so that no error would show")
    share = 1.0
    if dtype == "float32" and math == "fp32":
        share = max((tolerance.stored_tolerance(layer, dtype, math) for layer in layers), default=0.0) / _TF32_CUT
    allowed = MARGIN * _moved(model, images, exact, dtype, share) / scale
    _check(allowed, dtype)
    return Agreement(scale, allowed, dtype, share)


def _check(allowed: float, dtype: str) -> None:
    if not mathematics.isfinite(allowed):
        raise ValueError(f"its numbers leave the range of {dtype}: choose another --dtype")
    if allowed > _MOST:
        raise ValueError(
            f"the roundings of {dtype} move its outputs by {allowed / MARGIN:.2g} of the distance between them, so "
            f"that no error would show: {'' if dtype == INT8 else 'choose another --dtype, or '}give it trained weights"
        )


def _moved(model: nn.Module, images: torch.Tensor, exact: torch.Tensor, dtype: str, share: float) -> float:
    """Return how far the roundings of a data type move the output of an image at most, those of the output included."""
    count = _AT_ONCE if len(exact) == len(images) else max(len(exact), len(images))  # not each image has a row
    changed, parts = rounded(model, dtype), zip(images.split(count), exact.split(count), strict=True)
    with torch.no_grad():
        moved = torch.stack([_lengths(changed(some).double() - result).max() for some, result in parts])
    return max(share * float(moved.max()), _OUTPUT_ROUNDOFF[dtype] * float(_lengths(exact).max()))


def top1_agreement_pct(outputs: torch.Tensor, exact: torch.Tensor) -> float:
    """Return the percentage of images for which both outputs (images × classes) have the same largest class."""
    return 100 * float((outputs.argmax(1) == exact.argmax(1)).double().mean())


def least(*percentages: float | None) -> float | None:
    """Return the smallest of the percentages that are known."""
    return min((each for each in percentages if each is not None), default=None)


def _lengths(outputs: torch.Tensor) -> torch.Tensor:
    """Return the Euclidean length of each image's output."""
    lengths: torch.Tensor = torch.linalg.vector_norm(outputs.flatten(1), dim=1)
    return lengths
