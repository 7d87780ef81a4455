"""Environment of the figures besides the request, read from the machine: software, processor, job, commit."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.metadata
import os
import platform
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from convscope import gpus
from convscope.storage import paths

if TYPE_CHECKING:
    import torch as pytorch

PROCESSOR = ("cpu", "cpu_threads")  # for runs on a CPU
SOFTWARE = ("gpu_name", "driver", "cuda", "cudnn", "torch", "torchvision", "ai3", "triton", "tf32_override")
CARD = ("gpu_uuid", "power_limit_w", "ecc")  # one card of its kind, and its state
ORIGIN = ("host", "gpu_uuid", "slurm_job_id", "git_commit")  # named by each row, with the start it belongs to


@dataclass(frozen=True)
class Environment:
    """Environment of the figures besides the request: the card, its state, the software, the place and time."""

    host: str
    cpu: str
    python: str
    torch: str
    torchvision: str
    ai3: str
    gpu_name: str | None = None
    gpu_uuid: str | None = None
    driver: str | None = None
    cuda: str | None = None
    cudnn: str | None = None
    triton: str | None = None
    sm_clock_mhz: int | None = None
    sm_clock_max_mhz: int | None = None
    memory_clock_mhz: int | None = None
    power_limit_w: float | None = None
    ecc: bool | None = None
    compute_capability: str | None = None
    cpu_threads: int | None = None
    tf32_override: str | None = None
    cuda_visible_devices: str | None = None
    slurm_job_id: str | None = None
    git_commit: str | None = None


def read(device: pytorch.device, card: Mapping[str, Any] | None = None) -> Environment:
    """Return the environment of a run on this device; `card` gives fields by their names, as `Meter.settings` does."""
    import torch
    import torchvision

    found = Environment(
        host=platform.node(),
        cpu=processor_name(),
        python=platform.python_version(),
        torch=str(torch.__version__),
        torchvision=str(torchvision.__version__),
        ai3=importlib.metadata.version("aithree"),
        cpu_threads=torch.get_num_threads(),
        tf32_override=os.environ.get("NVIDIA_TF32_OVERRIDE"),
        cuda_visible_devices=os.environ.get("CUDA_VISIBLE_DEVICES"),
        slurm_job_id=os.environ.get("SLURM_JOB_ID"),
        git_commit=git_commit(),
    )
    if device.type != "cuda":
        return found
    triton = None
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        triton = importlib.metadata.version("triton")
    properties = torch.cuda.get_device_properties(device)
    return dataclasses.replace(
        found,
        gpu_name=properties.name,
        gpu_uuid=gpus.uuid(properties.name, properties.uuid),
        cuda=torch.version.cuda,
        triton=triton,
        compute_capability=f"{properties.major}.{properties.minor}",
        **(card or {}),
    )


def processor_name() -> str:
    """Return the processor's name as Linux tells it, else its architecture."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def git_commit() -> str | None:
    """Return the commit of this program's checkout, with `-dirty` where files differ; None where git does not say.

    Of a package from a wheel it is the version, "v0.1.0": it may lie in the repository of somebody else's project.

    A "g" stands before its number, as in `git describe`: without one, "812e34…" reads as a number too large for any
    reader of tables, and pandas 2.3 crashes on it.
    """
    if not paths.IS_CHECKOUT:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            return f"v{importlib.metadata.version('convscope')}"
        return None
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    commit = answer.stdout.strip()
    return f"g{commit}" if commit else None
