"""Checks of files of samples, and the command: a fault is one readable line and exit code 1, bad input is 2."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from fakes import ROOT
from fakes.checked import ROWS, errors

from convscope import __main__ as program
from convscope.dataset import samples
from convscope.dataset.check.rows import may_be_fast
from convscope.dataset.samples import SampleRow

ROW = ROWS[0]


def of_rows(tmp_path: Path, *rows: SampleRow) -> list[str]:
    samples.write(tmp_path / "samples.csv", rows)
    return errors(tmp_path / "samples.csv")


def changed(**changes: Any) -> SampleRow:
    return dataclasses.replace(ROW, **changes)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"mean_ms": 1e-9}, "1e-09 ms is faster than the card: its arithmetic in float32, fp32 takes"),
        ({"math": "int8"}, "math is 'int8': choose one of fp32, tf32"),
        ({"layout": "chwn"}, "layout is 'chwn': choose one of nchw, nhwc"),
        ({"status": "refused", "reason": "no"}, "status is 'refused': choose one of ok, unsupported"),
        ({"status": "wrong"}, "the status is wrong and there is no reason: say why"),
        ({"mean_ci95_ms": -0.1}, "mean_ci95_ms is -0.1: the least is 0"),
        ({"mean_ci95_ms": float("inf")}, "mean_ci95_ms is inf: leave it empty where it was not measured"),
        ({"placements": 0}, "placements is 0: the least is 1"),
        ({"groups": 7}, "7 groups do not divide"),
        ({"kernel_size": "200x3"}, "there is no output: the filter is larger than the padded input"),
        ({"kernels": "{"}, "kernels is {: write a JSON object of counts by name"),
        ({"mean_ms": -1.0}, "mean_ms is -1.0: a measured value is above 0"),
        ({"dtype": "int8"}, "dtype is 'int8': choose one of float32"),
    ],
)
def test_a_value_that_cannot_be_is_a_line_with_its_row(tmp_path: Path, changes: dict[str, object], expected: str):
    found = of_rows(tmp_path, ROWS[1], changed(**changes), ROWS[2])
    assert len(found) == 1
    assert expected in found[0]
    assert found[0].startswith(f"{tmp_path / 'samples.csv'}, line 3")


def test_every_row_that_is_wrong_is_said_and_those_that_are_right_are_not(tmp_path: Path):
    path = tmp_path / "samples.csv"
    samples.write(path, ROWS[:6])
    lines = path.read_text().splitlines()
    lines[2] = lines[2].replace(",float32,", ",int8,")
    lines[4] += ",1"
    lines[5] = lines[5].replace(f",{ROWS[4].batch_size},", ",many,", 1)
    path.write_text("\n".join([*lines, lines[1], ""]))
    assert [each.removeprefix(f"{path}, ").split(":")[0] for each in errors(path)] == [
        "line 5", "line 6", "line 8", "line 3",
    ]  # fmt: skip


WINOGRAD = {"algorithm": "winograd", "ran_algorithm": "winograd", "kernels": '{"winograd_3x3_kernel": 1}'}


def test_a_fast_algorithm_may_be_faster_than_the_definition_and_not_than_its_products(tmp_path: Path):
    large = {"batch_size": 8, "in_channels": 256, "out_channels": 256, "in_height_px": 56, "in_width_px": 56}
    row = changed(**large, **WINOGRAD, gpu_name="Tesla T4", mean_ms=1.9, mean_ci95_ms=0.1)  # 3.5 ms by the definition
    assert of_rows(tmp_path, row) == []
    plain = dataclasses.replace(row, algorithm="direct", ran_algorithm="direct", kernels='{"direct_conv2d": 1}')
    assert "is faster than the card" in of_rows(tmp_path, plain)[0]
    assert "is faster than the card" in of_rows(tmp_path, dataclasses.replace(row, mean_ms=0.3))[0]


def test_a_time_below_what_the_memory_takes_is_one_of_memory(tmp_path: Path):
    row = changed(batch_size=32, in_channels=256, out_channels=256, in_height_px=112, in_width_px=112, mean_ms=2.0,
                  kernel_size="1x1", padding="0x0", groups=256, gpu_name="Tesla T4", kernels=None, algorithm="direct",
                  ran_algorithm="direct")  # fmt: skip
    (line,) = of_rows(tmp_path, row)
    assert "2 ms is faster than the card: its memory takes 2.5" in line


def test_what_ran_decides_whether_fewer_products_may_be():
    assert not may_be_fast(changed(algorithm="torch", ran_algorithm=None, kernels='{"implicit_convolve_sgemm": 1}'))
    assert may_be_fast(changed(algorithm="torch", ran_algorithm=None, kernels=None))
    assert may_be_fast(changed(algorithm="torch", ran_algorithm="plan:38", kernels=None))
    assert may_be_fast(changed(algorithm="torch", kernels="fft2d_r2c_32x32;gcgemm"))
    assert not may_be_fast(changed(algorithm="torch", ran_algorithm="gemm", kernels=None))


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (
            {"algorithm": "fft", "ran_algorithm": None, "kernels": '{"implicit_convolve_sgemm": 1}'},
            "it says that fft ran, and a kernel of implicit GEMM did: implicit_convolve_sgemm",
        ),
        (
            {"algorithm": "fft", "ran_algorithm": "fft", "kernels": "volta_sgemm_64x64_nn"},
            "it says that fft ran, and no kernel of it did: volta_sgemm_64x64_nn",
        ),
        (
            {"algorithm": "fft", "ran_algorithm": "winograd", "kernels": '{"fft2d_r2c_32x32": 1}'},
            "it says that winograd ran, and a kernel of FFT did: fft2d_r2c_32x32",
        ),
        (
            {"algorithm": "torch", "ran_algorithm": None, "kernels": '{"sm80_xmma_fprop_tf32f32": 1}'},
            "it says fp32, and a kernel of the tensor cores ran: sm80_xmma_fprop_tf32f32",
        ),
    ],
)
def test_kernels_of_another_algorithm_are_an_error(tmp_path: Path, changes: dict[str, object], expected: str):
    (line,) = of_rows(tmp_path, changed(**changes))
    assert expected in line


def test_a_name_that_says_what_else_ran_is_right_and_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    kernels = '{"cudnn::cnn::conv2d_grouped_direct_kernel": 1}'
    assert of_rows(tmp_path, changed(algorithm="gemm", ran_algorithm="direct", kernels=kernels)) == []
    assert "1 sample called gemm ran direct, as they say" in capsys.readouterr().out


def test_what_was_not_checked_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert of_rows(tmp_path, changed(gpu_name="a processor", kernels=None)) == []
    out = capsys.readouterr().out
    assert "1 sample not checked against the card's limits: no peaks are known of a processor" in out
    assert "1 sample not checked against their kernels: these are not known" in out


def test_a_check_is_printed_for_programs_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = tmp_path / "samples.csv"
    samples.write(path, [dataclasses.replace(ROWS[0], math="int8"), changed(gpu_name="a processor", kernels=None)])
    assert program.main(["check", str(path), "--json"]) == 1
    (found,) = json.loads(capsys.readouterr().out)
    assert (found["path"], found["samples"], len(found["errors"])) == (str(path), 2, 1)
    assert found["not_checked"]["against the card's limits: no peaks are known of a processor"] == 1


def test_only_so_many_errors_are_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    samples.write(tmp_path / "samples.csv", [dataclasses.replace(row, math="int8") for row in ROWS[:9]])
    assert program.main(["check", str(tmp_path / "samples.csv"), "--most", "2"]) == 1
    assert capsys.readouterr().out.splitlines()[2] == "and 7 more (--most 9 shows all)"
    assert program.main(["check", str(tmp_path / "samples.csv"), "--most", "2", "--json"]) == 1
    (found,) = json.loads(capsys.readouterr().out)
    assert (len(found["errors"]), found["errors_left_out"], found["samples"]) == (2, 7, 9)
    assert program.main(["check", str(tmp_path / "samples.csv"), "--json"]) == 1
    (found,) = json.loads(capsys.readouterr().out)
    assert (len(found["errors"]), found["errors_left_out"]) == (9, 0)


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("no.csv", None, "does not exist: name a file of samples, or the folder of a data set"),
        ("samples.csv", b"a,b\n1,2\n", "it has other columns"),
        ("samples.csv", b"\xff\xfe\n", "this is no text"),
        ("samples.parquet", b"PAR1", "samples.parquet cannot be read"),
        ("datapackage.json", b"[1]", "is no JSON object"),
    ],
)
def test_what_is_no_data_is_bad_input(
    tmp_path: Path, name: str, content: bytes | None, expected: str, capsys: pytest.CaptureFixture[str]
):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    assert program.main(["check", str(tmp_path / name)]) == 2
    assert expected in capsys.readouterr().err


def test_a_folder_without_documents_is_bad_input(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert program.main(["check", str(tmp_path)]) == 2
    assert "datapackage.json cannot be read (No such file or directory): name a folder" in capsys.readouterr().err


def test_a_check_is_of_data_alone(capsys: pytest.CaptureFixture[str]):
    combination = ["alexnet", "no such", "cpu", "--stages", "1_sanity"]
    with pytest.raises(SystemExit) as ended:
        program.main(["check", *combination])
    assert ended.value.code == 2
    assert "unrecognized arguments: --stages" in capsys.readouterr().err
    assert program.main(["stages", *combination]) == 2
    assert "1_sanity_check.sh: unknown algorithm" in capsys.readouterr().err


def test_a_file_of_samples_is_checked_without_pyarrow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert of_rows(tmp_path, ROW) == []


def test_each_row_counts_once_however_much_is_wrong_with_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = tmp_path / "samples.csv"
    samples.write(path, [*ROWS[:3], ROWS[1], changed(math="int8", dtype="int8", run="another")])
    assert program.main(["check", str(path), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)[0]["samples"] == 5


def test_a_parquet_file_is_read_without_starting_threads():
    split = ROOT / "data" / "h200" / "splits" / "layer.parquet"
    tasks = "len(os.listdir('/proc/self/task'))"
    code = (
        "import os, pathlib, pyarrow.parquet; from convscope.dataset import parquet; "
        f"before = {tasks}; parquet.read(pathlib.Path({str(split)!r})); print({tasks} - before)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "0\n"


def test_a_parquet_file_that_is_refused_ends_the_command_in_order():
    split = str(ROOT / "data" / "h200" / "splits" / "layer.parquet")
    for _ in range(4):  # before its files were read without threads the process aborted at times, behind its line
        done = subprocess.run([sys.executable, "-m", "convscope", "check", split], capture_output=True, text=True)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
