"""Splits: nothing that is held back is learned from, and a split does not depend on the order of the rows."""

from __future__ import annotations

import dataclasses

import numpy as np
import pandas as pd
import pytest
from fakes.drawn_samples import CARDS, drawn, frame_of

from convscope.dataset import splits
from convscope.dataset.samples import SHAPE, SPLITS
from convscope.errors import InputError

FRAME = frame_of(drawn(200, tuple(CARDS), ("gemm", "winograd")))


def test_the_kinds_that_are_named_are_those_that_there_are():
    assert tuple(splits._LABELS) == SPLITS


@pytest.mark.parametrize("kind", SPLITS)
def test_every_kind_holds_back_some_and_not_all(kind: str):
    found = list(splits.splits(FRAME, kind))
    assert found
    for split in found:
        assert 0 < split.held_back.sum() < len(FRAME)


@pytest.mark.parametrize("kind", SPLITS)
def test_the_same_rows_are_held_back_in_another_order(kind: str):
    order = np.random.default_rng(1).permutation(len(FRAME))
    mixed = FRAME.iloc[order].reset_index(drop=True)
    for one, other in zip(splits.splits(FRAME, kind), splits.splits(mixed, kind), strict=True):
        assert one.name == other.name
        np.testing.assert_array_equal(one.held_back[order], other.held_back)


def test_a_layer_stands_on_one_side_on_every_card_and_by_every_algorithm():
    (split,) = splits.splits(FRAME, "layer")
    shapes = splits.joined(FRAME, SHAPE)
    assert not {*shapes[split.held_back]} & {*shapes[~split.held_back]}
    assert 0.1 < split.held_back.mean() < 0.3


def test_each_card_and_each_family_is_held_back_in_turn():
    assert [split.name for split in splits.splits(FRAME, "gpu")] == [f"gpu {name}" for name in sorted(CARDS)]
    assert [split.name for split in splits.splits(FRAME, "family")] == [
        "family densenet",
        "family resnet",
        "family vgg",
    ]
    for split in splits.splits(FRAME, "gpu"):
        assert FRAME["gpu_name"][split.held_back].nunique() == 1


@pytest.mark.parametrize("kind", ["layer", "family", "size"])
def test_a_shape_that_is_held_back_is_learned_nowhere(kind: str):
    twice = pd.concat([FRAME, FRAME.assign(family=np.roll(FRAME["family"], 6), model="another")], ignore_index=True)
    for split in splits.splits(twice, kind):
        shapes = splits.joined(twice, SHAPE)
        assert not {*shapes[split.held_back]} & {*shapes[split.learned]}
        assert not (split.held_back & split.learned).any()
        assert split.learned.any()


def test_a_card_that_is_held_back_has_its_shapes_learned_on_others():
    for split in splits.splits(FRAME, "gpu"):
        assert (split.learned == ~split.held_back).all()


def test_a_size_is_the_same_shape_as_an_integer_and_as_a_float():
    as_floats = FRAME.astype({"in_height_px": float, "groups": float})
    assert (splits.joined(as_floats, SHAPE) == splits.joined(FRAME, SHAPE)).all()


def test_the_smallest_and_the_largest_fifth_are_held_back():
    small, large = splits.splits(FRAME, "size")
    work = FRAME["batch_size"] * FRAME["in_channels"] * FRAME["out_channels"] * FRAME["in_height_px"] ** 2
    assert work[small.held_back].max() <= work[~small.held_back].min()
    assert work[large.held_back].min() >= work[~large.held_back].max()


def test_one_card_alone_cannot_be_held_back():
    alone = FRAME[FRAME["gpu_name"] == "Tesla T4"].reset_index(drop=True)
    with pytest.raises(InputError, match="split by gpu: all samples are of Tesla T4: at least two are needed"):
        list(splits.splits(alone, "gpu"))


def test_samples_without_a_family_cannot_be_divided_by_it():
    rows = [dataclasses.replace(row, family=None) for row in drawn(3)]
    with pytest.raises(InputError, match="split by family: no sample names one: choose another split"):
        list(splits.splits(frame_of(rows), "family"))


def test_samples_of_no_family_are_learned_but_for_shapes_that_are_held_back():
    drawn_too = FRAME.iloc[: len(FRAME) // 2].assign(family=None)
    own = FRAME.iloc[len(FRAME) // 4 :]  # of a quarter of all, the family is known besides
    both = pd.concat([drawn_too, own], ignore_index=True)
    is_drawn = both["family"].isna().to_numpy()
    shapes = pd.Series(splits.joined(both, SHAPE))
    found = list(splits.splits(both, "family"))
    assert [each.name for each in found] == ["family densenet", "family resnet", "family vgg"]
    for split in found:
        assert not (split.held_back & is_drawn).any()
        shared = shapes.isin(shapes[split.held_back]).to_numpy() & is_drawn
        assert shared.any()
        assert not (split.learned & shared).any()
        assert split.learned[is_drawn & ~shared].all()


def test_rows_of_one_label_are_in_one_fold():
    labels = splits.labels(FRAME, "layer")
    numbers = splits.folds(labels)
    assert sorted({*numbers}) == [0, 1, 2, 3, 4]
    assert all(len({*numbers[labels == label]}) == 1 for label in {*labels})
    assert sorted({*splits.folds(splits.labels(FRAME, "gpu"))}) == [0, 1, 2]
