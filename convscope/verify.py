"""Gathers the evidence of what a model's convolutions really are with one algorithm: names, kernels, errors, times."""

from __future__ import annotations

import contextlib
import copy
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

import torch
from torch import nn

from convscope import exactness, graphs, models, modes, statistics, swap, trace
from convscope.assignment import Assignment, assign
from convscope.records import Layer, Run
from convscope.swap import Execution
from convscope.verdict import CONFIDENCE, Evidence, LayerEvidence

CAPTURES, PASSES = 6, 10
BUSY_S = 0.1  # of load before a capture is timed: an idle card's clocks are down


@dataclass(frozen=True)
class Subject:
    """A model on its device, and its convolutions at the one input size that is looked at."""

    run: Run
    model: nn.Module
    layers: Sequence[Layer]
    given: torch.Tensor


@contextlib.contextmanager
def subject(run: Run) -> Iterator[Subject]:
    """Build the model of a run on its device, under its math mode, for the length of the block.

    Raises:
        InputError: the model cannot take the run's first input size.
    """
    device = torch.device(run.device)
    size = run.input_sizes[0]
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.inference_mode())
        stack.enter_context(modes.math(run.math))
        stack.enter_context(swap.provider(run.provider))
        if device.type == "cuda":
            stack.enter_context(torch.cuda.device(device))
            stack.callback(swap.engine().release)
            trace.prepare()
        layers = models.convolutions(run.model, size, run.batch_size)
        model = models.build(run.model, run.pretrained, run.seed).to(device)
        generator = torch.Generator().manual_seed(run.seed)
        given = torch.randn(run.batch_size, 3, size, size, generator=generator).to(device)
        yield Subject(run, model, layers, given)


def gather(subject: Subject) -> Evidence:
    """Swap the model's convolutions, run it, collect what ran, and give the model back as it was.

    Raises:
        InputError: layers cannot use the algorithm, and the run does not say what else to do with them.
    """
    run, model, given = subject.run, subject.model, subject.given
    assigned = assign(run, subject.layers, swap.asker(given.device))
    exact = _ends(copy.deepcopy(model).double(), given.double())
    swapped = swap.Swap(model)
    swapped.apply(assigned.algorithms)
    try:
        seen = _witness(model, given)
        ends = _ends(model, given)
        kernels, kernels_missing = _kernels(model, given)
        ours, torchs = (statistics.summarize(times) for times in _pass_times_ms(swapped, assigned, given))
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
        last_error=exactness.relative_distance(ends[0], exact[0]),
        output_error=exactness.relative_distance(ends[1], exact[1]),
        swapped=ours,
        torch=torchs,
        time=statistics.difference(ours, torchs, CONFIDENCE),
        tf32_override=os.environ.get("NVIDIA_TF32_OVERRIDE"),
        kernels_missing=kernels_missing,
    )


def _witness(model: nn.Module, given: torch.Tensor) -> list[tuple[str, Execution, float | None]]:
    seen: list[tuple[str, Execution, float | None]] = []

    def after(name: str, module: nn.Module, given: torch.Tensor, output: torch.Tensor) -> None:
        ran = swap.what_ran(module, output)
        seen.append((swap.carried(module), ran, exactness.relative_error(module, given, output)))

    with models.hooked(model, after=after):
        model(given)
    return seen


def _ends(model: nn.Module, given: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return what comes out of the last convolution of a pass, and out of the model."""
    outputs: list[torch.Tensor] = []

    def after(name: str, module: nn.Module, given: torch.Tensor, output: torch.Tensor) -> None:
        outputs[:] = [output.clone()]  # what follows may change it in place

    with models.hooked(model, after=after):
        end: torch.Tensor = model(given)
    return outputs[0], end


def _kernels(model: nn.Module, given: torch.Tensor) -> tuple[list[Mapping[str, int]], str | None]:
    """Return the kernels of each convolution of a pass, or none and the reason."""
    if not given.is_cuda:
        return [], "a CPU launches none"
    try:
        traces = trace.by_layer(trace.record_layers(model, given, lambda: None, replays=0), replays=0)
    except trace.TraceMissingError as error:
        return [], str(error)
    return [found.kernels for found in traces], None


def look(model: nn.Module, given: torch.Tensor) -> tuple[list[str | None], list[Mapping[str, int] | None]]:
    """Return for each convolution of a pass the algorithm by identifier, None where PyTorch ran it, and its kernels."""
    ran: list[str | None] = []

    def after(name: str, module: nn.Module, given: torch.Tensor, output: torch.Tensor) -> None:
        execution = swap.what_ran(module, output)
        ran.append(None if execution.provider == "torch" else execution.algorithm)

    with models.hooked(model, after=after):
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


def pass_ms(step: Callable[[], object], given: torch.Tensor) -> float:
    """Time a step on the input's device, in milliseconds: the mean of some replays of a new graph; on a CPU, once."""
    if not given.is_cuda:
        started_s = time.perf_counter()
        step()
        return (time.perf_counter() - started_s) * 1e3
    step()
    with graphs.capture(step) as captured:
        graphs.SteadyLoad(captured, min(graphs.replay_times_ms(captured, 3))).keep_busy(BUSY_S)
        return fmean(graphs.replay_times_ms(captured, PASSES))
