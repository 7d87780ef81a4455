"""Facts that are read from the machine, from answers that are known."""

from __future__ import annotations

import platform
import re
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import convscope
from convscope.profiling.rows import SCHEMA
from convscope.storage import environment, paths
from convscope.storage.paths import Combination


@pytest.mark.parametrize(
    ("cpuinfo", "name"),
    [
        ("processor\t: 0\nmodel name\t: Maker: Model (R) @ 2.0\nmodel name\t: other\n", "Maker: Model (R) @ 2.0"),
        ("processor\t: 0\n", platform.machine()),
        (None, platform.machine()),
    ],
)
def test_the_processor_is_the_first_model_name(monkeypatch: pytest.MonkeyPatch, cpuinfo: str | None, name: str):
    def read_text(path: Path) -> str:
        if cpuinfo is None:
            raise OSError
        return cpuinfo

    monkeypatch.setattr(environment.Path, "read_text", read_text)
    assert environment.processor_name() == name


@pytest.mark.parametrize(("card", "driver"), [(None, None), ({"driver": "580.159"}, "580.159")])
def test_a_gpu_is_described_by_pytorch_and_its_card(monkeypatch: pytest.MonkeyPatch, card, driver: str | None):
    known = SimpleNamespace(name="NVIDIA H200", uuid="1-2-3", major=9, minor=0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: known)
    found = environment.read(torch.device("cuda"), card)
    assert (found.gpu_name, found.compute_capability, found.driver) == ("NVIDIA H200", "9.0", driver)
    assert (found.gpu_uuid or "").endswith("1-2-3")
    assert found.cuda == torch.version.cuda


@pytest.mark.parametrize(("answer", "commit"), [(" 812e34-dirty\n", "g812e34-dirty"), ("\n", None)])
def test_the_commit_is_what_git_answers_within_ten_seconds(monkeypatch, answer: str, commit: str | None):
    asked = {}

    def git(command: list[str], **options: object) -> SimpleNamespace:
        asked.update(options, command=command[0])
        return SimpleNamespace(stdout=answer, returncode=128)

    monkeypatch.setattr(subprocess, "run", git)
    assert environment.git_commit() == commit
    assert asked == {"command": "git", "capture_output": True, "text": True, "timeout": 10, "check": False}


def test_a_wheel_has_its_version_though_it_lies_in_somebodys_repository(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(subprocess, "run", lambda *command, **options: SimpleNamespace(stdout="812e34"))
    assert environment.git_commit() == "g812e34"
    monkeypatch.setattr(paths, "IS_CHECKOUT", False)
    assert environment.git_commit() == f"v{convscope.__version__}"


def test_pytorch_is_imported_only_when_something_is_read():
    assert not hasattr(environment, "pytorch")


def test_the_stages_measure_one_ten_and_a_hundred_sizes():
    assert paths.SIZES_BY_STAGE == {"1_sanity": 1, "2_quick": 10, "3_full": 100}


def test_nobody_guesses_the_name_of_what_is_being_written(tmp_path: Path):
    names = {paths.new_beside(tmp_path / "run.json").name for _ in range(2)}
    assert len(names) == 2
    assert all(re.fullmatch(r"\.run\.json\.[0-9a-f]{16}\.new", name) for name in names)


def test_results_lie_beside_the_package():
    assert Path(__file__).parents[2] == paths.ROOT
    assert paths.RESULTS == paths.ROOT / "results"


def test_each_version_of_a_profile_has_an_upgrade_to_the_next():
    assert paths.PROFILE_VERSION == SCHEMA.version == len(SCHEMA.upgrades) + 1


def test_a_combination_is_named_as_its_folder_and_as_people_write_it():
    found = Combination("torchvision:vgg16", "implicit gemm", "h200")
    assert found.folder_name == "vgg16_implicit_gemm_h200"
    assert str(found) == "torchvision:vgg16, implicit gemm, h200"
    assert paths.slug("timm:a b") == "timm_a_b"
