"""Order of work of a verification's tables: measured where a folder does not have them, then told from the folder."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from convscope.cli.display import table
from convscope.convolution import backends
from convscope.errors import InputError
from convscope.power.meter import Meter
from convscope.profiling.bench import Bench
from convscope.storage.environment import Environment
from convscope.storage.paths import now_utc
from convscope.storage.store import Store
from convscope.timing.layer_times import LayerTimer
from convscope.verification import choice, plan_report, plans, report, support
from convscope.verification.evidence import Subject, open_subject
from convscope.verification.request import CHOICE, PLANS, SUPPORT, Verification
from convscope.verification.rows import CHOICE as CHOICE_SCHEMA
from convscope.verification.rows import PLANS as PLANS_SCHEMA
from convscope.verification.rows import SUPPORT as SUPPORT_SCHEMA
from convscope.verification.rows import ModelKey, RoundKey

SCHEMAS = {SUPPORT: SUPPORT_SCHEMA, CHOICE: CHOICE_SCHEMA, PLANS: PLANS_SCHEMA}


@dataclass
class VerificationStudy:
    """Asks one question of one model; `meter` is open, and `make_timer` and `note` are as those of a `Sweep`.

    Attributes:
        budget_s: begin no further round of plans when this much time has passed, after two rounds in all and one of
            this call; None is no limit.
        any_card: rounds of another card of the same name may stand in the folder.
    """

    request: Verification
    meter: Meter
    make_timer: Callable[[nn.Module, str], LayerTimer]
    note: Callable[[str], None]
    budget_s: float | None = None
    any_card: bool = False

    def measure(self, folder: Path, overwrite: bool, take_over: bool = False) -> Store:
        """Fill the folder's tables where they are missing; return its store, closed.

        Raises:
            InputError, WriteError: as `Store` does.
        """
        run, question = self.request, str(self.request.question)
        rounds = [RoundKey(**vars(self._key), round=place) for place in range(self._rounds)]
        cells = [*rounds, self._key] if question == PLANS else [self._key]
        ask = {SUPPORT: self._support, CHOICE: self._choice, PLANS: self._plans}[question]
        with Store(folder, SCHEMAS[question], note=self.note, take_over=take_over) as store:
            environment = backends.environment_on(torch.device(run.device), self.meter.settings())
            if store.missing(self.request, environment, cells, overwrite, any_card=self.any_card):
                with open_subject(run) as subject:
                    rows = ask(subject, environment, store)
                store.append(rows)
                if not set(cells) - store.cells().keys():
                    store.note_in_run(ended_utc=now_utc())
        return store

    @property
    def _key(self) -> ModelKey:
        run = self.request
        return ModelKey(run.model, run.input_sizes[0], run.batch_size, run.math)

    @property
    def _rounds(self) -> int:
        return self.request.rounds or choice.ROUNDS

    def _bench(self, subject: Subject) -> Bench:
        run, device = self.request, torch.device(self.request.device)
        bench = Bench(run, subject.model, device, self.make_timer(subject.model, device.type), self.meter, self.note)
        bench.calibrate(run.input_sizes[0])
        return bench

    def _support(self, subject: Subject, environment: Environment, store: Store) -> list[Any]:
        rows = support.survey(subject, environment, self.request.limit_bytes, self.request.dtype)
        store.begin(self.request, environment, sys.argv)
        return [*rows]

    def _choice(self, subject: Subject, environment: Environment, store: Store) -> list[Any]:
        run = self.request
        result = choice.study(subject, self._bench(subject), self.note, self._rounds)
        store.begin(run, environment, sys.argv)
        rows = choice.rows(run, environment, subject.layers, result.candidates)
        return [*rows, *choice.pass_rows(self._key, run, result.passes)]

    def _plans(self, subject: Subject, environment: Environment, store: Store) -> list[Any]:
        """Time the rounds that are missing, each kept as it ends; return the rows that stand on all of them."""
        run, began_s = self.request, time.monotonic()
        shapes, bench = plans.shapes_of(subject, self.note), self._bench(subject)
        if not shapes:
            raise InputError(f"cuDNN has no plans for any layer of {run.model}: the lines above say why")
        store.begin(run, environment, sys.argv)
        with contextlib.closing(plans.Race(subject, bench, self.note, shapes)) as race:
            race.leave_out_slow()
            race.resume(store.objects("plan_times")["plan_times"])
            left = [place for place in range(self._rounds) if place not in race.places()]
            for count, place in enumerate(left):
                done = len(race.places())
                if count and self._is_over(began_s) and done >= plans.ROUNDS_LEAST:
                    more = "the same command goes on, without --overwrite"
                    self.note(f"the time is up after {done} of {self._rounds} rounds: {more}")
                    break
                race.round(place)
                if found := race.times_of(place, self._key):
                    store.append(found)
            passes = race.judged(max(plans.ROUNDS_LEAST, len(race.places())))
            race.trace()
        layers = plans.layer_rows(self._key, race.shapes)
        return [*layers, *choice.pass_rows(self._key, run, passes), *plans.rows(run, environment, race.shapes)]

    def _is_over(self, began_s: float) -> bool:
        return self.budget_s is not None and time.monotonic() - began_s > self.budget_s


def support_text(store: Store) -> tuple[str, bool]:
    """Return the table of support as text, and whether rules and card agree everywhere."""
    rows = store.objects("support")["support"]
    differing = support.disagreements(rows)
    header = ("algorithm", "layers", "why not; what is the same")
    lines = [table(header, support.summary(rows)), *(f"rule and card differ: {line}" for line in differing)]
    return "\n".join(lines), not differing


def plans_text(store: Store) -> tuple[str, bool]:
    """Return the fastest plan of each shape, and the cost of what others run, as text."""
    found = store.objects("plans", "passes")
    return plan_report.plans_report(found["plans"], {row.convolutions_by: row for row in found["passes"]}), True


def choice_text(store: Store) -> tuple[str, bool]:
    """Return the fastest algorithm of each layer, and the cost of other choices, as text."""
    found = store.objects("choice", "passes")
    return report.choice_report(found["choice"], {row.convolutions_by: row for row in found["passes"]}), True


TEXTS = {SUPPORT: support_text, CHOICE: choice_text, PLANS: plans_text}
