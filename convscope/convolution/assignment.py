"""The algorithm of each layer of a model, and the fate of layers that cannot use the one requested."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from convscope.convolution import algorithms
from convscope.convolution.algorithms import Algorithm
from convscope.convolution.layer import Layer
from convscope.errors import InputError

CardCheck = Callable[[Layer, str], str | None]
"""Ask the library on the card whether it takes a layer with an algorithm: a reason, or None for yes."""

_SHAPES_SHOWN = 4


class AlgorithmRequest(Protocol):
    """The part of a request that decides which algorithm each layer gets."""

    @property
    def model(self) -> str:
        """The model's name, for messages."""

    @property
    def algorithm(self) -> str:
        """The algorithm's name."""

    @property
    def unsupported(self) -> str:
        """The fate of layers that cannot use the algorithm: "error", "fallback" or "skip"."""

    @property
    def device_type(self) -> str:
        """The kind of device, "cpu" or "cuda"."""

    @property
    def dtype(self) -> str:
        """The data type of weights and inputs."""

    @property
    def layout(self) -> str:
        """The order of channels in memory, "nchw" or "nhwc"."""


@dataclass(frozen=True)
class Assignment:
    """The algorithm of each layer by the layer's name, and the reason of each that cannot have the one requested."""

    algorithms: Mapping[str, str]
    reasons: Mapping[str, str]


def why_not_each(
    algorithm: Algorithm, layers: Sequence[Layer], device_type: str, check: CardCheck | None,
    dtype: str = "float32", layout: str = "nchw",
) -> list[str | None]:  # fmt: skip
    """Return for each layer why it cannot use the algorithm, None where it can: first by rule, then by the card.

    The card is asked about the data type that `check` was made for, and the layout in force.
    """
    if algorithm.name == algorithms.AUTOTUNE:  # chooses among plans: a layer that has a first one has a fastest
        algorithm = algorithms.HEURISTICS["heuristic a"]
    answers: dict[tuple[object, ...], str | None] = {}
    in_type = algorithms.why_not_in(algorithm, device_type, dtype, layout)

    def reason(layer: Layer) -> str | None:
        by_rule = in_type or algorithms.why_not_by_rule(algorithm, layer, device_type)
        if by_rule or check is None or device_type == "cpu" or algorithm.name == "torch":
            return by_rule
        if layer.cost_key not in answers:
            answers[layer.cost_key] = check(layer, algorithm.name)
        return answers[layer.cost_key]

    return [reason(layer) for layer in layers]


def assign(
    run: AlgorithmRequest, layers: Sequence[Layer], check: CardCheck | None, wanted: Assignment | None = None
) -> Assignment:
    """Give each layer the algorithm requested, or what `run.unsupported` puts in its place.

    A layer that a pass calls more than once at different shapes has one algorithm: the one that all its calls take.

    Args:
        wanted: of an algorithm that is another from layer to layer, the algorithm of each, or why it has none.

    Raises:
        InputError: a layer cannot use the algorithm and `run.unsupported` is "error"; or, on this kind of device,
            nothing runs the algorithm and no layer could fall back.
    """
    algorithm = algorithms.find(run.algorithm)
    given = run.device_type, check, run.dtype, run.layout
    every = _why_not_wanted(wanted, layers, *given) if wanted else why_not_each(algorithm, layers, *given)
    nothing_to_measure = run.device_type == "cpu" and algorithm.cpu_provider is None
    if nothing_to_measure or (any(every) and run.unsupported == "error"):
        raise InputError(_message(algorithm, layers, every, run))
    fallback = algorithms.find(algorithms.FALLBACK)
    of_fallback = why_not_each(fallback, layers, *given) if any(every) else []
    cannot_fall_back = {layer.name for layer, reason in zip(layers, of_fallback, strict=False) if reason is not None}
    reasons = {layer.name: reason for layer, reason in zip(layers, every, strict=True) if reason is not None}

    def chosen(name: str) -> str:
        if name not in reasons:
            return wanted.algorithms[name] if wanted else algorithm.name
        return "torch" if run.unsupported == "skip" or name in cannot_fall_back else fallback.name

    return Assignment({layer.name: chosen(layer.name) for layer in layers}, reasons)


def _why_not_wanted(
    wanted: Assignment, layers: Sequence[Layer], device_type: str, check: CardCheck | None, dtype: str, layout: str
) -> list[str | None]:
    """Return for each layer why it has no algorithm of its own, or cannot use it, None where it can."""
    found: list[str | None] = []
    for layer in layers:
        reason = wanted.reasons.get(layer.name)
        if reason is None:
            own = algorithms.find(wanted.algorithms[layer.name])
            (reason,) = why_not_each(own, [layer], device_type, check, dtype, layout)
        found.append(reason)
    return found


def _message(algorithm: Algorithm, layers: Sequence[Layer], every: Sequence[str | None], run: AlgorithmRequest) -> str:
    """Return one line: the layers that cannot use the algorithm, the reasons, and what to do."""
    sentences = "; ".join(algorithms.refusals(every, run.model))
    if run.device_type == "cpu" and (no_device := algorithms.why_not_here(algorithm, "cpu")):
        return no_device
    refused = [layer for layer, reason in zip(layers, every, strict=True) if reason]
    by_torch = run.device_type == "cpu" or all(layer.peculiarity for layer in refused)
    instead = "PyTorch" if by_torch else algorithms.FALLBACK
    shown = ", ".join(layer.name for layer in refused[:_SHAPES_SHOWN]) + (" …" if len(refused) > _SHAPES_SHOWN else "")
    flat = [layer.in_height for layer in layers if len(layer.size) == 2]
    size = f" at {flat[0]} px" if algorithm.rule_depends_on_size and flat else ""
    return f"{sentences}{size} ({shown}); --unsupported fallback runs these with {instead}"
