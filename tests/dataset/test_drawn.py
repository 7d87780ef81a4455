"""Convolutions that no model has: what is drawn, in which groups, and samples that name no network."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from pathlib import Path

import pytest

import run_dataset
from convscope.dataset import samples
from convscope.dataset.collect import coverage, drawn, uses
from convscope.dataset.collect.request import BATCHES, SETTINGS, Collection
from convscope.errors import InputError

ASKED = Collection(
    device="cuda:0", models=(), sizes=(64,), batch_sizes=BATCHES, settings=tuple(SETTINGS), first=4, rounds=2, seed=0,
    group_shapes=48, group_bytes=2**33, energy_every=0, drawn=100,
)  # fmt: skip
EVERY = [drawn.convolution(number) for number in range(600)]


def test_the_convolution_of_a_number_is_the_same_everywhere():
    first, second = EVERY[:2]
    assert (first.in_channels, first.out_channels, first.size, first.kernel) == (3, 96, (110, 110), (2, 2))
    assert (second.in_channels, second.groups, second.size, second.stride) == (384, 384, (33, 40), (2, 2))


def test_each_is_a_convolution_of_the_usual_size():
    for layer in EVERY:
        elements = max(math.prod(layer.input), math.prod(layer.output))
        assert drawn.ELEMENTS_LEAST <= elements <= drawn.ELEMENTS_MOST
        assert layer.flops <= 2 * drawn.PRODUCTS_MOST
        assert min(layer.output) >= 1
        assert layer.in_channels % layer.groups == layer.out_channels % layer.groups == 0


def test_all_kinds_are_among_them():
    kinds = Counter(
        "dense" if each.groups == 1 else "depthwise" if each.groups == each.in_channels else "grouped" for each in EVERY
    )
    assert kinds == Counter(kind for each in EVERY for kind in drawn.DEFAULT_KINDS if kind in drawn.kinds_of(each))
    assert all(count > 90 for count in kinds.values())
    assert {each.kernel for each in EVERY} == {*drawn.DENSE, *drawn.GROUPED, *drawn.DEPTHWISE}
    assert {each.dilation for each in EVERY} == {(1, 1), (2, 2)}
    assert len({uses.key_of(each) for each in EVERY}) == len(EVERY)


def test_more_of_them_extend_a_collection():
    stratum = coverage.strata(ASKED)[-1]
    few, many = (coverage.shapes_of(dataclasses.replace(ASKED, drawn=count), stratum) for count in (70, 100))
    assert len(few) == 70
    assert few < many
    assert {key[0] for key in many} == {str(stratum.batch_size)}


def test_one_kind_of_them_is_the_first_ones_of_that_kind():
    layers = drawn.first(50, ("grouped",))
    assert layers == [each for each in EVERY if 1 < each.groups < each.in_channels][:50]
    stratum = coverage.strata(ASKED)[0]
    keys = coverage.shapes_of(dataclasses.replace(ASKED, drawn=50, drawn_kinds=("grouped",)), stratum)
    assert keys == {uses.key_of(each) for each in layers}
    assert drawn.first(100, drawn.DEFAULT_KINDS) == EVERY[:100]


def test_uneven_ones_are_the_grouped_ones_of_channels_that_fill_no_power_of_two():
    grouped = drawn.first(200, ("grouped",))
    uneven = [each for each in grouped if _is_uneven(each.in_channels // each.groups)]
    assert len(uneven) > 20
    assert drawn.first(len(uneven), (drawn.UNEVEN,)) == uneven


def test_images_are_those_of_three_channels_without_groups():
    images = drawn.first(30, (drawn.IMAGE,))
    assert {(each.in_channels, each.groups) for each in images} == {(3, 1)}
    assert [each for each in EVERY if each.in_channels == 3] == [each for each in images if each in EVERY]
    assert [drawn.kinds_of(each) for each in images[:2]] == [{"dense", "image", "patches"}, {"dense", "image", "large"}]


def test_narrow_ones_are_the_grouped_ones_of_at_most_eight_channels():
    narrow = [each for each in EVERY if 1 < each.in_channels // each.groups <= 8 and each.groups > 1]
    assert len(narrow) > 20
    assert drawn.first(len(narrow), (drawn.NARROW,)) == narrow


def test_patches_are_those_whose_stride_is_their_kernel():
    patches = [each for each in EVERY if each.kernel in ((2, 2), (4, 4)) and each.groups == 1]
    assert len(patches) > 10
    assert drawn.first(len(patches), (drawn.PATCHES,)) == patches


def test_large_ones_are_those_without_groups_of_the_most_work():
    large = [each for each in EVERY if each.groups == 1 and each.flops >= 2 * 2**28]
    assert len(large) > 30
    assert drawn.first(len(large), (drawn.LARGE,)) == large


def _is_uneven(channels: int) -> bool:
    return channels % 8 == 0 and not math.log2(channels).is_integer()


def test_squeezes_are_of_one_pixel_to_fewer_channels_or_more_and_drawn_apart():
    squeezes = drawn.first(200, (drawn.SQUEEZE,))
    assert squeezes == [drawn.squeeze(number) for number in range(200)]
    assert {(each.size, each.kernel, each.groups) for each in squeezes} == {((1, 1), (1, 1), 1)}
    assert 50 < sum(each.in_channels < each.out_channels for each in squeezes) < 150
    both = drawn.first(100, (drawn.SQUEEZE, *drawn.DEFAULT_KINDS))
    assert both[::2] == EVERY[:50]
    assert both[1::2] == squeezes[:50]


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (
            ["--drawn", "4", "--drawn-kinds", "round"],
            "--drawn-kinds round: choose some of dense grouped depthwise uneven narrow image patches large squeeze",
        ),
        (["--drawn", "4", "--drawn-kinds", "dense", "dense"], "--drawn-kinds dense dense: a kind stands twice"),
        (["--drawn-kinds", "dense"], "--drawn-kinds goes with --drawn N: say how many"),
    ],
)
def test_bad_kinds_are_one_line(flags: list[str], reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert run_dataset.main([*flags, "--device", "cpu", "--output-dir", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert reason in error


def test_a_collection_of_no_kind_is_refused():
    with pytest.raises(InputError, match="--drawn-kinds: choose some of dense grouped depthwise uneven narrow image"):
        dataclasses.replace(ASKED, drawn_kinds=())


def test_every_drawn_shape_is_in_one_group_and_of_no_model():
    found = [*coverage.groups(ASKED, set())]
    keys = [(group.stratum, key) for group in found for key in group.keys]
    assert len(keys) == len({*keys}) == 100 * len(coverage.strata(ASKED))
    assert {(use.model, use.input_size, use.layer) for group in found for use in group.uses} == {(None, None, None)}


def test_drawn_shapes_take_turns_with_those_of_models():
    first = next(coverage.groups(dataclasses.replace(ASKED, models=("vgg16", "resnet50"), sizes=(64, 96)), set()))
    assert {use.model for use in first.uses} == {None, "vgg16", "resnet50"}


@pytest.mark.long
def test_a_collection_of_drawn_shapes_names_no_network(tmp_path: Path):
    command = ["--drawn", "2", "--batch-sizes", "1", "--rounds", "2", "--device", "cpu", "--output-dir", str(tmp_path)]
    assert run_dataset.main(command) == 0
    found = samples.read([tmp_path / "samples.csv"])
    assert {*found["algorithm"]} == {"direct", "smm", "torch"}
    assert len(found) == 2 * 3
    assert found[["model", "family", "layer", "input_size"]].isna().all().all()
