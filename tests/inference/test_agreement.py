"""Agreement of engines: each way to be wrong is found, in the data types that are in use; rightness passes."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from fakes import layer
from fakes.inference import ASKED, study
from torch import nn

from convscope.convolution import reference
from convscope.inference import agreement, pictures
from convscope.inference.engines import catalogue
from convscope.inference.engines.catalogue import Recipe
from convscope.inference.engines.workload import BuildCost, Engine, Workload
from convscope.inference.request import build_model
from convscope.inference.rows import TABLE

DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16}
IMAGES = 10


@pytest.fixture(scope="module")
def model() -> nn.Module:
    """Return ResNet-18 with the weights that engines are compared with."""
    return build_model(ASKED)


Change = Callable[[nn.Module, torch.Tensor], torch.Tensor]


def right(model: nn.Module, given: torch.Tensor) -> torch.Tensor:
    return model(given)


def constant(model: nn.Module, given: torch.Tensor) -> torch.Tensor:
    """Return the mean output for all images."""
    return model(given).mean(0, keepdim=True).expand(len(given), -1)


def replaced(model: nn.Module, given: torch.Tensor) -> torch.Tensor:
    """Return for one image the output of its neighbour."""
    output = model(given)
    output[3] = output[4]
    return output


class Stale:
    """The output of the first input, whatever comes."""

    def __init__(self) -> None:
        self.first: torch.Tensor | None = None

    def __call__(self, model: nn.Module, given: torch.Tensor) -> torch.Tensor:
        self.first = model(given) if self.first is None else self.first
        return self.first


def of_filter(name: str) -> Callable[[nn.Module], None]:
    def zero(model: nn.Module) -> None:
        model.get_submodule(name).weight.data[1] = 0

    return zero


def int8(model: nn.Module) -> None:
    """Round weights to 8 bits, one scale a layer."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            step = module.weight.abs().max() / 127
            module.weight.data = (module.weight / step).round() * step


def judge(
    folder: Path, monkeypatch: pytest.MonkeyPatch, model: nn.Module, dtype: str, change: Change, size: int = IMAGES,
    rounds: str = "",
) -> Any:  # fmt: skip
    """Return the row of an engine that is the model in `dtype`, changed, and judged by the roundings of `rounds`."""

    def make(workload: Workload) -> Engine:
        model, given = workload.placed(copy.deepcopy(workload.model)), workload.input()

        def step() -> torch.Tensor:
            with torch.no_grad():
                return change(model, given)

        return workload.local(step, given), BuildCost()

    monkeypatch.setitem(catalogue.ENGINES, "changed", Recipe(make, rounds=rounds))
    begun = study(folder, engines=("changed",), batch_sizes=(size,), dtype=dtype, measure_iters=1, min_seconds=1e-3)
    begun.model = model
    begun.__post_init__()
    begun.run()
    return begun.store.read(TABLE).iloc[0]


def changed_weights(model: nn.Module, change: Callable[[nn.Module], None]) -> nn.Module:
    changed = copy.deepcopy(model)
    change(changed)
    return changed


@pytest.mark.parametrize("size", [1, pytest.param(IMAGES, marks=pytest.mark.long)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_model_in_half_precision_is_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: nn.Module, dtype: str, size: int
):
    row = judge(tmp_path, monkeypatch, model, dtype, right, size)
    assert row["status"] == "ok", row["reason"]
    assert 0 < row["image_error"] < row["image_tolerance"] < 0.3


@pytest.mark.long
def test_images_that_roundings_move_further_than_the_first_are_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: nn.Module
):
    scenes = pictures.scenes

    def brighter(count: int, side_px: int, seed: int) -> torch.Tensor:
        images = scenes(count, side_px, seed)
        images[agreement.JUDGED_IMAGES :] *= 8
        return images

    monkeypatch.setattr(pictures, "scenes", brighter)
    row = judge(tmp_path / "right", monkeypatch, model, "float16", right)
    assert row["status"] == "ok", row["reason"]
    assert row["image_error"] < row["image_tolerance"]
    assert judge(tmp_path / "replaced", monkeypatch, model, "float16", replaced)["status"] == "wrong"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("change", [constant, Stale(), replaced], ids=["constant", "stale", "replaced"])
def test_an_output_of_other_images_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: nn.Module, dtype: str, change: Change
):
    change = Stale() if isinstance(change, Stale) else change
    row = judge(tmp_path, monkeypatch, model, dtype, change)
    assert row["status"] == "wrong"
    found = re.match(r"the output for an image differs from eager float32 by ([\d.]+) of the distance", row["reason"])
    assert float(found[1]) > 0.9


def test_a_constant_output_is_wrong_for_one_image_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: nn.Module
):
    assert judge(tmp_path, monkeypatch, model, "bfloat16", Stale(), size=1)["status"] == "wrong"


@pytest.mark.parametrize(
    ("dtype", "change"),
    [
        *(("float16", of_filter(name)) for name in ("conv1", "layer2.0.conv1", "layer4.1.conv2")),
        ("bfloat16", of_filter("conv1")),
        ("float16", int8),
        ("bfloat16", int8),
    ],
)
def test_other_weights_are_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: nn.Module, dtype: str, change: Callable[[nn.Module], None]
):
    weights = changed_weights(model, change).to(DTYPES[dtype])
    row = judge(tmp_path, monkeypatch, model, dtype, lambda _, given: weights(given))
    assert row["status"] == "wrong"


@pytest.mark.long
def test_an_engine_in_8_bits_is_judged_by_what_they_move(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: nn.Module
):
    in_8_bits = reference.rounded(model, "int8").half()
    rows = [
        judge(tmp_path / name, monkeypatch, model, "float16", change, rounds=rounds)
        for name, change, rounds in (
            ("right", lambda _, given: in_8_bits(given), "int8"),
            ("for 16 bits", lambda _, given: in_8_bits(given), ""),
            ("constant", constant, "int8"),
            ("replaced", replaced, "int8"),
        )
    ]
    assert [row["status"] for row in rows] == ["ok", "wrong", "wrong", "wrong"]
    assert 0.02 < rows[0]["image_error"] < rows[0]["image_tolerance"] < 0.5


def test_a_model_that_8_bits_drown_is_unsupported_by_that_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: nn.Module
):
    monkeypatch.setattr(agreement, "_MOST", 0.05)
    row = judge(tmp_path, monkeypatch, model, "float16", right, rounds="int8")
    assert row["status"] == "unsupported"
    assert re.search(r"the roundings of int8 move its outputs by .* show: give it trained weights$", row["reason"])


def test_a_model_whose_outputs_are_all_alike_is_not_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: nn.Module
):
    alike = changed_weights(model, lambda each: each.fc.weight.data.zero_())
    row = judge(tmp_path, monkeypatch, alike, "float16", right)
    assert row["status"] == "failed"
    assert "cannot be judged: its outputs are alike for all images" in row["reason"]


def test_a_model_that_roundings_drown_is_not_judged():
    far = nn.Sequential(nn.Conv2d(3, 4, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    far[0].bias.data += 1000
    images = torch.randn(8, 3, 4, 4, generator=torch.Generator().manual_seed(0))
    with pytest.raises(ValueError, match="the roundings of bfloat16 move its outputs by"):
        agreement.judged(far, images, LAYERS, "bfloat16", "tf32")
    far[0].weight.data *= 1e6
    with pytest.raises(ValueError, match="its numbers leave the range of float16"):
        agreement.judged(far, images, LAYERS, "float16", "tf32")


LAYERS = [layer(in_channels=3, kernel=(1, 1))]


def test_what_is_allowed_follows_the_type(model: nn.Module):
    images = torch.randn(8, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    exact, tf32, half, short = (
        agreement.judged(model, images, LAYERS, *kind).allowed
        for kind in (("float32", "fp32"), ("float32", "tf32"), ("float16", "tf32"), ("bfloat16", "tf32"))
    )
    assert exact < tf32 / 10
    assert half < tf32 < short


def test_an_output_of_another_shape_is_wrong():
    assert agreement.Agreement(1.0, 0.1).error(torch.zeros(2, 3), torch.zeros(2, 4).double()) == float("inf")


def test_the_largest_error_of_an_image_counts():
    exact = torch.zeros(4, 3).double()
    outputs = torch.zeros(4, 3)
    outputs[2] = torch.tensor([3.0, 4.0, 0.0])
    assert agreement.Agreement(2.0, 0.1).error(outputs, exact) == 2.5


def test_top1_counts_images_with_the_same_largest_class():
    exact = torch.eye(4).double()
    outputs = exact.clone()
    outputs[0] = torch.tensor([0.0, 1, 0, 0])
    assert agreement.top1_agreement_pct(outputs, exact) == 75
    assert agreement.least(75.0, None) == 75.0
    assert agreement.least(None) is None


@pytest.mark.parametrize("rows_first", [True, False])
def test_more_images_than_are_rounded_together_are_judged_as_one(rows_first: bool, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(agreement, "_AT_ONCE", 3)

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y: torch.Tensor = self.conv(x).flatten(1)
            return y if rows_first else y.t()  # features first, as some models of sequences have them

    images = torch.randn(8, 3, 6, 6, generator=torch.Generator().manual_seed(0))
    images[7] *= 50
    model = Model().eval()
    judge = agreement.judged(model, images, LAYERS, "float16", "tf32")
    monkeypatch.setattr(agreement, "_AT_ONCE", 8)
    assert agreement.judged(model, images, LAYERS, "float16", "tf32").allowed == pytest.approx(judge.allowed)
    with torch.no_grad():
        exact = model(images).double()
    few = agreement.Agreement(judge.scale, 1e-9, "float16")
    assert few.over(model, images, exact).allowed == pytest.approx(judge.allowed)


def test_images_that_roundings_move_too_far_are_not_judged():
    model = nn.Conv2d(3, 4, 3).eval()
    images = torch.randn(8, 3, 6, 6, generator=torch.Generator().manual_seed(0))
    judge = agreement.judged(model, images, LAYERS, "float16", "tf32")
    for factor, reason in ((1e6, "leave the range of float16"), (3e3, "that no error would show")):
        with torch.no_grad():
            exact = model(images * factor).double()
        with pytest.raises(ValueError, match=reason):
            judge.over(model, images * factor, exact)
