"""The process that traces, on a CPU: what it says, and what is said of it where it ends."""

from __future__ import annotations

import contextlib
import os
import signal
import types

import pytest
import torch
from fakes import run

from convscope.profiling import trace_process
from convscope.profiling.trace_process import TRACED_REPLAYS, TraceProcess, replays_within
from convscope.timing import trace


@pytest.fixture
def traced():
    with TraceProcess(run(model="torchvision:squeezenet1_1")) as process:
        process.wait_until_ready()
        yield process


def test_it_serves_on_through_a_jobs_signals_and_ends_with_its_pipe(traced: TraceProcess):
    for number in (signal.SIGINT, signal.SIGTERM):
        assert traced.trace(64, {"features.0": "direct"}) == ([], trace.CPU_REASON)
        os.kill(traced._process.pid, number)
    traced.change(run(model="torchvision:squeezenet1_1", seed=1), [0])
    assert traced.trace(64, {}) == ([], trace.CPU_REASON)
    traced.__exit__()
    assert traced._process.poll() == 0


def test_a_process_that_ended_is_a_reason_and_no_error(traced: TraceProcess):
    os.kill(traced._process.pid, signal.SIGKILL)
    traced._process.wait()
    for _ in range(2):
        assert traced.trace(64, {}) == ([], "the process that traces has ended")


@pytest.mark.parametrize(
    ("pass_s", "replays"), [(0.1, TRACED_REPLAYS), (1.0, TRACED_REPLAYS), (1.01, 3), (4.0, 1), (4.01, 0)]
)
def test_a_pass_that_takes_long_to_trace_is_replayed_less_often(pass_s: float, replays: int):
    assert replays_within(20.0, pass_s, placements=5) == replays


@pytest.mark.parametrize(("budget_s", "placements"), [(1e6, 3), (0.0, 0)])
def test_replays_are_traced_in_every_placement_or_not_at_all(
    budget_s: float, placements: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(trace_process, "_RECORDING_S", budget_s)
    monkeypatch.setattr(
        trace_process.graphs, "capture", lambda step: contextlib.nullcontext(types.SimpleNamespace(replay=None))
    )
    monkeypatch.setattr(trace_process.graphs, "settle", lambda captured: None)
    monkeypatch.setattr(trace_process.eager, "why_synchronizes", lambda step: None)
    monkeypatch.setattr(trace, "record_layers", lambda model, given, calls: ["eager"])
    monkeypatch.setattr(trace, "record_replays", lambda replay, count: [f"{count} replays"])
    recording = trace_process._Recording(torch.nn.ReLU(), 3)
    for _ in range(3):
        recording.add(torch.zeros(1))
    assert recording.eager == ["eager"]
    assert recording.placements == [[f"{TRACED_REPLAYS} replays"]] * placements


@pytest.mark.long
def test_a_process_that_cannot_begin_says_why():
    with TraceProcess(run(device="cuda:99")) as process:
        process.wait_until_ready()
        layers, reason = process.trace(64, {})
    assert layers == []
    assert reason is not None
    assert reason.startswith("the process that traces cannot begin: ")


@pytest.mark.long
def test_a_process_that_says_nothing_is_ended(traced: TraceProcess, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(trace_process, "_TRACING_S", 0.3)
    os.kill(traced._process.pid, signal.SIGSTOP)
    assert traced.trace(64, {}) == ([], "the process that traces said nothing for 0.3 s")
    assert traced._process.poll() == -signal.SIGKILL
