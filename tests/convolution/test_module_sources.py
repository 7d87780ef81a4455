"""Digests of models, and modules that are at hand as sources."""

from __future__ import annotations

import pickle
from pathlib import Path

import torch
from fakes import ROOT
from torch import nn

from convscope.convolution import models
from convscope.convolution.sources.files import ModuleSource, weights_digest

TINY_HF = f"hf:{ROOT / 'tests' / 'data' / 'hf_tiny_resnet'}"


def test_the_digest_follows_the_content_of_a_file(tmp_path: Path):
    path = tmp_path / "net.py"
    path.write_text("def net(): pass\n")
    one = models.find_source(f"{path}:net").digest
    assert models.find_source(f"{path}:net").digest == one
    path.write_text("def net(): return None\n")
    assert models.find_source(f"{path}:net").digest != one


LOADING = """
import torch
from torch import nn
from pathlib import Path
def net():
    module = nn.Conv2d(3, {filters}, 3)
    kept = Path(__file__).with_name("net.pt")
    if kept.exists():
        module.load_state_dict(torch.load(kept))
    return module
"""


def test_the_digest_follows_the_weights_that_a_callable_loads_and_nothing_drawn(tmp_path: Path):
    (tmp_path / "net.py").write_text(LOADING.format(filters=4))
    name = f"{tmp_path}/net.py:net"
    one = models.find_source(name).digest
    assert models.find_source(name).digest == one
    torch.save(nn.Conv2d(3, 4, 3).state_dict(), tmp_path / "net.pt")
    assert models.find_source(name).digest != one


def test_a_file_that_has_changed_is_imported_and_listed_again(tmp_path: Path):
    for filters in (4, 5):
        (tmp_path / "net.py").write_text(LOADING.format(filters=filters))
        (layer,) = models.convolutions(f"{tmp_path}/net.py:net", 32)
        assert layer.out_channels == filters


def test_the_digest_of_a_folder_follows_its_trained_weights(tmp_path: Path):
    kept = Path(TINY_HF.removeprefix("hf:"), "config.json").read_text()
    (tmp_path / "config.json").write_text(kept)
    digests = [models.find_source(f"hf:{tmp_path}").digest]
    for content in (b"one", b"two"):
        (tmp_path / "model.safetensors").write_bytes(content)
        digests.append(models.find_source(f"hf:{tmp_path}").digest)
    assert len(set(digests)) == 3


def test_a_digest_has_no_addresses():
    class Shown(nn.Module):
        def extra_repr(self) -> str:
            return repr(object())

    assert weights_digest(Shown()) == weights_digest(Shown())


def test_a_module_is_copied_and_its_digest_is_of_its_weights():
    module = nn.Sequential(nn.Conv2d(3, 4, 3))
    source = ModuleSource.of(module)
    assert source.name == "sequential"
    built = source.build(0)
    assert built[0] is not module[0]
    before = source.digest
    with torch.no_grad():
        module[0].weight += 1
    assert weights_digest(module) != before
    again = pickle.loads(ModuleSource.of(module, torch.ones(2, 3, 8, 8)).pickled())
    assert again.batch_size == 2
    assert torch.equal(again.build(0)[0].weight, module[0].weight)


def test_two_modules_of_one_name_are_two_sources():
    one, other = ModuleSource.of(nn.Conv2d(3, 4, 3)), ModuleSource.of(nn.Conv2d(3, 8, 3))
    assert one.name == other.name
    assert [models.layers_of(each, 16)[0].out_channels for each in (one, other)] == [4, 8]


class Strided(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.stride = nn.Conv2d(3, 4, 3), 1

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv(x[..., :: self.stride])


def test_a_module_that_was_changed_is_another_source():
    module, given = Strided(), torch.ones(1, 3, 16, 16)
    sources = [ModuleSource.of(module, given), ModuleSource.of(module, given)]
    assert sources[0] == sources[1]
    assert hash(sources[0]) == hash(sources[1])
    module.stride = 2
    sources.append(ModuleSource.of(module, given))
    assert models.layers_of(sources[2], 16)[0].size == (16, 8)
    module.conv = nn.Conv2d(3, 8, 3)
    sources.append(ModuleSource.of(module, given))
    assert models.layers_of(sources[3], 16)[0].out_channels == 8
    sources.append(ModuleSource.of(module, torch.ones(1, 3, 32, 16)))
    assert models.layers_of(sources[4], 16)[0].size == (32, 8)
    with torch.no_grad():
        module.conv.weight += 1
    sources.append(ModuleSource.of(module, torch.ones(1, 3, 32, 16)))
    assert len(set(sources)) == 5
