"""Layers of whole models: traced, read, published beside samples, and what a split by family holds back with them."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fakes.checked import RELEASE, ROWS, errors
from fakes.drawn_samples import measured

from convscope import __main__ as program
from convscope.dataset import layers, samples, splits
from convscope.dataset.collect import traced
from convscope.dataset.layers import AT_ANY_BATCH, LayerRow
from convscope.dataset.package import folder, partition
from convscope.dataset.package.documents import LAYERS_FILE
from convscope.dataset.samples import SHAPE, SampleRow
from convscope.errors import InputError


def layer(row: SampleRow, position: int, **changes: object) -> LayerRow:
    """Return the layer that a sample is of."""
    shape = {name: getattr(row, name) for name in AT_ANY_BATCH}
    given = {"model": row.model, "family": row.family, "input_size": row.input_size, "layer": row.layer, **shape}
    return LayerRow(**{**given, "position": position, **changes})  # type: ignore[arg-type]


def of_each(rows: list[SampleRow]) -> list[LayerRow]:
    """Return a layer for each name of a layer in samples."""
    return [layer(row, at) for at, row in enumerate({row.layer: row for row in rows}.values())]


LAYERS = of_each(ROWS)


def test_a_pass_has_every_call_in_order():
    found = traced.layers([("alexnet", 64), ("torchvision:resnet18", 64)])
    alexnet = [each for each in found if each.model == "alexnet"]
    assert [each.layer for each in alexnet] == [f"features.{number}" for number in (0, 3, 6, 8, 10)]
    assert alexnet[0] == LayerRow(
        "alexnet", "alexnet", 64, 0, "features.0", 3, 64, 64, 64, "11x11", "4x4", "2x2", "1x1", 1
    )
    resnet = [each for each in found if each.family == "resnet"]
    assert [each.position for each in resnet] == [*range(20)]
    shapes = {tuple(getattr(each, name) for name in AT_ANY_BATCH) for each in resnet}
    assert len(shapes) < len(resnet), "blocks repeat their convolutions"


def test_a_model_that_is_not_here_or_does_not_take_the_size_has_none():
    assert traced.layers([("resnet51", 64), ("alexnet", 8)]) == []


@pytest.mark.parametrize("name", ["layers.csv", "layers.parquet"])
def test_what_is_read_is_what_was_written(tmp_path: Path, name: str):
    rows = traced.layers([("alexnet", 64)])
    if name.endswith(".csv"):
        layers.write(tmp_path / name, reversed(rows))
    else:
        (tmp_path / name).write_bytes(layers.parquet.content(layers.LAYERS, rows, numbered=False))
    assert layers.beside(tmp_path / "samples.csv") == tmp_path / name
    assert layers.read([tmp_path / name, tmp_path / name]) == rows


def test_two_files_that_differ_on_a_call_are_refused(tmp_path: Path):
    layers.write(tmp_path / "one.csv", LAYERS)
    layers.write(tmp_path / "other.csv", [dataclasses.replace(LAYERS[0], groups=2)])
    with pytest.raises(InputError, match=r"other.csv: vgg16 at 64 px: call 0 is another layer in another file"):
        layers.read([tmp_path / "one.csv", tmp_path / "other.csv"])
    with pytest.raises(InputError, match=r"none.csv does not exist: name a file of layers"):
        layers.read([tmp_path / "none.csv"])


def test_passes_are_each_model_at_each_size_that_samples_name():
    rows = [dataclasses.replace(ROWS[0], model=model, input_size=size) for model, size in (("a", 64), ("b", 96))]
    bare = dataclasses.replace(ROWS[0], model=None)
    assert layers.passes([*rows, bare]) == [("a", 64), ("a", 96), ("b", 64), ("b", 96)]
    assert layers.named([*rows, bare]) == {("a", 64), ("b", 96)}
    assert layers.passes([bare]) == []
    known = [layer(rows[0], 0, model=model, input_size=size) for model in "abc" for size in (64, 96, 128)]
    assert {(each.model, each.input_size) for each in layers.of_samples(known, rows)} == {*layers.passes(rows)}


def test_a_split_by_family_holds_back_the_shapes_that_a_kind_shares():
    frame = pd.DataFrame(measured(30, ("Tesla T4",)))
    shared = frame[frame["family"] == "resnet"].iloc[0]
    again = frame[frame["layer"] == shared["layer"]].assign(batch_size=64)
    frame = pd.concat([frame, again], ignore_index=True)
    row = next(row for row in measured(30, ("Tesla T4",)) if row.layer == shared["layer"])
    own = [layer(row, 0, model="densenet121", family="densenet")]
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
    shared = [*LAYERS, layer(resnet, len(LAYERS), family="densenet")]
    other = dataclasses.replace(LAYERS[0], model="alexnet")
    folder.write(tmp_path / "data", folder.package(ROWS, RELEASE, [*shared, other]))
    return tmp_path / "data"


def test_a_data_set_with_layers_holds(data: Path):
    assert errors(data) == []
    assert {row.model for row in layers.read([data / LAYERS_FILE])} == {"vgg16"}
    every = samples.read([data / "samples.parquet"])
    found = pd.read_parquet(data / "splits" / "family.parquet").set_index("sample")["family densenet"]
    families = every["family"].loc[found.index[found == partition.HELD_BACK]]
    assert {*families} == {"densenet", "resnet"}
    shapes = splits.joined(every.loc[found.index], SHAPE)
    assert not {*shapes[found == partition.HELD_BACK]} & {*shapes[found == partition.LEARNED]}


def changed(data: Path, **columns: object) -> list[str]:
    """Return the errors of a data set after a change of its layers."""
    path = data / LAYERS_FILE
    form = pq.read_schema(path)
    frame = pd.read_parquet(path).assign(**columns)  # type: ignore[arg-type]
    pq.write_table(pa.Table.from_pandas(frame, form, preserve_index=False), path)
    return [line for line in errors(data) if "its hash" not in line]


def test_layers_of_another_shape_than_samples_say_are_found(data: Path):
    found = changed(data, groups=2)
    assert any("is of features.0 of vgg16 at 64 px, and has another shape" in line for line in found)


def test_layers_that_change_a_split_are_found(data: Path):
    found = changed(data, family="densenet")
    assert any("family.parquet" in line for line in found)


def test_a_call_that_stands_twice_is_found(data: Path):
    path = data / LAYERS_FILE
    both = pa.concat_tables([pq.read_table(path)] * 2)
    pq.write_table(both, path)
    assert f"{path}: a call of a pass stands in it twice" in errors(data)


def test_a_file_that_is_no_table_of_layers_is_found(data: Path):
    (data / LAYERS_FILE).write_bytes(b"PAR1")
    assert any(LAYERS_FILE in line and "cannot be read" in line for line in errors(data))


def test_a_package_takes_the_layers_beside_its_samples_and_says_which_it_lacks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    samples.write(tmp_path / "samples.csv", ROWS)
    command = ["dataset", "package", str(tmp_path / "samples.csv"), "-o", str(tmp_path / "data")]
    assert program.main(command) == 0
    assert "no layers of 1 pass of models: convscope dataset layers writes them" in capsys.readouterr().out
    assert not (tmp_path / "data" / LAYERS_FILE).exists()
    layers.write(tmp_path / "layers.csv", LAYERS)
    assert program.main(command) == 0
    assert "no layers" not in capsys.readouterr().out
    assert errors(tmp_path / "data") == []
    assert layers.read([tmp_path / "data" / LAYERS_FILE]) == sorted(LAYERS, key=lambda row: row.position)
    (tmp_path / "layers.csv").unlink()
    assert program.main(command) == 0
    assert not (tmp_path / "data" / LAYERS_FILE).exists(), "a file of an earlier package is gone"


def test_layers_that_samples_contradict_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    samples.write(tmp_path / "samples.csv", ROWS)
    layers.write(tmp_path / "layers.csv", [dataclasses.replace(LAYERS[0], in_channels=5)])
    assert program.main(["dataset", "package", str(tmp_path / "samples.csv"), "-o", str(tmp_path / "data")]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "has another shape: give layers of the version of the model that was measured" in error


def test_layers_of_the_models_in_samples_are_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    rows = [dataclasses.replace(ROWS[0], model=model, run=model) for model in ("alexnet", "resnet51")]
    samples.write(tmp_path / "samples.csv", rows)
    command = ["dataset", "layers", str(tmp_path / "samples.csv"), "-o", str(tmp_path / "layers.csv")]
    assert program.main(command) == 0
    printed = capsys.readouterr().out
    assert printed.splitlines()[0] == "no layers of resnet51: no such model is here"
    assert printed.splitlines()[1] == f"5 layers of 1 pass: {tmp_path / 'layers.csv'}"
    assert layers.read([tmp_path / "layers.csv"]) == traced.layers([("alexnet", 64)])
    samples.write(tmp_path / "samples.csv", rows[1:])
    assert program.main(command) == 2
    assert "no sample names a model that is here, and its size" in capsys.readouterr().err
