"""The process that traces, on a CPU: what it says, and what is said of it where it ends."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import torch
from fakes import run

from convscope.errors import HostTooSlowError, NotCapturableError, SensorError
from convscope.profiling import tracing
from convscope.profiling.request import Run
from convscope.profiling.trace_process import recording as recordings
from convscope.profiling.trace_process.recording import TRACED_REPLAYS, Recording, replays_within
from convscope.profiling.tracing import TraceProcess
from convscope.timing import trace


def squeezenet(**settings: Any) -> Run:
    return run(**{"model": "torchvision:squeezenet1_1", **settings})


@pytest.fixture
def traced():
    with TraceProcess() as process:
        process.begin(squeezenet())
        process.wait_until_ready()
        yield process


@pytest.mark.long
def test_it_serves_run_after_run_through_a_jobs_signals_and_ends_with_its_pipe(traced: TraceProcess):
    process = traced._process
    assert process is not None
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        assert traced.trace(64, {"features.0": "direct"}) == ([], trace.CPU_REASON)
        os.kill(process.pid, number)
    for following in (
        squeezenet(algorithm="direct"),
        squeezenet(seed=1),
        squeezenet(model="no such", device="cuda:99"),
    ):
        traced.begin(following, placements=[0])  # an answer that nobody waits for
    for following in (squeezenet(algorithm="smm"), squeezenet(seed=2)):
        traced.begin(following)
        traced.wait_until_ready()
        assert traced.trace(64, {}) == ([], trace.CPU_REASON)
    assert traced._process is process
    traced.__exit__()
    assert process.poll() == 0


@pytest.mark.long
def test_a_run_that_cannot_begin_says_why_and_the_next_one_is_traced(traced: TraceProcess):
    traced.begin(squeezenet(device="cuda:99"))
    traced.wait_until_ready()
    layers, reason = traced.trace(64, {})
    assert layers == []
    assert reason is not None
    assert reason.startswith("the process that traces cannot begin: ")
    traced.begin(squeezenet())
    traced.wait_until_ready()
    assert traced.trace(64, {}) == ([], trace.CPU_REASON)


@pytest.mark.long
def test_what_is_prepared_is_waited_for_once_and_a_trace_follows(traced: TraceProcess):
    traced.prepare(64, {})
    for _ in range(2):
        traced.wait_until_prepared()
    assert traced.trace(64, {}) == ([], trace.CPU_REASON)
    traced.prepare(64, {})  # an answer that nobody waits for
    assert traced.trace(96, {}) == ([], trace.CPU_REASON)
    assert traced._reason is None


READY = """#!{python} -IS
import signal, sys
sys.path = {path}
from multiprocessing.connection import Connection
pipe = Connection(int(sys.argv[-1]))
pipe.send((pipe.recv()[0], None))
{then}
"""
UNTIL_ITS_PIPE_ENDS = "import contextlib\nwith contextlib.suppress(EOFError):\n    while True: pipe.recv()"


@pytest.fixture(params=["signal.pause()"])
def stand_in(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A process that is ready at once and says nothing more: its end does not depend on what it imports."""
    stand_in = tmp_path / "python"
    stand_in.write_text(READY.format(python=sys.executable, path=sys.path, then=request.param))
    stand_in.chmod(0o755)
    monkeypatch.setattr(tracing.sys, "executable", str(stand_in))


@pytest.mark.usefixtures("stand_in")
def test_a_process_that_ended_is_a_reason_and_no_error_and_the_next_run_has_another():
    with TraceProcess() as traced:
        for _ in range(2):
            traced.begin(run())
            traced.wait_until_ready()
            assert traced._reason is None
            assert traced._process is not None
            os.kill(traced._process.pid, signal.SIGKILL)
            traced._process.wait()
            for _ in range(2):
                assert traced.trace(64, {}) == ([], "the process that traces has ended")


@pytest.mark.usefixtures("stand_in")
def test_a_process_that_says_nothing_is_ended(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tracing, "_TRACING_S", 0.3)
    with TraceProcess() as traced:
        traced.begin(run())
        traced.wait_until_ready()
        process = traced._process
        assert process is not None
        assert traced.trace(64, {}) == ([], "the process that traces said nothing for 0.3 s")
        assert process.poll() == -signal.SIGKILL


@pytest.mark.parametrize("stand_in", [UNTIL_ITS_PIPE_ENDS], indirect=True)
@pytest.mark.usefixtures("stand_in")
def test_profiles_share_the_kept_process_and_have_their_own_without_one():
    with tracing.kept():
        with tracing.begun(run(), None) as first:
            first.wait_until_ready()
        with tracing.begun(run(), None) as second:
            assert second is first
        process = first._process
        assert process is not None
        assert process.poll() is None
    assert process.poll() == 0
    with tracing.begun(run(), None) as own:
        own.wait_until_ready()
        process = own._process
    assert own is not first
    assert process is not None
    assert process.poll() == 0


@pytest.mark.parametrize(("uuids", "starts"), [(["GPU-1"], True), ([], False), (SensorError("no driver"), False)])
@pytest.mark.usefixtures("stand_in")
def test_the_process_is_started_at_once_where_a_gpu_is(
    uuids: list[str] | Exception, starts: bool, monkeypatch: pytest.MonkeyPatch
):
    def visible(module: object, which: object) -> list[str]:
        if isinstance(uuids, Exception):
            raise uuids
        return uuids

    monkeypatch.setattr(tracing.nvml, "visible_uuids", visible)
    with tracing.kept(at_once=True):
        process = tracing._KEPT.get()
        assert process is not None
        assert (process._process is not None) is starts


@pytest.mark.parametrize(
    ("pass_s", "replays"), [(0.1, TRACED_REPLAYS), (1.0, TRACED_REPLAYS), (1.01, 3), (4.0, 1), (4.01, 0)]
)
def test_a_pass_that_takes_long_to_trace_is_replayed_less_often(pass_s: float, replays: int):
    assert replays_within(20.0, pass_s, placements=5) == replays


def evict() -> None:
    """Stand for what comes before each replay."""


@pytest.mark.parametrize(("budget_s", "placements"), [(1e6, 3), (0.0, 0)])
def test_replays_are_traced_in_every_placement_or_not_at_all(
    budget_s: float, placements: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(recordings, "_RECORDING_S", budget_s)
    monkeypatch.setattr(
        recordings.graphs, "capture", lambda step: contextlib.nullcontext(types.SimpleNamespace(replay=None))
    )
    monkeypatch.setattr(recordings.graphs, "settle", lambda captured: None)
    monkeypatch.setattr(trace, "record_layers", lambda model, given, calls: ["eager"])
    monkeypatch.setattr(trace, "record_replays", lambda passes, count, before, hider: [f"{count} replays", before])
    recording = Recording(torch.nn.ReLU(), 3, before=evict)
    for _ in range(3):
        recording.add(torch.zeros(1))
    assert recording.eager == ["eager"]
    assert recording.placements == [[f"{TRACED_REPLAYS} replays", evict]] * placements


def test_what_was_captured_in_all_placements_is_traced_together(monkeypatch: pytest.MonkeyPatch):
    settled: list[object] = []
    captured = iter((["first"], ["second"], ["third"], ["after the other process's work"]))
    monkeypatch.setattr(recordings.graphs, "capture", lambda step: contextlib.nullcontext(next(captured)))
    monkeypatch.setattr(recordings.graphs, "settle", settled.append)
    monkeypatch.setattr(trace, "record_layers", lambda model, given, calls: ["eager"])
    monkeypatch.setattr(trace, "record_replays", lambda passes, count, before, hider: [*passes, count, before])
    recording = Recording(torch.nn.ReLU(), 3, before=evict)
    with contextlib.ExitStack() as held:
        for _ in range(3):
            recording.capture((torch.zeros(1),), held)
        recording.replay()
    assert settled == [["first"]]
    assert not [*captured]
    assert recording.placements == [[["first"], ["second"], ["third"], TRACED_REPLAYS, evict]]
    assert recording.eager == ["eager"]


def refuse(step: object) -> None:
    raise NotCapturableError("the pass cannot be captured as a CUDA graph: operation not permitted")


@pytest.mark.parametrize("captures", [True, False])
def test_a_pass_that_cannot_be_captured_has_its_eager_trace_alone(captures: bool, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(recordings.graphs, "capture", refuse)
    recorded: list[bool] = []
    monkeypatch.setattr(trace, "record_layers", lambda model, given, calls: recorded.append(calls) or eager_trace())
    recording = Recording(torch.nn.ReLU(), 3, captures)
    recording.calls = True
    for _ in range(3):
        recording.add((torch.zeros(1),))
    assert recorded == [True]
    layers, reason, work, method = recording.answer()
    assert [(dict(layer.kernels), layer.span_ms) for layer in layers] == [({"k": 1}, None)]
    assert [(each.kernel, each.kernel_ms) for each in work] == [("k", 0.002)]
    assert (reason, method) == (None, recordings.EAGER_WORK_METHOD)


def test_a_pass_whose_launch_no_spin_outlasts_has_its_eager_trace_alone(monkeypatch: pytest.MonkeyPatch):
    waits = iter(([], HostTooSlowError("launching outlasted a spin")))

    def replays(passes: object, count: int, before: object, hider: object) -> list[dict[str, Any]]:
        if isinstance(found := next(waits), Exception):
            raise found
        return found

    monkeypatch.setattr(recordings.graphs, "capture", lambda step: contextlib.nullcontext())
    monkeypatch.setattr(recordings.graphs, "settle", lambda captured: None)
    monkeypatch.setattr(trace, "record_layers", lambda model, given, calls: eager_trace())
    monkeypatch.setattr(trace, "record_replays", replays)
    recording = Recording(torch.nn.ReLU(), 3)
    for _ in range(3):
        recording.add((torch.zeros(1),))
    layers, reason, _, method = recording.answer()
    assert [(dict(layer.kernels), layer.span_ms) for layer in layers] == [({"k": 1}, None)]
    assert (reason, method) == (None, recordings.EAGER_WORK_METHOD)


def eager_trace() -> list[dict[str, Any]]:
    """One layer with one kernel of 2 µs."""
    host, given = {"ph": "X", "cat": "user_annotation"}, {"args": {"correlation": 1}}
    return [
        host | {"name": trace.EAGER, "ts": 0, "dur": 50},
        host | {"name": f"{trace.LAYER}0", "ts": 10, "dur": 10},
        given | {"ph": "X", "cat": "cuda_runtime", "name": "launch", "ts": 12, "dur": 1},
        given | {"ph": "X", "cat": "kernel", "name": "k", "ts": 100, "dur": 2},
    ]


def test_a_trace_without_kernels_is_a_reason_and_no_work(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(trace, "record_layers", lambda model, given, calls: [])
    recording = Recording(torch.nn.ReLU(), 3, captures=False)
    recording.add((torch.zeros(1),))
    layers, reason, work, _ = recording.answer()
    assert (layers, work) == ([], [])
    assert reason is not None
    assert reason.startswith("CUPTI recorded no kernels")
