#!/usr/bin/env python3
"""Energy of one inference from power × time, without the project's meter. Prints, asserts nothing.

python benchmarks/power_time.py --model vgg16 --algorithm fft --size 512

The captured pass is replayed with a wait after each; the time of a replay is the host's, the power the energy counter's
slope between two of its ticks. `run_profile.py --unsupported fallback` measures the same pass.
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
from functools import partial
from pathlib import Path

import pynvml
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from convscope.cli.options import MATHS
from convscope.convolution import backends, models, swap
from convscope.convolution.assignment import assign
from convscope.convolution.operator import card_check
from convscope.profiling.request import make_run
from convscope.timing import graphs

RAMP_S, TAIL_S = 1.5, 0.3  # at the ends, of which no tick is used


class Counter(threading.Thread):
    """Looks at the energy counter of the current device until stopped; keeps time and joules at each change."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        pynvml.nvmlInit()
        uuid = torch.cuda.get_device_properties(torch.cuda.current_device()).uuid
        self._card = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
        self._stopped = threading.Event()
        self.ticks: list[tuple[float, float]] = []

    def run(self) -> None:
        """Look each 2 ms."""
        while not self._stopped.wait(0.002):
            joules = pynvml.nvmlDeviceGetTotalEnergyConsumption(self._card) / 1e3
            if not self.ticks or joules != self.ticks[-1][1]:
                self.ticks.append((time.perf_counter(), joules))

    def power_w(self, began_s: float, ended_s: float) -> float:
        """Stop, and return the mean power between the first and the last tick of a stretch of time."""
        self._stopped.set()
        self.join()
        inside = [tick for tick in self.ticks[1:] if began_s <= tick[0] <= ended_s]
        (first_s, first_j), (last_s, last_j) = inside[0], inside[-1]
        return (last_j - first_j) / (last_s - first_s)


def main() -> int:
    """Print power, time and energy."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--model", default="vgg16")
    options.add_argument("--algorithm", default="fft")
    options.add_argument("--size", type=int, default=512)
    options.add_argument("--math", choices=MATHS, default="tf32")
    options.add_argument("--seconds", type=float, default=12)
    asked = options.parse_args()
    device, edges = torch.device("cuda", torch.cuda.current_device()), (asked.size, asked.size)
    run = make_run(
        asked.model, asked.algorithm, num_sizes=1, input_size_range=edges, math=asked.math, unsupported="fallback"
    )
    with torch.inference_mode(), backends.math(asked.math):
        model = models.build(asked.model).to(device)
        layers = models.convolutions(asked.model, asked.size, 1)
        swap.Swap(model).apply(dict(assign(run, layers, card_check(device)).algorithms))
        with graphs.capture(partial(model, models.images(1, asked.size, 0).to(device))) as captured:
            graphs.settle(captured)
            counter = Counter()
            counter.start()
            began_s, replays = time.perf_counter(), 0
            while time.perf_counter() - began_s < asked.seconds:
                captured.replay()
                torch.cuda.synchronize()
                replays += 1
            ended_s = time.perf_counter()
    power_w, each_s = counter.power_w(began_s + RAMP_S, ended_s - TAIL_S), (ended_s - began_s) / replays
    print(f"{torch.cuda.get_device_name()}, {run.model}, {run.algorithm}, {asked.size} px, {asked.math}")
    print(f"{replays} replays, {each_s * 1e3:.3f} ms each, {power_w:.1f} W: {power_w * each_s:.3f} J")
    return 0


if __name__ == "__main__":
    sys.exit(main())
