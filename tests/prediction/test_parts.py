"""Parts and classes of calls whose kernels split sums, transform tiles, have a thread for each output, compute borders
apart, pad channels or pack groups, of `direct` and of cuBLASLt: by hand, and beside what was measured."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pandas as pd
import pytest
from fakes import ROOT
from fakes.drawn_samples import drawn, frame_of

from convscope import gpus
from convscope.cudnn.shape import Convolution
from convscope.kernels import direct
from convscope.prediction.features import features
from convscope.prediction.shapes import rounds, winograd

ROW = dataclasses.replace(
    next(drawn(1)), gpu_name="NVIDIA H200", batch_size=8, in_channels=64, out_channels=96, in_height_px=28,
    in_width_px=28, kernel_size="3x3", stride="1x1", padding="1x1", dilation="1x1", groups=1, dtype="float32",
    math="tf32", layout="nchw",
)  # fmt: skip
ONE_BY_ONE = {"kernel_size": "1x1", "padding": "0x0"}
H200 = gpus.identify("NVIDIA H200")


def parts_of(algorithm: str, **changes: object) -> pd.Series:
    """Return the parts of a convolution of 6,272 pixels."""
    row = dataclasses.replace(ROW, algorithm=algorithm, **changes)  # type: ignore[arg-type]
    return features(frame_of([row]), {}).parts_ms.iloc[0]


def class_of(algorithm: str, **changes: object) -> tuple[str, str]:
    row = dataclasses.replace(ROW, algorithm=algorithm, **changes)  # type: ignore[arg-type]
    coarse, fine = features(frame_of([row]), {}).classes
    return str(coarse[0]), str(fine[0])


def elements_ms(count: float) -> float:
    assert H200 is not None
    return 4 * count / H200.bandwidth_gbps / 1e6


def products_ms(count: float) -> float:
    assert H200 is not None
    return 2 * count / H200.tflops("float32", "tf32") / 1e9


def test_slices_of_a_sum_are_blocks_of_their_own_and_write_what_they_add_up():
    whole, split = (parts_of(f"plan:41:k2=8,{slices}k13=1") for slices in ("", "k12=10,k17=3,"))  # tiles of 64 × 32
    blocks = 98 * 3
    assert whole["steps"] == 9
    assert split["steps"] == 3
    assert split["tiles"] == pytest.approx(whole["tiles"])  # three times as many, each of a third of the steps
    assert split["slices"] == 2
    assert split["waves of slices"] == pytest.approx(3 * blocks / 132)
    assert split["sums of slices"] == pytest.approx(elements_ms(3 * blocks * 64 * 32))
    assert split["sums in buffers"] == pytest.approx(10 * split["sums of slices"])
    none = ["slices", "waves of slices", "sums of slices", "sums in buffers"]
    assert (whole[none] == 0).all()
    assert parts_of("plan:41:k2=8,k12=-1,k13=1,k17=3")["sums in buffers"] == 0


@pytest.mark.parametrize(
    ("algorithm", "expected"),
    [
        ("plan:41:k2=8,k12=10,k13=1,k17=3", "in buffers"), ("plan:41:k2=8,k12=1,k13=1,k17=3", "dense"),
        ("plan:41:k2=8,k12=-1,k13=1,k17=3", "dense"), ("plan:41:k2=8,k13=1", "dense"),
    ],
)  # fmt: skip
def test_slices_that_several_buffers_add_up_are_a_class_of_their_own(algorithm: str, expected: str):
    assert class_of(algorithm) == (expected, f"{expected}, 8, 8")


@pytest.mark.parametrize(
    ("algorithm", "changes", "name", "images", "side", "tiles"),
    [
        ("winograd", {}, "small", 8, 2, 14 * 14), ("winograd", {}, "large", 8, 4, 7 * 7),
        ("winograd nonfused", {}, "large", 16, 4, 7 * 7),
        ("winograd nonfused", {"batch_size": 33}, "large", 48, 4, 7 * 7),
        ("winograd nonfused", {"kernel_size": "5x5", "padding": "2x2"}, "largest", 16, 9, 4 * 4),
    ],
)  # fmt: skip
def test_parts_of_winograd_are_of_the_transformed_tiles(
    algorithm: str, changes: dict[str, object], name: str, images: int, side: int, tiles: int
):
    parts = parts_of(algorithm, **changes)
    numbers = (side + (4 if changes.get("kernel_size") == "5x5" else 2)) ** 2
    each = images * tiles * numbers
    assert parts[f"input of {name} tiles"] == pytest.approx(elements_ms(each * 64))
    assert parts[f"output of {name} tiles"] == pytest.approx(elements_ms(each * 96))
    assert parts[f"filters of {name} tiles"] == pytest.approx(elements_ms(numbers * 64 * 96))
    assert parts[f"products of {name} tiles"] == pytest.approx(products_ms(each * 64 * 96))
    waves = np.ceil(np.ceil(images * tiles / 32) * 3 / 132)
    assert parts[f"waves of {name} tiles"] == pytest.approx(products_ms(waves * 132 * 32**2 * numbers * 64))
    others = {"small", "large", "largest"} - ({"small", "large"} if algorithm == "winograd" else {name})
    assert all(parts[f"products of {other} tiles"] == 0 for other in others)


@pytest.mark.parametrize(("algorithm", "groups"), [("plan:70:k2=4,k18=0", 1), ("winograd", 4), ("torch", 1)])
def test_other_algorithms_have_no_parts_of_winograd_and_of_rounds(algorithm: str, groups: int):
    parts = parts_of(algorithm, groups=groups)
    mine = [
        name for name in parts.index
        if name.endswith(("small tiles", "large tiles", "largest tiles", "rounds", "slices", "buffers"))
    ]  # fmt: skip
    assert len(mine) == 15 + 4 + 4
    assert (parts[mine] == 0).all()


@pytest.mark.parametrize("card", ["h100", "h200"])
def test_the_workspace_of_winograd_nonfused_is_that_of_its_transformed_tiles(card: str):
    every = pd.read_parquet(ROOT / "data" / card / "samples.parquet")
    every = every[(every["status"] == "ok") & (every["algorithm"] == winograd.NONFUSED) & (every["groups"] == 1)]
    assert {"3x3", "5x5"} == {*every["kernel_size"]}
    of_one = every["batch_size"] == 1
    assert of_one.sum() > 50
    parts_ms = features(every.reset_index(drop=True), {}).parts_ms
    said_ms = sum(
        parts_ms[f"{part} of {name} tiles"] for part in ("input", "output", "filters") for name in ("large", "largest")
    )
    bandwidth_gbps = gpus.identify(every["gpu_name"].iloc[0]).bandwidth_gbps  # type: ignore[union-attr]
    np.testing.assert_allclose(said_ms * bandwidth_gbps * 1e6, every["workspace_bytes"].to_numpy(float))


def test_outputs_of_threads_are_computed_in_rounds():
    few, many = (parts_of("plan:0", **ONE_BY_ONE, out_channels=filters) for filters in (1, 96))
    outputs = 6272 * 96 / (132 * rounds.THREADS)
    assert many["channels in whole rounds"] == 64 * np.ceil(outputs) == 64 * 5
    assert many["channels in rounds"] == pytest.approx(64 * outputs)
    assert few["channels in whole rounds"] == 64
    by_taps = parts_of("plan+packed:0", groups=4)
    assert by_taps["terms in whole rounds"] == 9 * by_taps["channels in whole rounds"] == 9 * 16 * 5


def test_outputs_of_a_round_take_as_long_as_one():
    every = pd.read_parquet(ROOT / "data" / "h200" / "samples.parquet")
    every = every[
        (every["status"] == "ok") & (every["algorithm"] == "plan:0") & (every["dtype"] == "float32")
        & (every["groups"] == 1) & (every["kernel_size"] == "1x1") & (every["in_channels"] >= 100)
        & (every["in_height_px"] > 1)
    ].reset_index(drop=True)  # fmt: skip
    channels = features(every, {}).parts_ms["channels in whole rounds"].to_numpy()
    rounds_of_each = (channels / every["in_channels"]).round()
    us = 1e3 * every["mean_ms"].to_numpy() / channels
    of_one = rounds_of_each == 1
    outputs = every["batch_size"] * every["in_height_px"] * every["in_width_px"] * every["out_channels"]
    assert of_one.sum() > 500
    assert outputs[of_one].max() > 50 * outputs[of_one].min()
    assert np.ptp(np.quantile(us[of_one], [0.05, 0.95])) < 0.35 * np.median(us[of_one])
    assert np.median(us[rounds_of_each == 2]) == pytest.approx(np.median(us[of_one]), rel=0.1)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, "dense, by threads"), ({"in_channels": 58}, "dense, by threads"),
        ({"layout": "nhwc"}, "dense, by threads, lines"), ({"layout": "nhwc", "in_channels": 96}, "dense, by threads"),
        ({"layout": "nhwc", "in_height_px": 5, "in_width_px": 5}, "dense, by threads"),
        ({"in_height_px": 1, "in_width_px": 1}, "dense, by threads"),
        ({"in_height_px": 1, "in_width_px": 1, "batch_size": 1}, "dense, by threads, a pixel"),
        ({"in_channels": 32, "out_channels": 32, "groups": 32}, "depthwise, by threads"),
    ],
    ids=str,
)  # fmt: skip
def test_classes_of_threads_are_of_what_they_read(changes: dict[str, object], expected: str):
    assert class_of("plan:0", **ONE_BY_ONE, **changes) == (expected, expected)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, "dense, planes of words"), ({"in_height_px": 7, "in_width_px": 7}, "dense, planes"),
        ({"in_height_px": 1, "in_width_px": 1}, "dense, pixels"),
        ({"in_height_px": 1, "in_width_px": 1, "batch_size": 1}, "dense, vectors"), ({"layout": "nhwc"}, "dense"),
    ],
    ids=str,
)  # fmt: skip
def test_classes_of_cublaslt_are_of_the_matrices_of_images(changes: dict[str, object], expected: str):
    assert class_of("plan:58", **ONE_BY_ONE, **changes) == (expected, expected)


def test_cublaslt_multiplies_the_matrices_of_images_one_by_one_in_nchw():
    first, last = (parts_of("plan:58", **ONE_BY_ONE, layout=layout) for layout in ("nchw", "nhwc"))
    in_ms = products_ms(64 * 64 * 32)  # of a tile in a step
    assert first["tiles"] == pytest.approx(8 * np.ceil(784 / 64) * 2 * 2 * in_ms)
    assert last["tiles"] == pytest.approx(np.ceil(6272 / 64) * 2 * 2 * in_ms)


@pytest.mark.parametrize(
    ("changes", "coarse", "kinds"),
    [
        ({}, "taps", "dense"), ({"in_channels": 3}, "gathered", "dense"),
        ({"groups": 4}, "taps, groups", "eights"), ({"groups": 2, "in_channels": 48}, "gathered, groups", "eights"),
        ({"groups": 8}, "thin, groups", "uneven"),
        ({"groups": 64, "out_channels": 64}, "thin, groups", "depthwise"),
    ],
    ids=str,
)  # fmt: skip
def test_classes_of_direct_are_its_variants(changes: dict[str, object], coarse: str, kinds: str):
    assert class_of("direct", **changes) == (coarse, f"{coarse}, {kinds}")


@pytest.mark.parametrize(("plan", "calls"), [("plan:45:k2=5,k5=4", 4), ("plan:62:k2=5,k13=1", 0)])
def test_channels_of_each_group_are_padded_where_groups_are_not_packed(plan: str, calls: int):
    parts = parts_of(plan, in_channels=48, out_channels=48, groups=4, dtype="float16", layout="nhwc")  # of 12 each
    assert (parts["call to pad input"], parts["call to pad output"]) == (calls, calls)
    assert (parts["padded input"] > 0) == (parts["padded output"] > 0) == (calls > 0)


@pytest.mark.parametrize("kernel", [1, 3, 7])
@pytest.mark.parametrize(("channels", "filters", "groups"), [(64, 96, 1), (3, 64, 1), (96, 96, 4), (64, 64, 64)])
def test_the_variants_of_direct_are_those_of_its_kernels(channels: int, filters: int, groups: int, kernel: int):
    sides = {"in_height_px": 28, "in_width_px": 28, "kernel_size": f"{kernel}x{kernel}", "padding": "0x0"}
    counts = {"in_channels": channels, "out_channels": filters, "groups": groups}
    shape = Convolution(
        (8, channels, 28, 28), (filters, channels // groups, kernel, kernel), (0, 0), (1, 1), (1, 1), groups
    )
    variants = {blocks.variant for blocks in direct.candidates(shape, shape.output, 132)}
    assert {class_of("direct", **sides, **counts)[0].split(", ")[0]} == variants


@pytest.mark.parametrize(("groups", "filters"), [(1, 64), (2, 64), (4, 32), (16, 32)])
def test_tiles_of_direct_are_no_wider_than_those_of_a_group(groups: int, filters: int):
    columns = np.ceil(96 / groups / filters) * groups
    steps = np.ceil(9 * 64 / groups / 16)
    tiles_ms = np.ceil(6272 / 64) * columns * steps * products_ms(64 * filters * 16)
    assert parts_of("direct", groups=groups)["tiles"] == pytest.approx(tiles_ms)


def test_steps_of_engine_71_are_of_as_many_bytes_in_each_type():
    changes = {"layout": "nhwc", "in_channels": 64}
    steps = [parts_of("plan:71", dtype=dtype, **changes)["steps"] for dtype in ("float16", "float32")]
    assert steps == [9 * 64 / 32, 9 * 64 / 16]


@pytest.mark.parametrize(
    ("changes", "borders"),
    [
        ({}, 4), ({"padding": "0x0"}, 0), ({"padding": "1x0"}, 2), ({"padding": "0x1"}, 2),
        ({"stride": "2x2"}, 2), ({"stride": "2x2", "in_height_px": 27}, 3), ({"stride": "2x1"}, 3),
        ({"dilation": "2x2", "padding": "2x2"}, 4), ({"groups": 4}, 4),
    ],
    ids=str,
)  # fmt: skip
def test_borders_that_padding_reaches_have_parts_by_engine_1(changes: dict[str, object], borders: int):
    groups = changes.get("groups", 1)
    parts, others = parts_of("plan:1", **changes), parts_of("plan:28:k2=4,k3=0", **changes)
    assert parts["borders"] == borders * groups
    assert parts["terms at borders"] == (9 * 64 if borders else 0)
    assert (others["borders"], others["terms at borders"]) == (0, 0)


@pytest.mark.parametrize("card", ["h100", "h200"])
def test_engine_1_launches_a_kernel_for_each_border_of_each_group(card: str):
    every = pd.read_parquet(ROOT / "data" / card / "samples.parquet")
    every = every[(every["status"] == "ok") & every["algorithm"].str.match("plan:1(:|$)")].reset_index(drop=True)
    launched = [
        sum(count for name, count in json.loads(kernels).items() if "implicit_convolve_sgemm" in name)
        for kernels in every["kernels"]
    ]
    assert {0, 1, 2, 3, 4} <= {*launched}
    assert features(every, {}).parts_ms["borders"].tolist() == launched


@pytest.mark.parametrize(
    ("plan", "dtype", "width", "expected"),
    [
        ("plan:62:k2=5,k13=1", "float16", 8, "powers alike, 8 together, 8, 8"),
        ("plan:62:k2=5,k13=1", "float16", 32, "powers alike, 2 together, 8, 8"),
        ("plan:62:k2=5,k13=1", "float16", 48, "eights, 1 together, 8, 8"),
        ("plan:62:k2=2,k13=1", "float16", 32, "powers alike, 1 together, 8, 8"),
        ("plan:22:k2=5", "float16", 1, "depthwise, 16 together, 8, 8"),
        ("plan:67:k2=5,k13=0", "float32", 8, "powers alike, 4 together, 8, 8"),
    ],
)
def test_groups_that_a_plan_packs_are_classes_by_how_many(plan: str, dtype: str, width: int, expected: str):
    assert class_of(plan, in_channels=96, out_channels=96, groups=96 // width, dtype=dtype)[1] == expected


@pytest.mark.parametrize("card", ["h100", "h200"])
def test_plans_pack_as_many_groups_as_the_names_of_their_kernels_say(card: str):
    every = pd.read_parquet(ROOT / "data" / card / "samples.parquet")
    is_packed = (every["groups"] > 1) & every["algorithm"].str.match(r"plan[^:]*:(?:22|62|67):")
    every = every[(every["status"] == "ok") & is_packed].reset_index(drop=True)
    named = every["kernels"].str.extract(r"_g(\d+)_")[0]
    assert {*named} == {"1", "2", "4", "8", "16"}
    said = pd.Series(features(every, {}).classes[1]).str.extract(r"(\d+) together")[0]
    assert said.tolist() == named.tolist()
