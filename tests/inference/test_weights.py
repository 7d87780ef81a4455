"""Weights of the models that engines compute: drawn so that each layer counts, or read from a file."""

from __future__ import annotations

import copy
import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest
import torch
import torchvision
from fakes.inference import ASKED
from torch import nn

from convscope.convolution import models, roofline
from convscope.errors import InputError
from convscope.inference import agreement, pictures, weights
from convscope.inference.request import build_model, check
from run_inference import main

SIDE_PX = 64


def drawn(model: nn.Module, side_px: int = SIDE_PX) -> nn.Module:
    weights.draw(model, pictures.scenes(8, side_px, 99), 0)
    return model


def allowed(model: nn.Module, dtype: str, side_px: int = SIDE_PX) -> float:
    layers = roofline.layers_of("it", model, (8, 3, side_px, side_px))
    return agreement.judged(model, pictures.scenes(8, side_px, 0), layers, dtype, "tf32").allowed


@pytest.mark.parametrize(
    "name",
    [
        "torchvision:resnet18",
        "torchvision:mobilenet_v3_large",
        "torchvision:efficientnet_b0",
        "torchvision:convnext_tiny",
        pytest.param("torchvision:swin_t", marks=pytest.mark.long),
        pytest.param("torchvision:vit_b_32", marks=pytest.mark.long),
        pytest.param("densenet121", marks=pytest.mark.long),
    ],
)
def test_a_drawn_model_can_be_judged_and_agrees_with_itself_in_half_precision(name: str):
    side_px = 224 if "vit" in name else SIDE_PX
    model = drawn(models.build(name), side_px)
    limit, images = allowed(model, "bfloat16", side_px), pictures.scenes(8, side_px, 1)
    assert limit < 0.35
    with torch.inference_mode():
        exact = model(images).double()
        scale = float((exact - exact.mean(0)).norm(dim=1).square().mean().sqrt())
        output = copy.deepcopy(model).bfloat16()(images.bfloat16())
    assert agreement.Agreement(scale, limit).error(output, exact) < limit


@pytest.mark.long
def test_without_it_a_deep_model_cannot_be_judged():
    model = models.build("resnet152")
    models.settle(model, (pictures.scenes(8, SIDE_PX, 99),))
    with pytest.raises(ValueError, match="so that no error would show"):
        allowed(model, "bfloat16")
    assert allowed(drawn(models.build("resnet152")), "bfloat16") < 0.35


def test_a_head_of_zeros_and_branches_that_are_scaled_away_count():
    vit = torchvision.models.VisionTransformer(32, 16, 1, 2, 8, 16, num_classes=5).eval()
    assert not vit.heads.head.weight.any()
    with pytest.raises(ValueError, match="its outputs are alike for all images"):
        allowed(vit, "float16", 32)
    token = vit.class_token.clone()
    assert 0 < allowed(drawn(vit, 32), "float16", 32) < 0.1
    assert torch.equal(vit.class_token, token)
    convnext = drawn(models.build("torchvision:convnext_tiny"))
    scales = [each for name, each in convnext.named_parameters() if name.endswith("layer_scale")]
    assert len(scales) == 18
    assert all((each == 1).all() for each in scales)


def test_what_has_been_trained_is_left_as_it_is():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.BatchNorm2d(4))
    with torch.no_grad():
        model.train()(torch.randn(2, 3, 8, 8))
    model[3] = nn.BatchNorm2d(4)
    model.eval()
    before = copy.deepcopy(model.state_dict())
    drawn(model)
    changed = {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}
    assert changed == {"3.bias", "3.running_mean", "3.running_var", "3.num_batches_tracked"}


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """Return a file with the weights of another seed."""
    file = tmp_path / "trained.pt"
    model = build_model(dataclasses.replace(ASKED, seed=5))
    torch.save({"epoch": 3, "model": {f"module.{name}": value for name, value in model.state_dict().items()}}, file)
    return file


def test_weights_of_a_file_are_the_models(saved: Path):
    asked = dataclasses.replace(ASKED, weights=str(saved))
    model, expected = build_model(asked), build_model(dataclasses.replace(ASKED, seed=5))
    for name, value in model.state_dict().items():
        assert torch.equal(value, expected.state_dict()[name])
    assert check(asked).model_digest != check(ASKED).model_digest


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"no weights", "no weights can be read from it"),
        (b"hello", "no weights can be read from it"),
        (b"", "no weights can be read from it"),
        ({1: torch.ones(1)}, "it holds a dict: save a model's state_dict() in it"),
        ([1, 2], "it holds a list: save a model's state_dict() in it"),
        ({"conv1.weight": torch.ones(1)}, "it has the weights of another model (Missing key(s)"),
    ],
)
def test_a_file_that_has_no_weights_is_bad_input(tmp_path: Path, content: Any, said: str):
    file = tmp_path / "file.pt"
    if isinstance(content, bytes):
        file.write_bytes(content)
    else:
        torch.save(content, file)
    with pytest.raises(InputError, match=re.escape(f"--weights {file}: {said}")):
        build_model(dataclasses.replace(ASKED, weights=str(file)))


@pytest.mark.long
def test_trained_weights_have_their_top1_agreement_on_photographs(saved: Path, tmp_path: Path):
    import pandas as pd

    asked = ["--device", "cpu", "--image-size", "32", "--measure", "2", "--warmup", "1", "--min-seconds", "0.01"]
    asked += ["--model", "torchvision:resnet18", "--weights", str(saved), "--dtype", "bfloat16", "--no-energy"]
    folder = tmp_path / "run"
    assert main([*asked, "--engines", "eager", "--batch-sizes", "8", "--output-dir", str(folder)]) == 0
    row = pd.read_csv(folder / "inference.csv").iloc[0]
    assert 50 <= row["top1_agreement_pct"] <= 100
    assert 0 < row["image_error"] < row["image_tolerance"]
