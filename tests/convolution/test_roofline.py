"""The roofline as exact numbers, and the ceilings of a device whose times are known."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch
from fakes import layer
from torch import nn

from convscope.convolution import roofline
from convscope.convolution.layer import Layer
from convscope.gpus import Gpu

CARD = Gpu(
    "card", "card", fp32_tflops=2.0, tf32_tflops=4.0, fp16_tflops=8.0, bandwidth_gbps=16.0, source="made up", sm_count=1
)
FLOPS = 32 * 56 * 56 * (2 * 16 * 9 + 1)
ELEMENTS = 16 * 56 * 56 + 32 * 16 * 9 + 32 * 56 * 56 + 32


@pytest.mark.parametrize(
    ("dtype", "math", "tflops", "element_bytes"),
    [
        ("float32", "fp32", 2.0, 4),
        ("float32", "tf32", 4.0, 4),
        ("float16", "fp32", 8.0, 2),
        ("bfloat16", "fp32", 8.0, 2),
    ],
)
def test_the_limit_is_work_over_peak_and_bytes_over_bandwidth(dtype, math, tflops, element_bytes):
    limit = roofline.hardware_limit([layer()] * 2, CARD, dtype, math)
    assert limit.flops == 2 * FLOPS
    assert limit.minimum_bytes == 2 * ELEMENTS * element_bytes
    assert limit.compute_ms == 2 * FLOPS / (tflops * 1e9)
    assert limit.memory_ms == 2 * ELEMENTS * element_bytes / 16e6
    assert limit.time_ms == 2 * max(FLOPS / (tflops * 1e9), ELEMENTS * element_bytes / 16e6)


def test_a_card_without_tf32_multiplies_in_float32():
    plain = Gpu("old", "old", 2.0, None, 8.0, 16.0, "made up")
    assert plain.tflops("float32", "tf32") == 2.0


def test_fully_connected_layers_are_convolutions_of_one_pixel_by_the_rows_they_are_given():
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.Flatten(2), nn.Linear(64, 7, bias=False), nn.Linear(7, 5))
    found = roofline.layers_of("it", model, (2, 3, 8, 8))
    assert [one.name for one in found] == ["0", "linear.0", "linear.1"]
    pixel = {"batch": 8, "size": (1, 1), "kernel": (1, 1)}
    assert found[1:] == [
        Layer.of_sizes("linear.0", 0, in_channels=64, out_channels=7, bias=False, **pixel),
        Layer.of_sizes("linear.1", 1, in_channels=7, out_channels=5, bias=True, **pixel),
    ]


def test_the_ceilings_allow_the_longer_of_arithmetic_and_copying():
    ceilings = roofline.Ceilings(copy_gbps=4.0, tflops={"fp32": 2.0})
    assert ceilings.attainable_ms(6e9, 8e6, "fp32") == 3.0
    assert ceilings.attainable_ms(2e9, 8e6, "fp32") == 2.0


class Stopwatch:
    """Runs the work once and says what it took: 2 ms and 4 ms for the copies, 8, 16 and 32 ms for the products."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.asked: list[tuple[object, dict[str, float]]] = []

    def measure(self, work: Callable[[], torch.Tensor], **options: float) -> SimpleNamespace:
        allowed = torch.backends.cuda.matmul.allow_tf32
        self.asked.append((work(), options | {"tf32": allowed}))
        return SimpleNamespace(best_ms=2.0 ** len(self.asked))


@pytest.fixture
def watches(monkeypatch: pytest.MonkeyPatch) -> list[Stopwatch]:
    made: list[Stopwatch] = []

    def make(device: torch.device) -> Stopwatch:
        made.append(Stopwatch(device))
        return made[-1]

    monkeypatch.setattr(roofline, "Stopwatch", make)
    return made


def test_ceilings_of_a_processor_are_a_copy_there_and_back_and_a_product_in_float32(watches: list[Stopwatch]):
    found = roofline.measure_ceilings(torch.device("cpu"))
    assert found.copy_gbps == 2 * 4 * 2**22 / 2.0 / 1e6
    assert found.tflops == {"fp32": 2 * 384**3 / 8.0 / 1e9}
    copied, multiplied, product = watches[0].asked
    assert copied[0].sum() == multiplied[0].sum() == 2**22
    assert product[0].shape == (384, 384)
    options = {"samples": 3, "warmup": 1, "budget_s": 60.0, "tf32": False}
    assert [asked for _, asked in watches[0].asked] == [options] * 3


def test_ceilings_of_a_gpu_have_three_arithmetics(watches: list[Stopwatch], monkeypatch: pytest.MonkeyPatch):
    for name in ("ones", "randn"):
        real = getattr(torch, name)
        monkeypatch.setattr(torch, name, lambda *sizes, device, make=real: make(*sizes, device="meta"))
    found = roofline.measure_ceilings(torch.device("cuda"))
    assert found.copy_gbps == 2 * 4 * 2**28 / 2.0 / 1e6
    products = {"fp32": 8.0, "tf32": 16.0, "fp16": 32.0}
    assert found.tflops == {name: 2 * 8192**3 / took_ms / 1e9 for name, took_ms in products.items()}
    asked = watches[0].asked[2:]
    assert [work.dtype for work, _ in asked] == [torch.float32, torch.float32, torch.float16]
    assert [options["tf32"] for _, options in asked] == [False, True, False]
    assert {options["samples"] for _, options in watches[0].asked} == {10}
