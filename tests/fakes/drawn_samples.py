"""Samples of cards that obey a formula: roofline, waves over the multiprocessors, a knack of each shape, noise."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import random
import zlib
from collections.abc import Iterable, Iterator

import pandas as pd

from convscope.dataset.samples import SAMPLES, SampleRow

CARDS = {
    "Tesla P4": (5.5, 192.0, 20), "Tesla T4": (8.1, 320.0, 40), "Tesla P100-PCIE-16GB": (9.3, 732.0, 56),
}  # fmt: skip
ALGORITHMS = {"gemm": 1.3, "winograd": 0.8, "torch": 1.0}


def milliseconds(row: SampleRow, tflops: float, gbps: float, multiprocessors: int) -> float:
    """Return the time of a 3×3 layer by the formula, without noise."""
    assert row.in_height_px is not None
    pixels = row.batch_size * row.in_height_px**2
    flops = 18 * pixels * row.in_channels * row.out_channels
    moved = 4 * (pixels * (row.in_channels + row.out_channels) + 9 * row.in_channels * row.out_channels)
    tiles = math.ceil(pixels / 128) * math.ceil(row.out_channels / 64)
    waves = math.ceil(tiles / multiprocessors) * multiprocessors / tiles
    odd = 1.2 if row.in_channels % 4 else 1.0
    return ALGORITHMS[row.algorithm] * odd * max(flops / tflops / 1e9 * waves, moved / gbps / 1e6) + 0.003


def drawn(
    count: int, cards: tuple[str, ...] = ("Tesla T4",), algorithms: tuple[str, ...] = ("gemm",), noise: float = 0.02,
    knack: float = 0.0, seed: int = 0,
) -> Iterator[SampleRow]:  # fmt: skip
    """Yield samples of `count` different shapes on each card by each algorithm.

    Args:
        noise: standard deviation of the logarithm of each time.
        knack: the same, of a factor that a shape has on every card.
    """
    draw = random.Random(seed)
    every = itertools.product((3, 16, 30, 64, 128, 256), (16, 32, 48, 64, 128, 256), range(7, 113), (1, 2, 8))
    for number, (channels, filters, side, batch) in enumerate(draw.sample([*every], count)):
        for algorithm in algorithms:
            for name in cards:
                row = SampleRow(
                    name, algorithm, batch, channels, filters, side, side, "3x3", "1x1", "1x1", "1x1", 1, "float32",
                    "fp32", "nchw", "drawn", mean_ms=1.0, family=("vgg", "resnet", "densenet")[number % 3],
                )  # fmt: skip
                text = f"{seed} {batch} {channels} {filters} {side} {algorithm}"
                of_shape = random.Random(zlib.crc32(text.encode())).gauss(0, knack)
                took = milliseconds(row, *CARDS[name]) * math.exp(of_shape + draw.gauss(0, noise))
                yield dataclasses.replace(row, mean_ms=took)


def frame_of(rows: Iterable[SampleRow]) -> pd.DataFrame:
    """Return samples as a data frame; pandas makes the same of them, but copies each cell deeply."""
    return pd.DataFrame([vars(row) for row in rows], columns=SAMPLES.columns)


KERNELS = {"gemm": {"im2col4d_kernel": 1, "volta_sgemm_128x64_nn": 1}, "winograd": {"winograd_3x3_kernel": 1}}


def measured(count: int, cards: tuple[str, ...] = tuple(CARDS), run: int = 1, seed: int = 0) -> list[SampleRow]:
    """Return drawn samples as a run on a GPU writes them: with interval, kernels, host and UUID in `run`."""
    return [
        dataclasses.replace(
            row, run=f"node{run} GPU-{run}{cards.index(row.gpu_name)} 2026-01-0{run}T10:00:00+00:00",
            mean_ci95_ms=0.06 * (row.mean_ms or 0), placements=5, kernels=json.dumps(KERNELS[row.algorithm]),
            ran_algorithm=row.algorithm, ran_provider="cudnn", cudnn="9.19.0", driver="580.1.2", model="vgg16",
            input_size=64, layer=f"features.{number}",
        )
        for number, row in enumerate(drawn(count, cards, tuple(KERNELS), seed=seed))
    ]  # fmt: skip
