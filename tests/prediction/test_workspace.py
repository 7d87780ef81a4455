"""Workspaces: none where there is none, exact where they follow a formula, intervals, and a document of them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from fakes.drawn_samples import frame_of
from fakes.workspaces import asked_of_cudnn, with_workspaces

from convscope.errors import InputError
from convscope.prediction import document, evaluation, workspace
from convscope.prediction.predictor import usable
from convscope.prediction.workspace import WorkspacePredictor

EVERY = ("gemm", "winograd", "direct", "fft")


def samples(count: int, algorithms: tuple[str, ...] = EVERY, seed: int = 0) -> pd.DataFrame:
    return frame_of(with_workspaces(count, algorithms, seed))


ASKED = samples(100, seed=9)


def of(name: str) -> tuple[pd.DataFrame, np.ndarray]:  # type: ignore[type-arg]
    frame = ASKED[ASKED["algorithm"] == name].reset_index(drop=True)
    return frame, frame["workspace_bytes"].to_numpy(float)


@pytest.fixture(scope="module")
def made() -> WorkspacePredictor:
    return workspace.fit(usable(samples(300), "workspace"), {})


def test_an_algorithm_that_never_needs_any_is_predicted_to_need_none(made: WorkspacePredictor):
    frame, _ = of("direct")
    found = made.predict(frame)
    assert made.estimate.always["direct"] is False
    assert not found.middle.any()
    assert not found.high.any()


@pytest.mark.parametrize("name", ["gemm", "winograd"])
def test_a_sum_of_sizes_is_found_to_the_byte(made: WorkspacePredictor, name: str):
    frame, truth = of(name)
    found = made.predict(frame)
    assert name in made.estimate.formulas
    both = (truth > 0) & (found.middle > 0)
    assert both.sum() >= 0.9 * (truth > 0).sum()
    np.testing.assert_array_equal(found.middle[both], truth[both])


def test_layers_without_a_workspace_are_told_from_those_with_one(made: WorkspacePredictor):
    frame, truth = of("winograd")
    assert ((made.predict(frame).middle > 0) == (truth > 0)).mean() > 0.95
    assert 0.2 < (truth > 0).mean() < 0.8


def test_elsewhere_the_interval_holds_what_it_claims(made: WorkspacePredictor):
    frame = samples(400, ("fft",), seed=5)
    truth = frame["workspace_bytes"].to_numpy(float)
    found = made.predict(frame, level=80)
    assert 100 * ((found.low <= truth) & (truth <= found.high)).mean() == pytest.approx(80, abs=8)
    assert (found.high < 3 * found.middle).all()


def test_half_of_what_an_interval_misses_is_on_each_side():
    draw = np.random.default_rng(0)
    truth = np.exp(draw.exponential(1.0, 2000))
    names = np.array(["fft"] * 2000, dtype=object)
    (below, above) = workspace.ends_of(np.ones(2000), truth, names)["some"]["fft"]["80"]
    assert below == 0.0
    assert above == pytest.approx(-np.log(0.1), rel=0.1)


def test_a_workspace_that_is_predicted_and_is_not_there_opens_the_lower_end_alone():
    truth = np.where(np.arange(200) % 5 == 0, 0.0, 100.0)
    ends = workspace.ends_of(np.full(200, 100.0), truth, np.array(["fft"] * 200, dtype=object))
    assert ends["some"]["fft"]["90"] == [None, 0.0]
    missed = workspace.ends_of(np.zeros(200), 100.0 - truth, np.array(["fft"] * 200, dtype=object))
    assert missed["none"]["fft"]["90"] == [0.0, 100.0]
    assert missed["none"]["fft"]["50"] == [0.0, 0.0]


def test_of_two_formulas_the_weights_are_those_of_the_one_that_most_follow():
    draw = np.random.default_rng(1)
    parts = np.exp(draw.normal(10, 2, (200, 3)))
    truth = parts @ np.array([0.0, 2.0, 3.0])
    truth[:20] *= 5
    assert workspace.weights_of(parts, truth) == pytest.approx([0.0, 2.0, 3.0], abs=1e-3)


def test_a_few_samples_make_no_formula():
    few = samples(4, ("gemm",)).assign(algorithm="winograd")
    made = workspace.fit(pd.concat([samples(120, ("gemm",)), few], ignore_index=True), {})
    assert made.estimate.formulas == ["gemm"]
    assert np.count_nonzero(made.estimate.weights["winograd"]) == 1


def test_an_algorithm_that_was_not_learned_has_no_prediction(made: WorkspacePredictor):
    found = made.predict(ASKED.iloc[:1].assign(algorithm="fft tiling"))
    assert np.isnan(found.middle).all()
    assert (found.low[0], found.high[0]) == (0.0, np.inf)
    assert "algorithm" in found.outside[0]


@pytest.mark.parametrize("algorithms", [EVERY, ("gemm", "direct")])
def test_a_predictor_of_workspaces_is_kept_and_read_again(algorithms: tuple[str, ...], tmp_path: Path):
    path, learned = tmp_path / "predictor.json", samples(120, algorithms)
    made = workspace.fit(learned, {})
    document.write(path, made, learned)
    read = document.read(path)
    assert isinstance(read, WorkspacePredictor)
    for name in ("middle", "low", "high"):
        np.testing.assert_array_equal(getattr(read.predict(ASKED), name), getattr(made.predict(ASKED), name))
    parts = json.loads(path.read_text())
    parts["estimate"].pop("weights")
    path.write_text(json.dumps({**parts, "sha256": document.digest(parts)}))
    with pytest.raises(InputError, match="is no predictor, or a damaged one"):
        document.read(path)


def test_samples_without_workspaces_are_refused_with_advice():
    frame = usable(samples(120).assign(workspace_bytes=np.nan), "workspace")
    for refused in (lambda: workspace.fit(frame, {}), lambda: [*evaluation.workspace_scores(frame, "layer", {})]):
        with pytest.raises(InputError, match=r"no sample has a workspace \(column workspace_bytes\) and sizes: run_"):
            refused()
    with pytest.raises(InputError, match="80 samples with sizes and a measured workspace: at least 100 are needed"):
        workspace.fit(samples(20), {})


@pytest.mark.parametrize("unit", ["rows", "size", "family"])
def test_intervals_of_workspaces_can_be_of_other_ways_to_hold_back(unit: str):
    assert workspace.fit(samples(120), {}, unit).unit == unit


def test_one_card_gives_no_intervals_for_another():
    with pytest.raises(InputError, match="intervals for another gpu need samples of at least two"):
        workspace.fit(samples(120), {}, "gpu")


def test_scores_are_of_whether_there_is_a_workspace_and_of_those_that_are_there():
    found = {each.group or each.by: each for each in evaluation.workspace_scores(samples(400), "layer", {})}
    assert {*found} == {"predictor", "nearest layer", *EVERY}
    gemm, direct, fft = found["gemm"], found["direct"], found["fft"]
    assert (gemm.right_pct, gemm.exact_pct, gemm.median_factor) == (100.0, 100.0, 1.0)
    assert (direct.none_pct, direct.right_pct, direct.both, direct.exact_pct, direct.fits_pct) == (
        *(100.0, 100.0, 0, None, 100.0),
    )
    assert fft.median_factor is not None
    assert 1.1 < fft.median_factor < 1.6
    exact, near = found["predictor"].exact_pct, found["nearest layer"].exact_pct
    assert exact is not None
    assert near is not None
    assert exact > near + 20


def test_workspaces_that_cudnn_asked_for_are_predicted():
    """Print and check the figures of docs/prediction.md: run with -s to see them."""
    found = {each.group or each.by: each for each in evaluation.workspace_scores(asked_of_cudnn(), "layer", {})}
    for each in found.values():
        print(each)
    every = found["predictor"]
    assert every.samples == 204
    assert every.right_pct > 97
    assert every.covered_pct is not None
    assert every.covered_pct > 85
