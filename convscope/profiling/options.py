"""Options of `run_profile.py`: model and algorithm, input sizes, settings of a run, lists.

`convscope.cli.exclusions` has those that exclude each other. PyTorch is not imported: `--help` answers at once.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from convscope.cli.options import MATHS, whole_numbers
from convscope.cli.parser import OneLineParser
from convscope.convolution.names import KINDS, MODELS

EXAMPLES = (
    "--model resnet50 --algorithm gemm --input-size 224",
    "--model alexnet --algorithm direct --device cpu --quick",
)
UNSUPPORTED = (
    "for layers that the algorithm does not support; error: stop before measuring (default); fallback: run "
    "implicit precomp gemm, on a CPU PyTorch; skip: run PyTorch, without a time of the layer"
)


def add_options(parser: OneLineParser) -> None:
    """Add every option of `run_profile.py`, in the order of its help."""
    _add_model(parser)
    _add_sizes(parser)
    _add_passes(parser)
    _add_folder(parser)
    _add_settings(parser)
    _add_energy(parser)
    _add_lists(parser)


def _add_model(parser: OneLineParser) -> None:
    parser.add_argument("--model", help=f"{', '.join(MODELS)}; {KINDS}")
    parser.add_model_args()
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--algorithm", help="a name that --list-algorithms prints, with spaces or underscores")
    plans = "plan of each layer, in place of --algorithm: a document of convscope plans export; one size"
    which.add_argument("--algorithm-file", type=Path, metavar="FILE", help=plans)


def _add_sizes(parser: OneLineParser) -> None:
    sizes = parser.add_mutually_exclusive_group()
    sizes.add_argument("--test", action="store_true", help="1 input size (stage 1_sanity)")
    sizes.add_argument("--quick", action="store_true", help="10 input sizes (stage 2_quick)")
    sizes.add_argument("--num-sizes", type=int, metavar="N", help="N input sizes (default 100)")
    ends = "smallest and largest size in pixels (default 224 512)"
    parser.add_argument("--input-range", type=int, nargs=2, metavar=("MIN", "MAX"), help=ends)
    square = "square images of this size, or these, in pixels: 224 or 224,320"
    parser.add_argument("--input-size", dest="input_sizes", type=whole_numbers, metavar="PX,…", help=square)
    shape = "images that are not square, height x width in pixels: 480x640; one size"
    parser.add_argument("--input-shape", metavar="HxW", help=shape)
    batches = parser.add_mutually_exclusive_group()
    batches.add_argument("--batch-size", type=int, default=1, metavar="N", help="images per batch (default 1)")
    several = "one run each, one after the other, each in its own folder"
    batches.add_argument("--batch-sizes", type=whole_numbers, metavar="N,N,…", help=several)


def _add_passes(parser: OneLineParser) -> None:
    study = "run the combinations of a study file that are for this GPU, one after the other (examples/study.toml)"
    parser.add_argument("--study", type=Path, metavar="FILE", help=study)
    warmup, measured = "warm-up passes of each size (default 10)", "measured passes of each size (default 20)"
    parser.add_argument("--warmup", dest="warmup_iters", type=int, default=10, metavar="N", help=warmup)
    parser.add_argument("--measure", dest="measure_iters", type=int, default=20, metavar="N", help=measured)


def _add_folder(parser: OneLineParser) -> None:
    folder = "default results/<stage>/<model>_<algorithm>_<gpu>…; with --batch-sizes or --study a folder each in DIR"
    parser.add_argument("--output-dir", metavar="DIR", help=folder)
    parser.add_argument("--overwrite", action="store_true", help="measure again; earlier results are kept")
    parser.add_argument("--retry", action="store_true", help="measure sizes again that failed or ran out of memory")
    any_card = "resume a folder that another card of the same name began"
    parser.add_argument("--any-card", action="store_true", help=any_card)
    parser.add_take_over()


def _add_settings(parser: OneLineParser) -> None:
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N (default auto)")
    parser.add_argument("--gpu", metavar="NAME", help="the GPU's name in the folder; checked against the card")
    parser.add_argument("--math", choices=MATHS, help="arithmetic of float32; default tf32 on a GPU, fp32 on a CPU")
    types = ("float32", "float16", "bfloat16")
    parser.add_argument("--dtype", choices=types, default=types[0], help="type of images and weights (default float32)")
    layout = "layout of images and weights (default nchw); nhwc: channels last"
    parser.add_argument("--layout", choices=("nchw", "nhwc"), default="nchw", help=layout)
    parser.add_argument("--unsupported", choices=("error", "fallback", "skip"), default="error", help=UNSUPPORTED)
    parser.add_argument("--max-workspace", metavar="BYTES", help="rule out larger workspaces: 512MB, 2GiB (GPU only)")
    library = "library for direct and winograd; default cudnn if it can"
    parser.add_argument("--provider", choices=("cudnn", "triton"), help=library)
    parser.add_argument("--pretrained", action="store_true", help="trained weights instead of seeded ones")
    seed = "seed of weights, images and the order of sizes (default 0)"
    parser.add_argument("--seed", type=int, default=0, metavar="N", help=seed)


def _add_energy(parser: OneLineParser) -> None:
    without = "leave the energy window out (a second a size)"
    parser.add_argument("--no-energy", dest="energy", action="store_false", help=without)
    load = "seconds of load before the energy window (default 0.2)"
    parser.add_argument("--energy-warmup", dest="energy_warmup_s", type=float, default=0.2, metavar="S", help=load)
    precision = "relative uncertainty at which the energy window ends (default 0.01)"
    parser.add_argument("--energy-precision", type=float, default=0.01, metavar="P", help=precision)
    longest = "longest energy window, in seconds (default 5)"
    parser.add_argument("--energy-budget", dest="energy_budget_s", type=float, default=5.0, metavar="S", help=longest)
    parser.add_argument("--layer-energy", action="store_true", help="energy of each layer, replayed alone")
    parser.add_argument("--check-power", action="store_true", help="test the power sensors (30 s)")


def _add_lists(parser: OneLineParser) -> None:
    parser.add_argument("--list-models", action="store_true", help="print the names of the models; measures nothing")
    algorithms = "print the names of the algorithms; with --model also how many layers can use each"
    parser.add_argument("--list-algorithms", action="store_true", help=algorithms)
    combinations = "print a matrix, as the stages and convscope local read it"
    parser.add_argument("--list-combinations", action="store_true", help=combinations)
    parser.add_argument("--models", nargs="+", metavar="NAME", help="for --list-combinations; default the six")
    parser.add_argument("--algorithms", nargs="+", metavar="NAME", help="for --list-combinations; default all")
    parser.add_argument("--estimate", action="store_true", help="GPU-hours that this would take; measures nothing")
    as_json = "print --list-models, --list-algorithms or --estimate for programs"
    parser.add_argument("--json", action="store_true", help=as_json)
    parser.add_argument("--check-cuda", action="store_true", help="print versions and GPUs of this machine")
    parser.add_argument("--check-stages", metavar="STAGE,…", help=argparse.SUPPRESS)  # for `profiling/preflight.py`
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)  # with it: they are to run here
