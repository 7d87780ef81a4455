from __future__ import annotations

import contextlib
import threading
from types import SimpleNamespace

import pytest
import torch
from fakes import layer
from fakes.swapping import SwapsNothing, subject_on

from convscope import failures
from convscope.convolution.backends import PlanThread
from convscope.verification import candidates
from convscope.verification.candidates import CandidateSwap

LAYERS = [layer(name=name, position=position) for position, name in enumerate(("first", "second", "first"))]


def test_only_the_search_of_pytorch_runs_in_a_thread_of_its_own():
    swapped = object.__new__(CandidateSwap)
    applied: list[dict[str, str]] = []
    swapped.assignments = {"gemm": {"only": "gemm"}, candidates.BENCHMARK: {"only": "torch"}}
    swapped._swapped = SimpleNamespace(apply=applied.append, restore=lambda: None)
    swapped._thread = PlanThread(torch.device("cpu"))
    here = threading.get_ident()
    with contextlib.closing(swapped):
        found = [
            swapped.run(name, lambda: (threading.get_ident() == here, torch.backends.cudnn.benchmark))
            for name in ("gemm", candidates.BENCHMARK)
        ]
    assert found == [(True, False), (False, True)]
    assert applied == [{"only": "gemm"}, {"only": "torch"}]


def test_hopeless_is_what_takes_more_than_thirty_times_the_least_of_those_that_can():
    launched_ms = {
        "torch": [1.0, 1.0],
        "fft": [30.0, 30.1],
        "gemm": [40.0, 2.0],
        "guess": [99.0, 99.0],
        "smm": [0.1, 99],
    }
    usable = {"torch": [True, True], "fft": [True, True], "gemm": [True, True], "guess": [True, True]}
    assert candidates.hopeless(launched_ms, {**usable, "smm": [False, False]}) == {"fft": [1], "gemm": [0]}
    assert candidates.hopeless(launched_ms, {**usable, "smm": [True, False]}) == {"fft": [0, 1], "gemm": [0]}


def test_a_launch_of_less_than_a_millisecond_is_never_hopeless():
    # A call that begins while the GPU still works is read without the host's launch, another with it.
    launched_ms = {"torch": [0.004, 0.004], "direct": [0.25, 0.99], "fft": [1.1, 0.2]}
    usable = {name: [True, True] for name in launched_ms}
    assert candidates.hopeless(launched_ms, usable) == {"fft": [0]}


def test_where_nothing_can_be_used_nothing_is_hopeless():
    assert candidates.hopeless({"fft": [1.0], "gemm": [0.0]}, {"fft": [False], "gemm": [False]}) == {}
    assert candidates.hopeless({"fft": [0.0], "gemm": [0.0]}, {"fft": [True], "gemm": [True]}) == {}
    assert candidates.hopeless({}, {}) == {}


def test_a_candidate_leaves_every_call_of_a_layer_to_pytorch_and_goes_with_its_last():
    swapped = SwapsNothing(subject_on("cuda", LAYERS), fft=[True, True, True])
    swapped._leave_to_pytorch("fft", [2])
    assert swapped.usable["fft"] == [False, True, False]
    assert swapped.assignments["fft"] == {"first": "torch", "second": "fft"}
    swapped._leave_to_pytorch("fft", [1])
    assert swapped.usable["fft"] == [False] * 3
    assert "fft" not in swapped.assignments


class Launched:
    """A bench on which each candidate takes the times that are given for it, or fails."""

    def __init__(self, swapped: SwapsNothing, times_ms: dict[str, list[float] | Exception]) -> None:
        self._swapped, self._times_ms, self.released = swapped, times_ms, 0

    def launched_ms(self, given: object, passes: int) -> list[float]:
        times_ms = self._times_ms[self._swapped.name]
        if isinstance(times_ms, Exception):
            raise times_ms
        return times_ms

    def release(self) -> None:
        self.released += 1


def test_candidates_are_launched_before_they_are_captured_and_left_out_where_they_cannot_win(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(failures, "device_fault", lambda device: None)
    noted: list[str] = []
    every = {name: [True] * 3 for name in ("torch", "fft", "gemm", "winograd")}
    swapped = SwapsNothing(subject_on("cuda", LAYERS), noted.append, **every)
    failing = torch.OutOfMemoryError("too much\nof a thing")
    bench = Launched(
        swapped,
        {"torch": [1.0] * 3, "fft": [2.0, 31.0, 2.0], "gemm": [99.0, 99.0, 1.0], "winograd": failing},
    )
    swapped.leave_out_hopeless(bench)
    assert noted == [
        "winograd is left out: too much",
        "fft is left out of 1 of 3 layers: launched one by one it takes more than 30 times the least there",
        "gemm is left out of 2 of 3 layers: launched one by one it takes more than 30 times the least there",
    ]
    assert swapped.assignments == {
        "torch": {"first": "torch", "second": "torch"},
        "fft": {"first": "fft", "second": "torch"},
    }
    assert bench.released == 4


def test_on_a_cpu_where_nothing_is_captured_all_candidates_stay():
    swapped = SwapsNothing(subject_on("cpu", LAYERS), torch=[True] * 3, smm=[True] * 3)
    bench = Launched(swapped, {"torch": [1.0] * 3, "smm": [99.0] * 3})
    swapped.leave_out_hopeless(bench)
    assert set(swapped.assignments) == {"torch", "smm"}
