"""Files of samples: what is written is read again, and what no measurement says is refused with its line."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fakes.drawn_samples import drawn

from convscope.dataset import parquet, samples
from convscope.dataset.samples import SampleRow
from convscope.errors import InputError
from convscope.storage import wording

ROW = next(drawn(1))


def changed(tmp_path: Path, **cells: object) -> Path:
    path = tmp_path / "samples.csv"
    samples.write(path, [ROW, dataclasses.replace(ROW, batch_size=99, **cells)])  # type: ignore[arg-type]
    return path


def test_what_is_written_is_read_again(tmp_path: Path):
    rows = [*drawn(30), dataclasses.replace(ROW, batch_size=77, mean_ms=None, status="refused", reason="too, large")]
    path = tmp_path / "samples.csv"
    assert samples.write(path, rows) == 31
    frame = samples.read([path])
    assert list(frame.columns) == samples.SAMPLES.columns
    read = [SampleRow(**{name: None if cell != cell else cell for name, cell in each.items()})
            for each in frame.to_dict("records")]  # fmt: skip
    assert read == rows


def test_a_parquet_file_is_read_as_the_csv_file_of_its_rows(tmp_path: Path):
    none = dataclasses.replace(ROW, batch_size=77, mean_ms=None, mean_ci95_ms=None, model=None, family=None, layer="NA")
    refused = dataclasses.replace(none, layer="null", status="unsupported", reason='a "word", and\nmore', groups=None)
    rows = [*drawn(30), dataclasses.replace(none, energy_j=0.5, relative_error=float("inf")), refused]
    samples.write(tmp_path / "samples.csv", rows)
    (tmp_path / "samples.parquet").write_bytes(parquet.content(samples.SAMPLES, rows))
    frames = [samples.read([tmp_path / name]) for name in ("samples.csv", "samples.parquet")]
    pd.testing.assert_frame_equal(*frames)
    pd.testing.assert_frame_equal(frames[0], parquet.frame_of(rows, samples.SAMPLES))
    assert [*frames[0]["layer"][-2:]] == ["NA", "null"]
    assert samples.rows(tmp_path / "samples.csv") == samples.rows(tmp_path / "samples.parquet") == rows


def test_a_parquet_file_of_before_a_column_is_read_with_that_column_empty(tmp_path: Path):
    path, rows = tmp_path / "samples.parquet", [*drawn(3)]
    path.write_bytes(parquet.content(samples.SAMPLES, [dataclasses.replace(row, ranked_plans="7") for row in rows]))
    pq.write_table(pq.read_table(path).drop_columns(["ranked_plans"]), path)
    assert samples.rows(path) == rows
    made = pq.read_table(path)
    pq.write_table(made.append_column("first_plan", made.column("algorithm")), path)
    assert samples.rows(path) == rows
    pq.write_table(pq.read_table(path).drop_columns(["algorithm"]), path)
    with pytest.raises(InputError, match="there is no column algorithm"):
        samples.rows(path)


def test_samples_that_a_data_frame_was_chosen_from_and_written_are_read(tmp_path: Path):
    path, rows = tmp_path / "samples.parquet", [*drawn(20), dataclasses.replace(ROW, groups=None, in_height_px=None)]
    path.write_bytes(parquet.content(samples.SAMPLES, rows))
    frame = pd.read_parquet(path)
    kept = (frame["batch_size"] == 1) | frame["groups"].isna()
    assert 1 < kept.sum() < len(rows)
    frame[kept].to_parquet(path)
    written = pq.read_table(path)
    assert {parquet.INDEX} < {*written.column_names}
    assert written.schema.field("groups").type == pa.float64()
    large = [
        pa.field(each.name, pa.large_string() if each.type == pa.string() else each.type) for each in written.schema
    ]
    pq.write_table(written.cast(pa.schema(large)), path)  # as pandas 3 does
    assert samples.rows(path) == [row for row, keep in zip(rows, kept, strict=True) if keep]
    halves = written.set_column(written.column_names.index("groups"), "groups", [[0.5] * len(written)])
    pq.write_table(halves, path)
    with pytest.raises(InputError, match="column groups is of type double, not int64: write it anew"):
        samples.rows(path)


def test_an_empty_text_in_a_parquet_file_is_an_absent_one(tmp_path: Path):
    path = tmp_path / "samples.parquet"
    path.write_bytes(
        parquet.content(samples.SAMPLES, [dataclasses.replace(ROW, model=""), dataclasses.replace(ROW, model="vgg16")])
    )
    assert [row.model for row in samples.rows(path)] == [*samples.read([path])["model"]] == [None, "vgg16"]


def test_two_files_are_read_one_after_the_other(tmp_path: Path):
    samples.write(tmp_path / "a.csv", drawn(5, seed=1))
    samples.write(tmp_path / "b.csv", drawn(6, seed=2))
    assert len(samples.read([tmp_path / "a.csv", tmp_path / "b.csv"])) == 11


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        ({"mean_ms": 0.0}, "line 3: mean_ms is 0.0: a measured value is above 0, and an absent one empty"),
        ({"mean_ms": float("inf")}, "line 3: mean_ms is inf"),
        ({"mean_ms": float("nan")}, "line 3: mean_ms is nan"),
        ({"energy_j": -1.0}, "line 3: energy_j is -1.0"),
        (
            {"mean_ms": None, "energy_j": None},
            "line 3: the status is ok, mean_ms and energy_j are empty: give one of them, or another status",
        ),
        ({"kernel_size": "3"}, "line 3: kernel_size is '3': write height and width, 3x3, from 1"),
        ({"stride": "0x1"}, "line 3: stride is '0x1': write height and width"),
        ({"padding": "-1x1"}, "line 3: padding is '-1x1': write height and width, 3x3, from 0"),
        ({"in_channels": 0}, "line 3: in_channels is '0': write a whole number, from 1"),
        ({"model": "nan"}, "line 3: model is nan: it names none, and an absent one is empty"),
        ({"family": "nan"}, "line 3: family is nan"),
        ({"dtype": "int8"}, "line 3: dtype is 'int8': choose one of float32, float16, bfloat16"),
    ],
)
def test_what_no_measurement_says_is_refused(tmp_path: Path, cells: dict[str, object], expected: str):
    with pytest.raises(InputError, match=expected):
        samples.read([changed(tmp_path, **cells)])
    path = tmp_path / "samples.parquet"
    path.write_bytes(parquet.content(samples.SAMPLES, [ROW, dataclasses.replace(ROW, batch_size=99, **cells)]))  # type: ignore[arg-type]
    for read in (samples.rows, lambda path: samples.read([path])):
        with pytest.raises(InputError, match=expected.replace("line 3", "sample 1")):
            read(path)


def test_a_sample_may_have_an_energy_alone(tmp_path: Path):
    assert samples.read([changed(tmp_path, mean_ms=None, energy_j=0.5)])["mean_ms"].isna().sum() == 1


def test_a_sample_that_stands_in_two_files_is_refused(tmp_path: Path):
    samples.write(tmp_path / "a.csv", drawn(5, seed=1))
    samples.write(tmp_path / "b.csv", [*drawn(5, seed=2), *drawn(1, seed=1)])
    with pytest.raises(InputError, match=r"b\.csv: 1 samples stand in two files: name each run once"):
        samples.read([tmp_path / "a.csv", tmp_path / "b.csv"])


def test_a_file_that_is_missing_or_empty_is_one_line(tmp_path: Path):
    with pytest.raises(InputError, match=r"no\.csv does not exist: name a file of samples"):
        samples.read([tmp_path / "no.csv"])
    samples.write(tmp_path / "none.csv", [])
    with pytest.raises(InputError, match="no samples in it: measure some, or import them"):
        samples.read([tmp_path / "none.csv"])


def test_a_folder_that_is_missing_is_one_line(tmp_path: Path):
    with pytest.raises(InputError, match="cannot be written"):
        samples.write(tmp_path / "no" / "samples.csv", [ROW])


def test_a_file_that_somebody_hands_in_is_to_be_mended(tmp_path: Path):
    path = tmp_path / "samples.csv"
    path.write_text("a,b\n1,2\n")
    with pytest.raises(InputError, match=r"it has other columns .*: mend the file, or name another$"):
        samples.cells(path)


def test_the_mark_that_a_spreadsheet_writes_first_is_no_part_of_a_name(tmp_path: Path):
    path, marked = tmp_path / "samples.csv", tmp_path / "marked.csv"
    samples.write(path, drawn(2, ("Tesla P4",), ("gemm",)))
    marked.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert samples.cells(marked) == samples.cells(path)


def test_times_of_one_card_in_several_ways_are_a_line_with_each_way(tmp_path: Path):
    ways = [samples.SHARE, samples.EVICTED, [*wording.PRESENT][4], samples.IN_A_PASS]
    of_two = [dataclasses.replace(ROW, timing_method=way, run=str(run)) for run, way in enumerate(ways)]
    of_one = [dataclasses.replace(each, gpu_name="Tesla P4", timing_method=samples.SHARE) for each in of_two]
    untimed = dataclasses.replace(of_one[0], mean_ms=None, energy_j=1.0, timing_method=samples.EVICTED, run="joules")
    samples.write(tmp_path / "samples.csv", [*of_two, *of_one, untimed])
    (line,) = samples.several_ways(samples.read([tmp_path / "samples.csv"]))
    assert line.startswith(f"times of {ROW.gpu_name} were taken in 3 ways, ")
    assert all(way in line for way in (samples.SHARE, samples.EVICTED, samples.IN_A_PASS))


@pytest.mark.parametrize(
    ("text", "expected"),
    [('{"a": 3, "b": 1}', 4), ("a;b", None), ("", None), (None, None), ("{", None), ('{"a": 0}', None), ("[3]", None)],
)
def test_launches_are_counted_where_a_cell_of_kernels_says_them(text: str | None, expected: int | None):
    assert samples.launches(text) == expected
