"""Devices as cuDNN's heuristics see them, described: no GPU is needed to ask what it offers there.

cuDNN (since 9.8) takes a description as JSON, and says for it which engines take a convolution, in which order its
heuristics rank plans, and which workspace each wants. Engines that are compiled at run time it refuses without a GPU
(RUNTIME_PREREQUISITE_MISSING).
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from convscope.cudnn.graph.backend import Attribute, Descriptor, Kind, Scope, Type
from convscope.cudnn.legacy import Handle

H200: Mapping[str, object] = {
    "deviceName": "NVIDIA H200",
    "cudaDeviceId": 0,
    "deviceVer": 900,
    "driverVer": 13000,
    "multiProcessorCount": 132,
    "smClockRateKHz": 1_980_000,
    "memClockRateKHz": 3_201_000,
    "l2CacheSize": 62_914_560,
    "totalGlobalMem": 150_754_820_096,
    "maxGridSize": [2_147_483_647, 65_535, 65_535],
    "maxBlockSize": [1024, 1024, 64],
    "maxThreadsPerBlock": 1024,
    "maxThreadsPerSM": 2048,
    "maxCtasPerSM": 32,
    "warpSize": 32,
    "regsPerBlock": 65_536,
    "maxRegistersPerSM": 65_536,
    "maxSharedMemoryPerBlock": 49_152,
    "maxSharedMemoryPerBlockOptin": 232_448,
    "reservedSharedMemoryPerBlock": 1024,
    "pciDeviceId": 0,
    "isTccDriver": 0,
    "supportCoopLaunch": 1,
}
"""An H200 by its CUDA attributes, put together by hand: not compared with what cuDNN reads off a card."""


def properties_of(handle: Handle) -> dict[str, object]:
    """Return the properties of the device of a context, as cuDNN reads them off it."""
    with Scope() as scope:
        device = scope.new(Kind.DEVICE_PROPERTIES)
        device.set(Attribute.DEVICE_HANDLE, Type.HANDLE, handle.pointer).finalized()
        properties: dict[str, object] = json.loads(device.read_text(Attribute.DEVICE_JSON))
        return properties


def described(scope: Scope, properties: Mapping[str, object]) -> Descriptor:
    """Return a device by its properties, named as those of `H200`.

    Raises:
        CudnnError: cuDNN misses a property.
    """
    device = scope.new(Kind.DEVICE_PROPERTIES)
    return device.set_text(Attribute.DEVICE_JSON, json.dumps(dict(properties))).finalized()
