"""Images that engines compute: scenes that differ, photographs, and files that are none."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from PIL import Image

from convscope.errors import InputError
from convscope.inference import pictures


def test_scenes_are_drawn_from_their_seed_and_no_two_are_alike():
    found = pictures.scenes(20, 24, 5)
    assert found.shape == (20, 3, 24, 24)
    assert torch.equal(found, pictures.scenes(20, 24, 5))
    both = torch.cat([found, pictures.scenes(20, 24, 6)]).flatten(1)
    assert (torch.cdist(both, both) + 1e9 * torch.eye(40)).min() > 1


def test_scenes_have_the_spread_of_photographs_and_large_surfaces():
    found = pictures.scenes(16, 64, 0)
    assert found.mean().abs() < 0.5
    assert 0.7 < found.std() < 1.5
    neighbours = torch.corrcoef(torch.stack([found[..., 1:].flatten(), found[..., :-1].flatten()]))[0, 1]
    assert neighbours > 0.7  # of noise it is 0


def test_photographs_are_those_of_scikit_learn_or_of_a_folder(tmp_path: Path):
    bundled = pictures.photographs(3, 32, 0)
    assert bundled.shape == (3, 3, 32, 32)
    assert not torch.equal(bundled[0], bundled[2])
    Image.new("L", (60, 40), 255).save(tmp_path / "white.PNG")
    found = pictures.photographs(2, 8, 0, tmp_path)
    expected = (1 - torch.tensor([0.485, 0.456, 0.406])) / torch.tensor([0.229, 0.224, 0.225])
    torch.testing.assert_close(found, expected.view(1, 3, 1, 1).expand(2, 3, 8, 8), atol=1e-4, rtol=0)


def test_a_folder_without_photographs_is_bad_input(tmp_path: Path):
    with pytest.raises(InputError, match=re.escape(f"--images {tmp_path}: there is no .jpg, .jpeg, .png file")):
        pictures.photographs(1, 8, 0, tmp_path)
    (tmp_path / "x.jpg").write_text("no picture")
    with pytest.raises(InputError, match=r"--images .*x\.jpg: it cannot be read"):
        pictures.photographs(1, 8, 0, tmp_path)


def test_without_scikit_learn_a_folder_is_asked_for(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(__import__("sys").modules, "sklearn.datasets", None)
    with pytest.raises(InputError, match="name a folder with --images, or pip install scikit-learn"):
        pictures.photographs(1, 8, 0)
