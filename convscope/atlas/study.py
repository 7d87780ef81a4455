"""Order of work of an atlas: rounds that a folder does not have, one by one, then what stands on all of them."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from convscope.atlas import energy, race, report, tables
from convscope.atlas.offered import PlanFaultError
from convscope.atlas.rows import PLANS, RoundKey
from convscope.atlas.turns import NO_TURNS, Turns
from convscope.convolution.operator import sparing
from convscope.errors import CONTINUE, DeviceFaultError, InputError
from convscope.profiling.bench import Bench
from convscope.storage.environment import Environment
from convscope.storage.store import Store
from convscope.storage.table import write_atomically
from convscope.verification import choice
from convscope.verification.candidates import HEURISTIC
from convscope.verification.evidence import Subject
from convscope.verification.rows import ModelKey, PassRow
from convscope.verification.study import VerificationStudy

STEP_S = 5.0
"""Steps that take longer are noted."""
LOST_FILE = "lost_the_gpu.json"
"""Plans that have lost the GPU, by the first layer of their shape, with the reason: they are not run again."""


@dataclass
class AtlasStudy(VerificationStudy):
    """Races every plan of one model.

    Attributes:
        budget_s: begin no further round when this much time has passed, after two rounds in all and one of this call;
            None is no limit.
        any_card: rounds of another card of the same name may stand in the folder.
        turns: this process's place among those that share the GPU; it is alone there while it times.
    """

    budget_s: float | None = None
    turns: Turns = NO_TURNS
    schema = PLANS

    def cells(self) -> Sequence[ModelKey | RoundKey]:
        """Return the rounds, and the tables that stand on them."""
        return [*(RoundKey(**vars(self.key), round=place) for place in range(self.rounds)), self.key]

    def measure(self, folder: Path, overwrite: bool, take_over: bool = False) -> Store:
        """Fill the folder's tables as every verification does, by turns with processes that share the GPU.

        The place among them is kept until the process ends: to tear down what it has on the GPU disturbs others too.
        """
        self.turns.join()
        return super().measure(folder, overwrite, take_over)

    def ask(self, subject: Subject, environment: Environment, store: Store) -> list[Any]:
        """Time the rounds that are missing, each kept as it ends; return the rows that stand on all of them."""
        with sparing(subject.device):
            return self._raced(subject, environment, store)

    def _raced(self, subject: Subject, environment: Environment, store: Store) -> list[Any]:
        run, began_s = self.request, time.monotonic()
        with self._step("candidates tried"):
            shapes = self._shapes(subject, store.path)
        if not shapes:
            raise InputError(f"cuDNN has no plans for any layer of {run.model}: the lines above say why")
        store.begin(run, environment, sys.argv)
        with contextlib.ExitStack() as closing:
            with self._alone():
                bench = self.bench(subject)
                racing = closing.enter_context(contextlib.closing(race.Race(subject, bench, self.note, shapes)))
                with self._step("candidates launched from Python"):
                    racing.leave_out_slow()
                racing.resume(store.objects("plan_times")["plan_times"])
                self._run(racing, store, began_s)
                if run.energy:
                    with self._step("energy of calls"):
                        racing.run(HEURISTIC, partial(energy.measure, subject, bench, self.note, shapes))
                judged = self._judged(racing, subject, bench) if subject.is_network else []
            with self._step("kernels traced"):
                racing.trace(self.turns)
        layers = tables.layer_rows(self.key, racing.shapes)
        return [*layers, *judged, *tables.rows(run, environment, racing.shapes)]

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Have the GPU alone in the block."""
        with contextlib.ExitStack() as turn:
            with self._step("waited for the GPU"):
                turn.enter_context(self.turns.alone())
            yield

    @contextlib.contextmanager
    def _step(self, what: str) -> Iterator[None]:
        """Note the time that a step of the work took, if it was long."""
        began_s = time.monotonic()
        yield
        if (took_s := time.monotonic() - began_s) >= STEP_S:
            self.note(f"{what}: {took_s:.0f} s")

    def _judged(self, racing: race.Race, subject: Subject, bench: Bench) -> list[PassRow]:
        """Return whole passes, by the fastest of each shape and by the choosers; of a list of layers they are none."""
        with self._step("whole passes"):
            passes = racing.judged(max(race.ROUNDS_LEAST, len(racing.places())))
            spent = energy.of_passes(racing, subject, bench) if self.request.energy else {}
        rows = choice.pass_rows(self.key, self.request, passes)
        return [tables.with_energy(row, spent.get(row.convolutions_by)) for row in rows]

    def _shapes(self, subject: Subject, folder: Path) -> list[race.Shape]:
        """Try every plan but those that have lost the GPU before; one that does now is written down."""
        path = folder / LOST_FILE
        lost: dict[str, dict[str, str]] = json.loads(path.read_text()) if path.exists() else {}
        try:
            return race.shapes_of(subject, self.note, lost, self.request.first, self.request.by_name, self.turns)
        except PlanFaultError as fault:
            lost.setdefault(fault.layer, {})[fault.plan] = fault.reason
            write_atomically(path, json.dumps(lost, indent=1) + "\n")
            raise DeviceFaultError(f"{fault}; {CONTINUE} without it") from fault

    def _run(self, racing: race.Race, store: Store, began_s: float) -> None:
        """Run the rounds that are missing, as many as the budget allows."""
        left = [place for place in range(self.rounds) if place not in racing.places()]
        for count, place in enumerate(left):
            done = len(racing.places())
            if count and self._is_over(began_s) and done >= race.ROUNDS_LEAST:
                more = "run the same command again, without --overwrite, to continue"
                self.note(f"the time is up after {done} of {self.rounds} rounds: {more}")
                break
            with self._step(f"round {place + 1}"):
                racing.round(place)
            if found := racing.times_of(place, self.key):
                store.append(found)

    def _is_over(self, began_s: float) -> bool:
        return self.budget_s is not None and time.monotonic() - began_s > self.budget_s


def plans_text(store: Store) -> tuple[str, bool]:
    """Return the fastest plan of each shape, and the cost of what others run, as text."""
    found = store.objects("plans", "passes")
    return report.plans_report(found["plans"], {row.convolutions_by: row for row in found["passes"]}), True
