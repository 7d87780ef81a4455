"""Estimate of a target: what belongs to a card's clocks, to a card and to a shape is found where it was put in."""

from __future__ import annotations

import dataclasses

import numpy as np
import pandas as pd
import pytest
from fakes.drawn_samples import CARDS, drawn, frame_of

from convscope.dataset import splits
from convscope.dataset.samples import SHAPE, WORK
from convscope.dataset.splits import joined
from convscope.errors import InputError
from convscope.prediction.features import features
from convscope.prediction.learners import core, costs
from convscope.prediction.shapes.sizes import Floats


def samples(count: int, knack: float) -> pd.DataFrame:
    return frame_of(drawn(count, tuple(CARDS), noise=0.01, knack=knack, seed=3))


def wanted(frame: pd.DataFrame, lost_headroom: float = 0.0) -> Floats:
    given = features(frame, {})
    found: Floats = np.log(frame["mean_ms"].to_numpy() / given.roofline_ms) + lost_headroom * given.headroom
    return found


def test_a_lost_share_of_the_clocks_is_found():
    frame = samples(150, 0.0)
    given = features(frame, {})
    without, with_loss = (core.fit(given, frame, wanted(frame, lost), is_linear=False).core for lost in (0.0, 0.5))
    assert with_loss.headroom_share - without.headroom_share == pytest.approx(0.5, abs=0.1)


def test_the_knack_of_a_shape_is_carried_to_a_card_that_was_not_learned():
    frame = samples(250, 0.3)
    there = (frame["gpu_name"] != "Tesla T4").to_numpy()
    given, truth = features(frame, {}), wanted(frame)
    found = core.fit(given.rows(there), frame[there], truth[there]).core
    here = frame[~there]
    missed = truth[~there] - found.predict(given.rows(~there), here)
    without = missed + found.effects_of(here)
    assert np.std(missed) < 0.5 * np.std(without)
    assert {*found.effects} == {*joined(frame[there], WORK)}


def test_rests_are_of_folds_that_did_not_learn_the_shape():
    frame = samples(150, 0.3)
    found = core.fit(features(frame, {}), frame, wanted(frame))
    assert np.std(found.rests) > 0.2  # an estimate that had seen them would leave less than the knack of each


def test_a_cost_of_each_call_goes_on_below_the_learned_sizes():
    call_ms = 0.05
    frame = samples(400, 0.0)
    frame["mean_ms"] += call_ms
    given, truth = features(frame, {}), wanted(frame)
    small = given.roofline_ms < np.quantile(given.roofline_ms, 0.2)
    learned = given.rows(~small), frame[~small], truth[~small]
    of_roofline = core.fit(*learned, is_linear=False).core.costs.roofline[costs.EVERY]
    assert of_roofline["call"] == pytest.approx(call_ms, rel=0.5)  # waves of small layers cost too
    found = core.fit(*learned).core
    missed = truth[small] - found.predict(given.rows(small), frame[small])
    stays = np.median(truth[~small]) - truth[small]  # beyond what they learned, trees alone say what they said there
    assert np.median(np.abs(missed)) < 0.25
    assert np.median(np.abs(missed)) < 0.25 * np.median(np.abs(stays))


def test_one_card_has_neither_an_offset_nor_effects():
    frame = samples(120, 0.1)
    frame = frame[frame["gpu_name"] == "Tesla P4"].reset_index(drop=True)
    found = core.fit(features(frame, {}), frame, wanted(frame)).core
    assert found.offsets == {"Tesla P4": 0.0}
    assert found.effects == {}
    assert found.headroom_share == 0.0


@pytest.mark.parametrize("truth", [0.0, 0.5, 0.9])
def test_agreement_within_groups_is_estimated(truth: float):
    draw = np.random.default_rng(0)
    groups = np.repeat(np.arange(2000), draw.integers(1, 5, 2000)).astype(object)
    common = draw.normal(0, np.sqrt(truth), 2000)[groups.astype(int)]
    values = common + draw.normal(0, np.sqrt(1 - truth), len(groups))
    assert core.intraclass_correlation(groups, values) == pytest.approx(truth, abs=0.04)


def test_groups_of_one_agree_in_nothing():
    assert core.intraclass_correlation(np.array(["a", "b", "c"], dtype=object), np.array([1.0, 2.0, 3.0])) == 0.0


def test_samples_of_one_shape_are_refused():
    frame = pd.concat([frame_of(drawn(1))] * 3, ignore_index=True)
    with pytest.raises(InputError, match="samples of 1 shapes are too few to hold some of them back: measure more"):
        core.fit(features(frame, {}), frame, np.zeros(len(frame)))


def test_costs_of_unknown_cards_and_of_energies_have_no_parts_of_how_calls_are_computed():
    frame = samples(120, 0.1).assign(algorithm="direct")
    given, truth = features(frame, {}), wanted(frame)
    assert given.has_parts.all()
    assert core.fit(given, frame, truth).core.costs.parts
    assert not core.fit(given, frame, truth, is_linear=False).core.costs.parts
    of_times = features(frame, {}, frame["mean_ms"].to_numpy())
    assert not core.fit(of_times, frame, truth).core.costs.parts


def test_what_is_smooth_begins_with_smooth_costs():
    frame = samples(120, 0.1).assign(algorithm="direct")
    given, truth = features(frame, {}), wanted(frame)
    found = core.fit(given, frame, truth)
    by_roofline = dataclasses.replace(found.core.costs, parts={})
    expected = by_roofline.predict(given, frame) + found.core.headroom(given)
    np.testing.assert_array_equal(found.core.smooth(given, frame), expected)
    every = np.ones(len(frame), dtype=np.bool_)
    np.testing.assert_array_equal(found.core.of_rows(given, frame, truth, every), expected)
    number_of = np.array([splits.part(shape) for shape in joined(frame, SHAPE)])
    _, smooth = costs.crossed(given, frame, truth, True, number_of)
    np.testing.assert_allclose(found.left, truth - found.core.headroom(given) - smooth)
    assert np.abs(found.core.costs.predict(given, frame) - by_roofline.predict(given, frame)).max() > 0.1


def test_rows_that_are_not_learned_have_rests_and_change_nothing():
    frame = pd.concat([samples(120, 0.1), samples(130, 0.1)[-40:].assign(algorithm="odd")], ignore_index=True)
    given, truth, learned = features(frame, {}), wanted(frame), frame["algorithm"] != "odd"
    learned[:40] = False
    found = core.fit(given, frame, truth, learned=learned.to_numpy())
    alone = core.fit(given.rows(learned.to_numpy()), frame[learned].reset_index(drop=True), truth[learned])
    assert [trees.text for trees in found.core.folds] == [trees.text for trees in alone.core.folds]
    assert found.core == dataclasses.replace(alone.core, folds=found.core.folds)
    np.testing.assert_array_equal(found.rests[learned], alone.rests)
    assert np.median(np.abs(found.rests[:40])) < 2 * np.median(np.abs(alone.rests))


def test_trees_of_some_folds_are_the_first_of_all_and_leave_other_rows_without_a_rest():
    frame = samples(150, 0.1)
    there = (frame["gpu_name"] != "Tesla T4").to_numpy()
    shapes = joined(frame, SHAPE)
    there &= np.isin(shapes, np.unique(shapes)[::2])
    new = ~np.isin(shapes, shapes[there])
    given, truth = features(frame, {}), wanted(frame)
    some, every = (
        core.fit(given.rows(there), frame[there], truth[there], folds=folds)
        for folds in (core.JUDGING_FOLDS, splits.PARTS)
    )
    assert [trees.text for trees in some.core.folds] == [trees.text for trees in every.core.folds[: core.JUDGING_FOLDS]]
    part = np.array([splits.part(shape) for shape in shapes[there]])
    np.testing.assert_array_equal(np.isnan(some.rests), part >= core.JUDGING_FOLDS)
    assert {*some.core.effects} == {*joined(frame[there][part < core.JUDGING_FOLDS], WORK)}
    estimates = [each.core.predict(given.rows(new), frame[new]) for each in (some, every)]
    assert np.median(np.abs(np.subtract(*estimates))) < 0.1


def test_few_folds_judge_new_work_of_cards_that_have_shapes_in_them():
    frame = samples(150, 0.1)
    part = np.array([splits.part(shape) for shape in joined(frame, SHAPE)])
    learned, new = frame[part < 4], frame[part == 4]
    assert core.judging_folds(learned, new) == core.JUDGING_FOLDS
    assert core.judging_folds(learned, frame) == splits.PARTS
    one = learned["gpu_name"] == "Tesla T4"
    assert core.judging_folds(learned[one | (part[part < 4] >= core.JUDGING_FOLDS)], new) == splits.PARTS
