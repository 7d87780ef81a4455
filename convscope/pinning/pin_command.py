"""`python -m convscope pin MODEL plans.json`: a document of plans checked against a model, applied, and tried."""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from convscope.cli.display import or_dash, several, table
from convscope.cli.options import INTEGER_MOST, MATHS, at_least, at_most
from convscope.cli.parser import OneLineParser, note_by, report_error
from convscope.convolution.names import KINDS, check_model, with_arguments
from convscope.cudnn.shape import ELEMENT_BYTES
from convscope.errors import InputError, StopError
from convscope.pinning import document
from convscope.pinning.document import TORCH, Pins

if TYPE_CHECKING:
    import torch

    from convscope.pinning.trial import LayerTrial, Subject, Trial

NAME = "convscope pin"
HEADER = ("layer", "pinned", "ran", "error", "allowed", "workspace, MB", "remark")
LAYOUTS = ("nchw", "nhwc")
ROUNDS_LEAST, ROUNDS_MOST = 2, 1000
WITHOUT_GPU = "plans run on a GPU; without one --check checks names and shapes"


def main(arguments: Sequence[str]) -> int:
    """Run the command; return 0 where everything was pinned and is right, 1 where not, 2 for bad input."""
    made = _parser()
    options = made.parse_args(arguments)
    if options.check:
        made.refuse_ignored(arguments, ("device", "pretrained", "rounds"), "--check")
    try:
        at_least("--rounds", options.rounds, ROUNDS_LEAST)
        at_most("--rounds", options.rounds, ROUNDS_MOST)
        at_least("--seed", options.seed, 0)
        at_most("--seed", options.seed, INTEGER_MOST)
        return _pin(options)
    except StopError as error:
        return report_error(NAME, error)


def _pin(options: argparse.Namespace) -> int:
    model = check_model(with_arguments(options.model, options.model_args))
    pins = _read(options.plans)
    from convscope.cli.options import find_device
    from convscope.pinning import trial  # PyTorch, last: its import takes seconds

    device = None if options.check else find_device(options.device, WITHOUT_GPU)
    subject = trial.open_subject(model, pins, str(options.plans), options.pretrained, options.seed)
    missing = None
    if device is None or device.type == "cpu":
        found = trial.checked(subject)
        names = several(len({pin.layer for pin in pins.layers}), "layer")
        why = "--check" if options.check else "--device cpu" if options.device == "cpu" else "no GPU here"
        missing = (
            f"{why}: the plans were not run, their results and times not "
            f"compared, GPU and cuDNN not checked; names and shapes of {names} were checked, and fit the model"
        )
        code = 0 if options.check else 1
    else:
        tried = _tried(subject, device, options.rounds)
        if tried is None:
            return 1
        found, code = tried, tried.exit_code
    if options.json:
        print(json.dumps(_as_json(options, subject, found, missing, code), indent=1))
    else:
        print("\n".join(_text(options, subject, found, missing)))
    return code


def _tried(subject: Subject, device: torch.device, rounds: int) -> Trial | None:
    """Return the trial on a GPU; None, with a line that says why, where the model cannot run there."""
    from convscope import failures
    from convscope.pinning import trial

    try:
        return trial.tried(subject, device, rounds)
    except StopError:
        raise
    except Exception as error:
        failure = failures.of_cell(error, device, subject.network.source.name)
        note_by(NAME)(f"{subject.network.source.name}: {failure.status}: {failure.reason}")
        return None


def _read(path: Path) -> Pins:
    """Return a document whose settings a model can be built for.

    Raises:
        InputError: the file is no document of plans, or of a CPU, or a setting in it is none.
    """
    if path.is_dir():
        advice = f"convscope plans export {path} -o plans.json writes the file of an atlas"
        raise InputError(f"{path} is a folder, and a file of plans is needed: {advice}")
    pins = document.read(path)
    if not pins.stack["cudnn"]:
        advice = f"on it, convscope profile --algorithm-file {path} runs them"
        raise InputError(f"{path} is for a CPU ({pins.stack['gpu_name']}), and a model is pinned on a GPU: {advice}")
    settings = pins.settings
    known: dict[str, Sequence[str]] = {"dtype": (*ELEMENT_BYTES,), "layout": LAYOUTS}
    known |= {"math": MATHS} if settings["dtype"] == "float32" else {}
    wrong = [
        f"{name} {settings[name]!r}, not {' or '.join(of)}" for name, of in known.items() if settings[name] not in of
    ]
    counts = (name for name in ("input_size", "batch_size") if not _is_count(settings[name]))
    wrong += [f"{name} {settings[name]!r}, not a whole number above 0" for name in counts]
    wrong += [f"a layer {pin.layer!r}, not a name" for pin in pins.layers if not isinstance(pin.layer, str)]
    if wrong:
        raise InputError(f"{path} has {wrong[0]}: export it again")
    return pins


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value <= INTEGER_MOST


def _text(options: argparse.Namespace, subject: Subject, found: Trial, missing: str | None) -> Iterator[str]:
    settings, stack = subject.pins.settings, subject.pins.stack
    kind = settings["dtype"] + (f" {settings['math']}" if settings["dtype"] == "float32" else "")
    yield (
        f"{subject.network.source.name} with {options.plans}: {kind}, {settings['layout']}, {subject.size} px, "
        f"batch {settings['batch_size']}; {stack['gpu_name']}, cuDNN {stack['cudnn']}"
    )
    yield table(HEADER, [_cells(each) for each in found.layers])
    left = [each for each in found.layers if each.why_left]
    pinned = sum(each.pinned != TORCH for each in found.layers) - len(left)
    done = "to pin" if missing else "pinned"
    yield f"{several(pinned, 'layer')} {done}, {len(found.layers) - pinned} left to PyTorch"
    if missing:
        yield missing
    else:
        yield from _results(found)
    yield "in your program:"
    yield from (f"  {line}".rstrip() for line in _program(options.plans, subject))


def _results(found: Trial) -> Iterator[str]:
    """Yield the lines on output and time."""
    error, allowed = or_dash(found.output_error, ".1e"), or_dash(found.output_allowed, ".1e")
    verdict = f" - WRONG: {found.why_wrong}" if found.why_wrong else ""
    yield f"output: relative distance {error} from the unpinned model's, allowed {allowed}{verdict}"
    if not (found.before and found.after and found.less):
        yield "time: not compared, for no layer is pinned"
        return
    saved, half = 1e3 * found.less.mean_ms, 1e3 * found.less.half_width_ms
    percent = 100 * found.less.mean_ms / found.before.mean_ms
    word = "less" if saved > 0 else "more"
    said = "a tie" if found.less.is_tie else f"{abs(percent):.1f} % {word}"
    yield (
        f"time of a pass: {found.before.mean_ms:.4f} ms unpinned, {found.after.mean_ms:.4f} ms pinned: {said} "
        f"({abs(saved):.1f} ± {half:.1f} µs {word} at 99 %, {several(found.before.count, 'placement')} in memory)"
    )


def _cells(each: LayerTrial) -> tuple[str, ...]:
    workspace = None if each.workspace_bytes is None else each.workspace_bytes / 1e6
    remark = each.why_wrong or each.why_left or each.remark or ""
    return (
        each.layer, each.pinned, each.ran or "-", or_dash(each.relative_error, ".1e"), or_dash(each.allowed, ".1e"),
        or_dash(workspace, ".1f"), remark,
    )  # fmt: skip


def _program(path: Path, subject: Subject) -> Iterator[str]:
    """Yield the lines that apply the document in the user's program."""
    settings, pins = subject.pins.settings, subject.pins
    dtype, is_fused = settings["dtype"], any(pin.shape["fused"] for pin in pins.layers)
    memory = ", memory_format=torch.channels_last" if settings["layout"] == "nhwc" else ""
    shapes = ", ".join(" x ".join(map(str, each.shape)) for each in subject.shapes)
    yield from ("import torch", "import convscope", "")
    if dtype == "float32":
        yield f"torch.backends.cudnn.allow_tf32 = {settings['math'] == 'tf32'}"
    if is_fused:
        yield "model = convscope.fused(model.eval().cpu().float(), example)  # example: the model's input, on the CPU"
    yield f'model = model.eval().to("cuda", torch.{dtype}{memory})'
    yield f"convscope.pin(model, {str(path)!r})"
    yield "with torch.inference_mode():"
    yield f"    output = model(images)  # {shapes}, in {dtype} on the GPU"


def _as_json(
    options: argparse.Namespace, subject: Subject, found: Trial, missing: str | None, code: int
) -> dict[str, Any]:
    rows = [_finite(dataclasses.asdict(each)) | {"why_wrong": each.why_wrong} for each in found.layers]
    about: dict[str, Any] = {"model": subject.network.source.name, "file": str(options.plans)}
    about |= {"settings": {**subject.pins.settings}, "stack": {**subject.pins.stack}}
    whole = _finite(dataclasses.asdict(found)) | {"layers": rows, "why_wrong": found.why_wrong, "not_checked": missing}
    return {**about, **whole, "program": [*_program(options.plans, subject)], "exit_code": code}


def _finite(values: dict[str, Any]) -> dict[str, Any]:
    """Return values with None for numbers that JSON has not; `why_wrong` says them."""
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value for name, value in values.items()
    }


def _parser() -> OneLineParser:
    made = OneLineParser(
        prog=NAME,
        description="Check a file of plans against a model, pin its layers, and compare results and times.",
        allow_abbrev=False,
        examples=("resnet50 plans.json", "net.py:make plans.json --check"),
    )
    made.add_argument("model", metavar="MODEL", help=f"a model's name, as convscope profile --model takes it: {KINDS}")
    text = "file of convscope plans export or convscope select; input size, batch, type and layout are those in it"
    made.add_argument("plans", type=Path, metavar="PLANS", help=text)
    made.add_model_args()
    made.add_argument("--check", action="store_true", help="check names and shapes alone, which needs no GPU")
    made.add_argument("--device", default="auto", help="auto, cuda or cuda:N (default auto)")
    made.add_argument("--pretrained", action="store_true", help="trained weights instead of seeded ones")
    made.add_argument("--seed", type=int, default=0, help="seed of weights and images; default %(default)s")
    text = "placements in memory in which both models are timed; default %(default)s"
    made.add_argument("--rounds", type=int, default=5, metavar="N", help=text)
    made.add_argument("--json", action="store_true", help="print JSON, for programs")
    return made
