"""Published data sets: files, documents, card; the same for the same samples, and valid by the standards' own tools."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pyarrow.parquet as pq
import pytest
from fakes import standards
from fakes.drawn_samples import CARDS, measured

from convscope import __main__ as program
from convscope.cudnn import library
from convscope.dataset import columns, samples, splits
from convscope.dataset.package import folder, partition
from convscope.dataset.samples import SHAPE, SPLITS, SampleRow

COUNT = 60
REPEATS = measured(3, tuple(CARDS), run=2)
ROWS = [*measured(COUNT), *REPEATS[:-1], dataclasses.replace(REPEATS[-1], mean_ms=50.0, mean_ci95_ms=0.1)]
REFUSED = dataclasses.replace(
    ROWS[0], algorithm="fft", mean_ms=None, mean_ci95_ms=None, placements=None, kernels=None, ran_algorithm=None,
    status="unsupported", reason="cuDNN has no fft for this shape", workspace_bytes=1024,
)  # fmt: skip
WORDS = ("--date", "2026-02-03", "--release", "1.2.0", "--url", "https://example.org/data", "--creator", "A. Person")


def packaged(place: Path, rows: list[SampleRow], code: int = 0) -> Path:
    samples.write(place / "samples.csv", rows)
    assert program.main(["dataset", "package", str(place / "samples.csv"), "-o", str(place / "data"), *WORDS]) == code
    return place / "data"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return packaged(tmp_path_factory.mktemp("package"), [*ROWS, REFUSED])


def test_the_folder_has_samples_splits_conflicts_documents_and_a_card(data: Path):
    names = {str(path.relative_to(data)) for path in data.rglob("*") if path.is_file()}
    kinds = {f"splits/{kind}.parquet" for kind in SPLITS}
    assert names == {
        "samples.parquet",
        *kinds,
        "conflicts.csv",
        "datapackage.json",
        "croissant.json",
        "README.md",
    }


def test_samples_in_memory_make_the_table_that_is_read_from_their_file(tmp_path: Path):
    quoted = dataclasses.replace(ROWS[1], reason='a "word", and\nmore', relative_error=float("inf"), mean_ci95_ms=1e-7)
    rows = [ROWS[0], *ROWS[2:], REFUSED, quoted]
    samples.write(tmp_path / "samples.csv", rows)
    pd.testing.assert_frame_equal(partition.frame(rows), samples.read([tmp_path / "samples.csv"]))


def test_what_an_earlier_version_timed_is_left_out_and_counted_where_its_shape_is_timed_anew(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    earlier = [dataclasses.replace(row, timing_method=samples.EVICTED) for row in measured(COUNT)]
    anew = [dataclasses.replace(row, timing_method=samples.SHARE) for row in measured(2, run=2)]
    data = packaged(tmp_path, [*earlier, *anew])
    found = samples.read([data / "samples.parquet"])
    again = {tuple(getattr(row, name) for name in ("gpu_name", *SHAPE)) for row in anew}
    gone = [row for row in earlier if tuple(getattr(row, name) for name in ("gpu_name", *SHAPE)) in again]
    assert 0 < len(gone) < len(earlier)
    assert len(found) == len(earlier) - len(gone) + len(anew)
    assert (found["timing_method"] == samples.SHARE).sum() == len(anew)
    assert f"their shapes timed anew: {len(gone)} samples" in capsys.readouterr().out


def test_what_is_read_from_parquet_is_what_was_measured(data: Path, tmp_path: Path):
    public = [dataclasses.replace(row, run=row.run.partition(" ")[2]) for row in [*ROWS, REFUSED]]
    samples.write(tmp_path / "samples.csv", public)
    by = [*samples.SAMPLES.unique]
    wanted = samples.read([tmp_path / "samples.csv"]).sort_values(by, ignore_index=True)
    found = samples.read([data / "samples.parquet"]).sort_values(by, ignore_index=True)
    pd.testing.assert_frame_equal(found, wanted)


def test_no_host_is_named(data: Path):
    for path in data.rglob("*"):
        assert path.is_dir() or b"node1" not in path.read_bytes(), path


def test_the_same_samples_in_another_order_give_the_same_bytes(data: Path, tmp_path: Path):
    again = packaged(tmp_path, [REFUSED, *reversed(ROWS)])
    for path in data.rglob("*"):
        assert path.is_dir() or path.read_bytes() == (again / path.relative_to(data)).read_bytes(), path


def test_files_of_splits_hold_back_what_splits_hold_back(data: Path):
    frame = samples.read([data / "samples.parquet"])
    for kind in SPLITS:
        found = pd.read_parquet(data / "splits" / f"{kind}.parquet")
        taking_part = frame.iloc[found["sample"]].reset_index(drop=True)
        assert (taking_part["status"] == "ok").all()
        assert len(taking_part) == len(ROWS)
        for split in splits.splits(taking_part, kind):
            assert ((found[split.name] == "held back") == split.held_back).all()
            assert ((found[split.name] == "learned") == split.learned).all()


def test_a_shape_of_the_layer_split_is_on_one_side(data: Path):
    frame = samples.read([data / "samples.parquet"])
    found = pd.read_parquet(data / "splits" / "layer.parquet")
    shapes = pd.Series(splits.joined(frame.iloc[found["sample"]], SHAPE))
    assert shapes.groupby(shapes).apply(lambda each: found["layer"][each.index].nunique()).max() == 1


def test_the_documents_have_the_unit_type_and_meaning_of_every_column(data: Path):
    package = json.loads((data / "datapackage.json").read_text())
    croissant = json.loads((data / "croissant.json").read_text())
    fields = {each["name"]: each for each in package["resources"][0]["schema"]["fields"]}
    others = {each["name"]: each for each in croissant["recordSet"][0]["field"]}
    types = {"int": ("integer", "sc:Integer"), "float": ("number", "sc:Float"), "str": ("string", "sc:Text")}
    assert [*fields] == [*others] == ["sample", *(column.name for column in columns.COLUMNS)]
    for column in columns.COLUMNS:
        field, other = fields[column.name], others[column.name]
        assert (field["type"], other["dataType"]) == types[column.kind]
        assert field.get("unit", "") == column.unit
        assert field["description"] == column.description
        assert other["description"].endswith(f" ({column.unit})" if column.unit else column.description)
        assert field.get("constraints", {}).get("enum", []) == [*column.values]
        assert field.get("constraints", {}).get("required", False) != column.is_optional


def test_croissant_has_what_neurips_asks_for(data: Path):
    found = json.loads((data / "croissant.json").read_text())
    asked = ("dataLimitations", "dataBiases", "personalSensitiveInformation", "dataUseCases", "dataSocialImpact")
    assert all(len(found[f"rai:{name}"]) > 20 for name in asked)
    assert found["rai:hasSyntheticData"] is False
    assert found["prov:wasGeneratedBy"][0]["prov:startedAtTime"] == "2026-01-01"
    assert "http://mlcommons.org/croissant/1.1" in found["conformsTo"]
    assert (found["version"], found["datePublished"], found["url"]) == (
        "1.2.0",
        "2026-02-03",
        "https://example.org/data",
    )


def test_the_card_says_noise_gaps_licence_and_how_to_cite(data: Path):
    text = (data / "README.md").read_text()
    assert f"| on another card | {len(REPEATS)} | " in text
    assert "- 1 of 379 samples have no time, and say why." in text
    assert "CC-BY-4.0" in text
    assert "author = {{A. Person}}" in text
    assert "| fft | 0 | 1 |" in text


def test_the_card_says_how_many_have_an_energy_alone(tmp_path: Path):
    alone = dataclasses.replace(ROWS[0], run="another", mean_ms=None, mean_ci95_ms=None, energy_j=0.5)
    text = (packaged(tmp_path, [*ROWS, alone]) / "README.md").read_text()
    assert f": {len(ROWS) + 1} samples, {len(ROWS)} of them measured" in text
    assert f"- 1 of {len(ROWS) + 1} samples have an energy and no time." in text
    assert "have no time, and say why" not in text


def test_a_conflict_is_listed_and_printed(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (row,) = pd.read_csv(data / "conflicts.csv").to_dict("records")
    assert (row["kind"], max(row["mean_ms"], row["other_mean_ms"])) == ("times apart", 50.0)
    packaged(tmp_path, [*ROWS, REFUSED])
    out = capsys.readouterr().out
    assert "conflict: samples " in out
    assert " ms, " in out


def test_a_split_that_cannot_be_is_said_and_an_old_file_of_it_removed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    place = packaged(tmp_path, ROWS)
    assert (place / "splits" / "gpu.parquet").exists()
    packaged(tmp_path, measured(COUNT, ("Tesla T4",)))
    assert not (place / "splits" / "gpu.parquet").exists()
    assert not (place / "conflicts.csv").exists()
    assert "no split by gpu: all samples are of Tesla T4" in capsys.readouterr().out
    assert "No split by gpu: all samples are of Tesla T4" in (place / "README.md").read_text()


def test_more_than_the_limit_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(folder, "MOST_BYTES", 1000)
    packaged(tmp_path, measured(COUNT), code=2)
    assert "package fewer runs, or the cards one by one" in capsys.readouterr().err
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("is_here", [True, False])
def test_ranked_plans_are_asked_for_where_the_cudnn_of_the_samples_is_here(
    is_here: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    cudnn = library.version() if is_here else "8.9.7"
    rows = [dataclasses.replace(row, gpu_name="NVIDIA H200", cudnn=cudnn) for row in measured(4, ("Tesla T4",))]
    table = packaged(tmp_path, rows) / "samples.parquet"
    assert all((row.ranked_plans is not None) == is_here for row in samples.rows(table))
    assert ("no ranked plans of NVIDIA H200: cuDNN" in capsys.readouterr().out) != is_here


def test_a_missing_address_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    samples.write(tmp_path / "samples.csv", measured(COUNT))
    assert program.main(["dataset", "package", str(tmp_path / "samples.csv"), "-o", str(tmp_path / "data")]) == 0
    assert "no --url: croissant.json needs the address" in capsys.readouterr().out


def test_contradicting_rows_of_a_run_write_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    samples.write(tmp_path / "other.csv", [dataclasses.replace(ROWS[0], mean_ms=77.0)])
    samples.write(tmp_path / "samples.csv", ROWS)
    files = [str(tmp_path / "samples.csv"), str(tmp_path / "other.csv")]
    assert program.main(["dataset", "package", *files, "-o", str(tmp_path / "data")]) == 1
    assert "says two things" in capsys.readouterr().err
    assert not (tmp_path / "data").exists()


def test_a_data_set_is_packaged_again_with_more_runs(data: Path, tmp_path: Path):
    samples.write(tmp_path / "more.csv", measured(5, tuple(CARDS), run=3, seed=7))
    files = [str(tmp_path / "more.csv"), str(data / "samples.parquet")]
    assert program.main(["dataset", "package", *files, "-o", str(tmp_path / "data"), *WORDS]) == 0
    assert pq.read_metadata(tmp_path / "data" / "samples.parquet").num_rows == len(ROWS) + 1 + 30


@pytest.mark.parametrize("library", standards.DOCUMENTS)
class TestStandards:
    """The documents by the tools of their standards, which read the data too."""

    @pytest.mark.long
    def test_the_document_and_its_data_are_valid(self, library: str, data: Path):
        done = standards.judged(library, data)
        assert done.returncode == 0, done.stdout + done.stderr

    def test_a_document_that_is_wrong_is_not(self, library: str, data: Path, tmp_path: Path):
        name = standards.DOCUMENTS[library]
        wrong: dict[str, Callable[[dict[str, object]], object]] = {
            "datapackage.json": lambda found: found["resources"][0]["schema"]["fields"][3].update(type="boolean"),  # type: ignore[index]
            "croissant.json": lambda found: found["recordSet"][0]["field"][0]["source"].update(
                fileObject={"@id": "no"}
            ),  # type: ignore[index]
        }
        found = json.loads((data / name).read_text())
        wrong[name](found)
        for path in data.rglob("*.*"):
            (tmp_path / path.relative_to(data)).parent.mkdir(exist_ok=True)
            (tmp_path / path.relative_to(data)).write_bytes(path.read_bytes())
        (tmp_path / name).write_text(json.dumps(found))
        assert standards.judged(library, tmp_path).returncode == 1


def test_a_folder_with_files_of_another_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    place = tmp_path / "data"
    (place / "splits").mkdir(parents=True)
    (place / "README.md").write_text("mine")
    (place / "splits" / "mine.parquet").write_text("mine")
    packaged(tmp_path, ROWS, 2)
    expected = f"{place} has files and no datapackage.json, so it is no data set: name a new folder"
    assert capsys.readouterr().err.startswith(f"convscope dataset: {expected}")
    assert (place / "README.md").read_text() == (place / "splits" / "mine.parquet").read_text() == "mine"


def test_an_earlier_data_set_is_written_anew(tmp_path: Path):
    packaged(tmp_path, ROWS[:COUNT])
    packaged(tmp_path, ROWS[: COUNT // 2])


def test_a_day_that_there_is_not_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    samples.write(tmp_path / "samples.csv", ROWS)
    arguments = ["dataset", "package", str(tmp_path / "samples.csv"), "-o", str(tmp_path / "data")]
    assert program.main([*arguments, "--date", "2026-13-45"]) == 2
    assert capsys.readouterr().err == "convscope dataset: --date 2026-13-45: write a day as 2026-01-31\n"
