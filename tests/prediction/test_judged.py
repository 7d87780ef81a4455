"""Estimate by trees and a process: how much each counts, and that what searches tried is learned by nothing."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from fakes.drawn_samples import drawn, frame_of

from convscope.prediction import held_out, predictor
from convscope.prediction.features import features
from convscope.prediction.learners import judged


def test_what_was_tried_is_learned_by_nothing():
    frame = predictor.usable(frame_of(drawn(130, algorithms=("gemm", "winograd"), noise=0.05)), "time")
    of = np.flatnonzero(frame["algorithm"] == "gemm")[:40]
    every = pd.concat([frame, frame.iloc[of].assign(algorithm="odd")], ignore_index=True)
    parts, models = held_out.by(frame, "layer"), held_out.by_model(frame)
    given, wanted = features(every, {}), np.zeros(len(every))
    wanted[: len(frame)] = predictor.logarithms(frame, "time", features(frame, {}))
    found, _ = judged.judged(given, every, wanted, {}, "layer", parts, models, of)
    alone, search = judged.judged(
        features(frame, {}), frame, wanted[: len(frame)], {}, "layer", parts, models, np.zeros(0, dtype=np.intp)
    )
    assert not search.shares
    assert [each.text for each in found.core.folds] == [each.text for each in alone.core.folds]
    assert (found.core.costs, found.core.levels, found.shares) == (alone.core.costs, alone.core.levels, alone.shares)
    assert found.process is not None
    assert alone.process is not None
    assert found.process.points == alone.process.points
    np.testing.assert_allclose(found.process.weights, alone.process.weights, rtol=1e-6)
    np.testing.assert_allclose(found.missed, alone.missed, atol=1e-9)
    np.testing.assert_allclose(found.far, alone.far, atol=1e-9)


def test_each_engine_has_a_share_of_its_own():
    engines = np.repeat(np.array(["plan:1", "plan:2", "plan:3"], dtype=object), (400, 400, 100))
    draw = np.random.default_rng(0)
    fine, rough = draw.normal(0, 0.02, 900), draw.normal(0, 0.3, 900)
    is_one = engines == "plan:1"
    found = judged._shares(engines, np.where(is_one, fine, rough), np.where(is_one, rough, fine))
    assert [*found] == [judged.EVERY, "plan:1", "plan:2", "plan:3"]
    assert (found["plan:1"], found["plan:2"]) == (pytest.approx(0, abs=0.1), pytest.approx(1, abs=0.1))
    asked = np.array(["plan:2", "plan:3", "plan:4"], dtype=object)
    expected = [found["plan:2"], found["plan:3"], found[judged.EVERY]]
    np.testing.assert_array_equal(judged.of_rows(found, asked), expected)
    np.testing.assert_array_equal(judged.of_rows({}, asked), np.zeros(3))
    near = np.array([1.0, 1.0, np.nan])
    both = judged.both(judged.of_rows(found, asked), np.zeros(3), near)
    np.testing.assert_array_equal(both, [expected[0], expected[1], 0.0])


def test_an_engine_with_few_rows_has_a_share_of_its_own_where_they_tell_enough():
    fine, rough = np.full(1000, 0.01), np.full(1000, 0.02)
    for count, missed, expected in ((3, 0.02, 0.0), (3, 2.0, 1.0), (95, 0.02, 0.0), (112, 0.02, 1.0)):
        engines = np.array(["few"] * count + ["many"] * (1000 - count), dtype=object)
        is_few = engines == "few"
        trees = np.where(is_few, missed, fine)
        shares = judged._shares(engines, trees, np.where(is_few, 0.0, rough))
        assert shares == {judged.EVERY: 0.0, "few": expected, "many": 0.0}


def test_an_engine_that_no_process_knows_has_none_of_it():
    engines, nothing = np.array(["one"] * 10, dtype=object), np.full(10, np.nan)
    assert judged._shares(engines, np.zeros(10), nothing) == {judged.EVERY: 0.0}
