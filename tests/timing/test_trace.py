"""Kernels given to the layers that launched them: a trace recorded on an H200, and small ones made by hand."""

from __future__ import annotations

import gzip
import json
import types
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fakes
import pytest
import torch
from fakes import DATA
from torch.autograd import profiler

from convscope.convolution import models
from convscope.errors import HostTooSlowError, TraceMissingError
from convscope.timing import cupti, graphs, trace
from convscope.timing.hooks import module_ranges

GOLDEN = DATA / "trace_resnet50_tf32_h200.json.gz"
REPLAYS = 3
NANOSECOND_MS = 1e-6  # to which CUPTI's times are exact


@pytest.fixture(scope="module")
def events() -> list[dict[str, Any]]:
    return json.loads(gzip.decompress(GOLDEN.read_bytes()))


@pytest.fixture(scope="module")
def layers(events: list[dict[str, Any]]) -> list[trace.LayerTrace]:
    return trace.matched(events, [events], REPLAYS).layers()


def test_every_convolution_of_resnet50_has_its_trace(layers: list[trace.LayerTrace]):
    assert len(layers) == len(models.convolutions("resnet50", 224)) == 53


def test_every_layer_launched_between_one_and_four_kernels(layers: list[trace.LayerTrace]):
    assert Counter(sum(layer.kernels.values()) for layer in layers) == {1: 27, 2: 8, 3: 9, 4: 9}


def test_the_first_layer_is_the_implicit_product_and_takes_19_microseconds(layers: list[trace.LayerTrace]):
    ((name, count),) = layers[0].kernels.items()
    assert name.startswith("void implicit_convolve_sgemm<float, float, 1024, 5, 5, 3, 3, 3, 1")
    assert count == 1
    assert layers[0].kernel_ms == pytest.approx(0.01885, abs=1e-5)


def test_a_tf32_layer_is_a_product_between_two_changes_of_layout(layers: list[trace.LayerTrace]):
    counts = {name.split("<")[0].split("_tilesize")[0]: count for name, count in layers[2].kernels.items()}
    assert counts == {
        "void cudnn::engines_precompiled::nchwToNhwcKernel": 2,
        "sm80_xmma_fprop_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc_nchw": 1,
    }


def test_no_layer_spans_less_than_its_kernels_take(layers: list[trace.LayerTrace]):
    assert all(layer.span_ms is not None for layer in layers)
    assert all(layer.kernel_ms <= layer.span_ms + NANOSECOND_MS for layer in layers)


def test_the_span_of_a_single_kernel_is_its_time(layers: list[trace.LayerTrace]):
    alone = [layer for layer in layers if sum(layer.kernels.values()) == 1]
    assert [layer.span_ms for layer in alone] == pytest.approx([layer.kernel_ms for layer in alone], abs=1e-9)


def test_the_layers_of_resnet50_add_up_to_what_was_measured(layers: list[trace.LayerTrace]):
    assert sum(layer.kernel_ms for layer in layers) == pytest.approx(0.568, abs=0.001)
    assert sum(layer.span_ms for layer in layers) == pytest.approx(0.638, abs=0.001)


@pytest.mark.parametrize("between", ["bn_fw_inf", "max_pool_forward", "vectorized_elementwise", "gemvx", "spin_kernel"])
def test_kernels_between_the_layers_belong_to_none(
    events: list[dict[str, Any]], layers: list[trace.LayerTrace], between: str
):
    assert any(between in event["name"] for event in events)
    assert not any(between in name for layer in layers for name in layer.kernels)


def test_memory_set_by_a_layer_counts_among_its_kernels(layers: list[trace.LayerTrace]):
    assert sum(layer.kernels.get("Memset (Device)", 0) for layer in layers) == 9


def test_replays_that_cannot_be_matched_leave_no_span(events: list[dict[str, Any]]):
    assert all(layer.span_ms is None for layer in trace.matched(events, [events], REPLAYS + 1).layers())


def test_replays_that_cannot_be_matched_leave_no_kernel_time_either(events: list[dict[str, Any]]):
    unmatched = trace.matched(events, [events], REPLAYS + 1).layers()
    assert all((layer.kernel_ms, layer.spans_ms) == (None, ()) and layer.kernels for layer in unmatched)


def test_one_foreign_kernel_in_a_replay_is_noticed(events: list[dict[str, Any]]):
    last = max((event for event in events if event["cat"] == "kernel"), key=lambda event: event["ts"])
    renamed = [event | {"name": "foreign"} if event is last else event for event in events]
    assert all(layer.span_ms is None for layer in trace.matched(renamed, [renamed], REPLAYS).layers())


def test_a_trace_without_kernels_says_that_cupti_gave_none(events: list[dict[str, Any]]):
    with pytest.raises(TraceMissingError, match="CUPTI recorded no kernels"):
        trace.matched([event for event in events if event["cat"] == "user_annotation"], REPLAYS).layers()


def on_host(name: str, start_us: float, end_us: float) -> dict[str, Any]:
    return {"ph": "X", "cat": "user_annotation", "name": name, "ts": start_us, "dur": end_us - start_us}


def launch(correlation: int, time_us: float, category: str = "cuda_runtime") -> dict[str, Any]:
    given = {"correlation": correlation}
    return {"ph": "X", "cat": category, "name": "launch", "ts": time_us, "dur": 1.0, "args": given}


def kernel(name: str, correlation: int, start_us: float, duration_us: float) -> dict[str, Any]:
    given = {"correlation": correlation}
    return {"ph": "X", "cat": "kernel", "name": name, "ts": start_us, "dur": duration_us, "args": given}


def two_layers() -> list[dict[str, Any]]:
    """Two layers, a and b of two kernels each, something between them, and two replays at other speeds."""
    made = [on_host("convscope:eager", 0, 100)]
    made += [on_host("convscope:layer:0", 10, 30), on_host("convscope:layer:1", 50, 70)]
    made += [launch(1, 11), launch(2, 12, "cuda_driver"), launch(3, 40), launch(4, 51), launch(5, 52)]
    names = ["a1", "a2", "between", "b1", "b2"]
    made += [kernel(name, index + 1, 500 + 20 * index, 8) for index, name in enumerate(names)]
    for replay, (begin, gap) in enumerate([(1000, 2), (2000, 4)]):
        made += [on_host("convscope:replay", begin, begin + 10), launch(10 + replay, begin + 1)]
        made += [kernel(name, 10 + replay, begin + 100 + index * (10 + gap), 10) for index, name in enumerate(names)]
    return made


def traced(made: list[dict[str, Any]], *elsewhere: list[dict[str, Any]]) -> list[trace.LayerTrace]:
    """Return the layers of an eager pass with two replays behind it, and of two replays in each other placement."""
    return trace.matched(made, [made, *elsewhere], 2).layers()


def test_kernels_go_to_the_layer_whose_range_holds_their_launch():
    found = traced(two_layers())
    assert [dict(layer.kernels) for layer in found] == [{"a1": 1, "a2": 1}, {"b1": 1, "b2": 1}]


def test_times_are_those_of_the_replays_not_of_the_eager_pass():
    assert [layer.kernel_ms for layer in traced(two_layers())] == pytest.approx([0.020, 0.020])


def test_a_span_reaches_from_the_first_start_to_the_last_end_in_the_median_replay():
    assert [layer.span_ms for layer in traced(two_layers())] == pytest.approx([0.023, 0.023])


def test_the_order_of_the_events_does_not_matter():
    assert traced(two_layers()[::-1]) == traced(two_layers())


def test_layers_come_by_position_also_beyond_the_ninth():
    made = [on_host("convscope:eager", 0, 1000)]
    for position in range(12):
        made += [on_host(f"convscope:layer:{position}", 10 * position, 10 * position + 5)]
        made += [launch(position, 10 * position + 1), kernel(f"k{position}", position, 2000 + position, 0.5)]
    assert [list(layer.kernels) for layer in trace.matched(made).layers()] == [[f"k{p}"] for p in range(12)]


def test_kernels_that_nobody_launched_inside_the_pass_are_left_out():
    strangers = [kernel("stranger", 99, 1, 500), launch(98, 900), kernel("later", 98, 950, 500)]
    assert traced(two_layers() + strangers) == traced(two_layers())


def by_start(event: dict[str, Any]) -> float:
    return event["ts"]


def test_events_in_memory_are_those_that_would_be_exported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("KINETO_LOG_LEVEL", "99")
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU()).eval()
    with profiler.profile() as profiled, module_ranges(model, "module:"), profiler.record_function(trace.EAGER):
        model(torch.zeros(1, 3, 8, 8))
    profiled.export_chrome_trace(str(tmp_path / "trace.json"))
    exported = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    wanted = sorted((event for event in exported if event.get("cat") in ("cpu_op", "user_annotation")), key=by_start)
    found = sorted(cupti._events(profiled), key=by_start)
    assert Counter(event["cat"] for event in found)["user_annotation"] == 4
    assert [(event["cat"], event["name"]) for event in found] == [(event["cat"], event["name"]) for event in wanted]
    assert [event["dur"] for event in found] == pytest.approx([event["dur"] for event in wanted], abs=2e-3)
    here, there = ([event["ts"] - events[0]["ts"] for event in events] for events in (found, wanted))
    assert here == pytest.approx(there, abs=2e-3)


def test_a_pass_on_a_cpu_has_no_kernels_and_says_why():
    assert trace.trace_pass(torch.nn.ReLU(), (torch.zeros(1),)) == ([], "a CPU launches none")


def test_a_pass_that_cupti_does_not_see_has_no_kernels_and_says_why(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(trace, "record_layers", lambda *arguments: [])
    on_gpu = (types.SimpleNamespace(is_cuda=True),)
    assert trace.trace_pass(torch.nn.ReLU(), on_gpu) == (
        [], "CUPTI recorded no kernels (clusters often reserve it to administrators)"
    )  # fmt: skip


def test_a_traced_pass_has_the_kernels_of_each_layer(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(trace, "record_layers", lambda *arguments: two_layers())
    traces, reason = trace.trace_pass(torch.nn.ReLU(), (types.SimpleNamespace(is_cuda=True),))
    assert [layer.kernels for layer in traces] == [layer.kernels for layer in traced(two_layers())]
    assert reason is None


def test_an_eager_pass_has_no_times():
    assert {(layer.kernel_ms, layer.span_ms, layer.spans_ms) for layer in trace.matched(two_layers()).layers()} == {
        (None, None, ())
    }


def replays_alone(stretched: float) -> list[dict[str, Any]]:
    """The two replays of `two_layers`, its kernels and gaps `stretched` times as long."""
    others = [event for event in two_layers() if event["ts"] >= 1000 and event["cat"] != "kernel"]
    kernels = [event for event in two_layers() if event["ts"] >= 1000 and event["cat"] == "kernel"]
    return others + [event | {name: event[name] * stretched for name in ("ts", "dur")} for event in kernels]


def test_times_are_the_mean_over_placements_of_the_median_in_each():
    here, slower = traced(two_layers()), traced(two_layers(), replays_alone(1.5))
    assert [layer.span_ms for layer in slower] == pytest.approx([1.25 * layer.span_ms for layer in here])
    assert [layer.kernel_ms for layer in slower] == pytest.approx([1.25 * layer.kernel_ms for layer in here])
    assert [[len(place) for place in layer.spans_ms] for layer in slower] == [[2, 2], [2, 2]]


def test_another_placement_with_other_kernels_leaves_no_times():
    foreign = [event | {"name": "other"} if event["cat"] == "kernel" else event for event in replays_alone(1.0)]
    assert {layer.span_ms for layer in traced(two_layers(), foreign)} == {None}


@pytest.mark.parametrize(
    ("name", "longer"), [("Memset (Device)", True), ("Memcpy DtoD (Device -> Device)", True), ("memset_kernel", False)]
)
def test_memory_that_the_driver_sets_or_copies_is_told_from_a_kernel(name: str, longer: bool):
    assert trace.LayerTrace({"gemm": 1, name: 1}).sets_or_copies_memory is longer


def test_kernels_overlap_where_their_sum_is_longer_than_their_span():
    assert trace.LayerTrace({"k": 2}, kernel_ms=0.0101, span_ms=0.01).overlaps
    assert not trace.LayerTrace({"k": 2}, kernel_ms=0.01, span_ms=0.01).overlaps
    assert not trace.LayerTrace({"k": 2}).overlaps


def worked(made: list[dict[str, Any]], *elsewhere: list[dict[str, Any]]) -> dict[tuple[str, str | None, str], float]:
    """Return the times (ms) of the work of `two_layers`, whose first layer is a module and called an operator."""
    around = [
        on_host("convscope:module:", 1, 90) | {"tid": 1},
        on_host("convscope:module:one", 9, 35) | {"tid": 1},
        on_host("aten::conv2d", 10, 30) | {"cat": "cpu_op", "tid": 1},
        on_host("aten::relu", 39, 45) | {"cat": "cpu_op", "tid": 1},
    ]
    on_one = [event | {"tid": 1} if event["name"] == "launch" else event for event in made]
    work = trace.matched([*on_one, *around], elsewhere, 2).work()
    return {(each.category, each.module, each.kernel): each.kernel_ms for each in work}


def test_work_is_by_the_operators_and_modules_of_the_eager_pass_with_the_times_of_the_replays():
    assert worked(two_layers(), two_layers()) == {
        ("convolution", "one", "a1"): 0.010,
        ("convolution", "one", "a2"): 0.010,
        ("elementwise", None, "between"): 0.010,
        ("rest", None, "b1"): 0.010,
        ("rest", None, "b2"): 0.010,
    }


def test_work_has_the_times_of_the_eager_pass_where_no_replay_matches():
    foreign = [event | {"name": "other"} if event["cat"] == "kernel" else event for event in replays_alone(1.0)]
    for elsewhere in ((), (foreign,)):
        assert set(worked(two_layers(), *elsewhere).values()) == {0.008}


def test_work_of_kernels_in_another_order_inside_a_layer_is_matched_by_name():
    turned = [
        event | {"name": {"a1": "a2", "a2": "a1"}[event["name"]], "dur": {"a1": 30, "a2": 7}[event["name"]]}
        if event["name"] in ("a1", "a2") and event["ts"] >= 1000 else event
        for event in two_layers()
    ]  # fmt: skip
    found = worked(two_layers(), turned)
    assert (found["convolution", "one", "a2"], found["convolution", "one", "a1"]) == (0.030, 0.007)


def test_replays_are_told_from_those_of_another_pass():
    foreign = [event | {"name": "other"} if event["cat"] == "kernel" else event for event in replays_alone(1.0)]
    assert trace.matched(two_layers(), [two_layers()], 2).placements
    assert not trace.matched(two_layers(), [two_layers(), foreign], 2).placements
    assert not trace.matched(two_layers(), [], 0).placements


def test_one_trace_may_have_the_replays_of_several_placements():
    later = [event | {"ts": event["ts"] + 5000} for event in replays_alone(2.0)]
    for event in later:
        event["args"] = {"correlation": event["args"]["correlation"] + 100} if "args" in event else {}
    together = trace.matched(two_layers(), [[*replays_alone(1.0), *later]], 2)
    apart = trace.matched(two_layers(), [replays_alone(1.0), replays_alone(2.0)], 2)
    assert [len(place) for place in together.placements] == [2, 2]
    assert together.layers() == apart.layers()
    assert together.layers()[0].spans_ms[0] != together.layers()[0].spans_ms[1]


def test_the_work_of_resnet50_is_the_time_of_all_its_kernels(events: list[dict[str, Any]]):
    work = trace.matched(events, [events], REPLAYS).work()
    layers_ms = sum(layer.kernel_ms for layer in trace.matched(events, [events], REPLAYS).layers())
    assert sum(each.calls for each in work) == len(trace.matched(events, [events], REPLAYS).eager)
    assert sum(each.kernel_ms for each in work) > layers_ms


def test_a_replay_that_its_spin_did_not_outlast_is_taken_again_and_left_out_of_the_trace(
    monkeypatch: pytest.MonkeyPatch,
):
    gpu = fakes.Gpu()
    gpu.patch(monkeypatch)

    def record(work: Callable[[], None]) -> list[dict[str, Any]]:
        with profiler.profile() as found:
            work()
        ranges = (event for event in found.function_events or () if event.name.startswith(trace.REPLAY))
        return [{"name": event.name, "cat": "user_annotation"} for event in ranges]

    monkeypatch.setattr(trace, "record", record)
    gpu.launch_ms = 0.3  # three times as long as the first spin
    passes = [fakes.Captured(gpu, 2.0), fakes.Captured(gpu, 4.0)]
    hider = graphs.LaunchHider()
    events = trace.record_replays(passes, 2, graphs.nothing, hider)
    assert [each.replays for each in passes] == [4, 2]
    assert [event["name"].removeprefix(trace.REPLAY) for event in events] == [":2", ":3", ":4", ":5"]
    trace.record_replays(passes[:1], 2, graphs.nothing, hider)
    assert passes[0].replays == 6  # the spin stays as long as it was made
    gpu.launch_ms = 1e6
    with pytest.raises(HostTooSlowError):
        trace.record_replays(passes, 2, graphs.nothing, hider)
