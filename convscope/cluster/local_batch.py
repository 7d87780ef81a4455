"""Batch of combinations on this machine, without SLURM: one process a GPU at a time, one progress display.

`./3_full_run.sh --local --matrix FILE --gpus 0,1,2,3` calls it. It starts the stages with --local, each in its own
session, so that signals reach them only from here; a combination that fails stops only itself.
"""

from __future__ import annotations

import argparse
import math
import os
import shlex
import signal
import subprocess
import sys
import time
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

from tqdm import tqdm

from convscope import gpus
from convscope.cli import fields, programs
from convscope.cli.display import several
from convscope.cli.parser import OneLineParser, split_flags
from convscope.cli.signals import ENDED, GRACE_S, STOPPED, answered
from convscope.cluster import matrix, progress, submission
from convscope.errors import InputError, SensorError
from convscope.power import nvml
from convscope.storage import paths
from convscope.storage.paths import ROOT, SCRIPTS, STAGES, Combination

CPU = "cpu"
_OUTCOMES = ("done", "failed", "stopped", "not started")
_POLL_S = 0.5


@dataclass(frozen=True)
class Device:
    """Device for one process at a time: its name in the display, and the UUID that CUDA is to show (None: no GPU)."""

    name: str
    uuid: str | None = None


def devices(names: str, visible: str | None, library: Any = None) -> list[Device]:
    """Return the devices of `--gpus`.

    Args:
        names: "0,1": indices into what CUDA shows; "cpu,cpu": two processes without a GPU; "": all GPUs there are.
        visible: `CUDA_VISIBLE_DEVICES`, None where it is not set.

    Raises:
        InputError: there is no such GPU.
    """
    entries = [entry.strip() for entry in names.split(",")] if names else []
    if entries and all(entry == CPU for entry in entries):
        return [Device(f"{CPU} {index}") for index in range(len(entries))]
    try:
        uuids = nvml.visible_uuids(library or nvml.load(), visible)
    except SensorError as error:
        raise InputError(f"--gpus: {error}; without a GPU say --gpus cpu") from None
    chosen = entries or [str(index) for index in range(len(uuids))]
    unknown = [entry for entry in chosen if not (entry.isdecimal() and int(entry) < len(uuids))]
    if unknown or not chosen or len(set(chosen)) < len(chosen):
        has = f"this machine has {several(len(uuids), 'GPU')}"
        raise InputError(f"--gpus {names or 'all'}: {has}: name each once, 0 to {len(uuids) - 1}")
    return [Device(f"GPU {entry}", uuids[int(entry)]) for entry in chosen]


def label(chosen: Sequence[Device], library: Any = None) -> str:
    """Return the short name of these devices' model of card, for folder names; InputError for different cards."""
    if chosen[0].uuid is None:
        return CPU
    library = library or nvml.load()
    names = {gpus.label(nvml.card_name(library, each.uuid)) for each in chosen if each.uuid}
    if len(names) > 1:
        raise InputError(f"--gpus are different cards ({', '.join(sorted(names))}): name those of one kind")
    return names.pop()


class Stop:
    """Urgency with which signals have asked to stop, within the `with` block.

    `level` 1: finish the size at hand (USR2, the first Ctrl-C); 2: at once (TERM, HUP, the second Ctrl-C).
    """

    def __init__(self) -> None:
        self.level = 0

    def __enter__(self) -> Stop:
        numbers = (signal.SIGUSR2, signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        self._before = [(number, signal.signal(number, self._remember)) for number in answered(numbers)]
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        for number, handler in self._before:
            signal.signal(number, handler)

    def _remember(self, number: int, frame: FrameType | None) -> None:
        at_once = number in (signal.SIGTERM, signal.SIGHUP) or (number == signal.SIGINT and self.level > 0)
        self.level = 2 if at_once else max(self.level, 1)


@dataclass
class CombinationRun:
    """One combination on its way through the stages, on one device; `stages` are those still to come."""

    combination: Combination
    device: Device
    stages: deque[str]
    stage: str = ""
    process: subprocess.Popen[bytes] | None = None


@dataclass
class LocalBatch:
    """Combinations run one a device, each through all stages up to one that fails."""

    combinations: Sequence[Combination]
    stages: Sequence[str]
    devices: Sequence[Device]
    flags: Sequence[str]
    root: Path = ROOT
    ended: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    sizes: dict[tuple[str, Combination], int] = field(default_factory=dict)
    kill_after_s: float = GRACE_S + 5

    def run(self, stop: Stop) -> int:
        """Run them all; return 0, 1 where one failed, 85 where a signal ended it before the last."""
        waiting, free = deque(self.combinations), deque(self.devices)
        running: list[CombinationRun] = []
        level, kill_at_s = 0, math.inf
        each_with = [(stage, each) for each in self.combinations for stage in self.stages]
        total = sum(matrix.requested_sizes(stage, self._flags(each, stage)) for stage, each in each_with)
        with tqdm(total=total, unit="size", desc="sizes", disable=None, dynamic_ncols=True) as bar:
            while running or (waiting and not stop.level):
                while free and waiting and not stop.level:
                    running.append(self._start(CombinationRun(waiting.popleft(), free.popleft(), deque(self.stages))))
                time.sleep(_POLL_S)
                if stop.level > level:
                    level = stop.level
                    bar.write(_WORDS[level], file=sys.stderr)
                    _signal(running, signal.SIGUSR2 if level == 1 else signal.SIGTERM)
                    kill_at_s = math.inf if level == 1 else time.monotonic() + self.kill_after_s
                if time.monotonic() > kill_at_s:
                    _signal(running, signal.SIGKILL)
                self._show(bar, running)
                for run in [run for run in running if run.process and run.process.poll() is not None]:
                    if not self._goes_on(run, stop, bar):
                        running.remove(run)
                        free.append(run.device)
        self.ended["not started"] += len(waiting)
        print(", ".join(f"{self.ended[outcome]} {outcome}" for outcome in _OUTCOMES if self.ended[outcome]))
        print(*self.failures, sep="\n", end="\n" if self.failures else "")
        if waiting or self.ended["stopped"]:
            return STOPPED
        return 1 if self.failures else 0

    def command(self, name: Combination, stage: str) -> list[str]:
        """Return the command of one stage of a combination."""
        # Which card is free decides where a combination goes on, so a folder may hold sizes of several.
        any_card = ["--any-card"] if self.devices[0].uuid and "--any-card" not in self.flags else []
        flags = [*self._flags(name, stage), *any_card]
        return [f"./{SCRIPTS[stage]}", "--local", name.model, name.algorithm, name.gpu, *flags]

    def _flags(self, name: Combination, stage: str) -> list[str]:
        return [*self.flags, *fields.flags(name.settings, stage)]

    def _start(self, run: CombinationRun) -> CombinationRun:
        run.stage = run.stages.popleft()
        folder = self._folder(run)
        folder.mkdir(parents=True, exist_ok=True)
        number = str(os.getpid())
        log = folder / f"{run.stage}_{run.combination.folder_name}_local{number}"  # as slurm/run.sh names it
        own = {"CONVSCOPE_BATCH": number}
        if run.device.uuid is not None:
            own["CUDA_VISIBLE_DEVICES"] = run.device.uuid
        with open(f"{log}.out", "ab") as out, open(f"{log}.err", "ab") as err:
            run.process = subprocess.Popen(
                self.command(run.combination, run.stage), cwd=self.root, env=os.environ | own,
                stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True,
            )  # fmt: skip
        return run

    def _goes_on(self, run: CombinationRun, stop: Stop, bar: tqdm[Any]) -> bool:
        """Start the next stage of a combination whose process has ended, or note how the combination ended."""
        code = run.process.returncode if run.process else 0
        if code == 0 and run.stages and not stop.level:
            self._start(run)
            return True
        was_stopped = code in (STOPPED, ENDED) or (stop.level and (code or run.stages))
        outcome = "stopped" if was_stopped else "failed" if code else "done"
        self.ended[outcome] += 1
        bar.write(f"{outcome}: {run.stage} {run.combination} ({run.device.name})")
        if outcome == "failed":
            reason = progress.last_error(self._folder(run)) or f"exit code {code}"
            self.failures.append(f"failed: {run.stage} {run.combination}: {reason}")
        return False

    def _folder(self, run: CombinationRun) -> Path:
        return paths.results(self.root) / run.stage / run.combination.folder_name

    def _show(self, bar: tqdm[Any], running: Sequence[CombinationRun]) -> None:
        if bar.disable:
            return
        for run in running:
            folder = progress.read(self._folder(run), run.stage)
            self.sizes[run.stage, run.combination] = folder.done if folder else 0
        bar.n = sum(self.sizes.values())
        names = (f"{run.device.name}: {run.combination.model} {run.combination.algorithm}" for run in running)
        bar.set_postfix_str("; ".join(names))


_WORDS = {
    1: "stopping: each run finishes the size at hand (Ctrl-C again: at once)",
    2: "stopping at once: the sizes at hand are lost, the others are kept",
}


def _signal(running: Sequence[CombinationRun], number: signal.Signals) -> None:
    for run in running:
        if run.process and run.process.poll() is None:
            os.killpg(run.process.pid, number)


def main(arguments: Sequence[str], root: Path = ROOT) -> int:
    """Run the command line: the stages of every unfinished combination of a file."""
    own, flags = split_flags(arguments)
    options = _parser().parse_args(own)
    script = root / SCRIPTS[options.stages[0]]
    if not script.is_file():
        advice = "run it in a checkout of the project, or convscope profile --study FILE here, one run after the other"
        raise InputError(f"{script} is missing, which runs a stage: {advice}")
    names = CPU if options.gpu == CPU and not options.gpus else options.gpus
    chosen = devices(names, os.environ.get("CUDA_VISIBLE_DEVICES"))
    gpu = label(chosen) if options.gpu == "local" else options.gpu
    every = _combinations(options, gpu, flags)
    requests = submission.requests(every, options.stages, flags, is_here=True)
    planner = submission.Planner(requests, options.stages, options.stages[0], paths.results(root))
    works = matrix.plan(planner, every).works
    left = [work.combination for work in works]
    flags += ["--retry"] * any(work.retry for work in works)
    batch = LocalBatch(left, options.stages, chosen, flags, root)
    if options.dry_run:
        print("\n".join(shlex.join(batch.command(each, stage)) for each in left for stage in options.stages))
        return 0
    print(f"{len(left)} of {len(every)} combinations to run, {len(chosen)} at a time")
    with Stop() as stop:
        return batch.run(stop)


def _combinations(options: argparse.Namespace, gpu: str, flags: Sequence[str]) -> list[Combination]:
    """Return the combinations of the file; of a study those for the GPU that is here, InputError for none."""
    if not options.study:
        return matrix.read(options.file, gpu, flags=flags, stand=options.relative_to)
    every = matrix.read_study(options.file, gpu, flags=flags, stand=options.relative_to)
    here = [each for each in every if each.gpu == gpu]
    if not here:
        gpus_of_file = ", ".join(dict.fromkeys(each.gpu for each in every))
        raise InputError(
            f"{options.file} is for {gpus_of_file}, and here is {gpu}: run it there, or add {gpu} to its gpus"
        )
    return here


def _parser() -> argparse.ArgumentParser:
    options = f"Behind -- stand options for {programs.called('run_profile')}."
    description = f"Run a matrix here, one process a GPU. {options}"
    examples = (
        "combinations.tsv --stages 1_sanity 2_quick",
        "study.toml --study --stages 3_full --gpus 0,1 -- --no-energy",
    )
    parser = OneLineParser(prog="convscope local", description=description, examples=examples)
    parser.add_argument("file", type=Path, metavar="FILE", help="file of combinations, one per line")
    parser.add_argument("--study", action="store_true", help="FILE is a study file")
    matrix.add_relative_to(parser)
    parser.add_argument(
        "--stages",
        nargs="+",
        choices=STAGES,
        required=True,
        metavar="STAGE",
        help=f"{' '.join(STAGES)}: in this order, up to one that fails",
    )
    parser.add_argument("--gpu", metavar="NAME", default="local", help="for lines that name none (local: what is here)")
    parser.add_argument("--gpus", metavar="0,1,…", default="", help="one process for each of these (all)")
    parser.add_argument("--dry-run", action="store_true", help="print the commands")
    return parser
