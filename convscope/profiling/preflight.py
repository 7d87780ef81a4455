"""Check of combinations for the stages, before anything is queued or run: `run_profile.py --check-stages`.

Names, flags and the rules that need no model are checked without PyTorch; it is imported only where the layers decide.
The stages' command (`cluster/submission.py`) writes the combinations to the standard input, and reads the requests.
"""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Callable, Sequence
from typing import Any

from convscope import gpus
from convscope.cli import options
from convscope.convolution import algorithms, names
from convscope.errors import ElsewhereError, InputError, SensorError
from convscope.profiling.request import Run, fitted

LOCAL = "local"  # the GPU that is here, whatever it is
MakeRun = Callable[[str, str, str, str, Sequence[str]], Run]
"""Decides the request of a model, an algorithm and a GPU in a stage, by further settings: "batch_size=8"."""


def answer(
    lines: Sequence[str], stages: Sequence[str], make: MakeRun, device: str, is_here: bool, note: Callable[[str], None]
) -> list[dict[str, Any]]:
    """Return the requests of combinations in these stages, in the order of the lines; none where the GPU is `LOCAL`.

    Args:
        lines: model, algorithm, GPU and further settings, separated by tabs.
        device: as `--device` names it.
        is_here: they are to run on this machine, so their GPU must be here.
        note: called with a line that says what could not be checked.

    Raises:
        InputError: one of them cannot run; the message names it where there are several.
    """
    requests: list[Run] = []
    for line in lines:
        try:
            model, algorithm, gpu, *settings = line.split("\t")
        except ValueError:
            raise InputError(f"standard input: {line!r} is not model, algorithm, GPU, separated by tabs") from None
        try:
            runs = _runs(model, algorithm, gpu, stages, make, settings)
            if is_here:
                names.check_model(model)
            if is_here and runs and gpu != "cpu":
                _check_here(gpu, device)
        except InputError as error:
            raise InputError(_named(f"{model}, {algorithm}, {gpu}", str(error), len(lines))) from None
        requests += runs
    checked = by_layers(requests, note, is_here)
    for run, reason in checked:
        if reason:
            raise InputError(_named(f"{run.model}, {run.algorithm}, {run.gpu}", reason, len(lines)))
    return [dataclasses.asdict(run) for run, _ in checked]


def _runs(
    model: str, algorithm: str, gpu: str, stages: Sequence[str], make: MakeRun, settings: Sequence[str]
) -> list[Run]:
    if gpu == LOCAL:
        names.check_model(model, is_elsewhere=True)
        algorithms.find(algorithm)
        return []
    return [make(model, algorithm, gpu, stage, settings) for stage in stages]


def _named(combination: str, message: str, count: int) -> str:
    return f"{combination}: {message}" if count > 1 else message


def _check_here(gpu: str, device: str) -> None:
    """Raise InputError where the device is not this GPU; PyTorch is asked only where NVML does not confirm it."""
    index = device.partition(":")[2] or "0"
    if not index.isdecimal() or not gpus.matches(gpu, _card_name(int(index))):
        options.folder_gpu(gpu, options.find_device(device, f"the GPU of this line, {gpu}, is needed"))


def _card_name(index: int) -> str:
    """Return the name of the card that CUDA shows as this one according to NVML, "" where it does not say."""
    from convscope.power import nvml  # which needs NumPy, and a submission does not

    try:
        library = nvml.load()
        uuids = nvml.visible_uuids(library, os.environ.get("CUDA_VISIBLE_DEVICES"))
        return nvml.card_name(library, uuids[index]) if index < len(uuids) else ""
    except SensorError:
        return ""


def _layers_decide(run: Run) -> bool:
    """Tell whether a model's layers or input sizes may be against a request; no layer of the six is against a CPU."""
    if run.input_shape or run.input_sizes[0] < names.SMALLEST_INPUT_PX or not names.takes_usual_sizes(run.model):
        return True
    algorithm = algorithms.find(run.algorithm)
    takes_all = algorithm.takes_any_shape if run.device_type == "cuda" else run.model in names.MODELS
    return run.unsupported == "error" and not takes_all and algorithm.name != "torch"


def by_layers(runs: Sequence[Run], note: Callable[[str], None], is_here: bool = False) -> list[tuple[Run, str | None]]:
    """Return each request as its model fits it, and why layers or sizes rule it out, None where they do not.

    A model that takes one size alone is asked for that. PyTorch is imported where one of the models needs it; where it
    is missing, or what a model needs, that is noted and rules out nothing.

    Args:
        is_here: they are to run on this machine, and what a model needs must be here.
    """
    decided = [not _layers_decide(run) for run in runs]
    if all(decided):
        return [(run, None) for run in runs]
    try:
        models = _Models()
    except ModuleNotFoundError as error:
        note(f"the layers are not checked here ({error}): a rule against them ends the job when it starts")
        return [(run, None) for run in runs]
    missing: dict[str, str] = {}

    def checked(run: Run) -> tuple[Run, str | None]:
        try:
            return (run, missing[run.model]) if run.model in missing else models.checked(run)
        except ElsewhereError as error:
            missing[run.model] = str(error)
            return run, str(error)

    found = [(run, None) if is_decided else checked(run) for run, is_decided in zip(runs, decided, strict=True)]
    if is_here:
        return found
    for model, why in missing.items():
        note(f"{model} is not checked here ({why}): what is wrong with it ends the job when it starts")
    return [(run, None if run.model in missing else why) for run, why in found]


def possible(runs: Sequence[Run], note: Callable[[str], None]) -> list[Run]:
    """Return requests as their models fit them, as `by_layers` does; InputError where layers or sizes rule one out."""
    checked = by_layers(runs, note)
    if reason := next((reason for _, reason in checked if reason), None):
        raise InputError(reason)
    return [run for run, _ in checked]


class _Models:
    """Models that are asked about requests, each built once; PyTorch is imported."""

    def __init__(self) -> None:
        from convscope.convolution import models
        from convscope.convolution.assignment import assign

        self._find, self._layers_of, self._assign = functools.cache(models.find_source), models.layers_of, assign
        self._known: dict[tuple[object, ...], str | None] = {}

    def checked(self, run: Run) -> tuple[Run, str | None]:
        """Return a request as its model fits it, and why it cannot run, None where it can.

        Raises:
            ElsewhereError: what the model needs is not on this machine.
        """
        try:
            source = self._find(run.model)
            run = fitted(run, source)
        except ElsewhereError:
            raise
        except InputError as error:
            return run, str(error)
        sizes = [run.image_size(size) for size in dict.fromkeys((run.input_sizes[0], run.input_sizes[-1]))]
        key = (run.model, run.algorithm, run.device_type, run.unsupported, run.dtype, run.layout, *sizes)
        if key not in self._known:
            self._known[key] = None
            try:
                for size in sizes:
                    self._assign(run, self._layers_of(source, size), None)
            except InputError as error:
                self._known[key] = str(error)
        return run, self._known[key]
