"""From what a user asks to a `Run` in which everything is decided, or to one line that says what cannot be."""

from __future__ import annotations

import re

import torch

from convscope import algorithms, gpus, models
from convscope.errors import InputError
from convscope.records import STAGES, Run

UNSUPPORTED = ("error", "fallback", "skip")
PROVIDERS = ("cudnn", "triton")
MATHS = ("tf32", "fp32")
INTEGER_MOST = 2**63 - 1  # what PyTorch takes for a size and a seed
SIZES_MOST = 10_000
ENERGY_MOST_S = 3600
SIZES_BY_STAGE = dict(zip(STAGES, (1, 10, 100), strict=True))


def make_run(
    model: str,
    algorithm: str,
    *,
    num_sizes: int,
    input_size_range: tuple[int, int],
    device: torch.device,
    gpu: str | None,
    stage: str | None,
    math: str | None,
    unsupported: str,
    batch_size: int,
    warmup_iters: int,
    measure_iters: int,
    pretrained: bool,
    seed: int,
    energy: bool,
    energy_warmup_s: float = Run.energy_warmup_s,
    energy_precision: float = Run.energy_precision,
    energy_budget_s: float = Run.energy_budget_s,
    layer_energy: bool = False,
    max_workspace_bytes: int | None = None,
    provider: str | None = None,
) -> Run:
    """Decide every setting of a run.

    Raises:
        InputError: an unknown name, a number out of its range, a GPU that is not the one asked for.
    """
    run = Run(
        model=models.check_name(model),
        algorithm=algorithms.find(algorithm).name,
        stage=stage or stage_of(num_sizes),
        gpu=folder_gpu(gpu, device),
        input_sizes=spread_sizes(num_sizes, input_size_range),
        device=str(device),
        batch_size=batch_size,
        warmup_iters=warmup_iters,
        measure_iters=measure_iters,
        math=math_on(device, math),
        unsupported=unsupported,
        provider=provider,
        pretrained=pretrained,
        seed=seed,
        energy=energy,
        energy_warmup_s=energy_warmup_s,
        energy_precision=energy_precision,
        energy_budget_s=energy_budget_s,
        layer_energy=layer_energy,
        max_workspace_bytes=max_workspace_bytes,
    )
    _check(run)
    return run


def _check(run: Run) -> None:
    at_least("--batch-size", run.batch_size, 1)
    at_least("--warmup", run.warmup_iters, 0)
    at_least("--measure", run.measure_iters, 1)
    at_least("--seed", run.seed, 0)
    at_most("--batch-size", run.batch_size, INTEGER_MOST)
    at_most("--seed", run.seed, INTEGER_MOST)
    at_least("--energy-warmup", run.energy_warmup_s, 0)
    at_least("--energy-budget", run.energy_budget_s, 1)
    at_most("--energy-warmup", run.energy_warmup_s, ENERGY_MOST_S)
    at_most("--energy-budget", run.energy_budget_s, ENERGY_MOST_S)
    if not 0 < run.energy_precision < 1:
        raise InputError(f"--energy-precision {run.energy_precision}: a share between 0 and 1, such as 0.01")
    if run.layer_energy and (run.device_type == "cpu" or not run.energy):
        raise InputError("--layer-energy needs a CUDA device, and energy (no --no-energy)")
    if run.max_workspace_bytes is not None:
        at_least("--max-workspace", run.max_workspace_bytes, 0)
        if run.device_type == "cpu":
            raise InputError("--max-workspace limits cuDNN's workspaces: it needs a CUDA device")
    _one_of("--unsupported", run.unsupported, UNSUPPORTED)
    if run.provider is not None:
        _check_provider(run.provider, run.algorithm, run.device_type)


def _check_provider(provider: str, algorithm: str, device_type: str) -> None:
    _one_of("--provider", provider, PROVIDERS)
    if device_type == "cpu":
        raise InputError(f"--provider {provider} needs a CUDA device")
    reason = algorithms.why_not_by(provider, algorithms.find(algorithm))
    if reason:
        raise InputError(f"--provider {provider}: {reason}")


def find_device(name: str) -> torch.device:
    """Return the device for "auto" (a GPU where there is one), "cpu", "cuda" or "cuda:N".

    Raises:
        InputError: no such device here.
    """
    if name == "cpu":
        return torch.device("cpu")
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if name == "auto":
        return torch.device("cuda:0" if count else "cpu")
    kind, _, index = name.partition(":")
    if kind != "cuda" or (index and not index.isdecimal()) or name.endswith(":"):
        raise InputError(f"--device {name!r} is none of auto, cpu, cuda, cuda:N")
    if int(index or 0) >= count:
        raise InputError(f"--device {name}: PyTorch sees {count} CUDA devices here; --device cpu measures on the CPU")
    return torch.device(f"cuda:{int(index or 0)}")


def folder_gpu(wanted: str | None, device: torch.device) -> str:
    """Return the GPU's name for the folder, "cpu" on a CPU.

    Raises:
        InputError: `wanted` is not the card that is there.
    """
    if device.type == "cpu":
        if wanted not in (None, "cpu"):
            raise InputError(f"--gpu {wanted}: the device is a CPU; leave --gpu out, or run where that GPU is")
        return "cpu"
    name = torch.cuda.get_device_name(device)
    if wanted is not None and not gpus.matches(wanted, name):
        raise InputError(f"--gpu {wanted}: the card that is here is {name}; say --gpu {gpus.label(name)}")
    return gpus.label(name)


def spread_sizes(count: int, bounds: tuple[int, int]) -> tuple[int, ...]:
    """Return `count` sizes in pixels from the first bound to the second, evenly: low + int(i (high - low) / (n - 1)).

    Raises:
        InputError: no sizes, bounds the wrong way round, or more sizes than pixels between them.
    """
    low, high = bounds
    at_least("--num-sizes", count, 1)
    at_most("--num-sizes", count, SIZES_MOST)
    at_least("--input-range", low, 1)
    at_most("--input-range", high, INTEGER_MOST)
    if high < low:
        raise InputError(f"--input-range {low} {high}: the first number is the smaller one")
    if count > high - low + 1:
        raise InputError(f"--num-sizes {count}: between {low} and {high} pixels are only {high - low + 1} sizes")
    return (low,) if count == 1 else tuple(low + int(i * (high - low) / (count - 1)) for i in range(count))


def stage_of(num_sizes: int) -> str:
    """Return the stage that measures this many sizes; any other count is a full run."""
    return next((stage for stage, count in SIZES_BY_STAGE.items() if count == num_sizes), STAGES[-1])


def math_on(device: torch.device, wanted: str | None) -> str:
    """Return the math mode: what was asked for, else tf32 on a GPU (cuDNN's own default) and fp32 on a CPU.

    Raises:
        InputError: tf32 on a CPU, or no math mode at all.
    """
    if wanted is None:
        return "tf32" if device.type == "cuda" else "fp32"
    _one_of("--math", wanted, MATHS)
    if device.type == "cpu" and wanted == "tf32":
        raise InputError("--math tf32 needs a CUDA device: a CPU computes in fp32")
    return wanted


def parse_bytes(option: str, text: str) -> int:
    """Return a number of bytes from "1048576", "512MB" (powers of 1000) or "2GiB" (powers of 1024).

    Raises:
        InputError: it is none of these.
    """
    found = re.fullmatch(r"(\d{1,15}(?:\.\d{1,6})?)\s*(?:([kmgt])(i?)b?|b)?", text.strip(), re.IGNORECASE | re.ASCII)
    if found is None:
        raise InputError(f"{option} {text}: say a number of bytes, such as 1048576, 512MB or 2GiB")
    number, prefix, binary = found.groups()
    power = 0 if prefix is None else "kmgt".index(prefix.lower()) + 1
    return int(float(number) * (1024 if binary else 1000) ** power)


def at_least(option: str, value: float, least: int) -> None:
    """Refuse a number that is too small, naming its option.

    Raises:
        InputError: it is.
    """
    if not value >= least:
        raise InputError(f"{option} {value}: it must be at least {least}")


def at_most(option: str, value: float, most: int) -> None:
    """Refuse a number that is too large, naming its option.

    Raises:
        InputError: it is.
    """
    if value > most:
        raise InputError(f"{option} {value}: it must be at most {most}")


def _one_of(option: str, value: str, valid: tuple[str, ...]) -> None:
    if value not in valid:
        raise InputError(f"{option} {value}: choose one of {', '.join(valid)}")
