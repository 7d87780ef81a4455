"""The shell blocks of the documents: a marked one runs on a CPU, and prints what the document shows.

A marker is a comment on the line above a block, which no reader of the page sees:

    <!-- run -->                          each command ends with 0 and prints what stands below it
    <!-- run: exit 2 -->                  the last command ends with 2; `exit 0 2 2` has a code for each command
    <!-- run: commands 1 3 -->            only these commands; the others need a GPU, a cluster or a network
    <!-- run: with --dry-run -->          each command gets this option too
    <!-- run: output not compared -->     what it prints depends on measured values

Several are separated by commas. In a block with lines that begin with `$ ` these are the commands, and the lines up to
the next one are its output; a block without them has only commands, and their output is not compared. The blocks of a
page run in order in one folder. Numbers, bars and verdicts about measured times match any other; `…` in a document
stands for any text, alone on a line for any lines.
"""

from __future__ import annotations

import dataclasses
import difflib
import gzip
import itertools
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fakes import ROOT, compared, drawn_samples, reports

from convscope.dataset import samples
from convscope.storage import environment

TIMEOUT_S = 120
CPU = "AMD EPYC"
"""The processor of the machine whose output the documents show."""
NEUSIGHT = (
    "OPName,Latency,Device,Torch Version,CUDNN Version,Kernel Name,Kernels,B,Input_Channel,Output_Channel,"
    "Kernel_Szie,Input_Size,Stride,Padding\n"
    'conv,1.25,Tesla P4,p2.1.0,8902,k,"first;second",38,893,326,3,5,1,1\n'
)
BLOCK = re.compile(r"^<!-- run(?:: (?P<asked>[^\n]*?))? -->\n```\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
MARKER = re.compile(r"^\s*<!-- *run\b", re.MULTILINE)


@dataclasses.dataclass(frozen=True)
class Command:
    """A command of a document, its exit code and its output; None if that is not compared."""

    line: str
    exit_code: int = 0
    output: tuple[str, ...] | None = None


@dataclasses.dataclass(frozen=True)
class Asked:
    """The settings of a marker."""

    exit_codes: tuple[int, ...] = ()
    commands: tuple[int, ...] = ()
    option: str = ""
    compared: bool = True


def asked(text: str) -> Asked:
    """Return the settings of a marker; ValueError for an unknown one."""
    settings = Asked()
    for each in filter(None, text.split(", ")):
        if found := re.fullmatch(r"exit ([\d ]+)", each):
            settings = dataclasses.replace(settings, exit_codes=tuple(map(int, found[1].split())))
        elif found := re.fullmatch(r"commands? ([\d ]+)", each):
            settings = dataclasses.replace(settings, commands=tuple(map(int, found[1].split())))
        elif found := re.fullmatch(r"with (--\S+)", each):
            settings = dataclasses.replace(settings, option=f" {found[1]}")
        elif each == "output not compared":
            settings = dataclasses.replace(settings, compared=False)
        else:
            raise ValueError(f"a marker of a block has no setting {each!r}")
    return settings


def transcript(text: str) -> Iterator[tuple[str, tuple[str, ...] | None]]:
    """Yield each command of a block with its output, None where the block has only commands."""
    with_output = re.search(r"^\$ ", text, re.MULTILINE) is not None
    lines = text.splitlines()
    while lines:
        line = lines.pop(0)
        if with_output and not line.startswith("$ "):
            raise ValueError(f"a block begins with output: {line}")
        while line.endswith("\\"):
            line = line[:-1] + lines.pop(0)
        line = re.sub(r"(^|\s+)#\s.*", "", line.removeprefix("$ "))
        shown = list[str]()
        while with_output and lines and not lines[0].startswith("$ "):
            shown.append(lines.pop(0))
        if line:
            yield line, (tuple(shown) if with_output else None)


def commands(text: str, marker: str = "") -> list[Command]:
    """Return the commands of a block that run."""
    settings, found = asked(marker), [*transcript(text)]
    chosen = [found[number - 1] for number in settings.commands] or found
    codes = settings.exit_codes or (0,)
    if len(codes) == 1:
        codes = (0,) * (len(chosen) - 1) + codes
    if len(codes) != len(chosen):
        raise ValueError(f"{len(codes)} exit codes for {len(chosen)} commands")
    return [
        Command(line + settings.option, code, output if settings.compared and not settings.option else None)
        for (line, output), code in zip(chosen, codes, strict=True)
    ]


def marked(page: str) -> list[list[Command]]:
    """Return the commands of each marked block of a page."""
    found = [commands(block["text"], block["asked"] or "") for block in BLOCK.finditer(page)]
    if len(found) != len(MARKER.findall(page)):
        raise ValueError("a marker is not directly above a block without a language")
    return found


VERDICT = r"(?:faster|slower|same|ambiguous)"
EQUAL = (
    (r"[█▉▊▋▌▍▎▏]+", "█"),
    (r"(?<![\w.])[-+±]?\d[\d.,]*(?:e[-+]?\d+)?%?|(?<=\.)\d+", "#"),
    (r"(?<!\S)-(?!\S)", "#"),  # nothing was measured: energy on a CPU without counters
    (rf"# {VERDICT}(?:, # {VERDICT})*", "# VERDICT"),
    (rf"\b(?:{VERDICT}\b|a tie\b)", "VERDICT"),
    (r"^work: .*", "work: …"),  # in the order of the shares; the smallest ones are left out
    (r"\s+", " "),
)
"""What depends on the machine: patterns, and the text that stands for them."""


def normal(line: str) -> str:
    """Return a line of output without what depends on the machine."""
    for pattern, text in EQUAL:
        line = re.sub(pattern, text, line)
    return line.strip()


def any_text(line: str) -> str:
    """Return the pattern of a document's line: `…` is any text, `…/` any folder or none."""
    return re.escape(line).replace("…/", "(?:.*/)?").replace("…", ".*")


def difference(shown: list[str], printed: list[str]) -> str:
    """Return how the lines of a document differ from those of the program, "" if they do not."""
    expected, found = [[normal(line) for line in "\n".join(lines).strip().splitlines()] for lines in (shown, printed)]
    pattern = "".join(r"(?:.*\n)*" if line == "…" else f"{any_text(line)}\n" for line in expected)
    if re.fullmatch(pattern, "".join(f"{line}\n" for line in found)):
        return ""
    return "\n".join(difflib.unified_diff(expected, found, "document", "program", lineterm=""))


# ---- where the commands run


PROGRAMS = ("*.py", "*.sh", "convscope", "slurm", "examples", "benchmarks", "tests", "docs", "pyproject.toml", ".venv")
FOREIGN = ("SLURM", "SBATCH", "CONVSCOPE", "PYTHONDONTWRITEBYTECODE")
"""Beginnings of names of variables that the commands do not see; without bytecode each would compile for seconds."""
SBATCH = """#!/bin/sh
count=$(($(cat "$0.jobs" 2>/dev/null || echo 0) + 1))
echo $count | tee "$0.jobs"
"""


def workplace(folder: Path) -> dict[str, str]:
    """Link the programs of the checkout into a folder; return the environment of the commands that run there."""
    for pattern in PROGRAMS:
        for path in ROOT.glob(pattern):
            (folder / path.name).symlink_to(path)
    bin_, home = folder / ".bin", folder / ".home"
    bin_.mkdir()
    home.mkdir()
    (bin_ / "sbatch").write_text(SBATCH)
    (bin_ / "sbatch").chmod(0o755)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
    return kept | {
        "PATH": f"{Path(sys.executable).parent}:{bin_}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "CONVSCOPE_RESULTS": str(folder / "results"),
        "CONVSCOPE_CONFIG": str(home / ".config"),
        "HOME": str(home),
        "CUDA_VISIBLE_DEVICES": "",
        "OMP_NUM_THREADS": "1",
    }


def failure(command: Command, folder: Path, variables: dict[str, str]) -> str:
    """Run a command; return why it is not as the document says, "" if it is."""
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command.line], cwd=folder, env=variables, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, check=False, timeout=TIMEOUT_S,
    )  # fmt: skip
    if done.returncode != command.exit_code:
        return f"$ {command.line}\nexit code {done.returncode}, not {command.exit_code}:\n{done.stdout}"
    if command.output is None:
        return ""
    printed = done.stdout
    for here, there in ((f"{folder}/", ""), (environment.processor_name(), CPU)):
        printed = printed.replace(here, there)
    differs = difference([*command.output], printed.splitlines())
    return differs and f"$ {command.line}\n{differs}\n\n{done.stdout}"


def runs_to_report(folder: Path) -> None:
    for model in ("resnet50", "vgg16"):
        for algorithm in reports.ALGORITHMS:
            reports.profile(folder / "results", model, algorithm)


def runs_to_compare(folder: Path) -> None:
    for algorithm, factor in (("direct", 1.0), ("smm", 1.4)):
        passes = [compared.overall(model="alexnet", algorithm=algorithm, input_size=size, mean=factor * size)
                  for size in (64, 144, 224)]  # fmt: skip
        layers = [
            compared.layer(algorithm=algorithm, input_size=each.input_size, layer=f"features.{at}", position=at,
                           mean_ms=factor)
            for each in passes for at in range(5)
        ]  # fmt: skip
        here = {"gpu_name": None, "driver": None, "cuda": None, "cudnn": None, "cpu": environment.processor_name()}
        path = folder / "results" / "2_quick" / f"alexnet_{algorithm}_cpu"
        sizes = tuple(each.input_size for each in passes)
        compared.written(path, passes, layers, here, algorithm=algorithm, input_sizes=sizes, device="cpu", gpu="cpu")


def tables_of_neusight(folder: Path) -> None:
    for card in ("P4", "T4", "P100-PCIE-16GB"):
        header, row = NEUSIGHT.splitlines(keepends=True)
        table = header + row.replace("Tesla P4", f"Tesla {card}")
        (folder / f"Tesla_{card}.csv.gz").write_bytes(gzip.compress(table.encode()))


def samples_of_two_nodes(folder: Path) -> None:
    tables_of_neusight(folder)
    (folder / "results" / "dataset" / "h200").mkdir(parents=True)
    rows = drawn_samples.measured(60, ("Tesla T4",))
    samples.write(folder / "results" / "dataset" / "h200" / "samples.csv", rows[:40])
    samples.write(folder / "node2.csv", rows[30:])


def samples_of_two_cards(folder: Path) -> None:
    rows = drawn_samples.drawn(200, ("Tesla P4", "Tesla P100-PCIE-16GB"))
    samples.write(folder / "samples.csv", [dataclasses.replace(row, algorithm="torch benchmark") for row in rows])


def own_model(folder: Path) -> None:
    (folder / "net.py").symlink_to(ROOT / "examples" / "own_model.py")


def own_model_and_combinations(folder: Path) -> None:
    (folder / ".home" / "nets").mkdir()
    (folder / ".home" / "nets" / "own.py").symlink_to(ROOT / "examples" / "own_model.py")
    (folder / ".home" / "convscope").symlink_to(folder)
    (folder / "matrix.tsv").write_text("vgg16\tgemm\tl40s\nvgg16\tgemm\tk9000\n")


def atlas(folder: Path) -> None:
    reports.atlas(folder / "results").rename(folder / "results" / "plans" / "FOLDER")


GIVEN: dict[str, Callable[[Path], None]] = {
    "README.md": atlas, "compare.md": runs_to_compare, "data.md": samples_of_two_nodes, "own-model.md": own_model,
    "prediction.md": samples_of_two_cards, "report.md": runs_to_report, "slurm.md": own_model_and_combinations,
}  # fmt: skip
"""What the commands of a page find: files that other pages, a GPU or a reader would have made."""
FIRST = {
    "start.md": "python run_profile.py --model alexnet --algorithm direct --test --device cpu --warmup 1 --measure 2"
}
"""Commands that a page expects to have run: `make profile`, with fewer passes."""
PAGES = [path for path in (ROOT / "README.md", *sorted(ROOT.glob("docs/*.md"))) if MARKER.search(path.read_text())]


@pytest.mark.long
@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_the_marked_blocks_of_a_page_run_and_print_what_it_shows(page: Path, tmp_path: Path):
    variables = workplace(tmp_path)
    GIVEN.get(page.name, lambda _: None)(tmp_path)
    before = [Command(FIRST[page.name])] if page.name in FIRST else []
    for command in (*before, *itertools.chain(*marked(page.read_text()))):
        if reason := failure(command, tmp_path, variables):
            pytest.fail(reason, pytrace=False)
