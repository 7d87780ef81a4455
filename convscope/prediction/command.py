"""`convscope predict`: its options; what it does is in `actions`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from convscope.cli.options import LEVELS, MATHS
from convscope.cli.parser import OneLineParser
from convscope.cudnn.shape import ELEMENT_BYTES
from convscope.dataset.samples import SPLITS, TARGETS

COMMANDS = {
    "fit": ("learn from samples", "samples.csv", "samples.csv --target energy -o energy.json"),
    "evaluate": ("print the errors of predictions, split by split", "samples.csv", "samples.csv --split gpu --json"),
    "apply": (
        *("predict", 'predictor.json --model vgg16 --gpu "Tesla T4" --math fp32'),
        "predictor.json --samples layers.csv -o predicted.csv",
    ),
    "calibrate": (
        *("correct a predictor for another card", "predictor.json layers.csv --choose 100"),
        "predictor.json measured.csv -o corrected.json",
    ),
}
"""Each subcommand: what it does, and the arguments of two examples."""
_OF_MODELS = ("model", "totals", "algorithm", "input_size", "batch_size", "dtype", "math", "layout")
"""Options of `apply` that say which samples are to be predicted, where no file does."""


def main(arguments: Sequence[str]) -> int:
    """Run a command of predictions; return 0.

    Raises:
        InputError: a file cannot be read or written, or the samples are too few for what is asked.
    """
    options = _parser().parse_args(arguments)
    if options.command == "apply" and options.samples:
        options.parser.refuse_ignored(arguments[1:], _OF_MODELS, "--samples")
    from convscope.prediction import actions  # LightGBM, scikit-learn and pandas: what is asked for may be help

    run = {"fit": actions.fit, "evaluate": actions.evaluate, "apply": actions.apply, "calibrate": actions.calibrate}
    return run[options.command](options)


def _parser() -> argparse.ArgumentParser:
    examples = "fit samples.csv", 'apply predictor.json --model vgg16 --gpu "Tesla T4" --math fp32'
    parser = OneLineParser(
        prog="convscope predict",
        description="Predict time, energy and workspace of convolutions from samples.",
        allow_abbrev=False,
        examples=examples,
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="|".join(COMMANDS))
    fit, evaluate, apply, calibrate = (
        commands.add_parser(name, help=text, examples=examples, allow_abbrev=False)
        for name, (text, *examples) in COMMANDS.items()
    )
    for each in (fit, evaluate):
        each.add_argument("samples", nargs="+", type=Path, metavar="SAMPLES", help="files of samples")
        each.add_argument("--target", choices=TARGETS, default="time", help="default %(default)s")
        text = "calls of whole models, for sums and kinds of networks; default calls.parquet, calls.csv beside SAMPLES"
        each.add_argument("--calls", nargs="+", type=Path, default=[], metavar="FILE", help=text)
    text = "new data that intervals hold for: other rows, layers, …; default %(default)s"
    fit.add_argument("--unit", choices=SPLITS, default="layer", help=text)
    fit.add_argument("-o", "--output", type=Path, default=Path("predictor.json"), help="default %(default)s")
    text = "what is held back; default rows layer"
    evaluate.add_argument("--split", nargs="+", choices=SPLITS, default=["rows", "layer"], help=text)
    text = "with --split gpu: also after N samples of the card that is held back"
    evaluate.add_argument("--calibrate", type=int, default=0, metavar="N", help=text)
    text = "splits at once, which share the cores, each with up to 8 GB; default %(default)s"
    evaluate.add_argument("--processes", type=int, default=1, metavar="N", help=text)
    evaluate.add_argument("--json", action="store_true", help="print JSON")
    for each in (apply, calibrate):
        each.add_argument("predictor", type=Path, metavar="PREDICTOR", help="document that fit wrote")
        each.add_argument("--gpu", metavar="NAME", help="the card to predict for, as its driver names it")
    apply.add_argument("-o", "--output", type=Path, metavar="FILE", help="file to write")
    text = "file to write; default PREDICTOR, which is replaced"
    calibrate.add_argument("-o", "--output", type=Path, metavar="FILE", help=text)
    calibrate.add_argument("samples", nargs="+", type=Path, metavar="SAMPLES", help="samples of the card")
    text = "print the N samples most worth measuring (with --gpu, on that card), and stop"
    calibrate.add_argument("--choose", type=int, metavar="N", help=text)
    _add_asked(apply)
    for each in (fit, evaluate, apply, calibrate):
        text = "facts of an unknown card: NAME:fp32_tflops=…,bandwidth_gbps=…,sm_count=…"
        each.add_argument("--card", action="append", default=[], metavar="FACTS", help=text)
    return parser


def _add_asked(apply: argparse.ArgumentParser) -> None:
    """Add what `apply` predicts."""
    apply.set_defaults(parser=apply)
    text = "samples, for their card or that of --gpu; those without a time have another status than ok"
    apply.add_argument("--samples", type=Path, metavar="FILE", help=text)
    apply.add_argument("--model", metavar="NAME", help="a model of any source, in place of samples")
    text = "measured totals of whole models, from convscope import: print the share that the layers add up to"
    apply.add_argument("--totals", type=Path, metavar="FILE", help=text)
    apply.add_argument("--algorithm", nargs="+", metavar="NAME", help="default: those that were learned")
    apply.add_argument("--input-size", type=int, metavar="PX", help="default 224")
    apply.add_argument("--batch-size", type=int, default=1, metavar="N", help="default %(default)s")
    apply.add_argument("--dtype", choices=ELEMENT_BYTES, default="float32", help="default %(default)s")
    apply.add_argument("--math", choices=MATHS, default="tf32", help="default %(default)s")
    apply.add_argument("--layout", choices=("nchw", "nhwc"), default="nchw", help="default %(default)s")
    apply.add_argument("--level", type=int, choices=LEVELS, default=90, help="of intervals, in percent")
