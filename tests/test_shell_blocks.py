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
import gzip
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from fakes import ROOT, compared, drawn_samples, reports

from convscope.dataset import samples
from convscope.dataset.samples import SampleRow
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


# ---- the parser and the comparison


PAGE = """
<!-- run -->
```
$ echo one; echo two
one
two

$ printf '%s\\n' \\
    three   # a remark
three
```

```
not marked
```

<!-- run: commands 1 3, exit 0 2 -->
```
first   # a remark
second
third --option '#1'
```
"""


def test_the_commands_of_marked_blocks_are_found_with_their_outputs_and_exit_codes():
    one, two = marked(PAGE)
    assert one == [
        Command("echo one; echo two", output=("one", "two", "")),
        Command("printf '%s\\n'     three", output=("three",)),
    ]
    assert two == [Command("first"), Command("third --option '#1'", 2)]


def test_one_exit_code_is_that_of_the_last_command():
    assert [each.exit_code for each in commands("one\ntwo\n", "exit 2")] == [0, 2]


def test_output_may_be_left_out_of_the_comparison():
    text = "$ one\nprinted\n$ two\nprinted\n"
    assert commands(text, "output not compared") == [Command("one"), Command("two")]
    assert commands(text, "output of 1 not compared") == [Command("one"), Command("two", output=("printed",))]


@pytest.mark.parametrize(
    ("page", "reason"),
    [
        ("<!-- run: quickly -->\n```\none\n```\n", "a marker of a block has no setting 'quickly'"),
        ("<!-- run: exit 0 2 -->\n```\none\n```\n", "2 exit codes for 1 commands"),
        ("<!-- run -->\n```\nprinted\n$ one\n```\n", "a block begins with output: printed"),
        ("<!-- run -->\n\n```\none\n```\n", "a marker is not directly above a block"),
        ("<!-- run -->\n```python\none\n```\n", "a marker is not directly above a block"),
    ],
)
def test_a_marker_that_cannot_be_followed_is_refused(page: str, reason: str):
    with pytest.raises(ValueError, match=reason):
        marked(page)


SHOWN = """
…
size  mean ± std, ms   slowest, ms (% of the pass)
 64   11.976 ± 0.249   features.8 1.009 (8 %), features.6 0.778 (6 %)
work: matrix product 71 %, convolution 27 %
  body  ████████▎  3e-05
224  472.8136  18.9580  -96.0  -99.1 … -92.9  faster
layers: 1 slower, 7 ambiguous
energy  -
saved: …/results/alexnet_cpu
"""
PRINTED = """
command: it
versions: 1.2.3
size  mean ± std, ms  slowest, ms (% of the pass)
64    9.1 ± 0.10      features.10 2.1 (12 %), features.0 1,000.5 (3 %)
work: convolution 90 %, matrix product 7 %, copy 1 %
  body  ███  1.5
224  4.8  18.9  +1.0  +0.1 … +2.9  slower
layers: 5 faster
energy  12.5
saved: results/alexnet_cpu
"""


def test_numbers_bars_spaces_and_verdicts_about_times_may_differ():
    assert difference(SHOWN.splitlines(), PRINTED.splitlines()) == ""


@pytest.mark.parametrize(
    ("there", "here"),
    [
        ("slowest, ms", "fastest, ms"),
        ("energy  12.5", "energy  none"),
        ("alexnet_cpu", "vgg16_cpu"),
        ("  body  ███  1.5\n", ""),
        ("energy  12.5\n", "energy  12.5\nanother line\n"),
        ("layers: 5 faster", "layers: 5 failed"),
    ],
)
def test_a_changed_word_and_a_missing_or_another_line_are_seen(there: str, here: str):
    assert PRINTED.count(there) == 1
    assert "--- document" in difference(SHOWN.splitlines(), PRINTED.replace(there, here).splitlines())


def test_a_number_in_a_name_is_no_figure():
    assert difference(["vgg16 fp32"], ["vgg19 fp32"]) != ""


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        (Command("echo one", output=("one",)), ""),
        (Command("echo one >&2", output=("one",)), ""),
        (Command("exit 3", 3), ""),
        (Command("exit 3"), "exit code 3, not 0"),
        (Command("false | cat"), "exit code 1, not 0"),
        (Command("true", 2), "exit code 0, not 2"),
        (Command("echo one", output=("two",)), "-two\n+one"),
        (Command("true", output=("one",)), "-one"),
    ],
)
def test_a_command_runs_and_is_compared(tmp_path: Path, command: Command, reason: str):
    variables, place = workplace(tmp_path), tmp_path / ".place"
    place.write_text(str(tmp_path))
    found = failure(command, tmp_path, variables, place)
    assert reason in found
    assert bool(reason) == bool(found)


def test_the_commands_of_a_block_share_a_folder(tmp_path: Path):
    variables, place = workplace(tmp_path), tmp_path / ".place"
    place.write_text(str(tmp_path))
    for line, output in (("mkdir inner && cd inner", ()), ("pwd", ("…/inner",)), ("test -e ../run_profile.py", ())):
        assert failure(Command(line, output=output), tmp_path, variables, place) == ""


# ---- where the commands run


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


def runs_to_report(folder: Path) -> None:
    for model in ("resnet50", "vgg16"):
        for algorithm in reports.ALGORITHMS:
            reports.profile(folder / "results", model, algorithm)


def run_on_this_cpu(path: Path, algorithm: str, mean_ms: dict[int, float]) -> None:
    """Write a run of AlexNet as the commands of a page would, with a mean time for each size."""
    here = dataclasses.replace(environment.read(torch.device("cpu")), cpu_threads=1, cuda_visible_devices="")
    passes = [
        compared.overall(
            model="alexnet", algorithm=algorithm, input_size=px, mean=mean_ms[px], timing_method="time.perf_counter"
        )
        for px in mean_ms
    ]
    layers = [
        compared.layer(
            algorithm=algorithm, input_size=px, layer=name, position=at, mean_ms=mean_ms[px] / 9,
            in_height_px=px, in_width_px=px, timing_method="time.perf_counter",
        )
        for px in mean_ms for at, name in enumerate(f"features.{number}" for number in (0, 3, 6, 8, 10))
    ]  # fmt: skip
    compared.written(
        path / f"alexnet_{algorithm}_cpu", passes, layers, dataclasses.asdict(here), algorithm=algorithm, gpu="cpu",
        input_sizes=tuple(mean_ms), stage=path.name, device="cpu", energy=True,
    )  # fmt: skip


def runs_to_compare(folder: Path) -> None:
    for algorithm, factor in (("direct", 1.0), ("smm", 1.4)):
        run_on_this_cpu(folder / "results" / "2_quick", algorithm, {px: factor * px for px in (64, 144, 224)})


def first_run(folder: Path) -> None:
    run_on_this_cpu(folder / "results" / "1_sanity", "direct", {224: 400.0})


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
    """Write samples of 3×3 layers with up to 512 channels and filters."""
    rows = list[SampleRow]()
    for row in drawn_samples.drawn(200, ("Tesla P4", "Tesla P100-PCIE-16GB")):
        channels = row.in_channels if row.in_channels == 3 else 2 * row.in_channels
        wide = dataclasses.replace(row, in_channels=channels, out_channels=2 * row.out_channels)
        mean_ms = drawn_samples.milliseconds(wide, *drawn_samples.CARDS[row.gpu_name])
        rows.append(dataclasses.replace(wide, algorithm="torch benchmark", mean_ms=mean_ms))
    samples.write(folder / "samples.csv", rows)


def own_model(folder: Path) -> None:
    (folder / "net.py").symlink_to(ROOT / "examples" / "own_model.py")


def own_model_and_combinations(folder: Path) -> None:
    (folder / ".home" / "nets").mkdir()
    shutil.copy(ROOT / "examples" / "own_model.py", folder / ".home" / "nets" / "own.py")
    (folder / ".home" / "convscope").symlink_to(folder)
    (folder / "matrix.tsv").write_text("vgg16\tgemm\tl40s\nvgg16\tgemm\tk9000\n")


def atlas(folder: Path) -> None:
    reports.atlas(folder / "results").rename(folder / "results" / "plans" / "FOLDER")


GIVEN: dict[str, Callable[[Path], None]] = {
    "README.md": atlas, "compare.md": runs_to_compare, "data.md": samples_of_two_nodes, "own-model.md": own_model,
    "prediction.md": samples_of_two_cards, "report.md": runs_to_report, "slurm.md": own_model_and_combinations,
    "start.md": first_run,
}  # fmt: skip
"""What the commands of a page find: files that other pages, a GPU or a reader would have made."""
PAGES = [path for path in (ROOT / "README.md", *sorted(ROOT.glob("docs/*.md"))) if MARKER.search(path.read_text())]


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_the_markers_of_a_page_can_be_read(page: Path):
    assert all(marked(page.read_text()))


@pytest.mark.long
@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_the_marked_blocks_of_a_page_run_and_print_what_it_shows(page: Path, tmp_path: Path):
    variables = workplace(tmp_path)
    GIVEN.get(page.name, lambda _: None)(tmp_path)
    place = tmp_path / ".place"
    for block in marked(page.read_text()):
        place.write_text(str(tmp_path))
        for command in block:
            if reason := failure(command, tmp_path, variables, place):
                pytest.fail(reason, pytrace=False)
