"""Features of a sample: the same work as the project counts, waves by hand, and what lacks a size."""

from __future__ import annotations

import dataclasses

import numpy as np
import pandas as pd
import pytest
from fakes.drawn_samples import drawn, frame_of

from convscope import gpus
from convscope.cudnn.shape import Geometry
from convscope.dataset.samples import SampleRow
from convscope.errors import InputError
from convscope.prediction import cards
from convscope.prediction.features import engine, features

ROW = dataclasses.replace(
    next(drawn(1)), gpu_name="NVIDIA H200", batch_size=2, in_channels=24, out_channels=36, in_height_px=30,
    in_width_px=21, kernel_size="3x5", stride="2x1", padding="1x2", dilation="1x2", groups=4, dtype="float16",
)  # fmt: skip
SHAPE = Geometry((2, 24, 30, 21), (36, 6, 3, 5), (1, 2), (2, 1), (1, 2), 4)


PLAIN = {
    "batch_size": 8, "in_channels": 64, "out_channels": 96, "in_height_px": 28, "in_width_px": 28, "kernel_size": "3x3",
    "stride": "1x1", "padding": "1x1", "dilation": "1x1", "groups": 1,
}  # fmt: skip
"""A convolution of 6,272 pixels."""


def frame(*rows: SampleRow) -> pd.DataFrame:
    return frame_of(rows)


def test_work_and_roofline_are_those_of_the_shape():
    found = features(frame(ROW), {})
    h200 = gpus.identify("NVIDIA H200")
    assert h200 is not None
    compute_ms = SHAPE.flops / h200.tflops("float16", "fp32") / 1e9
    memory_ms = SHAPE.minimum_bytes(2) / h200.bandwidth_gbps / 1e6
    assert found.roofline_ms == pytest.approx([max(compute_ms, memory_ms)])
    values = found.values.iloc[0]
    assert np.exp(values["log_flops"]) == pytest.approx(SHAPE.flops)
    assert np.exp(values["log_bytes"]) == pytest.approx(SHAPE.minimum_bytes(2))
    assert np.exp(values["log_terms"]) == pytest.approx(SHAPE.terms)
    assert np.exp(values["log_out_side"]) ** 2 == pytest.approx(np.prod(SHAPE.output_size))


def test_waves_are_tiles_of_all_groups_over_the_multiprocessors():
    values = features(frame(ROW), {}).values.iloc[0]
    pixels, filters = 2 * np.prod(SHAPE.output_size), 9
    tiles = np.ceil(pixels / 128) * np.ceil(filters / 64) * 4
    assert np.exp(values["waves_128x64"]) == pytest.approx(tiles / 132)
    assert values["last_wave_128x64"] == pytest.approx(np.ceil(tiles / 132) / (tiles / 132))
    assert values["tile_128x64"] == pytest.approx(np.ceil(pixels / 128) * 128 * 64 / (pixels * 9))


def test_channels_that_fill_their_units_wholly_are_seen():
    values = features(frame(ROW, dataclasses.replace(ROW, in_channels=32)), {}).values
    assert values["channels_in_8"].tolist() == [0.0, 1.0]  # 6 and 8 in a group
    assert values["channels_of_8"].tolist() == pytest.approx([8 / 6, 1.0])
    assert values["all_channels_in_8"].tolist() == [1.0, 1.0]  # 24 and 32 in all groups
    assert values["all_channels_in_16"].tolist() == [0.0, 1.0]
    assert values["all_filters_in_8"].tolist() == [0.0, 0.0]  # 36
    assert values["channels_in_powers"].tolist() == [0.0, 1.0]
    assert values["filters_in_powers"].tolist() == [0.0, 0.0]  # 9 in a group


def test_outputs_that_fill_vectors_and_transforms_are_seen():
    even = dataclasses.replace(ROW, in_height_px=31, in_width_px=25, kernel_size="3x3", stride="1x1", padding="1x1")
    wide = dataclasses.replace(even, in_height_px=32, in_width_px=66)
    values = features(frame(even, wide), {}).values
    width = Geometry((2, 24, 31, 25), (36, 6, 3, 3), (1, 1), (1, 1), (1, 2), 4).output_size[1]
    assert width == 23
    assert values["plane_in_8"].tolist() == [0.0, 1.0]  # 31 × 23 and 32 × 64
    assert values["plane_in_2"].tolist() == [0.0, 1.0]
    assert values["width_in_2"].tolist() == [0.0, 1.0]
    assert values["width_of_8"].tolist() == pytest.approx([24 / 23, 1.0])
    sides = np.array([31 + 2, 64 + 4])  # the outputs, and what a filter of three taps reaches, here two apart
    assert np.exp(values["log_transform"]).tolist() == pytest.approx([64, 128])
    assert values["transform_of_side"].tolist() == pytest.approx(([64, 128] / sides).tolist())


def test_a_sample_without_sizes_or_with_odd_ones_is_refused():
    with pytest.raises(InputError, match="1 sample without in_height_px: drop them"):
        features(frame(ROW, dataclasses.replace(ROW, in_height_px=None)), {})
    with pytest.raises(InputError, match="stride is '2': write height and width, 3x3"):
        features(frame(dataclasses.replace(ROW, stride="2")), {})
    with pytest.raises(InputError, match="its kernel is larger than its padded input"):
        features(frame(dataclasses.replace(ROW, kernel_size="99x1")), {})


def test_a_card_that_nobody_knows_has_to_be_described():
    unknown = frame(dataclasses.replace(ROW, gpu_name="NVIDIA X1"))
    with pytest.raises(InputError, match="no peaks are known of the GPU 'NVIDIA X1': give them by --card"):
        features(unknown, {})
    described = cards.parsed(["NVIDIA X1:fp32_tflops=10,fp16_tflops=40,bandwidth_gbps=500,sm_count=50"])
    found = features(unknown, described)
    assert found.roofline_ms == pytest.approx([max(SHAPE.flops / 40e9, SHAPE.minimum_bytes(2) / 500e6)])
    assert np.isnan(found.headroom).all()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("X1", "write 'NAME:fp32_tflops=9.3"),
        ("X1:fp32_tflops=fast,bandwidth_gbps=1,sm_count=1", "write 'NAME:"),
        ("X1:fp32_tflops=1,sm_count=1", "missing bandwidth_gbps"),
        ("X1:fp32_tflops=1,bandwidth_gbps=1,sm_count=1,l2=3", "unknown l2"),
        ("X1:fp32_tflops=1,bandwidth_gbps=0,sm_count=1", "bandwidth_gbps must be above 0"),
        (":fp32_tflops=1,bandwidth_gbps=1,sm_count=1", "missing name"),
    ],
)
def test_a_description_that_is_none_is_refused(text: str, expected: str):
    with pytest.raises(InputError, match=expected):
        cards.parsed([text])


def test_clock_headroom_is_of_base_and_boost():
    assert cards.card("Tesla T4", {}).headroom == pytest.approx(np.log(1590 / 585))
    assert cards.card("NVIDIA H200", {}).headroom is None


def test_of_a_1x1_with_stride_2_a_quarter_of_the_input_counts_as_read():
    own = {"kernel_size": "1x1", "stride": "2x2", "padding": "0x0", "dilation": "1x1", "groups": 1, "batch_size": 1}
    row = dataclasses.replace(ROW, **own, in_height_px=56, in_width_px=56)
    values = features(frame(row), {}).values.iloc[0]
    assert np.exp(values["log_inputs"]) == pytest.approx(24 * 56**2)
    assert np.exp(values["log_elements"]) == pytest.approx(28**2 * (24 + 36) + 24 * 36)


def test_plans_of_one_engine_have_that_in_common():
    names = ["plan:58:k25=1", "plan:58:k25=2", "plan:58", "plan+packed:67:k2=5", "implicit gemm", "torch"]
    assert [engine(name) for name in names] == [*3 * ["plan:58"], "plan+packed:67", "implicit gemm", "torch"]


def of_plan(plan: str, **changed: object) -> pd.Series:
    """Return the features of `PLAIN` by a plan."""
    return features(frame(dataclasses.replace(ROW, algorithm=plan, **{**PLAIN, **changed})), {}).values.iloc[0]  # type: ignore[arg-type]


def test_waves_of_a_plan_are_of_its_own_tile():
    values = of_plan("plan:62:k2=5,k13=1,k27=1,k28=1")  # 64 × 64, steps of 64 terms
    assert np.exp(values["plan_waves"]) == pytest.approx(98 * 2 / 132)  # 6,272 pixels
    assert np.exp(values["plan_steps"]) == pytest.approx(9)
    assert np.exp(values["plan_tile"]) == pytest.approx(128 / 96)
    assert values["plan_last_wave"] == pytest.approx(2 / (98 * 2 / 132))
    assert values["plan_last_two_waves"] == pytest.approx(2 / (98 * 2 / 132))
    assert of_plan("plan:62:k2=5,k13=1,k27=1,k28=1", batch_size=1)["plan_last_two_waves"] == 8  # of 26 blocks


def test_blocks_of_a_plan_are_whole_clusters():
    values = of_plan("plan:62:k2=5,k13=1,k27=8,k28=1")
    assert np.exp(values["plan_waves"]) == pytest.approx(104 * 2 / 132)
    assert np.exp(values["plan_cluster"]) == pytest.approx(8)


def test_narrow_groups_are_computed_together_in_powers_of_two():
    values = of_plan("plan:62:k2=5,k13=1,k27=1,k28=1", in_channels=48, out_channels=48, groups=4)  # of 12: as of 16
    assert np.exp(values["plan_waves"]) == pytest.approx(98 / 132)  # 4 groups of 16 in a tile of 64 filters
    assert np.exp(values["plan_steps"]) == pytest.approx(9)
    alone = of_plan("plan:45:k2=5,k5=4", in_channels=48, out_channels=48, groups=4)
    assert np.exp(alone["plan_waves"]) == pytest.approx(4 * 98 / 132)
    assert np.exp(alone["plan_steps"]) == pytest.approx(2)  # 108 terms in steps of 64


def parts_of(plan: str, **changed: object) -> pd.Series:
    return features(frame(dataclasses.replace(ROW, algorithm=plan, **changed)), {}).parts_ms.iloc[0]  # type: ignore[arg-type]


def test_parts_of_a_plan_are_of_its_own_tile():
    h200 = gpus.identify("NVIDIA H200")
    assert h200 is not None
    parts = parts_of("plan:62:k2=5,k13=1,k27=1,k28=1", **PLAIN)
    blocks, step_ms = 98 * 2, 2 * 64 * 64 * 64 * 132 / h200.tflops("float16", "fp32") / 1e9
    assert parts["waves"] == pytest.approx(blocks / 132 * 9 * step_ms)
    assert parts["whole waves"] == pytest.approx(2 * 9 * step_ms)
    assert parts["pairs of waves"] == pytest.approx(2 * 9 * step_ms)
    assert parts["ends of tiles"] == pytest.approx(2 * step_ms)
    assert parts["loads"] == pytest.approx(blocks * 9 * 64 * (64 + 64) * 2 / h200.bandwidth_gbps / 1e6)
    assert parts["steps"] == 9
    assert parts["output"] == pytest.approx(6272 * 96 * 2 / h200.bandwidth_gbps / 1e6)
    assert parts["patches"] == pytest.approx(6272 * 576 * 2 / h200.bandwidth_gbps / 1e6)
    assert parts["call"] == 1
    none = ["blocks of a cluster", "groups", "packed input", "padded input"]
    assert (parts[none] == 0).all()


def test_parts_of_groups_are_launches_one_by_one_and_what_is_packed():
    h200 = gpus.identify("NVIDIA H200")
    assert h200 is not None
    parts = parts_of("plan:62:k2=5,k13=1,k27=8,k28=1", **{**PLAIN, "in_channels": 48, "out_channels": 48, "groups": 4})
    assert parts["groups"] == 4
    assert parts["steps of groups"] == 4 * 2  # 108 terms in steps of 64; groups of 12 are packed as of 16
    assert parts["packed output"] == pytest.approx(6272 * 4 * 16 * 2 / h200.bandwidth_gbps / 1e6)
    assert parts["blocks of a cluster"] == 7


def test_channels_that_are_no_multiple_of_eight_are_moved_once_more():
    padded = parts_of("plan:62:k2=5,k13=1", **{**PLAIN, "in_channels": 3})
    assert padded["padded input"] == pytest.approx(padded["input"] * 8 / 3)
    assert padded["padded output"] == 0
    assert (padded["call to pad input"], padded["call to pad output"]) == (1, 0)
    neither = parts_of("plan:62:k2=5,k13=1", **PLAIN)
    assert (neither["call to pad input"], neither["call to pad output"]) == (0, 0)


def test_rows_whose_time_goes_by_parts_and_by_those_of_their_own_kernels_are_told_apart():
    names = ("torch", "fft", "plan:62:k2=5,k13=1", "plan:28:k2=4", "plan:71", "plan:0", "direct", "plan:3")
    found = features(frame(*(dataclasses.replace(ROW, algorithm=name) for name in names)), {})
    assert found.has_parts.tolist() == [False, True, True, True, True, True, True, False]
    assert found.are_own.tolist() == [False, True, True, False, True, True, False, False]
    one = found.rows(np.array([3]))
    assert (one.has_parts.tolist(), one.are_own.tolist()) == ([True], [False])


@pytest.mark.parametrize(
    "name",
    [
        "torch",
        "plan:62:k2=5,k13=1,k27=8,k28=1",
        "plan+packed:45:k2=5,k5=4",
        "direct",
        "plan:0",
        "plan:1",
        "plan:58",
        "plan:71",
    ],
)
def test_no_part_is_below_0_or_without_end(name: str):
    parts = parts_of(name).to_numpy(float)
    assert np.isfinite(parts).all()
    assert (parts >= 0).all()


@pytest.mark.parametrize(
    ("channels", "filters", "groups", "expected"),
    [
        (64, 64, 1, ("dense", "dense, 8, 8")), (3, 64, 1, ("dense", "dense, 1, 8")),
        (32, 32, 32, ("depthwise", "depthwise, 8, 8")), (32, 64, 32, ("of one channel", "of one channel, 8, 8")),
        (64, 64, 4, ("powers alike", "powers alike, 8, 8")), (64, 128, 4, ("powers", "powers, 8, 8")),
        (96, 96, 4, ("eights", "eights, 8, 8")), (60, 60, 5, ("uneven", "uneven, 4, 4")),
    ],
)  # fmt: skip
def test_classes_tell_apart_what_other_kernels_compute(
    channels: int, filters: int, groups: int, expected: tuple[str, str]
):
    row = dataclasses.replace(
        ROW, algorithm="plan:70:k2=4,k18=0", in_channels=channels, out_channels=filters, groups=groups
    )
    coarse, fine = features(frame(row), {}).classes
    assert (coarse[0], fine[0]) == expected
    of_no_tile = features(frame(dataclasses.replace(row, algorithm="plan:28:k2=4")), {}).classes
    assert (of_no_tile[0][0], of_no_tile[1][0]) == (expected[0], expected[0])
    of_one_image = features(frame(dataclasses.replace(row, batch_size=1)), {}).classes[0]
    assert of_one_image[0] == (expected[0] if groups == 1 else f"{expected[0]}, one image")
