"""What `convscope env` finds: on this machine, and on machines that lack one thing each."""

from __future__ import annotations

import importlib.metadata
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fakes import ROOT

from convscope import __main__ as program
from convscope.equipment import checks
from convscope.equipment.checks import MISSING, THERE, Finding
from convscope.errors import CudnnMissingError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


class NvmlError(Exception):
    """What a fake of NVML raises."""


def monitor(count: int = 0, refusal: str = "") -> Any:
    """Return NVML with so many cards, or one that says why it does not start."""

    def start() -> None:
        if refusal:
            raise NvmlError(refusal)

    return SimpleNamespace(
        NVMLError=NvmlError, nvmlInit=start, nvmlShutdown=lambda: None, nvmlDeviceGetCount=lambda: count,
        nvmlDeviceGetHandleByIndex=lambda index: index, nvmlDeviceGetUUID=lambda handle: f"GPU-{handle}",
    )  # fmt: skip


def without_cuda(version: str | None = "13.0") -> Any:
    return SimpleNamespace(cuda=SimpleNamespace(is_available=lambda: False), version=SimpleNamespace(cuda=version))


def only(found: Any) -> Finding:
    (finding,) = found
    assert isinstance(finding, Finding)
    return finding


def test_a_package_has_its_version_or_the_extra_that_brings_it():
    def version(name: str) -> str:
        if name in ("altair", "triton"):
            raise importlib.metadata.PackageNotFoundError(name)
        return "1.2"

    found = {each.what: each for each in checks.packages(version)}
    assert found["torch"] == Finding("torch", THERE, "1.2: runs every model")
    assert (found["altair"].state, found["altair"].advice) == (MISSING, "pip install 'convscope[report]'")
    assert found["triton"].advice == "pip install triton"


def test_every_part_of_the_installation_has_a_package_that_is_looked_for():
    parts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for package, _, part in checks.PACKAGES:
        assert not part or any(each.startswith(package) for each in parts[part])
    assert {part for _, _, part in checks.PACKAGES} - {""} == {*parts} - {"dev", "docs", "mutants"}


def test_a_card_comes_with_the_driver_and_the_cuda_of_pytorch(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(checks.driver, "newest_cuda", lambda: "13.0")
    monkeypatch.setattr(checks.driver, "version", lambda: "580.159.04")
    cuda = SimpleNamespace(is_available=lambda: True, device_count=lambda: 0)
    first, *_ = checks.cards(SimpleNamespace(cuda=cuda, version=SimpleNamespace(cuda="12.8")), monitor())
    assert first == Finding("driver", THERE, "580.159.04, runs CUDA 13.0 and older, PyTorch was built for CUDA 12.8")


@pytest.mark.parametrize(
    ("commit", "found"), [("gab12-dirty", "0.9, commit ab12-dirty"), ("v0.9", "0.9"), (None, "0.9")]
)
def test_the_version_comes_with_the_commit_of_a_checkout(
    commit: str | None, found: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(checks, "git_commit", lambda: commit)
    assert Finding("convscope", THERE, found) in checks.machine(lambda name: "0.9")


@pytest.mark.parametrize(
    ("torch", "nvml", "found", "advice"),
    [
        (without_cuda(None), monitor(), "this PyTorch has no CUDA", "pip install torch"),
        (without_cuda(), monitor(refusal="Driver Not Loaded"), "no driver answers", "--device cpu"),
        (without_cuda(), monitor(0), "CUDA_VISIBLE_DEVICES=None shows none", "--gres"),
        (without_cuda(), monitor(2), "the driver knows 2, PyTorch can use none", "a driver for CUDA 13.0"),
    ],
)
def test_why_there_is_no_card(torch: Any, nvml: Any, found: str, advice: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    finding = only(checks.cards(torch, nvml))
    assert finding.state == MISSING
    assert found in finding.found
    assert advice in finding.advice


def test_without_cudnn_the_other_checks_go_on(monkeypatch: pytest.MonkeyPatch):
    def version() -> str:
        raise CudnnMissingError("cuDNN 9 cannot be loaded")

    monkeypatch.setattr(checks.library, "version", version)
    assert only(checks.cudnn()).found == "cuDNN 9 cannot be loaded"


def test_counters_of_the_processor_that_may_not_be_read_name_the_command(tmp_path: Path):
    assert only(checks.processor_energy(tmp_path)).advice == "a virtual machine has none"
    package = tmp_path / "intel-rapl:0"
    package.mkdir()
    for name, text in {"name": "package-0\n", "energy_uj": "12\n", "max_energy_range_uj": "999\n"}.items():
        (package / name).write_text(text)
    assert only(checks.processor_energy(tmp_path)) == Finding("CPU, energy", THERE, "RAPL, cpu packages")
    (package / "energy_uj").write_text("no number\n")  # root may read any file: a refusal cannot be had in each test
    finding = only(checks.processor_energy(tmp_path))
    assert (finding.state, "chmod a+r" in finding.advice) == (MISSING, True)


def test_slurm_answers_or_the_stages_run_here():
    assert only(checks.queue(lambda command: "slurm 24.05.3\n")) == Finding("SLURM", THERE, "slurm 24.05.3")
    assert only(checks.queue(lambda command: None)).advice == "the stages run here with --local"


def test_results_can_be_written_or_another_folder_is_to_be_named(tmp_path: Path):
    assert only(checks.results(tmp_path / "not" / "yet")).state == THERE
    assert [*tmp_path.iterdir()] == []
    file = tmp_path / "file"
    file.touch()
    assert only(checks.results(file)).advice == "name another folder: CONVSCOPE_RESULTS=DIR"


def test_the_command_prints_a_line_a_check_and_json(capsys: pytest.CaptureFixture[str]):
    assert program.main(["env"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1:4]] == ["machine", "convscope", "python"]
    assert program.main(["env", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert len(found) == len(lines) - 1
    assert {each["state"] for each in found} <= {THERE, MISSING}
    assert all(each["advice"] for each in found if each["state"] == MISSING)
