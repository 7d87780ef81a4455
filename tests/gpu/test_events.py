"""Times of layers by events alone, on a real GPU."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean

import pytest

from convscope.profiling.bench import Bench
from convscope.profiling.request import make_run
from convscope.profiling.tracing import TraceProcess
from convscope.verification.evidence import open_subject
from profiler import CUDALayerTimer, PowerMonitor

HEADER = "layer,batch,channels,filters,height,width,kernel,stride,padding,dilation,groups"
EQUAL, FORKED = "1,64,64,28,28,3,1,1,1,1", "1,192,192,91,91,1,1,0,1,6"
EACH_SIDE = 6


def written(shapes: list[str], folder: Path) -> str:
    """Write a table of convolutions; return its path."""
    path = folder / "row.csv"
    path.write_text("\n".join([HEADER, *(f"l{number},{shape}" for number, shape in enumerate(shapes))]))
    return str(path)


@pytest.mark.quiet
@pytest.mark.parametrize("among", [FORKED, EQUAL], ids=["forked", "equal"])
def test_equal_convolutions_take_as_long_before_one_on_several_streams_as_behind_it(among: str, tmp_path: Path):
    shapes = [*[EQUAL] * EACH_SIDE, among, *[EQUAL] * EACH_SIDE]
    path = written(shapes, tmp_path)
    run = make_run(path, "torch", num_sizes=1, device="cuda:0", math="tf32", energy=False, measure_iters=20)
    with open_subject(run) as subject:
        timer = CUDALayerTimer(subject.model, "cuda")
        bench = Bench(run, subject.model, subject.device, timer, PowerMonitor(), print)
        bench.calibrate(run.input_sizes[0])
        found = bench.measure(run.input_sizes[0], subject.layers, check_errors=False)
    times_us = [1e3 * layer.mean_ms for layer in found.layers]
    before, behind = times_us[:EACH_SIDE], times_us[EACH_SIDE + 1 :]
    # Events read up to 2 µs more before a fork, which is taken off, or up to 1 µs, which is not (docs/timing.md).
    assert fmean(before) == pytest.approx(fmean(behind), abs=1.3)
    assert sum(times_us) == pytest.approx(1e3 * found.passes.mean_ms, rel=0.05)


@pytest.mark.quiet
def test_a_convolution_on_several_streams_spans_as_much_at_the_begin_of_a_pass_as_at_its_end(tmp_path: Path):
    path = written([FORKED, *[EQUAL] * EACH_SIDE, FORKED], tmp_path)
    run = make_run(path, "torch", num_sizes=1, device="cuda:0", math="tf32", energy=False)
    with TraceProcess() as process:
        process.begin(run)
        process.wait_until_ready()
        layers, reason = process.trace(run.input_sizes[0], {})
    assert reason is None
    first, last = layers[0], layers[-1]
    assert sum(first.kernels.values()) > 1
    assert first.span_ms is not None
    # The start of a graph adds 5 to 7 µs; where a replay began before its launch was complete, 70 to 100 were added.
    assert first.span_ms == pytest.approx(last.span_ms, abs=0.015)
