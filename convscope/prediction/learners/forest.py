"""Random trees that tell classes of points apart: the share of the trees that say each class is its vote.

Each cut of a tree is the best of one at random by each feature, down to leaves of one class (extremely randomized
trees). cuDNN takes one kernel or another by thresholds of sizes, which cuts of trees find and smooth estimates blur.

Source: Geurts, Ernst and Wehenkel, Extremely randomized trees (2006).
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from sklearn.ensemble import ExtraTreesClassifier

from convscope.prediction.shapes.sizes import Floats

TREES = 20
DIGITS = 6
"""Significant digits of a cut."""
Labels = npt.NDArray[np.intp]


@dataclass(frozen=True)
class Forest:
    """A fitted forest.

    Attributes:
        trees: each as text, a word for each node, in the order of a walk that goes left first. `3<0.25` asks whether
            feature 3 is at most 0.25, which leads to the left; `=7` is a leaf of class 7.
    """

    trees: Sequence[str]

    @classmethod
    def fit(cls, points: Floats, labels: Labels) -> Forest:
        """Return the forest of these points, a row each, the same each time.

        Args:
            labels: the class of each point, a whole number.
        """
        found = ExtraTreesClassifier(TREES, max_features=None, random_state=0, n_jobs=1).fit(points, labels)
        return cls([_text(each.tree_, found.classes_) for each in found.estimators_])

    def votes(self, points: Floats, classes: int) -> Floats:
        """Return for each point the share of the trees that say each class, of so many."""
        found, rows = np.zeros((len(points), classes)), np.arange(len(points))
        for tree in self._read:
            found[rows, tree.classes_of(points)] += 1 / len(self._read)
        return found

    @functools.cached_property
    def _read(self) -> list[_Tree]:
        return [_Tree.read(text) for text in self.trees]


@dataclass(frozen=True)
class _Tree:
    """Nodes of one tree: the feature and value of its cut, where to go right, and the class of a leaf, else -1."""

    feature: Labels
    cut: Floats
    right: Labels
    leaf: Labels

    @classmethod
    def read(cls, text: str) -> _Tree:
        words = text.split()
        feature, cut, right = np.zeros(len(words), np.intp), np.zeros(len(words)), np.zeros(len(words), np.intp)
        leaf, waiting = np.full(len(words), -1), list[int]()
        for place, word in enumerate(words):
            if word.startswith("="):
                leaf[place] = int(word[1:])
                if waiting:  # the next word is on the right of the last node whose left is complete
                    right[waiting.pop()] = place + 1
            else:
                name, value = word.split("<")
                feature[place], cut[place] = int(name), float(value)
                waiting.append(place)
        return cls(feature, cut, right, leaf)

    def classes_of(self, points: Floats) -> Labels:
        place, rows = np.zeros(len(points), np.intp), np.arange(len(points))
        while len(rows):
            here = place[rows]
            is_left = points[rows, self.feature[here]] <= self.cut[here]
            place[rows] = np.where(self.leaf[here] >= 0, here, np.where(is_left, here + 1, self.right[here]))
            rows = rows[self.leaf[place[rows]] < 0]
        return self.leaf[place]


def _text(tree: object, classes: Labels) -> str:
    """Return the text of one of scikit-learn's trees, whose nodes are in the order of the text."""
    feature, cut, value = (getattr(tree, name) for name in ("feature", "threshold", "value"))
    of_leaf = classes[value[:, 0].argmax(axis=1)]
    words = [
        f"={name}" if number < 0 else f"{number}<{at:.{DIGITS}g}"
        for number, at, name in zip(feature, cut, of_leaf, strict=True)
    ]
    return " ".join(words)
