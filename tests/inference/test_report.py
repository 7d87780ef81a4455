"""The words and pictures of an inference study, from tables with known figures."""

from __future__ import annotations

import dataclasses
import io
from pathlib import Path

import pandas as pd
import pytest

from convscope.inference import report
from convscope.inference.rows import InferenceRow


def row(engine: str, size: int, latency_ms: float | None, **more: object) -> InferenceRow:
    images = size / latency_ms * 1e3 if latency_ms else None
    known = {"latency_mean_ms": latency_ms, "images_per_s": images, "floor_ms": 0.05 * size, **more}
    return InferenceRow("resnet50", engine, size, 1, **{"scenario": "batch", **known})


def frame(*rows: InferenceRow) -> pd.DataFrame:
    """Return rows as they come back from the disk."""
    return pd.read_csv(io.StringIO(pd.DataFrame([dataclasses.asdict(one) for one in rows]).to_csv(index=False)))


BATCHES = frame(
    row("eager", 1, 3.0, latency_std_ms=0.1, latency_p99_ms=3.5),
    row("graph", 1, 0.5, times_floor=10.0),
    row("graph", 8, 1.0, energy_per_image_j=0.0205, energy_uncertainty_j=0.0004),
    row("aot", 1, None, status="unsupported", reason="install it"),
)


def loaded(rate: float, p99_ms: float, kept: bool) -> InferenceRow:
    return InferenceRow("resnet50", "graph", 64, 1, "server", rate, latency_p50_ms=1.0, latency_p90_ms=2.0,
                        latency_p99_ms=p99_ms, images_per_s=rate, mean_batch=3.0, slo_ms=15.0, within_slo=kept,
                        window_s=60.0)  # fmt: skip


def test_every_cell_has_its_line_and_its_ratio_to_eager():
    header, eager, graph, aot, larger = report.cells(BATCHES).splitlines()
    assert header.split()[:3] == ["batch", "engine", "GPUs"]
    assert "3.000 ± 0.100" in eager
    assert graph.split()[3] == "0.500"
    assert " 6.0 " in graph
    assert " 10.0 " in graph
    assert aot.endswith("unsupported: install it")
    assert larger.split()[8] == "-"
    assert " 20.5 ± 0.4 " in larger


def test_calls_with_copies_stand_in_a_table_of_their_own_beside_their_own_baseline():
    copied = {"inputs": "host"}
    rows = frame(
        row("eager", 1, 3.0), row("graph", 1, 0.5), row("eager", 1, 4.0, **copied), row("graph", 1, 2.0, **copied)
    )
    resident, host = report.side_by_side(rows).split("\n\n1 GPU, images copied from host memory\n\n")
    assert resident.splitlines()[-1] == "| 1 | 0.050 | 3.000 | 333 | 0.500 | 2,000 | 6.0 |"
    assert host.splitlines()[-1] == "| 1 | 0.050 | 4.000 | 250 | 2.000 | 500 | 2.0 |"


def test_the_scaling_of_several_gpus_is_a_table():
    two = dataclasses.replace(row("graph", 8, 2.0), processes=2, weak_scaling_pct=98.76)
    header, line = report.scaling(frame(row("graph", 4, 1.0), two)).splitlines()
    assert header.split() == [
        "engine",
        "processes",
        "batch",
        "of",
        "all",
        "images/s",
        *["weak", "scaling"],
        "strong",
        "scaling",
    ]
    assert line.split() == ["graph", "2", "8", "4,000", "98.8", "%", "-"]
    assert report.scaling(BATCHES) == ""


def test_engines_stand_beside_each_other_for_each_batch_size():
    assert report.side_by_side(BATCHES) == "\n".join(
        [
            "1 GPU",
            "",
            "| batch size | floor, ms | eager, ms | eager, images/s | graph, ms | graph, images/s | × eager |",
            "| ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
            "| 1 | 0.050 | 3.000 | 333 | 0.500 | 2,000 | 6.0 |",
            "| 8 | 0.400 |  |  | 1.000 | 8,000 | - |",
        ]
    )


def test_the_highest_rate_that_kept_the_limit_is_told():
    rows = frame(loaded(1000.0, 5.0, True), loaded(3000.0, 99.0, False), loaded(2000.0, 14.0, True))
    text = report.under_load(rows)
    assert [line.split()[1] for line in text.splitlines()[1:4]] == ["1,000", "2,000", "3,000"]
    assert text.splitlines()[-1] == "graph, batches of at most 64: p99 within 15 ms up to 2,000 requests/s"
    alone = report.under_load(frame(loaded(3000.0, 99.0, False)))
    assert alone.endswith("up to none of these rates")


def test_a_scenario_of_mlperf_is_told_by_its_metric():
    rows = frame(row("graph", 1, 0.5, scenario="single-stream", latency_p90_ms=0.6))
    assert report.cells(rows).endswith("single-stream: latency_p90_ms 0.600")


def test_the_front_has_what_nothing_else_beats():
    points = [(1.0, 100.0), (2.0, 90.0), (2.0, 300.0), (3.0, 300.0), (0.5, 10.0)]
    assert report.front(points) == [(0.5, 10.0), (1.0, 100.0), (2.0, 300.0)]


@pytest.mark.parametrize(
    ("rows", "names"),
    [
        (BATCHES, ["latency.png", "pareto.png"]),
        (frame(loaded(1000.0, 5.0, True), loaded(2000.0, 20.0, False)), ["server.png"]),
        (frame(row("aot", 1, None, status="failed")), []),
    ],
)
def test_what_was_measured_is_drawn(rows: pd.DataFrame, names: list[str], tmp_path: Path):
    made = report.draw(rows, tmp_path, pytest.fail)
    assert [path.name for path in made] == names
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in made)
