#!/usr/bin/env python3
"""Cost of CUDA events to the layers of a captured pass, by position: equal convolutions around one on several streams.

cuDNN launches the kernels of a grouped convolution on several streams; behind it, a record of an event can cost more
or less than before. Prints, asserts nothing. On a GPU:

    python benchmarks/events.py [--equal 6]
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from statistics import median

import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from convscope.cli.display import table
from convscope.cli.options import find_device
from convscope.convolution import backends
from convscope.timing import graphs
from convscope.timing.layer_times import instrumented, overhead_of
from profiler import CUDALayerTimer

SAMPLES, WARMUP = 40, 10
CHANNELS, SIZE_PX = 64, 28
GROUPED_CHANNELS, GROUPED_SIZE_PX = 192, 91
AMONG = {"6 groups": 6, "no groups": 1}


class Row(nn.Module):
    """Convolutions beside each other, each with an input of its own: equal ones, another, and equal ones again."""

    def __init__(self, equal: int, groups: int) -> None:
        super().__init__()
        alike = [nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1) for _ in range(2 * equal)]
        other = nn.Conv2d(GROUPED_CHANNELS, GROUPED_CHANNELS, 1, groups=groups)
        self.convolutions = nn.ModuleList([*alike[:equal], other, *alike[equal:]])
        small, large = (1, CHANNELS, SIZE_PX, SIZE_PX), (1, GROUPED_CHANNELS, GROUPED_SIZE_PX, GROUPED_SIZE_PX)
        for number in range(len(self.convolutions)):
            self.register_buffer(f"input{number}", torch.randn(large if number == equal else small))

    def forward(self) -> list[torch.Tensor]:
        """Return the output of each."""
        return [each(self.get_buffer(f"input{number}")) for number, each in enumerate(self.convolutions)]


def rows_of(equal: int, groups: int, device: torch.device) -> tuple[list[tuple[str, ...]], float, float]:
    """Measure one pass; return a row for each convolution, the time of the pass, and the sum of theirs, in µs."""
    model = Row(equal, groups).to(device)
    with graphs.capture(model) as plain, instrumented(plain, model, CUDALayerTimer(model, device.type)) as watched:
        graphs.settle(plain)
        times = watched.times(SAMPLES, WARMUP)
    overhead = overhead_of([times], is_row=True)
    assert overhead is not None
    rows = []
    for number, (read_ms, less_ms) in enumerate(zip(times.layers_ms, times.less(overhead), strict=True)):
        read_us, less_us = 1e3 * median(read_ms), 1e3 * median(less_ms)
        cells = read_us, times.empty_us[number], less_us, read_us - overhead.pair_us
        rows.append((str(number), "other" if number == equal else "equal", *(f"{cell:.2f}" for cell in cells)))
    return rows, 1e3 * median(times.passes_ms), 1e3 * sum(map(median, times.less(overhead)))


def main() -> int:
    """Print a table for each convolution among the equal ones."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--equal", type=int, default=6, metavar="N", help="equal convolutions on each side")
    asked = options.parse_args()
    device = find_device("cuda", "events.py times a GPU")
    print(f"{torch.cuda.get_device_name(device)}, torch {torch.__version__}, tf32, batch 1, \u00b5s")
    with torch.inference_mode(), backends.math("tf32"):
        for name, groups in AMONG.items():
            print(f"the one in the middle has {name}")
            header = "position", "convolution", "events", "empty pair", "time", "with one overhead for all"
            rows, pass_us, sum_us = rows_of(asked.equal, groups, device)
            print(table(header, rows), f"the pass takes {pass_us:.1f}, its layers {sum_us:.1f}", sep="\n", end="\n\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
