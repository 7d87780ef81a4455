"""Gathers the evidence of what a model's convolutions really are with one algorithm: names, kernels, errors, times."""

from __future__ import annotations

import contextlib
import copy
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from convscope.convolution import backends, models, swap, tolerance
from convscope.convolution.assignment import Assignment, assign
from convscope.convolution.layer import Layer
from convscope.convolution.operator import card_check, cuda_operator, recording
from convscope.convolution.providers import Execution
from convscope.convolution.reference import relative_distance, relative_error
from convscope.errors import TraceMissingError
from convscope.profiling.request import Run
from convscope.timing import summary, trace
from convscope.timing.hooks import hooked
from convscope.timing.stopwatch import pass_ms
from convscope.timing.summary import Difference, Summary
from convscope.verification import kernel_families

CAPTURES = 6


@dataclass(frozen=True)
class Subject:
    """A model on its device, and its convolutions at the one input size that is looked at."""

    run: Run
    model: nn.Module
    layers: Sequence[Layer]
    given: torch.Tensor


@contextlib.contextmanager
def open_subject(run: Run) -> Iterator[Subject]:
    """Build the model of a run on its device, under its math mode, for the length of the block.

    Raises:
        InputError: the model cannot take the run's first input size.
    """
    device = torch.device(run.device)
    size = run.input_sizes[0]
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.inference_mode())
        stack.enter_context(backends.math(run.math))
        stack.enter_context(backends.settings(provider=run.provider))
        if device.type == "cuda":
            stack.enter_context(torch.cuda.device(device))
            stack.callback(cuda_operator().release)
            trace.start_cupti()
        layers = models.convolutions(run.model, size, run.batch_size)
        model = models.build(run.model, run.pretrained, run.seed).to(device)
        yield Subject(run, model, layers, models.images(run.batch_size, size, run.seed).to(device))


def gather(subject: Subject) -> Evidence:
    """Swap the model's convolutions, run it, collect what ran, and give the model back as it was.

    Raises:
        InputError: layers cannot use the algorithm, and the run does not say what else to do with them.
    """
    run, model, given = subject.run, subject.model, subject.given
    assigned = assign(run, subject.layers, card_check(given.device))
    exact = _ends(copy.deepcopy(model).double(), given.double())
    swapped = swap.Swap(model)
    swapped.apply(assigned.algorithms)
    try:
        seen = _witness(model, given)
        ends = _ends(model, given)
        kernels, kernels_missing = _kernels(model, given)
        ours, torchs = (summary.summarize(times) for times in _pass_times_ms(swapped, assigned, given))
    finally:
        swapped.restore()
    counts: Sequence[Mapping[str, int] | None] = kernels or [None] * len(seen)
    together = zip(subject.layers, seen, counts, strict=True)
    return Evidence(
        run=run,
        layers=[
            LayerEvidence(layer, assigned.algorithms[layer.name], *witnessed, counted)
            for layer, witnessed, counted in together
        ],
        last_error=relative_distance(ends[0], exact[0]),
        output_error=relative_distance(ends[1], exact[1]),
        swapped=ours,
        torch=torchs,
        time=summary.difference(ours, torchs, CONFIDENCE),
        tf32_override=os.environ.get("NVIDIA_TF32_OVERRIDE"),
        kernels_missing=kernels_missing,
    )


def _witness(model: nn.Module, given: torch.Tensor) -> list[tuple[str, Execution, float | None]]:
    seen: list[tuple[str, Execution, float | None]] = []

    def after(name: str, module: nn.Module, given: torch.Tensor, output: torch.Tensor) -> None:
        ran = swap.what_ran(module, output)
        seen.append((swap.carried(module), ran, relative_error(module, given, output)))

    with recording(), hooked(model, after=after):
        model(given)
    return seen


def _ends(model: nn.Module, given: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return what comes out of the last convolution of a pass, and out of the model."""
    outputs: list[torch.Tensor] = []

    def after(name: str, module: nn.Module, given: torch.Tensor, output: torch.Tensor) -> None:
        outputs[:] = [output.clone()]  # what follows may change it in place

    with hooked(model, after=after):
        end: torch.Tensor = model(given)
    return outputs[0], end


def _kernels(model: nn.Module, given: torch.Tensor) -> tuple[list[Mapping[str, int]], str | None]:
    """Return the kernels of each convolution of a pass, or none and the reason."""
    if not given.is_cuda:
        return [], "a CPU launches none"
    try:
        traces = trace.by_layer(trace.record_layers(model, given, lambda: None, replays=0), replays=0)
    except TraceMissingError as error:
        return [], str(error)
    return [found.kernels for found in traces], None


def look(model: nn.Module, given: torch.Tensor) -> tuple[list[str | None], list[Mapping[str, int] | None]]:
    """Return for each convolution of a pass the algorithm by identifier, None where PyTorch ran it, and its kernels."""
    ran: list[str | None] = []

    def after(name: str, module: nn.Module, given: torch.Tensor, output: torch.Tensor) -> None:
        execution = swap.what_ran(module, output)
        ran.append(None if execution.provider == "torch" else execution.algorithm)

    with recording(), hooked(model, after=after):
        model(given)
    kernels, _ = _kernels(model, given)
    return ran, list(kernels) or [None] * len(ran)


def _pass_times_ms(swapped: swap.Swap, assigned: Assignment, given: torch.Tensor) -> tuple[list[float], list[float]]:
    """Time the swapped model and PyTorch's own in turn; each time is the mean over one capture (on a CPU, one pass)."""
    ours: list[float] = []
    torchs: list[float] = []
    choices: list[tuple[list[float], Mapping[str, str]]] = [(torchs, {}), (ours, assigned.algorithms)]
    for _ in range(CAPTURES):
        for times_ms, choice in choices:
            swapped.apply(choice)
            times_ms.append(pass_ms(lambda: swapped.model(given), given))
    return ours, torchs


CONFIDENCE = 0.99


@dataclass(frozen=True)
class LayerEvidence:
    """One call of a convolution: the algorithm it was given and carries, what ran, its kernels, how exact it was.

    `kernels` counts them by name; None where they were not looked at.
    """

    layer: Layer
    expected: str
    carried: str
    ran: Execution
    relative_error: float | None
    kernels: Mapping[str, int] | None = None

    @property
    def algorithm(self) -> str:
        """The algorithm to hold the kernels and the error against: with guess the one that cuDNN chose."""
        return self.ran.algorithm if self.expected == "guess" else self.expected

    @property
    def stranger(self) -> str | None:
        """A kernel that the algorithm may not have; "" where none shows the algorithm, None where all is well."""
        pointwise = self.layer.kernel == (1, 1) and self.layer.stride == (1, 1)
        return kernel_families.stranger(self.algorithm, self.kernels or {}, pointwise=pointwise)

    @property
    def uses_tensor_cores(self) -> bool:
        """A kernel says by its name that it does."""
        return any(kernel_families.uses_tensor_cores(kernel) for kernel in self.kernels or {})

    def tolerance(self, math_mode: str) -> float:
        """The largest error to be expected in this math mode, "fp32" or "tf32"."""
        return tolerance.tolerance(self.layer, self.algorithm, math_mode)


@dataclass(frozen=True)
class Evidence:
    """What a model showed with one algorithm at one input size.

    `last_error` and `output_error` are those of the whole model against float64, at its last convolution and at its
    output (which its last bias may outweigh, so that it shows nothing); `swapped` and `torch` are times of the pass;
    `kernels_missing` says why there are no kernels.
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
