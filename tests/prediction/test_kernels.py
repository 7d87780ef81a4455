"""Estimate by kernels: which one runs is guessed from the layers around, and each has times of its own."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from fakes.drawn_samples import drawn, frame_of
from fakes.left_out import assert_missed_as_by

from convscope.prediction import document, predictor
from convscope.prediction.features import features
from convscope.prediction.learners import kernels, process
from convscope.prediction.learners.process import Process
from convscope.prediction.predictor import Predictor
from convscope.prediction.shapes.sizes import Floats

SLOW, FAST = json.dumps({"im2col4d_kernel": 1}), json.dumps({"implicit_gemm": 1, "Memset (Device)": 2})


def samples(count: int, seed: int = 0) -> pd.DataFrame:
    """Return samples of one algorithm that takes a slow kernel for many filters of large images."""
    rows = predictor.usable(frame_of(drawn(count, seed=seed)), "time")
    return rows.assign(kernels=np.where(is_slow(rows), SLOW, FAST))


def is_slow(rows: pd.DataFrame) -> pd.Series[bool]:
    return (rows["out_channels"] > 60) & (rows["in_height_px"] > 40)


def wanted(frame: pd.DataFrame) -> Floats:
    values = features(frame, {}).values
    return (0.3 * values["log_filters"] + 0.2 * values["log_batch"] * is_slow(frame) + 1.5 * is_slow(frame)).to_numpy(
        float
    )


def fitted(frame: pd.DataFrame) -> Process:
    return process.fit(features(frame, {}), frame, wanted(frame), {}).process


def missed(frame: pd.DataFrame, asked: pd.DataFrame) -> float:
    found = fitted(frame).predict(features(asked, {}), asked)
    return float(np.abs(wanted(asked) - found).mean())


def test_with_the_kernels_that_ran_less_is_missed_of_layers_whose_kernels_nobody_knows():
    frame, asked = samples(400), samples(100, seed=9).assign(kernels=None)
    assert missed(frame, asked) < 0.6 * missed(frame.assign(kernels=None), asked)


@pytest.mark.parametrize(("most", "at_once"), [(10_000, process.ROWS), (310, process.ROWS), (310, 50)])
def test_what_is_missed_of_rows_left_out_is_what_a_fit_without_them_misses(
    most: int, at_once: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(process, "ROWS", at_once)
    frame = samples(400)
    monkeypatch.setattr(process, "NOISES", (0.01,))
    monkeypatch.setattr(process, "MOST", most)
    alone = fitted(frame)
    known = next(iter(alone.kernels.values()))
    monkeypatch.setattr(process, "share", lambda one, other: known.share)
    monkeypatch.setattr(process, "MOST", 2 * most)
    more = np.random.default_rng(0).normal(0, 0.2, len(frame))
    more -= more[process.thinned(frame, most)].mean()  # so that the mean of all points is that of half
    assert_missed_as_by(alone, frame, np.append(wanted(frame), wanted(frame) + more))


def test_kernels_that_say_nothing_have_no_share_and_those_of_several_algorithms_are_not_looked_at():
    frame = samples(400)
    drawn_by_chance = np.random.default_rng(0).choice([SLOW, FAST], len(frame))
    assert fitted(frame).kernels
    for other in (
        frame.assign(kernels=SLOW),
        frame.assign(kernels=None),
        frame.drop(columns="kernels"),
        frame.head(process.ENOUGH - 1),
    ):
        assert not fitted(other).kernels
    shares = [each.share for each in fitted(frame.assign(kernels=drawn_by_chance)).kernels.values()]
    assert all(share <= 0.3 for share in shares)


def test_kernels_that_run_together_are_one_and_rare_ones_are_one():
    both = json.dumps({"winograd": 1, "transform": 2, "Memset (Device)": 1})
    other_order = json.dumps({"transform": 2, "winograd": 1})
    texts = ["transform"] * 3 + [both, other_order, other_order] + ["rare", "rare", None, ""]
    found = kernels.numbers(pd.DataFrame({"kernels": texts}))
    assert found.tolist() == [1, 1, 1, 2, 2, 2, 0, 0, 0, 0]
    assert kernels.numbers(pd.DataFrame({"algorithm": ["gemm"] * 3})).tolist() == [0, 0, 0]


def test_a_predictor_is_kept_with_them(tmp_path: Path):
    frame = samples(400)
    frame["mean_ms"] *= np.where(is_slow(frame), 4.0, 1.0)
    made = predictor.fit(frame, "time", {})
    document.write(tmp_path / "predictor.json", made, frame)
    read = document.read(tmp_path / "predictor.json")
    assert isinstance(read, Predictor)
    assert made.process is not None
    assert made.process.kernels
    assert read.process == made.process
    asked = samples(50, seed=9)
    np.testing.assert_array_equal(read.predict(asked).middle, made.predict(asked).middle)


def test_a_group_that_is_left_out_as_a_whole_is_missed_as_by_its_mean():
    frame = samples(400)
    every = np.ones(len(frame), dtype=bool)
    rests = process.fit(features(frame, {}), frame, wanted(frame), {}, [(every, every)]).rests[0]
    np.testing.assert_allclose(rests, wanted(frame) - wanted(frame).mean(), atol=1e-6)
