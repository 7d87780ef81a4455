"""Devices as cuDNN's heuristics see them: a card by its context, or one that is described, for which no GPU is needed.

cuDNN (since 9.8) takes a description as JSON, and says for it which engines take a convolution, in which order its
heuristics rank plans, and which workspace each wants. Engines that are compiled at run time it refuses without a GPU
(RUNTIME_PREREQUISITE_MISSING). A plan that is to run is built by a context: built for a description of the same card,
some want more workspace and set it to zero in each run (engine 67 of cuDNN 9.19 on an H200: by 7 µs slower).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Protocol

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
    "totalGlobalMem": 150_109_880_320,
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
    "pciDeviceId": 6,
    "isTccDriver": 0,
    "supportCoopLaunch": 1,
}
"""An H200 as cuDNN 9.19 described one (driver 580.159.04)."""
H100: Mapping[str, object] = {
    **H200, "deviceName": "NVIDIA H100 80GB HBM3", "memClockRateKHz": 2_619_000, "l2CacheSize": 52_428_800,
    "totalGlobalMem": 85_014_347_776,
}  # fmt: skip
"""An H100 (SXM), by the H200's description and the H100's memory. No H100 described itself to us, but for it cuDNN 9.19
ranks the plans that ran on one (docs/prediction.md)."""
BY_NAME: Mapping[str, Mapping[str, object]] = {str(each["deviceName"]): each for each in (H200, H100)}
"""Cards that can be asked about without one, by their drivers' names."""


class Device(Protocol):
    """The device of a graph and its plans, named to each descriptor that wants it."""

    def name_to_graph(self, graph: Descriptor) -> None:
        """Name it to a graph that is not finalized yet."""

    def name_to_query(self, query: Descriptor, attribute: Attribute) -> None:
        """Name it to an engine or a heuristic, by the attribute that takes a device."""

    def name_to_plan(self, plan: Descriptor) -> None:
        """Name it to a plan."""


class Card:
    """The device of a context, which must outlive what is asked and built for it."""

    def __init__(self, handle: Handle) -> None:
        self._pointer = handle.pointer

    def name_to_graph(self, graph: Descriptor) -> None:
        """Name the context to a graph: its engines, heuristics and plans have it from there."""
        graph.set(Attribute.GRAPH_HANDLE, Type.HANDLE, self._pointer)

    def name_to_query(self, query: Descriptor, attribute: Attribute) -> None:
        """Do nothing: the graph names it."""

    def name_to_plan(self, plan: Descriptor) -> None:
        """Name the context to a plan."""
        plan.set(Attribute.PLAN_HANDLE, Type.HANDLE, self._pointer)


class Described:
    """A device by its properties, named as those of `H200`.

    Raises:
        CudnnError: cuDNN misses a property.
    """

    def __init__(self, scope: Scope, properties: Mapping[str, object]) -> None:
        device = scope.new(Kind.DEVICE_PROPERTIES)
        self.descriptor = device.set_text(Attribute.DEVICE_JSON, json.dumps(dict(properties))).finalized()

    def name_to_graph(self, graph: Descriptor) -> None:
        """Do nothing: a graph takes no description."""

    def name_to_query(self, query: Descriptor, attribute: Attribute) -> None:
        """Name it to an engine or a heuristic."""
        query.set(attribute, Type.DESCRIPTOR, self.descriptor)

    def name_to_plan(self, plan: Descriptor) -> None:
        """Name it to a plan."""
        plan.set(Attribute.PLAN_DEVICE, Type.DESCRIPTOR, self.descriptor)


def properties_of(handle: Handle) -> dict[str, object]:
    """Return the properties of the device of a context, as cuDNN reads them off it."""
    with Scope() as scope:
        device = scope.new(Kind.DEVICE_PROPERTIES)
        device.set(Attribute.DEVICE_HANDLE, Type.HANDLE, handle.pointer).finalized()
        properties: dict[str, object] = json.loads(device.read_text(Attribute.DEVICE_JSON))
        return properties
