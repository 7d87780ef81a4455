"""Options that several commands share, decided and checked, or one line that says what cannot be."""

from __future__ import annotations

import argparse
import math
import re
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

from convscope import gpus
from convscope.cli import driver
from convscope.cli.display import several
from convscope.errors import InputError

if TYPE_CHECKING:
    import torch

MATHS = ("tf32", "fp32")
LEVELS = (50, 80, 90, 95)
"""Shares of cases that an interval of a prediction is to hold, in percent."""
INTEGER_MOST = 2**63 - 1  # what PyTorch takes for a size and a seed
ENERGY_MOST_S = 3600
ON_CPU = "--device cpu measures on the CPU"
"""Advice on a machine without a GPU, for a command that a CPU can run."""


def find_device(name: str, otherwise: str = ON_CPU) -> torch.device:
    """Return the device for "auto" (a GPU where there is one), "cpu", "cuda" or "cuda:N".

    Args:
        otherwise: what to do on a machine without a GPU; a command that needs one says so.

    Raises:
        InputError: there is no such device, or a GPU whose driver is too old for PyTorch's CUDA.
    """
    import torch  # here, for what is checked before anything is queued does without

    index = _index(name)
    if name == "cpu":
        return torch.device("cpu")
    count = gpu_count()
    if not count and (reason := driver.why_too_old(torch.version.cuda)):
        raise InputError(f"--device {name}: {reason}; {otherwise}")
    if name == "auto":
        return torch.device("cuda:0" if count else "cpu")
    if index >= count:
        advice = f"choose one of {', '.join(f'cuda:{each}' for each in range(count))}" if count else otherwise
        raise InputError(f"--device {name}: PyTorch sees {several(count, 'CUDA device')} here; {advice}")
    return torch.device(f"cuda:{index}")


def device_here(name: str) -> torch.device | None:
    """Return the device as `find_device` does, None for a GPU on a machine without any: for lists, which need none."""
    _index(name)
    return None if name.startswith("cuda") and not gpu_count() else find_device(name)


def _index(name: str) -> int:
    """Return the N of "cuda:N", 0 for the other names of devices, else InputError."""
    found = re.fullmatch(r"auto|cpu|cuda(?::(\d{1,9}))?", name, re.ASCII)
    if found is None:
        raise InputError(f"--device {name!r} is none of auto, cpu, cuda, cuda:N")
    return int(found[1] or 0)


def gpu_count() -> int:
    """Return the number of GPUs that PyTorch can use; of an old driver `driver.why_too_old` says more than PyTorch."""
    import torch

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"CUDA initialization: The NVIDIA driver .* is too old")
        return torch.cuda.device_count() if torch.cuda.is_available() else 0


def folder_gpu(wanted: str | None, device: torch.device) -> str:
    """Return the GPU's name for the folder, "cpu" on a CPU; InputError where `wanted` is another card."""
    if device.type == "cpu":
        if wanted not in (None, "cpu"):
            raise InputError(f"--gpu {wanted}: the device is a CPU; leave --gpu out, or run where that GPU is")
        return "cpu"
    import torch

    name = torch.cuda.get_device_name(device)
    if wanted is not None and not gpus.matches(wanted, name):
        raise InputError(f"--gpu {wanted}: the card that is here is {name}; say --gpu {gpus.label(name)}")
    return gpus.label(name)


def math_on(device: torch.device, wanted: str | None) -> str:
    """Return the math mode asked for, else the default of this device, as `math_for` does."""
    return math_for(device.type, wanted)


def math_for(device_type: str, wanted: str | None) -> str:
    """Return the math mode asked for, else tf32 on a GPU (cuDNN's default), fp32 on a CPU; InputError for no such."""
    if wanted is None:
        return "tf32" if device_type == "cuda" else "fp32"
    one_of("--math", wanted, MATHS)
    if device_type == "cpu" and wanted == "tf32":
        raise InputError("--math tf32 needs a CUDA device: a CPU computes in fp32")
    return wanted


def whole_numbers(text: str) -> list[int]:
    """Return the numbers of "1,8,32", for argparse, which prints the line of its error."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() for part in parts) or len(set(map(int, parts))) < len(parts):
        raise argparse.ArgumentTypeError(f"{text!r}: say different numbers with commas between, such as 1,8,32")
    return [int(part) for part in parts]


def parse_bytes(option: str, text: str) -> int:
    """Return a number of bytes from "1048576", "512MB" (powers of 1000) or "2GiB" (powers of 1024), else InputError."""
    found = re.fullmatch(r"(\d{1,15}(?:\.\d{1,6})?)\s*(?:([kmgt])(i?)b?|b)?", text.strip(), re.IGNORECASE | re.ASCII)
    if found is None:
        raise InputError(f"{option} {text}: say a number of bytes, such as 1048576, 512MB or 2GiB")
    number, prefix, binary = found.groups()
    power = 0 if prefix is None else "kmgt".index(prefix.lower()) + 1
    return int(float(number) * (1024 if binary else 1000) ** power)


def at_least(option: str, value: float, least: int) -> None:
    """Raise InputError for a number that is too small, naming its option."""
    if not value >= least:
        raise InputError(f"{option} {value}: it must be at least {least}")


def at_most(option: str, value: float, most: int) -> None:
    """Raise InputError for a number that is too large, naming its option."""
    if value > most:
        raise InputError(f"{option} {value}: it must be at most {most}")


def percent(text: str) -> float:
    """Return a percentage, for argparse: a number that is finite and not negative."""
    value = float(text)
    if not math.isfinite(value) or value < 0:
        raise ValueError
    return value


percent.__name__ = "percentage"  # argparse says "invalid percentage value"


def apart_from_inputs(output: Path | None, *inputs: Path) -> None:
    """Raise InputError where a file to write is one that the command reads, or a table or run.json in such a folder."""
    if output is None or not output.exists():
        return
    of_run = output.suffix == ".csv" or output.name == "run.json"
    for path in filter(Path.exists, inputs):
        is_inside = path.is_dir() and output.resolve().is_relative_to(path.resolve())
        if output.samefile(path) or (of_run and is_inside):
            raise InputError(f"-o {output}: this command reads it: name another file")


def one_of(option: str, value: str, valid: tuple[str, ...]) -> None:
    """Raise InputError for a word that is none of the valid ones, naming its option."""
    if value not in valid:
        raise InputError(f"{option} {value}: choose one of {', '.join(valid)}")
