"""The least time of a convolution on a card: what no algorithm can leave out, counted by hand."""

from __future__ import annotations

import dataclasses

import pytest
from fakes.drawn_samples import drawn

from convscope.dataset.check import roofline
from convscope.dataset.check.roofline import Work
from convscope.dataset.samples import SampleRow
from convscope.gpus import CACHE_MIB, GPUS, Gpu, identify

BASE = dataclasses.replace(
    next(drawn(1)), batch_size=1, in_channels=1, out_channels=1, in_height_px=4, in_width_px=4, padding="0x0"
)
T4 = identify("Tesla T4")
MIB = 1 << 20


def row(**changes: object) -> SampleRow:
    return dataclasses.replace(BASE, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, Work(flops=2 * 4 * 9, read=16 + 9, written=4)),
        (
            {"batch_size": 2, "in_channels": 3, "out_channels": 5},
            Work(2 * 2 * 3 * 5 * 36, 2 * 3 * 16 + 15 * 9, 2 * 5 * 4),
        ),
        # Of 9 taps at 16 places, those in the image: 10 of 12 along each axis.
        ({"padding": "1x1"}, Work(2 * 10 * 10, 16 + 9, 16)),
        # 1×1 with stride 2 reads a quarter of the input.
        ({"kernel_size": "1x1", "stride": "2x2"}, Work(2 * 4, 4 + 1, 4)),
        # Only the middle tap touches an image of one pixel.
        ({"in_height_px": 1, "in_width_px": 1, "padding": "1x1"}, Work(2, 1 + 1, 1)),
        ({"in_channels": 4, "out_channels": 4, "groups": 4}, Work(2 * 4 * 36, 4 * 16 + 4 * 9, 4 * 4)),
        ({"dilation": "2x2", "padding": "1x1"}, Work(2 * 16, 16 + 9, 4)),
    ],
)  # fmt: skip
def test_work_is_what_touches_the_image(changes: dict[str, object], expected: Work):
    assert roofline.work(row(**changes), is_fast=False) == expected


@pytest.mark.parametrize(("kernel", "factor"), [("3x3", 9), ("1x1", 1), ("5x5", 25)])
def test_a_fast_algorithm_does_at_least_a_product_for_each_output_and_channel(kernel: str, factor: int):
    plain, fast = (
        roofline.work(row(kernel_size=kernel, in_height_px=9, in_width_px=9), each) for each in (False, True)
    )
    assert plain is not None
    assert fast is not None
    assert plain.flops == factor * fast.flops


def test_a_shape_without_output_or_sizes_has_no_work():
    assert roofline.work(row(in_height_px=2), is_fast=False) is None
    assert roofline.work(row(in_height_px=None, in_width_px=None), is_fast=False) is None


def test_the_floor_is_work_over_the_peaks_of_the_card():
    assert T4 is not None
    large = row(batch_size=32, in_channels=256, out_channels=256, in_height_px=56, in_width_px=56, padding="1x1")
    found = roofline.floor(large, T4, is_fast=False)
    assert found is not None
    taps = 3 * 56 - 2
    assert found.compute_ms == pytest.approx(2 * 32 * 256 * 256 * taps**2 / 8.1e9)
    given, filters, made = (4 * each for each in (32 * 256 * 56 * 56, 256 * 256 * 9, 32 * 256 * 56 * 56))
    assert found.memory_ms == pytest.approx((given + filters - 4 * MIB + made - 4 * MIB) / 320e6)


def test_what_fits_into_the_cache_need_not_cross_the_memory():
    assert T4 is not None
    found = roofline.floor(row(in_channels=64, out_channels=64, in_height_px=56, in_width_px=56), T4, is_fast=False)
    assert found is not None
    assert found.memory_ms == 0
    assert found.time_ms == found.compute_ms > 0


def test_arithmetic_decides_the_peak_and_a_consumer_card_may_clock_higher():
    hopper, consumer = identify("NVIDIA H200"), identify("NVIDIA GeForce RTX 4090")
    assert hopper is not None
    assert consumer is not None
    times = [
        roofline.floor(row(math=math, dtype=dtype), hopper, is_fast=False)
        for dtype, math in (("float32", "fp32"), ("float32", "tf32"), ("float16", "tf32"))
    ]
    flops = 72 / 1e9
    assert [each and each.compute_ms for each in times] == pytest.approx([flops / 67.0, flops / 494.5, flops / 989.5])
    found = roofline.floor(row(), consumer, is_fast=False)
    assert found is not None
    assert found.compute_ms == pytest.approx(flops / 82.6 / 1.25)


@pytest.mark.parametrize("gpu", GPUS, ids=lambda gpu: gpu.pattern)
def test_every_card_has_a_cache(gpu: Gpu):
    assert gpu.cache_mib == CACHE_MIB[gpu.label]
