"""Result folders as runs and jobs leave them, and a SLURM that answers from memory."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from convscope.cluster import history
from convscope.cluster.standing import Standing, survey
from convscope.profiling.rows import SCHEMA_VERSION, OverallRow
from convscope.slurm import RunCommand
from convscope.storage.paths import Combination
from convscope.storage.table import columns
from fakes import RUN

NOW_S = 2_000_000_000.0
WHO = Combination("alexnet", "implicit gemm", "h200")
SIZES = (224, 256, 288)
FLAGS = ("--seed", "2")


def note(
    results: Path,
    *events: str,
    job: str = "7",
    stage: str = "2_quick",
    who: Combination = WHO,
    flags: Sequence[str] = FLAGS,
) -> Path:
    """Write events of a job into the history of a combination's folder; return the folder."""
    folder = results / stage / who.folder_name
    folder.mkdir(parents=True, exist_ok=True)
    for event in events:
        history.note_event(folder, "2026-01-01T00:00:00Z", job, event, who, flags)
    return folder


def measured(folder: Path, *rows: tuple[int, str, str], who: Combination = WHO, **settings: Any) -> None:
    """Write `run.json` and a table with rows of size, status and reason."""
    run = dataclasses.asdict(RUN) | dataclasses.asdict(who) | {"input_sizes": SIZES, "seed": 2}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "run.json").write_text(json.dumps({"schema_version": SCHEMA_VERSION, "run": run | settings}))
    header = columns(OverallRow)
    known = ({"input_size": str(size), "status": how, "reason": why} for size, how, why in rows)
    lines = [",".join(header), *(",".join(row.get(name, "") for name in header) for row in known)]
    name = f"{who.model}_{who.algorithm.replace(' ', '_')}_overall.csv"
    (folder / name).write_text("\n".join(lines) + "\n")


def slurm(queue: str | None = None, accounts: str | None = None, config: str | None = None) -> RunCommand:
    """Return a SLURM that gives these answers."""
    answers: dict[str, str | None] = {"squeue": queue, "sacct": accounts, "scontrol": config}
    return lambda command: answers[command[0]]


def only(results: Path, ask: RunCommand | None = None, now_s: float = NOW_S) -> Standing:
    """Return the standing of the only combination."""
    (found,) = survey(results, run_command=ask or slurm(), now_s=now_s).standings
    return found
