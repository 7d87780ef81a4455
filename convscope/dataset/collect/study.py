"""Order of work of a collection: group by group, each in a process of its own, until the time is up or all is measured.

Several groups are under way at once: their processes try candidates side by side and take times by turns (`Turns`),
also with those of every other collection on the same GPU. A group's tables are its store: an interrupted group goes on
where it was. `samples.csv` is put together from all whole groups whenever one is done, so that it never has part of a
group; `calls.csv` beside it has every call of a pass of each model at each size that it names.
"""

from __future__ import annotations

import json
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Set
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from convscope.atlas import turns
from convscope.cli import programs
from convscope.cli.display import several, table
from convscope.cli.signals import StopSignal
from convscope.dataset import calls, samples
from convscope.dataset.collect import coverage, traced
from convscope.dataset.collect.group import ABOUT, GroupFolder
from convscope.dataset.collect.request import Collection
from convscope.dataset.collect.uses import Key
from convscope.dataset.samples import SampleRow
from convscope.errors import CONTINUE, DeviceFaultError, InputError
from convscope.storage.lock import NAME as LOCK
from convscope.storage.lock import Lock

GROUPS, SAMPLES, CALLS, LOG = "groups", "samples.csv", f"{calls.NAME}.csv", "log.txt"
STARTS_MOST = 4
"""A group whose process loses the GPU is begun so often: each start leaves out one plan more."""
POLL_S = 0.2


def standing(asked: Collection, done: Set[tuple[str, Key]], as_json: bool = False) -> str:
    """Return as text how many shapes of each part of the range there are, and how many have been measured.

    Args:
        done: settings with shapes that have been measured.
        as_json: a list of objects, one a part, in place of a table.
    """
    lines = []
    for stratum in coverage.strata(asked):
        shapes = {(stratum.setting, key) for key in coverage.shapes_of(asked, stratum)}
        lines.append((stratum.setting, stratum.batch_size, len(shapes), len(shapes & done), len(shapes - done)))
    if as_json:
        names = ("setting", "batch_size", "shapes", "measured", "left")
        return json.dumps([dict(zip(names, line, strict=True)) for line in lines], indent=1)
    cells = [tuple(map(str, line)) for line in lines]
    return table(("setting", "batch size", "shapes", "measured", "left"), cells)


@dataclass
class CollectStudy:
    """Measures a collection into a folder.

    Attributes:
        gpu_uuid: of the GPU, None for a CPU.
        budget_s: begin no group that would take longer than is left of it, by the longest so far; None is no limit.
            As many as are under way at once are begun anyhow.
        known: settings with shapes that other collections have measured.
    """

    asked: Collection
    folder: Path
    stop: StopSignal
    note: Callable[[str], None]
    gpu_uuid: str | None = None
    budget_s: float | None = None
    known: Set[tuple[str, Key]] = frozenset()
    _longest_s: float = field(default=0.0, init=False)
    _read: dict[Path, list[SampleRow]] = field(default_factory=dict, init=False)
    _begun: int = field(default=0, init=False)
    _failed: list[str] = field(default_factory=list, init=False)
    _is_closed: bool = field(default=False, init=False)
    _mutex: threading.Lock = field(default_factory=threading.Lock, init=False)

    def check(self) -> None:
        """Check that the folder is one of this collection, if that renews samples: it measures no others.

        Raises:
            InputError: it has other groups, or such as an earlier version timed.
        """
        renewed = {(setting, use.key) for setting, use in self.asked.renewed}
        if renewed and any(each.is_older or not each.known <= renewed for each in self.folders()):
            raise InputError(
                f"{self.folder} has shapes that are not to be renewed, or earlier times: "
                "--output-dir names a folder of its own for what is renewed"
            )

    def run(self, take_over: bool = False) -> int:
        """Measure what is missing; return the exit code, 1 where a group could not be measured.

        Raises:
            InputError: as for `check`.
        """
        self.check()
        self.folder.mkdir(parents=True, exist_ok=True)
        with Lock(self.folder / LOCK, take_over=take_over):
            groups, began_s = self._groups(), time.monotonic()
            with ThreadPoolExecutor(self.asked.processes) as pool:
                workers = [pool.submit(self._work, groups, began_s) for _ in range(self.asked.processes)]
            for worker in workers:
                worker.result()
            self._write()
        for name in sorted(self._failed):
            self.note(f"{name} could not be measured: see {self.folder / GROUPS / name / LOG}")
        return 1 if self._failed else 0

    def _work(self, groups: Iterator[GroupFolder], began_s: float) -> None:
        """Measure one group after another until none is left or the time is up; the work of each of the threads."""
        try:
            while group := self._next(groups, began_s):
                started_s = time.monotonic()
                is_whole = self._measured(group, began_s)
                with self._mutex:
                    self._tell(group, is_whole, time.monotonic() - started_s)
        finally:
            self._is_closed = True  # nothing is left; or an error, after which the others begin no group

    def _next(self, groups: Iterator[GroupFolder], began_s: float) -> GroupFolder | None:
        with self._mutex:
            group = None if self._is_closed or self.stop() else next(groups, None)
            if group is None:
                return None
            if self._begun and self._is_over(began_s):
                self.note(f"the time is up: {CONTINUE}")
                self._is_closed = True
                return None
            self._begun += 1
            return group

    def _tell(self, group: GroupFolder, is_whole: bool, took_s: float) -> None:
        """Keep what a group came to, and note it."""
        if self.stop():
            return
        if not is_whole:
            self._failed.append(group.path.name)
        self._longest_s = max(self._longest_s, took_s)
        self.note(f"{several(self._write(), 'sample')}; {group.path.name} took {took_s:.0f} s")

    def folders(self) -> list[GroupFolder]:
        """Return the groups that are on disk, in order."""
        found = sorted((self.folder / GROUPS).glob(f"*/{ABOUT}"))
        return [GroupFolder.read(path.parent) for path in found]

    def done(self) -> set[tuple[str, Key]]:
        """Return the shapes that have been measured, here or by others, each with its setting."""
        measured = {one for each in self.folders() if self._samples(each) for one in each.known}
        return measured.union(self.known)

    def _groups(self) -> Iterator[GroupFolder]:
        """Yield the groups to measure: those that were begun, then new ones."""
        every = self.folders()
        yield from (each for each in every if not self._samples(each))
        known = {one for each in every for one in each.known}.union(self.known)
        begun = max((int(each.path.name.partition("_")[0]) for each in every), default=0)
        for number, group in enumerate(coverage.groups(self.asked, known, begun), begun + 1):
            path = self.folder / GROUPS / f"{number:04d}_{group.stratum}"
            yield GroupFolder.create(path, group)

    def _measured(self, group: GroupFolder, began_s: float) -> bool:
        """Measure a group in a process of its own; tell whether its tables are whole."""
        for _ in range(STARTS_MOST):
            command = programs.command("run_verify")
            command += group.flags(self.asked.first, self.asked.rounds, self.asked.device)
            if self.gpu_uuid or self.asked.processes > 1:
                command += ["--turns", str(turns.file_of(self.gpu_uuid or str(self.folder.resolve())))]
            if self.budget_s is not None:
                left_s = max(60.0, self.budget_s - (time.monotonic() - began_s))
                command += ["--minutes", f"{left_s / 60:.2f}"]
            code = self._ran(command, group.path / LOG)
            if code != DeviceFaultError.exit_code or self.stop():
                return code == 0 and bool(self._samples(group))
        return False

    def _ran(self, command: list[str], log: Path) -> int:
        own = programs.environment()
        with (
            log.open("a") as text,
            subprocess.Popen(command, stdout=text, stderr=subprocess.STDOUT, env=own) as process,
        ):
            while process.poll() is None:
                if self.stop():
                    process.terminate()
                    process.wait()
                time.sleep(POLL_S)
        return process.returncode

    def _samples(self, group: GroupFolder) -> list[SampleRow]:
        """Return the samples of a group, read once; none before it is whole."""
        found = self._read.get(group.path) or group.samples()
        if found:
            self._read[group.path] = found
        return found

    def _is_over(self, began_s: float) -> bool:
        return self.budget_s is not None and time.monotonic() - began_s + self._longest_s > self.budget_s

    def _write(self) -> int:
        """Put the samples of all whole groups together, and the calls of their models; return how many samples."""
        rows = [row for each in self.folders() for row in self._samples(each)]
        if not rows:
            return 0
        asked = self.asked.models  # of others, a file of samples named the model: no code is run for that
        passes = [each for each in calls.passes(rows) if each[0] in asked or traced.is_of_a_library(each[0])]
        calls.write(self.folder / CALLS, traced.calls(passes))
        return samples.write(self.folder / SAMPLES, rows)
