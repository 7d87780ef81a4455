"""Plans that cuDNN's graph API offers for one shape: each built, run once and compared with float64, none timed."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch

from convscope import failures
from convscope.atlas.rows import LESS_PRECISE, LOST, OK, REFUSED
from convscope.convolution import algorithms, tolerance
from convscope.convolution.layer import Layer
from convscope.convolution.operator import cuda_operator, described, release
from convscope.cudnn.graph.engines import Offer
from convscope.errors import DeviceFaultError
from convscope.failures import Failure
from convscope.verification.candidates import Note
from convscope.verification.trial import Trial

NONE_LOST: Mapping[str, str] = {}


@dataclass
class KnownPlan:
    """One plan of a shape: what cuDNN says of it, and what became of it.

    Attributes:
        build_ms: the time that it took to make it, once the library is loaded.
        relative_error: of its result for random numbers, against float64.
        kernels: counted by name, None where they are not known.
    """

    offer: Offer
    outcome: str = OK
    reason: str | None = None
    build_ms: float | None = None
    relative_error: float | None = None
    kernels: Mapping[str, int] | None = None

    @property
    def name(self) -> str:
        """The algorithm that it is."""
        return algorithms.plan_name(self.offer.plan)


class PlanFaultError(DeviceFaultError):
    """A plan has lost the GPU: nothing more can run in this process, and the next is to leave it out."""

    def __init__(self, layer: str, plan: str, reason: str) -> None:
        super().__init__(f"{plan} of {layer} has lost the GPU: {reason}")
        self.layer, self.plan, self.reason = layer, plan, reason


def known_plans(
    layer: Layer, device: torch.device, dtype: str, note: Note, lost: Mapping[str, str] = NONE_LOST
) -> tuple[KnownPlan, ...]:
    """Return every plan of a shape, built, run once and compared with float64 where it may be.

    Args:
        lost: plans that have lost the GPU before, with the reason; they are not run again.

    Raises:
        PlanFaultError: another one has.
    """
    convolution = described(layer, dtype)
    try:
        trial = Trial(layer, device, dtype)
        offers = cuda_operator().offers(convolution, device)
        plans = [KnownPlan(each) for each in offers]
        reasons = [each.why_not_comparable(convolution) for each in offers]
        found = tuple(
            replace(plan, outcome=LOST, reason=lost[plan.name]) if plan.name in lost else _tried(plan, trial, why)
            for plan, why in zip(plans, reasons, strict=True)
        )
    except DeviceFaultError:
        raise  # and nothing is released, which would raise on a lost GPU, in place of this
    except Exception as error:
        note(f"{layer.name} is left to PyTorch: {failure_of(error, device, layer.name).reason}")
        found = ()
    release(device)
    return found


def failure_of(error: Exception, device: torch.device, what: str) -> Failure:
    """Classify an error; one that has lost the GPU says what was running, and one of the program is raised again."""
    try:
        return failures.of_cell(error, device)
    except DeviceFaultError as fault:
        raise DeviceFaultError(f"{what}: {fault}") from error


def _tried(known: KnownPlan, trial: Trial, why: str | None) -> KnownPlan:
    if why:
        return replace(known, outcome=LESS_PRECISE, reason=why)
    layer, device, dtype = trial.layer, trial.device, trial.dtype
    try:
        started_s = time.perf_counter()
        cuda_operator().build(layer, known.name, device, dtype)
        known.build_ms = (time.perf_counter() - started_s) * 1e3
        known.relative_error = trial.error(known.name)
    except Exception as error:
        if fault := failures.device_fault(device):
            raise PlanFaultError(layer.name, known.name, fault) from error
        reason = failure_of(error, device, f"{known.name} of {layer.name}").reason
        return replace(known, outcome=REFUSED, reason=reason)
    allowed = tolerance.tolerance(
        layer, "winograd" if known.offer.transforms else "", described(layer, dtype).math, dtype
    )
    if wrong := tolerance.why_wrong(known.relative_error, allowed):
        return replace(known, outcome=tolerance.WRONG, reason=wrong)
    return known
