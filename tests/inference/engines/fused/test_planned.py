"""Convolutions by plans of cuDNN that end otherwise than PyTorch's fused call: what is asked for, without a GPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from convscope.cudnn.shape import Convolution, Fused
from convscope.errors import CudnnError
from convscope.inference.engines.fused import planned

ONE: planned.Options = ((1, 1), (0, 0), (1, 1))


class Operator:
    """Remembers what is asked for, and has nothing."""

    def __init__(self) -> None:
        self.asked: list[Convolution] = []

    def offers(self, asked: Convolution, device: torch.device) -> list[Any]:
        self.asked.append(asked)
        raise CudnnError("nothing")


@pytest.fixture
def operator(monkeypatch: pytest.MonkeyPatch) -> Operator:
    made = Operator()
    monkeypatch.setattr(planned, "cuda_operator", lambda: made)
    return made


def images(*size: int) -> torch.Tensor:
    return torch.empty(size, dtype=torch.float16, device="meta").contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize(
    ("kind", "adds", "fused"),
    [
        ("", False, Fused(bias=True)),
        ("", True, Fused(addition=True, bias=True)),
        ("silu", False, Fused(bias=True, swish=True)),
    ],
)
def test_the_steps_that_follow_are_asked_for(operator: Operator, kind: str, adds: bool, fused: Fused):
    assert [*planned.plans(images(256, 40, 28, 28), images(240, 40, 1, 1), ONE, kind, adds)] == []
    expected = Convolution((256, 40, 28, 28), (240, 40, 1, 1), *ONE[1::-1], ONE[2], 1, "float16", layout="nhwc")
    assert [vars(each) for each in operator.asked] == [vars(expected) | {"fused": fused}]


def test_rows_are_the_pixels_of_one_image(operator: Operator):
    assert [*planned.plans(images(50_000, 384, 1, 1), images(96, 384, 1, 1), ONE, "", True)] == []
    assert operator.asked[0].input == (1, 384, 50_000, 1)
    x = torch.arange(12.0).view(4, 3, 1, 1).contiguous(memory_format=torch.channels_last)
    image = planned._as_image(x)
    assert image.is_contiguous(memory_format=torch.channels_last)
    assert image.data_ptr() == x.data_ptr()
    assert torch.equal(image[0, :, :, 0].T, x.flatten(1))


@pytest.mark.parametrize(
    ("weight", "options"),
    [((512, 512, 3, 3), ((1, 1), (1, 1), (1, 1))), ((512, 512, 1, 1), ((2, 2), (0, 0), (1, 1)))],
)
def test_images_of_one_pixel_are_no_rows_for_other_windows(
    operator: Operator, weight: tuple[int, ...], options: planned.Options
):
    """The neighbours of a pixel would be other images."""
    assert [*planned.plans(images(8192, 512, 1, 1), images(*weight), options, "silu", False)] == []
    assert operator.asked[0].input == (8192, 512, 1, 1)


@pytest.mark.parametrize(
    ("size", "kind"), [((256, 40, 28, 28), "gelu"), ((256, 40, 28, 28), "relu"), ((1, 40, 28, 28), "silu")]
)
def test_nothing_is_asked_where_a_plan_would_not_be_faster(operator: Operator, size: tuple[int, ...], kind: str):
    assert [*planned.plans(images(*size), images(240, 40, 1, 1), ONE, kind, adds=False)] == []
    assert operator.asked == []
