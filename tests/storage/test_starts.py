"""Starts of a run: each is described whole in `run.json`, and each row names the one it was measured in."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import fakes
import pytest
from fakes import DATA, ENVIRONMENT, LAYER_ROW, OVERALL, run

from convscope.conv3d.rows import SCHEMA as CONV3D
from convscope.errors import InputError
from convscope.inference.rows import SCHEMA as INFERENCE
from convscope.profiling.rows import SCHEMA, SCHEMA_VERSION, SizeKey, profile_store
from convscope.storage.schema import Schema
from convscope.storage.store import Store
from convscope.training.rows import SCHEMA as TRAINING
from convscope.verification.rows import CHOICE, SUPPORT

STEM = "alexnet_direct"
FIRST = dataclasses.replace(
    ENVIRONMENT, gpu_name="NVIDIA L4", gpu_uuid="GPU-1", slurm_job_id="7", git_commit="abc", triton="3.5.0",
    power_limit_w=72.0, ecc=True,
)  # fmt: skip
SECOND = dataclasses.replace(FIRST, host="node2", gpu_uuid="GPU-2", slurm_job_id="8", git_commit="def")


def sizes(*pixels: int) -> list[SizeKey]:
    return [SizeKey(size) for size in pixels]


def measured(path: Path, environment: Any, *pixels: int, command: str = "x", **options: Any) -> Store:
    """Ask for some sizes and write those that are missing, as a run does."""
    store = profile_store(path, STEM)
    store.prepare()
    asked = run(input_sizes=pixels, device="cuda:0")
    missing = store.missing(asked, environment, sizes(*pixels), **options)
    store.begin(asked, environment, [command])
    for cell in missing:
        size = cell.input_size
        store.append([dataclasses.replace(OVERALL, input_size=size), dataclasses.replace(LAYER_ROW, input_size=size)])
    return store


def test_a_row_names_host_card_job_commit_and_start(tmp_path: Path):
    row = measured(tmp_path, FIRST, 64).read("overall").iloc[0]
    found = row["host"], row["gpu_uuid"], str(row["slurm_job_id"]), row["git_commit"], row["start"]
    assert found == ("node1", "GPU-1", "7", "abc", 0)


def test_rows_of_a_later_start_name_that_one_and_those_before_keep_theirs(tmp_path: Path):
    measured(tmp_path, FIRST, 64)
    overall = measured(tmp_path, SECOND, 64, 96, any_card=True).read("overall")
    assert list(zip(overall["host"], overall["gpu_uuid"], overall["start"], strict=True)) == [
        ("node1", "GPU-1", 0),
        ("node2", "GPU-2", 1),
    ]


def test_run_json_describes_every_start_whole(tmp_path: Path):
    measured(tmp_path, FIRST, 64, command="one")
    document = measured(tmp_path, SECOND, 64, 96, command="two", any_card=True).read_run() or {}
    first, second = document["starts"]
    assert (first["command"], second["command"]) == (["one"], ["two"])
    assert (first["environment"], second["environment"]) == (dataclasses.asdict(FIRST), dataclasses.asdict(SECOND))
    assert (first["asked"]["input_sizes"], second["asked"]["input_sizes"]) == ([64], [64, 96])
    assert document["started_utc"] == first["utc"] <= second["utc"]


def test_a_start_keeps_how_it_ended_when_the_run_goes_on(tmp_path: Path):
    measured(tmp_path, FIRST, 64).note_in_run(error="the card fell off the bus")
    measured(tmp_path, FIRST, 64, 96).note_in_run(ended_utc="2026-11-21T10:00:00+00:00")
    document = profile_store(tmp_path, STEM).read_run() or {}
    assert [(each["error"], each["ended_utc"]) for each in document["starts"]] == [
        ("the card fell off the bus", None),
        (None, "2026-11-21T10:00:00+00:00"),
    ]
    assert (document["error"], document["ended_utc"]) == (None, "2026-11-21T10:00:00+00:00")


def test_a_run_that_was_killed_after_its_last_size_ended_with_it(tmp_path: Path):
    store = measured(tmp_path / "run", FIRST, 64)
    timed = dataclasses.replace(OVERALL, started_utc="2026-11-21T10:00:00+00:00", wall_s=10.0)
    store.append([timed, LAYER_ROW])
    assert store.missing(run(device="cuda:0"), FIRST, sizes(64)) == []
    assert (store.read_run() or {})["ended_utc"] == "2026-11-21T10:00:10+00:00"


def test_run_json_has_the_sizes_of_all_starts_whatever_the_last_one_asked_for(tmp_path: Path):
    measured(tmp_path, FIRST, 64, 128)
    document = measured(tmp_path, FIRST, 96).read_run() or {}
    assert document["run"]["input_sizes"] == [64, 96, 128]


def test_an_overwrite_of_all_begins_the_list_of_starts_anew(tmp_path: Path):
    measured(tmp_path / "run", FIRST, 64)
    document = measured(tmp_path / "run", SECOND, 96, overwrite=True).read_run() or {}
    assert (len(document["starts"]), document["run"]["input_sizes"]) == (1, [96])


def test_an_overwrite_of_some_cells_is_one_more_start(tmp_path: Path):
    measured(tmp_path / "run", FIRST, 64, 96)
    overall = measured(tmp_path / "run", FIRST, 96, overwrite=True).read("overall")
    assert dict(zip(overall["input_size"], overall["start"], strict=True)) == {64: 0, 96: 1}


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"gpu_uuid": "GPU-2"}, "gpu_uuid GPU-1, now GPU-2"),
        ({"power_limit_w": 60.0}, "power_limit_w 72.0, now 60.0"),
        ({"triton": "3.6.0"}, "triton 3.5.0, now 3.6.0"),
        ({"ecc": False}, "ecc True, now False"),
        ({"tf32_override": "0"}, "tf32_override None, now 0"),
    ],
)
def test_another_card_of_the_same_name_and_another_state_of_it_are_differences(
    tmp_path: Path, change: dict[str, Any], told: str
):
    measured(tmp_path, FIRST, 64)
    with pytest.raises(InputError, match=rf"holds a run with other settings \({told}\): choose another --output-dir"):
        measured(tmp_path, dataclasses.replace(FIRST, **change), 96)


def test_the_line_on_another_card_names_the_option_that_takes_any(tmp_path: Path):
    measured(tmp_path, FIRST, 64)
    with pytest.raises(InputError, match="or --any-card: each row names its card"):
        measured(tmp_path, SECOND, 96)


def test_any_card_does_not_permit_another_power_limit_and_is_not_offered_for_it(tmp_path: Path):
    measured(tmp_path, FIRST, 64)
    other = dataclasses.replace(SECOND, power_limit_w=60.0)
    with pytest.raises(InputError, match=r"\(power_limit_w 72.0, now 60.0\)") as refused:
        measured(tmp_path, other, 96, any_card=True)
    assert "--any-card" not in str(refused.value)


def test_a_folder_of_two_cards_is_refused_to_each_of_them(tmp_path: Path):
    measured(tmp_path, FIRST, 64)
    measured(tmp_path, SECOND, 96, any_card=True)
    for environment, other in ((FIRST, "GPU-2"), (SECOND, "GPU-1")):
        with pytest.raises(InputError, match=f"gpu_uuid {other}, now "):
            measured(tmp_path, environment, 128)


def test_a_power_limit_that_could_not_be_read_is_no_difference(tmp_path: Path):
    measured(tmp_path, FIRST, 64)
    blind = dataclasses.replace(FIRST, power_limit_w=None, ecc=None)
    assert len(measured(tmp_path, blind, 64, 96).read("overall")) == 2


# ---- documents and tables of before


def as_version_2(path: Path, **more: Any) -> None:
    """Turn a folder into what version 2 wrote: no list of starts, no columns that name one."""
    document = json.loads((path / "run.json").read_text())
    del document["starts"]
    document |= {"schema_version": 2, "resumed_utc": []} | more
    (path / "run.json").write_text(json.dumps(document))
    table = path / f"{STEM}_overall.csv"
    header, *lines = (line.split(",") for line in table.read_text().splitlines())
    new = ("host", "gpu_uuid", "slurm_job_id", "git_commit", "start", "order")
    left = [at for at, name in enumerate(header) if name not in new]
    table.write_text("".join(",".join(cells[at] for at in left) + "\n" for cells in (header, *lines)))


def test_a_folder_of_version_2_goes_on_and_its_rows_name_no_start(tmp_path: Path):
    measured(tmp_path, FIRST, 64)
    as_version_2(tmp_path)
    store = measured(tmp_path, FIRST, 64, 96)
    overall = store.read("overall")
    assert overall["mean"].tolist() == [1.5, 1.5]
    assert overall["start"].isna().tolist() == [True, False]
    assert overall["start"].tolist()[1] == 1
    document = json.loads(store.files.run.read_text())
    assert (document["schema_version"], len(document["starts"])) == (SCHEMA_VERSION, 2)
    assert "resumed_utc" not in document


def test_of_a_run_of_version_2_that_was_resumed_only_the_last_start_is_known(tmp_path: Path):
    measured(tmp_path, FIRST, 64)
    times = ["2026-11-21T10:00:00+00:00", "2026-11-21T11:00:00+00:00", "2026-11-21T12:00:00+00:00"]
    as_version_2(tmp_path, started_utc=times[0], resumed_utc=times[1:])
    starts = (profile_store(tmp_path, STEM).read_run() or {})["starts"]
    assert [each["utc"] for each in starts] == times
    assert [each["environment"] for each in starts] == [None, None, dataclasses.asdict(FIRST)]
    assert [each["asked"] for each in starts[:2]] == [None, None]
    assert starts[2]["asked"]["input_sizes"] == [64]


def test_another_card_is_a_difference_for_a_folder_of_version_2_too(tmp_path: Path):
    measured(tmp_path, FIRST, 64)
    as_version_2(tmp_path)
    with pytest.raises(InputError, match="gpu_uuid GPU-1, now GPU-2"):
        measured(tmp_path, SECOND, 96)


def test_a_folder_of_version_1_goes_on(tmp_path: Path):
    folder = Path(shutil.copytree(DATA / "schema" / "1_last", tmp_path / "run"))
    store = profile_store(folder, STEM)
    document = store.read_run() or {}
    asked = run(**{name: value for name, value in document["run"].items() if name != "input_sizes"})
    environment = dataclasses.replace(ENVIRONMENT, **document["environment"])
    assert store.missing(asked, environment, sizes(64, 96, 128)) == sizes(128)


@pytest.mark.parametrize("starts", [None, [], {}, 1, [1], [{}], [{"environment": 1}]])
def test_a_list_of_starts_that_is_none_is_one_line(tmp_path: Path, starts: object):
    store = measured(tmp_path, FIRST, 64)
    document = json.loads(store.files.run.read_text()) | {"starts": starts}
    store.files.run.write_text(json.dumps(document))
    with pytest.raises(InputError, match=r"run\.json, line 1: it is not a run\.json of this project"):
        store.read_run()


@pytest.mark.parametrize(
    "schema", [SCHEMA, TRAINING, INFERENCE, CONV3D, SUPPORT, CHOICE], ids=lambda each: each.request
)
def test_every_study_names_the_start_in_the_tables_that_make_its_cells_count(schema: Schema):
    for part in schema.parts:
        columns = part.tables[part.main].columns
        assert {"host", "gpu_uuid", "slurm_job_id", "git_commit", "start"} <= set(columns), part.main


@pytest.mark.parametrize("schema", [TRAINING, INFERENCE, CONV3D, SUPPORT], ids=lambda each: each.request)
def test_a_document_of_version_1_of_every_study_has_starts_when_it_is_read(tmp_path: Path, schema: Schema):
    document = {
        "schema_version": 1,
        schema.request: {"device": "cpu"},
        "environment": dataclasses.asdict(fakes.ENVIRONMENT),
        "command": ["x"],
        "started_utc": "2026-11-21T10:00:00+00:00",
        "resumed_utc": [],
    }
    path = tmp_path / "run.json"
    path.write_text(json.dumps(document))
    found = schema.read(path) or {}
    assert found["schema_version"] == schema.version >= 2
    assert [(each["utc"], each["command"]) for each in found["starts"]] == [(document["started_utc"], ["x"])]


# ---- order


def test_tables_are_read_by_size_in_whatever_order_they_were_measured(tmp_path: Path):
    store = measured(tmp_path, FIRST, 128, 64, 96)
    assert store.read("overall")["input_size"].tolist() == [64, 96, 128]
    assert store.read("layers")["input_size"].tolist() == [64, 96, 128]
    assert [row.input_size for row in store.objects("overall")["overall"]] == [64, 96, 128]


def file_sizes(store: Store, name: str) -> list[int]:
    return [int(row["input_size"]) for row in store.files.rows(name)]


def test_a_run_that_ends_leaves_its_files_sorted(tmp_path: Path):
    store = measured(tmp_path, FIRST, 128, 64, 96)
    assert file_sizes(store, "overall") == [128, 64, 96]
    store.sort()
    assert file_sizes(store, "overall") == file_sizes(store, "layers") == [64, 96, 128]


def test_the_files_of_a_run_that_was_killed_are_sorted_by_the_next_start(tmp_path: Path):
    measured(tmp_path, FIRST, 128, 64, 96)
    store = profile_store(tmp_path, STEM)
    assert store.mend() == []
    assert file_sizes(store, "overall") == file_sizes(store, "layers") == [64, 96, 128]


def test_layers_keep_their_order_within_a_size(tmp_path: Path):
    store = profile_store(tmp_path, STEM)
    for size in (96, 64):
        layers = [dataclasses.replace(LAYER_ROW, input_size=size, position=at) for at in range(12)]
        store.append([dataclasses.replace(OVERALL, input_size=size), *layers])
    store.sort()
    rows = store.files.rows("layers")
    assert [(row["input_size"], int(row["position"])) for row in rows] == [
        (size, at) for size in ("64", "96") for at in range(12)
    ]
