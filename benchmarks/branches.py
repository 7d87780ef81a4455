#!/usr/bin/env python3
"""Branches of a model one after another and side by side, as the inference engine `fused` runs them in a CUDA graph.

Batch normalisation folded, convolution with bias, addition and ReLU one call of cuDNN (its heuristic's plans), max
pooling by this project's kernel, channels last; both graphs have the same plans. Results are compared before timing.

python benchmarks/branches.py                        # float16, five models, batch 1, 8, 32 and 256
python benchmarks/branches.py --models resnet50 --batch-sizes 1
"""

from __future__ import annotations

import argparse
import copy
import statistics
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
import torchvision
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from convscope.cli.display import table
from convscope.cli.options import find_device
from convscope.convolution import backends
from convscope.convolution.fusion import branches, graphs
from convscope.convolution.reference import relative_distance
from convscope.inference import weights
from convscope.inference.engines.fused import steps
from convscope.timing.stopwatch import Stopwatch

MODELS = ("resnet50", "googlenet", "inception_v3", "squeezenet1_0", "regnet_y_400mf")
OPTIONS = {name: {"aux_logits": name == "inception_v3", "init_weights": True} for name in ("googlenet", "inception_v3")}
PX = {"inception_v3": 299}  # others: 224
PLACEMENTS, SAMPLES, SETTLE_S = 3, 20, 0.1


def models(name: str, dtype: torch.dtype, device: torch.device) -> tuple[nn.Module, nn.Module, int]:
    """Return a model in which everything follows on one stream, one with branches on others, and their number."""
    torch.manual_seed(0)
    model = torchvision.models.get_model(name, **OPTIONS.get(name, {})).eval()
    weights.draw(model, torch.randn(8, 3, *[PX.get(name, 224)] * 2), seed=0)  # else some leave the range of float16
    one, _ = graphs.fused(graphs.folded(model)[0], steps.step_of)
    steps.with_maxima(one)
    one = one.to(device, dtype, memory_format=torch.channels_last)  # type: ignore[call-overload]
    several = copy.deepcopy(one)
    return one, several, branches.with_branches(several)


def time_ms(stopwatch: Stopwatch, step: Callable[[], object]) -> float:
    """Return the mean time of a step in a replayed graph, over placements in memory."""
    times = stopwatch.measure(step, captures=PLACEMENTS, samples=SAMPLES, settle_s=SETTLE_S)
    return statistics.fmean(times.means_ms)


def main() -> None:
    """Print the table."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--models", default=",".join(MODELS))
    options.add_argument("--batch-sizes", default="1,8,32,256")
    options.add_argument("--dtype", default="float16", choices=("float32", "float16", "bfloat16"))
    asked = options.parse_args()
    device, dtype = find_device("cuda", "branches.py times a GPU"), getattr(torch, asked.dtype)
    stopwatch, rows = Stopwatch(device), []
    for name in asked.models.split(","):
        with torch.inference_mode(), backends.searching(False):
            one, several, count = models(name, dtype, device)
            for batch in map(int, asked.batch_sizes.split(",")):
                x = torch.randn(batch, 3, *[PX.get(name, 224)] * 2, device=device, dtype=dtype)
                x = x.contiguous(memory_format=torch.channels_last)
                assert (relative_distance(several(x), one(x).double()) or 0.0) < 1e-2  # before anything is timed
                before_ms, after_ms = (time_ms(stopwatch, partial(model, x)) for model in (one, several))
                cells = f"{before_ms:.3f}", f"{after_ms:.3f}", f"{before_ms / after_ms:.2f}"
                rows.append((name, str(count), str(batch), *cells))
    print(f"{torch.cuda.get_device_name(device)}, torch {torch.__version__}, {asked.dtype}, channels last; ms a pass")
    print(table(("model", "branches", "batch", "one after another", "side by side", "speed"), rows))


if __name__ == "__main__":
    main()
