"""Selection for the layers of a model: what was measured of each, what is predicted where nothing was, and the choice.

A candidate that was measured is never predicted; one that was refused or wrong is no candidate at all.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pandas as pd

from convscope.convolution import algorithms
from convscope.convolution.layer import Layer
from convscope.dataset import ranked_plans
from convscope.dataset.samples import SAMPLES, SHAPE, SampleRow
from convscope.pinning import document
from convscope.pinning.document import FIGURES, Pin, Pins
from convscope.selection import choice
from convscope.selection.candidates import PREDICTED, Candidate, Measured, Value, is_pinnable, keys
from convscope.selection.choice import Choice, Rule
from convscope.selection.stack import Stack

if TYPE_CHECKING:
    from convscope.prediction.predictor import Predictor  # LightGBM, which selection by samples alone does without

UNKNOWN = "not measured"
"""Outcome in a document of a layer that nothing is known of."""
Estimates = dict[tuple[str, str], dict[str, Value]]
"""Predictions by work and algorithm, then by target."""


@dataclass(frozen=True)
class Work:
    """The pass of a model that is selected for; `digest` is that of the model's source."""

    model: str
    input_size: int
    batch_size: int
    math: str
    dtype: str
    layout: str
    digest: str = ""

    def of(self, model: str, digest: str) -> Work:
        """Return the same work with what the model's source says."""
        return dataclasses.replace(self, model=model, digest=digest)


@dataclass(frozen=True)
class Part:
    """One call of a convolution, and the reason why it can only be left to PyTorch, None for none."""

    layer: Layer
    why_left: str | None


@dataclass(frozen=True)
class Selected:
    """One call of a convolution and the choice for it."""

    layer: Layer
    choice: Choice


@dataclass(frozen=True)
class Selector:
    """Chooses for layers by what was measured on a stack, and what predictors say where nothing was.

    Attributes:
        level: share of cases in percent that intervals of predictions are to hold.
        plans: plans are predicted too, though cuDNN may refuse one for a layer.
    """

    stack: Stack
    measured: Measured
    predictors: Sequence[Predictor] = ()
    rule: Rule = field(default_factory=Rule)
    level: int = 95
    plans: bool = False

    def select(self, parts: Sequence[Part], work: Work) -> list[Selected]:
        """Return the choice for each call, in their order.

        Raises:
            InputError: nothing is known of the card that a prediction is for.
        """
        layers = [part.layer for part in parts if part.why_left is None]
        works = self.works(layers, work)
        predicted = self._predicted(works, work)
        return [
            Selected(layer, choice.left(why) if why else self._choice(works[layer], predicted))
            for layer, why in ((part.layer, part.why_left) for part in parts)
        ]

    def works(self, layers: Sequence[Layer], work: Work) -> dict[Layer, str]:
        """Return the key of what each layer computes in this work (`candidates.keys`)."""
        return dict(zip(layers, keys(self._rows(layers, [""], work)), strict=True)) if layers else {}

    def _choice(self, key: str, predicted: Estimates) -> Choice:
        measured = self.measured.candidates.get(key, {})
        names = dict.fromkeys([*measured, *(name for of, name in predicted if of == key)])
        every = []
        for name in names:
            own = measured.get(name, Candidate(name))
            every.append(dataclasses.replace(own, values={**predicted.get((key, name), {}), **own.values}))
        refused = len(self.measured.refused.get(key, ()))
        if not every:
            return choice.left(f"all {refused} that were measured were refused" if refused else "never measured")
        return choice.choose(every, self.rule)

    def _predicted(self, works: Mapping[Layer, str], work: Work) -> Estimates:
        """Return predictions for what was not measured, one call of a predictor for all layers."""
        found: Estimates = {}
        for predictor in self.predictors:
            wanted = dict.fromkeys(
                (key, name) for layer, key in works.items() for name in self._unmeasured(predictor, layer, key, work)
            )
            if not wanted:
                continue
            layer_of = {key: layer for layer, key in works.items()}
            rows = pd.concat([self._rows([layer_of[key]], [name], work) for key, name in wanted], ignore_index=True)
            for each, value in zip(wanted, predictions(predictor, rows, self.level), strict=True):
                found.setdefault(each, {})[predictor.target] = value
        return found

    def _unmeasured(self, predictor: Predictor, layer: Layer, key: str, work: Work) -> Iterator[str]:
        """Yield the algorithms that were learned, may compute a layer, and of which the target was not measured."""
        measured, refused = self.measured.candidates.get(key, {}), self.measured.refused.get(key, {})
        for name in predictor.core.levels["algorithm"]:
            if not is_pinnable(name) or (algorithms.plan_of(name) and not self.plans) or name in refused:
                continue
            known = algorithms.find(name)
            why = algorithms.why_not_in(known, self.stack.device_type, work.dtype, work.layout)
            if why or algorithms.why_not_by_rule(known, layer, self.stack.device_type):
                continue
            if name not in measured or predictor.target not in measured[name].values:
                yield name

    def _rows(self, layers: Sequence[Layer], names: Sequence[str], work: Work) -> pd.DataFrame:
        rows = [
            SampleRow(
                **{name: layer.columns()[name] for name in SHAPE}, gpu_name=self.stack.gpu_name, algorithm=name,
                dtype=work.dtype, math=work.math, layout=work.layout, run="selected", cudnn=self.stack.cudnn,
            )
            for layer in layers
            for name in names
        ]  # fmt: skip
        return pd.DataFrame(ranked_plans.filled(rows), columns=SAMPLES.columns)


def predictions(predictor: Predictor, frame: pd.DataFrame, level: int) -> Iterator[Value]:
    """Yield what is predicted for samples, whose values need not be there."""
    said, against = predictor.predict(frame, level), predictor.against_own(frame, level)
    for middle, low, high, outside, half in zip(
        said.middle, said.low, said.high, said.outside, against, strict=True
    ):  # fmt: skip
        yield Value(float(middle), float(low), float(high), PREDICTED, outside, float(half))


def pins(selected: Sequence[Selected], work: Work, stack: Stack) -> Pins:
    """Return the document of a selection; convolutions that are not 2-D have no place in it."""
    layers = [_pin(each) for each in selected if len(each.layer.size) == 2]
    settings = {name: getattr(work, name) for name in document.SETTINGS}
    return Pins(settings, dataclasses.asdict(stack), work.digest, layers)


def _pin(each: Selected) -> Pin:
    chosen, time = each.choice.chosen, each.choice.chosen.values.get("time")
    figures = dict.fromkeys(FIGURES) | {
        "outcome": UNKNOWN if time is None else PREDICTED if time.by == PREDICTED else "ok",
        "mean_ms": time and time.middle, "std_ms": chosen.std_ms, "rounds": chosen.rounds,
        "workspace_bytes": chosen.workspace_bytes, "relative_error": chosen.relative_error,
    }  # fmt: skip
    shape = {name: value for name, value in each.layer.columns().items() if name in document.SHAPE} | {"fused": None}
    return Pin(each.layer.name, chosen.algorithm, shape, figures, chosen.kernels)
