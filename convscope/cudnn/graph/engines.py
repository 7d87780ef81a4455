"""Engines and plans of a convolution: what cuDNN offers for it, in its own order, with its notes and its refusals.

Numbers of engines belong to a version of cuDNN: those of two versions are never compared.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum

from convscope.cudnn.graph import devices
from convscope.cudnn.graph.backend import Attribute, Descriptor, Kind, Scope, Type
from convscope.cudnn.graph.devices import Card, Described, Device
from convscope.cudnn.graph.operations import graph_of
from convscope.cudnn.graph.plan import Plan
from convscope.cudnn.legacy import Handle
from convscope.cudnn.shape import Convolution
from convscope.errors import CudnnError, NotSupportedError

NUMERICAL_NOTES = (
    *("tensor core", "down-converts inputs", "reduced precision in sums", "fft", "nondeterministic", "winograd"),
    *("winograd 4x4", "winograd 6x6", "winograd 13x13", "keeps NaN"),
)
"""By their numbers (`cudnnBackendNumericalNote_t`)."""
TENSOR_CORE, DOWN_CONVERTS = NUMERICAL_NOTES[:2]
WINOGRAD = NUMERICAL_NOTES[5]
BEHAVIOR_NOTES = (
    *("compiled at run time", "reorders int8 filters", "reorders int8 bias", "native CUDA graph", "calls cuBLASLt"),
)
"""By their numbers (`cudnnBackendBehaviorNote_t`)."""
_NOTES_MOST, _KNOBS_MOST = 64, 64


class Mode(IntEnum):
    """A heuristic of cuDNN (`cudnnBackendHeurMode_t`): by rules, by a model, and plans that only have to work."""

    A = 3
    B = 1
    FALLBACK = 2


@dataclass(frozen=True)
class Offer:
    """A plan that cuDNN offers, with what it says of it.

    Attributes:
        ranks: the place of the plan in the list of each mode that has it, from 0.
        workspace_bytes: what the plan wants.
    """

    plan: Plan
    ranks: Mapping[str, int]
    numerical_notes: tuple[str, ...]
    behavior_notes: tuple[str, ...]
    workspace_bytes: int

    @property
    def transforms(self) -> bool:
        """True where cuDNN notes that it is Winograd's algorithm, whose errors are larger."""
        return any(WINOGRAD in note for note in self.numerical_notes)

    def why_not_comparable(self, convolution: Convolution) -> str | None:
        """Return why the plan computes in less than what is asked for, None where it does not; PyTorch has the rule."""
        if convolution.dtype != "float32":
            return None
        if DOWN_CONVERTS in self.numerical_notes:
            return "computes float32 in 16 bits"
        if convolution.math == "fp32" and TENSOR_CORE in self.numerical_notes:
            return "uses TF32, which is forbidden"
        return None


@dataclass(frozen=True)
class Engine:
    """An engine of cuDNN, and why it does not take a convolution on a device (None where it does)."""

    number: int
    refusal: str | None
    numerical_notes: tuple[str, ...] = ()
    behavior_notes: tuple[str, ...] = ()


class Offers:
    """The engines and plans that cuDNN offers for one convolution on one device; close it, or leave its `with` block.

    Args:
        convolution: 2-D or 3-D, of any data type and layout, alone or fused; groups are those of its weight.
        device: the context of a card, which must outlive plans that are built here; or the properties of one, named
            as those of `devices.H200`, to ask without it.

    Raises:
        CudnnError: cuDNN cannot describe the convolution.
    """

    def __init__(self, convolution: Convolution, device: Handle | Mapping[str, object] = devices.H200) -> None:
        self._scope = Scope()
        try:
            self._device: Device = Described(self._scope, device) if isinstance(device, Mapping) else Card(device)
            self._graph = graph_of(self._scope, convolution, self._device)
        except Exception:
            self.close()
            raise

    @property
    def engine_count(self) -> int:
        """The number of engines that cuDNN has for such operations, of any shape and on any device."""
        return self._graph.read(Attribute.GRAPH_ENGINE_COUNT, Type.INT64)[0]

    def engines(self) -> list[Engine]:
        """Return every engine, with cuDNN's reason where it refuses."""
        return [self._engine(number) for number in range(self.engine_count)]

    def plans(self, modes: tuple[Mode, ...] = tuple(Mode)) -> list[Offer]:
        """Return every plan of these heuristics, each once: those of the first mode in its order, then of the next."""
        ranks: dict[Plan, dict[str, int]] = {}
        found: dict[Plan, Offer] = {}
        for mode in modes:
            for place, offer in enumerate(self.of_mode(mode)):
                ranks.setdefault(offer.plan, {}).setdefault(mode.name.lower(), place)
                found.setdefault(offer.plan, Offer(**vars(offer) | {"ranks": ranks[offer.plan]}))
        return [*found.values()]

    def of_mode(self, mode: Mode) -> Iterator[Offer]:
        """Yield the plans of a heuristic in its order, without ranks: cuDNN is asked about each when it is its turn."""
        with Scope() as scope:
            heuristic = scope.new(Kind.ENGINE_HEURISTIC)
            heuristic.set(Attribute.HEURISTIC_GRAPH, Type.DESCRIPTOR, self._graph)
            heuristic.set(Attribute.HEURISTIC_MODE, Type.HEURISTIC_MODE, int(mode))
            self._device.name_to_query(heuristic, Attribute.HEURISTIC_DEVICE)
            try:
                heuristic.finalized()
            except NotSupportedError:
                return  # this heuristic has nothing for such operations
            configs = scope.several(Kind.ENGINE_CONFIG, heuristic.count(Attribute.HEURISTIC_RESULTS))
            for config in configs[: heuristic.fill(Attribute.HEURISTIC_RESULTS, configs)]:
                yield _offer(scope, config)

    def offer(self, plan: Plan) -> Offer:
        """Return what cuDNN says of a plan, whether a heuristic has it or not.

        Raises:
            NotSupportedError: cuDNN refuses the engine, or the values of its knobs, for this convolution.
        """
        with Scope() as scope:
            return dataclasses.replace(_offer(scope, self.config(scope, plan)), plan=plan)

    def config(self, scope: Scope, plan: Plan) -> Descriptor:
        """Return the configuration of a plan, from which it can be built.

        Raises:
            NotSupportedError: cuDNN refuses the engine, or the values of its knobs, for this convolution.
        """
        engine = self._finalized_engine(scope, plan.engine)
        choices = [
            scope.new(Kind.KNOB_CHOICE)
            .set(Attribute.KNOB_TYPE, Type.KNOB_TYPE, knob)
            .set(Attribute.KNOB_VALUE, Type.INT64, value)
            .finalized()
            for knob, value in plan.knobs
        ]
        config = scope.new(Kind.ENGINE_CONFIG).set(Attribute.CONFIG_ENGINE, Type.DESCRIPTOR, engine)
        if choices:
            config.set(Attribute.CONFIG_KNOBS, Type.DESCRIPTOR, *choices)
        return config.finalized()

    def built(self, scope: Scope, plan: Plan) -> Descriptor:
        """Return a plan, built for the device: what cuDNN compiles at run time is compiled now.

        Raises:
            NotSupportedError: cuDNN refuses it only now.
        """
        made = scope.new(Kind.EXECUTION_PLAN).set(Attribute.PLAN_CONFIG, Type.DESCRIPTOR, self.config(scope, plan))
        self._device.name_to_plan(made)
        return made.finalized()

    def close(self) -> None:
        """Destroy the descriptors; twice is once."""
        self._scope.close()

    def __enter__(self) -> Offers:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def _finalized_engine(self, scope: Scope, number: int) -> Descriptor:
        engine = scope.new(Kind.ENGINE).set(Attribute.ENGINE_GRAPH, Type.DESCRIPTOR, self._graph)
        engine.set(Attribute.ENGINE_NUMBER, Type.INT64, number)
        self._device.name_to_query(engine, Attribute.ENGINE_DEVICE)
        try:
            return engine.finalized()
        except NotSupportedError:
            raise
        except CudnnError as error:  # cuDNN 9.10 calls it an internal error that it has no such engine for a card
            raise NotSupportedError(str(error)) from error

    def _engine(self, number: int) -> Engine:
        with Scope() as scope:
            try:
                engine = self._finalized_engine(scope, number)
                notes = _notes(engine)
                scope.new(Kind.ENGINE_CONFIG).set(Attribute.CONFIG_ENGINE, Type.DESCRIPTOR, engine).finalized()
            except NotSupportedError as refusal:
                return Engine(number, str(refusal))
            return Engine(number, None, *notes)


def _offer(scope: Scope, config: Descriptor) -> Offer:
    engine = scope.new(Kind.ENGINE)
    config.fill(Attribute.CONFIG_ENGINE, [engine])
    choices = scope.several(Kind.KNOB_CHOICE, _KNOBS_MOST)
    choices = choices[: config.fill(Attribute.CONFIG_KNOBS, choices)]
    (number,) = engine.read(Attribute.ENGINE_NUMBER, Type.INT64)
    knobs = {
        choice.read(Attribute.KNOB_TYPE, Type.KNOB_TYPE)[0]: choice.read(Attribute.KNOB_VALUE, Type.INT64)[0]
        for choice in choices
    }
    (workspace_bytes,) = config.read(Attribute.CONFIG_WORKSPACE_BYTES, Type.INT64)
    return Offer(Plan.of(number, knobs), {}, *_notes(engine), workspace_bytes)


def _notes(engine: Descriptor) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the numerical and the behaviour notes of an engine; one that is newer than this list by its number."""
    kinds = (
        (Attribute.ENGINE_NUMERICAL_NOTES, Type.NUMERICAL_NOTE, NUMERICAL_NOTES),
        (Attribute.ENGINE_BEHAVIOR_NOTES, Type.BEHAVIOR_NOTE, BEHAVIOR_NOTES),
    )
    numerical, behavior = (
        tuple(
            names[note] if note < len(names) else f"note {note}" for note in engine.read(attribute, kind, _NOTES_MOST)
        )
        for attribute, kind, names in kinds
    )
    return numerical, behavior
