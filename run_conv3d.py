#!/usr/bin/env python3
"""Study 3-D convolutions layer by layer: verify, compare, roofline, stress test, CosmoFlow end to end."""

from __future__ import annotations

import argparse
import hashlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from convscope.cli.parser import OneLineParser, as_program, command, note_by
from convscope.cli.signals import StopSignal
from convscope.errors import CONTINUE

if TYPE_CHECKING:
    import torch

    from convscope.conv3d.request import Conv3d
    from convscope.convolution.layer import Layer

NAME = "run_conv3d.py"


def parser() -> OneLineParser:
    """Return the command line; the flags of the study that this one follows are understood as well."""
    examples = "--params cosmoflow --verify --compare", "--params unet3d --batch-size 1 --plots"
    made = OneLineParser(prog=NAME, description=__doc__, examples=examples)
    made.add_argument("--params", "--paramscsv", default="cosmoflow", metavar="SET",
                      help="cosmoflow, unet3d, c3d, r3d_18, a CSV file, or model:torchvision:NAME")  # fmt: skip
    made.add_argument("--first-layer", "--currlayer", type=int, default=0, metavar="N", help="counted from 0")
    made.add_argument("--last-layer", "--lastlayer", type=int, metavar="N", help="end before this layer")
    made.add_argument("--implementation", default="all", metavar="NAME,…", help="all, or some; --list prints them")
    made.add_argument("--list", action="store_true", help="print implementations and layer sets")
    made.add_argument("--verify", action="store_true", help="against float64, element by element")
    made.add_argument("--compare", "--compareprof", action="store_true", help="time the implementations (the default)")
    made.add_argument("--plots", "--enableplots", action="store_true", help="violins, bars, roofline, breakdown")
    made.add_argument("--roofline", action="store_true", help="measure the card's ceilings and draw the roofline")
    made.add_argument("--stress", type=int, metavar="N", help="verify N random shapes")
    made.add_argument("--end-to-end", action="store_true", help="the CosmoFlow network with each implementation")
    made.add_argument("--warmup", type=int, default=10, metavar="N", help="calls before the first sample (default 10)")
    made.add_argument("--measure", type=int, default=100, metavar="N", help="samples of each time (default 100)")
    made.add_argument("--budget", type=float, default=1.0, metavar="S",
                      help="seconds for each time; slow calls get fewer samples, at least 6 (default 1)")  # fmt: skip
    made.add_argument("--batch-size", type=int, help="batch size; default that of the layer set")
    made.add_argument("--math", choices=("tf32", "fp32"), help="default tf32 on a GPU, fp32 on a CPU")
    of_data = "type of inputs, weights and outputs (default float32)"
    made.add_argument("--dtype", choices=("float32", "float16"), default="float32", help=of_data)
    made.add_argument("--layout", choices=("ncdhw", "ndhwc", "both"), default="both",
                      help="of inputs and outputs: contiguous, channels last, or both (default)")  # fmt: skip
    made.add_argument("--load-tuned", "--loadprecompiled", nargs="?", const="", metavar="FILE",
                      help="use block shapes of an earlier run: a tuned.json; without FILE this card's")  # fmt: skip
    made.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N")
    seed = "seed of inputs, weights and random shapes (default 0)"
    made.add_argument("--seed", type=int, default=0, metavar="N", help=seed)
    made.add_argument("--output-dir", metavar="DIR", help="default results/conv3d/<set>_<batch>_<math>_<gpu>")
    made.add_argument("--overwrite", action="store_true", help="measure again; earlier results are kept")
    any_card = "resume a folder that another card of the same name began"
    made.add_argument("--any-card", action="store_true", help=any_card)
    made.add_take_over()
    return made


def main(arguments: list[str] | None = None) -> int:
    """Run the command line.

    Returns the exit code: 0, 1 where a result is wrong, an implementation failed, or none that was asked for can run, 2
    for bad input, 70 where the GPU was lost, 74 where results cannot be written, 75 where TERM, INT or USR1 ended it
    before its end, 85 where USR2 did.
    """
    options = parser().parse_args(arguments)
    return command(NAME, lambda stop: _list() if options.list else _study(options, stop))


def _list() -> int:
    from convscope.conv3d import implementations, layersets

    print("implementations: " + ", ".join(implementations.NAMES))
    print("layer sets: " + ", ".join(layersets.names()))
    return 0


def _study(options: argparse.Namespace, stop: StopSignal) -> int:
    from convscope.conv3d import implementations
    from convscope.conv3d.request import Parts, folder_name
    from convscope.conv3d.study import Conv3dStudy
    from convscope.convolution.backends import environment_on
    from convscope.storage.paths import RESULTS
    from profiler import PowerMonitor

    device, layers, request = _request(options)
    left_out = len(implementations.find(options.implementation)) - len(request.implementations)
    here = f"on a CPU only {', '.join(request.implementations)} can run: {left_out} others need a CUDA device"
    remarks = (*implementations.older_names(options.implementation), *([here] if left_out else []))
    folder = Path(options.output_dir or RESULTS / "conv3d" / folder_name(request, layers))
    parts = Parts(
        layers=request.verify or request.compare, plots=options.plots or options.roofline, stress=options.stress or 0,
        end_to_end=options.end_to_end, load_tuned=options.load_tuned, remarks=remarks,
    )  # fmt: skip
    with PowerMonitor.of_device(device) as monitor:
        environment = environment_on(device, monitor.settings())
    note = note_by(NAME)
    study = Conv3dStudy(request, layers, parts, device, environment, stop, note)
    code = study.run(folder, options.overwrite, options.any_card, options.take_over)
    if stop():
        note(f"stopped by {stop.said}: what was measured is in {folder}; {CONTINUE}")
        return stop.exit_code
    return code


def _request(options: argparse.Namespace) -> tuple[torch.device, list[Layer], Conv3d]:
    from convscope.cli.options import ENERGY_MOST_S, at_least, at_most, find_device, folder_gpu, math_on
    from convscope.conv3d import implementations, layersets
    from convscope.conv3d.request import LAYOUTS, Conv3d
    from convscope.errors import InputError

    device = find_device(options.device)
    if options.dtype == "float16" and (device.type == "cpu" or options.math == "fp32"):
        raise InputError("--dtype float16 is for the matrix unit of a GPU: it needs a CUDA device, and no --math fp32")
    for name, least in (("warmup", 0), ("measure", 1), ("batch_size", 1), ("stress", 1), ("seed", 0)):
        if getattr(options, name) is not None:
            flag, value = f"--{name.replace('_', '-')}", getattr(options, name)
            at_least(flag, value, least)
            at_most(flag, value, 2**31 - 1)
    if not 0 < options.budget <= ENERGY_MOST_S:
        raise InputError(f"--budget {options.budget}: seconds for the samples of a layer, above 0, at most an hour")
    every = layersets.load(options.params, options.batch_size)
    digest = hashlib.sha256(repr(every).encode()).hexdigest()[:12]
    first, last = options.first_layer, len(every) if options.last_layer is None else options.last_layer
    if not 0 <= first < last <= len(every):
        raise InputError(
            f"--first-layer {first} --last-layer {last}: {options.params} has the layers 0 to {len(every) - 1}, "
            f"and the last is the one before which to end, at most {len(every)}"
        )
    nothing_else = not (options.verify or options.stress or options.end_to_end)
    return device, every[first:last], Conv3d(
        params=options.params, implementations=implementations.find(options.implementation, device),
        gpu=folder_gpu(None, device), device=str(device), first_layer=first, last_layer=last,
        batch_size=options.batch_size, math=math_on(device, options.math), dtype=options.dtype,
        verify=options.verify, compare=options.compare or options.roofline or nothing_else, warmup=options.warmup,
        measure=options.measure, budget_s=options.budget, seed=options.seed, layers_digest=digest,
        layouts=tuple(LAYOUTS) if options.layout == "both" else (options.layout,),
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(as_program(main))
