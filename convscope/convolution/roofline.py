"""Roofline: the least time of a pass by a card's peaks, and ceilings measured on a device."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from convscope.convolution import backends, models
from convscope.convolution.layer import Layer
from convscope.cudnn.shape import ELEMENT_BYTES
from convscope.gpus import Gpu
from convscope.timing.stopwatch import Stopwatch


@dataclass(frozen=True)
class HardwareLimit:
    """The work of a pass, counted from its layers' shapes, and the time that it takes at a card's peaks, in ms.

    `memory_ms` and `compute_ms` are of the whole pass; `time_ms` takes for each layer the longer of the two, as layers
    follow each other. The bytes are of weights, inputs and outputs of each layer, once: where the card's cache holds an
    activation between two layers, less crosses the memory.
    """

    flops: int
    minimum_bytes: int
    memory_ms: float
    compute_ms: float
    time_ms: float


def layers_of(name: str, model: nn.Module, given_shape: Sequence[int]) -> list[Layer]:
    """List the convolutions and fully connected layers of one pass; a connected one as a 1×1 convolution of 1×1 pixel.

    Raises:
        InputError: the model cannot take this input.
    """
    connected: list[Layer] = []

    def note(module: nn.Module, given: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
        assert isinstance(module, nn.Linear)
        connected.append(_connected(len(connected), module, given[0].shape))

    def watch(copied: nn.Module) -> None:
        connected.clear()
        for module in copied.modules():
            if isinstance(module, nn.Linear):
                module.register_forward_hook(note)

    return models.followed(name, model, given_shape, watch=watch) + connected


def _connected(number: int, module: nn.Linear, given: torch.Size) -> Layer:
    return Layer.of_sizes(
        f"linear.{number}", number, batch=given[:-1].numel(), in_channels=module.in_features,
        out_channels=module.out_features, size=(1, 1), kernel=(1, 1), bias=module.bias is not None,
    )  # fmt: skip


def hardware_limit(layers: Sequence[Layer], gpu: Gpu, dtype: str, math: str) -> HardwareLimit:
    """Return the floor of a pass over these layers on a card."""
    per_ms = gpu.tflops(dtype, math) * 1e9
    bytes_per_ms = gpu.bandwidth_gbps * 1e6
    element_bytes = 1 if dtype == "int8" else ELEMENT_BYTES[dtype]
    work = [(layer.flops, layer.minimum_bytes(element_bytes)) for layer in layers]
    flops, minimum_bytes = sum(each for each, _ in work), sum(moved for _, moved in work)
    time_ms = sum(max(each / per_ms, moved / bytes_per_ms) for each, moved in work)
    return HardwareLimit(flops, minimum_bytes, minimum_bytes / bytes_per_ms, flops / per_ms, time_ms)


_BUDGET_S = 60.0  # for the samples of one ceiling
_ON_GPU = 2**28, 8192, 10  # elements of the copy, side of the matrices, repetitions
_ON_CPU = 2**22, 384, 3


@dataclass(frozen=True)
class Ceilings:
    """Ceilings measured on one device: copy bandwidth, and TFLOP/s by arithmetic ("fp32", "tf32", "fp16")."""

    copy_gbps: float
    tflops: dict[str, float]

    def attainable_ms(self, flops: float, bytes_moved: float, arithmetic: str) -> float:
        """Return the least time that these ceilings allow."""
        return max(flops / self.tflops[arithmetic] / 1e9, bytes_moved / self.copy_gbps / 1e6)


def measure_ceilings(device: torch.device) -> Ceilings:
    """Measure the ceilings of a device; takes well under a second on a GPU."""
    elements, side, count = _ON_GPU if device.type == "cuda" else _ON_CPU
    source = torch.ones(elements, device=device)
    target = torch.empty_like(source)
    copies = (lambda: target.copy_(source), lambda: torch.mul(source, 1.0, out=target))
    stopwatch = Stopwatch(device)
    times = [stopwatch.measure(copy, samples=count, warmup=1, budget_s=_BUDGET_S) for copy in copies]
    copy_ms = min(timed.best_ms for timed in times)
    left = torch.randn(side, side, device=device)
    rates = {}
    for name in ("fp32", "tf32", "fp16") if device.type == "cuda" else ("fp32",):
        factor = left.half() if name == "fp16" else left
        with backends.switched(torch.backends.cuda.matmul, allow_tf32=name == "tf32"):
            product = functools.partial(torch.matmul, factor, factor)
            best_ms = stopwatch.measure(product, samples=count, warmup=1, budget_s=_BUDGET_S).best_ms
        rates[name] = 2 * side**3 / best_ms / 1e9
    return Ceilings(2 * source.nbytes / copy_ms / 1e6, rates)
