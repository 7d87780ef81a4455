#!/usr/bin/env python3
"""Top-1, error and speed of a trained ResNet-50 in 16 and 8 bits, by the engines `fused` and `fused-int8`.

python benchmarks/eight_bits.py [--batch-sizes 1,256] [--epochs 25]

It is trained here, for half a minute, on scikit-learn's digits enlarged to 224 pixels; 360 of the 1,797 are held out.
Untrained weights do not do: the roundings of 8 bits move the outputs of such a network as much as its images do. It
prints figures and asserts nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import torch
import torchvision
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from convscope.cli.display import table
from convscope.cli.options import find_device, whole_numbers
from convscope.convolution import backends
from convscope.convolution.backends import PlanThread
from convscope.inference import agreement
from convscope.inference.engines import catalogue
from convscope.inference.engines.runners import Runner
from convscope.inference.engines.workload import Workload
from convscope.training import datasets
from convscope.training.datasets import Images, Pictures

SIDE_PX, BATCH, RATE, SEED = 224, 128, 1e-3, 0
WAYS = (("eager", "float32"), ("fused-int8", "float16"), ("fused", "float16"), ("fused", "bfloat16"))
ROUNDINGS = ("float32", "float16", "bfloat16", "int8")
SECONDS, CALLS, WARMUP = 2.0, 200, 20
HEADER = (
    *("engine", "type", "batch", "top-1, %", "as float64, %", "image error", "allowed", "median, ms", "images/s"),
)


def trained(images: Pictures, epochs: int, device: torch.device) -> nn.Module:
    """Train a ResNet-50 in bfloat16 where that is safe; return it in float32 on the CPU."""
    torch.manual_seed(SEED)
    model: nn.Module = torchvision.models.resnet50(num_classes=datasets.CLASSES)
    model.to(device).to(memory_format=torch.channels_last)
    steps = epochs * (len(images) // BATCH)
    optimizer = torch.optim.AdamW(model.parameters(), RATE)
    rates = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, total_steps=steps)
    loader = datasets.train_loader(images, BATCH, SEED, workers=0, pin=False)
    for epoch in range(epochs):
        loader.sampler.set_epoch(epoch)  # type: ignore[attr-defined]
        for given, labels in loader:
            with torch.autocast(device.type, torch.bfloat16):
                outputs = model(given.to(device, memory_format=torch.channels_last))
            loss = nn.functional.cross_entropy(outputs.float(), labels.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            rates.step()
    model.eval().cpu()
    return model


def outputs_of(runner: Runner, images: torch.Tensor, batch_size: int) -> torch.Tensor:
    """Return the outputs for all images, in batches of one size; the last one repeats what it needs."""
    count = len(images)
    starts = [min(start, count - batch_size) for start in range(0, count, batch_size)]
    outputs = torch.empty(count, datasets.CLASSES)
    for start in starts:
        outputs[start : start + batch_size] = runner.output(images[start : start + batch_size])
    return outputs


class Cell(NamedTuple):
    """An engine at one batch size: its outputs for all images, median latency, images/s, and how it was built."""

    outputs: torch.Tensor
    median_ms: float
    images_per_s: float
    remark: str | None


def measured(model: nn.Module, way: tuple[str, str], data: Images, device: torch.device, batch_size: int) -> Cell:
    """Build an engine in a thread of its own, which keeps its plans, run it on all held-out images, and time it."""
    engine, dtype = way
    images = every(data.held_out)[0]

    def done() -> Cell:
        with tempfile.TemporaryDirectory() as folder:
            workload = Workload(
                "resnet50", model, images[:batch_size], device, dtype, "nhwc", "fp32", Path(folder), no_bench, print,
                more=lambda count: every(data.train, count)[0],
            )  # fmt: skip
            runner, cost = catalogue.make(engine, workload)
            with contextlib.closing(runner):
                outputs = outputs_of(runner, images, batch_size)
                runner.latencies_ms(WARMUP)
                times_ms = runner.latencies_ms(CALLS)
                calls, seconds = runner.window(SECONDS)
        return Cell(outputs, statistics.median(times_ms), calls * batch_size / seconds, cost.remark)

    with PlanThread(device) as thread, backends.searching(engine != catalogue.BASELINE, every=True):
        return thread.run(done)


def no_bench(*_: object) -> NoReturn:
    """No engine here times single layers by a bench."""
    raise NotImplementedError


def every(pictures: Pictures | None, count: int | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the images of a part of the digits with their labels, all or the first."""
    assert pictures is not None
    return pictures.__getitems__(range(len(pictures) if count is None else count))


def main() -> int:
    """Train the network, build each engine, and print a line for each."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--batch-sizes", type=whole_numbers, default=[1, 256])
    options.add_argument("--epochs", type=int, default=25)
    asked = options.parse_args()
    device, data = find_device("cuda", "eight_bits.py times a GPU"), datasets.load("digits", Path(), SIDE_PX)
    assert data.train is not None
    model, (images, labels), rows = trained(data.train, asked.epochs, device), every(data.held_out), list[Any]()
    with backends.math("fp32"):
        wide, some = copy.deepcopy(model).double().to(device), images[: agreement.JUDGED_IMAGES].to(device)
        with torch.inference_mode():
            exact = torch.cat([wide(part.double().to(device)).cpu() for part in images.split(32)])
        narrow = copy.deepcopy(model).to(device)
        judges = {name: agreement.judged(narrow, some, [], name, "tf32") for name in ROUNDINGS}
        print(f"ResNet-50, digits, {len(images)} held out: top-1 in float64 {top1_pct(exact, labels):.2f} %")
        for way in WAYS:
            judge = judges[catalogue.ENGINES[way[0]].rounds or way[1]]
            for batch_size in asked.batch_sizes:
                found = measured(model, way, data, device, batch_size)
                print(f"{way[0]}, {way[1]}, {batch_size}: {found.remark}", flush=True)
                judged = judge.error(found.outputs, exact), judge.allowed
                shares = top1_pct(found.outputs, labels), agreement.top1_agreement_pct(found.outputs, exact)
                rows.append((
                    *way, str(batch_size), *(f"{share:.2f}" for share in shares), *(f"{each:.4f}" for each in judged),
                    f"{found.median_ms:.3f}", f"{found.images_per_s:,.0f}",
                ))  # fmt: skip
    print(f"{torch.cuda.get_device_name(device)}, torch {torch.__version__}, channels last")
    print(table(HEADER, rows))
    return 0


def top1_pct(outputs: torch.Tensor, labels: torch.Tensor) -> float:
    """Return the percentage of images whose largest output is of their class."""
    return 100 * float((outputs.argmax(1) == labels).double().mean())


if __name__ == "__main__":
    sys.exit(main())
