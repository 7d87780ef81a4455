"""Checks of one thing each that a measurement needs: is it there, what was found, what to do where it is not."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from convscope import gpus, slurm
from convscope.cli import driver, programs
from convscope.cudnn import library
from convscope.errors import CudnnError, SensorError
from convscope.power import nvml, rapl
from convscope.storage.environment import git_commit, processor_name
from convscope.storage.paths import RESULTS

THERE, MISSING = "yes", "no"
GIB = 1024**3
PACKAGES = (
    ("torch", "runs every model", ""),
    ("torchvision", "models by name", ""),
    ("aithree", "algorithms on a CPU; swaps layers on a GPU", ""),
    ("triton", "direct, winograd and the 3-D kernels", ""),
    ("matplotlib", "pictures of the studies", "study"),
    ("nvidia-ml-py", "power and energy of a card", ""),
    ("timm", "models by timm:NAME", "models"),
    ("transformers", "models by hf:NAME", "models"),
    ("onnxruntime", f"an engine of {programs.called('run_inference')}", "inference"),
    ("mlcommons-loadgen", f"MLPerf's scenarios of {programs.called('run_inference')}", "inference"),
    ("altair", "convscope report", "report"),
    ("lightgbm", "convscope predict", "predict"),
    ("pyarrow", "convscope dataset package, check", "data"),
)
"""Packages by the name of their distribution: what each is for, and the extra that brings it, "" for none."""


@dataclass(frozen=True)
class Finding:
    """Answer about one thing: is it there, what was found, and what to do (empty where nothing has to be done)."""

    what: str
    state: str
    found: str
    advice: str = ""


def every() -> list[Finding]:
    """Run all checks, in the order in which they matter; a check that fails is a finding, not an error."""
    return [*machine(), *packages(), *cards(), *cudnn(), *processor_energy(), *queue(), *results()]


def machine(version: Callable[[str], str] = importlib.metadata.version) -> Iterator[Finding]:
    """Yield the operating system, the processor, the versions of this program and of Python."""
    yield Finding("machine", THERE, f"{platform.system()} {platform.release()}, {os.cpu_count()} × {processor_name()}")
    yield Finding("convscope", THERE, _this_program(version))
    yield Finding("python", THERE, platform.python_version())


def _this_program(version: Callable[[str], str]) -> str:
    try:
        found = version("convscope")
    except importlib.metadata.PackageNotFoundError:
        found = "not installed"
    commit = git_commit()
    return found if commit is None or commit == f"v{found}" else f"{found}, commit {commit.removeprefix('g')}"


def packages(version: Callable[[str], str] = importlib.metadata.version) -> Iterator[Finding]:
    """Return the version of each package, or how to get it."""
    return (_package(*each, version) for each in PACKAGES)


def _package(name: str, purpose: str, extra: str, version: Callable[[str], str]) -> Finding:
    try:
        return Finding(name, THERE, f"{version(name)}: {purpose}")
    except importlib.metadata.PackageNotFoundError:
        return Finding(name, MISSING, purpose, f"pip install 'convscope[{extra}]'" if extra else f"pip install {name}")


def cards(torch: Any = None, monitor: Any = None) -> Iterator[Finding]:
    """Yield each card that CUDA shows, its source of energy, and whether its kernels can be named.

    Args:
        torch, monitor: the modules `torch` and `pynvml`, or a test's fakes.
    """
    if torch is None:
        try:
            import torch
        except ImportError as error:
            yield Finding("GPU", MISSING, f"PyTorch cannot be imported: {error}", "pip install torch torchvision")
            return
    if not torch.cuda.is_available():
        yield _no_card(torch, monitor)
        return
    yield _driver(torch)
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        known = gpus.identify(properties.name)
        peaks = f"in the catalogue as {known.label}" if known else "not in the catalogue: no roofline, all else works"
        size = f"{properties.total_memory / GIB:.0f} GiB, compute capability {properties.major}.{properties.minor}"
        yield Finding(f"GPU {index}", THERE, f"{properties.name}, {size}, {peaks}")
        yield _energy(f"GPU {index}, energy", gpus.uuid(properties.name, properties.uuid), monitor)
    yield _kernels(torch)


def _driver(torch: Any) -> Finding:
    runs = f"runs CUDA {driver.newest_cuda() or '-'} and older, PyTorch was built for CUDA {torch.version.cuda}"
    return Finding("driver", THERE, f"{driver.version() or 'version unknown'}, {runs}")


def _no_card(torch: Any, monitor: Any) -> Finding:
    if torch.version.cuda is None:
        return Finding("GPU", MISSING, "this PyTorch has no CUDA", "pip install torch from the usual package index")
    try:
        uuids = nvml.visible_uuids(monitor or nvml.load(), os.environ.get("CUDA_VISIBLE_DEVICES"))
    except SensorError as error:
        return Finding("GPU", MISSING, f"no driver answers ({error})", "run where a GPU is; on a CPU: --device cpu")
    if not uuids:
        hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
        return Finding("GPU", MISSING, f"CUDA_VISIBLE_DEVICES={hidden!r} shows none", "in a job, ask for one: --gres")
    older = f"a driver for CUDA {torch.version.cuda}, or a PyTorch for the driver's CUDA (nvidia-smi says which)"
    return Finding("GPU", MISSING, f"the driver knows {len(uuids)}, PyTorch can use none", f"install {older}")


def _energy(what: str, uuid: str, monitor: Any) -> Finding:
    try:
        card = nvml.NvmlCard(uuid, monitor)
    except SensorError as error:
        return Finding(what, MISSING, str(error), "times are measured all the same; rows have no power and no energy")
    try:
        if card.reason:
            return Finding(what, MISSING, card.reason, "times are measured all the same")
        return Finding(what, THERE, f"NVML, {card.source}")
    finally:
        card.close()


def _kernels(torch: Any) -> Finding:
    from convscope.timing import cupti

    try:
        events = cupti.record(lambda: torch.ones(8, device="cuda").add_(1))
    except Exception as error:  # whatever CUPTI or the driver say
        return Finding("names of kernels", MISSING, f"CUPTI: {error}", _FOR_CUPTI)
    if any(event.get("cat") == "kernel" for event in events):
        return Finding("names of kernels", THERE, "CUPTI records them")
    return Finding("names of kernels", MISSING, "CUPTI records none", _FOR_CUPTI)


_FOR_CUPTI = "end other profilers of this card; in a container, mount CUPTI's library with the driver's"


def cudnn() -> Iterator[Finding]:
    """Yield the version of cuDNN."""
    try:
        yield Finding("cuDNN", THERE, library.version())
    except CudnnError as error:
        yield Finding("cuDNN", MISSING, str(error), "needed on a GPU only: it comes with PyTorch's CUDA wheels")


def processor_energy(root: Path = rapl.POWERCAP) -> Iterator[Finding]:
    """Yield whether the counters of the processor's energy can be read."""
    what = "CPU, energy"
    try:
        yield Finding(what, THERE, f"RAPL, {rapl.RaplPackages(root).name}")
    except SensorError as error:
        is_there = any(root.glob("intel-rapl:*/energy_uj"))
        allow = f"ask an administrator for: chmod a+r {root}/intel-rapl:*/energy_uj"
        yield Finding(what, MISSING, str(error), allow if is_there else "a virtual machine has none")


def queue(ask: slurm.RunCommand = slurm.run_command) -> Iterator[Finding]:
    """Yield SLURM's version."""
    said = ask(["sinfo", "--version"])
    if said:
        yield Finding("SLURM", THERE, said.strip())
    else:
        yield Finding("SLURM", MISSING, "no sinfo answers", "the stages run here with --local")


def results(folder: Path = RESULTS) -> Iterator[Finding]:
    """Yield whether results can be written, and how much room there is."""
    there = next(each for each in (folder, *folder.parents) if each.exists())
    try:
        with tempfile.NamedTemporaryFile(dir=there):
            free = shutil.disk_usage(there).free / GIB
        yield Finding("results", THERE, f"{folder}, {free:.0f} GiB free")
    except OSError as error:
        yield Finding("results", MISSING, f"{folder}: {error.strerror}", "name another folder: CONVSCOPE_RESULTS=DIR")
