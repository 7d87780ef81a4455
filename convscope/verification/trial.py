"""Trial of one convolution's shape: random numbers, convolved by several algorithms and compared with float64."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from convscope.convolution import backends
from convscope.convolution.layer import Layer
from convscope.convolution.operator import cuda_operator
from convscope.convolution.providers.plan import Plan
from convscope.convolution.reference import relative_distance
from convscope.errors import TraceMissingError
from convscope.timing import trace

Convolve = Callable[[torch.Tensor, torch.Tensor, Layer, str], torch.Tensor]


class Trial:
    """One shape of a 2-D layer, and of what is fused with it, with random numbers in it.

    Args:
        dtype: of input and weights, a name of `cudnn.DATA_TYPES`.
        convolve: takes input, weight, layer and algorithm; None is the operator of a GPU.
    """

    def __init__(self, layer: Layer, device: torch.device, dtype: str, convolve: Convolve | None = None) -> None:
        self.layer, self.device, self.dtype, self._convolve = layer, device, dtype, convolve
        memory = backends.LAYOUTS[backends.settings_in_force().layout]  # in which libraries read them: no call copies
        generator = torch.Generator(device).manual_seed(0)
        options = {"device": device, "dtype": getattr(torch, dtype), "generator": generator}
        x, w = torch.randn(layer.input, **options), torch.randn(layer.weight, **options)
        self._x, self._w = x.contiguous(memory_format=memory), (w * layer.terms**-0.5).contiguous(memory_format=memory)
        self._bias = torch.randn(layer.out_channels, **options) if layer.fused.bias else None
        added = torch.randn(layer.output, **options) if layer.fused.addition else None
        self._added = added if added is None else added.contiguous(memory_format=memory)

    @functools.cached_property
    def _exact(self) -> torch.Tensor:
        bias = self._bias if self._bias is None else self._bias.double()
        y = torch.nn.functional.conv2d(self._x.double(), self._w.double(), bias, *self.layer.options)
        y = y if self._added is None else y + self._added
        return y.relu() if self.layer.fused.relu else y

    def plan(self, algorithm: str) -> tuple[Plan, float | None]:
        """Return the plan of an algorithm on a GPU, which the runs here use, and the time to build it, in ms.

        The time is None where the plan was there already. Raises as `CudaOperator.plan`.
        """
        operator, fused = cuda_operator(), self.layer.fused if self.layer.fused.count else None
        built, started_s = operator.built, time.perf_counter()
        with torch.cuda.device(self.device):
            plan = operator.find(self._x, self._w, self._bias, self._options, algorithm, fused)
        return plan, (time.perf_counter() - started_s) * 1e3 if operator.built > built else None

    @property
    def _options(self) -> Any:
        return self.layer.padding, self.layer.stride, self.layer.dilation, self.layer.groups

    def error(self, algorithm: str) -> float | None:
        """Return the relative error of an algorithm's result against float64; raises as `CudaOperator.forward`."""
        # The allocator hands out this block next: an algorithm that writes nothing must not find a result in it.
        torch.full_like(self._exact, torch.nan, dtype=self._x.dtype)
        return relative_distance(self._run(algorithm), self._exact)

    def kernels(self, names: Sequence[str]) -> list[Mapping[str, int]]:
        """Return the kernels that each algorithm launches; an empty list where CUPTI records none.

        Each has run before: what a first run launches besides, such as packing of filters, is not of a call.
        """
        for name in names:
            self._run(name)
        try:
            return [found.kernels for found in trace.record_each([partial(self._run, name) for name in names])]
        except TraceMissingError:
            return []

    def _run(self, algorithm: str) -> torch.Tensor:
        if not self.layer.fused.count:
            return (self._convolve or cuda_operator().convolve)(self._x, self._w, self.layer, algorithm)
        given = self._x, self._w, self._bias, self._added
        return cuda_operator().fused(*given, self._options, self.layer.fused, algorithm)
