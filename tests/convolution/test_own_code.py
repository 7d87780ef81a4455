"""The digest of a model of one's own follows the files that its code lies in."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from torch import nn

from convscope.convolution import models
from convscope.convolution.sources import own_code

NET = """
from own_blocks import Block
def net():
    return Block()
"""
BLOCKS = """
import torch
from torch import nn
import own_helpers
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Conv2d(3, 4, 3)
    def forward(self, given):
        return own_helpers.after(self.inner(given))
"""
HELPERS = """
def after(given):
    return given
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, text in (("net", NET), ("own_blocks", BLOCKS), ("own_helpers", HELPERS)):
        (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.setattr(sys, "path", [*sys.path])
    return tmp_path


def digest_in_a_new_process(folder: Path) -> str:
    """Return the digest as a process returns it that has imported nothing of the folder."""
    mine = [name for name in sys.modules if name.startswith((own_code.OF_A_FILE, "own_blocks", "own_helpers"))]
    for name in mine:
        del sys.modules[name]
    own_code.file_digest.cache_clear()
    return models.find_source(f"{folder}/net.py:net").digest


@pytest.mark.parametrize("changed", ["net", "own_blocks", "own_helpers"])
def test_the_digest_follows_every_file_of_ones_own_that_the_model_uses(folder: Path, changed: str):
    before = digest_in_a_new_process(folder)
    (folder / "unused.py").write_text("after = None\n")
    assert digest_in_a_new_process(folder) == before
    path = folder / f"{changed}.py"
    path.write_text(path.read_text() + "# the computation may have changed\n")
    assert digest_in_a_new_process(folder) != before


def test_the_digest_is_the_same_in_another_folder(folder: Path):
    before = digest_in_a_new_process(folder)
    found = own_code.digest(sys.modules["own_blocks"].Block())
    assert len(found) == 64
    elsewhere = folder / "elsewhere"
    elsewhere.mkdir()
    for path in folder.glob("*.py"):
        path.rename(elsewhere / path.name)
    assert digest_in_a_new_process(elsewhere) != before  # its name differs
    assert own_code.digest(sys.modules["own_blocks"].Block()) == found


def test_a_file_that_changes_under_a_process_keeps_the_digest_of_what_was_imported(folder: Path):
    before = digest_in_a_new_process(folder)
    (folder / "own_helpers.py").write_text("after = None\n")
    assert models.find_source(f"{folder}/net.py:net").digest == before


def test_what_is_installed_is_no_code_of_ones_own():
    assert own_code.digest(nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU())) == ""
