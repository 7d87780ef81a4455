"""`convscope COMMAND`, or `python -m convscope COMMAND`: everything that this project measures, reads and predicts."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

from convscope import __version__
from convscope.cli import programs
from convscope.cli.parser import as_program, one_line, report_missing
from convscope.errors import InputError

# Each command: its module, imported when it is asked for, with `main(arguments) -> exit code`; what it does.
COMMANDS = {
    "profile": (
        "run_profile",
        "measure time, power and energy of a model with one algorithm, whole and layer by layer",
    ),
    "verify": ("run_verify", "show which algorithm and kernels really ran, with errors against float64"),
    "choice": ("run_verify", "find the fastest algorithm of each layer, and what other choices cost"),
    "plans": (
        "pinning.command",
        "time every plan of cuDNN (plans --model M); export, compare and block measured plans",
    ),
    "pin": ("pinning.pin_command", "check a file of plans against a model, apply it, compare results and times"),
    "train": ("run_training", "time a training step by phase: data, forward, backward, optimizer"),
    "infer": ("run_inference", "compare inference engines by batch size, also under a server's load"),
    "conv3d": ("run_conv3d", "compare implementations of 3-D convolutions, layer by layer"),
    "status": ("cluster.status", "show what is done, queued, running or failed"),
    "compare": ("profiling.comparison.compare", "compare two runs, with a verdict for each size and layer"),
    "report": ("report.command", "write what the runs found as one HTML page"),
    "figures": ("report.figures_command", "write the charts of the report as PDF, SVG and PNG for a paper"),
    "summary": ("report.summary", "print what the runs found in a few lines of Markdown, or as JSON"),
    "dataset": (
        "dataset.package.command",
        "collect samples of many models (dataset collect); package them for publication (dataset package); "
        "list the convolutions of a pass of each model (dataset calls)",
    ),
    "check": ("dataset.check.command", "check a data set or a file of samples"),
    "import": ("dataset.command", "convert measurements of others to a file of samples"),
    "predict": (
        "prediction.command",
        "learn from samples, predict what was not measured, show how large the errors are",
    ),
    "select": (
        "selection.command",
        "choose the algorithm of each convolution of a model, from samples and predictions",
    ),
    "matrix": ("cluster.matrix", "split a file of combinations into the files of job arrays"),
    "local": ("cluster.local_batch", "run a file of combinations here, one process for each GPU"),
    "env": ("equipment.command", "show what this machine can measure, and what to do about the rest"),
    "completion": ("cli.completion", "print a script that completes commands and options in a shell"),
}
INTERNAL = {"stages": "cluster.submission"}  # for slurm/submit.sh: the stages that a combination still needs
MEASURED = {"plans": "run_verify", "dataset": "run_dataset"}  # where an option follows, or `dataset collect`
FLAGS = {"choice": ["--choice"], "plans": ["--plans"]}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; return its exit code, 2 where there is no such command or its input cannot be."""
    name, *rest = (sys.argv[1:] if arguments is None else arguments) or ["--help"]
    if name in ("-h", "--help"):
        print("usage: convscope COMMAND …\n")
        width = max(map(len, COMMANDS)) + 2
        print("\n".join(f"  {command:{width}}{what}" for command, (_, what) in COMMANDS.items()))
        print("\nconvscope COMMAND --help lists the options of one, convscope --version prints the version.")
        return 0
    if name == "--version":
        print(f"convscope {__version__}")
        return 0
    if name not in COMMANDS and name not in INTERNAL:
        print(f"convscope: unknown command {name!r}: choose one of {', '.join(COMMANDS)}", file=sys.stderr)
        return 2
    try:
        return _run(name, rest)
    except InputError as error:
        print(f"convscope {name}: {one_line(error)}", file=sys.stderr)
        return 2
    except ModuleNotFoundError as error:
        return report_missing(f"convscope {name}", error)


def run() -> int:
    """Run the command line as a program, the script `convscope`; return the exit code."""
    return as_program(main)


def _run(name: str, arguments: Sequence[str]) -> int:
    """Run a command by its module, or by the program of `run_*.py` that it stands for."""
    module = INTERNAL.get(name) or COMMANDS[name][0]
    if name in MEASURED:
        first = "".join(arguments[:1])
        if (name, first) == ("dataset", "collect"):
            return programs.run("convscope dataset collect", MEASURED[name], arguments[1:])
        if first.startswith("-") and first not in ("-h", "--help"):
            module = MEASURED[name]
    if name == "completion":
        return int(importlib.import_module(f"convscope.{module}").main(arguments, COMMANDS))
    if module.startswith("run_"):
        flags = FLAGS.get(name, [])
        same = f"convscope {name} is convscope verify {' '.join(flags)}: that option is set; give the others."
        return programs.run(f"convscope {name}", module, [*flags, *arguments], same if flags else None)
    return int(importlib.import_module(f"convscope.{module}").main(arguments))


if __name__ == "__main__":
    sys.exit(run())
