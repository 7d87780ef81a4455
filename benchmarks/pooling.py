#!/usr/bin/env python3
"""Maximum pooling of first layers, channels last: PyTorch's kernel, this project's, and the rate of the memory.

python benchmarks/pooling.py                        # float16, batch 1, 32 and 256
python benchmarks/pooling.py --dtype float32 --batch-sizes 8
"""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path

import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from convscope.cli.display import table
from convscope.gpus import identify
from convscope.inference.engines.fused_steps import MaximumPooling
from convscope.timing import graphs

CASES = {"ResNet, 64 × 112²": (64, 112, (3, 2, 1)), "GoogLeNet, 192 × 56²": (192, 56, (3, 2, 1)),
         "VGG-16, 64 × 224²": (64, 224, (2, 2, 0))}  # fmt: skip
SAMPLES = 50


def time_us(module: nn.Module, x: torch.Tensor) -> float:
    """Return the median time of a call in a captured graph."""
    with torch.inference_mode(), graphs.capture(lambda: module(x)) as captured:
        graphs.settle(captured)
        return 1e3 * statistics.median(graphs.replay_times_ms(captured, SAMPLES))


def main() -> None:
    """Print the table."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--dtype", default="float16", choices=("float32", "float16", "bfloat16"))
    options.add_argument("--batch-sizes", default="1,32,256")
    asked = options.parse_args()
    name = torch.cuda.get_device_name()
    card = identify(name)
    rows = []
    for case, (channels, px, window) in CASES.items():
        for batch in map(int, asked.batch_sizes.split(",")):
            x = torch.randn(batch, channels, px, px, device="cuda", dtype=getattr(torch, asked.dtype))
            x = x.contiguous(memory_format=torch.channels_last)
            pool = nn.MaxPool2d(*window)
            moved = x.numel() * x.element_size() + pool(x).numel() * x.element_size()
            own, torchs = time_us(MaximumPooling(pool), x), time_us(pool, x)
            floor = moved / (card.bandwidth_gbps * 1e3) if card else float("nan")
            cells = f"{torchs:.1f}", f"{own:.1f}", f"{torchs / own:.2f}", f"{floor:.1f}", f"{own / floor:.2f}"
            rows.append((case, str(batch), *cells))
    print(f"{name}, torch {torch.__version__}, {asked.dtype}, channels last")
    print(table(("layer", "batch", "PyTorch, µs", "Triton, µs", "times as fast", "memory, µs", "× memory"), rows))


if __name__ == "__main__":
    main()
