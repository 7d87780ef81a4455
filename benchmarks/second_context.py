#!/usr/bin/env python3
"""A second process on the card, and how long a captured pass takes beside it. Prints, asserts nothing.

python benchmarks/second_context.py [--model resnet50] [--math tf32]
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
from functools import partial
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from convscope.cli.display import table
from convscope.cli.options import MATHS, find_device
from convscope.convolution import backends, models
from convscope.timing import graphs

REPLAYS = 100
OTHER = "import sys, torch; torch.zeros(1).cuda().sum().item(); print(flush=True); sys.stdin.read()"


def second_process() -> subprocess.Popen[str]:
    """Start a process that uses the card once and then waits."""
    process = subprocess.Popen([sys.executable, "-c", OTHER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.readline()
    return process


def main() -> int:
    """Print the table."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--model", default="resnet50")
    options.add_argument("--math", choices=MATHS, default="tf32")
    asked = options.parse_args()
    device, rows = find_device("cuda", "second_context.py times a GPU"), list[tuple[str, ...]]()
    with torch.inference_mode(), backends.math(asked.math):
        step = partial(models.build(asked.model).to(device), models.images(1, 224, 0).to(device))
        step()
        first = graphs.capture(step)

        def look(moment: str, *captured: graphs.Captured) -> None:
            times_ms = [statistics.median(graphs.replay_times_ms(graph, REPLAYS)) for graph in captured]
            rows.append((moment, *(f"{time_ms:.4f}" for time_ms in times_ms), *[""] * (2 - len(captured))))

        graphs.settle(first)
        look("captured, alone on the card", first)
        other = second_process()
        look("another process has begun", first)
        second = graphs.capture(step)
        look("a second graph captured", first, second)
        other.communicate()
        look("the other process has ended", first, second)
        with graphs.capture(step):
            look("a third graph captured", first, second)
    print(
        f"{torch.cuda.get_device_name(device)}, torch {torch.__version__}, {asked.model}, {asked.math}, batch 1, 224 px"
    )
    print(table(("what happened", "first graph, ms", "second graph, ms"), rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
