"""Layers of a model and what can only be left to PyTorch; energy, plans and refusals in a selection."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from fakes import layer
from fakes.drawn_samples import drawn, frame_of

from convscope.convolution.layer import Layer
from convscope.dataset.samples import SHAPE, SampleRow
from convscope.errors import InputError
from convscope.pinning import document
from convscope.prediction import predictor
from convscope.prediction.predictor import Predictor
from convscope.selection import network, selector
from convscope.selection.candidates import gathered
from convscope.selection.choice import Rule
from convscope.selection.selector import Part, Selector, Work
from convscope.selection.stack import Stack

STACK = Stack("Tesla T4", "9.19.0")
WORK = Work("one", 64, 1, "fp32", "float32", "nchw")
ODD = """
import torch
from torch import nn


class Odd(nn.Module):
    def __init__(self):
        super().__init__()
        self.plain, self.twice = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3)
        self.mirror = nn.Conv2d(4, 4, 3, padding=1, padding_mode="reflect")
        self.up, self.line = nn.ConvTranspose2d(4, 4, 2), nn.Conv1d(4, 4, 1)

    def forward(self, x):
        x = self.up(self.mirror(self.twice(self.twice(self.plain(x)))))
        return self.line(x.flatten(2)).mean(2)
"""
PERMUTED = """
import torch
from torch import nn


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.conv = nn.LayerNorm(8), nn.Conv2d(8, 8, 3, padding=1)

    def forward(self, x):
        return self.conv(self.norm(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.block, self.next = nn.Conv2d(3, 8, 3), Block(), nn.Conv2d(8, 8, 1)
        self.copied, self.last = nn.Conv2d(8, 8, 1), nn.Conv2d(8, 2, 14)

    def forward(self, x):
        x = self.next(self.block(self.stem(x))) if True else x
        return self.last(self.copied(x.contiguous())).flatten(1)
"""
ONE = layer(
    name="one", position=0, in_height=14, in_width=14, in_channels=64, out_channels=64, kernel=(3, 3), padding=(1, 1)
)


def test_what_cannot_be_pinned_is_left_to_pytorch_with_its_reason_and_has_its_place(tmp_path: Path):
    path = tmp_path / "odd.py"
    path.write_text(ODD)
    work, parts = network.parts(Work(f"{path}:Odd", 64, 2, "fp32", "float32", "nchw"))
    reasons = {part.layer.name.split(".")[0]: part.why_left for part in parts}
    assert reasons["plain"] is None
    assert reasons["twice"] == "it is called with several shapes, and a document has one for each name"
    assert "reflect" in (reasons["mirror"] or "")
    assert reasons["up"] == "it is transposed"
    assert reasons["line"] == "it is 1-D: samples are of 2-D convolutions"
    assert work.digest
    found = Selector(STACK, gathered(frame_of([]))).select(parts, work)
    assert [each.choice.remark for each in found if each.layer.name == "plain"] == ["never measured"]
    written = tmp_path / "plans.json"
    written.write_text(selector.pins(found, work, STACK).text())
    assert [pin.layer.split(".")[0] for pin in document.read(written).layers] == [
        *("plain", "twice", "twice", "mirror", "up")
    ]


@pytest.mark.parametrize(
    ("layout", "condition", "others"),
    [
        ("nchw", "True", ("block.conv", "next")),
        ("nchw", "bool(x.isfinite().all())", ("block.conv", "next")),  # not to be followed without numbers
        ("nhwc", "True", ()),
    ],
    ids=("nchw", "by numbers", "nhwc"),
)
def test_a_layer_that_pytorch_computes_in_another_order_than_that_of_the_samples_is_left_to_it(
    layout: str, condition: str, others: tuple[str, ...], tmp_path: Path
):
    path = tmp_path / "net.py"
    path.write_text(PERMUTED.replace("True", condition))
    _, parts = network.parts(Work(f"{path}:Net", 16, 2, "tf32", "float32", layout))
    reasons = {part.layer.name: part.why_left for part in parts}
    why = "its input comes in nhwc, and PyTorch computes it so: samples are of nchw"
    assert reasons == {name: why if name in others else None for name in reasons}


def test_a_model_without_convolutions_is_refused(tmp_path: Path):
    path = tmp_path / "none.py"
    path.write_text("from torch import nn\n\n\ndef make():\n    return nn.Flatten()\n")
    with pytest.raises(InputError, match="has no convolution"):
        network.parts(Work(f"{path}:make", 64, 1, "fp32", "float32", "nchw"))


def sample(algorithm: str, mean_ms: float | None = 1.0, **changes: Any) -> SampleRow:
    shape = {name: ONE.columns()[name] for name in SHAPE}
    return SampleRow(
        "Tesla T4", algorithm, dtype="float32", math="fp32", layout="nchw", run="one", cudnn="9.19.0", **shape,
        mean_ms=mean_ms, mean_ci95_ms=0.01, placements=5, **changes,
    )  # fmt: skip


def chosen(*rows: SampleRow, one: Layer = ONE, work: Work = WORK, **options: Any) -> tuple[str, str]:
    measured = gathered(frame_of(rows))
    (found,) = Selector(STACK, measured, **options).select([Part(one, None)], work)
    return found.choice.chosen.algorithm, found.choice.remark


@pytest.fixture(scope="module")
def learned() -> Predictor:
    names = ("torch", "winograd", "gemm")
    frame = frame_of(drawn(150, algorithms=names, noise=0.002))
    frame["algorithm"] = frame["algorithm"].replace("gemm", "plan:1")
    frame["mean_ms"] /= frame["algorithm"].map({"torch": 1, "winograd": 2, "plan:1": 4})
    return predictor.fit(predictor.usable(frame.assign(cudnn="9.19.0"), "time"), "time", {}, "rows")


def test_the_samples_of_a_layer_are_those_of_its_shape():
    rows = sample("torch"), sample("gemm", 0.5)
    assert chosen(*rows) == ("gemm", "")
    assert chosen(*rows, one=ONE.resized(stride=(2, 2))) == ("torch", "never measured")
    assert chosen(*rows, work=dataclasses.replace(WORK, layout="nhwc")) == ("torch", "never measured")
    assert chosen(*rows, work=dataclasses.replace(WORK, math="tf32")) == ("torch", "never measured")


def test_what_was_refused_is_not_predicted(learned: Predictor):
    options: dict[str, Any] = {"predictors": [learned], "level": 80}
    assert chosen(**options)[0] == "winograd"
    assert chosen(sample("winograd", None, status="wrong", reason="error 0.3"), **options)[0] == "torch"
    assert chosen(sample("winograd", None, status="wrong", reason="error 0.3")) == (
        *("torch", "all 1 that were measured were refused"),
    )


def test_an_algorithm_is_predicted_only_where_its_rule_allows_it(learned: Predictor):
    wide = ONE.resized(stride=(2, 2))
    said = "no other candidate; outside what was learned: log_stride"
    assert chosen(one=wide, predictors=[learned]) == ("torch", said)


def test_plans_are_predicted_only_where_asked_for(learned: Predictor):
    options: dict[str, Any] = {"predictors": [learned], "level": 80}
    assert chosen(**options)[0] == "winograd"
    assert chosen(**options, plans=True)[0] == "plan:1"


def test_a_prediction_has_no_workspace_and_no_error_that_a_limit_could_look_at(learned: Predictor):
    for rule in (Rule(max_workspace_bytes=2**40), Rule(max_error=1.0)):
        assert chosen(predictors=[learned], level=80, rule=rule)[0] == "torch"


def test_energy_is_what_is_measured_of_it():
    rows = (
        sample("torch", 1.0, energy_j=0.1, energy_uncertainty_j=0.001),
        sample("gemm", 0.5, energy_j=0.2, energy_uncertainty_j=0.001),
        sample("fft", 2.0, energy_j=0.01, energy_uncertainty_j=0.001),
    )
    assert chosen(*rows)[0] == "gemm"
    assert chosen(*rows, rule=Rule("energy"))[0] == "fft"
    assert chosen(*rows, rule=Rule("edp"))[0] == "fft"
    assert chosen(*rows, sample("winograd", 0.1), rule=Rule("energy")) == ("fft", "1 without energy")
