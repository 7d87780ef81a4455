"""`convscope select`: its options; what it does is in `actions`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from convscope.cli.options import LEVELS, MATHS
from convscope.cli.parser import OneLineParser
from convscope.cudnn.shape import ELEMENT_BYTES
from convscope.selection.objectives import OBJECTIVES

EVALUATE = "evaluate"


def main(arguments: Sequence[str]) -> int:
    """Run the selector, or its evaluation; return 0.

    Raises:
        InputError: a file cannot be read or written, or nothing in it is of what is asked for.
    """
    evaluates = arguments[:1] == [EVALUATE]
    options = _evaluation_parser().parse_args(arguments[1:]) if evaluates else _parser().parse_args(arguments)
    from convscope.selection import actions  # pandas and SciPy: what is asked for may be help

    return actions.evaluate(options) if evaluates else actions.select(options)


def _parser() -> argparse.ArgumentParser:
    examples = "resnet50 --input-size 224 --samples samples.csv", "evaluate samples.csv"
    parser = OneLineParser(
        prog="convscope select",
        description="Choose an algorithm or plan for each convolution of a model; select evaluate: the regret.",
        allow_abbrev=False,
        examples=examples,
    )
    parser.add_argument("model", metavar="MODEL", help="a model of any source, as convscope profile --model takes it")
    text = "of the images, in pixels"
    parser.add_argument("--input-size", "--size", dest="size", type=int, required=True, metavar="PX", help=text)
    text = "default %(default)s"
    parser.add_argument("--batch-size", "--batch", dest="batch", type=int, default=1, metavar="N", help=text)
    parser.add_argument("--dtype", choices=ELEMENT_BYTES, default="float32", help="default %(default)s")
    parser.add_argument("--math", choices=MATHS, default="tf32", help="of float32; default %(default)s")
    parser.add_argument("--layout", choices=("nchw", "nhwc"), default="nchw", help="default %(default)s")
    parser.add_argument("--samples", nargs="+", type=Path, metavar="FILE", help="files of samples")
    text = "documents that convscope predict fit wrote, one a target"
    parser.add_argument("--predictor", nargs="+", type=Path, metavar="FILE", help=text)
    parser.add_argument(
        "--objective", choices=OBJECTIVES, default="time", help="quantity to minimise; default %(default)s"
    )
    text = "take the least value, also where it is not least beyond the intervals"
    parser.add_argument("--least", action="store_true", help=text)
    text = "leave out candidates with more workspace (512MB, 2GiB), or an unknown one"
    parser.add_argument("--max-workspace", metavar="N", help=text)
    text = "leave out candidates with a larger relative error, or an unknown one"
    parser.add_argument("--max-error", type=float, metavar="E", help=text)
    text = "predict plans too, though cuDNN may refuse one for a layer"
    parser.add_argument("--predict-plans", action="store_true", help=text)
    parser.add_argument("-o", "--output", type=Path, default=Path("plans.json"), help="default %(default)s")
    _add_shared(parser)
    return parser


def _evaluation_parser() -> argparse.ArgumentParser:
    parser = OneLineParser(
        prog="convscope select evaluate",
        description="Regret of the choice on layers that were held back.",
        allow_abbrev=False,
    )
    parser.add_argument("samples", nargs="+", type=Path, metavar="SAMPLES", help="files of samples")
    parser.add_argument("--target", choices=("time", "energy"), default="time", help="default %(default)s")
    text = "what is held back together, each in turn; default layer"
    parser.add_argument("--split", nargs="+", choices=("layer", "family", "size"), default=["layer"], help=text)
    text = "calls of whole models, for sums and kinds of networks; default calls.parquet, calls.csv beside SAMPLES"
    parser.add_argument("--calls", nargs="+", type=Path, default=[], metavar="FILE", help=text)
    text = "splits at once, which share the cores, each with up to 8 GB; default %(default)s"
    parser.add_argument("--processes", type=int, default=1, metavar="N", help=text)
    parser.add_argument("--json", action="store_true", help="print JSON")
    _add_shared(parser)
    return parser


def _add_shared(parser: argparse.ArgumentParser) -> None:
    text = "the card, as its driver names it; not needed where the samples are of one"
    parser.add_argument("--gpu", metavar="NAME", help=text)
    parser.add_argument("--cudnn", metavar="VERSION", help="cuDNN version, if the samples of the card have several")
    text = "use predictions too for a card, an algorithm, a data type or a layout that was not learned"
    parser.add_argument("--outside", action="store_true", help=text)
    text = "of intervals of predictions, in percent; default %(default)s, as that of measured times"
    parser.add_argument("--level", type=int, choices=LEVELS, default=95, help=text)
    text = "facts of an unknown card: NAME:fp32_tflops=…,bandwidth_gbps=…,sm_count=…"
    parser.add_argument("--card", action="append", default=[], metavar="FACTS", help=text)
