"""Round trips to disk, refusal of rows that do not belong together, and mending of a run that was cut off."""

from __future__ import annotations

import dataclasses
import json
from datetime import datetime, timezone
from pathlib import Path

import pandas as pd
import pytest
from fakes import ENVIRONMENT, LAYER, LAYER_ROW, OVERALL, both, run
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from convscope.errors import InputError
from convscope.profiling.request import Run
from convscope.profiling.rows import SCHEMA, SCHEMA_VERSION, LayerRow, OverallRow, profile_store
from convscope.storage import environment, mending, table
from convscope.storage.store import Store

FIRST_OVERALL = [
    "model", "algorithm", "input_size", "mean", "std", "min", "max", "power_mean_w", "energy_per_inference_j",
]  # fmt: skip
FIRST_LAYERS = ["layer", "in_channels", "out_channels", "kernel_size", "mean_ms", "percentage"]

times = st.floats(min_value=0, max_value=1e9, allow_nan=False)
maybe_times = st.none() | times


@pytest.fixture
def folder(tmp_path: Path) -> Store:
    return profile_store(tmp_path, "alexnet_direct")


def test_the_overall_table_begins_with_the_agreed_columns():
    assert table.columns(OverallRow)[:9] == FIRST_OVERALL


def test_the_layer_table_begins_with_the_agreed_columns():
    assert table.columns(LayerRow)[:6] == FIRST_LAYERS


@pytest.mark.parametrize("row_type", [OverallRow, LayerRow])
def test_both_tables_say_status_and_reason(row_type: type):
    assert {"status", "reason"} <= set(table.columns(row_type))


@pytest.mark.parametrize(
    ("model", "algorithm", "gpu", "name"),
    [
        ("vgg16", "implicit precomp gemm", "h200", "vgg16_implicit_precomp_gemm_h200"),
        ("torchvision:mobilenet_v2", "fft", "l40s", "mobilenet_v2_fft_l40s"),
    ],
)
def test_a_folder_is_named_after_model_algorithm_and_gpu(model: str, algorithm: str, gpu: str, name: str):
    assert run(model=model, algorithm=algorithm, gpu=gpu).folder_name == name


def test_the_kind_of_device_leaves_its_number_out():
    assert run(device="cuda:3").device_type == "cuda"


def test_layers_that_differ_in_name_and_place_only_have_one_shape():
    assert dataclasses.replace(LAYER, name="other", position=7).cost_key == LAYER.cost_key


def test_layers_that_differ_in_groups_have_two_shapes():
    assert dataclasses.replace(LAYER, groups=2).cost_key != LAYER.cost_key


def test_tables_that_are_not_there_read_as_empty_with_all_columns(folder: Store):
    assert folder.read("overall").empty
    assert list(folder.read("layers").columns) == table.columns(LayerRow)


@settings(phases=[Phase.generate])
@given(mean=maybe_times, size=st.integers(1, 4096), samples=st.none() | st.integers(1, 10**6))
def test_an_overall_row_comes_back_as_it_was_written(
    tmp_path_factory: pytest.TempPathFactory, mean: float | None, size: int, samples: int | None
):
    folder = profile_store(tmp_path_factory.mktemp("results"), "m")
    row = dataclasses.replace(OVERALL, mean=mean, input_size=size, samples=samples)
    folder.append([row])
    assert dataclasses.asdict(row) == _only_row(folder.read("overall"))


@given(
    mean_ms=maybe_times.map(lambda ms: ms and round(ms, 6)),
    name=st.from_regex(r"[a-z]+(\.[a-z0-9]+){0,3}", fullmatch=True).filter(lambda name: "." in name),
    kernels=st.none() | st.dictionaries(st.text(st.characters(codec="ascii", categories=["L", "P"])), st.integers(1)),
)
def test_a_layer_row_comes_back_as_it_was_written(
    tmp_path_factory: pytest.TempPathFactory, mean_ms: float | None, name: str, kernels: dict[str, int] | None
):
    folder = profile_store(tmp_path_factory.mktemp("results"), "m")
    text = None if kernels is None else json.dumps(kernels)
    row = dataclasses.replace(LAYER_ROW, layer=name, mean_ms=mean_ms, kernels=text)
    folder.append([OVERALL, row])
    assert dataclasses.asdict(row) == _only_row(folder.read("layers"))


def _only_row(table: pd.DataFrame) -> dict[str, object]:
    assert len(table) == 1
    return {key: None if pd.isna(value) else value for key, value in table.iloc[0].items()}


def test_an_absent_figure_is_an_empty_cell(folder: Store):
    folder.append([OVERALL])
    header, line = folder.files.table("overall").read_text().splitlines()
    assert dict(zip(header.split(","), line.split(","), strict=True))["power_mean_w"] == ""


def test_a_second_size_is_appended_below_the_first(folder: Store):
    folder.append([OVERALL])
    folder.append([dataclasses.replace(OVERALL, input_size=96)])
    assert list(folder.read("overall")["input_size"]) == [64, 96]


def test_a_size_without_layers_leaves_a_table_of_layers_with_a_header_only(folder: Store):
    folder.append([dataclasses.replace(OVERALL, status="oom")])
    assert list(folder.read("layers").columns) == table.columns(LayerRow)
    assert folder.read("layers").empty


def only_layers(folder: Store, size: int) -> None:
    """Leave what a run leaves that is killed between its two tables."""
    before = folder.files.table("overall").read_bytes()
    folder.append([dataclasses.replace(OVERALL, input_size=size), dataclasses.replace(LAYER_ROW, input_size=size)])
    folder.files.table("overall").write_bytes(before)


def test_layers_of_a_size_that_was_cut_off_are_dropped(folder: Store):
    folder.append([OVERALL, LAYER_ROW])
    only_layers(folder, 96)
    assert folder.mend() == ["dropped the size 96 px, which was cut off"]
    assert list(folder.read("layers")["input_size"]) == [64]


def test_a_line_that_was_cut_off_in_the_middle_is_dropped(folder: Store):
    folder.append([OVERALL, LAYER_ROW])
    with folder.files.table("layers").open("a") as file:
        file.write("features.3,64,192,5x5,15.9")
    assert folder.mend() == ["cut an unfinished line off alexnet_direct_layers.csv"]
    assert list(folder.read("layers")["layer"]) == [LAYER_ROW.layer]


def test_a_size_is_appended_on_a_line_of_its_own_after_one_that_was_cut_off(folder: Store):
    second = dataclasses.replace(OVERALL, input_size=96), dataclasses.replace(LAYER_ROW, input_size=96)
    folder.append([OVERALL, LAYER_ROW])
    folder.append(second)
    folder.files.table("overall").write_text(folder.files.table("overall").read_text()[:-40])
    assert folder.mend() == [
        "cut an unfinished line off alexnet_direct_overall.csv",
        "dropped the size 96 px, which was cut off",
    ]
    folder.append(second)
    assert list(folder.read("overall")["input_size"]) == [64, 96]


def test_whole_numbers_stay_whole_when_other_sizes_are_dropped(folder: Store):
    second = dataclasses.replace(LAYER_ROW, samples=None, position=1)
    folder.append([OVERALL, dataclasses.replace(LAYER_ROW, samples=20), second])
    whole = folder.files.table("layers").read_text()
    only_layers(folder, 96)
    folder.mend()
    assert folder.files.table("layers").read_text() == whole


def test_nothing_is_dropped_from_whole_tables(folder: Store):
    folder.append([OVERALL, LAYER_ROW])
    before = folder.files.table("layers").read_bytes()
    assert folder.mend() == []
    assert folder.files.table("layers").read_bytes() == before


def test_a_table_with_other_columns_is_refused_naming_them(folder: Store):
    folder.files.table("overall").write_text("model,speed\nalexnet,1\n")
    with pytest.raises(
        InputError, match=r"_overall\.csv, line 1: it has other columns than this version writes \(.*speed.*\): "
    ):
        folder.read("overall")


@pytest.mark.parametrize("content", [b"", b"a,b\n1,2,3\n4\n", b"\xff\xfe\x00"])
def test_a_file_that_is_no_table_is_refused_on_one_line(folder: Store, content: bytes):
    folder.files.table("overall").write_bytes(content)
    with pytest.raises(InputError, match=r"--overwrite") as refused:
        folder.read("overall")
    assert "\n" not in str(refused.value)


def test_run_json_says_version_request_environment_and_more(folder: Store):
    folder.begin(run(), ENVIRONMENT, ["run_profile.py"])
    document = folder.read_run()
    assert document is not None
    assert document["schema_version"] == SCHEMA_VERSION
    assert document["run"] == json.loads(json.dumps(dataclasses.asdict(run())))
    assert document["environment"] == dataclasses.asdict(ENVIRONMENT)
    assert document["command"] == ["run_profile.py"]


def test_without_run_json_there_is_no_earlier_run(folder: Store):
    assert folder.read_run() is None


@pytest.mark.parametrize("content", ["{", "[]", "{}", "1"])
def test_a_foreign_run_json_is_refused(folder: Store, content: str):
    folder.files.run.write_text(content)
    with pytest.raises(
        InputError, match=r"run\.json, line 1: .*it is not a run\.json of this project: move it away, or"
    ):
        folder.read_run()


def test_a_run_json_of_another_schema_is_refused_with_both_versions(folder: Store):
    folder.files.run.write_text('{"schema_version": 99}')
    with pytest.raises(InputError, match=rf"has schema version 99, this program reads {SCHEMA_VERSION} and older"):
        folder.read_run()


def _document(folder: Store) -> dict[str, object]:
    folder.begin(run(), ENVIRONMENT, [])
    document = folder.read_run()
    assert document is not None
    return document


def test_the_same_run_has_no_differences(folder: Store):
    assert SCHEMA.differences(_document(folder), run(), ENVIRONMENT) == []


def test_a_run_json_without_a_run_is_refused(folder: Store):
    folder.files.run.write_text(json.dumps({"schema_version": SCHEMA_VERSION}))
    with pytest.raises(InputError, match=r"is not a run\.json of this project"):
        SCHEMA.differences(folder.read_run() or {}, run(), ENVIRONMENT)


def test_more_sizes_are_no_difference(folder: Store):
    assert SCHEMA.differences(_document(folder), run(input_sizes=(64, 96, 128)), ENVIRONMENT) == []


SETTINGS = {field.name for field in dataclasses.fields(Run)} - {*SCHEMA.free, "model_digest"}


@pytest.mark.parametrize("setting", sorted(SETTINGS))
def test_a_run_that_differs_in_a_setting_is_told_apart(folder: Store, setting: str):
    (difference,) = SCHEMA.differences(_document(folder), run(**{setting: "other"}), ENVIRONMENT)
    assert difference == f"{setting} {getattr(run(), setting)}, now other"


@pytest.mark.parametrize(("then", "now", "differs"), [("a", "b", True), ("a", "a", False), ("", "b", False)])
def test_other_code_of_a_model_is_a_difference_and_an_unknown_one_is_not(
    folder: Store, then: str, now: str, differs: bool
):
    document = _document(folder)
    document["run"]["model_digest"] = then
    said = ["the code or the weights of the model are others"] if differs else []
    assert SCHEMA.differences(document, run(model_digest=now), ENVIRONMENT) == said


def test_a_setting_that_an_older_version_did_not_have_was_at_its_default(folder: Store):
    document = _document(folder)
    for name in ("layout", "model_digest"):
        del document["run"][name]
    assert SCHEMA.differences(document, run(), ENVIRONMENT) == []
    assert SCHEMA.differences(document, run(layout="nhwc"), ENVIRONMENT) == ["layout nchw, now nhwc"]


def test_another_device_is_told_apart_by_its_kind(folder: Store):
    assert SCHEMA.differences(_document(folder), run(device="cuda:0"), ENVIRONMENT) == ["device_type cpu, now cuda"]


@pytest.mark.parametrize("part", environment.SOFTWARE)
def test_other_hardware_or_software_is_told_apart(folder: Store, part: str):
    other = dataclasses.replace(ENVIRONMENT, **{part: "other"})
    assert SCHEMA.differences(_document(folder), run(), other) == [f"{part} {getattr(ENVIRONMENT, part)}, now other"]


def test_preparing_makes_the_folder_and_leaves_nothing_in_it(tmp_path: Path):
    made = profile_store(tmp_path / "a" / "b", "m")
    made.prepare()
    assert list(made.path.iterdir()) == []


def test_a_folder_below_a_file_cannot_be_prepared(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"cannot write results to .*file/sub \(Not a directory\): choose another"):
        profile_store(tmp_path / "file" / "sub", "m").prepare()


NOW = datetime(2026, 11, 21, 9, 31, tzinfo=timezone.utc)


def kept(tmp_path: Path) -> tuple[Store, Path]:
    folder = profile_store(tmp_path / "run", "alexnet_direct")
    folder.prepare()
    folder.append([OVERALL, LAYER_ROW])
    folder.begin(run(), ENVIRONMENT, [])
    (folder.path / "slurm.log").write_text("stays")
    beside = mending.keep(folder.files, NOW, move=True)
    assert beside is not None
    return folder, beside


def test_what_is_overwritten_is_kept_whole_in_the_folder_under_the_time(tmp_path: Path):
    _, beside = kept(tmp_path)
    assert beside == tmp_path / "run" / "before-20261121T093100Z"
    overall, layers = both(profile_store(beside, "alexnet_direct"))
    assert (len(overall), len(layers)) == (1, 1)
    assert (beside / "run.json").exists()


def test_keeping_leaves_the_logs_where_they_are(tmp_path: Path):
    folder, _ = kept(tmp_path)
    assert sorted(path.name for path in folder.path.iterdir()) == ["before-20261121T093100Z", "slurm.log"]


def test_a_clock_that_was_set_back_never_writes_over_what_was_kept(tmp_path: Path):
    folder, first = kept(tmp_path)
    folder.append([dataclasses.replace(OVERALL, input_size=96), dataclasses.replace(LAYER_ROW, input_size=96)])
    second = mending.keep(folder.files, NOW, move=True)
    assert second == tmp_path / "run" / "before-20261121T093100Z-2"
    assert [list(profile_store(path, "alexnet_direct").read("overall")["input_size"]) for path in (first, second)] == [
        [64],
        [96],
    ]


def test_where_there_is_nothing_nothing_is_kept(tmp_path: Path):
    folder = profile_store(tmp_path / "run", "alexnet_direct")
    folder.prepare()
    assert mending.keep(folder.files, NOW, move=True) is None
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_writing_a_whole_file_leaves_no_temporary_one(tmp_path: Path):
    table.write_atomically(tmp_path / "run.json", "new")
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("run.json", "new")]
