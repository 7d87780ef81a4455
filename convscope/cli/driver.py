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
    newest = _newest_cuda(library)
    if cuda is None or newest is None or newest // 1000 >= int(cuda.split(".")[0]):
        return None
    major, minor = newest // 1000, newest % 1000 // 10
    return (
        f"the NVIDIA driver here{_version()} runs CUDA {major}.{minor} and older, PyTorch was built for CUDA {cuda}: "
        f"update the driver, or install a PyTorch built for CUDA {major} (README.md, Install)"
    )


def _newest_cuda(library: str) -> int | None:
    """Return the newest CUDA that the driver runs, 12020 for 12.2; None without a driver, or a GPU to be seen."""
    try:
        driver = ctypes.CDLL(library)
    except OSError:
        return None
    count, version = ctypes.c_int(), ctypes.c_int()
    refused = (
        driver.cuInit(0)
        or driver.cuDeviceGetCount(ctypes.byref(count))
        or driver.cuDriverGetVersion(ctypes.byref(version))
    )
    return None if refused or not count.value else version.value


def _version() -> str:
    """Return the driver's own version in front of which words stand, " (535.129.03)"; "" where Linux does not say."""
    try:
        found = re.search(r"\b\d{3,}\.\d+(\.\d+)?\b", _KERNEL_MODULE.read_text())
    except OSError:
        return ""
    return f" ({found[0]})" if found else ""
