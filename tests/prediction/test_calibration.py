"""Calibration: the layers that are chosen are spread, and a correction is what a refit would give."""

from __future__ import annotations

import numpy as np
import pytest

from convscope.prediction import calibration

DRAW = np.random.default_rng(0)
PLANE = DRAW.normal(size=(300, 3))
MISSED = 0.3 * np.sin(PLANE[:, 0]) + 0.2 * PLANE[:, 1] + 0.5


def test_a_correction_finds_what_is_missed_smoothly():
    rows = calibration.chosen(PLANE, 60)
    found = calibration.fit(PLANE[rows], MISSED[rows])
    others = np.setdiff1d(np.arange(300), rows)
    left = MISSED[others] - found.predict(PLANE[others])
    assert np.abs(left).mean() < 0.03
    assert np.abs(MISSED[others] - MISSED[rows].mean()).mean() > 0.15


def test_a_correction_of_nothing_is_nothing():
    found = calibration.fit(PLANE[:50], np.zeros(50))
    assert found.predict(PLANE) == pytest.approx(np.zeros(300), abs=1e-9)


def test_far_from_all_that_was_measured_it_is_the_mean():
    found = calibration.fit(PLANE[:50], MISSED[:50])
    assert found.predict(np.full((1, 3), 1e6))[0] == pytest.approx(MISSED[:50].mean())


def test_its_rests_are_those_of_a_process_without_the_row():
    noisy = MISSED[:40] + DRAW.normal(0, 0.05, 40)
    found = calibration.fit(PLANE[:40], noisy)
    points, weights = np.array(found.points), np.array(found.weights)
    # The same process without row 7: weights of the others from the kernel that was fitted.
    likeness = np.exp(-((points[:, None] - points[None]) ** 2).sum(axis=2) / (2 * found.length**2))
    # noise over scale, from any row: (K + r I) weights = missed - mean
    ratio = ((noisy - found.mean) - likeness @ weights) @ weights / (weights @ weights)
    others = np.delete(np.arange(40), 7)
    inner = likeness[np.ix_(others, others)] + ratio * np.eye(39)
    without = found.mean + likeness[7, others] @ np.linalg.solve(inner, noisy[others] - found.mean)
    assert found.rests[7] == pytest.approx(noisy[7] - without, rel=1e-4)


def test_chosen_layers_are_different_ascending_and_spread():
    rows = calibration.chosen(PLANE, 25)
    assert len(rows) == len({*rows.tolist()}) == 25
    assert rows.tolist() == sorted(rows.tolist())
    distance = np.sqrt(((PLANE[:, None] - PLANE[rows][None]) ** 2).sum(axis=2)).min(axis=1)
    drawn = np.sqrt(((PLANE[:, None] - PLANE[:25][None]) ** 2).sum(axis=2)).min(axis=1)
    assert distance.mean() < drawn.mean()


def test_no_more_layers_are_chosen_than_differ():
    assert len(calibration.chosen(np.repeat(PLANE[:3], 5, axis=0), 10)) == 3
