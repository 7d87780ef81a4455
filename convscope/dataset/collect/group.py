"""One group of shapes on disk: its table, where the shapes come from, and what was measured of it, as samples."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from convscope.atlas.rows import LESS_PRECISE, LOST, OK, PLANS, REFUSED, SLOW, PlanRow
from convscope.convolution.tolerance import WRONG
from convscope.dataset.collect.coverage import Group, Stratum
from convscope.dataset.collect.request import SETTINGS, family_of
from convscope.dataset.collect.uses import Key, Use
from convscope.dataset.samples import EVICTED, IN_A_PASS, SHAPE, SHARE, SampleRow
from convscope.errors import InputError
from convscope.storage.store import Store
from convscope.storage.table import fill, write_atomically
from convscope.timing.stopwatch import CPU_METHOD
from convscope.timing.summary import half_width_ms
from convscope.verification import kernel_families

TABLE, ABOUT = "shapes.csv", "group.json"
STATUS = {OK: "ok", REFUSED: "unsupported", WRONG: "wrong", **{each: each for each in (LESS_PRECISE, SLOW, LOST)}}
_COPIED = ("energy_j", "energy_uncertainty_j", "workspace_bytes", "relative_error", "kernels")


@dataclasses.dataclass(frozen=True)
class GroupFolder:
    """Folder of one group: the group, and the flags of the command that measures it."""

    path: Path
    group: Group

    @classmethod
    def create(cls, path: Path, group: Group) -> GroupFolder:
        """Write the group down; `ABOUT` last, so that a folder without it is none."""
        path.mkdir(parents=True, exist_ok=True)
        write_atomically(path / TABLE, group.table())
        write_atomically(path / ABOUT, json.dumps(dataclasses.asdict(group), indent=1) + "\n")
        return cls(path, group)

    @classmethod
    def read(cls, path: Path) -> GroupFolder:
        """Return the group that a folder is of.

        Raises:
            InputError: its `ABOUT` is damaged.
        """
        try:
            about = json.loads((path / ABOUT).read_text())
            uses = tuple(Use(**{**use, "key": tuple(use["key"])}) for use in about["uses"])
            keys = tuple(map(tuple, about["keys"]))
            return cls(path, Group(Stratum(**about["stratum"]), keys, uses, bool(about["energy"])))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InputError(f"{path / ABOUT} is damaged ({error}): remove the folder, it is measured again") from None

    @property
    def known(self) -> set[tuple[str, Key]]:
        """The group's shapes with their setting."""
        return {(self.group.stratum.setting, key) for key in self.group.keys}

    @property
    def is_older(self) -> bool:
        """Tell whether versions that timed otherwise alone began the group on a GPU: their rounds are not continued."""
        runs = [Store(path.parent, PLANS).read_run() or {} for path in self.path.glob("*/run.json")]
        asked = [run.get(PLANS.request, {}) for run in runs]
        on_gpu = [each for each in asked if str(each.get("device", "")).startswith("cuda")]
        return bool(on_gpu) and not any(each.get("adds_up") for each in on_gpu)

    def flags(self, first: int, rounds: int, device: str) -> list[str]:
        """Return the options of `run_verify.py` that measure the group; `first` and `rounds` are as there."""
        settings = SETTINGS[self.group.stratum.setting]
        batch = ["--batch-size", str(self.group.stratum.batch_size)]
        how = ["--plans", "--with-algorithms", "--first", str(first), "--rounds", str(rounds), "--device", device]
        arithmetic = [word for name, value in settings.items() for word in (f"--{name}", value)]
        where = ["--model", str(self.path / TABLE), "--output-dir", str(self.path)]
        more = [*(["--energy"] if self.group.energy else []), *(["--overwrite"] if self.is_older else [])]
        return [*where, *how, *batch, *arithmetic, *more]

    def samples(self) -> list[SampleRow]:
        """Return what has been measured of the group; none before its tables are whole.

        A candidate that works and has no time is none: a start that left it out made the rounds.
        A start with another `--first` has a folder of its own; one that is whole is taken.
        """
        for atlas in sorted(path.parent for path in self.path.glob("*/run.json")):
            store = Store(atlas, PLANS)
            if found := [*self._samples(store.objects("plans")["plans"], store.read_run() or {})]:
                return found
        return []

    def _samples(self, rows: list[PlanRow], run: dict[str, Any]) -> Iterator[SampleRow]:
        environment, request = run.get("environment", {}), run.get(PLANS.request, {})
        timing_method = _timing_method(request)
        for row in (each for each in rows if each.outcome != OK or each.mean_ms is not None):
            use = self.group.uses[int(row.layer.removeprefix("s"))]
            settings = SETTINGS[self.group.stratum.setting]
            copied = {name: getattr(row, name) for name in (*SHAPE, *_COPIED)}
            yield fill(
                SampleRow, **copied, **settings, algorithm=row.candidate,
                gpu_name=row.gpu_name or environment.get("cpu"),
                run=f"{row.host} {row.gpu_uuid or 'cpu'} {run.get('started_utc', '')}", mean_ms=row.mean_ms,
                mean_ci95_ms=None if row.std_ms is None else half_width_ms(row.std_ms, row.rounds),
                placements=row.rounds or None, timing_method=timing_method,
                ran_algorithm=_ran(row), ran_provider=row.provider,
                cudnn=row.cudnn, driver=row.driver, torch=environment.get("torch"), model=use.model,
                family=use.model and family_of(use.model), input_size=use.input_size, layer=use.layer,
                status=STATUS[row.outcome], reason=row.reason,
            )  # fmt: skip


def _timing_method(request: dict[str, Any]) -> str:
    """Return how a group was timed, by the request that its run keeps."""
    if str(request.get("device", "")).startswith("cpu"):
        return CPU_METHOD
    return SHARE if request.get("adds_up") else EVICTED if request.get("evicts") else IN_A_PASS


def _ran(row: PlanRow) -> str | None:
    """Return the algorithm that a candidate's kernels show; of a chooser, that of the candidate with the same ones."""
    name = row.candidate if row.provider else row.same_kernels_as
    if name is None:
        return None
    pointwise = row.kernel_size == "1x1" and row.stride == "1x1"
    return kernel_families.shown(name, json.loads(row.kernels or "{}"), pointwise=pointwise)
