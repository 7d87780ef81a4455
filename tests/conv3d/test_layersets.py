"""Sets of 3-D layers: those that come with the program, and what is refused."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from convscope.conv3d import layersets
from convscope.convolution.sources import table
from convscope.errors import InputError

HEADER = ",".join(table.columns(3)) + "\n"
ROW = "one,2,4,8,8,9,10,1x3x3,1,0x1x1,1,2\n"


def test_cosmoflow_halves_its_sides_and_doubles_its_filters():
    layers = layersets.load("cosmoflow")
    assert [(layer.in_channels, layer.out_channels, layer.size[0]) for layer in layers] == [
        (4, 32, 128), (32, 64, 64), (64, 128, 32), (128, 256, 16), (256, 512, 8)
    ]  # fmt: skip
    assert all(layer.output_size == layer.size for layer in layers)
    assert [layer.batch for layer in layersets.load("cosmoflow", 16)] == [16] * 5


def test_the_seven_layers_of_cosmoflow_go_from_1_to_256_channels():
    layers = layersets.load("cosmoflow7")
    assert [layer.in_channels for layer in layers] == [1, 16, 32, 64, 128, 256, 256]
    assert [layer.out_channels for layer in layers] == [16, 32, 64, 128, 256, 256, 256]
    pooled = [2, 2, 2, 2, 2, 1]  # by how much what follows a layer shrinks its output
    sides = [layer.output_size[0] // less for layer, less in zip(layers, pooled, strict=False)]
    assert sides == [layer.size[0] for layer in layers[1:]]


@pytest.mark.parametrize("name", layersets.names())
def test_every_set_of_the_program_is_legal(name: str):
    assert all(table.why_invalid(layer) is None for layer in layersets.load(name))


def test_the_layers_of_a_model_are_those_of_its_file():
    assert layersets.load("model:torchvision:r3d_18", 8) == layersets.load("r3d_18")


@pytest.mark.parametrize("at", range(20))
def test_shape_and_operations_are_pytorchs(at: int):
    layer = layersets.load("r3d_18", 1)[at]
    shape = layer.convolution("float32", "fp32")
    with torch.device("meta"):
        y = torch.nn.functional.conv3d(
            torch.empty(shape.input), torch.empty(shape.weight), None, shape.stride, shape.padding
        )
    assert tuple(y.shape) == layer.output
    assert layer.flops == 2 * y.numel() * math.prod(shape.weight[1:])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "line 1: the columns must be layer,batch"),
        (HEADER, "it has no layers"),
        (HEADER + "one,2\n", "line 2: 2 cells where 12 belong"),
        (HEADER + ROW.replace("1x3x3", "1x3"), "line 2: kernel is '1x3': say one number, or three"),
        (HEADER + ROW.replace("1x3x3", "x"), "line 2: kernel is 'x'"),
        (HEADER + ROW + ROW.replace(",8,8,9", ",-8,8,9"), "line 3: filters is '-8': say a whole number"),
        (HEADER + ROW.replace("1,2\n", "1,3\n"), "groups 3 must divide channels 4 and filters 8"),
        (HEADER + ROW.replace("1,2\n", "0,2\n"), "dilation 0: each must be at least 1"),
        (HEADER + ROW.replace("8,9,10", "8,9,0"), "size 8x9x0: each must be at least 1"),
        (HEADER + ROW.replace("1x3x3", "1x12x3"), "the kernel (12, dilation 1) is larger than the padded height (11)"),
    ],
)
def test_a_row_that_cannot_be_is_named(text: str, said: str):
    with pytest.raises(InputError) as found:
        table.parse(text, "here.csv", 3)
    assert said in str(found.value)
    assert str(found.value).startswith("here.csv")


@pytest.mark.parametrize(
    ("params", "said"),
    [
        ("nothing", "choose one of c3d, cosmoflow, cosmoflow7, r3d_18, unet3d"),
        ("model:torchvision:resnet18", "NAME one of"),
        ("model:timm:x", "NAME one of"),
    ],
)
def test_a_set_that_is_not_there_is_told(params: str, said: str):
    with pytest.raises(InputError, match="--params") as found:
        layersets.load(params)
    assert said in str(found.value)


def test_the_mark_that_a_spreadsheet_writes_first_is_no_part_of_a_name(tmp_path: Path):
    path = tmp_path / "layers.csv"
    path.write_bytes(b"\xef\xbb\xbf" + (layersets.FOLDER / "c3d.csv").read_bytes())
    assert layersets.load(str(path)) == layersets.load("c3d")
