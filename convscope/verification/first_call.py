"""First call of each convolution: what a search, a plan or a compilation costs, and after how many passes it has paid.

Each way to convolve has a process of its own, in which none of the model's shapes has run, and no plan of them was
made, before. Calls are timed on the host, which waits for the GPU before and after each: what the first call takes more
than the least of the later ones is what it cost besides. A call of another shape comes before, so that loading a
library is counted apart. Whole passes are replayed in turn in this process, all ways in the same placements.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import multiprocessing
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import partial
from statistics import fmean

import torch
from torch import nn

from convscope import failures
from convscope.cli.display import or_dash, several, table
from convscope.convolution import backends
from convscope.convolution.assignment import Assignment, assign
from convscope.convolution.layer import Layer
from convscope.convolution.observation import observe
from convscope.convolution.operator import card_check, release
from convscope.convolution.swap import Swap
from convscope.errors import InputError
from convscope.profiling.request import Run
from convscope.storage.environment import Environment
from convscope.storage.table import fill
from convscope.timing import placement
from convscope.timing.calls import watched
from convscope.timing.placement import PLACEMENTS
from convscope.timing.stopwatch import Stopwatch
from convscope.timing.summary import Difference, paired_difference
from convscope.verification.candidates import BENCHMARK, HEURISTIC, AssignmentSwap, Note
from convscope.verification.choice import CONFIDENCE
from convscope.verification.evidence import Subject, open_subject
from convscope.verification.rows import FirstCallRow, FirstPassRow, ModelKey

WAYS: Mapping[str, Sequence[str]] = {
    "cpu": (HEURISTIC, "direct", "smm"),
    "cuda": (HEURISTIC, BENCHMARK, "guess", "heuristic a", "direct"),
}
"""By kind of device: PyTorch, its search, cuDNN's legacy heuristic, a plan of the graph API, a Triton kernel."""
PASSES = 4
_FOREIGN = (1, 5, 11, 13)  # a shape that no model has


@dataclass(frozen=True)
class Calls:
    """Calls of one way in its process.

    Attributes:
        times_ms: of each layer by position, pass after pass.
        ran: the algorithm of each layer, None where PyTorch ran it for itself.
        library_ms: of the first call of all, of another shape; None where the way refuses that.
    """

    times_ms: Sequence[Sequence[float]]
    ran: Sequence[str | None]
    workspaces: Sequence[int | None]
    library_ms: float | None

    @property
    def first_ms(self) -> list[float]:
        """The first call of each layer."""
        return [times[0] for times in self.times_ms]

    @property
    def later_ms(self) -> list[float]:
        """The least of the later calls of each layer."""
        return [min(times[1:]) for times in self.times_ms]

    @property
    def extra_ms(self) -> float:
        """The time that the first pass took more than a later one, over all convolutions."""
        return sum(self.first_ms) - sum(self.later_ms)


@dataclass(frozen=True)
class Way:
    """One way to convolve a model: the algorithm of each layer, its first calls, and replayed passes in ms."""

    assigned: Assignment
    calls: Calls
    passes_ms: Sequence[float]


def measure(subject: Subject, note: Note) -> dict[str, Way]:
    """Measure every way of the device; one that no layer can use, or that fails, is left out with a note.

    Raises:
        InputError: PyTorch's own cannot be measured.
        DeviceFaultError: the GPU is lost.
    """
    run, assigned = subject.run, assignments(subject, note)
    release(subject.device)
    calls: dict[str, Calls] = {}
    for way, each in assigned.items():
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
            try:
                calls[way] = process.submit(in_this_process, run, way, each).result()
            except BrokenProcessPool:
                note(f"{way} is left out: its process has ended")
            except Exception as error:
                note(f"{way} is left out: {failures.of_cell(error, subject.device, way).reason}")
    passes_ms = _replayed(subject, {way: assigned[way] for way in calls}, note)
    if HEURISTIC not in passes_ms:
        raise InputError(f"{run.model} cannot be measured as PyTorch runs it: the lines above say why")
    return {way: Way(assigned[way], calls[way], times_ms) for way, times_ms in passes_ms.items()}


def assignments(subject: Subject, note: Note) -> dict[str, Assignment]:
    """Return the algorithm of each layer by way, "torch" for layers that cannot use it; asked in this process."""
    run, check = subject.run, card_check(subject.device, dtype=subject.run.dtype)
    found = {}
    for way in WAYS[run.device_type]:
        algorithm = HEURISTIC if way == BENCHMARK else way
        each = assign(dataclasses.replace(run, algorithm=algorithm, unsupported="skip"), subject.layers, check)
        if len(each.reasons) == len(each.algorithms):
            note(f"{way} is left out: {next(iter(each.reasons.values()))}")
        else:
            found[way] = each
    return found


def in_this_process(run: Run, way: str, assigned: Assignment) -> Calls:
    """Time the calls of one way; nothing may have convolved in this process before."""
    searching = backends.searching() if way == BENCHMARK else contextlib.nullcontext()
    with open_subject(run) as subject, searching:
        library_ms = _foreign_ms(subject, HEURISTIC if way == BENCHMARK else way)
        swapped = Swap(subject.model)
        swapped.apply(assigned.algorithms)
        passes = [_calls_ms(subject) for _ in range(PASSES)]
        seen = observe(subject.model, subject.inputs, check_errors=False)
        swapped.restore()
    return Calls(
        times_ms=[*zip(*passes, strict=True)],
        ran=[each.algorithm for each in seen],
        workspaces=[each.execution.workspace_bytes for each in seen],
        library_ms=library_ms,
    )


def _replayed(subject: Subject, assigned: Mapping[str, Assignment], note: Note) -> dict[str, list[float]]:
    """Return the times of replayed passes by way, a placement in memory after the other; of ways that do not fail."""
    stopwatch, model = Stopwatch(subject.device), subject.model

    def pass_ms(place: int) -> float:
        with placement.moved(model, subject.inputs, place) as there:
            return stopwatch.pass_ms(partial(model, *there))

    with contextlib.closing(AssignmentSwap(subject, note)) as swapped:
        swapped.assignments |= {way: dict(each.algorithms) for way, each in assigned.items()}
        found: dict[str, list[float]] = {way: [] for way in assigned}
        for place in range(PLACEMENTS):
            for way in list(found):
                taken_ms = swapped.tried(way, partial(pass_ms, place))
                release(subject.device)
                if taken_ms is None:
                    del found[way]
                else:
                    found[way].append(taken_ms)
    return found


def _timed_ms(device: torch.device, work: Callable[[], object]) -> float:
    started_s = _now_s(device)
    work()
    return (_now_s(device) - started_s) * 1e3


def _now_s(device: torch.device) -> float:
    """Return the time when the device has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def _foreign_ms(subject: Subject, algorithm: str) -> float | None:
    """Return the time of a first call of another shape: the libraries are loaded then, and their contexts made.

    None where it is refused, which has loaded the library too.
    """
    run, device = subject.run, subject.device
    memory = backends.LAYOUTS[run.layout]
    kind = {"device": device, "dtype": getattr(torch, run.dtype)}
    model = nn.Sequential(nn.Conv2d(_FOREIGN[1], 7, 3, padding=1)).to(**kind, memory_format=memory)
    given = torch.ones(_FOREIGN, **kind).contiguous(memory_format=memory)
    swapped = Swap(model)
    swapped.apply({"0": algorithm})
    with contextlib.suppress(RuntimeError):
        return _timed_ms(device, partial(model, given))
    return None


def _calls_ms(subject: Subject) -> list[float]:
    """Return the time of each call of a convolution in one pass."""
    began_s: list[float] = []
    times_ms: list[float] = []

    def before(name: str, module: nn.Module, given: torch.Tensor) -> None:
        began_s.append(_now_s(subject.device))

    def after(name: str, module: nn.Module, given: torch.Tensor, output: torch.Tensor) -> None:
        times_ms.append((_now_s(subject.device) - began_s.pop()) * 1e3)

    with watched(subject.model, before, after):
        subject.model(*subject.inputs)
    return times_ms


def saved(way: Way, torchs: Way) -> Difference:
    """Return what a pass is shorter than PyTorch's, placement by placement, at 99 %."""
    return paired_difference(torchs.passes_ms, way.passes_ms, CONFIDENCE)


def pays_after(way: Way, torchs: Way) -> int | None:
    """Return the pass after which a way has taken less time in all than PyTorch; None where no pass is shorter."""
    less = saved(way, torchs)
    if less.is_tie or less.mean_ms < 0:
        return None
    return max(1, math.ceil((way.calls.extra_ms - torchs.calls.extra_ms) / less.mean_ms))


def rows(
    key: ModelKey, run: Run, here: Environment, layers: Sequence[Layer], found: Mapping[str, Way]
) -> list[FirstCallRow | FirstPassRow]:
    """Return a row for each way, and one for each of its layers."""
    made: list[FirstCallRow | FirstPassRow] = []
    for name, way in found.items():
        calls, torchs = way.calls, found[HEURISTIC]
        less = None if way is torchs else saved(way, torchs)
        made.append(fill(
            FirstPassRow, key, here, run, convolutions_by=name, extra_ms=calls.extra_ms, library_ms=calls.library_ms,
            pass_ms=fmean(way.passes_ms), saved_us=less.mean_ms * 1e3 if less else None,
            saved_ci99_us=less.half_width_ms * 1e3 if less else None, first_layers_ms=sum(calls.first_ms),
            layers=len(layers), layers_by_torch=sum(layer.name in way.assigned.reasons for layer in layers),
            pays_after=pays_after(way, torchs) if less else None,
        ))  # fmt: skip
        by_layer = zip(layers, calls.first_ms, calls.later_ms, calls.ran, calls.workspaces, strict=True)
        made += [
            fill(
                FirstCallRow, key, run, layer=layer.name, position=layer.position, convolutions_by=name, ran=ran,
                first_ms=first, later_ms=later, extra_ms=first - later, workspace_bytes=workspace,
                reason=way.assigned.reasons.get(layer.name),
            )
            for layer, first, later, ran, workspace in by_layer
        ]  # fmt: skip
    return made


HEADER = (
    *("convolutions by", "layers", "first pass, ms more", "of these the most", "library, ms", "pass, ms"),
    *("less, µs (99 %)", "has paid"),
)


def text(passes: Sequence[FirstPassRow], calls: Sequence[FirstCallRow]) -> str:
    """Return a line for each way."""
    lines = []
    for row in passes:
        most = max((one for one in calls if one.convolutions_by == row.convolutions_by), key=lambda one: one.extra_ms)
        paid = f"after {several(row.pays_after, 'pass')}" if row.pays_after else "never"
        less = "-" if row.saved_us is None else f"{row.saved_us:+.1f} ± {row.saved_ci99_us:.1f}"
        lines.append((
            row.convolutions_by, f"{row.layers - row.layers_by_torch} of {row.layers}", f"{row.extra_ms:.1f}",
            f"{most.layer} {most.extra_ms:.1f}", or_dash(row.library_ms, ".0f"), f"{row.pass_ms:.3f}",
            less, "-" if row.convolutions_by == HEURISTIC else paid,
        ))  # fmt: skip
    return table(HEADER, lines)
