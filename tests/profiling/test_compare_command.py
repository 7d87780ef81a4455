"""`convscope compare` as a command: its exit code, its text, what it refuses."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from fakes import ROOT
from fakes.compared import layer, overall, written

from convscope.__main__ import main
from convscope.errors import InputError
from convscope.profiling.comparison import compare


def test_another_algorithm_is_a_comparison_like_any_other(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    a, b = written(tmp_path / "a"), written(tmp_path / "b", algorithm="implicit gemm")
    assert main(["compare", str(a), str(b)]) == 0
    assert "they differ in: algorithm direct and implicit gemm\n" in capsys.readouterr().out


def compared(a: Path, b: Path, *options: str) -> int:
    return main(["compare", str(a), str(b), "--tolerance", "1", *options])


def test_a_slower_pass_ends_with_exit_code_1(tmp_path: Path):
    assert compared(written(tmp_path / "a"), written(tmp_path / "b", [overall(mean=12.0)])) == 1


def test_a_faster_pass_ends_with_exit_code_0(tmp_path: Path):
    assert compared(written(tmp_path / "a"), written(tmp_path / "b", [overall(mean=8.0)])) == 0


def test_a_power_capped_run_that_is_twice_as_slow_ends_with_exit_code_1(tmp_path: Path):
    capped = {"throttle_reasons": "power cap"}
    a, b = written(tmp_path / "a", [overall(**capped)]), written(tmp_path / "b", [overall(mean=20.0, **capped)])
    assert compared(a, b) == 1


@pytest.mark.parametrize(("options", "code"), [((), 0), (("--layers",), 1)])
def test_a_slower_layer_decides_only_where_layers_are_asked_for(tmp_path: Path, options: tuple[str, ...], code: int):
    a, b = written(tmp_path / "a"), written(tmp_path / "b", layers=[layer(mean_ms=1.2)])
    assert compared(a, b, *options) == code


def test_the_table_has_a_line_a_size_and_counts_below(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    passes = [overall(mean=12.0, power_mean_w=400.0, energy_per_inference_j=4.8)]
    a = written(tmp_path / "a", [overall(power_mean_w=500.0, energy_per_inference_j=5.0)])
    compared(a, written(tmp_path / "b", passes))
    said = capsys.readouterr().out
    assert said.splitlines()[:3] == [
        f"A  {tmp_path}/a: alexnet, direct, fp32, batch 1, on NVIDIA H200",
        f"B  {tmp_path}/b: alexnet, direct, fp32, batch 1, on NVIDIA H200",
        "they differ in: nothing",
    ]
    header, line = said.splitlines()[4:6]
    assert "A, W  B, W   A, mJ   B, mJ  verdict" in header
    assert " ".join(line.split()) == "64 10.0000 12.0000 +20.0 +19.7 … +20.3 500 400 5000.0 4800.0 slower"
    assert "passes: 1 slower\nlayers: 1 same\n" in said


def test_power_that_one_run_lacks_has_no_column(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    compared(written(tmp_path / "a", [overall(power_mean_w=500.0)]), written(tmp_path / "b"))
    assert "W" not in capsys.readouterr().out.splitlines()[4]


def test_layers_are_listed_where_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    compared(written(tmp_path / "a"), written(tmp_path / "b"), "--layers")
    assert "64    features.0  1.0000  1.0000" in capsys.readouterr().out


def test_json_holds_every_row_the_differences_and_the_exit_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    a, b = written(tmp_path / "a"), written(tmp_path / "b", [overall(mean=12.0)], environment={"host": "node2"})
    compared(a, b, "--json")
    said = json.loads(capsys.readouterr().out)
    assert (said["exit_code"], said["tolerance_pct"], said["differences"]) == (1, 1.0, {"host": ["node1", "node2"]})
    assert [row["verdict"] for row in said["passes"] + said["layers"]] == ["slower", "same"]


def test_a_folder_without_a_run_is_one_line_and_exit_code_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert compared(tmp_path, tmp_path) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"convscope compare: {tmp_path} has no run.json: give the folder of a run")
    assert said.count("\n") == 1


def test_a_run_without_a_row_is_bad_input(tmp_path: Path):
    with pytest.raises(InputError, match=r"has no row in alexnet_direct_overall\.csv"):
        compare.read(written(tmp_path / "a", []))


def test_runs_without_a_size_in_common_are_bad_input(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    a, b = written(tmp_path / "a"), written(tmp_path / "b", [overall(input_size=96)])
    assert compared(a, b) == 2
    assert "no size of A and B can be compared (64 px: only in A)" in capsys.readouterr().err


@pytest.mark.parametrize("tolerance", ["-1", "nan", "much"])
def test_a_tolerance_that_is_none_is_one_line_and_exit_code_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], tolerance: str
):
    with pytest.raises(SystemExit) as ended:
        main(["compare", str(tmp_path), str(tmp_path), f"--tolerance={tolerance}"])
    assert ended.value.code == 2
    assert f"invalid percentage value: '{tolerance}'" in capsys.readouterr().err


def test_comparing_needs_no_pytorch():
    code = "import sys; from convscope.profiling.comparison import compare; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0
