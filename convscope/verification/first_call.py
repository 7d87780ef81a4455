"""First call of each convolution: what a search, a plan or a compilation costs, and after how many passes it has paid.

Each way to convolve has a process of its own, in which none of the model's shapes has run before. Calls are timed on
the host, which waits for the GPU before and after each: what the first call takes more than the least of the later ones
is what it cost besides. A call of another shape comes before, so that loading a library is counted apart.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import multiprocessing
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from statistics import fmean

import torch
from torch import nn

from convscope.cli.display import or_dash, table
from convscope.convolution import backends
from convscope.convolution.assignment import assign
from convscope.convolution.layer import Layer
from convscope.convolution.observation import observe
from convscope.convolution.operator import card_check
from convscope.convolution.swap import Swap
from convscope.profiling.request import Run
from convscope.storage.environment import Environment
from convscope.storage.table import fill
from convscope.timing import placement
from convscope.timing.calls import watched
from convscope.timing.placement import PLACEMENTS
from convscope.timing.stopwatch import Stopwatch
from convscope.timing.summary import Difference, difference, summarize
from convscope.verification.candidates import BENCHMARK, HEURISTIC, Note
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
        reasons: why PyTorch runs a layer in place of the algorithm, None where it does not.
        library_ms: of the first call of all, of another shape.
        passes_ms: of a pass as it is replayed afterwards, in several placements in memory.
    """

    times_ms: Sequence[Sequence[float]]
    ran: Sequence[str | None]
    workspaces: Sequence[int | None]
    reasons: Sequence[str | None]
    library_ms: float
    passes_ms: Sequence[float]

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
        """What the first pass cost more than a later one, over all convolutions."""
        return sum(self.first_ms) - sum(self.later_ms)


def measure(run: Run, note: Note) -> dict[str, Calls]:
    """Measure every way of the run's device, each in a process of its own; one that fails is left out with a note."""
    found = {}
    for way in WAYS[run.device_type]:
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
            try:
                found[way] = process.submit(in_this_process, run, way).result()
            except Exception as error:  # whatever ends a process
                note(f"{way} is left out: {str(error).splitlines()[0] if str(error) else type(error).__name__}")
    return found


def in_this_process(run: Run, way: str) -> Calls:
    """Measure one way; nothing may have convolved in this process before."""
    searching = backends.searching() if way == BENCHMARK else contextlib.nullcontext()
    algorithm = HEURISTIC if way == BENCHMARK else way
    with open_subject(run) as subject, searching:
        asked = dataclasses.replace(run, algorithm=algorithm, unsupported="skip")
        assigned = assign(asked, subject.layers, card_check(subject.device, dtype=run.dtype))
        library_ms = _foreign_ms(subject, algorithm)
        swapped = Swap(subject.model)
        swapped.apply(assigned.algorithms)
        passes = [_calls_ms(subject) for _ in range(PASSES)]
        seen = observe(subject.model, subject.inputs, check_errors=False)
        passes_ms = [_replayed_ms(subject, place) for place in range(PLACEMENTS)]
        swapped.restore()
    return Calls(
        times_ms=[*zip(*passes, strict=True)],
        ran=[each.algorithm for each in seen],
        workspaces=[each.execution.workspace_bytes for each in seen],
        reasons=[assigned.reasons.get(layer.name) for layer in subject.layers],
        library_ms=library_ms,
        passes_ms=passes_ms,
    )


def _replayed_ms(subject: Subject, place: int) -> float:
    """Return the time of a replayed pass in one placement."""
    with placement.moved(subject.model, subject.inputs, place) as there:
        return Stopwatch(subject.device).pass_ms(partial(subject.model, *there))


def _timed_ms(device: torch.device, work: Callable[[], object]) -> float:
    started_s = _now_s(device)
    work()
    return (_now_s(device) - started_s) * 1e3


def _now_s(device: torch.device) -> float:
    """Return the time when the device has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def _foreign_ms(subject: Subject, algorithm: str) -> float:
    """Return the time of a first call of another shape: the libraries are loaded then, and their contexts made."""
    run, device = subject.run, subject.device
    memory = backends.LAYOUTS[run.layout]
    kind = {"device": device, "dtype": getattr(torch, run.dtype)}
    model = nn.Sequential(nn.Conv2d(_FOREIGN[1], 7, 3, padding=1)).to(**kind, memory_format=memory)
    given = torch.ones(_FOREIGN, **kind).contiguous(memory_format=memory)
    swapped = Swap(model)
    swapped.apply({"0": algorithm})
    with contextlib.suppress(RuntimeError):  # a refusal of this shape has loaded the library too
        return _timed_ms(device, partial(model, given))
    return math.nan


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


def saved(calls: Calls, torchs: Calls) -> Difference:
    """Return what a pass is shorter than PyTorch's, at 99 %."""
    return difference(summarize(torchs.passes_ms), summarize(calls.passes_ms), CONFIDENCE)


def pays_after(calls: Calls, torchs: Calls) -> int | None:
    """Return the pass after which a way has taken less time in all than PyTorch; None where no pass is shorter."""
    less = saved(calls, torchs)
    if less.is_tie or less.mean_ms < 0:
        return None
    return max(1, math.ceil((calls.extra_ms - torchs.extra_ms) / less.mean_ms))


def rows(
    key: ModelKey, run: Run, here: Environment, layers: Sequence[Layer], found: Mapping[str, Calls]
) -> list[FirstCallRow | FirstPassRow]:
    """Return a row for each way, and one for each of its layers."""
    torchs = found.get(HEURISTIC)
    made: list[FirstCallRow | FirstPassRow] = []
    for way, calls in found.items():
        less = saved(calls, torchs) if torchs is not None and way != HEURISTIC else None
        made.append(fill(
            FirstPassRow, key, here, run, convolutions_by=way, extra_ms=calls.extra_ms,
            pass_ms=fmean(calls.passes_ms), saved_us=less.mean_ms * 1e3 if less else None,
            saved_ci99_us=less.half_width_ms * 1e3 if less else None,
            first_layers_ms=sum(calls.first_ms), library_ms=None if math.isnan(calls.library_ms) else calls.library_ms,
            layers=len(layers), layers_by_torch=sum(reason is not None for reason in calls.reasons),
            pays_after=pays_after(calls, torchs) if less and torchs else None,
        ))  # fmt: skip
        by_layer = zip(layers, calls.first_ms, calls.later_ms, calls.ran, calls.workspaces, calls.reasons, strict=True)
        made += [
            fill(
                FirstCallRow, key, run, layer=layer.name, position=layer.position, convolutions_by=way, ran=ran,
                first_ms=first, later_ms=later, extra_ms=first - later, workspace_bytes=workspace, reason=reason,
            )
            for layer, first, later, ran, workspace, reason in by_layer
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
        paid = f"after {row.pays_after} passes" if row.pays_after else "never"
        less = "-" if row.saved_us is None else f"{row.saved_us:+.1f} ± {row.saved_ci99_us:.1f}"
        lines.append((
            row.convolutions_by, f"{row.layers - row.layers_by_torch} of {row.layers}", f"{row.extra_ms:.1f}",
            f"{most.layer} {most.extra_ms:.1f}", or_dash(row.library_ms, ".0f"), f"{row.pass_ms:.3f}",
            less, "-" if row.convolutions_by == HEURISTIC else paid,
        ))  # fmt: skip
    return table(HEADER, lines)
