"""Parts of convolutions by Fourier transforms, by hand; what they cost is found, and told from tiles of plans."""

from __future__ import annotations

import dataclasses

import numpy as np
import pandas as pd
import pytest
from fakes.drawn_samples import drawn, frame_of

from convscope import gpus
from convscope.prediction.features import features
from convscope.prediction.learners import costs
from convscope.prediction.shapes.transforms import NAMES

ROW = dataclasses.replace(
    next(drawn(1)), gpu_name="NVIDIA H200", batch_size=8, in_channels=64, out_channels=96, in_height_px=60,
    in_width_px=70, kernel_size="3x5", stride="1x1", padding="1x2", dilation="1x1", groups=1, dtype="float32",
    math="fp32", layout="nchw",
)  # fmt: skip
H200 = gpus.identify("NVIDIA H200")


def parts_of(algorithm: str, **changes: object) -> pd.Series:
    row = dataclasses.replace(ROW, algorithm=algorithm, **changes)  # type: ignore[arg-type]
    return features(frame_of([row]), {}).parts_ms.iloc[0]


def expected_ms(numbers: int, count: int, one_by_one: int, groups: int = 1) -> list[float]:
    """Return the parts of a convolution of 64 channels and 96 filters: complex numbers, of an image's transforms."""
    assert H200 is not None
    bytes_ms = [8 * numbers * each / H200.bandwidth_gbps / 1e6 for each in (8 * count * 64, 8 * count * 96, 64 * 96)]
    products = 4 * numbers * 8 * count * 64 * 96 / groups
    bytes_ms[2] /= groups
    return [*bytes_ms, 2 * products / H200.tflops("float32", "fp32") / 1e9, one_by_one]


@pytest.mark.parametrize(
    ("algorithm", "changes", "expected"),
    [
        ("fft tiling", {}, expected_ms(17 * 32, 2 * 3, 6)),  # of 30 × 28 outputs
        ("fft tiling", {"groups": 4}, expected_ms(17 * 32, 6, 6, groups=4)),
        ("fft tiling", {"kernel_size": "1x1", "padding": "0x0"}, expected_ms(17, 60 * 3, 0)),  # lines of 32 outputs
        ("fft tiling", {"kernel_size": "1x5", "padding": "0x2"}, expected_ms(17, 60 * 3, 0)),  # of 28
        ("fft tiling", {"kernel_size": "5x1", "padding": "2x0"}, expected_ms(17, 70 * 3, 0)),
        ("fft tiling", {"stride": "2x2"}, expected_ms(17 * 32, 2 * 3, 6)),  # all outputs are computed
        ("fft", {}, expected_ms(65 * 128, 1, 0)),  # 70 + 4 reach beyond 64
        (
            "fft",
            {"in_height_px": 5, "in_width_px": 4, "kernel_size": "3x3", "padding": "1x1"},
            expected_ms(9 * 16, 1, 0),
        ),
        ("direct", {}, [0.0] * 5),
        ("plan:70:k2=4,k18=0", {}, [0.0] * 5),
    ],
    ids=str,
)
def test_parts_of_transforms_are_of_the_numbers_that_are_moved_and_multiplied(
    algorithm: str, changes: dict[str, object], expected: list[float]
):
    assert parts_of(algorithm, **changes)[[*NAMES]].tolist() == pytest.approx(expected)


def test_calls_by_transforms_have_no_parts_of_tiles_but_those_of_any_call():
    transformed, tiled = parts_of("fft", groups=4), parts_of("direct", groups=4)
    assert {str(name) for name in transformed.index[transformed > 0]} == {
        "call", "input", "output", "filters", "groups", *NAMES[:4],
    }  # fmt: skip
    same = ["call", "input", "output", "filters", "groups"]
    assert transformed[same].tolist() == tiled[same].tolist()


def test_they_are_classes_of_their_own():
    rows = [
        dataclasses.replace(ROW, algorithm=name, kernel_size=kernel)
        for name, kernel in (("fft", "3x3"), ("fft tiling", "3x3"), ("fft tiling", "1x1"), ("direct", "3x3"))
    ]
    found = features(frame_of(rows), {})
    assert [each.tolist() for each in found.classes] == [
        ["whole", "tiles", "lines", "taps"], ["whole", "tiles", "lines", "taps, dense"],
    ]  # fmt: skip
    assert found.are_own.tolist() == [True, True, True, False]


def test_costs_of_transforms_are_found():
    rows = [
        dataclasses.replace(ROW, algorithm="fft tiling", in_channels=channels, in_height_px=side, in_width_px=side)
        for channels in (16, 64, 256) for side in (14, 30, 40, 62, 100, 200)
    ]  # fmt: skip
    frame = frame_of(rows)
    given = features(frame, {})
    took_ms = given.parts_ms @ pd.Series({**dict.fromkeys(given.parts_ms, 0.0), "tiles one by one": 0.02, NAMES[2]: 3})
    wanted = np.log((took_ms + 0.005) / given.roofline_ms).to_numpy()
    found = costs.fit(given, frame, wanted, by_parts=True).predict(given, frame)
    assert np.abs(found - wanted).max() < 0.02
    by_roofline = costs.fit(given, frame, wanted, by_parts=False).predict(given, frame)
    assert np.abs(by_roofline - wanted).max() > 0.3
