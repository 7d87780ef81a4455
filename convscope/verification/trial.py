"""Trial of one convolution's shape: random numbers, convolved by several algorithms and compared with float64.

So is every plan that cuDNN's graph API offers for the shape: built, run once and compared, before any is timed.
"""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from convscope import failures
from convscope.convolution import algorithms, backends, tolerance
from convscope.convolution.layer import Layer
from convscope.convolution.operator import cuda_operator, described, release
from convscope.convolution.reference import relative_distance
from convscope.cudnn.graph.engines import Offer
from convscope.errors import DeviceFaultError, TraceMissingError
from convscope.failures import Failure
from convscope.timing import trace
from convscope.verification.candidates import Note
from convscope.verification.rows import LESS_PRECISE, OK, REFUSED


class Trial:
    """One shape of a 2-D layer with random numbers in it.

    Args:
        dtype: of input and weights, a name of `cudnn.DATA_TYPES`.
    """

    def __init__(self, layer: Layer, device: torch.device, dtype: str) -> None:
        self.layer, self.device, self.dtype = layer, device, dtype
        memory = backends.LAYOUTS[backends.settings_in_force().layout]  # in which libraries read them: no call copies
        generator = torch.Generator(device).manual_seed(0)
        options = {"device": device, "dtype": getattr(torch, dtype), "generator": generator}
        x, w = torch.randn(layer.input, **options), torch.randn(layer.weight, **options)
        self._x, self._w = x.contiguous(memory_format=memory), (w * layer.terms**-0.5).contiguous(memory_format=memory)

    @functools.cached_property
    def _exact(self) -> torch.Tensor:
        return torch.nn.functional.conv2d(self._x.double(), self._w.double(), None, *self.layer.options)

    def error(self, algorithm: str) -> float | None:
        """Return the relative error of an algorithm's result against float64; raises as `CudaOperator.forward`."""
        # The allocator hands out this block next: an algorithm that writes nothing must not find a result in it.
        torch.full_like(self._exact, torch.nan, dtype=self._x.dtype)
        return relative_distance(self._run(algorithm), self._exact)

    def kernels(self, names: Sequence[str]) -> list[Mapping[str, int]]:
        """Return the kernels that each algorithm launches; an empty list where CUPTI records none."""
        try:
            return [found.kernels for found in trace.record_each([partial(self._run, name) for name in names])]
        except TraceMissingError:
            return []

    def _run(self, algorithm: str) -> torch.Tensor:
        return cuda_operator().convolve(self._x, self._w, self.layer, algorithm)


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


def known_plans(layer: Layer, device: torch.device, dtype: str, note: Note) -> tuple[KnownPlan, ...]:
    """Return every plan of a shape, built, run once and compared with float64 where it may be."""
    convolution = described(layer, dtype)
    try:
        trial = Trial(layer, device, dtype)
        offers = cuda_operator().offers(convolution, device)
        return tuple(_tried(KnownPlan(each), trial, each.why_not_comparable(convolution)) for each in offers)
    except DeviceFaultError:
        raise
    except Exception as error:
        note(f"{layer.name} is left to PyTorch: {failure_of(error, device, layer.name).reason}")
        return ()
    finally:
        release(device)


def failure_of(error: Exception, device: torch.device, what: str) -> Failure:
    """Classify an error; one that has lost the GPU says what was running, and one of the program is raised again."""
    try:
        return failures.of_cell(error, device)
    except DeviceFaultError as fault:
        raise DeviceFaultError(f"{what}: {fault}") from error


def _tried(known: KnownPlan, trial: Trial, why: str | None) -> KnownPlan:
    if why:
        return dataclasses.replace(known, outcome=LESS_PRECISE, reason=why)
    layer, device, dtype = trial.layer, trial.device, trial.dtype
    try:
        started_s = time.perf_counter()
        cuda_operator().build(layer, known.name, device, dtype)
        known.build_ms = (time.perf_counter() - started_s) * 1e3
        known.relative_error = trial.error(known.name)
    except Exception as error:
        reason = failure_of(error, device, f"{known.name} of {layer.name}").reason
        return dataclasses.replace(known, outcome=REFUSED, reason=reason)
    allowed = tolerance.tolerance(
        layer, "winograd" if known.offer.transforms else "", described(layer, dtype).math, dtype
    )
    if wrong := tolerance.why_wrong(known.relative_error, allowed):
        return dataclasses.replace(known, outcome=tolerance.WRONG, reason=wrong)
    return known
