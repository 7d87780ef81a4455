#!/usr/bin/env python3
"""Kernels of the inference engine `fused` for channels last: the libraries', this project's, and the lower bound.

Max pooling, means, layer normalisation; depthwise convolutions with bias and activation; first layers and convolutions
with bias and ReLU, with max pooling, an addition or the next convolution behind them; a product with GELU.

The libraries' time is the least of all ways to call them: cuDNN's plans by its heuristic and by PyTorch's search,
images padded or not, 1×1 as convolution and as product, activations by PyTorch and in the kernel that adds the bias.

python benchmarks/channels_last.py                        # float16, batch 1, 32 and 256
python benchmarks/channels_last.py --dtype bfloat16 --batch-sizes 8
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from convscope.cli.display import table
from convscope.cli.options import find_device
from convscope.convolution.backends import PlanThread, searching
from convscope.cudnn.shape import output_extents
from convscope.gpus import Gpu, identify
from convscope.inference.engines.fused.first import FirstConvolution, PooledFirstConvolution
from convscope.inference.engines.fused.parts import parts_of
from convscope.inference.engines.fused.rows import Normalisation, RowProduct, Rows
from convscope.inference.engines.fused.steps import FusedConvolution, FusedProduct, MaximumPooling, MeanOfPixels
from convscope.inference.engines.fused.tails import DepthwiseConvolution, TailedConvolution
from convscope.timing import graphs

POOLS = {"max pool, ResNet, 64 × 112²": (64, 112, (3, 2, 1)), "max pool, GoogLeNet, 192 × 56²": (192, 56, (3, 2, 1)),
         "max pool, VGG-16, 64 × 224²": (64, 224, (2, 2, 0))}  # fmt: skip
MEANS = {"mean, MobileNetV3, 120 × 28²": (120, 28), "mean, EfficientNet, 1152 × 7²": (1152, 7)}
NORMS = {"LayerNorm, ConvNeXt, 96 × 56²": (96, 56), "LayerNorm, ConvNeXt, 384 × 14²": (384, 14)}
DEPTHWISE = {"EfficientNet, 96 × 112², 3×3/2, SiLU": (96, 112, (3, 2, 1), nn.SiLU(), "silu"),
             "EfficientNet, 240 × 28², 5×5, SiLU": (240, 28, (5, 1, 2), nn.SiLU(), "silu"),
             "MobileNetV3, 672 × 14², 3×3, Hardswish": (672, 14, (3, 1, 1), nn.Hardswish(), "hardswish"),
             "ConvNeXt, 96 × 56², 7×7": (96, 56, (7, 1, 3), nn.Identity(), ""),
             "ConvNeXt, 384 × 14², 7×7": (384, 14, (7, 1, 3), nn.Identity(), "")}  # fmt: skip
FIRST = {"ResNet, 3 × 224² → 64, 7×7/2": (64, (7, 2, 3)), "EfficientNet, 3 × 224² → 32, 3×3/2": (32, (3, 2, 1))}
POOLED_FIRST = "ResNet, 3 × 224² → 64, 7×7/2"
WHOLE = {
    "ResNet, 64 × 56² → 64, 3×3": (64, 56, 64, 3),
    "ResNet, 512 × 7² → 512, 3×3": (512, 7, 512, 3),
    "ResNet, 256 × 14² → 1024, 1×1": (256, 14, 1024, 1),
    "ResNet, 1024 × 14² → 256, 1×1": (1024, 14, 256, 1),
}
PAIRS = {"ResNet, 64 × 56² → 256 + → 64": (64, 56, 256, 64), "ResNet, 128 × 28² → 512 + → 128": (128, 28, 512, 128)}
PRODUCTS = {"ConvNeXt, 96 × 56² → 384, GELU": (96, 56, 384), "ConvNeXt, 384 × 14² → 1536, GELU": (384, 14, 1536)}
SAMPLES = 50


@dataclass(frozen=True)
class Case:
    """A layer: its input without the batch, N × C × H × W or with the channels last, and who computes it.

    Attributes:
        libraries: ways to compute it by PyTorch and cuDNN; the first is what the others are checked against.
        own: the way by this project's kernel.
        operations: of an image.
        between: elements of an image that are moved beside input and output.
    """

    name: str
    size: tuple[int, ...]
    libraries: tuple[nn.Module, ...]
    own: nn.Module
    operations: float = 0.0
    between: int = 0

    def input(self, batch: int, **placed: Any) -> torch.Tensor:
        """Return random numbers for a batch."""
        x = torch.randn(batch, *self.size, **placed)
        return x if isinstance(self.own, (Normalisation, Rows)) else x.contiguous(memory_format=torch.channels_last)


class Own(nn.Module):
    """A convolution or product with its bias and activation by this project's kernel, with blocks chosen for it."""

    def __init__(self, other: nn.Module) -> None:
        super().__init__()
        parts = parts_of(other)
        assert parts is not None
        self.weight, self.bias = parts.weight, parts.bias
        self._options, self._kind = parts.options, parts.kind
        self._kernel: Any = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return activation(convolution(x) + bias)."""
        from convscope.kernels.channels_last.convolution import Convolution
        from convscope.kernels.channels_last.windows import Window

        (stride, padding, dilation), kernel = self._options, tuple(self.weight.shape[2:])
        size: Any = tuple(output_extents(x.shape[2:], kernel, padding, stride, dilation))
        if self._kernel is None:
            window: Any = Window(kernel, stride, padding, dilation)  # type: ignore[arg-type]
            self._kernel = Convolution(self.weight.detach(), self.bias.detach(), window, self._kind)
        y: torch.Tensor = self._kernel(x, None, size, self._kernel.choose(x, None, size).blocks)
        return y


class Pair(nn.Module):
    """A 1×1 convolution with an addition of ones and ReLU, and one over its output, by cuDNN or by one kernel."""

    def __init__(self, first: FusedConvolution, second: FusedConvolution, own: bool) -> None:
        super().__init__()
        self.first, self.second, self._own = first, second, own
        self._added: dict[torch.Size, torch.Tensor] = {}
        self._kernel: Any = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the output of the second; that of the first is stored too."""
        if x.shape not in self._added:
            ones = torch.ones_like(x[:, :1]).expand(-1, len(self.first.weight), -1, -1)
            self._added[x.shape] = ones.contiguous(memory_format=torch.channels_last)
        added = self._added[x.shape]
        if not self._own:
            y: torch.Tensor = self.second(self.first(x, added))
            return y
        from convscope.kernels.channels_last.joined import Joined

        if self._kernel is None:
            one, other = ((each.weight.detach(), each.bias.detach()) for each in (self.first, self.second))
            self._kernel = Joined(*one, *other)
        z: torch.Tensor = self._kernel(x, added, self._kernel.choose(x, added).blocks)[1]
        return z


def with_relu(conv: nn.Conv2d) -> tuple[nn.Module, ...]:
    """Return the ways of the libraries to compute a convolution with its bias and ReLU."""
    padded = [FusedConvolution(conv, channels) for channels in (4, 8) if conv.in_channels < channels]
    products = [FusedProduct(conv)] if conv.kernel_size == (1, 1) else []
    return FusedConvolution(conv), nn.Sequential(conv, nn.ReLU()), TailedConvolution(conv, "relu"), *padded, *products


def cases() -> Iterator[Case]:
    """Yield each layer."""
    ways: tuple[nn.Module, ...]
    for name, (channels, px, window) in POOLS.items():
        yield Case(name, (channels, px, px), (nn.MaxPool2d(*window),), MaximumPooling(nn.MaxPool2d(*window)))
    for name, (channels, px) in MEANS.items():
        pool = nn.AdaptiveAvgPool2d(1)
        yield Case(name, (channels, px, px), (pool,), MeanOfPixels(pool))
    for name, (channels, px) in NORMS.items():
        norm = nn.LayerNorm(channels, eps=1e-6)
        yield Case(name, (px, px, channels), (norm,), Normalisation(norm))
    for name, (channels, px, (side, stride, padding), activation, kind) in DEPTHWISE.items():
        conv = nn.Conv2d(channels, channels, side, stride, padding, groups=channels)
        ways = nn.Sequential(conv, activation), TailedConvolution(conv, kind)
        yield Case(name, (channels, px, px), ways, DepthwiseConvolution(conv, kind))
    for name, (filters, (side, stride, padding)) in FIRST.items():
        conv = nn.Conv2d(3, filters, side, stride, padding)
        ways, operations = with_relu(conv), 2 * 3 * side**2 * filters * (224 // stride) ** 2
        parts = parts_of(ways[0])
        assert parts is not None
        own = FirstConvolution(ways[0], parts)
        yield Case(name, (3, 224, 224), ways, own, operations)
        if name == POOLED_FIRST:
            maxima = nn.MaxPool2d(3, 2, 1)
            ways = tuple(nn.Sequential(way, maxima) for way in ways)
            yield Case(f"{name}, max pool", (3, 224, 224), ways, PooledFirstConvolution(own, maxima), operations)
    for name, (channels, px, filters, side) in WHOLE.items():
        ways = with_relu(nn.Conv2d(channels, filters, side, padding=side // 2))
        yield Case(name, (channels, px, px), ways, Own(ways[0]), 2 * channels * side**2 * filters * px**2)
    for name, (channels, px, filters, outputs) in PAIRS.items():
        pair = FusedConvolution(nn.Conv2d(channels, filters, 1)), FusedConvolution(nn.Conv2d(filters, outputs, 1))
        operations = 2 * filters * (channels + outputs) * px**2
        yield Case(name, (channels, px, px), (Pair(*pair, False),), Pair(*pair, True), operations, 2 * filters * px**2)
    for name, (channels, px, outputs) in PRODUCTS.items():
        linear = nn.Linear(channels, outputs)
        ways = nn.Sequential(linear, nn.GELU()), Rows(RowProduct(linear, "gelu"), False)
        own_way: Any = Own(RowProduct(linear, "gelu"))
        yield Case(name, (px, px, channels), ways, Rows(own_way, False), 2 * channels * outputs * px**2)


def time_us(module: nn.Module, x: torch.Tensor) -> float:
    """Return the median time of a call in a captured graph."""
    with torch.inference_mode(), graphs.capture(lambda: module(x)) as captured:
        graphs.settle(captured)
        return 1e3 * statistics.median(graphs.replay_times_ms(captured, SAMPLES))


def best_us(ways: Sequence[nn.Module], x: torch.Tensor) -> float:
    """Return the least time of a call, of several ways to compute the same, with plans by heuristic and by search."""
    found = []
    for is_searched in (False, True):
        with searching(is_searched, every=True), PlanThread(x.device) as thread:
            found += [thread.run(partial(time_us, way, x)) for way in ways]
    return min(found)


def floor_us(case: Case, card: Gpu | None, x: torch.Tensor, y: torch.Tensor) -> float:
    """Return the longer of the time to move input, output and weights once, and of the operations at the peak rate."""
    if card is None:
        return float("nan")
    elements = sum(each.numel() for each in (x, y, *case.libraries[0].parameters())) + case.between * len(x)
    moved = elements * x.element_size()
    rate = card.tflops(str(x.dtype).removeprefix("torch."), "fp32")
    return max(moved / (card.bandwidth_gbps * 1e3), case.operations * len(x) / (rate * 1e6))


def row(case: Case, batch: int, card: Gpu | None, placed: dict[str, Any]) -> tuple[str, ...]:
    """Return the line of a layer at a batch size, checked before it is timed."""
    x = case.input(batch, **placed)
    with torch.inference_mode():
        expected = case.libraries[0](x)
        for each in (*case.libraries[1:], case.own):
            torch.testing.assert_close(each(x), expected, rtol=2e-2, atol=2e-2)
    libraries_us, own_us = best_us(case.libraries, x), time_us(case.own, x)
    floor = floor_us(case, card, x, expected)
    numbers = f"{libraries_us:.1f}", f"{own_us:.1f}", f"{libraries_us / own_us:.2f}", f"{floor:.1f}"
    return case.name, str(batch), *numbers, f"{own_us / floor:.2f}"


def main() -> None:
    """Print the table."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--dtype", default="float16", choices=("float16", "bfloat16"))
    options.add_argument("--batch-sizes", default="1,32,256")
    asked = options.parse_args()
    device, name = find_device("cuda", "channels_last.py times a GPU"), torch.cuda.get_device_name()
    placed: dict[str, Any] = {"device": device, "dtype": getattr(torch, asked.dtype)}
    rows = []
    for case in cases():
        for each in (*case.libraries, case.own):
            each.to(**placed, memory_format=torch.channels_last)
        rows += [row(case, int(batch), identify(name), placed) for batch in asked.batch_sizes.split(",")]
    print(f"{name}, torch {torch.__version__}, {asked.dtype}, channels last")
    print(table(("layer", "batch", "libraries, µs", "Triton, µs", "times as fast", "floor, µs", "× floor"), rows))


if __name__ == "__main__":
    main()
