"""Checks of data: every kind of damage is one readable line and exit code 1; what holds is 0, bad input 2."""

from __future__ import annotations

import dataclasses
import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fakes.drawn_samples import measured

from convscope import __main__ as program
from convscope.dataset import samples
from convscope.dataset.check import command
from convscope.dataset.check.rows import may_be_fast
from convscope.dataset.package import documents, folder, merging, partition
from convscope.dataset.package.documents import SAMPLES_FILE
from convscope.dataset.package.facts import Release
from convscope.dataset.samples import SampleRow
from convscope.storage.table import write_atomically

RELEASE = Release("1.0.0", "2026-02-03", "https://example.org", "a person")
AGAIN = measured(2, run=2)
ROWS = merging.in_order([*measured(60), *AGAIN[:-1], dataclasses.replace(AGAIN[-1], mean_ms=90.0, mean_ci95_ms=0.1)])
ROW = ROWS[0]


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("sound") / "data"
    folder.write(place, folder.package(ROWS, RELEASE))
    return place


@pytest.fixture
def data(sound: Path, tmp_path: Path) -> Path:
    shutil.copytree(sound, tmp_path / "data")
    return tmp_path / "data"


def test_a_data_set_as_it_was_written_holds(data: Path, capsys: pytest.CaptureFixture[str]):
    assert program.main(["check", str(data), str(data / "datapackage.json")]) == 0
    looked = f"{len(ROWS)} samples, {len(ROWS)} against the card's limits, {len(ROWS)} against their kernels"
    assert capsys.readouterr().out.splitlines()[0] == f"{data}: holds: {looked}"


def errors(path: Path) -> list[str]:
    """Return what is wrong, by the command: one line each, exit code 1."""
    found = command.check(path).errors
    assert program.main(["check", str(path)]) == (1 if found else 0)
    assert all("\n" not in line and line.isprintable() for line in found)
    return found


# ---- a file of samples


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


# ---- a data set


def described(data: Path) -> None:
    """Write the documents anew for the files that are there, so that only what is in them is wrong."""
    rows = samples.table.objects(samples.SAMPLES, samples.cells(data / SAMPLES_FILE))
    made = folder.package(rows, RELEASE)
    files = [dataclasses.replace(each, content=(data / each.path).read_bytes()) for each in made.files]
    for name, text in folder._texts(files, rows, RELEASE, made.refused).items():
        write_atomically(data / name, text)


def test_a_changed_byte_is_found(data: Path):
    content = bytearray((data / SAMPLES_FILE).read_bytes())
    content[len(content) // 2] ^= 1
    (data / SAMPLES_FILE).write_bytes(content)
    found = errors(data)
    assert any("samples.parquet: it was changed: its hash is sha256:" in line for line in found)


def resampled(data: Path, change: Callable[[pd.DataFrame], pd.DataFrame]) -> None:
    """Change the samples, with documents that fit."""
    form = pq.read_schema(data / SAMPLES_FILE)
    frame = change(pq.read_table(data / SAMPLES_FILE).to_pandas(types_mapper={pa.int64(): pd.Int64Dtype()}.get))
    pq.write_table(pa.Table.from_pandas(frame, form, preserve_index=False), data / SAMPLES_FILE)
    described(data)


def test_a_row_that_is_faster_than_the_card_is_found_in_parquet(data: Path):
    resampled(data, lambda frame: frame.assign(mean_ms=frame["mean_ms"].where(frame["sample"] != 7, 1e-7)))
    found = errors(data)
    assert any(f"{SAMPLES_FILE}, sample 7 (" in line and "is faster than the card" in line for line in found)


def test_rows_in_another_order_are_found(data: Path):
    resampled(data, lambda frame: frame.iloc[::-1].assign(sample=range(len(frame))))
    assert f"{data / SAMPLES_FILE}: its rows are not in the order of their keys" in errors(data)


def test_numbers_that_do_not_count_are_found(data: Path):
    resampled(data, lambda frame: frame.assign(sample=frame["sample"] + 1))
    assert any("column sample does not count from 0" in line for line in errors(data))


def test_a_needed_cell_that_is_empty_is_found(data: Path):
    path = data / SAMPLES_FILE
    found = pq.read_table(path)
    columns = {name: found.column(name).to_pylist() for name in found.column_names}
    columns["in_channels"][5], columns["algorithm"][6] = None, None
    pq.write_table(pa.table(columns, pa.schema([field.with_nullable(True) for field in found.schema])), path)
    assert {f"{path}, sample 5: in_channels is empty", f"{path}, sample 6: algorithm is empty"} <= {*errors(data)}


@pytest.mark.parametrize("name", ["croissant.json", "README.md", "samples.parquet"])
def test_a_file_that_is_missing_is_found(data: Path, name: str):
    (data / name).unlink()
    assert any(str(data / name) in line for line in errors(data))


def test_two_rows_of_one_key_are_found(data: Path):
    resampled(data, lambda frame: pd.concat([frame, frame.tail(1)]).assign(sample=range(len(frame) + 1)))
    assert any(f"sample {len(ROWS)} (" in line and "it has the key of sample" in line for line in errors(data))


def resplit(data: Path, kind: str, change: Callable[[pd.DataFrame], pd.DataFrame]) -> list[str]:
    path = data / "splits" / f"{kind}.parquet"
    form = pq.read_schema(path)
    pq.write_table(pa.Table.from_pandas(change(pd.read_parquet(path)), form, preserve_index=False), path)
    described(data)
    return [line for line in errors(data) if str(path) in line]


@pytest.mark.parametrize(("kind", "what"), [("layer", "the shape"), ("family", "family"), ("gpu", "gpu_name")])
def test_a_leak_is_found_with_both_samples(data: Path, kind: str, what: str):
    def leak(frame: pd.DataFrame) -> pd.DataFrame:
        name = frame.columns[1]
        frame.loc[frame.index[frame[name] == "held back"][0], name] = "learned"
        return frame

    found = resplit(data, kind, leak)
    assert any(what in line and "is held back (sample " in line and "and learned (sample " in line for line in found)


@pytest.mark.parametrize("kind", ["rows", "size"])
def test_a_split_that_is_another_is_found(data: Path, kind: str):
    def swap(frame: pd.DataFrame) -> pd.DataFrame:
        name = frame.columns[1]
        frame[name] = frame[name].map({"held back": "learned", "learned": "held back"}).fillna(frame[name])
        return frame

    assert any("is 'learned', and by its shape 'held back'" in line for line in resplit(data, kind, swap))


def test_a_split_that_lacks_a_sample_is_found(data: Path):
    found = resplit(data, "layer", lambda frame: frame.drop(index=3))
    assert any("each once (look at 3)" in line for line in found)


def test_a_file_of_splits_that_is_missing_or_too_many_is_found(data: Path):
    (data / "splits" / "gpu.parquet").rename(data / "splits" / "other.parquet")
    found = "\n".join(errors(data))
    assert "gpu.parquet: there is no such file in the folder, and the documents name it" in found
    assert "other.parquet: datapackage.json does not name it" in found


def test_conflicts_that_are_not_listed_are_found(data: Path):
    path = data / "conflicts.csv"
    assert path.read_text().count("\n") == 2
    path.write_text(path.read_text().splitlines()[0] + "\n")
    assert f"{path}: it lists 0 conflicts, the samples have 1, or others" in errors(data)


def rewritten(data: Path, name: str, change: Callable[[Any], object]) -> list[str]:
    found = json.loads((data / name).read_text())
    change(found)
    (data / name).write_text(json.dumps(found))
    return errors(data)


@pytest.mark.parametrize(
    ("name", "change", "expected"),
    [
        (
            "datapackage.json",
            lambda found: found["resources"][0]["schema"]["fields"][17].update(unit="s"),
            'datapackage.json: resources[samples].schema.fields[mean_ms].unit is "s", not "ms"',
        ),
        (
            "datapackage.json",
            lambda found: found["resources"][0]["schema"]["fields"][1].pop("constraints"),
            "datapackage.json: resources[samples].schema.fields[gpu_name].constraints is not there",
        ),
        (
            "datapackage.json",
            lambda found: found["resources"][1]["schema"].pop("foreignKeys"),
            "datapackage.json: resources[splits-rows].schema.foreignKeys is not there",
        ),
        (
            "croissant.json",
            lambda found: found.update({"rai:dataBiases": ""}),
            "croissant.json: rai:dataBiases is empty",
        ),
        (
            "croissant.json",
            lambda found: found["recordSet"][0]["field"][3].update(dataType="sc:Text"),
            'croissant.json: recordSet[samples].field[batch_size].dataType is "sc:Text", not "sc:Integer"',
        ),
        (
            "croissant.json",
            lambda found: found.update(license="none"),
            'croissant.json: license is "none", not "https://creativecommons.org',
        ),
    ],
)
def test_a_document_that_says_something_else_is_found(
    data: Path, name: str, change: Callable[[Any], object], expected: str
):
    assert any(expected in line for line in rewritten(data, name, change))


def test_words_of_a_document_may_be_others(data: Path):
    assert rewritten(data, "croissant.json", lambda found: found.update(description="Times.", more="x")) == []


def test_a_folder_that_is_too_large_is_found(data: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(folder, "MOST_BYTES", 1000)
    assert any("MB, more than 0" in line for line in errors(data))


def test_the_names_of_the_files_are_those_of_the_documents():
    made = folder.package(ROWS, RELEASE)
    assert made.files[0].path == documents.SAMPLES_FILE
    assert {each.kind for each in made.files} - {""} == {*partition.splits.KINDS}
