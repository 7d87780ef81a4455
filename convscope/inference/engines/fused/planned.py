"""Convolutions of the engine `fused` by plans of cuDNN that do what follows them, where PyTorch has no call for it.

PyTorch's fused call ends with ReLU. cuDNN's graph API also has plans that end with the bias, an addition, or SiLU, each
compiled when it is built.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch

from convscope.convolution import algorithms
from convscope.convolution.operator import cuda_operator
from convscope.convolution.providers.graph import FusedPlan
from convscope.cudnn.shape import Convolution, Fused, output_extents
from convscope.errors import CudnnError
from convscope.inference.engines.fused.parts import ONE_PIXEL

Options = tuple[tuple[int, int], tuple[int, int], tuple[int, int]]
"""Stride, padding and dilation, rows and columns."""
ENDS = ("", "silu")
"""Activations that plans are asked for; GELU in a plan is slower than in a kernel behind a product."""
_OUTPUTS_LEAST = 2**22  # with fewer this project's kernels are faster, and a plan takes half a second to build
_OFFERED = 2  # of a heuristic: the others are hardly faster than the best of these


class Planned:
    """A convolution with what follows it by one plan.

    Args:
        rows: its images are of one pixel, and are taken as the pixels of one image.
    """

    def __init__(self, plan: FusedPlan, rows: bool) -> None:
        self._plan, self._rows = plan, rows

    def __call__(
        self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, added: torch.Tensor | None
    ) -> torch.Tensor:
        """Return activation(convolution(x) + bias + added), channels last."""
        if not self._rows:
            return self._plan.run(x, weight, bias, added)
        y = self._plan.run(_as_image(x), weight, bias, None if added is None else _as_image(added))
        return y.permute(0, 2, 3, 1).reshape(len(x), -1, 1, 1)

    def close(self) -> None:
        """Destroy the plan."""
        self._plan.close()


def _as_image(x: torch.Tensor) -> torch.Tensor:
    """Return N × C × 1 × 1 as 1 × C × N × 1, channels last, of the same memory."""
    return x.reshape(1, len(x), 1, -1).permute(0, 3, 1, 2)


def plans(x: torch.Tensor, weight: torch.Tensor, options: Options, kind: str, adds: bool) -> Iterator[Planned]:
    """Yield plans, built: the first that cuDNN's heuristic, and its list of plans that always work, have.

    Args:
        x: N × C × H × W on a GPU, channels last.
        weight: K × C × R × S.
        kind: the activation; none is yielded of those that are not in `ENDS`.
        adds: something of the output's size is added.
    """
    stride, padding, dilation = options
    size = output_extents(x.shape[2:], weight.shape[2:], padding, stride, dilation)
    if kind not in ENDS or len(x) * len(weight) * math.prod(size) < _OUTPUTS_LEAST:
        return
    fused = Fused(addition=adds, bias=True, swish=kind == "silu")
    are_rows = x.shape[2:] == weight.shape[2:] == (1, 1) and options == ONE_PIXEL
    shape: Any = tuple((_as_image(x) if are_rows else x).shape)
    dtype = str(x.dtype).removeprefix("torch.")
    asked = Convolution(shape, tuple(weight.shape), padding, stride, dilation, 1, dtype, layout="nhwc", fused=fused)
    try:
        offers = cuda_operator().offers(asked, x.device)
    except CudnnError:
        return  # it has nothing for such operations
    for offer in offers:
        if min(offer.ranks.get("a", _OFFERED), offer.ranks.get("fallback", _OFFERED)) < _OFFERED:
            try:
                plan = cuda_operator().plan(asked, algorithms.plan_name(offer.plan), x.device)
            except (CudnnError, NotImplementedError):
                continue  # cuDNN refuses it when it is built
            assert isinstance(plan, FusedPlan)
            yield Planned(plan, are_rows)
