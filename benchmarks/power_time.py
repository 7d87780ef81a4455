#!/usr/bin/env python3
"""Energy of one inference from power × time, without the project's meter. Prints, asserts nothing.

python benchmarks/power_time.py --model vgg16 --algorithm fft --size 512

The captured pass is replayed with the next one queued already, so that the GPU works on; the time of a replay is the
host's, the power the energy counter's slope between two of its ticks. `run_profile.py --unsupported fallback` measures
the same pass.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import threading
import time
from collections import deque
from functools import partial
from pathlib import Path

import pynvml
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from convscope.cli.options import MATHS
from convscope.convolution import backends, swap
from convscope.convolution.assignment import assign
from convscope.convolution.operator import card_check, release
from convscope.convolution.sources.network import Network
from convscope.profiling.request import make_run
from convscope.timing import graphs, placement

RAMP_S, TAIL_S = 1.5, 0.3  # at the ends, of which no tick is used
QUEUED = 1  # replays behind the one that runs


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


def replayed(captured: graphs.Captured, seconds: float) -> tuple[int, float, float]:
    """Replay for some seconds; return the number of replays, the seconds of each, and the power in watts."""
    graphs.settle(captured)
    torch.cuda.synchronize()  # it leaves replays in the queue
    counter = Counter()
    counter.start()
    ends = deque[torch.cuda.Event]()
    began_s, replays = time.perf_counter(), 0
    while time.perf_counter() - began_s < seconds or ends:
        if time.perf_counter() - began_s < seconds:
            captured.replay()
            ends.append(torch.cuda.Event())
            ends[-1].record()
            replays += 1
        if len(ends) > QUEUED or time.perf_counter() - began_s >= seconds:
            ends.popleft().synchronize()
    ended_s = time.perf_counter()
    return replays, (ended_s - began_s) / replays, counter.power_w(began_s + RAMP_S, ended_s - TAIL_S)


def main() -> int:
    """Print power, time and energy."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--model", default="vgg16")
    options.add_argument("--algorithm", default="fft")
    options.add_argument("--size", type=int, default=512)
    options.add_argument("--math", choices=MATHS, default="tf32")
    options.add_argument("--seconds", type=float, default=6, help="of replays in each placement")
    options.add_argument("--placements", type=int, default=3, help="in memory, each with a capture of its own")
    asked = options.parse_args()
    device, edges = torch.device("cuda", torch.cuda.current_device()), (asked.size, asked.size)
    run = make_run(
        asked.model, asked.algorithm, num_sizes=1, input_size_range=edges, math=asked.math, unsupported="fallback"
    )
    network = Network.of(run)
    found_j = []
    with torch.inference_mode(), backends.math(asked.math):
        model, inputs = network.on(device), network.inputs(asked.size, device)
        swap.Swap(model).apply(dict(assign(run, network.layers(asked.size), card_check(device)).algorithms))
        print(f"{torch.cuda.get_device_name()}, {run.model}, {run.algorithm}, {asked.size} px, {asked.math}")
        for place in range(asked.placements):
            with placement.moved(model, inputs, place) as there, graphs.capture(partial(model, *there)) as captured:
                replays, each_s, power_w = replayed(captured, asked.seconds)
            release(device)
            found_j.append(power_w * each_s)
            print(f"{replays} replays, {each_s * 1e3:.3f} ms each, {power_w:.1f} W: {found_j[-1]:.3f} J", flush=True)
    print(f"mean: {statistics.fmean(found_j):.3f} J")
    return 0


if __name__ == "__main__":
    sys.exit(main())
