"""The shell blocks of the documents: a marked one runs on a CPU, and prints what the document shows.

A marker is a comment on the line above a block, which no reader of the page sees:

    <!-- run -->                          each command ends with 0 and prints what stands below it
    <!-- run: exit 2 -->                  the last command ends with 2; `exit 0 2 2` has a code for each command
    <!-- run: commands 1 3 -->            only these commands; the others need a GPU, a cluster or a network
    <!-- run: output not compared -->     what it prints depends on measured values; `output of 1 2 not compared`

Several are separated by commas. In a block with lines that begin with `$ ` these are the commands, and the lines up to
the next one are its output; a block without them has only commands, and their output is not compared. The blocks of a
page run in order in one folder. Numbers, bars and verdicts about measured times match any other; `…` in a document
stands for any text, alone on a line for any lines.
"""

from __future__ import annotations

import dataclasses
import difflib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from convscope.storage import environment
from fakes import ROOT

TIMEOUT_S = 120
CPU = "AMD EPYC"
"""The processor of the machine whose output the documents show."""
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
    """The settings of a marker; commands count from 1, and `not_compared` is None for all of them."""

    exit_codes: tuple[int, ...] = ()
    commands: tuple[int, ...] = ()
    not_compared: tuple[int, ...] | None = ()


def asked(text: str) -> Asked:
    """Return the settings of a marker; ValueError for an unknown one."""
    settings = Asked()
    for each in filter(None, text.split(", ")):
        if found := re.fullmatch(r"exit ([\d ]+)", each):
            settings = dataclasses.replace(settings, exit_codes=tuple(map(int, found[1].split())))
        elif found := re.fullmatch(r"commands? ([\d ]+)", each):
            settings = dataclasses.replace(settings, commands=tuple(map(int, found[1].split())))
        elif found := re.fullmatch(r"output(?: of ([\d ]+))? not compared", each):
            numbers = tuple(map(int, found[1].split())) if found[1] else None
            settings = dataclasses.replace(settings, not_compared=numbers)
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
    hidden = range(1, len(found) + 1) if settings.not_compared is None else settings.not_compared
    found = [(line, None if number in hidden else output) for number, (line, output) in enumerate(found, 1)]
    chosen = [found[number - 1] for number in settings.commands] or found
    codes = settings.exit_codes or (0,)
    if len(codes) == 1:
        codes = (0,) * (len(chosen) - 1) + codes
    if len(codes) != len(chosen):
        raise ValueError(f"{len(codes)} exit codes for {len(chosen)} commands")
    return [Command(line, code, output) for (line, output), code in zip(chosen, codes, strict=True)]


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
    (r"(?<!\S)-(?!\S)|(?<=ms  )# W$", "#"),  # nothing was measured: energy on a CPU without counters
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


PROGRAMS = ("*.py", "*.sh", "slurm", "examples", "benchmarks")
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


def failure(command: Command, folder: Path, variables: dict[str, str], place: Path) -> str:
    """Run a command where the last one of its block ended; return why it is not as the document says, "" if it is."""
    script = f'cd -- "$(<"$PLACE")" && trap \'pwd >"$PLACE"\' EXIT\n{command.line}'
    done = subprocess.run(
        ["timeout", str(TIMEOUT_S), "bash", "-o", "pipefail", "-c", script], env=variables | {"PLACE": str(place)},
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
    )  # fmt: skip
    if done.returncode != command.exit_code:
        return f"$ {command.line}\nexit code {done.returncode}, not {command.exit_code}:\n{done.stdout}"
    if command.output is None:
        return ""
    printed = done.stdout
    for here, there in ((variables["HOME"], "/home/me"), (f"{folder}/", ""), (environment.processor_name(), CPU)):
        printed = printed.replace(here, there)
    differs = difference([*command.output], printed.splitlines())
    return differs and f"$ {command.line}\n{differs}\n\n{done.stdout}"
