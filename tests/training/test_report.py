"""Words on the figures of a training cell."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pandas as pd
import pytest
from matplotlib.figure import Figure

from convscope.storage.table import columns
from convscope.training import report
from convscope.training.rows import OperatorRow, TrainingRow

NAME = {"model": "resnet18", "batch_size": 32, "processes": 1, "compiled": False, "captured": False}
ROW = TrainingRow(
    **NAME, throughput_samples_per_s=1000.0, steps=100, skipped_steps=10, launch_ms=8.0,
    step_ms=32.0, step_std_ms=1.0, step_p95_ms=34.0,
    data_ms=1.0, data_std_ms=0.1, data_p95_ms=1.2,
    forward_ms=10.0, forward_std_ms=0.1, forward_p95_ms=10.2,
    backward_ms=20.0, backward_std_ms=0.1, backward_p95_ms=20.2,
    optimizer_ms=1.0, optimizer_std_ms=0.1, optimizer_p95_ms=1.2,
    peak_memory_bytes=282_000_000, mean_memory_bytes=200_000_000,
    energy_per_sample_j=0.25, energy_uncertainty_j=0.001, power_mean_w=250.0,
    loss=0.1, accuracy_pct=97.5, timing_method="a clock", dataset="digits",
    algorithm="torch", dtype="float32", math="tf32", device="cuda:0",
)  # fmt: skip


def training(*changes: dict[str, Any]) -> pd.DataFrame:
    return pd.DataFrame([dataclasses.asdict(dataclasses.replace(ROW, **change)) for change in changes])


def operators(**shares: float) -> pd.DataFrame:
    rows = [OperatorRow(**NAME, operator=f"aten::{kind}", phase="forward", category=kind, share_pct=share, calls=1,
                        cpu_ms=1.0, device_ms=1.0) for kind, share in shares.items()]  # fmt: skip
    return pd.DataFrame([dataclasses.asdict(row) for row in rows], columns=columns(OperatorRow))


def told(
    change: dict[str, Any], others: tuple[dict[str, Any], ...] = (), memory_bytes=None, **shares: float
) -> list[str]:
    table = training(change, *others)
    return report.opportunities(table.to_dict("records")[0], operators(**shares), table, memory_bytes)


def test_nothing_stands_out_where_the_gpu_is_busy_with_convolutions():
    assert told({}, convolution=90, activation=10) == []


@pytest.mark.parametrize(
    ("change", "shares", "said"),
    [
        (
            {"launch_ms": 30.0, "host_bound": True},
            {},
            "host-bound: the host takes 30.00 ms to launch what takes 31.00: ",
        ),
        ({"step_p95_ms": 70.0}, {}, "unsteady: one step in 20 takes 70.00 ms and more, the mean is 32.00"),
        ({"data_ms": 16.0}, {}, "waits for data: 50 % of a step: more --num-workers"),
        ({}, {"normalisation": 20, "copies": 10}, "memory-bound: 30 % goes to normalisation, activation and copies"),
        ({"loss": math.nan}, {}, "the loss is no number any more: a smaller --learning-rate"),
    ],
)
def test_each_opportunity_follows_from_its_figures(change: dict, shares: dict, said: str):
    found = told(change, **shares)
    assert len(found) == 1
    assert found[0].startswith(said)


def test_a_captured_step_is_not_advised_to_be_captured():
    bound = {"launch_ms": 30.0, "host_bound": True}
    assert "fewer launches (--capture, --compile, a larger batch) help" in told(bound)[0]
    assert "fewer launches (a larger batch) help" in told(bound | {"captured": True})[0]


def test_a_captured_cell_is_named_so_and_has_no_mean_memory():
    table = training({"captured": True, "compiled": True, "mean_memory_bytes": None})
    lines = report.summary(table.to_dict("records")[0], operators(), table, None).splitlines()
    assert lines[0] == "resnet18 on digits, batch 32, cuda:0 (torch, float32, tf32, compiled, captured)"
    assert "- memory: peak 282.0 MB" in lines
    assert report.matrix(table).splitlines()[1].split()[3:5] == ["yes", "yes"]


def test_a_batch_is_small_where_a_larger_one_of_the_same_model_is_much_faster():
    faster = {"batch_size": 128, "throughput_samples_per_s": 3000.0}
    assert told({}, (faster,)) == ["small batch: batch 128 trains 3.0 times as many samples a second"]
    assert told({}, (faster | {"throughput_samples_per_s": 1100.0},)) == []
    assert told({}, (faster | {"model": "resnet34"},)) == []
    assert told({}, (faster | {"compiled": True},)) == []
    assert told({}, (faster | {"captured": True},)) == []
    assert told({}, (faster | {"status": "oom", "throughput_samples_per_s": None},)) == []
    assert told({}, (faster | {"batch_size": 16},)) == []


def test_memory_is_nearly_full_against_what_the_gpu_has():
    assert told({}, memory_bytes=300_000_000) == ["memory nearly full: 94 % of the GPU's"]
    assert told({}, memory_bytes=3_000_000_000) == []


def test_a_summary_has_the_metrics_in_the_usual_order():
    cell = training({}).to_dict("records")[0]
    assert report.summary(cell, operators(convolution=90, activation=10), training({}), None).splitlines() == [
        "resnet18 on digits, batch 32, cuda:0 (torch, float32, tf32)",
        "- throughput: 1,000.0 samples/s",
        "- step time: 32.00 ± 1.00 ms (p95 34.00)",
        "- data time: 1.00 ± 0.10 ms (p95 1.20, 3.1 %)",
        "- forward time: 10.00 ± 0.10 ms (p95 10.20, 31.2 %)",
        "- backward time: 20.00 ± 0.10 ms (p95 20.20, 62.5 %)",
        "- optimizer time: 1.00 ± 0.10 ms (p95 1.20, 3.1 %)",
        "- host's time for a step, without its data: 8.00 ms",
        "- memory: peak 282.0 MB, mean 200.0 MB",
        "- energy: 250.000 ± 1.000 mJ a sample at 250.0 W",
        "- loss 0.1000, accuracy 97.5 % on held-out images",
        "  over 100 steps, the first 10 left out; a clock",
        "top operations",
        " 1. aten::convolution: 90.0 %",
        " 2. aten::activation: 10.0 %",
        "    convolution 90.0 %, activation 10.0 %",
        "    often quoted: convolution 65 to 75 %, normalisation 10 to 15 %, copies 5 to 10 %",
        "opportunities",
        "- none that stands out",
    ]


def test_phases_of_a_host_bound_step_are_marked_and_have_the_time_of_their_kernels():
    phases = {"data_gpu_ms": 0.0, "forward_gpu_ms": 2.5, "backward_gpu_ms": 5.0, "optimizer_gpu_ms": 0.25}
    table = training({"host_bound": True, "launch_ms": 31.0, "gpu_busy_ms": 7.75, **phases})
    lines = report.summary(table.to_dict("records")[0], operators(), table, None).splitlines()
    assert "- forward time: 10.00 ± 0.10 ms (p95 10.20, 31.2 %; kernels 2.50 ms)" in lines
    assert "- host-bound: the GPU waits, and the phases are times of the host" in lines


def test_the_matrix_has_a_line_for_every_cell_those_too_that_did_not_fit():
    oom = TrainingRow(**NAME | {"batch_size": 4096}, status="oom", reason="CUDA out of memory.")
    table = pd.DataFrame([dataclasses.asdict(ROW), dataclasses.asdict(oom)])
    lines = report.matrix(table).splitlines()
    assert len(lines) == 3
    assert lines[1].split() == ["resnet18", "32", "1", "no", "no", "1,000.0", "-", "32.00", "1.00", "10.00", "20.00",
                                "1.00", "282", "250.00", "97.5", "%"]  # fmt: skip
    assert lines[2].endswith("oom: CUDA out of memory.")


def test_memory_is_drawn_by_model_and_batch_size_and_of_the_gpu_where_there_is_one():
    cells = [
        ("resnet18", 32, "cpu"),
        ("resnet18", 32, "cuda:0"),
        ("resnet18", 64, "cuda:0"),
        ("resnet34", 32, "cuda:0"),
    ]
    memory = pd.DataFrame(
        [
            {"model": model, "batch_size": size, "processes": 1, "compiled": False, "captured": False,
             "time_ms": time_ms, "device": device, "allocated_bytes": 1e6 * size}
            for model, size, device in cells
            for time_ms in (0.0, 1.0)
        ]
    )  # fmt: skip
    drawn = Figure()
    report._memory(drawn, memory)
    assert [(axes.get_title(), len(axes.lines)) for axes in drawn.axes] == [("resnet18", 2), ("resnet34", 1)]
    drawn = Figure()
    report._memory(drawn, memory[memory["device"] == "cpu"])
    assert [len(axes.lines) for axes in drawn.axes] == [1]
