"""`python -m convscope COMMAND`: what reads results/ and never touches a GPU."""

from __future__ import annotations

import importlib
import itertools
import sys
from collections.abc import Sequence

from convscope.cli.parser import as_program, one_line
from convscope.errors import InputError

# Each command: its module, imported when it is asked for, with `main(arguments) -> exit code`; what it does.
COMMANDS = {
    "status": ("cluster.status", "what is done, queued, running, failed"),
    "compare": ("profiling.comparison.compare", "two runs side by side, a verdict for each row"),
    "report": ("report.command", "what runs found, as one HTML page"),
    "figures": ("report.figures", "the same as PDF, SVG and PNG for a paper"),
    "summary": ("report.summary", "the same in a few lines of Markdown, or JSON"),
    "plans": ("pinning.command", "plans of cuDNN that were measured: export them, compare two stacks, deny one"),
    "check": (
        "dataset.check.command",
        "whether a data set or a file of samples holds; of model, algorithm and GPU, the stages still needed",
    ),
    "matrix": ("cluster.matrix", "cut a file of combinations into the files of job arrays"),
    "import": ("dataset.command", "other people's measurements to a file of samples"),
    "dataset": ("dataset.package.command", "samples of several runs as a data set to be published"),
    "predict": ("prediction.command", "learn from samples, say how wrong it is, predict, calibrate to another card"),
    "select": ("selection.command", "the algorithm of each convolution of a model, from samples and predictions"),
    "env": ("equipment.command", "what this machine can measure, and what to do about what it cannot"),
    "local": ("cluster.local_batch", "run a file of combinations here, one process a GPU"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; return its exit code, 2 where there is no such command or its input cannot be."""
    name, *rest = (sys.argv[1:] if arguments is None else arguments) or ["--help"]
    if name in ("-h", "--help"):
        print("usage: python -m convscope COMMAND …\n")
        print("\n".join(f"  {command:10}{what}" for command, (_, what) in COMMANDS.items()))
        return 0
    if name not in COMMANDS:
        print(f"convscope: unknown command {name!r}: choose one of {', '.join(COMMANDS)}", file=sys.stderr)
        return 2
    try:
        return int(importlib.import_module(f"convscope.{_module(name, rest)}").main(rest))
    except InputError as error:
        print(f"convscope {name}: {one_line(error)}", file=sys.stderr)
        return 2
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("convscope"):
            raise
        here = f"needs {error.name}, which {sys.executable} does not have"
        advice = f"activate the environment of this project, or {sys.executable} -m pip install {error.name}"
        print(f"convscope {name}: {here}: {advice}", file=sys.stderr)
        return 2


def _module(name: str, arguments: Sequence[str]) -> str:
    """Return the module of a command; `check` has two, told apart by what it is given."""
    module, _ = COMMANDS[name]
    return module if name != "check" or _is_of_data(arguments) else "cluster.submission"


def _is_of_data(arguments: Sequence[str]) -> bool:
    """Tell whether `check` was given data: it is asked for the stages of a combination with --stages alone."""
    own = itertools.takewhile(lambda each: each != "--", arguments)
    return not any(each.startswith("--st") for each in own)


if __name__ == "__main__":
    sys.exit(as_program(main))
