"""Earlier runs of the same model beside a new one: the latest, in the same environment alone, with verdicts."""

from __future__ import annotations

import os
from pathlib import Path

import pandas as pd
import pytest
from fakes import compared

from convscope.profiling import report
from convscope.profiling.comparison import earlier
from convscope.profiling.rows import LayerRow, OverallRow
from convscope.storage.table import columns


def run(results: Path, algorithm: str, mean_ms: float = 10.0, stage: str = "2_quick", **changes: object) -> Path:
    """Write a run of three sizes below `results`; return its folder."""
    environment = changes.pop("environment", None)
    passes = [
        compared.overall(algorithm=algorithm, input_size=size, mean=mean_ms, mean_ci95_ms=0.02, placements=5,
                         placement_spread_pct=0.5)
        for size in (64, 96, 128)
    ]  # fmt: skip
    path = results / stage / f"alexnet_{algorithm.replace(' ', '_')}_h200"
    asked = {"algorithm": algorithm, "input_sizes": (64, 96, 128), **changes}
    return compared.written(path, passes, [], environment, **asked)  # type: ignore[arg-type]


def lines(folder: Path, results: Path) -> list[str]:
    return ["".join(text for text, _ in line) for line in report.beside_earlier(earlier.compared(folder, results))]


def test_other_algorithms_of_the_model_stand_beside_the_run(tmp_path: Path):
    run(tmp_path, "gemm", 20.0)
    run(tmp_path, "torch", 5.0)
    header, gemm, torch = lines(run(tmp_path, "fft"), tmp_path)
    assert header.startswith("earlier run ")
    assert header.endswith("  verdict")
    assert header.index("verdict") == gemm.rindex("faster") == torch.rindex("slower")
    assert " gemm " in gemm
    assert " 3 faster " in gemm
    assert "128 px  20.0000   10.0000  -50.0 " in gemm
    assert gemm.endswith("faster")
    assert torch.endswith("slower")


def test_a_run_is_not_beside_itself(tmp_path: Path):
    assert lines(run(tmp_path, "fft"), tmp_path) == []


def test_what_overwrite_has_kept_is_an_earlier_run(tmp_path: Path):
    folder = run(tmp_path, "fft", 5.0)
    kept = folder / "before-2026"
    kept.mkdir()
    for path in [each for each in folder.iterdir() if each.is_file()]:
        path.rename(kept / path.name)
    _, line = lines(run(tmp_path, "fft"), tmp_path)
    assert str(kept) in line
    assert line.endswith("slower")


@pytest.mark.parametrize("changes", [{"cudnn": "9.24.0"}, {"driver": "590"}, {"gpu_name": "NVIDIA H200 NVL"}])
def test_runs_in_another_environment_are_counted_and_not_compared(tmp_path: Path, changes: dict[str, str]):
    run(tmp_path, "gemm", environment=changes)
    assert lines(run(tmp_path, "fft"), tmp_path) == ["not compared: 1 earlier run of this model in another environment"]


@pytest.mark.parametrize("changes", [{"batch_size": 8}, {"dtype": "float16"}, {"layout": "nhwc"}, {"math": "fp32"}])
def test_other_work_is_left_out(tmp_path: Path, changes: dict[str, object]):
    run(tmp_path, "gemm", **changes)
    assert lines(run(tmp_path, "fft", math="tf32"), tmp_path) == []


def test_the_latest_are_taken(tmp_path: Path):
    for number in range(earlier.MOST + 2):
        path = run(tmp_path, f"plan:{number}")
        os.utime(path / "run.json", (number, number))
    found = earlier.compared(run(tmp_path, "fft"), tmp_path)
    assert {each.algorithm for each in found.runs} == {f"plan:{number}" for number in range(2, earlier.MOST + 2)}


def test_damaged_folders_are_left_out(tmp_path: Path):
    (run(tmp_path, "gemm") / "run.json").write_text("{")
    (tmp_path / "2_quick" / "alexnet_torch_h200").mkdir()
    (tmp_path / "2_quick" / "alexnet_torch_h200" / "run.json").symlink_to(tmp_path / "absent")
    assert lines(run(tmp_path, "fft"), tmp_path) == []


def test_a_run_that_measured_nothing_has_nothing_beside_it(tmp_path: Path):
    assert earlier.compared(compared.written(tmp_path / "run", []), tmp_path) == earlier.Earlier([])


def pictures(passes: list[OverallRow], layers: list[LayerRow]) -> list[str]:
    overall = pd.DataFrame([vars(row) for row in passes], columns=columns(OverallRow))
    of_layers = pd.DataFrame([vars(row) for row in layers], columns=columns(LayerRow))
    return ["".join(text for text, _ in line) for line in report.pictures(overall, of_layers)]


def test_times_over_the_sizes_are_a_sparkline_between_their_figures():
    passes = [compared.overall(input_size=size, mean=float(size)) for size in (64, 96, 128)]
    assert pictures(passes, []) == ["time, ms: 64 at 64 px ▁▅█ 128 at 128 px"]


def test_fewer_than_three_sizes_have_no_sparkline():
    assert pictures([compared.overall(input_size=size) for size in (64, 96)], []) == []


def test_the_slowest_layers_of_the_largest_size_have_bars():
    layers = [
        compared.layer(layer=name, position=at, mean_ms=time_ms, percentage=10 * time_ms, status=status)
        for at, (name, time_ms, status) in enumerate(
            [("a", 1.0, "ok"), ("long", 4.0, "ok"), ("other", 9.0, "fallback"), ("b\x1b", 2.0, "ok")]
        )
    ]
    assert pictures([compared.overall()], layers) == [
        "slowest layers at 64 px, ms (% of the pass)",
        f"  long   {'█' * 24}  4.000 (40 %)",
        f"  b\\x1b  {'█' * 12}{' ' * 12}  2.000 (20 %)",
        f"  a      {'█' * 6}{' ' * 18}  1.000 (10 %)",
    ]


def test_a_run_without_a_time_has_no_pictures():
    assert pictures([compared.overall(status="oom", mean=None)], []) == []
