"""Comparison of a run with earlier ones of the same model on the same card, for the end of `run_profile.py`.

The rules are those of `python -m convscope compare`: runs in another environment are counted, never compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from convscope.errors import InputError
from convscope.profiling.comparison import compare
from convscope.profiling.comparison.compare import Comparison, Result
from convscope.storage.paths import KEEPING, slug

MOST = 8
"""Earlier runs that are compared, the latest."""


@dataclass(frozen=True)
class Beside:
    """An earlier run beside this one: `last` is the largest size that can be compared, `verdicts` are of all sizes."""

    path: Path
    algorithm: str
    last: Comparison
    verdicts: str


@dataclass(frozen=True)
class Earlier:
    """Earlier runs of the same model that can be compared, by algorithm, and the number of those that must not be."""

    runs: Sequence[Beside]
    elsewhere: int = 0


def compared(folder: Path, results: Path) -> Earlier:
    """Return this run, in `folder`, beside the latest earlier runs of its model below `results`."""
    try:
        this = compare.read(folder, with_layers=False)
    except (InputError, OSError):
        return Earlier([])
    found, elsewhere = list[Beside](), 0
    for path in _candidates(folder, results, str(this.about["model"])):
        if len(found) == MOST:
            break
        try:
            other = compare.read(path, with_layers=False)
        except (InputError, OSError):
            continue
        if any(_differ(other, this, name) for name in (*compare.WORK, "layout", "math", "gpu")):
            continue
        try:
            compare.differences(other, this, across=False)
        except InputError:
            elsewhere += 1
            continue
        if beside := _beside(path, other, this):
            found.append(beside)
    return Earlier(sorted(found, key=lambda each: (each.algorithm, str(each.path))), elsewhere)


def _candidates(folder: Path, results: Path, model: str) -> Iterator[Path]:
    """Yield folders that may hold a run of the model, the latest first: what --overwrite has kept, and the stages'."""
    paths = [*folder.glob(f"{KEEPING}*/run.json"), *results.glob(f"*/{slug(model)}_*/run.json")]
    others = [path for path in paths if path.parent.resolve() != folder.resolve()]
    for path in sorted(others, key=_written_s, reverse=True):
        yield path.parent


def _written_s(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:  # it is gone, or a link that leads nowhere
        return 0.0


def _differ(a: Result, b: Result, name: str) -> bool:
    return bool(a.about.get(name) != b.about.get(name))


def _beside(path: Path, other: Result, this: Result) -> Beside | None:
    passes = compare.passes(other, this, compare.TOLERANCE_PCT)
    comparable = [each for each in passes if each.verdict != "not compared"]
    if not comparable:
        return None
    return Beside(path, str(other.about["algorithm"]), comparable[-1], compare.counted(comparable))
