"""Support of cuDNN's algorithms for each layer of a model on this card: predicted by rule, and seen by running it.

The two are kept apart in every row, so that a wrong rule, or a card that differs, shows.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from convscope.convolution import algorithms, backends, tolerance
from convscope.convolution.algorithms import NAMES_BY_CUDNN_NUMBER
from convscope.convolution.layer import Layer
from convscope.convolution.operator import cuda_operator, release
from convscope.errors import CudnnError
from convscope.profiling.request import Run
from convscope.storage.environment import Environment
from convscope.storage.table import fill
from convscope.verification import kernel_families
from convscope.verification.evidence import Subject
from convscope.verification.rows import SupportRow
from convscope.verification.trial import Trial

OK = "ok"
NEVER = "never implemented in cuDNN"
GENERATION = "not on this GPU generation"
SHAPE = "shape"
TYPE = "type or layout"
WORKSPACE = "workspace over the limit"
UNKNOWN = "not known"
FAILED = "failed when run"

ALGORITHMS = tuple(name for _, name in sorted(NAMES_BY_CUDNN_NUMBER.items()))
EASY = Layer.of_sizes("easy", 0, batch=1, in_channels=64, out_channels=64, size=(56, 56), kernel=(3, 3), padding=(1, 1))
"""A shape that every algorithm takes where the card has the algorithm at all."""


@dataclass(frozen=True)
class Answer:
    """The card's answer to one shape with one algorithm."""

    status: str
    reason: str | None = None
    workspace_bytes: int | None = None
    relative_error: float | None = None


def predict(
    layer: Layer, algorithm: str, capability: tuple[int, int], dtype: str = "float32", layout: str = "nchw"
) -> Answer:
    """Return the answer of the rules for a layer, before the card is asked; `UNKNOWN` where there is no rule.

    Args:
        capability: the card's compute capability, (9, 0) for Hopper.
    """
    if algorithm == "direct":
        return Answer(NEVER, "cuDNN implements no direct convolution")
    if by_generation := algorithms.why_not_on_generation(algorithm, capability):
        return Answer(GENERATION, by_generation)
    if by_type := algorithms.why_not_for_dtype(algorithm, dtype) or algorithms.why_not_for_layout(algorithm, layout):
        return Answer(TYPE, by_type)
    if layout == "nhwc" and algorithm not in algorithms.KNOWN_IN_NHWC:
        return Answer(UNKNOWN, f"no rule says whether cuDNN has {algorithm} in NHWC")
    if by_shape := algorithms.why_not_by_rule(algorithms.find(algorithm), layer, "cuda"):
        return Answer(SHAPE, by_shape)
    return Answer(OK)


def survey(
    subject: Subject, here: Environment, limit_bytes: int | None = None, dtype: str = "float32"
) -> list[SupportRow]:
    """Ask and run every algorithm of cuDNN for every layer of a model on a GPU; a row each, by layer.

    Args:
        limit_bytes: the largest workspace allowed, also to the blocks that a Triton kernel chooses among; None allows
            the free memory of the card.
        dtype: of input and weights, a name of `cudnn.DATA_TYPES`.
    """
    device = subject.device
    capability, layout = torch.cuda.get_device_capability(device), subject.run.layout
    most_bytes = torch.cuda.mem_get_info(device)[0] if limit_bytes is None else limit_bytes

    def on_card(layer: Layer) -> list[Outcome]:
        with backends.settings(max_workspace_bytes=limit_bytes):
            found = _Trial(layer, device, dtype).every(most_bytes)
        release(device)
        return found

    outcomes: dict[tuple[object, ...], list[Outcome]] = {}
    for layer in subject.layers:
        if layer.cost_key not in outcomes:
            outcomes[layer.cost_key] = outcomes_of(layer, capability, dtype, on_card, layout)
    return [
        row(subject.run, here, dtype, layer, one, predict(layer, one.algorithm, capability, dtype, layout), siblings)
        for layer in subject.layers
        for siblings in (outcomes[layer.cost_key],)
        for one in siblings
    ]


@dataclass(frozen=True)
class Outcome:
    """The card's answer to one shape with one algorithm, and the kernels that it launched."""

    algorithm: str
    answer: Answer
    kernels: Mapping[str, int] | None = None


def outcomes_of(
    layer: Layer, capability: tuple[int, int], dtype: str, on_card: Callable[[Layer], list[Outcome]],
    layout: str = "nchw",
) -> list[Outcome]:  # fmt: skip
    """Return the outcome of each algorithm for a layer; the card is asked only where the layer is a plain convolution.

    Args:
        on_card: asks the card.
    """
    if algorithms.why_not_by_module(ALGORITHMS[0], layer):  # the same for each: no card can know of it
        return [Outcome(name, predict(layer, name, capability, dtype, layout)) for name in ALGORITHMS]
    return on_card(layer)


def row(
    run: Run, here: Environment, dtype: str, layer: Layer, one: Outcome, predicted: Answer, siblings: Sequence[Outcome]
) -> SupportRow:
    """Return the row of one layer with one algorithm; `siblings` are all algorithms of this layer."""
    answer = one.answer
    unruled = answer.status == WORKSPACE or predicted.status == UNKNOWN
    agrees = None if unruled else answer.status == predicted.status
    kinds = sorted({kernel_families.family(kernel) for kernel in kernel_families.working(one.kernels or {})})
    return fill(
        SupportRow,
        here,
        run,
        answer,
        layer=layer.name,
        algorithm=one.algorithm,
        # Where both agree the rule's sentence has the reason; cuDNN itself only says "not supported".
        reason=predicted.reason if agrees else answer.reason,
        predicted_status=predicted.status,
        predicted_reason=predicted.reason,
        agrees=agrees,
        same_kernels_as=same_kernels_as(one, siblings),
        families=", ".join(kinds) or None,
        kernels=None if one.kernels is None else json.dumps(dict(one.kernels)),
        input_size=run.input_sizes[0],
        dtype=dtype,
        **layer.columns(),
    )


def same_kernels_as(one: Outcome, siblings: Sequence[Outcome]) -> str | None:
    """Return the first algorithm of a layer that launched the same work as this one, None where this is the first."""
    if not one.kernels:
        return None
    mine = kernel_families.working(one.kernels)
    twins = [other.algorithm for other in siblings if other.kernels and kernel_families.working(other.kernels) == mine]
    return None if twins[0] == one.algorithm else twins[0]


def summary(rows: Sequence[SupportRow]) -> list[tuple[str, ...]]:
    """Return for each algorithm: its name, the count of layers that can use it, and the reasons of the others."""
    lines: list[tuple[str, ...]] = []
    for algorithm in ALGORITHMS:
        mine = [row for row in rows if row.algorithm == algorithm]
        usable = sum(row.status == OK for row in mine)
        reasons = Counter(f"{row.status}: {row.reason}" for row in mine if row.status != OK)
        ties = Counter(row.same_kernels_as for row in mine if row.same_kernels_as)
        notes = [f"{reason} ({count})" for reason, count in reasons.most_common()]
        notes += [f"same kernels as {name} ({count})" for name, count in ties.most_common()]
        lines.append((algorithm, f"{usable} of {len(mine)}", "; ".join(notes)))
    return lines


def disagreements(rows: Sequence[SupportRow]) -> list[str]:
    """Return one line for each row where the rules and the card differ."""
    return [
        f"{row.layer}, {row.algorithm}: predicted {row.predicted_status}, found {row.status} ({row.reason})"
        for row in rows
        if row.agrees is False
    ]


class _Trial(Trial):
    """One shape, to be convolved by several of cuDNN's algorithms."""

    def every(self, limit_bytes: int) -> list[Outcome]:
        """Return the outcome of each algorithm for this shape."""
        answers = {name: self._answer(name, limit_bytes) for name in ALGORITHMS}
        usable = [name for name, answer in answers.items() if answer.status == OK]
        kernels = dict(zip(usable, self.kernels(usable), strict=False))
        return [Outcome(name, answer, kernels.get(name)) for name, answer in answers.items()]

    def _answer(self, algorithm: str, limit_bytes: int) -> Answer:
        try:
            workspace_bytes = cuda_operator().workspace_bytes(self.device, self.layer, algorithm, self.dtype)
        except CudnnError as error:
            return Answer(self._refused_as(algorithm), str(error))
        if workspace_bytes > limit_bytes:
            reason = f"needs a workspace of {workspace_bytes} bytes, allowed are {limit_bytes}"
            return Answer(WORKSPACE, reason, workspace_bytes)
        try:
            distance = self.error(algorithm)
        except (CudnnError, torch.OutOfMemoryError) as error:
            return Answer(FAILED, str(error).splitlines()[0], workspace_bytes)
        return judged(self.layer, algorithm, distance, workspace_bytes, self.dtype)

    def _refused_as(self, algorithm: str) -> str:
        """Tell a shape, or a type, that is refused from an algorithm that the card does not have at all."""
        if self._accepts(EASY, algorithm, self.dtype):
            return SHAPE
        with backends.settings(layout="nchw"):
            if self._accepts(EASY, algorithm, "float32"):
                return TYPE
        return NEVER if algorithm == "direct" else GENERATION

    def _accepts(self, layer: Layer, algorithm: str, dtype: str) -> bool:
        try:
            cuda_operator().workspace_bytes(self.device, layer, algorithm, dtype)
        except CudnnError:
            return False
        return True


def judged(layer: Layer, algorithm: str, error: float | None, workspace_bytes: int, dtype: str) -> Answer:
    """Judge a result with this relative error against float64, by the tolerance of its layer."""
    allowed = tolerance.tolerance(layer, algorithm, backends.math_in_force(), dtype)
    if error is not None and not error <= allowed:
        reason = f"its error against float64 is {error:.1e}, allowed are {allowed:.1e}"
        return Answer(tolerance.WRONG, reason, workspace_bytes, error)
    return Answer(OK, None, workspace_bytes, error)
