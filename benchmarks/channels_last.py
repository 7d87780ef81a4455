#!/usr/bin/env python3
"""Kernels of the inference engine `fused` for channels last: PyTorch's, this project's, and the rate of the memory.

Max pooling of first layers; depthwise convolutions with their bias and activation.

python benchmarks/channels_last.py                        # float16, batch 1, 32 and 256
python benchmarks/channels_last.py --dtype float32 --batch-sizes 8
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from convscope.cli.display import table
from convscope.gpus import identify
from convscope.inference.engines.fused.steps import MaximumPooling
from convscope.inference.engines.fused.tails import DepthwiseConvolution
from convscope.timing import graphs

POOLS = {"ResNet, 64 × 112²": (64, 112, (3, 2, 1)), "GoogLeNet, 192 × 56²": (192, 56, (3, 2, 1)),
         "VGG-16, 64 × 224²": (64, 224, (2, 2, 0))}  # fmt: skip
DEPTHWISE = {"EfficientNet, 96 × 112², 3×3/2, SiLU": (96, 112, (3, 2, 1), nn.SiLU(), "silu"),
             "EfficientNet, 240 × 28², 5×5, SiLU": (240, 28, (5, 1, 2), nn.SiLU(), "silu"),
             "MobileNetV3, 672 × 14², 3×3, Hardswish": (672, 14, (3, 1, 1), nn.Hardswish(), "hardswish"),
             "ConvNeXt, 96 × 56², 7×7": (96, 56, (7, 1, 3), nn.Identity(), ""),
             "ConvNeXt, 384 × 14², 7×7": (384, 14, (7, 1, 3), nn.Identity(), "")}  # fmt: skip
SAMPLES = 50


def time_us(module: nn.Module, x: torch.Tensor) -> float:
    """Return the median time of a call in a captured graph."""
    with torch.inference_mode(), graphs.capture(lambda: module(x)) as captured:
        graphs.settle(captured)
        return 1e3 * statistics.median(graphs.replay_times_ms(captured, SAMPLES))


def cases() -> Iterator[tuple[str, int, int, nn.Module, nn.Module]]:
    """Yield each layer's name, channels and pixels, PyTorch's modules and this project's."""
    for name, (channels, px, window) in POOLS.items():
        yield name, channels, px, nn.MaxPool2d(*window), MaximumPooling(nn.MaxPool2d(*window))
    for name, (channels, px, (kernel, stride, padding), activation, kind) in DEPTHWISE.items():
        conv = nn.Conv2d(channels, channels, kernel, stride, padding, groups=channels)
        yield name, channels, px, nn.Sequential(conv, activation), DepthwiseConvolution(conv, kind)


def main() -> None:
    """Print the table."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--dtype", default="float16", choices=("float32", "float16", "bfloat16"))
    options.add_argument("--batch-sizes", default="1,32,256")
    asked = options.parse_args()
    name = torch.cuda.get_device_name()
    card = identify(name)
    rows = []
    placed: dict[str, Any] = {"device": "cuda", "dtype": getattr(torch, asked.dtype)}
    for case, channels, px, torchs, own in cases():
        for each in (torchs, own):
            each.to(**placed, memory_format=torch.channels_last)
        for batch in map(int, asked.batch_sizes.split(",")):
            x = torch.randn(batch, channels, px, px, **placed).contiguous(memory_format=torch.channels_last)
            with torch.inference_mode():
                expected = torchs(x)
                torch.testing.assert_close(own(x), expected, rtol=2e-2, atol=2e-2)  # before anything is timed
                moved = (x.numel() + expected.numel()) * x.element_size()
            torchs_us, own_us = time_us(torchs, x), time_us(own, x)
            floor = moved / (card.bandwidth_gbps * 1e3) if card else float("nan")
            cells = (
                f"{torchs_us:.1f}",
                f"{own_us:.1f}",
                f"{torchs_us / own_us:.2f}",
                f"{floor:.1f}",
                f"{own_us / floor:.2f}",
            )
            rows.append((case, str(batch), *cells))
    print(f"{name}, torch {torch.__version__}, {asked.dtype}, channels last")
    print(table(("layer", "batch", "PyTorch, µs", "Triton, µs", "times as fast", "memory, µs", "× memory"), rows))


if __name__ == "__main__":
    main()
