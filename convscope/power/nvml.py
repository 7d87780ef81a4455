"""One NVIDIA card through NVML: energy counter, power, temperature, clocks, throttling, other processes.

Energy and power are those of a whole card, whoever computes on it. A slice of a card (MIG) is therefore opened for its
state and settings, and has a reason instead of an energy. Cards are found by UUID, because NVML knows every card of the
machine and `CUDA_VISIBLE_DEVICES` renumbers PyTorch's.
The library is `nvidia-ml-py` (`import pynvml`), loaded at first use.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from convscope.errors import SensorError
from convscope.power import energy
from convscope.power.energy import CardState

POWER_AVERAGE, POWER_INSTANT, ENERGY_FIELD = 185, 186, 191  # nvml.h, NVML_FI_DEV_*
MEMORY_SCOPE = 2  # NVML_POWER_SCOPE_MEMORY

SLOWED_BY_BRAKE = 271  # NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN, ns

# nvmlClocksEventReasons that slow a card down. Idle and clocks set by a user are not throttling.
THROTTLING = {
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "power brake",
}


def load() -> Any:
    """Return NVML's Python module; SensorError where it is not installed."""
    try:
        import pynvml
    except ImportError:
        raise SensorError("nvidia-ml-py is not installed") from None
    return pynvml


class NvmlCard:
    """An open card. The first source of energy that answers is used: counter, instant power, average power.

    `reason` says why there is no energy: the device is a slice of a card, or no source answers.

    Args:
        uuid: "GPU-…", or "MIG-…" for a slice of a card; state and settings are then those of the whole card.
        nvml: the module `pynvml`, or a test's fake.

    Raises:
        SensorError: no driver, no such card, no permission.
    """

    def __init__(self, uuid: str, nvml: Any = None) -> None:
        self._nvml = nvml or load()
        self.name, self.source = uuid, ""
        self._power_field: int | None = None
        self._open = False
        self._call("NVML cannot start", self._nvml.nvmlInit)
        self._open = True
        try:
            self._handle = self._find(uuid)
        except SensorError:
            self.close()
            raise
        self.reason = self._slice_of_a_card()
        if self.reason is None:
            try:
                self.source, self._power_field = self._sources()
            except SensorError as error:
                self.reason = str(error)

    def _find(self, uuid: str) -> Any:
        handle = self._call(f"NVML does not know {uuid}", self._nvml.nvmlDeviceGetHandleByUUID, uuid)
        if not uuid.startswith("MIG-"):
            return handle
        whole_card = self._nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle
        return self._call("no card behind the MIG device", whole_card, handle)

    def _slice_of_a_card(self) -> str | None:
        """Return the reason why a slice has no energy, None for a whole card (a divided one computes in slices)."""
        mode = self._query(self._nvml.nvmlDeviceGetMigMode, self._handle)
        if not self.name.startswith("MIG-") and not (mode and mode[0]):
            return None
        return f"{self.name} is or has slices (MIG), and NVML reads energy and power of the whole card only"

    def _sources(self) -> tuple[str, int | None]:
        """Return the source of energy, and the field of the power reading (None: the older call is used)."""
        field = next((f for f in (POWER_INSTANT, POWER_AVERAGE) if self.field(f) is not None), None)
        try:
            self.counter_j()
        except SensorError as refused:
            if field is not None:
                return (energy.INSTANT if field == POWER_INSTANT else energy.AVERAGE), field
            try:
                self._usage_w()
            except SensorError:
                raise SensorError(f"neither energy nor power can be read ({refused})") from None
            return energy.AVERAGE, None
        return energy.COUNTER, field

    def read(self) -> tuple[float | None, float | None]:
        """Return joules and watts as `Sensor.read`; SensorError where a source that answered before no longer does."""
        joules = self.counter_j() if self.source == energy.COUNTER else None
        watts = self.field(self._power_field) if self._power_field is not None else None
        if watts is None and joules is None:
            watts = self._usage_w()
        elif watts is None and self._power_field is not None:
            raise SensorError("the power field no longer answers")
        return joules, watts

    def counter_j(self) -> float:
        """Return the energy counter in joules since the driver was loaded (Volta and later), or raise SensorError."""
        millijoules = self._call("no energy counter", self._nvml.nvmlDeviceGetTotalEnergyConsumption, self._handle)
        return float(millijoules) / 1e3

    def _usage_w(self) -> float:
        return float(self._call("no power reading", self._nvml.nvmlDeviceGetPowerUsage, self._handle)) / 1e3

    def field(self, number: int, scope: int = 0) -> float | None:
        """Return a field of power in watts (or of energy in joules), None where the card does not answer it."""
        value = self._value(number, scope)
        if value is None:
            return None
        return float(value.ullVal if number == ENERGY_FIELD else value.uiVal) / 1e3

    def _value(self, number: int, scope: int = 0) -> Any:
        try:
            answer = self._nvml.nvmlDeviceGetFieldValues(self._handle, [(number, scope)])[0]
        except (self._nvml.NVMLError, AttributeError):
            return None
        return None if answer.nvmlReturn != 0 else answer.value

    def state(self) -> CardState:
        """Return temperature, clock, throttling now and so far, and the number of other processes on the card."""
        nvml, handle = self._nvml, self._handle
        reasons = self._query(nvml.nvmlDeviceGetCurrentClocksEventReasons, handle)
        processes = self._query(nvml.nvmlDeviceGetComputeRunningProcesses, handle)
        return CardState(
            temperature_c=self._query(nvml.nvmlDeviceGetTemperature, handle, nvml.NVML_TEMPERATURE_GPU),
            sm_clock_mhz=self._query(nvml.nvmlDeviceGetClockInfo, handle, nvml.NVML_CLOCK_SM),
            throttle_reasons=None if reasons is None else throttling(reasons),
            other_processes=None if processes is None else sum(not _is_ours(each.pid) for each in processes),
            time_s=time.perf_counter(),
            held_back_s=self._held_back_s(),
        )

    def _held_back_s(self) -> dict[str, float]:
        """Return the time for which each cause has held the card back since the driver was loaded, where counted."""
        nvml = self._nvml
        policies = {energy.POWER_CAP: nvml.NVML_PERF_POLICY_POWER, energy.THERMAL: nvml.NVML_PERF_POLICY_THERMAL}
        answers = {
            cause: self._query(nvml.nvmlDeviceGetViolationStatus, self._handle, policy)
            for cause, policy in policies.items()
        }
        nanoseconds = {cause: answer.violationTime for cause, answer in answers.items() if answer is not None}
        brake = self._value(SLOWED_BY_BRAKE)
        if brake is not None:
            nanoseconds[energy.POWER_BRAKE] = brake.ullVal
        return {cause: time_ns / 1e9 for cause, time_ns in nanoseconds.items()}

    def settings(self) -> dict[str, object]:
        """Return driver, clocks, power limit and ECC by the names of `Environment`'s fields, None where unknown."""
        nvml, handle = self._nvml, self._handle
        return {
            "driver": self._query(nvml.nvmlSystemGetDriverVersion),
            "sm_clock_mhz": self._query(nvml.nvmlDeviceGetClockInfo, handle, nvml.NVML_CLOCK_SM),
            "sm_clock_max_mhz": self._query(nvml.nvmlDeviceGetMaxClockInfo, handle, nvml.NVML_CLOCK_SM),
            "memory_clock_mhz": self._query(nvml.nvmlDeviceGetClockInfo, handle, nvml.NVML_CLOCK_MEM),
            "power_limit_w": self._query(lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1e3),
            "ecc": self._query(lambda: bool(nvml.nvmlDeviceGetEccMode(handle)[0])),
        }

    def _query(self, question: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return question(*arguments)
        except self._nvml.NVMLError:
            return None

    def _call(self, what: str, call: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return call(*arguments)
        except self._nvml.NVMLError as error:
            raise SensorError(f"{what}: NVML says {error}") from None

    def close(self) -> None:
        """Shut NVML down; a second call does nothing."""
        if self._open:
            self._open = False
            self._nvml.nvmlShutdown()


def _is_ours(pid: int) -> bool:
    """Tell whether a process is this one or one that it started (which traces, on the same card)."""
    if pid == os.getpid():
        return True
    try:
        after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:  # it has ended, or is another container's
        return False
    return int(after_name[1]) == os.getpid()


def throttling(reasons: int) -> str:
    """Return the reasons in NVML's mask that slow a card down, in words; "none" without any."""
    return ", ".join(words for bit, words in THROTTLING.items() if reasons & bit) or "none"


def visible_uuids(nvml: Any, visible: str | None) -> list[str]:
    """Return the UUIDs of the cards that CUDA shows a program, in CUDA's order.

    Args:
        visible: `CUDA_VISIBLE_DEVICES`: indices, UUIDs (a unique beginning is enough), MIG UUIDs; as in CUDA the list
            ends at the first entry that names nothing. None shows all. Indices are NVML's, by PCI bus: set
            `CUDA_DEVICE_ORDER=PCI_BUS_ID` where cards differ.

    Raises:
        SensorError: there is no driver.
    """
    with _started(nvml, "the cards cannot be counted"):
        count = nvml.nvmlDeviceGetCount()
        every_uuid = [_text(nvml.nvmlDeviceGetUUID(nvml.nvmlDeviceGetHandleByIndex(index))) for index in range(count)]
    return every_uuid if visible is None else _named(visible, every_uuid)


def card_name(nvml: Any, uuid: str) -> str:
    """Return the driver's name of a card ("NVIDIA H200"); SensorError where no driver or no such card is."""
    with _started(nvml, f"{uuid} has no name"):
        return _text(nvml.nvmlDeviceGetName(nvml.nvmlDeviceGetHandleByUUID(uuid)))


@contextlib.contextmanager
def _started(nvml: Any, what: str) -> Iterator[None]:
    try:
        nvml.nvmlInit()
        yield
        nvml.nvmlShutdown()
    except nvml.NVMLError as error:
        raise SensorError(f"{what}: NVML says {error}") from None


def _named(visible: str, every_uuid: list[str]) -> list[str]:
    uuids: list[str] = []
    for entry in (part.strip() for part in visible.split(",")):
        if entry.startswith("MIG-"):
            uuids.append(entry)
            continue
        if entry.isdecimal():
            named = every_uuid[int(entry) : int(entry) + 1]
        else:
            named = [uuid for uuid in every_uuid if entry.startswith("GPU-") and uuid.startswith(entry)]
        if len(named) != 1:
            break
        uuids += named
    return uuids


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
