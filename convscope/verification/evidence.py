"""Evidence of the algorithm that a model's convolutions really run: names, kernels, errors, times."""

from __future__ import annotations

import contextlib
import copy
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import nn

from convscope.convolution import algorithms, backends, models, swap, tolerance
from convscope.convolution.assignment import Assignment, assign
from convscope.convolution.fusion import graphs
from convscope.convolution.layer import Layer, has_calls
from convscope.convolution.observation import observe
from convscope.convolution.operator import card_check, cuda_operator
from convscope.convolution.providers.plan import Execution
from convscope.convolution.reference import relative_distance, rounded
from convscope.convolution.sources.network import Network
from convscope.convolution.sources.source import Inputs, first_tensor
from convscope.errors import InputError
from convscope.profiling.request import Run
from convscope.timing import placement, summary, trace
from convscope.timing.calls import watched
from convscope.timing.stopwatch import Stopwatch
from convscope.timing.summary import Difference, Summary
from convscope.verification import kernel_families

CONFIDENCE = 0.99
CAPTURES = 6


@dataclass(frozen=True)
class LayerEvidence:
    """One call of a convolution: the algorithm expected of it, the one that it carries, and the execution.

    `kernels` counts its kernels by name, None where they are not known.
    """

    layer: Layer
    expected: str
    carried: str
    ran: Execution
    relative_error: float | None
    kernels: Mapping[str, int] | None = None

    @property
    def algorithm(self) -> str:
        """The algorithm to compare kernels and error with: for a chooser the one that cuDNN chose."""
        return self.ran.algorithm if self.expected in algorithms.CHOOSERS else self.expected

    @property
    def promises_kernels(self) -> bool:
        """True where the algorithm's name says which kernels it may launch."""
        return kernel_families.allowed(self.algorithm, pointwise=False) is not None

    @property
    def stranger(self) -> str | None:
        """A kernel that the algorithm may not have; "" where no kernel shows the algorithm, None where all is well."""
        pointwise = self.layer.kernel == (1, 1) and self.layer.stride == (1, 1)
        return kernel_families.stranger(self.algorithm, self.kernels or {}, pointwise=pointwise)

    @property
    def uses_tensor_cores(self) -> bool:
        """True where the name of a kernel says that it uses tensor cores."""
        return any(kernel_families.uses_tensor_cores(kernel) for kernel in self.kernels or {})

    def tolerance(self, math_mode: str, dtype: str = "float32") -> float:
        """Return the largest error to be expected in this math mode, "fp32" or "tf32", and data type."""
        judged = self.ran.arithmetic if self.ran.transforms else self.algorithm
        return tolerance.tolerance(self.layer, judged, math_mode, dtype)


@dataclass(frozen=True)
class Evidence:
    """Evidence of a model with one algorithm at one input size.

    `last_error` and `output_error` are errors of the whole model against float64, at its last convolution and at its
    output (whose last bias may outweigh everything, so that it shows nothing). `swapped` and `torch` are times of the
    pass; `kernels_missing` is the reason why there are no kernels. `moved` is how far the model's numbers go where each
    layer rounds to a 16-bit type, None in float32.
    """

    run: Run
    layers: Sequence[LayerEvidence]
    last_error: float | None
    output_error: float | None
    swapped: Summary
    torch: Summary
    time: Difference
    tf32_override: str | None = None
    kernels_missing: str | None = None
    moved: float | None = None


@dataclass(frozen=True)
class Subject:
    """A model on its device, and its convolutions at the one input size that is studied.

    `is_network` is that of the model's source.
    """

    run: Run
    model: nn.Module
    layers: Sequence[Layer]
    inputs: Inputs
    is_network: bool = True

    @property
    def device(self) -> torch.device:
        """The device of the model and its inputs."""
        return self.inputs[0].device


@contextlib.contextmanager
def open_subject(run: Run, fused: bool = False) -> Iterator[Subject]:
    """Build the model of a run on its device, under its math mode, for the length of the block.

    Args:
        fused: its convolutions are fused with what follows them (`fusion.graphs.fused_whole`).

    Raises:
        InputError: the model cannot take the run's first input size, has no convolution, or cannot be fused.
    """
    device = torch.device(run.device)
    size = run.input_sizes[0]
    with torch.inference_mode(), backends.math(run.math), contextlib.ExitStack() as stack:
        stack.enter_context(backends.settings(provider=run.provider, layout=run.layout))
        if device.type == "cuda":
            stack.enter_context(torch.cuda.device(device))
            stack.callback(cuda_operator().release)
        network = Network.of(run)
        layers = network.layers(size)
        if not layers:
            timing = "run_profile.py --algorithm torch times its pass"
            raise InputError(f"{run.model} has no convolution: there is nothing to verify or to choose; {timing}")
        inputs = network.inputs(size, device)
        if not fused:
            yield Subject(run, network.on(device), layers, inputs, network.source.is_network)
            return
        source = network.source
        example = source.inputs(size, source.own_batch or 1, run.seed)
        model = network.on(device, lambda model: graphs.fused_whole(model, *example))
        layers = tuple(models.followed(run.model, model, *(given.shape for given in inputs)))
        yield Subject(run, model, layers, inputs)


def gather(subject: Subject, wanted: Assignment | None = None) -> Evidence:
    """Swap the model's convolutions, run it, collect the evidence, and restore the model.

    Times are those of a process that has traced nothing yet: call it once in a process.

    Args:
        wanted: the algorithm of each layer, where it is another from layer to layer.

    Raises:
        InputError: layers cannot use the algorithm, and the run names no other for them.
    """
    run, model, inputs = subject.run, subject.model, subject.inputs
    assigned = assign(run, subject.layers, card_check(subject.device, dtype=run.dtype), wanted)
    exact = _outputs(copy.deepcopy(model).double(), _cast(inputs, torch.float64))
    moved = None if run.dtype == "float32" else _moved(subject, exact)
    swapped = swap.Swap(model)
    swapped.apply(assigned.algorithms)
    try:
        observations = observe(model, inputs, check_errors=True)
        outputs = _outputs(model, inputs)
        ours, torchs = (summary.summarize(times) for times in _pass_times_ms(swapped, assigned, inputs))
        # CUPTI must not be there while times are taken.
        traces, kernels_missing = trace.trace_pass(model, inputs, has_calls(subject.layers))
    finally:
        swapped.restore()
    kernels: Sequence[Mapping[str, int] | None] = [traced.kernels for traced in traces] or [None] * len(observations)
    layers = []
    for layer, seen, counts in zip(subject.layers, observations, kernels, strict=True):
        ran = seen.carried, seen.execution, seen.relative_error
        layers.append(LayerEvidence(layer, assigned.algorithms[layer.name], *ran, counts))
    return Evidence(
        run=run,
        layers=layers,
        last_error=relative_distance(outputs[0], exact[0]),
        output_error=relative_distance(outputs[1], exact[1]) if outputs[1].shape == exact[1].shape else None,
        swapped=ours,
        torch=torchs,
        time=summary.difference(ours, torchs, CONFIDENCE),
        tf32_override=os.environ.get("NVIDIA_TF32_OVERRIDE"),
        kernels_missing=kernels_missing,
        moved=moved,
    )


def _moved(subject: Subject, exact: tuple[torch.Tensor, torch.Tensor]) -> float:
    """Return the larger distance of last convolution and output from the exact ones, if layers round to the type."""
    model = rounded(copy.deepcopy(subject.model).float(), subject.run.dtype)
    found = _outputs(model, _cast(subject.inputs, torch.float32))
    return max(relative_distance(one, wide) or 0.0 for one, wide in zip(found, exact, strict=True))


def _cast(inputs: Inputs, dtype: torch.dtype) -> Inputs:
    return tuple(given.to(dtype) if given.is_floating_point() else given for given in inputs)


def _outputs(model: nn.Module, inputs: Inputs) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the output of the last convolution of a pass, and that of the model, twice where it has none."""
    last: list[torch.Tensor] = []

    def after(name: str, module: nn.Module, given: torch.Tensor, output: torch.Tensor) -> None:
        last[:] = [output.clone()]  # the layer that follows may change it in place

    with watched(model, after=after):
        output = first_tensor(model(*inputs))
    return last[0] if last else output, output


def _pass_times_ms(swapped: swap.Swap, assigned: Assignment, inputs: Inputs) -> list[list[float]]:
    """Time the swapped model and PyTorch's own in turn, both in one placement after another.

    Each time is the mean over one capture (on a CPU, one pass).
    """
    stopwatch = Stopwatch(inputs[0].device)
    ours: list[float] = []
    torchs: list[float] = []
    for place in range(CAPTURES):
        for times_ms, choice in ((torchs, {}), (ours, assigned.algorithms)):
            swapped.apply(choice)
            with placement.moved(swapped.model, inputs, place) as there:
                times_ms.append(stopwatch.pass_ms(partial(swapped.model, *there)))
    return [ours, torchs]
