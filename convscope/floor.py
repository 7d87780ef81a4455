"""The least time that a card needs for a model: its bytes over the bandwidth, its operations over the matrix rate.

Counted from shapes alone (`roofline`) and the vendor's peaks (`gpus`). Convolutions and fully connected layers count;
what could be computed on the way (normalisation, activation, addition, pooling) does not.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from convscope import models, roofline
from convscope.gpus import Gpu
from convscope.records import Layer


@dataclass(frozen=True)
class Floor:
    """What a pass must do at least, and how long that takes at a card's peaks, in ms.

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
    shapes = copy.deepcopy(model).float().to("meta").eval()
    connected: list[Layer] = []

    def note(module: nn.Module, given: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
        assert isinstance(module, nn.Linear)
        connected.append(_connected(len(connected), module, given[0].shape))

    handles = [m.register_forward_hook(note) for m in shapes.modules() if isinstance(m, nn.Linear)]
    try:
        return models.called(name, shapes, torch.empty(*given_shape, device="meta")) + connected
    finally:
        for handle in handles:
            handle.remove()


def _connected(number: int, module: nn.Linear, given: torch.Size) -> Layer:
    return Layer(
        name=f"linear.{number}",
        position=number,
        batch=given[:-1].numel(),
        in_channels=module.in_features,
        out_channels=module.out_features,
        kernel=(1, 1),
        stride=(1, 1),
        padding=(0, 0),
        dilation=(1, 1),
        groups=1,
        in_height=1,
        in_width=1,
        out_height=1,
        out_width=1,
        bias=module.bias is not None,
    )


def matrix_tflops(gpu: Gpu, dtype: str, math: str) -> float:
    """Return the rate at which a card can multiply in a data type; float32 in `math` "tf32" where the card has it."""
    if dtype != "float32":
        return gpu.fp16_tflops
    return (gpu.tf32_tflops if math == "tf32" else None) or gpu.fp32_tflops


def of(layers: Sequence[Layer], gpu: Gpu, dtype: str, math: str) -> Floor:
    """Return the floor of a pass over these layers on a card."""
    per_ms = matrix_tflops(gpu, dtype, math) * 1e9
    bytes_per_ms = gpu.bandwidth_gbps * 1e6
    work = [(roofline.flops(layer), roofline.minimum_bytes(layer, roofline.ELEMENT_BYTES[dtype])) for layer in layers]
    flops, least_bytes = sum(flops for flops, _ in work), sum(moved for _, moved in work)
    return Floor(
        flops=flops,
        minimum_bytes=least_bytes,
        memory_ms=least_bytes / bytes_per_ms,
        compute_ms=flops / per_ms,
        time_ms=sum(max(flops / per_ms, moved / bytes_per_ms) for flops, moved in work),
    )
