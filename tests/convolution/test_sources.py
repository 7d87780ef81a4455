"""Sources of models: what each builds and takes, and what is said of names that lead nowhere."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from fakes import ROOT
from torch import nn

from convscope.convolution import models, names
from convscope.convolution.sources.files import ModuleSource
from convscope.convolution.sources.network import Network
from convscope.convolution.sources.shapes import with_convolutions
from convscope.convolution.sources.source import FirstTensor, first_tensor
from convscope.errors import InputError
from convscope.storage.paths import slug

OWN = str(ROOT / "tests" / "fakes" / "own_models.py")
TINY_HF = f"hf:{ROOT / 'tests' / 'data' / 'hf_tiny_resnet'}"
TABLE = "layer,batch,channels,filters,height,width,kernel,stride,padding,dilation,groups\n"
ROWS = "c.1,1,3,8,32,32,3,1,1,1,1\nc.2,1,8,8,16,20,1x3,1,0,1,2\n"


@pytest.fixture
def exported(tmp_path: Path) -> str:
    layers = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3, groups=2, stride=2)
    path = tmp_path / "net.pt2"
    torch.export.save(torch.export.export(nn.Sequential(*layers).eval(), (torch.ones(2, 3, 16, 16),)), path)
    return str(path)


@pytest.fixture
def table(tmp_path: Path) -> str:
    (tmp_path / "layers.csv").write_text(TABLE + ROWS)
    return str(tmp_path / "layers.csv")


def output_of(name: str, size: int, batch_size: int) -> object:
    source = models.find_source(name)
    with torch.inference_mode():
        return source.build(0)(*source.inputs(size, batch_size, 0))


@pytest.mark.parametrize(
    ("name", "size", "count", "first"),
    [
        ("torchvision:fcn_resnet50", 64, 55, "backbone.conv1"),
        ("torchvision:vit_b_16", 224, 1, "conv_proj"),
        ("timm:resnet18", 64, 20, "conv1"),
        ("timm:vit_tiny_patch16_224", 224, 1, "patch_embed.proj"),
        (TINY_HF, 64, 6, "resnet.embedder.embedder.convolution"),
        (f"{OWN}:Branch,width=2", 64, 2, "first"),
        (f"{OWN}:pair", 48, 1, "look"),
        ("fakes.own_models:Branch", 64, 2, "first"),
    ],
)
def test_a_source_of_each_kind_lists_its_convolutions(name: str, size: int, count: int, first: str):
    source = models.find_source(name)
    layers = models.layers_of(source, size, 2)
    assert (len(layers), layers[0].name, layers[0].batch) == (count, first, 2)
    assert len(source.digest) == 64
    assert source.fixed_px in (None, size)


def test_arguments_of_a_name_reach_the_callable():
    assert models.layers_of(models.find_source(f"{OWN}:Branch,width=2,num_classes=7"), 64)[1].weight == (7, 2, 3, 3)
    assert models.build("timm:resnet18,num_classes=3").num_classes == 3
    assert models.build(f"{TINY_HF},num_labels=5").num_labels == 5


def test_example_inputs_are_repeated_up_to_the_batch():
    source = models.find_source(f"{OWN}:pair")
    image, vector = source.inputs(48, 3, seed=0)
    assert (image.shape, vector.shape) == ((3, 3, 40, 48), (3, 5))
    assert torch.equal(image[0], image[2])
    assert first_tensor(output_of(f"{OWN}:pair", 48, 3)).shape == (3, 4)


DRAWN = """
import random, numpy, torch
from torch import nn
def net():
    module = nn.Conv2d(3, 4, 3)
    module.weight.data += random.random() + numpy.random.rand()
    return module, torch.randn(1, 3, 8, 8)
"""


def test_two_sources_of_one_callable_draw_the_same_inputs_and_weights(tmp_path: Path):
    (tmp_path / "net.py").write_text(DRAWN)
    before = torch.random.get_rng_state(), random.getstate()
    (one, weights), (other, same) = [
        (source.inputs(8, 1, 0)[0], source.build(3).weight)
        for source in (models.find_source(f"{tmp_path}/net.py:net") for _ in range(2))
    ]
    assert torch.equal(one, other)
    assert torch.equal(weights, same)
    assert torch.equal(torch.random.get_rng_state(), before[0])
    assert random.getstate() == before[1]


def test_an_exported_program_has_its_convolutions_as_modules_and_the_same_output(exported: str):
    source = models.find_source(exported)
    assert source.fixed_px == 16
    layers = models.layers_of(source, 16, 2)
    assert [(layer.name, layer.groups, layer.stride, layer.bias) for layer in layers] == [
        ("0", 1, (1, 1), True), ("3", 2, (2, 2), True),
    ]  # fmt: skip
    program = torch.export.load(exported).module()
    given = torch.randn(2, 3, 16, 16)
    with torch.inference_mode():
        assert torch.equal(with_convolutions(torch.export.load(exported).module())(given), program(given))


def test_a_filter_that_is_used_twice_is_two_modules():
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(4, 4, 3, padding=1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.conv(self.conv(x).relu())

    given = torch.randn(1, 4, 8, 8)
    program = torch.export.export(Twice().eval(), (given,)).module()
    built = with_convolutions(program)
    assert len([each for each in built.modules() if isinstance(each, nn.Conv2d)]) == 2
    assert torch.equal(built(given), program(given))


class Block(nn.Module):
    """A holder with a filter and children of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(4, 3, 3, 3)), nn.Parameter(torch.randn(4))
        self.scale, self.bn = nn.Parameter(torch.randn(1)), nn.BatchNorm2d(4)
        self.weight_conv = nn.Conv2d(4, 4, 1)
        self.register_buffer("fixed", torch.randn(4, 1, 3, 3), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.bn(nn.functional.conv2d(x, self.weight) + self.bias[:, None, None]) * self.scale
        return nn.functional.conv2d(self.weight_conv(x), self.fixed, groups=4)


class Unusual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.filters, self.block = nn.Parameter(torch.randn(3, 3, 1, 1)), Block()
        self.weight = nn.Parameter(torch.randn(4, 4, 1, 1))
        self.block_conv = nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.block(nn.functional.conv2d(x, self.filters))
        return nn.functional.conv2d(x, self.weight)


def test_a_filter_anywhere_becomes_a_module_under_a_name_that_is_free():
    given = torch.randn(2, 3, 16, 16)
    program = torch.export.export(Unusual().eval(), (given,)).module()
    built = with_convolutions(program)
    names_of = [name for name, each in built.named_modules() if isinstance(each, nn.Conv2d)]
    assert sorted(names_of) == ["block.fixed_conv", "block.weight_conv", "block_conv", "filters_conv", "weight_conv"]
    with torch.inference_mode():
        assert torch.equal(built(given), program(given))


def test_the_example_model_is_exported_and_listed(tmp_path: Path):
    module = models.build(f"{ROOT / 'examples' / 'own_model.py'}:make")
    path = tmp_path / "own.pt2"
    torch.export.save(torch.export.export(module, (torch.randn(1, 3, 64, 64),)), path)
    layers = models.convolutions(str(path), 64)
    assert [layer.name for layer in layers] == ["stem", "depthwise_conv", "body"]
    assert output_of(str(path), 64, 1).shape == (1, 10)


def test_a_table_is_a_model_of_its_layers_each_with_an_input_of_its_own(table: str):
    layers = models.convolutions(table, 32)
    assert [(layer.name, layer.input) for layer in layers] == [("c_1", (1, 3, 32, 32)), ("c_2", (1, 8, 16, 20))]
    assert [layer.batch for layer in models.convolutions(table, 32, 4)] == [4, 4]
    first, second = output_of(table, 32, 1)
    assert (first.shape, second.shape) == ((1, 8, 32, 32), (1, 8, 16, 18))


def test_a_table_of_another_batch_than_1_takes_it_alone(tmp_path: Path):
    path = tmp_path / "of8.csv"
    path.write_text(TABLE + ROWS.replace("c.1,1,", "c.1,8,").replace("c.2,1,", "c.2,8,"))
    assert [layer.batch for layer in models.convolutions(str(path), 32, 8)] == [8, 8]
    for other in (1, 4):
        with pytest.raises(InputError, match=r"of8\.csv is a table of batch 8: say --batch-size 8$"):
            models.convolutions(str(path), 32, other)
    path.write_text(TABLE + ROWS.replace("c.1,1,", "c.1,8,"))
    with pytest.raises(InputError, match=r"of8\.csv has layers of batch 1, 8: a run has one batch size"):
        models.convolutions(str(path), 32, 8)


def test_a_program_takes_the_batch_that_it_was_exported_for_or_any_if_that_is_dynamic(tmp_path: Path):
    module, given = nn.Conv2d(3, 4, 3).eval(), torch.randn(4, 3, 8, 8)
    static, dynamic = str(tmp_path / "static.pt2"), str(tmp_path / "dynamic.pt2")
    torch.export.save(torch.export.export(module, (given,)), static)
    sizes = ({0: torch.export.Dim("batch")},)
    torch.export.save(torch.export.export(module, (given,), dynamic_shapes=sizes), dynamic)
    assert models.convolutions(static, 8, 4)[0].batch == 4
    for other in (1, 8):
        with pytest.raises(InputError, match=r"static\.pt2 was exported for batch 4: say --batch-size 4, or "):
            models.convolutions(static, 8, other)
        assert models.convolutions(dynamic, 8, other)[0].batch == other
    assert Network(models.find_source(static), 4, dtype="bfloat16").on(torch.device("cpu"))


def test_example_inputs_have_a_batch():
    with pytest.raises(InputError, match=r"inputs of conv2d need a batch as their first extent: the first is of 9$"):
        ModuleSource.of(nn.Conv2d(3, 4, 3), torch.ones(9))
    source = ModuleSource.of(nn.Conv2d(3, 4, 3), torch.ones(3, 8, 9))
    with pytest.raises(InputError, match=r"3×8×9, .*say --batch-size 3, or give an image a batch \(unsqueeze\(0\)\)"):
        source.inputs(9, 1, 0)
    assert source.inputs(9, 3, 0)[0].shape == (3, 8, 9)
    for shape in ((4, 5), (1, 8, 9), (4, 3, 8, 9)):
        assert ModuleSource.of(nn.Identity(), torch.ones(shape)).inputs(9, 2, 0)[0].shape == (2, *shape[1:])


def test_the_size_of_a_table_takes_no_memory(tmp_path: Path):
    (tmp_path / "large.csv").write_text(TABLE + "c,1,1000000,1,100000,100000,1,1,0,1,1\n")
    assert models.find_source(str(tmp_path / "large.csv")).fixed_px == 100_000


@pytest.mark.parametrize(
    ("row", "said"),
    [("c,1,3,8,32,32,3,1,1,1", "line 2: 10 cells where 11 belong"), ("c,1,3,8,32,32,1x2x3,1,1,1,1", "two such as 1x3"),
     ("c,1,3,8,0,32,3,1,1,1,1", "size 0x32: each must be at least 1")],
)  # fmt: skip
def test_a_table_with_a_wrong_row_says_where(tmp_path: Path, row: str, said: str):
    (tmp_path / "wrong.csv").write_text(TABLE + row + "\n")
    with pytest.raises(InputError, match=rf"wrong\.csv, .*{said}"):
        models.convolutions(str(tmp_path / "wrong.csv"), 32)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (f"{OWN}:Branchh", r"defines no Branchh \(nearest: Branch\)"),
        (f"{OWN}:NUMBER", "is a int, and cannot be called"),
        (f"{OWN}:breaks", r"failed: RuntimeError: no weights here \(own_models.py, line \d+\)$"),
        (f"{OWN}:text", "returned a str: it must return a torch.nn.Module, or a module and example inputs"),
        (f"{OWN}:words", "the example inputs of .* must be a tensor, or a tuple of tensors"),
        (f"{OWN}:Branch,depth=3", "failed: TypeError: .*depth"),
        (OWN, r"name the callable in it that returns the model, .*own_models\.py:NAME"),
        ("nowhere.py:net", "there is no file nowhere.py"),
        ("no_package.at_all:net", "cannot be imported: ModuleNotFoundError"),
        ("timm:resnet81", r"timm has no model 'resnet81': .*nearest: resnet18"),
        ("timm:resnet18,depth=3", "cannot be built: .*depth"),
        ("hf:resnett", r"no model hf:resnett .*nearest: resnet"),
        ("hf:bert", "is no vision model of transformers|cannot"),
        ("torchvision:resnet51", "torchvision has no model 'resnet51'.*nearest: torchvision:resnet50"),
        ("missing.pt2", "there is no file missing.pt2"),
        (
            "lenet",
            f"or {names.KINDS}",
        ),
    ],
)
def test_a_name_that_leads_nowhere_is_one_line(name: str, said: str):
    def listed() -> None:
        source = models.find_source(name)
        source.build(0)
        models.layers_of(source, source.fixed_px or 64)

    with pytest.raises(InputError, match=said) as refused:
        listed()
    assert "\n" not in str(refused.value)


def test_a_file_that_is_no_program_is_one_line(tmp_path: Path):
    (tmp_path / "net.pt2").write_text("nothing")
    with pytest.raises(InputError, match=r"net\.pt2 is no program of torch\.export that can be read"):
        models.find_source(str(tmp_path / "net.pt2")).build(0)


def test_own_weights_are_not_asked_for_trained_ones(table: str):
    for name in (f"{OWN}:Branch", table, "hf:resnet"):
        with pytest.raises(InputError, match="brings its own weights: leave out --pretrained"):
            models.find_source(name).build(0, pretrained=True)


def test_a_library_that_fails_in_any_way_is_one_line(monkeypatch: pytest.MonkeyPatch):
    vit = "timm:vit_base_patch16_224,img_size="
    assert models.find_source(f"{vit}(96,96)").fixed_px == 96
    for size in ("(96,128)", "none", "[3,3,3]"):
        with pytest.raises(InputError, match=r"img_size=.*: say one number of pixels"):
            _ = models.find_source(vit + size).fixed_px

    for kind, owner, attribute, name in (
        (KeyError, "timm", "create_model", "timm:resnet18"),
        (RuntimeError, "torchvision.models", "get_model", "torchvision:resnet18"),
        (KeyError, "transformers.AutoModelForImageClassification", "from_config", TINY_HF),
    ):
        source = models.find_source(name)
        monkeypatch.setattr(f"{owner}.{attribute}", Mock(side_effect=kind("depth")))
        for build in (source.shapes, partial(source.build, 0)):
            with pytest.raises(InputError, match=r"cannot be built: (KeyError|RuntimeError): '?depth'?"):
                build()


def test_a_model_that_fails_in_any_way_at_another_size_takes_its_own(monkeypatch: pytest.MonkeyPatch):
    class Fixed(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise KeyError(x.shape)

    source = models.find_source("hf:vit")
    monkeypatch.setattr(type(source), "shapes", lambda self: Fixed())
    assert source.fixed_px == 224


@pytest.mark.parametrize("wrap", [lambda x: {"a": None, "b": [x]}, lambda x: [3, (x,)], lambda x: x])
def test_the_first_tensor_of_an_output_is_found(wrap: Callable[[torch.Tensor], object]):
    given = torch.ones(2)
    assert first_tensor(wrap(given)) is given


def test_an_output_without_a_tensor_is_bad_input():
    with pytest.raises(InputError, match="returns a str, in which there is no tensor"):
        first_tensor("none")


def test_a_model_to_be_trained_has_the_classes_asked_for():
    for name in ("timm:resnet18", TINY_HF, f"{OWN}:Branch", "torchvision:resnet18"):
        model = models.classifier(name, 6, "imagenet", 0)
        assert model.training, name
        assert model.eval()(torch.ones(1, 3, 64, 64)).shape == (1, 6), name
    assert isinstance(models.classifier(TINY_HF, 6, "imagenet", 0), FirstTensor)
    with pytest.raises(InputError, match="its number of classes cannot be chosen"):
        models.classifier("torchvision:fcn_resnet50", 6, "imagenet", 0)


@pytest.mark.parametrize(
    ("name", "folder"),
    [
        ("../nets/net.py:make,width=2", "net.py_make_width_2"),
        ("hf:microsoft/resnet-50", "hf_microsoft_resnet-50"),
        ("torchvision:regnet_y_400mf", "regnet_y_400mf"),
        ("timm:vit_small_patch16_224.augreg", "timm_vit_small_patch16_224.augreg"),
        ("/data/a b/net.pt2", "net.pt2"),
        ("pkg.nets:make", "pkg.nets_make"),
    ],
)
def test_a_name_in_a_path(name: str, folder: str):
    assert slug(name) == folder


@pytest.mark.parametrize(
    ("name", "kind"),
    [("resnet50", None), ("timm:a.b", None), ("hf:a/b", None), ("a/b.py:c", names.FILE), ("a.b:c", names.IMPORTED),
     ("a.pt2", names.EXPORTED), ("a.csv", names.TABLE), ("Torchvision:x", None), ("b.py:c,d='x,y',e=1", names.FILE)],
)  # fmt: skip
def test_the_kind_of_a_name(name: str, kind: str | None):
    assert names.kind_of(name) == kind


def test_arguments_are_literals_or_text():
    assert names.arguments_of("b.py:c,d='x,y',e=1,f=relu,g=(1,2)") == {"d": "x,y", "e": 1, "f": "relu", "g": (1, 2)}
    with pytest.raises(InputError, match=r"--model-args width: write key=value"):
        names.with_arguments("b.py:c", ["width"])


def test_names_of_torchvision_are_those_it_can_build():
    import torchvision

    listed = {each for each in torchvision.models.list_models() if not each.startswith("quantized_")}
    assert names.torchvision_models() == listed
