"""Order of work of a verification's tables: measured where a folder does not have them, then told from the folder."""

from __future__ import annotations

import sys
from collections.abc import Callable
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
from convscope.storage.store import Store
from convscope.timing.layer_times import LayerTimer
from convscope.verification import choice, report, support
from convscope.verification.evidence import Subject, open_subject
from convscope.verification.request import SUPPORT, Verification
from convscope.verification.rows import CHOICE as CHOICE_SCHEMA
from convscope.verification.rows import SUPPORT as SUPPORT_SCHEMA
from convscope.verification.rows import ModelKey


@dataclass
class VerificationStudy:
    """Asks one question of one model; `meter` is open, and `make_timer` and `note` are as those of a `Sweep`."""

    request: Verification
    meter: Meter
    make_timer: Callable[[nn.Module, str], LayerTimer]
    note: Callable[[str], None]

    def measure(self, folder: Path, overwrite: bool, take_over: bool = False) -> Store:
        """Fill the folder's tables where they are missing; return its store, closed.

        Raises:
            InputError, WriteError: as `Store` does.
        """
        run, supporting = self.request, self.request.question == SUPPORT
        key = ModelKey(run.model, run.input_sizes[0], run.batch_size, run.math)
        schema = SUPPORT_SCHEMA if supporting else CHOICE_SCHEMA
        with Store(folder, schema, note=self.note, take_over=take_over) as store:
            environment = backends.environment_on(torch.device(run.device), self.meter.settings())
            if store.missing(self.request, environment, [key], overwrite):
                with open_subject(run) as subject:
                    if supporting:
                        rows: list[Any] = [*support.survey(subject, environment, run.limit_bytes, run.dtype)]
                    else:
                        rows = self._choice(subject, environment, key)
                store.begin(self.request, environment, sys.argv)
                store.append(rows)
                store.note_in_run(ended_utc=now_utc())
        return store

    def _choice(self, subject: Subject, environment: Environment, key: ModelKey) -> list[Any]:
        run, device = self.request, torch.device(self.request.device)
        bench = Bench(run, subject.model, device, self.make_timer(subject.model, device.type), self.meter, self.note)
        bench.calibrate(run.input_sizes[0])
        result = choice.study(subject, bench, self.note, run.rounds or choice.ROUNDS)
        rows = choice.rows(run, environment, subject.layers, result.candidates)
        return [*rows, *choice.pass_rows(key, run, result.passes)]


def support_text(store: Store) -> tuple[str, bool]:
    """Return the table of support as text, and whether rules and card agree everywhere."""
    rows = store.objects("support")["support"]
    differing = support.disagreements(rows)
    header = ("algorithm", "layers", "why not; what is the same")
    lines = [table(header, support.summary(rows)), *(f"rule and card differ: {line}" for line in differing)]
    return "\n".join(lines), not differing


def choice_text(store: Store) -> str:
    """Return the fastest algorithm of each layer, and the cost of other choices, as text."""
    found = store.objects("choice", "passes")
    return report.choice_report(found["choice"], {row.convolutions_by: row for row in found["passes"]})
