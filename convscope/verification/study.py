"""Order of work of a verification's tables: measured where a folder does not have them, then told from the folder."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from convscope.cli.display import table
from convscope.convolution import backends
from convscope.power.meter import Meter
from convscope.profiling.bench import Bench
from convscope.storage.environment import Environment
from convscope.storage.paths import now_utc
from convscope.storage.schema import Schema
from convscope.storage.store import Store
from convscope.timing.layer_times import LayerTimer
from convscope.verification import choice, first_call, report, support
from convscope.verification.evidence import Subject, open_subject
from convscope.verification.request import CHOICE, FIRST_CALL, SUPPORT, Verification
from convscope.verification.rows import CHOICE as CHOICE_SCHEMA
from convscope.verification.rows import FIRST_CALL as FIRST_CALL_SCHEMA
from convscope.verification.rows import SUPPORT as SUPPORT_SCHEMA
from convscope.verification.rows import ModelKey

SCHEMAS = {SUPPORT: SUPPORT_SCHEMA, CHOICE: CHOICE_SCHEMA, FIRST_CALL: FIRST_CALL_SCHEMA}


@dataclass
class VerificationStudy:
    """Asks one question of one model; `meter` is open, and `make_timer` and `note` are as those of a `Sweep`.

    Attributes:
        any_card: what another card of the same name measured may stand in the folder.
    """

    request: Verification
    meter: Meter
    make_timer: Callable[[nn.Module, str], LayerTimer]
    note: Callable[[str], None]
    any_card: bool = False

    @property
    def schema(self) -> Schema:
        """The tables of the question."""
        return SCHEMAS[str(self.request.question)]

    def measure(self, folder: Path, overwrite: bool, take_over: bool = False) -> Store:
        """Fill the folder's tables where they are missing; return its store, closed.

        Raises:
            InputError, WriteError: as `Store` does.
        """
        run, cells = self.request, [*self.cells()]
        with Store(folder, self.schema, note=self.note, take_over=take_over) as store:
            environment = backends.environment_on(torch.device(run.device), self.meter.settings())
            if store.missing(run, environment, cells, overwrite, any_card=self.any_card):
                with open_subject(run, run.fused) as subject:
                    rows = self.ask(subject, environment, store)
                store.append(rows)
                if not set(cells) - store.cells().keys():
                    store.note_in_run(ended_utc=now_utc())
        return store

    @property
    def key(self) -> ModelKey:
        """The name of the question's cell."""
        run = self.request
        return ModelKey(run.model, run.input_sizes[0], run.batch_size, run.math)

    @property
    def rounds(self) -> int:
        """The number of rounds that are asked for."""
        return self.request.rounds or choice.ROUNDS

    def cells(self) -> Sequence[Any]:
        """Return the names of the cells that the folder is to have."""
        return [self.key]

    def ask(self, subject: Subject, environment: Environment, store: Store) -> list[Any]:
        """Measure what the folder has not; return its rows."""
        question = str(self.request.question)
        asked = {SUPPORT: self._support, CHOICE: self._choice, FIRST_CALL: self._first_call}[question]
        return asked(subject, environment, store)

    def bench(self, subject: Subject) -> Bench:
        """Return a calibrated bench of the model."""
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
        result = choice.study(subject, self.bench(subject), self.note, self.rounds)
        store.begin(run, environment, sys.argv)
        rows = choice.rows(run, environment, subject.layers, result.candidates)
        return [*rows, *choice.pass_rows(self.key, run, result.passes)]

    def _first_call(self, subject: Subject, environment: Environment, store: Store) -> list[Any]:
        found = first_call.measure(subject, self.note)
        store.begin(self.request, environment, sys.argv)
        return [*first_call.rows(self.key, self.request, environment, subject.layers, found)]


def support_text(store: Store) -> tuple[str, bool]:
    """Return the table of support as text, and whether rules and card agree everywhere."""
    rows = store.objects("support")["support"]
    differing = support.disagreements(rows)
    header = ("algorithm", "layers", "why not; what is the same")
    lines = [table(header, support.summary(rows)), *(f"rule and card differ: {line}" for line in differing)]
    return "\n".join(lines), not differing


def choice_text(store: Store) -> tuple[str, bool]:
    """Return the fastest algorithm of each layer, and the cost of other choices, as text."""
    found = store.objects("choice", "passes")
    return report.choice_report(found["choice"], {row.convolutions_by: row for row in found["passes"]}), True


def first_call_text(store: Store) -> tuple[str, bool]:
    """Return what the first pass costs by each way to convolve, as text."""
    found = store.objects("first_passes", "first_call")
    return first_call.text(found["first_passes"], found["first_call"]), True


TEXTS = {SUPPORT: support_text, CHOICE: choice_text, FIRST_CALL: first_call_text}
