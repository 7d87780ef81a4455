"""Checks of data sets: every kind of damage to a folder is one readable line and exit code 1; what holds is 0."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fakes.checked import RELEASE, ROWS, errors

from convscope import __main__ as program
from convscope.dataset import samples
from convscope.dataset.package import documents, folder
from convscope.dataset.package.documents import SAMPLES_FILE
from convscope.dataset.samples import SPLITS
from convscope.storage.table import write_atomically


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


@pytest.mark.parametrize(
    ("kind", "what"),
    [("layer", ", layer: the shape"), ("family", ": family densenet is"), ("gpu", ": gpu_name Tesla P100")],
)
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
    assert {each.kind for each in made.files} - {""} == {*SPLITS}
