"""One card through NVML, against a stand-in for the module `pynvml` that refuses what it is told to refuse."""

from __future__ import annotations

import os
import subprocess
import sys
import types
from typing import Any

import pytest
import torch

from convscope.errors import SensorError
from convscope.power import energy, nvml
from convscope.power.nvml import NvmlCard
from profiler import PowerMonitor

UUIDS = ("GPU-aaaa-1", "GPU-aabb-2", "GPU-cccc-3")


class NVMLError(Exception):
    pass


class Module:
    """Answers like `pynvml` for three cards, but for the calls named in `refused`, which raise with that text."""

    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 1, 2, 0
    NVML_PERF_POLICY_POWER, NVML_PERF_POLICY_THERMAL = 0, 1
    NVMLError = NVMLError

    def __init__(self, **refused: str) -> None:
        self.refused = refused
        self.fields: dict[int, float] = {nvml.POWER_INSTANT: 300.0, nvml.POWER_AVERAGE: 290.0}
        self.reasons = 0
        self.pids: list[int] = []
        self.mig_mode = 0
        self.violations_ns: dict[int, int] = {0: 3_000_000_000, 1: 500_000_000}
        self.opened = 0

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("nvml"):
            refused = object.__getattribute__(self, "refused")
            if name in refused:
                return _raiser(refused[name])
        return object.__getattribute__(self, name)

    def nvmlInit(self) -> None:  # noqa: N802
        self.opened += 1

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.opened -= 1

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return len(UUIDS)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> str:  # noqa: N802
        return UUIDS[index]

    def nvmlDeviceGetUUID(self, handle: str) -> str:  # noqa: N802
        return handle

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:  # noqa: N802
        if uuid not in (*UUIDS, "MIG-1"):
            raise NVMLError("Not Found")
        return uuid

    def nvmlDeviceGetDeviceHandleFromMigDeviceHandle(self, handle: str) -> str:  # noqa: N802
        return f"card of {handle}"

    def nvmlDeviceGetMigMode(self, handle: str) -> list[int]:  # noqa: N802
        return [self.mig_mode, self.mig_mode]

    def nvmlDeviceGetViolationStatus(self, handle: str, policy: int) -> Any:  # noqa: N802
        return types.SimpleNamespace(referenceTime=7, violationTime=self.violations_ns[policy])

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: str) -> int:  # noqa: N802
        return 123_456

    def nvmlDeviceGetPowerUsage(self, handle: str) -> int:  # noqa: N802
        return 280_000

    def nvmlDeviceGetFieldValues(self, handle: str, asked: list[tuple[int, int]]) -> list[Any]:  # noqa: N802
        watts = self.fields.get(asked[0][0])
        value = types.SimpleNamespace(uiVal=int((watts or 0) * 1e3), ullVal=int((watts or 0) * 1e3))
        return [types.SimpleNamespace(nvmlReturn=3 if watts is None else 0, value=value)]

    def nvmlDeviceGetCurrentClocksEventReasons(self, handle: str) -> int:  # noqa: N802
        return self.reasons

    def nvmlDeviceGetComputeRunningProcesses(self, handle: str) -> list[Any]:  # noqa: N802
        return [types.SimpleNamespace(pid=pid) for pid in self.pids]

    def nvmlDeviceGetTemperature(self, handle: str, kind: int) -> int:  # noqa: N802
        return 41

    def nvmlDeviceGetClockInfo(self, handle: str, kind: int) -> int:  # noqa: N802
        return 1980


def _raiser(text: str) -> Any:
    def refuse(*arguments: object) -> None:
        raise NVMLError(text)

    return refuse


def card(**refused: str) -> NvmlCard:
    return NvmlCard(UUIDS[0], Module(**refused))


def test_the_energy_counter_comes_first_with_the_instant_power_beside_it():
    opened = card()
    assert opened.source == energy.COUNTER
    assert opened.read() == (123.456, 300.0)


def test_without_a_counter_the_instant_power_is_the_source():
    opened = card(nvmlDeviceGetTotalEnergyConsumption="Not Supported")
    assert opened.source == energy.INSTANT
    assert opened.read() == (None, 300.0)


def test_without_an_instant_field_the_average_is_the_source():
    module = Module(nvmlDeviceGetTotalEnergyConsumption="Not Supported")
    del module.fields[nvml.POWER_INSTANT]
    opened = NvmlCard(UUIDS[0], module)
    assert opened.source == energy.AVERAGE
    assert opened.read() == (None, 290.0)


def test_on_old_drivers_the_average_comes_from_the_older_call():
    refused = {"nvmlDeviceGetTotalEnergyConsumption": "Not Supported", "nvmlDeviceGetFieldValues": "Not Supported"}
    opened = card(**refused)
    assert opened.source == energy.AVERAGE
    assert opened.read() == (None, 280.0)


def test_a_counter_without_any_power_reading_is_enough():
    module = Module()
    module.fields.clear()
    assert NvmlCard(UUIDS[0], module).read() == (123.456, None)


@pytest.mark.parametrize(
    ("refused", "text"),
    [
        ({"nvmlInit": "Driver Not Loaded"}, "NVML cannot start: NVML says Driver Not Loaded"),
        ({"nvmlDeviceGetHandleByUUID": "Insufficient Permissions"}, "NVML says Insufficient Permissions"),
    ],
    ids=["no driver", "no permission"],
)
def test_a_card_that_cannot_be_asked_is_a_reason_and_never_a_zero(refused: dict[str, str], text: str):
    module = Module(**refused)
    with pytest.raises(SensorError, match=text):
        NvmlCard(UUIDS[0], module)
    assert module.opened == 0
    monitor = PowerMonitor.of([UUIDS[0]], module)
    assert monitor.reason is not None
    assert text in monitor.reason
    assert monitor.idle_power_w() is None


def test_a_card_without_any_source_of_energy_has_a_reason_and_a_state():
    refused = ("nvmlDeviceGetTotalEnergyConsumption", "nvmlDeviceGetFieldValues", "nvmlDeviceGetPowerUsage")
    monitor = PowerMonitor.of([UUIDS[0]], Module(**dict.fromkeys(refused, "Not Supported")))
    assert "neither energy nor power can be read" in str(monitor.reason)
    assert monitor.state().sm_clock_mhz == 1980


def test_a_card_that_nobody_knows_is_a_reason():
    with pytest.raises(SensorError, match="NVML does not know GPU-zzz"):
        NvmlCard("GPU-zzz", Module())


def test_a_card_that_is_lost_later_says_so():
    module = Module()
    opened = NvmlCard(UUIDS[0], module)
    module.refused["nvmlDeviceGetTotalEnergyConsumption"] = "GPU is lost"
    with pytest.raises(SensorError, match="GPU is lost"):
        opened.read()


def test_a_slice_of_a_card_has_no_energy_and_says_why():
    monitor = PowerMonitor.of(["MIG-1"], Module())
    assert monitor.reason == "MIG-1 is or has slices (MIG), and NVML reads energy and power of the whole card only"
    assert monitor.idle_power_w() is None
    with monitor.window() as window:
        pass
    assert window.energies == []


@pytest.mark.parametrize(("name", "uuid"), [("NVIDIA H200", "GPU-1"), ("NVIDIA H200 MIG 1g.18gb", "MIG-1")])
def test_a_device_of_pytorch_is_found_by_the_uuid_of_its_kind(monkeypatch: pytest.MonkeyPatch, name: str, uuid: str):
    properties = types.SimpleNamespace(name=name, uuid="1")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    monkeypatch.setattr(nvml, "load", Module)
    monitor = PowerMonitor.of_device(torch.device("cuda"))
    if uuid == "MIG-1":
        assert "MIG-1 is or has slices" in str(monitor.reason)
    else:
        assert monitor.reason == "NVML does not know GPU-1: NVML says Not Found"


def test_a_card_that_is_divided_has_no_energy_of_a_program_on_it():
    module = Module()
    module.mig_mode = 1
    assert "of the whole card only" in str(NvmlCard(UUIDS[0], module).reason)


def test_a_card_that_cannot_be_divided_has_its_energy():
    assert card(nvmlDeviceGetMigMode="Not Supported").reason is None


def test_the_state_of_a_slice_is_that_of_its_card():
    module = Module()
    monitor = PowerMonitor.of(["MIG-1"], module)
    assert monitor.state().sm_clock_mhz == 1980
    with monitor:
        assert module.opened == 1
    assert module.opened == 0


def test_a_card_is_closed_once():
    module = Module()
    opened = NvmlCard(UUIDS[0], module)
    opened.close()
    opened.close()
    assert module.opened == 0


def test_the_state_says_what_throttles_and_who_else_computes():
    module = Module()
    module.reasons, module.pids = 0x1 | 0x4 | 0x40, [1]
    state = NvmlCard(UUIDS[0], module).state()
    assert state.throttle_reasons == "power cap, hardware thermal slowdown"
    assert state.other_processes == 1
    assert (state.temperature_c, state.sm_clock_mhz) == (41, 1980)


def test_processes_that_this_one_started_are_not_others():
    module = Module()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as own:
        module.pids = [1, os.getpid(), own.pid, 2**22 + 1]  # init, this one, its own, one that cannot be looked up
        assert NvmlCard(UUIDS[0], module).state().other_processes == 2
        own.communicate()


def test_the_state_holds_the_time_for_which_each_cause_held_the_card_back():
    module = Module()
    module.fields[nvml.SLOWED_BY_BRAKE] = 0.002  # W of the fake are thousandths of its answer: 2 ns
    state = NvmlCard(UUIDS[0], module).state()
    assert state.held_back_s == pytest.approx({"power cap": 3.0, "thermal slowdown": 0.5, "power brake": 2e-9})
    assert state.time_s is not None


def test_a_cause_whose_time_is_not_counted_is_absent():
    assert card(nvmlDeviceGetViolationStatus="Not Supported").state().held_back_s == {}


def test_idle_and_clocks_that_somebody_set_are_no_throttling():
    assert nvml.throttling(0x1 | 0x2) == "none"


def test_what_a_card_does_not_say_is_absent():
    state = card(nvmlDeviceGetTemperature="Not Supported", nvmlDeviceGetComputeRunningProcesses="No").state()
    assert state.temperature_c is None
    assert state.other_processes is None


@pytest.mark.parametrize(
    ("visible", "found"),
    [
        (None, UUIDS),
        ("1", UUIDS[1:2]),
        ("2,0", (UUIDS[2], UUIDS[0])),
        ("GPU-cccc-3", UUIDS[2:]),
        ("GPU-c, 0", (UUIDS[2], UUIDS[0])),
        ("GPU-aa", ()),
        ("0,7,1", UUIDS[:1]),
        ("-1", ()),
        ("", ()),
        ("MIG-1,1", ("MIG-1", UUIDS[1])),
    ],
)
def test_visible_cards_are_those_that_cuda_shows(visible: str | None, found: tuple[str, ...]):
    assert nvml.visible_uuids(Module(), visible) == list(found)


def test_a_machine_without_a_driver_shows_no_cards_and_says_why():
    with pytest.raises(SensorError, match="the cards cannot be counted: NVML says Driver Not Loaded"):
        nvml.visible_uuids(Module(nvmlInit="Driver Not Loaded"), None)
    assert "Driver Not Loaded" in str(PowerMonitor.of_visible(Module(nvmlInit="Driver Not Loaded")).reason)


def test_a_monitor_of_the_visible_cards_has_one_sensor_each(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,GPU-aaaa")
    monitor = PowerMonitor.of_visible(Module())
    with monitor.window() as window:
        pass
    assert [sensor.name for sensor in monitor._sampler.sensors] == [UUIDS[2], UUIDS[0]]
    assert len(window.energies) == 2
