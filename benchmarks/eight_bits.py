#!/usr/bin/env python3
"""What 16 and 8 bits cost and gain: top-1, error and speed of one trained ResNet-50 by the engines `fused`, `fused-int8`.

python benchmarks/eight_bits.py [--batch-sizes 1,256] [--epochs 25]

It is trained here, for half a minute, on scikit-learn's digits enlarged to 224 pixels; 360 of the 1,797 are held out.
Untrained weights do not do: the roundings of 8 bits move the outputs of such a network as much as its images do. It
prints figures and asserts nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
from pathlib import Path

import torch
import torchvision
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from convscope.cli.display import table
from convscope.cli.options import find_device
from convscope.cli.parser import whole_numbers
from convscope.convolution import backends
from convscope.convolution.backends import PlanThread
from convscope.inference import agreement
from convscope.inference.engines import catalogue
from convscope.inference.engines.runners import Runner
from convscope.inference.engines.workload import Workload
from convscope.training import datasets
from convscope.training.datasets import Pictures

SIDE_PX, BATCH, RATE, SEED = 224, 128, 1e-3, 0
WAYS = (("eager", "float32"), ("fused", "float16"), ("fused", "bfloat16"), ("fused-int8", "float16"))
SECONDS, CALLS, WARMUP = 2.0, 200, 20


def trained(images: Pictures, epochs: int, device: torch.device) -> nn.Module:
    """Train a ResNet-50 in bfloat16 where that is safe; return it in float32 on the CPU."""
    torch.manual_seed(SEED)
    model = torchvision.models.resnet50(num_classes=datasets.CLASSES).to(device, memory_format=torch.channels_last)
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
    return model.eval().cpu()


def outputs_of(runner: Runner, images: torch.Tensor, batch_size: int) -> torch.Tensor:
    """Return the outputs for all images, in batches of one size; the last one repeats what it needs."""
    count = len(images)
    starts = [min(start, count - batch_size) for start in range(0, count, batch_size)]
    outputs = torch.empty(count, datasets.CLASSES)
    for start in starts:
        outputs[start : start + batch_size] = runner.output(images[start : start + batch_size])
    return outputs


def main() -> int:
    """Train the network, build each engine, and print a line for each."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--batch-sizes", type=whole_numbers, default=[1, 256])
    options.add_argument("--epochs", type=int, default=25)
    asked = options.parse_args()
    device = find_device("cuda", "eight_bits.py times a GPU")
    loaded = datasets.load("digits", Path(), SIDE_PX)
    assert loaded.train is not None
    assert loaded.held_out is not None
    model = trained(loaded.train, asked.epochs, device)
    images, labels = loaded.held_out.__getitems__(range(len(loaded.held_out)))
    with torch.inference_mode(), backends.math("fp32"):
        wide = model.double().to(device)
        exact = torch.cat([wide(some.double().to(device)).cpu() for some in images.split(32)])
        model = model.float().to(device)
        judges = {
            name: agreement.judged(model, images[: agreement.JUDGED_IMAGES].to(device), [], name, "fp32")
            for name in ("float32", "float16", "bfloat16", "int8")
        }
        model = model.cpu()
    print(f"ResNet-50, digits, {len(images)} held out: top-1 in float64 {top1_pct(exact, labels):.2f} %")
    rows = []
    for engine, dtype in WAYS:
        judge = judges[catalogue.ENGINES[engine].rounds or dtype]
        for batch_size in asked.batch_sizes:
            with contextlib.ExitStack() as stack:
                folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
                thread = stack.enter_context(PlanThread(device))
                workload = Workload(
                    "resnet50", model, images[:batch_size], device, dtype, "nhwc", "fp32", folder, None, print,  # type: ignore[arg-type]
                    more=lambda count: loaded.train.__getitems__(range(count))[0],  # type: ignore[union-attr]
                )  # fmt: skip
                with backends.math("fp32"), backends.searching(engine != catalogue.BASELINE, every=True):
                    runner, cost = thread.run(lambda workload=workload: catalogue.make(engine, workload))
                    stack.callback(thread.run, runner.close)
                    found = thread.run(lambda runner=runner: outputs_of(runner, images, batch_size))
                    thread.run(lambda runner=runner: runner.latencies_ms(WARMUP))
                    times_ms = sorted(thread.run(lambda runner=runner: runner.latencies_ms(CALLS)))
                    calls, seconds = thread.run(lambda runner=runner: runner.window(SECONDS))
            rows.append((
                engine, dtype, str(batch_size), f"{top1_pct(found, labels):.2f}",
                f"{agreement.top1_agreement_pct(found, exact):.2f}", f"{judge.error(found, exact):.4f}",
                f"{judge.allowed:.4f}", f"{times_ms[len(times_ms) // 2]:.3f}", f"{calls * batch_size / seconds:,.0f}",
            ))  # fmt: skip
            print(f"{engine}, {dtype}, {batch_size}: {cost.remark}", flush=True)
    header = (
        "engine",
        "type",
        "batch",
        "top-1, %",
        "as float64, %",
        "image error",
        "allowed",
        "median, ms",
        "images/s",
    )
    print(f"{torch.cuda.get_device_name(device)}, torch {torch.__version__}, channels last")
    print(table(header, rows))
    return 0


def top1_pct(outputs: torch.Tensor, labels: torch.Tensor) -> float:
    """Return the percentage of images whose largest output is of their class."""
    return 100 * float((outputs.argmax(1) == labels).double().mean())


if __name__ == "__main__":
    sys.exit(main())
