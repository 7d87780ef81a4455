"""Sums over a model: intervals that hold for models that were not learned, whether or not layers err alike."""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from fakes.drawn_samples import drawn, frame_of

from convscope import __main__ as program
from convscope.dataset import calls, splits
from convscope.dataset import samples as files
from convscope.dataset.calls import AT_ANY_BATCH, CallRow
from convscope.dataset.samples import SampleRow
from convscope.errors import InputError
from convscope.prediction import document, evaluation, held_out, predictor
from convscope.prediction.predictor import Predictor

LAYERS = 12
APART, ALIKE = (0.0, 0.25), (0.25, 0.0)
CARDS = {"Tesla T4": 1.0, "Tesla P4": 1.5}


def of_models(count: int, spread: tuple[float, float], seed: int = 0) -> pd.DataFrame:
    """Return samples of models with twelve layers, whose times differ by a factor of the model and one of the layer.

    Args:
        spread: standard deviations of the logarithms of both factors.
    """
    frame = frame_of(drawn(5 * count * LAYERS, noise=0.01, seed=seed))
    frame = frame[frame["batch_size"] == 1].head(count * LAYERS).reset_index(drop=True)
    draw = np.random.default_rng(seed)
    number = np.arange(len(frame)) // LAYERS
    factor = draw.normal(0, spread[0], count)[number] + draw.normal(0, spread[1], len(frame))
    names = [f"model {seed} {each}" for each in number]
    layers = [f"layer {each}" for each in np.arange(len(frame)) % LAYERS]
    times = frame["mean_ms"] * np.exp(factor)
    return frame.assign(model=names, layer=layers, input_size=224, family=names, mean_ms=times)


@functools.cache
def learned(spread: tuple[float, float]) -> Predictor:
    return predictor.fit(of_models(30, spread), "time", {})


@pytest.mark.parametrize("spread", [APART, ALIKE])
def test_the_interval_holds_for_models_that_were_not_learned(spread: tuple[float, float]):
    asked = of_models(100, spread, seed=7)
    keys = held_out.passes(asked)
    found = learned(spread).sums(asked, keys, level=80)
    truth = asked["mean_ms"].groupby(keys).sum()
    assert len(found) == 100
    assert found["learned"].all()
    assert 70 <= 100 * ((found["low"] <= truth) & (truth <= found["high"])).mean() <= 95


def test_it_is_narrower_than_added_ends_where_layers_err_apart_and_about_as_wide_where_they_err_alike():
    widths = {}
    for spread in (APART, ALIKE):
        asked = of_models(20, spread, seed=7)
        found = learned(spread).sums(asked, held_out.passes(asked))
        widths[spread] = float((np.log(found["high"] / found["low"]) / np.log(found["most"] / found["least"])).mean())
    assert widths[APART] < 0.6
    assert 0.8 < widths[ALIKE] < 1.3


def test_an_estimate_is_the_same_without_intervals_of_sums():
    frame = of_models(30, APART)
    made = predictor.fit(frame, "time", {}, calls=None)
    assert made.totals == {}
    with_sums, without = learned(APART).predict(frame), made.predict(frame)
    np.testing.assert_array_equal(without.middle, with_sums.middle)
    np.testing.assert_array_equal(without.high, with_sums.high)


def test_few_models_or_none_leave_the_ends_added_up():
    frame = of_models(30, APART)
    three = frame.assign(model=[f"model {int(name.split()[-1]) % 3}" for name in frame["model"]])
    for each in (three, frame.assign(model=None)):
        made = predictor.fit(each, "time", {})
        assert made.totals == {}
        found = made.sums(frame, held_out.passes(frame))
        assert not found["learned"].any()
        pd.testing.assert_series_equal(found["low"], found["least"], check_names=False)
        pd.testing.assert_series_equal(found["high"], found["most"], check_names=False)


@pytest.mark.parametrize("runs", [1, 20])
def test_where_too_little_is_left_beside_a_model_the_ends_are_added_up(runs: int):
    """Of one run too few rows are left, of twenty enough, but of shapes that an estimate would hold back together."""
    frame = of_models(30, APART).assign(model=[f"model {number % 5}" for number in range(30 * LAYERS)])
    big = (frame["model"] == "model 0").to_numpy()
    together = np.array([splits.part(shape) == 0 for shape in splits.labels(frame, "layer")])
    repeats = [frame[~big & together].assign(run=f"run {number}") for number in range(runs)]
    kept = pd.concat([frame[big], frame[big].assign(run="again"), *repeats], ignore_index=True)
    assert predictor.fit(kept, "time", {}).totals == {}


def test_a_level_that_models_are_too_few_for_has_the_ends_added_up():
    made = predictor.fit(of_models(18, ALIKE), "time", {})
    assert made.totals["90"] is not None
    assert made.totals["95"] is None
    asked = of_models(2, ALIKE, seed=7)
    assert not made.sums(asked, held_out.passes(asked), level=95)["learned"].any()


def test_a_card_with_a_correction_has_the_ends_added_up():
    made, there = learned(APART), of_models(3, APART, seed=5).assign(gpu_name="Tesla P4")
    corrected = made.corrected(there)
    assert made.sums(there, held_out.passes(there))["learned"].all()
    assert not corrected.sums(there, held_out.passes(there))["learned"].any()


def test_a_pass_is_of_one_run_and_a_layer_alone_is_none():
    frame = of_models(2, APART)
    both = pd.concat([frame, frame.assign(run="again"), frame.iloc[:1].assign(run="alone")], ignore_index=True)
    keys = held_out.passes(both)
    assert pd.Series(keys).value_counts().to_dict() == dict.fromkeys(keys[:-1], LAYERS) | {"": 1}
    assert len({*keys}) == 5


def test_evaluate_reports_how_often_sums_are_held():
    found = {each.by: each for each in evaluation.scores(of_models(60, APART), "time", ["layer"], {})}
    learned, added = found[evaluation.SUM_OF_LAYERS], found[evaluation.SUM_OF_LAYERS + evaluation.ADDED]
    assert learned.samples == added.samples > 20
    assert learned.covered_pct is not None
    assert learned.covered_pct > 75
    assert added.covered_pct is not None
    assert added.covered_pct >= learned.covered_pct
    assert learned.mape_pct < found[evaluation.PREDICTOR].mape_pct
    without = {each.by for each in evaluation.scores(of_models(60, APART).assign(model=None), "time", ["layer"], {})}
    assert not without & {evaluation.SUM_OF_LAYERS, evaluation.SUM_OF_LAYERS + evaluation.ADDED}


def of_passes(frame: pd.DataFrame, twice: str = "layer 3") -> list[CallRow]:
    """Return the layers of models as samples name them; one layer is called twice."""
    found = []
    for _, each in frame.groupby("model", sort=False):
        several = [*each.to_dict("records"), *each[each["layer"] == twice].to_dict("records")]
        for position, row in enumerate(several):
            own = {name: row[name] for name in ("model", "family", "input_size", "layer", *AT_ANY_BATCH)}
            found.append(CallRow(**own, position=position))
    return found


def test_a_sum_of_a_model_is_over_every_call_of_a_pass_that_was_measured_whole():
    frame = of_models(3, APART)
    known, first = of_passes(frame), frame["model"] == "model 0 0"
    again = frame[first & (frame["layer"] == "layer 3")].assign(run="again")
    again["mean_ms"] += 1.0
    lacking = frame[(frame["model"] != "model 0 1") | (frame["layer"] != "layer 5")]
    found = held_out.of_models(pd.concat([lacking, again], ignore_index=True), known, "mean_ms")
    sums = found.groupby("model")["mean_ms"].agg(["sum", "size"])
    assert [*sums.index] == ["model 0 0", "model 0 2"], "a layer of the other has no sample"
    assert [*sums["size"]] == [LAYERS + 1] * 2
    once, twice = frame[first]["mean_ms"].sum(), again["mean_ms"].iloc[0] - 0.5
    assert sums.loc["model 0 0", "sum"] == pytest.approx(once - (again["mean_ms"].iloc[0] - 1.0) + 2 * twice)
    assert found["key"].nunique() == 2
    assert {*found.columns} == {*frame.columns, "key", "position"}


def test_a_shape_that_samples_name_after_another_model_counts():
    frame = of_models(2, APART)
    shared = frame[frame["model"] == "model 0 0"].assign(model="model b", family="b")
    found = held_out.of_models(frame, [*of_passes(frame), *of_passes(shared)], "mean_ms")
    assert {*found["model"]} == {"model 0 0", "model 0 1", "model b"}
    assert held_out.of_models(frame, [], "mean_ms").empty


@pytest.mark.long
def test_the_interval_is_learned_from_whole_passes_where_their_calls_are_known():
    """Each half of a pass was measured in a run of its own; errors of its layers cancel out less than those of all."""
    frame = of_models(30, APART)
    halves = frame.assign(run=[f"run {number % 2}" for number in range(len(frame))])
    by_halves, by_all, alone = (
        predictor.fit(each, "time", {}, calls=known).totals["90"]
        for each, known in ((halves, []), (halves, of_passes(frame, twice="")), (frame, []))
    )
    assert by_all == pytest.approx(alone)
    assert by_all is not None
    assert by_halves is not None
    assert by_all < 0.85 * by_halves


def test_levels_that_whole_passes_are_too_few_for_are_learned_from_what_was_measured_together():
    frame = of_models(30, APART)
    few = [each for each in of_passes(frame, twice="") if int(each.model.split()[-1]) < 5]
    alone, both = (predictor.fit(frame, "time", {}, calls=known).totals for known in ([], few))
    assert both["80"] is not None
    assert both["80"] != alone["80"]
    assert both["90"] == alone["90"]


def test_where_all_kinds_have_all_shapes_those_that_name_them_are_held_out():
    frame = of_models(30, APART).assign(family=[f"kind {number % 3}" for number in range(30 * LAYERS)])
    known = of_passes(frame, twice="")
    every = [dataclasses.replace(call, model="all", family=f"kind {kind}") for call in known for kind in range(3)]
    for found in (held_out.by(frame, "family", every), held_out.by_model(frame, [*known, *every])):
        assert all((each.out == each.own).all() for each in found[:3])
    shared = pd.concat([frame.assign(family=f"kind {kind}") for kind in range(2)], ignore_index=True)
    with pytest.raises(InputError, match="intervals for another family need samples of at least two"):
        held_out.by(shared, "family")


@pytest.mark.parametrize("unit", ["family", "gpu"])
def test_intervals_of_sums_over_other_kinds_and_cards_are_of_whole_passes(unit: str):
    frame = of_models(30, APART)
    frame = frame.assign(family=[f"kind {int(name.split()[-1]) % 3}" for name in frame["model"]])
    known = of_passes(frame, twice="")
    cards = [frame.assign(gpu_name=name, mean_ms=factor * frame["mean_ms"]) for name, factor in CARDS.items()]
    both = predictor.usable(pd.concat(cards if unit == "gpu" else [frame], ignore_index=True), "time")
    halves = both.assign(run=[f"run {number % 2}" for number in range(len(both))])
    by_halves, by_all = (predictor.fit(halves, "time", {}, unit, calls).totals["80"] for calls in ([], known))
    assert by_all is not None
    assert by_halves is not None
    assert by_all != by_halves


def test_rows_may_be_numbered_with_gaps():
    frame = of_models(30, APART)
    gaps = frame.set_index(pd.Index(range(0, 3 * len(frame), 3)))
    assert predictor.fit(gaps, "time", {}).totals == learned(APART).totals


def test_a_shape_that_another_kind_has_too_is_held_out_with_both():
    frame = of_models(24, APART)
    frame = frame.assign(family=[f"kind {int(name.split()[-1]) % 3}" for name in frame["model"]])
    shared = frame[frame["model"] == "model 0 0"].assign(model="model b", family="kind 1")
    own = (frame["model"] == "model 0 0").to_numpy()
    found = held_out.by(frame, "family", [*of_passes(frame), *of_passes(shared)])
    assert [each.own[own].all() for each in found] == [True, False, False]
    assert [each.out[own].all() for each in found] == [True, True, False]
    assert [each.gone[own].all() for each in found] == [True, True, False]
    assert sum(each.own.astype(int) for each in found).tolist() == [1] * len(frame)
    assert {call.model for call in found[1].calls} == {"model b", *frame["model"][found[1].own]}
    assert [each.out[own].any() for each in held_out.by(frame, "family")] == [True, False, False]


@pytest.mark.long
def test_evaluate_reports_sums_over_whole_models_that_were_held_out():
    frame = of_models(40, APART)
    frame = frame.assign(family=[f"kind {int(name.split()[-1]) % 2}" for name in frame["model"]])
    known = of_passes(frame)
    found = [*evaluation.scores(frame, "time", ["family"], {}, calls=known)]
    sums = {(each.split, each.by): each for each in found if each.by.startswith(evaluation.SUM_OF_MODEL)}
    assert {split for split, _ in sums} == {"family kind 0", "family kind 1"}
    assert all(each.samples == 20 for each in sums.values())
    whole = [each for (_, by), each in sums.items() if by == evaluation.SUM_OF_MODEL + evaluation.ADDED]
    assert all((each.covered_pct or 0) > 80 for each in whole)
    assert all(each.mape_pct < 20 for each in whole)
    without = [*evaluation.scores(frame, "time", ["layer"], {})]
    assert not [each for each in without if each.by.startswith(evaluation.SUM_OF_MODEL)]


def test_evaluate_reads_the_calls_beside_the_samples_or_those_that_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    given: list[object] = []
    monkeypatch.setattr(evaluation, "scores", lambda *asked: given.append(asked[-1]) or [])
    files.write(tmp_path / "samples.csv", drawn(5))
    known = sorted(of_passes(of_models(2, APART)), key=lambda row: (row.model, row.position))
    command = ["predict", "evaluate", str(tmp_path / "samples.csv")]
    assert program.main(command) == 0
    calls.write(tmp_path / "calls.csv", known)
    assert program.main(command) == 0
    calls.write(tmp_path / "other.csv", known[:3])
    assert program.main([*command, "--calls", str(tmp_path / "other.csv")]) == 0
    assert given == [[], known, known[:3]]
    assert program.main([*command, "--calls", str(tmp_path / "none.csv")]) == 2
    assert "none.csv does not exist: name a file of calls" in capsys.readouterr().err


def test_a_document_keeps_the_intervals_of_sums(tmp_path: Path):
    made, path = learned(APART), tmp_path / "predictor.json"
    document.write(path, made, of_models(1, APART))
    read = document.read(path)
    assert isinstance(read, Predictor)
    assert read.totals == made.totals


def test_apply_says_the_interval_of_a_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    rows = [
        SampleRow(**{str(name): None if cell != cell else cell for name, cell in each.items()})
        for each in of_models(30, APART).to_dict("records")
    ]
    files.write(tmp_path / "samples.csv", rows)
    out = str(tmp_path / "predictor.json")
    assert program.main(["predict", "fit", str(tmp_path / "samples.csv"), "-o", out]) == 0
    capsys.readouterr()
    assert program.main(["predict", "apply", out, "--model", "alexnet", "--gpu", "Tesla T4", "--math", "fp32"]) == 0
    assert " (90 % of models); outside what was learned: 4 layers; what is no" in capsys.readouterr().out
