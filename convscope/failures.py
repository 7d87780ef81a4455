"""What an error at one input size means: a row with a status and a reason, the loss of the device, or neither."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from convscope.errors import CudnnError, CudnnMissingError, HostTooSlowError, InputError, NotSupportedError

# What CUDA and its libraries begin their messages with when they turn something down.
_REFUSED_BY_CUDA = ("CUDA error", "CUDA driver error", "cuDNN error", "FIND was unable", "GET was unable")
_ASKED = re.compile(r"tried to allocate ([\d.]+) (bytes|[KMGT]iB)", re.IGNORECASE)
_UNITS = {"bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}


@dataclass(frozen=True)
class Failure:
    """Why a size has no figures: the status and reason of its row, and how much memory could not be had."""

    status: str
    reason: str
    asked_bytes: int | None = None


def of_size(error: Exception) -> Failure | None:
    """Return the row's status and reason for an error at one size, None for an error that is not a size's own."""
    chain = list(_chain(error))
    for link in chain:  # an allocation that fails while a graph is captured comes out as an error of the capture
        if _is_out_of_memory(link):
            return Failure("oom", _line(link), asked_bytes(str(link)))
    if isinstance(error, (NotSupportedError, InputError)):
        return Failure("unsupported", _line(error))
    if isinstance(error, CudnnMissingError):
        return None
    if isinstance(error, (CudnnError, HostTooSlowError)) or str(error).startswith(_REFUSED_BY_CUDA):
        return Failure("failed", _line(error))
    return None


def _chain(error: BaseException) -> Iterator[BaseException]:
    link: BaseException | None = error
    while link is not None:
        yield link
        link = link.__cause__ or link.__context__


def _is_out_of_memory(error: BaseException) -> bool:
    text = str(error)
    return (
        isinstance(error, torch.OutOfMemoryError)
        or "torch.OutOfMemoryError" in text  # what another process ended with
        # PyTorch's allocator on a CPU, and CUDA's libraries, have no type of their own for this.
        or "DefaultCPUAllocator: can't allocate memory" in text
        or (isinstance(error, RuntimeError) and bool(re.search(r"(CUDNN|CUBLAS)_STATUS_\w*ALLOC\w*FAILED", text)))
    )


def _line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def asked_bytes(text: str) -> int | None:
    """Return how much memory an allocator's error says was asked for; CUDA rounds it to 1/100 of its unit."""
    found = _ASKED.search(text)
    return round(float(found[1]) * _UNITS[found[2]]) if found else None


def device_fault(device: torch.device) -> str | None:
    """Return what the device says where this process can use it no more (illegal address, ECC, GPU lost), else None.

    An error of one call is reported once and is over; one that the context is lost by comes back with every call.
    """
    if device.type != "cuda":
        return None
    return _said(device) and _said(device)


def _said(device: torch.device) -> str | None:
    try:
        torch.cuda.synchronize(device)
    except RuntimeError as error:
        return _line(error)
    return None
