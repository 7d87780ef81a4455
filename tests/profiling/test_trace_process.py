"""The process that traces, on a CPU: what it says, and what is said of it where it ends."""

from __future__ import annotations

import os
import signal

import pytest
from fakes import run

from convscope.profiling import trace_process
from convscope.profiling.trace_process import TraceProcess
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
