"""Costs of the parts of a call: they are found where they were put in, and wider groups stand in for narrow ones."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from fakes.drawn_samples import CARDS, drawn, frame_of
from scipy.optimize import nnls

from convscope.prediction import document, predictor
from convscope.prediction.features import Features, features
from convscope.prediction.learners import costs
from convscope.prediction.shapes.sizes import Floats

PLAN, OTHER = "plan:62:k2=5,k13=1,k27=1,k28=1", "plan:62:k2=0,k13=1,k27=1,k28=1"
PUT_IN = {PLAN: {"call": 0.004, "whole waves": 1.6, "output": 1.2}, OTHER: {"call": 0.004, "whole waves": 1.3}}
EACH = "float32 fp32 nchw"


def samples(count: int, plan: str = PLAN, seed: int = 0) -> pd.DataFrame:
    return frame_of(dataclasses.replace(row, algorithm=plan) for row in drawn(count, ("NVIDIA H200",), seed=seed))


def times(frame: pd.DataFrame, given: Features) -> Floats:
    """Return the logarithm over the roofline of times that are the sums of what was put in."""
    took_ms = np.zeros(len(frame))
    for name, weights in PUT_IN.items():
        here = (frame["algorithm"] == name).to_numpy()
        took_ms[here] = sum(value * given.parts_ms[part].to_numpy()[here] for part, value in weights.items())
    found: Floats = np.log(took_ms / given.roofline_ms)
    return found


@pytest.fixture(autouse=True)
def card_of_drawn_samples(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(CARDS, "NVIDIA H200", (67.0, 4800.0, 132))


def test_costs_of_parts_are_found_and_hold_for_other_shapes():
    frame, others = samples(300), samples(200, seed=7)
    given, asked = features(frame, {}), features(others, {})
    found = costs.fit(given, frame, times(frame, given), by_parts=True)
    missed = found.predict(asked, others) - times(others, asked)
    assert np.quantile(np.abs(missed), 0.95) < 0.01


def test_few_odd_samples_change_little(monkeypatch: pytest.MonkeyPatch):
    frame = samples(300)
    given = features(frame, {})
    truth = times(frame, given)
    odd = truth - np.where(np.arange(300) % 10 == 0, 2.0, 0.0)  # every tenth takes a seventh of the time

    def missed() -> float:
        found = costs.fit(given, frame, odd, by_parts=True).predict(given, frame)
        return float(np.median(np.abs(found - truth)))

    assert missed() < 0.05
    with monkeypatch.context() as changed:
        changed.setattr(costs, "_counts", np.ones_like)  # least squares of relative errors
        assert missed() > 0.3


def test_a_plan_with_few_samples_has_the_costs_of_its_engine():
    alike = samples(400, OTHER, seed=5).query("in_channels % 8 == 0")
    assert len(alike) >= costs.FEWEST
    for count, is_learned in ((costs.FEWEST - 1, False), (costs.FEWEST, True)):
        frame = pd.concat([samples(300), alike.head(count)], ignore_index=True)
        given = features(frame, {})
        found = costs.fit(given, frame, times(frame, given), by_parts=True)
        assert any(OTHER in name for name in found.parts) == is_learned
        unknown = alike.assign(algorithm="plan:62:k2=4,k13=1,k27=1,k28=1")  # no sample of it
        of_others = {name: each for name, each in found.parts.items() if PLAN not in name}
        other = dataclasses.replace(found, parts=of_others)
        asked = features(unknown, {})
        np.testing.assert_array_equal(found.predict(asked, unknown), other.predict(asked, unknown))


def grouped(rows: pd.DataFrame, width: int, factor: int = 1) -> pd.DataFrame:
    """Return samples with four groups of `width` channels, and `factor` times as many filters."""
    return rows.assign(groups=4, in_channels=4 * width, out_channels=4 * width * factor, batch_size=8)


def missed_with_launches(each_ms: Mapping[tuple[str, str], float], learned: pd.DataFrame, asked: pd.DataFrame) -> float:
    """Return by how much calls are missed that take a launch more for each group, by plan and class of shapes."""

    def truth(rows: pd.DataFrame, given: Features) -> Floats:
        names = zip(rows["algorithm"], given.classes[0], strict=True)
        more_ms = given.parts_ms["groups"].to_numpy() * [each_ms.get(name, 0.0) for name in names]
        return np.log((0.004 + 1.6 * given.parts_ms["whole waves"].to_numpy() + more_ms) / given.roofline_ms)

    given, of_asked = features(learned, {}), features(asked, {})
    found = costs.fit(given, learned, truth(learned, given), by_parts=True)
    return float(np.median(np.abs(found.predict(of_asked, asked) - truth(asked, of_asked))))


def test_groups_of_a_kind_without_samples_cost_what_other_groups_of_their_engine_do():
    engine, other = "plan:70:k2=12,k18=1", "plan:23:k2=1"
    each_ms = {(engine, "eights"): 0.002, (engine, "powers"): 0.002, (other, "powers"): 0.05}
    learned = [samples(300, engine), grouped(samples(60, engine, 1), 24), grouped(samples(100, other, 2), 16, 2)]
    asked = grouped(samples(50, engine, 3), 16, 2)
    assert missed_with_launches(each_ms, pd.concat(learned, ignore_index=True), asked) < 0.05


def test_a_kind_of_groups_costs_the_same_by_engines_that_pack_them(monkeypatch: pytest.MonkeyPatch):
    other = "plan:22:k2=5,k13=1,k14=3"
    each_ms = {(PLAN, "eights"): 0.002, (PLAN, "powers"): 0.05, (other, "eights"): 0.002, (other, "powers"): 0.05}
    learned = [
        *(samples(300, name) for name in (PLAN, other)), grouped(samples(60, PLAN, 2), 16, 2),
        *(grouped(samples(60, name, 1), 24) for name in (PLAN, other)),
    ]  # fmt: skip
    frame, asked = pd.concat(learned, ignore_index=True), grouped(samples(50, other, 3), 16, 2)
    missed = missed_with_launches(each_ms, frame, asked)
    monkeypatch.setattr(costs, "PACKING_ENGINES", frozenset())
    assert missed < 0.25 < 0.75 < missed_with_launches(each_ms, frame, asked)


def test_what_is_said_of_a_row_does_not_follow_from_its_fold():
    frame = samples(300)
    given, number_of = features(frame, {}), np.arange(300) % 5
    truth = times(frame, given)
    said, smooth = costs.crossed(given, frame, truth, by_parts=True, number_of=number_of)
    assert np.median(np.abs(said - truth)) < 0.01
    np.testing.assert_array_equal(smooth, said)  # of plans that say their tile
    changed, _ = costs.crossed(given, frame, truth + np.where(number_of == 2, 1.0, 0.0), True, number_of)
    np.testing.assert_array_equal(changed[number_of == 2], said[number_of == 2])
    assert (changed[number_of != 2] != said[number_of != 2]).any()


def test_what_is_smooth_costs_the_rooflines_parts_where_no_tile_is_known():
    named = {"direct": False, "plan:28:k2=4": False, "plan:71": True, PLAN: True}
    frame = pd.concat([samples(60, name) for name in named], ignore_index=True)
    given = features(frame, {})
    took_ms = 0.004 + 1.6 * given.parts_ms["whole waves"].to_numpy() + 0.1 * given.parts_ms["call to pad input"]
    wanted = np.log(took_ms.to_numpy() / given.roofline_ms)
    found = costs.fit(given, frame, wanted, by_parts=True)
    said, smooth = (found.predict(given, frame, is_smooth) for is_smooth in (False, True))
    by_roofline = dataclasses.replace(found, parts={}).predict(given, frame)
    assert np.median(np.abs(said - wanted)) < 0.02
    assert {EACH, EACH + costs.BY_USUAL_TILE} <= {*found.parts}
    is_own = frame["algorithm"].map(named).to_numpy()
    np.testing.assert_array_equal(smooth, np.where(is_own, said, by_roofline))
    number_of = np.arange(len(frame)) % 5
    out = number_of == 3
    without = costs.fit(given, frame, wanted, True, ~out)
    for is_smooth, crossed in zip((False, True), costs.crossed(given, frame, wanted, True, number_of), strict=True):
        np.testing.assert_array_equal(crossed[out], without.predict(given.rows(out), frame[out], is_smooth))


def test_a_plan_with_enough_samples_has_costs_of_its_own():
    frame = pd.concat([samples(300), samples(60, OTHER, seed=5)], ignore_index=True)
    given = features(frame, {})
    found = costs.fit(given, frame, times(frame, given), by_parts=True)
    own = frame["algorithm"].to_numpy() == OTHER
    missed = found.predict(given, frame) - times(frame, given)
    assert np.median(np.abs(missed[own])) < 0.03


def test_a_narrower_group_says_nothing_farther_from_the_wider_one_than_of_what_it_learned():
    few = samples(400, OTHER, seed=6).query("in_channels % 8 == 0").head(2 * costs.FEWEST)
    frame = pd.concat([samples(300), few], ignore_index=True)
    given = features(frame, {})
    found = costs.fit(given, frame, times(frame, given), by_parts=True)
    asked = samples(400, OTHER, seed=9).query("in_channels % 8 == 0").reset_index(drop=True)
    of_asked = features(asked, {})
    wider = dataclasses.replace(found, parts={name: each for name, each in found.parts.items() if OTHER not in name})
    of_wider = wider.predict(of_asked, asked)
    apart, free = (
        np.exp(each.predict(of_asked, asked) - of_wider) for each in (found, dataclasses.replace(found, ratios={}))
    )
    [(least, most)] = (found.ratios[name] for name in found.parts if OTHER in name)
    is_narrow = of_wider > np.log(costs.FASTEST)
    assert is_narrow.sum() > 10
    assert least * (1 - 1e-9) <= apart[is_narrow].min() <= apart[is_narrow].max() <= most * (1 + 1e-9)
    assert free.min() < least < most < free.max()


def test_a_slow_plan_with_few_samples_costs_what_the_others_do_many_times(monkeypatch: pytest.MonkeyPatch):
    few, asked = (samples(200, OTHER, seed).query("in_channels % 8 == 0") for seed in (5, 7))  # in no narrower class
    frame = pd.concat([samples(300), few.head(2 * costs.FEWEST)], ignore_index=True)

    def slow(frame: pd.DataFrame) -> tuple[Features, Floats]:
        given = features(frame, {})
        took_ms = sum(value * given.parts_ms[part].to_numpy() for part, value in PUT_IN[PLAN].items())
        return given, np.log(took_ms * np.where(frame["algorithm"] == OTHER, 50, 1) / given.roofline_ms)

    def missed() -> float:
        (given, wanted), (of_asked, truth) = slow(frame), slow(asked)
        found = costs.fit(given, frame, wanted, by_parts=True)
        return float(np.median(np.abs(dataclasses.replace(found, ratios={}).predict(of_asked, asked) - truth)))

    assert missed() < 0.05
    monkeypatch.setattr(costs._Squares, "with_targets_over", lambda self, share: self)
    assert missed() > 0.2


def test_ratios_stay_in_a_document(tmp_path: Path):
    few = samples(400, OTHER, seed=5).query("in_channels % 8 == 0").head(2 * costs.FEWEST)
    frame = pd.concat([samples(300), few], ignore_index=True)
    given = features(frame, {})
    made = predictor.fit(frame.assign(mean_ms=np.exp(times(frame, given)) * given.roofline_ms), "time", {})
    document.write(tmp_path / "predictor.json", made, frame)
    again, asked = document.read(tmp_path / "predictor.json"), samples(400, OTHER, seed=9)
    said = made.predict(asked).middle
    np.testing.assert_array_equal(again.predict(asked).middle, said)
    free = dataclasses.replace(made.core, costs=dataclasses.replace(made.core.costs, ratios={}))
    assert (dataclasses.replace(made, core=free).predict(asked).middle != said).any()


def test_what_no_sample_is_like_costs_a_share_of_the_rooflines_time_at_least():
    frame = samples(100)
    given = features(frame, {})
    nothing = costs.Costs({costs.EVERY: {"call": 1.0}}, {EACH: {}})
    assert nothing.predict(given, frame) == pytest.approx(np.full(100, np.log(costs.FASTEST)))


def test_costs_of_the_rooflines_parts_are_by_arithmetic_and_stand_where_no_parts_are_known():
    frame = samples(150)
    frame.loc[frame.index[:20], "math"] = "tf32"
    given = features(frame, {})
    found = costs.fit(given, frame, times(frame, given), by_parts=False)
    assert found.parts == {}
    assert {*found.roofline} == {costs.EVERY, EACH}
    assert {part for weights in found.roofline.values() for part in weights} <= {"call", "operations", "bytes"}
    by_parts = costs.fit(given, frame, times(frame, given), by_parts=True)
    assert by_parts.roofline == found.roofline
    others = frame.assign(algorithm="gemm")
    asked = features(others, {})
    np.testing.assert_array_equal(by_parts.predict(asked, others), found.predict(asked, others))


@pytest.mark.parametrize("seed", range(20))
def test_weights_are_those_that_an_active_set_finds(seed: int):
    random = np.random.default_rng(seed)
    parts_ms = random.lognormal(sigma=2, size=(200, 9)) * (random.random((200, 9)) < 0.6)
    parts_ms[:, 7] = parts_ms[:, 1] * random.normal(1, 1e-3, size=200)
    parts_ms[:, 8] = 0
    took_ms = (parts_ms @ [0.3, 0.2, 0, 0, 1.5, -0.4, 0.1, 0, 1] + 0.1) * random.lognormal(sigma=0.4, size=200)
    took_ms = np.maximum(took_ms, 0.05)
    found = costs.relative_squares(parts_ms, took_ms)
    relative = parts_ms / took_ms[:, None]
    _, least = nnls(relative, np.ones(200))
    assert found.min() >= 0
    assert 0 in found[:8]
    assert np.linalg.norm(relative @ found - 1) <= least * (1 + 1e-6)


def test_where_exchanges_go_round_in_circles_an_active_set_finds_the_weights(monkeypatch: pytest.MonkeyPatch):
    random = np.random.default_rng(1)
    parts_ms, took_ms = random.lognormal(size=(60, 6)), random.lognormal(size=60)
    by_exchanges = costs.relative_squares(parts_ms, took_ms)
    monkeypatch.setattr(costs, "EXCHANGES", 0)
    assert costs.relative_squares(parts_ms, took_ms) == pytest.approx(by_exchanges, rel=1e-6, abs=1e-9)


def test_where_no_part_is_worth_a_weight_all_are_0():
    assert costs.relative_squares(np.array([[-1.0, -3.0], [-2.0, -1.0]]), np.array([1.0, 1.0])).tolist() == [0, 0]
