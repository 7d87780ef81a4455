"""GPUs by name: the short name used in folders, and the peaks that a roofline is drawn with.

Peaks are the vendor's, dense (without the factor of two for sparsity), at boost clock; each entry names its source.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Gpu:
    """One model of card: short `label`, the `pattern` its driver name contains, and its peaks.

    `tf32_tflops` is None where the card has no TF32; `fp16_tflops` is the matrix rate with float32 accumulation, the
    float32 rate of a card without a matrix unit. Peaks are at `boost_mhz`; `base_mhz` is the clock that the power limit
    allows under every load (`clock_source`), None where the catalogue does not know it.
    """

    label: str
    pattern: str
    fp32_tflops: float
    tf32_tflops: float | None
    fp16_tflops: float
    bandwidth_gbps: float
    source: str
    sm_count: int | None = None
    base_mhz: int | None = None
    boost_mhz: int | None = None
    clock_source: str | None = None

    @property
    def cache_mib(self) -> int:
        """Size of the second-level cache: that of the whole chip, of which a card may have a part, so none has more."""
        return CACHE_MIB[self.label]

    def tflops(self, dtype: str, math: str) -> float:
        """Return the peak rate in a data type; float32 in `math` "tf32" where the card has it.

        "int8" has twice the rate of 16 bits, as the datasheets from Turing on say.
        """
        if dtype == "int8":
            return 2 * self.fp16_tflops
        if dtype != "float32":
            return self.fp16_tflops
        return (self.tf32_tflops if math == "tf32" else None) or self.fp32_tflops


_CLOCKS = "TechPowerUp GPU database"
_TURING = "NVIDIA Turing GPU architecture whitepaper, reference card"

# The first pattern that matches decides, so variants stand before the plain name.
GPUS = (
    Gpu("h200", r"H200 NVL", 60.0, 417.5, 835.5, 4800, "NVIDIA H200 datasheet, NVL", 132),
    Gpu("h200", r"H200", 67.0, 494.5, 989.5, 4800, "NVIDIA H200 datasheet, SXM", 132),
    Gpu("h100", r"H100 NVL", 60.0, 417.5, 835.5, 3900, "NVIDIA H100 datasheet, NVL", 132),
    Gpu("h100", r"H100 PCIe", 51.0, 378.0, 756.5, 2000, "NVIDIA H100 datasheet, PCIe", 114),
    Gpu("h100", r"H100", 67.0, 494.5, 989.5, 3350, "NVIDIA H100 datasheet, SXM", 132),
    Gpu("a100", r"A100.*SXM.*80GB", 19.5, 156.0, 312.0, 2039, "NVIDIA A100 datasheet, 80 GB SXM", 108),
    Gpu("a100", r"A100.*80GB", 19.5, 156.0, 312.0, 1935, "NVIDIA A100 datasheet, 80 GB PCIe", 108),
    Gpu("a100", r"A100", 19.5, 156.0, 312.0, 1555, "NVIDIA A100 datasheet, 40 GB", 108),
    Gpu("v100", r"V100.*PCIe?", 14.0, None, 112.0, 900, "NVIDIA V100 datasheet, PCIe", 80),
    Gpu("v100", r"V100", 15.7, None, 125.0, 900, "NVIDIA V100 datasheet, SXM2", 80),
    Gpu("l40s", r"L40S", 91.6, 183.0, 362.0, 864, "NVIDIA L40S datasheet", 142),
    Gpu("l40", r"L40", 90.5, 90.5, 181.0, 864, "NVIDIA L40 datasheet", 142),
    Gpu("l4", r"L4", 30.3, 60.0, 121.0, 300, "NVIDIA L4 datasheet", 58),
    Gpu("a40", r"A40", 37.4, 74.8, 149.7, 696, "NVIDIA A40 datasheet", 84),
    Gpu("a30", r"A30", 10.3, 82.0, 165.0, 933, "NVIDIA A30 datasheet", 56),
    Gpu("a10", r"A10", 31.2, 62.5, 125.0, 600, "NVIDIA A10 datasheet", 72),
    Gpu("t4", r"T4", 8.1, None, 65.0, 320, "NVIDIA T4 datasheet", 40, 585, 1590, _CLOCKS),
    Gpu("p4", r"P4", 5.5, None, 5.5, 192, "NVIDIA Tesla P4 datasheet", 20, 886, 1114, _CLOCKS),
    Gpu("p100", r"P100.*PCIe?", 9.3, None, 9.3, 732, "NVIDIA Tesla P100 datasheet, PCIe", 56, 1190, 1329, _CLOCKS),
    Gpu("4090", r"RTX 4090(?! (?:D|Laptop))", 82.6, 82.6, 165.2, 1008, "NVIDIA Ada GPU architecture whitepaper", 128),
    Gpu("2080ti", r"RTX 2080 Ti", 13.4, None, 53.8, 616, _TURING, 68),
    Gpu("2080", r"RTX 2080(?! SUPER)", 10.1, None, 40.3, 448, _TURING, 46),
)
# NVIDIA's architecture whitepapers (GP100, GP104, GV100, TU102, TU104, GA100, GA102, AD102, AD104, GH100).
CACHE_MIB = {
    "h200": 60, "h100": 60, "a100": 48, "a30": 48, "v100": 6, "l40s": 96, "l40": 96, "4090": 96, "l4": 48, "a40": 6,
    "a10": 6, "2080ti": 6, "t4": 4, "2080": 4, "p100": 4, "p4": 2,
}  # fmt: skip


@functools.cache
def identify(device_name: str) -> Gpu | None:
    """Return the catalogue's entry for a driver's device name ("NVIDIA H200"), or None where it has none.

    A part of a card (MIG) is none of these: the peaks are those of a whole card.
    """
    if is_slice(device_name):
        return None
    return next((gpu for gpu in GPUS if re.search(rf"\b{gpu.pattern}(?!\w)", device_name, re.IGNORECASE)), None)


def by_label(short_name: str) -> Gpu | None:
    """Return the catalogue's entry for a short name ("h200"), the plain card where there are variants, or None."""
    return next((gpu for gpu in reversed(GPUS) if gpu.label == short_name), None)


def is_slice(device_name: str) -> bool:
    """Tell whether a device of this name is a part of a card (MIG): "NVIDIA H100 80GB HBM3 MIG 1g.10gb"."""
    return " MIG " in device_name


def uuid(device_name: str, bare: object) -> str:
    """Return a device's UUID as NVML writes it, "GPU-…" or "MIG-…", from its bare UUID as PyTorch gives it."""
    return f"{'MIG' if is_slice(device_name) else 'GPU'}-{bare}"


def label(device_name: str) -> str:
    """Return the short name of a device for folder names: the catalogue's, else the driver's in lower case."""
    gpu = identify(device_name)
    if gpu is not None:
        return gpu.label
    words = re.sub(r"NVIDIA|GeForce|Tesla", " ", device_name)
    return re.sub(r"[^a-z0-9]+", "-", words.lower()).strip("-") or "gpu"


def matches(wanted: str, device_name: str) -> bool:
    """Tell whether `wanted` ("h200", "H200", "nvidia h200") names the device with this driver's name."""
    plain = wanted.strip().lower()
    return plain in (label(device_name), device_name.lower(), device_name.lower().removeprefix("nvidia ").strip())


def slowed_by(throttle_reasons: str | None) -> list[str]:
    """Return the causes in a row's column that slowed a card down; a power limit, normal on many, shows in clocks."""
    every = (throttle_reasons or "none").split(", ")
    return [cause for cause in every if cause not in ("none", "power cap")]
