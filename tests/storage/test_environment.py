"""Facts that are read from the machine."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import types

import pytest
import torch

from convscope.storage import environment

CPU = torch.device("cpu")


def test_software_versions_are_those_installed():
    found = environment.read(CPU)
    assert (found.torch, found.ai3) == (torch.__version__, importlib.metadata.version("aithree"))


def test_on_a_cpu_nothing_is_said_of_a_gpu():
    found = environment.read(CPU, {"driver": "580.159"})
    assert {found.gpu_name, found.gpu_uuid, found.driver, found.cuda, found.cudnn, found.triton} == {None}


@pytest.mark.parametrize(
    ("variable", "field"),
    [
        ("SLURM_JOB_ID", "slurm_job_id"),
        ("CUDA_VISIBLE_DEVICES", "cuda_visible_devices"),
        ("NVIDIA_TF32_OVERRIDE", "tf32_override"),
    ],
)
def test_a_variable_that_changes_figures_is_recorded(monkeypatch: pytest.MonkeyPatch, variable: str, field: str):
    monkeypatch.setenv(variable, "1")
    assert getattr(environment.read(CPU), field) == "1"


def test_variables_that_are_not_set_are_absent(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    assert environment.read(CPU).slurm_job_id is None


def test_the_processor_has_a_name():
    assert environment.processor_name().strip()


def test_the_number_of_threads_is_pytorchs_own():
    assert environment.read(CPU).cpu_threads == torch.get_num_threads()


def test_outside_a_checkout_there_is_no_commit(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(os.environ, "GIT_DIR", "/nowhere/.git")
    assert environment.git_commit() is None


def test_without_git_there_is_no_commit(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", "")
    assert environment.git_commit() is None


def test_a_git_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch):
    def hang(*arguments: object, **options: object) -> None:
        raise subprocess.TimeoutExpired("git", 10)

    monkeypatch.setattr(subprocess, "run", hang)
    assert environment.git_commit() is None


@pytest.mark.parametrize(("name", "kind"), [("NVIDIA H200", "GPU"), ("NVIDIA H200 MIG 1g.18gb", "MIG")])
def test_the_uuid_of_a_slice_is_written_as_nvml_writes_it(monkeypatch: pytest.MonkeyPatch, name: str, kind: str):
    properties = types.SimpleNamespace(name=name, uuid="7f-1", major=9, minor=0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    assert environment.read(torch.device("cuda")).gpu_uuid == f"{kind}-7f-1"
