"""What chooses a plan is predicted as that plan where it is known, and only there."""

from __future__ import annotations

import dataclasses
import json
import zlib
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from fakes import ROOT
from fakes.drawn_samples import drawn, frame_of

from convscope import __main__ as program
from convscope.cudnn import library
from convscope.dataset import choices
from convscope.dataset.samples import ARITHMETIC, SHAPE, SampleRow
from convscope.prediction import document, network, predictor
from convscope.prediction.predictor import Predictor

SLOW = 4.0
"""How many times as long the second plan takes."""


def of_choice(count: int, seed: int = 0) -> list[SampleRow]:
    """Return shapes by both plans and by a choice that no size of a shape explains."""
    found = []
    for row in drawn(count, noise=0.01, seed=seed):
        is_slow = zlib.crc32(repr((row.in_channels, row.out_channels, row.in_height_px, row.batch_size)).encode()) % 2
        row = dataclasses.replace(row, cudnn="9.19.0", ranked_plans=str(1 + is_slow))
        took = {"plan:1": row.mean_ms, "plan:2": SLOW * (row.mean_ms or 0)}
        took["guess"] = took[f"plan:{row.ranked_plans}"]
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
COLUMNS = ["algorithm", "kernels", "ranked_plans", "ranked_for", *SHAPE, *ARITHMETIC]
KERNELS_OF = {
    "plan:0": ["conv2d_grouped_direct_kernel"],
    "plan:28": ["implicit_convolve_sgemm", "convolve_common_engine_float_NHWC"],
    choices.UNFOLDED: ["im2col4d_kernel"],
}


def names(*rows: SampleRow) -> list[str]:
    return [*choices.resolved(frame_of(rows))["algorithm"]]


def test_a_choice_is_predicted_as_the_plan_that_it_takes(made: Predictor):
    assert missed(made, guessed(ASKED)) < 0.15


@pytest.mark.parametrize(
    "changes", [{"ranked_plans": None}, {"ranked_plans": "77:k2=1"}, {"cudnn": "9.24.0"}, {"cudnn": None}], ids=str
)
def test_without_a_known_plan_it_is_one_or_the_other(made: Predictor, changes: dict[str, object]):
    assert missed(made, guessed(ASKED, **changes)) > 0.5


def test_a_choice_that_was_learned_is_not_outside_where_its_very_plan_was_not(made: Predictor):
    chosen = made.predict(guessed(ASKED, ranked_plans="1:k2=9")).outside
    named = made.predict(guessed(ASKED, algorithm="plan:1:k2=9")).outside
    assert not any("algorithm" in each for each in chosen)
    assert all("algorithm" in each for each in named)


def test_a_choice_that_was_not_learned_is_outside_where_its_very_plan_was_not_either(made: Predictor):
    found = made.predict(guessed(ASKED, algorithm="torch", ranked_plans="1:k2=9")).outside
    assert all("algorithm" in each for each in found)


def test_samples_of_before_the_column_are_predicted(made: Predictor):
    assert missed(made, guessed(ASKED).drop(columns="ranked_plans")) > 0.5


def test_a_correction_by_another_cudnn_teaches_none_of_its_plans(made: Predictor):
    other = guessed(of_choice(100, seed=7), cudnn="9.24.0", gpu_name="Tesla P4")
    found = made.corrected(other)
    assert {*found.learned["cudnn"]} == {"9.19.0", "9.24.0"}
    assert {*found.resolved(other)["algorithm"]} == {"guess"}
    assert {*found.resolved(guessed(ASKED))["algorithm"]} == {"plan:1", "plan:2"}


def test_intervals_are_those_of_the_plan(made: Predictor):
    found, other = made.predict(guessed(ASKED)), made.predict(guessed(ASKED, ranked_plans=None))
    assert (found.high / found.low).mean() < (other.high / other.low).mean() / 2


def test_what_is_learned_is_said_of_the_samples_that_were_given(made: Predictor):
    assert made.learned["samples"] == len(of_choice(200))


def test_a_document_predicts_choices_as_before(made: Predictor, tmp_path: Path):
    document.write(tmp_path / "predictor.json", made, guessed(ASKED))
    again = document.read(tmp_path / "predictor.json")
    np.testing.assert_array_equal(again.predict(guessed(ASKED)).middle, made.predict(guessed(ASKED)).middle)


def test_layers_of_a_model_have_ranked_plans_of_the_cudnn_that_is_here():
    given = "alexnet", 224, 1, "NVIDIA H200", ["guess"], "float32", "tf32", "nchw"
    assert network.samples(*given, library.version())["ranked_plans"].notna().all()
    assert network.samples(*given)["ranked_plans"].isna().all()


@pytest.mark.parametrize(
    ("gpu", "algorithm", "is_said"),
    [
        ("NVIDIA H200", "guess", True),
        ("Tesla T4", "guess", True),
        ("NVIDIA H200", "plan:1", False),
    ],
)
def test_it_is_said_where_the_plans_of_choices_are_not_known(
    made: Predictor, tmp_path: Path, capsys: pytest.CaptureFixture[str], gpu: str, algorithm: str, is_said: bool
):
    other = dataclasses.replace(made, learned={**made.learned, "plans_of": ["8.9.7"]})
    document.write(tmp_path / "predictor.json", other, guessed(ASKED))
    asked = ["--model", "alexnet", "--gpu", gpu, "--algorithm", algorithm, "--math", "fp32"]
    assert program.main(["predict", "apply", str(tmp_path / "predictor.json"), *asked]) == 0
    assert ("predicted without the plans that cuDNN would choose: cuDNN" in capsys.readouterr().err) == is_said


FIRST = f"plan:{ROW.ranked_plans}"


def test_cudnns_and_pytorchs_choices_are_the_first_plan_and_nothing_else_is():
    every = ("guess", "implicit precomp gemm", "torch", "torch benchmark", "direct", "plan:7")
    rows = [dataclasses.replace(ROW, algorithm=name, ranked_plans=f"{ROW.ranked_plans};7;0") for name in every]
    assert names(*rows) == [FIRST, FIRST, FIRST, "torch benchmark", "direct", "plan:7"]


def test_pytorch_computes_depthwise_layers_by_itself():
    depthwise = dataclasses.replace(ROW, in_channels=64, out_channels=64, groups=64)
    assert names(dataclasses.replace(depthwise, algorithm="torch")) == ["torch"]
    assert names(dataclasses.replace(depthwise, algorithm="guess")) == [FIRST]


@pytest.mark.parametrize(
    ("changes", "is_known"),
    [
        ({}, False),
        ({"dtype": "float16"}, False),
        ({"math": "fp32"}, True),
        ({"stride": "2x2"}, True),
        ({"kernel_size": "3x3"}, True),
        ({"groups": 2}, True),
    ],
    ids=str,
)
def test_the_first_plan_is_not_known_where_it_may_be_one_of_cublaslt(changes: dict[str, object], is_known: bool):
    of_one = {"kernel_size": "1x1", "stride": "1x1", "groups": 1, "math": "tf32", "dtype": "float32", **changes}
    row = dataclasses.replace(ROW, algorithm="guess", **of_one)  # type: ignore[arg-type]
    assert names(row) == [FIRST if is_known else "guess"]
    assert names(dataclasses.replace(row, algorithm="gemm", ranked_plans="67:k2=1;0")) == ["plan:0"]


LISTED = "5;3:k11=2;58:k25=0;67:k2=1;0"
"""Plans of a shape, those among them that cuDNN offers only where a card is."""
OF_ONE = {"kernel_size": "1x1", "stride": "1x1", "groups": 1}
DEPTHWISE = {"in_channels": 64, "out_channels": 64, "groups": 64}
FMA = {"math": "fp32", "dtype": "float32"}
HALF = {"math": "tf32", "dtype": "float16", "layout": "nhwc"}


@pytest.mark.parametrize(
    ("changes", "algorithm", "expected"),
    [
        (FMA, "guess", choices.FFT),
        (FMA, "implicit precomp gemm", "plan:58:k25=0"),
        (FMA, "torch", "plan:5"),
        (FMA, "torch benchmark", choices.SEARCHED),
        (FMA | OF_ONE, "guess", choices.FFT),
        (FMA | {"math": "tf32"}, "guess", choices.FFT),
        (HALF, "guess", "guess"),
        (HALF | OF_ONE, "implicit precomp gemm", "plan:58:k25=0"),
        (HALF | OF_ONE, "torch benchmark", choices.SEARCHED),
        (HALF, "torch", "plan:5"),
        (HALF | DEPTHWISE, "torch", "plan:5"),
        (HALF | DEPTHWISE, "torch benchmark", choices.SEARCHED),
        (FMA | DEPTHWISE, "torch", "torch"),
        (FMA | DEPTHWISE, "torch benchmark", "torch benchmark"),
    ],
    ids=str,
)
def test_a_list_that_was_asked_for_with_a_card_says_what_is_chosen(
    changes: dict[str, object], algorithm: str, expected: str
):
    row = dataclasses.replace(ROW, algorithm=algorithm, ranked_plans=LISTED, ranked_for="card", **changes)  # type: ignore[arg-type]
    assert names(row) == [expected]


@pytest.mark.parametrize("card", ["h100", "h200"])
def test_choices_ran_the_kernels_of_the_plan_that_the_list_says(card: str):
    work = [*SHAPE, *ARITHMETIC]
    every = pd.read_parquet(ROOT / "data" / card / "samples.parquet", columns=[*COLUMNS, "run"])
    every = every[every["kernels"].notna() & (every["run"] == every.groupby(work)["run"].transform("min"))]
    in_order = {text: json.dumps(json.loads(text), sort_keys=True) for text in every["kernels"].unique()}
    every = every.assign(kernels=every["kernels"].map(in_order))
    own = every.drop_duplicates([*work, "algorithm"]).set_index([*work, "algorithm"])["kernels"]
    ran = every[every["algorithm"].isin(choices.FIRST)]
    asked = pd.MultiIndex.from_frame(ran[work].assign(algorithm=choices.chosen(ran)))
    of_plan = own.reindex(asked).to_numpy(dtype=object)
    is_measured = pd.notna(of_plan)
    assert is_measured.sum() > 9_000
    np.testing.assert_array_equal(ran["kernels"].to_numpy(dtype=object)[is_measured], of_plan[is_measured])


@pytest.mark.parametrize("card", ["h100", "h200"])
def test_the_fourier_transforms_that_ran_are_those_that_lists_say(card: str):
    every = pd.read_parquet(ROOT / "data" / card / "samples.parquet", columns=COLUMNS)
    ran = every[every["algorithm"].isin(["guess", "torch"]) & every["kernels"].notna() & (every["dtype"] == "float32")]
    assert set(ran["ranked_for"]) == {"card"}
    is_said = choices.chosen(ran) == choices.FFT
    np.testing.assert_array_equal(is_said, ran["kernels"].str.contains("fft").to_numpy(bool))
    assert is_said.sum() > 10


@pytest.mark.parametrize(
    ("ranked", "implicit", "unfolded"),
    [
        ("67:k2=1;28:k2=4,k3=0;0", "plan:28:k2=4,k3=0", "plan:0"),
        ("0;67:k2=1;28:k2=4,k3=0", "plan:0", "plan:0"),
        ("67:k2=1;28:k2=4,k3=0", "plan:28:k2=4,k3=0", choices.UNFOLDED),
        ("67:k2=1;2:k2=0", "plan:28", choices.UNFOLDED),
        (None, "implicit gemm", "gemm"),
    ],
)
def test_algorithms_by_name_run_the_first_of_their_engines(ranked: str | None, implicit: str, unfolded: str):
    rows = [dataclasses.replace(ROW, algorithm=name, ranked_plans=ranked) for name in ("implicit gemm", "gemm")]
    assert names(*rows) == [implicit, unfolded]


@pytest.mark.parametrize(("dtype", "expected"), [("float16", "plan:0"), ("float32", "plan:28")])
def test_engine_28_computes_no_dilated_convolution_in_16_bits(dtype: str, expected: str):
    dilated = dataclasses.replace(ROW, algorithm="implicit gemm", dilation="2x2", dtype=dtype, ranked_plans="67:k2=1")
    assert names(dilated) == [expected]


@pytest.mark.parametrize("card", ["h100", "h200"])
def test_the_kernels_that_ran_are_those_of_the_engines_that_are_said(card: str):
    read = pd.read_parquet(ROOT / "data" / card / "samples.parquet", columns=COLUMNS)
    ran = read[read["algorithm"].isin(choices.AMONG) & read["kernels"].notna() & read["ranked_plans"].notna()]
    found = pd.Series(choices.chosen(ran), ran.index).map(lambda name: KERNELS_OF[":".join(name.split(":")[:2])])
    right = [any(each in text for each in names) for names, text in zip(found, ran["kernels"], strict=True)]
    assert len(right) > 5_000
    assert all(right)


def test_a_plan_is_learned_from_what_chose_it_too():
    rows = [dataclasses.replace(ROW, algorithm=name) for name in ("guess", "direct", "torch")]
    found = choices.with_plans(frame_of(rows))
    assert [*found["algorithm"]] == ["guess", "direct", "torch", FIRST, FIRST]
    pd.testing.assert_series_equal(found["mean_ms"][3:], found["mean_ms"][[0, 2]], check_index=False)


def test_a_fourier_transform_in_the_list_is_learned_from_what_chose_it():
    row = dataclasses.replace(ROW, algorithm="guess", ranked_plans=LISTED, ranked_for="card", **FMA)  # type: ignore[arg-type]
    ran = dataclasses.replace(row, kernels=json.dumps({"void fft2d_r2c_32x32<float>": 1}))
    assert [*choices.with_plans(frame_of([ran]))["algorithm"]] == ["guess", choices.FFT]


@pytest.mark.parametrize(("listed", "is_learned"), [("1;3:k11=2", True), ("1;33:k11=2", False)])
def test_a_search_that_took_a_fourier_transform_is_learned_where_its_list_has_it(listed: str, is_learned: bool):
    row = dataclasses.replace(ROW, algorithm=choices.SEARCH, ranked_plans=listed, ranked_for="card", **FMA)  # type: ignore[arg-type]
    ran = dataclasses.replace(row, kernels=json.dumps({"void fft2d_r2c_32x32<float>": 1}))
    assert (choices.SEARCHED in {*choices.with_plans(frame_of([ran]))["algorithm"]}) == is_learned


def test_a_choice_that_ran_a_fourier_transform_is_no_sample_of_the_plan_in_the_list():
    kernels = [json.dumps({name: 1}) for name in ("void fft2d_r2c_32x32<float>", "sm80_xmma_fprop_implicit_gemm")]
    rows = [dataclasses.replace(ROW, algorithm="guess", kernels=each) for each in kernels]
    assert [*choices.with_plans(frame_of(rows))["algorithm"]] == ["guess", "guess", FIRST]
