"""Calls of whole models: traced, read, published beside samples, and what a split by family holds back with them."""

from __future__ import annotations

import dataclasses
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fakes import ROOT
from fakes.checked import RELEASE, ROWS, errors
from fakes.drawn_samples import measured

from convscope import __main__ as program
from convscope.dataset import calls, samples, splits
from convscope.dataset.calls import AT_ANY_BATCH, CallRow
from convscope.dataset.collect import traced
from convscope.dataset.package import folder, partition
from convscope.dataset.package.documents import CALLS_FILE
from convscope.dataset.samples import SHAPE, SampleRow
from convscope.errors import InputError


def call(row: SampleRow, position: int, **changes: object) -> CallRow:
    """Return the layer that a sample is of."""
    shape = {name: getattr(row, name) for name in AT_ANY_BATCH}
    given = {"model": row.model, "family": row.family, "input_size": row.input_size, "layer": row.layer, **shape}
    return CallRow(**{**given, "position": position, **changes})  # type: ignore[arg-type]


def of_each(rows: list[SampleRow]) -> list[CallRow]:
    """Return a layer for each name of a layer in samples."""
    return [call(row, at) for at, row in enumerate({row.layer: row for row in rows}.values())]


CALLS = of_each(ROWS)


def test_a_pass_has_every_call_in_order():
    found = traced.calls([("alexnet", 64), ("torchvision:resnet18", 64)])
    alexnet = [each for each in found if each.model == "alexnet"]
    assert [each.layer for each in alexnet] == [f"features.{number}" for number in (0, 3, 6, 8, 10)]
    assert alexnet[0] == CallRow(
        "alexnet", "alexnet", 64, 0, "features.0", 3, 64, 64, 64, "11x11", "4x4", "2x2", "1x1", 1
    )
    resnet = [each for each in found if each.family == "resnet"]
    assert [each.position for each in resnet] == [*range(20)]
    shapes = {tuple(getattr(each, name) for name in AT_ANY_BATCH) for each in resnet}
    assert len(shapes) < len(resnet), "blocks repeat their convolutions"


def test_a_model_that_is_not_here_or_does_not_take_the_size_has_none():
    assert traced.calls([("resnet51", 64), ("alexnet", 8)]) == []


@pytest.mark.parametrize("name", ["calls.csv", "calls.parquet"])
def test_what_is_read_is_what_was_written(tmp_path: Path, name: str):
    rows = traced.calls([("alexnet", 64)])
    assert calls.write(tmp_path / name, reversed(rows)) == 5
    assert calls.beside(tmp_path / "samples.csv") == [tmp_path / name]
    assert calls.read([tmp_path / name, tmp_path / name]) == rows


def test_two_files_that_differ_on_a_call_are_refused(tmp_path: Path):
    calls.write(tmp_path / "one.csv", CALLS)
    calls.write(tmp_path / "other.csv", [dataclasses.replace(CALLS[0], groups=2)])
    with pytest.raises(InputError, match=r"other.csv: call 0 of vgg16 at 64 px is another in another row"):
        calls.read([tmp_path / "one.csv", tmp_path / "other.csv"])
    with pytest.raises(InputError, match=r"none.csv does not exist: name a file of calls"):
        calls.read([tmp_path / "none.csv"])


def test_passes_are_each_model_at_each_size_that_samples_name():
    rows = [dataclasses.replace(ROWS[0], model=model, input_size=size) for model, size in (("a", 64), ("b", 96))]
    bare = dataclasses.replace(ROWS[0], model=None)
    assert calls.passes([*rows, bare]) == [("a", 64), ("a", 96), ("b", 64), ("b", 96)]
    assert calls.named([*rows, bare]) == {("a", 64), ("b", 96)}
    assert calls.passes([bare]) == []
    known = [call(rows[0], 0, model=model, input_size=size) for model in "abc" for size in (64, 96, 128)]
    assert {(each.model, each.input_size) for each in calls.of_samples(known, rows)} == {*calls.passes(rows)}


def test_a_split_by_family_holds_back_the_shapes_that_a_kind_shares():
    frame = pd.DataFrame(measured(30, ("Tesla T4",)))
    shared = frame[frame["family"] == "resnet"].iloc[0]
    again = frame[frame["layer"] == shared["layer"]].assign(batch_size=64)
    frame = pd.concat([frame, again], ignore_index=True)
    row = next(row for row in measured(30, ("Tesla T4",)) if row.layer == shared["layer"])
    own = [call(row, 0, model="densenet121", family="densenet")]
    without, with_layers = ({each.name: each for each in splits.splits(frame, "family", each)} for each in ((), own))
    here = splits.joined(frame, AT_ANY_BATCH) == splits.joined(frame, AT_ANY_BATCH)[shared.name]
    assert here.sum() == 3, "by two algorithms, and once in a larger batch"
    assert without["family densenet"].learned[here].all()
    found = with_layers["family densenet"]
    assert found.held_back[here].all()
    np.testing.assert_array_equal(found.held_back, here | (frame["family"] == "densenet"))
    np.testing.assert_array_equal(found.learned, ~found.held_back)
    for name in ("family resnet", "family vgg"):
        np.testing.assert_array_equal(with_layers[name].held_back, without[name].held_back)
    for one, other in zip(splits.splits(frame, "layer"), splits.splits(frame, "layer", own), strict=True):
        np.testing.assert_array_equal(one.held_back, other.held_back)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A data set with layers, some of them shared between kinds."""
    resnet = next(row for row in ROWS if row.family == "resnet")
    shared = [*CALLS, call(resnet, len(CALLS), family="densenet")]
    other = dataclasses.replace(CALLS[0], model="alexnet")
    folder.write(tmp_path / "data", folder.package(ROWS, RELEASE, [*shared, other]))
    return tmp_path / "data"


def test_a_data_set_with_layers_holds(data: Path):
    assert errors(data) == []
    assert {row.model for row in calls.read([data / CALLS_FILE])} == {"vgg16"}
    every = samples.read([data / "samples.parquet"])
    found = pd.read_parquet(data / "splits" / "family.parquet").set_index("sample")["family densenet"]
    families = every["family"].loc[found.index[found == partition.HELD_BACK]]
    assert {*families} == {"densenet", "resnet"}
    shapes = splits.joined(every.loc[found.index], SHAPE)
    assert not {*shapes[found == partition.HELD_BACK]} & {*shapes[found == partition.LEARNED]}


def changed(data: Path, **columns: object) -> list[str]:
    """Return the errors of a data set after a change of its layers."""
    path = data / CALLS_FILE
    form = pq.read_schema(path)
    frame = pd.read_parquet(path).assign(**columns)  # type: ignore[arg-type]
    pq.write_table(pa.Table.from_pandas(frame, form, preserve_index=False), path)
    return [line for line in errors(data) if "its hash" not in line]


def test_layers_of_another_shape_than_samples_say_are_found(data: Path):
    found = changed(data, groups=2)
    assert any("is of features.0 of vgg16 at 64 px, which has another shape there" in line for line in found)


def test_layers_that_change_a_split_are_found(data: Path):
    found = changed(data, family="densenet")
    assert any("family.parquet" in line for line in found)


def test_a_call_that_stands_twice_is_found(data: Path):
    path = data / CALLS_FILE
    both = pa.concat_tables([pq.read_table(path)] * 2)
    pq.write_table(both, path)
    assert f"{path}: a call of a pass stands in it twice" in errors(data)


def test_a_file_that_is_no_table_of_layers_is_found(data: Path):
    (data / CALLS_FILE).write_bytes(b"PAR1")
    assert any(CALLS_FILE in line and "cannot be read" in line for line in errors(data))


def test_a_package_takes_the_layers_beside_its_samples_and_says_which_it_lacks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    samples.write(tmp_path / "samples.csv", ROWS)
    command = ["dataset", "package", str(tmp_path / "samples.csv"), "-o", str(tmp_path / "data")]
    assert program.main(command) == 0
    assert (
        "no calls of 1 pass of models, or these do not take the size: convscope dataset calls writes"
        in capsys.readouterr().out
    )
    assert not (tmp_path / "data" / CALLS_FILE).exists()
    calls.write(tmp_path / "calls.csv", CALLS)
    assert program.main(command) == 0
    assert "no calls" not in capsys.readouterr().out
    assert errors(tmp_path / "data") == []
    assert calls.read([tmp_path / "data" / CALLS_FILE]) == sorted(CALLS, key=lambda row: row.position)
    (tmp_path / "calls.csv").unlink()
    assert program.main(command) == 0
    assert not (tmp_path / "data" / CALLS_FILE).exists(), "a file of an earlier package is gone"


def test_layers_that_samples_contradict_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    samples.write(tmp_path / "samples.csv", ROWS)
    calls.write(tmp_path / "calls.csv", [dataclasses.replace(CALLS[0], in_channels=5)])
    assert program.main(["dataset", "package", str(tmp_path / "samples.csv"), "-o", str(tmp_path / "data")]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "has another shape there: give calls of the version of the model that was measured" in error


@pytest.mark.parametrize("name", ["calls.csv", "calls.parquet"])
def test_calls_of_the_models_in_samples_are_written(tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]):
    rows = [dataclasses.replace(ROWS[0], model=model, run=model) for model in ("alexnet", "resnet51")]
    samples.write(tmp_path / "samples.csv", rows)
    command = ["dataset", "calls", str(tmp_path / "samples.csv"), "-o", str(tmp_path / name)]
    assert program.main(command) == 0
    assert capsys.readouterr().out.splitlines() == [
        "left out: resnet51: there is no such model here, or it takes none of the sizes",
        f"5 calls in 1 pass: {tmp_path / name}",
    ]
    assert calls.read([tmp_path / name]) == traced.calls([("alexnet", 64)])
    samples.write(tmp_path / "samples.csv", rows[1:])
    assert program.main(command) == 2
    assert "no sample names a model that is here and a size that it takes" in capsys.readouterr().err


def test_a_file_of_samples_gets_no_code_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    harm = tmp_path / "harm"
    file = f"timm:resnet18,checkpoint_path={tmp_path}/own.pt"
    names = f"os:mkdir,path={harm}", f"{tmp_path}/own.py:make", f"hf:{tmp_path}", file, "alexnet"
    (tmp_path / "own.py").write_text(f"import os\nos.mkdir({str(harm)!r})\n")
    samples.write(tmp_path / "samples.csv", [dataclasses.replace(ROWS[0], model=name, run=name) for name in names])
    assert program.main(["dataset", "calls", str(tmp_path / "samples.csv"), "-o", str(tmp_path / "calls.csv")]) == 0
    printed = capsys.readouterr().out
    assert printed.count("no code is run, and no file read, because a file of samples names it") == 4
    assert not harm.exists()


def test_samples_that_do_not_say_their_shape_are_not_compared_and_others_are():
    bare = dataclasses.replace(ROWS[0], in_height_px=None, stride=None)
    assert [*calls.problems(CALLS, [bare, *ROWS])] == []
    (unknown,) = calls.problems(CALLS, [dataclasses.replace(ROWS[0], layer="none")])
    assert unknown.endswith("of none of vgg16 at 64 px, which has no such layer there")
    (other,) = calls.problems(CALLS, [dataclasses.replace(ROWS[0], family="alexnet")])
    assert other.endswith("which is another kind of network there than alexnet")


def test_a_cell_that_is_empty_is_one_line(tmp_path: Path):
    calls.write(tmp_path / "calls.parquet", CALLS[:2])
    table = pq.read_table(tmp_path / "calls.parquet").to_pydict()
    table["position"][1] = None
    pq.write_table(pa.table(table), tmp_path / "calls.parquet")
    with pytest.raises(InputError, match=r"calls.parquet, call 1: position is empty"):
        calls.read([tmp_path / "calls.parquet"])


def test_the_code_of_the_card_is_as_a_formatter_writes_it(data: Path):
    command = [sys.executable, "-m", "ruff", "format", "--check", "--config", ROOT / "pyproject.toml"]
    done = subprocess.run([*command, data / "README.md"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "1 file already formatted\n"), done.stderr


def test_the_card_adds_up_a_pass_of_what_there_is(data: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(data)
    first, of_a_model = re.findall(r"```python\n(.*?)```", (data / "README.md").read_text(), re.DOTALL)
    found: dict[str, pd.DataFrame] = {}
    exec(first + of_a_model.replace('"torch"', '"gemm"'), found)
    assert len(found["calls"]) == len(calls.read([data / CALLS_FILE]))
    assert "torch" in of_a_model
    assert found["calls"]["mean_ms"].notna().any()
