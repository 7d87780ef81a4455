"""Plans that cuDNN's graph API offers for one shape, and algorithms by name: run once, compared with float64."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

import torch

from convscope import failures
from convscope.atlas.rows import LESS_PRECISE, LOST, OK, REFUSED
from convscope.convolution import algorithms, assignment, backends, tolerance
from convscope.convolution.layer import Layer
from convscope.convolution.operator import convolve_on_cpu, cuda_operator, described, release
from convscope.cudnn.graph.engines import Mode, Offer
from convscope.cudnn.shape import ALONE, Convolution
from convscope.errors import DeviceFaultError
from convscope.failures import Failure
from convscope.verification.candidates import PICKS, Note
from convscope.verification.trial import Trial

NONE_LOST: Mapping[str, str] = {}
FIRST_PLANS = 8
"""Plans of each heuristic that are tried where all would take too long, and of modes A and B those that are tried with
steps behind them, or for packed filters: over a model, the first eight of these two modes have the fastest of all plans
of its convolutions within 0.4 % (eleven atlases on an H200)."""


@dataclass
class KnownPlan:
    """One plan of a shape: what cuDNN says of it, and what became of it.

    Attributes:
        build_ms: the time that it took to make it, once the library is loaded; None where another shape has it too.
        relative_error: of its result for random numbers, against float64.
        kernels: counted by name, None where they are not known.
        kind: `algorithms.PLAN`; or another, of which only the best ranked are tried, and which have no ranks.
    """

    offer: Offer
    outcome: str = OK
    reason: str | None = None
    build_ms: float | None = None
    relative_error: float | None = None
    kernels: Mapping[str, int] | None = None
    kind: str = algorithms.PLAN

    @property
    def name(self) -> str:
        """The algorithm that it is."""
        return algorithms.plan_name(self.offer.plan, self.kind)


@dataclass
class KnownAlgorithm:
    """One of the algorithms that have names, for a shape: who computes it, and what became of it; as `KnownPlan`."""

    name: str
    outcome: str = OK
    reason: str | None = None
    build_ms: float | None = None
    relative_error: float | None = None
    kernels: Mapping[str, int] | None = None
    provider: str | None = None
    workspace_bytes: int | None = None


Known: TypeAlias = KnownPlan | KnownAlgorithm


class PlanFaultError(DeviceFaultError):
    """A plan has lost the GPU: nothing more can run in this process, and the next is to leave it out."""

    def __init__(self, layer: str, plan: str, reason: str) -> None:
        super().__init__(f"{plan} of {layer} has lost the GPU: {reason}")
        self.layer, self.plan, self.reason = layer, plan, reason


def known_plans(
    layer: Layer, device: torch.device, dtype: str, note: Note, lost: Mapping[str, str] = NONE_LOST,
    first: int | None = None, by_name: bool = False,
) -> tuple[Known, ...]:  # fmt: skip
    """Return every plan of a shape, built, run once and compared with float64 where it may be.

    Args:
        lost: plans that have lost the GPU before, with the reason; they are not run again.
        first: only so many of each heuristic; None is all of them.
        by_name: the algorithms that have names, too, but those that choose. On a CPU there are no others.

    Raises:
        PlanFaultError: another one has.
    """
    convolution = described(layer, dtype)
    try:
        on_cpu = by_name and device.type == "cpu"
        trial = Trial(layer, device, dtype, convolve_on_cpu) if on_cpu else Trial(layer, device, dtype)
        every: list[Known] = [] if on_cpu else [*_offered(convolution, device, first)]
        every += _by_name(layer, device, dtype) if by_name else []
        found = tuple(
            replace(known, outcome=LOST, reason=lost[known.name]) if known.name in lost else _tried(known, trial)
            for known in every
        )
    except DeviceFaultError:
        raise  # and nothing is released, which would raise on a lost GPU, in place of this
    except Exception as error:
        note(f"{layer.name} is left to PyTorch: {failure_of(error, device, layer.name).reason}")
        found = ()
    release(device)
    return found


def _offered(convolution: Convolution, device: torch.device, first: int | None) -> list[KnownPlan]:
    """Return the plans of a shape, and the best ranked of others that do the same.

    Where something is fused, those of the convolution alone; where filters are not in channels last, those for filters
    that are.
    """
    plans = [KnownPlan(each) for each in cuda_operator().offers(convolution, device) if _is_among(each, first)]
    most = min(first or FIRST_PLANS, FIRST_PLANS)
    for kind, other in _others(convolution):
        offers = cuda_operator().offers(other, device)
        best = [each for each in offers if _is_among(each, most, (Mode.A, Mode.B))]
        plans += [KnownPlan(replace(each, ranks={}), kind=kind) for each in best]
    return plans


def _others(convolution: Convolution) -> Iterator[tuple[str, Convolution]]:
    if convolution.fused.count:
        yield algorithms.WITH_STEPS, replace(convolution, fused=ALONE)
    if not algorithms.why_nothing_to_pack(algorithms.PACKED, convolution.weight, convolution.layout):
        yield algorithms.PACKED, replace(convolution, packed=True)


def _is_among(offer: Offer, first: int | None, modes: tuple[Mode, ...] = tuple(Mode)) -> bool:
    """Tell whether a plan is among the first of one of these heuristics."""
    return first is None or any(offer.ranks.get(mode.name.lower(), first) < first for mode in modes)


def failure_of(error: Exception, device: torch.device, what: str) -> Failure:
    """Classify an error; one that has lost the GPU says what was running, and one of the program is raised again."""
    try:
        return failures.of_cell(error, device)
    except DeviceFaultError as fault:
        raise DeviceFaultError(f"{what}: {fault}") from error


def _by_name(layer: Layer, device: torch.device, dtype: str) -> Iterator[KnownAlgorithm]:
    """Yield the algorithms with names that compute something else than they choose, refused where a rule is against."""
    layout = backends.settings_in_force().layout
    for algorithm in algorithms.ALGORITHMS.values():
        if algorithm.name in PICKS or algorithms.why_not_on_device(algorithm, device.type):
            continue
        (reason,) = assignment.why_not_each(algorithm, [layer], device.type, None, dtype, layout)
        yield KnownAlgorithm(algorithm.name, REFUSED if reason else OK, reason)


def _tried(known: Known, trial: Trial) -> Known:
    """Build a candidate, run it once and compare it, unless it is refused already, or not comparable."""
    layer, device, dtype = trial.layer, trial.device, trial.dtype
    if known.outcome != OK:
        return known
    if isinstance(known, KnownPlan) and (why := known.offer.why_not_comparable(described(layer, dtype))):
        return replace(known, outcome=LESS_PRECISE, reason=why)
    try:
        arithmetic = _built(known, trial)
        known.relative_error = trial.error(known.name)
    except Exception as error:
        if fault := failures.device_fault(device):
            raise PlanFaultError(layer.name, known.name, fault) from error
        reason = failure_of(error, device, f"{known.name} of {layer.name}").reason
        return replace(known, outcome=REFUSED, reason=reason)
    allowed = tolerance.tolerance(layer, arithmetic, described(layer, dtype).math, dtype)
    if wrong := tolerance.why_wrong(known.relative_error, allowed):
        return replace(known, outcome=tolerance.WRONG, reason=wrong)
    return known


def _built(known: Known, trial: Trial) -> str:
    """Build a candidate, and note what its plan says of itself; return whose errors are to be expected of it."""
    if trial.device.type == "cpu":
        assert isinstance(known, KnownAlgorithm)
        known.provider = algorithms.ALGORITHMS[known.name].cpu_provider
        return known.name
    plan, known.build_ms = trial.plan(known.name)
    if isinstance(known, KnownPlan):
        return "winograd" if known.offer.transforms else ""
    known.provider, known.workspace_bytes = plan.execution.provider, plan.workspace_bytes
    return plan.execution.arithmetic
