"""Votes of random trees: what scikit-learn's trees say, kept as text."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.ensemble import ExtraTreesClassifier

from convscope.prediction.learners import forest
from convscope.prediction.learners.forest import Forest


def points(count: int, seed: int = 0) -> tuple[forest.Floats, forest.Labels]:
    """Return points of two features that matter and two that do not, and of each one of three classes by thresholds."""
    found = np.random.default_rng(seed).normal(size=(count, 4)).round(1)
    return found, np.where(found[:, 0] > 0.35, 5, np.where(found[:, 1] > -0.25, 0, 2))


def test_votes_are_those_of_the_library_s_trees_and_the_same_each_time():
    known, labels = points(300)
    asked, _ = points(200, seed=1)
    found = Forest.fit(known, labels)
    own = ExtraTreesClassifier(forest.TREES, max_features=None, random_state=0).fit(known, labels)
    expected = np.zeros((200, 6))
    expected[:, own.classes_] = own.predict_proba(asked)
    np.testing.assert_allclose(found.votes(asked, 6), expected, atol=1e-12)
    assert Forest.fit(known, labels) == found


def test_thresholds_are_found_and_classes_that_no_point_has_get_no_vote():
    known, labels = points(400)
    asked, true = points(400, seed=2)
    votes = Forest.fit(known, labels).votes(asked, 6)
    assert (votes.argmax(axis=1) == true).mean() > 0.97
    np.testing.assert_allclose(votes.sum(axis=1), 1)
    assert (votes[:, [1, 3, 4]] == 0).all()


@pytest.mark.parametrize(
    ("tree", "expected"), [("=1", [1, 1, 1]), ("0<0.5 1<-2 =0 =1 =2", [0, 1, 2]), ("1<0 0<0 =3 =4 =5", [3, 5, 4])]
)
def test_a_tree_is_read_left_first(tree: str, expected: list[int]):
    asked = np.array([[0.0, -3.0], [0.5, 1.0], [0.6, -1.0]])
    assert Forest([tree]).votes(asked, 6).argmax(axis=1).tolist() == expected


def test_points_that_are_alike_but_for_their_class_are_of_the_one_that_is_more_often():
    known, labels = np.zeros((5, 2)), np.array([1, 2, 2, 2, 1])
    assert Forest.fit(known, labels).trees == ["=2"] * forest.TREES
