"""What chooses a plan is predicted as that plan where it is known, and only there."""

from __future__ import annotations

import dataclasses
import zlib
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from fakes.drawn_samples import drawn, frame_of

from convscope import __main__ as program
from convscope.cudnn import library
from convscope.dataset import choices
from convscope.dataset.samples import SampleRow
from convscope.prediction import document, network, predictor
from convscope.prediction.predictor import Predictor

SLOW = 4.0
"""How many times as long the second plan takes."""


def of_choice(count: int, seed: int = 0) -> list[SampleRow]:
    """Return shapes by both plans and by a choice that no size of a shape explains."""
    found = []
    for row in drawn(count, noise=0.01, seed=seed):
        is_slow = zlib.crc32(repr((row.in_channels, row.out_channels, row.in_height_px, row.batch_size)).encode()) % 2
        row = dataclasses.replace(row, cudnn="9.19.0", first_plan=str(1 + is_slow))
        took = {"plan:1": row.mean_ms, "plan:2": SLOW * (row.mean_ms or 0)}
        took["guess"] = took[f"plan:{row.first_plan}"]
        found += [dataclasses.replace(row, algorithm=name, mean_ms=each) for name, each in took.items()]
    return found


def missed(made: Predictor, frame: pd.DataFrame) -> float:
    return float(np.abs(made.predict(frame).middle / frame["mean_ms"] - 1).mean())


def guessed(rows: list[SampleRow], **changes: object) -> pd.DataFrame:
    return frame_of(row for row in rows if row.algorithm == "guess").assign(**changes)


@pytest.fixture(scope="module")
def made() -> Predictor:
    return predictor.fit(frame_of(of_choice(200)), "time", {})


ASKED = of_choice(40, seed=5)
ROW = ASKED[0]


def names(*rows: SampleRow) -> list[str]:
    return [*choices.resolved(frame_of(rows))["algorithm"]]


def test_a_choice_is_predicted_as_the_plan_that_it_takes(made: Predictor):
    assert missed(made, guessed(ASKED)) < 0.15


@pytest.mark.parametrize(
    "changes", [{"first_plan": None}, {"first_plan": "77:k2=1"}, {"cudnn": "9.24.0"}, {"cudnn": None}], ids=str
)
def test_without_a_known_plan_it_is_one_or_the_other(made: Predictor, changes: dict[str, object]):
    assert missed(made, guessed(ASKED, **changes)) > 0.5


def test_a_choice_that_was_learned_is_not_outside_where_its_very_plan_was_not(made: Predictor):
    chosen = made.predict(guessed(ASKED, first_plan="1:k2=9")).outside
    named = made.predict(guessed(ASKED, algorithm="plan:1:k2=9")).outside
    assert not any("algorithm" in each for each in chosen)
    assert all("algorithm" in each for each in named)


def test_a_choice_that_was_not_learned_is_outside_where_its_very_plan_was_not_either(made: Predictor):
    found = made.predict(guessed(ASKED, algorithm="torch", first_plan="1:k2=9")).outside
    assert all("algorithm" in each for each in found)


def test_samples_of_before_the_column_are_predicted(made: Predictor):
    assert missed(made, guessed(ASKED).drop(columns="first_plan")) > 0.5


def test_intervals_are_those_of_the_plan(made: Predictor):
    found, other = made.predict(guessed(ASKED)), made.predict(guessed(ASKED, first_plan=None))
    assert (found.high / found.low).mean() < (other.high / other.low).mean() / 2


def test_what_is_learned_is_said_of_the_samples_that_were_given(made: Predictor):
    assert made.learned["samples"] == len(of_choice(200))


def test_a_document_predicts_choices_as_before(made: Predictor, tmp_path: Path):
    document.write(tmp_path / "predictor.json", made, guessed(ASKED))
    again = document.read(tmp_path / "predictor.json")
    np.testing.assert_array_equal(again.predict(guessed(ASKED)).middle, made.predict(guessed(ASKED)).middle)


def test_layers_of_a_model_have_first_plans_of_the_cudnn_that_is_here():
    given = "alexnet", 224, 1, "NVIDIA H200", ["guess"], "float32", "tf32", "nchw"
    assert network.samples(*given, library.version())["first_plan"].notna().all()
    assert network.samples(*given)["first_plan"].isna().all()


@pytest.mark.parametrize(
    ("gpu", "algorithm", "is_said"),
    [("NVIDIA H200", "guess", True), ("Tesla T4", "guess", True), ("NVIDIA H200", "plan:1", False)],
)
def test_it_is_said_where_the_plans_of_choices_are_not_known(
    made: Predictor, tmp_path: Path, capsys: pytest.CaptureFixture[str], gpu: str, algorithm: str, is_said: bool
):
    other = dataclasses.replace(made, learned={**made.learned, "cudnn": ["8.9.7"]})
    document.write(tmp_path / "predictor.json", other, guessed(ASKED))
    asked = ["--model", "alexnet", "--gpu", gpu, "--algorithm", algorithm, "--math", "fp32"]
    assert program.main(["predict", "apply", str(tmp_path / "predictor.json"), *asked]) == 0
    assert ("predicted without the plans that cuDNN would choose: cuDNN" in capsys.readouterr().err) == is_said


def test_cudnns_and_pytorchs_choices_are_the_plan_and_nothing_else_is():
    every = ("guess", "implicit precomp gemm", "torch", "torch benchmark", "gemm", "plan:7")
    plan = f"plan:{ROW.first_plan}"
    rows = [dataclasses.replace(ROW, algorithm=name) for name in every]
    assert names(*rows) == [plan, plan, plan, "torch benchmark", "gemm", "plan:7"]


def test_pytorch_computes_depthwise_layers_by_itself():
    depthwise = dataclasses.replace(ROW, in_channels=64, out_channels=64, groups=64)
    assert names(dataclasses.replace(depthwise, algorithm="torch")) == ["torch"]
    assert names(dataclasses.replace(depthwise, algorithm="guess")) == [f"plan:{ROW.first_plan}"]


def test_a_plan_is_learned_from_what_chose_it_too():
    rows = [dataclasses.replace(ROW, algorithm=name) for name in ("guess", "gemm", "torch")]
    found = choices.with_plans(frame_of(rows))
    assert [*found["algorithm"]] == ["guess", "gemm", "torch", *[f"plan:{ROW.first_plan}"] * 2]
    pd.testing.assert_series_equal(found["mean_ms"][3:], found["mean_ms"][[0, 2]], check_index=False)
