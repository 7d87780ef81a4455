"""NVIDIA driver of this machine, asked through ctypes: PyTorch's CUDA needs one that is new enough."""

from __future__ import annotations

import ctypes
import re
from pathlib import Path

LIBRARY = "libcuda.so.1"
_KERNEL_MODULE = Path("/proc/driver/nvidia/version")


def why_too_old(cuda: str | None, library: str = LIBRARY) -> str | None:
    """Return why the driver cannot run programs built for this version of CUDA ("13.0"), with the way out, else None.

    A driver runs what was built for its own major version of CUDA and for older ones. Without a driver, or without a
    GPU that it shows to this process, there is nothing to say.
    """
    newest = newest_cuda(library)
    if cuda is None or newest is None or int(newest.split(".")[0]) >= int(cuda.split(".")[0]):
        return None
    found = version()
    named = f" ({found})" if found else ""
    return (
        f"the NVIDIA driver here{named} runs CUDA {newest} and older, PyTorch was built for CUDA {cuda}: update the "
        f"driver, or install a PyTorch built for CUDA {newest.split('.')[0]} (README.md, Install)"
    )


def newest_cuda(library: str = LIBRARY) -> str | None:
    """Return the newest CUDA that the driver runs, "12.2"; None without a driver, or a GPU to be seen."""
    try:
        driver = ctypes.CDLL(library)
    except OSError:
        return None
    count, newest = ctypes.c_int(), ctypes.c_int()
    refused = (
        driver.cuInit(0)
        or driver.cuDeviceGetCount(ctypes.byref(count))
        or driver.cuDriverGetVersion(ctypes.byref(newest))
    )
    return None if refused or not count.value else f"{newest.value // 1000}.{newest.value % 1000 // 10}"


def version(path: Path = _KERNEL_MODULE) -> str | None:
    """Return the driver's own version, "535.129.03"; None where Linux does not say."""
    try:
        found = re.search(r"\b\d{3,}\.\d+(\.\d+)?\b", path.read_text())
    except OSError:
        return None
    return found[0] if found else None
