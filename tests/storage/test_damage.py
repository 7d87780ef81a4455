"""Files that are truncated, emptied, reordered, foreign or binary: one line with file and line, never a traceback."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import re
import shutil
from pathlib import Path

import pandas as pd
import pytest
from fakes import DATA, ENVIRONMENT, LAYER_ROW, OVERALL, both, run
from fakes.strategies import more_examples
from hypothesis import given
from hypothesis import strategies as st

from convscope.cluster import folders, progress
from convscope.errors import InputError
from convscope.profiling.rows import SCHEMA_VERSION, OverallRow, SizeKey, profile_store
from convscope.storage import table
from convscope.storage.store import Store

STEM = "alexnet_direct"
SIZES = (64, 96, 128)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """Return a folder with three sizes of two layers; nobody changes it."""
    folder = profile_store(tmp_path_factory.mktemp("whole"), STEM)
    folder.begin(run(input_sizes=SIZES), ENVIRONMENT, [])
    for size in SIZES:
        row = dataclasses.replace(OVERALL, input_size=size, convolutions=2, reason='no energy, "none"')
        layers = [dataclasses.replace(LAYER_ROW, input_size=size, position=at, kernels='{"k, v": 1}') for at in (0, 1)]
        folder.append([row, *layers])
    return folder


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("damaged") / "folder"


def damaged(whole: Store, scratch: Path, name: str, content: bytes) -> Store:
    shutil.rmtree(scratch, ignore_errors=True)
    shutil.copytree(whole.path, scratch)
    (scratch / name).write_bytes(content)
    return profile_store(scratch, STEM)


def tells(folder: Store, name: str) -> str | None:
    """Read everything; return the one line of the error, which names the file and a line of it, or None."""
    progress.read(folder.path, "3_full")  # the status never raises
    try:
        folder.read_run()
        both(folder)
    except InputError as error:
        said = str(error)
        assert said.isprintable()
        assert name in said
        assert re.search(r", line \d+: |lacks layers of the sizes|schema version", said)
        return said
    return None


FILES = st.sampled_from([f"{STEM}_overall.csv", f"{STEM}_layers.csv", "run.json"])


@more_examples(7.5)
@given(name=FILES, share=st.floats(0, 1))
def test_a_truncated_file_is_told_or_was_cut_where_a_size_ends(whole: Store, scratch: Path, name: str, share: float):
    content = (whole.path / name).read_bytes()
    cut = content[: int(share * len(content))]
    said = tells(damaged(whole, scratch, name, cut), name)
    line_ended = cut.endswith(b"\n") and cut.count(b"\n") >= 1
    assert said or cut == content or (name.endswith("overall.csv") and line_ended) or cut == content[:-1]


@more_examples(7.5)
@given(name=FILES, share=st.floats(0, 1))
def test_a_truncated_table_is_mended_on_start_and_never_more_than_what_was_torn(
    whole: Store, scratch: Path, name: str, share: float
):
    content = (whole.path / name).read_bytes()
    folder = damaged(whole, scratch, name, content[: int(share * len(content))])
    try:
        cells = [SizeKey(size) for size in SIZES]
        missing = {cell.input_size for cell in folder.missing(run(input_sizes=SIZES), ENVIRONMENT, cells)}
    except InputError:
        return
    overall, layers = both(folder)
    assert set(overall["input_size"]) | set(missing) == set(SIZES)
    assert len(layers) == 2 * len(overall)


@pytest.mark.parametrize("name", [f"{STEM}_overall.csv", f"{STEM}_layers.csv", "run.json"])
def test_an_emptied_file_is_told(whole: Store, scratch: Path, name: str):
    assert f"{name}, line 1: " in (tells(damaged(whole, scratch, name, b""), name) or "")


@more_examples(2.5)
@given(name=FILES, content=st.binary(max_size=300))
def test_binary_content_is_told(whole: Store, scratch: Path, name: str, content: bytes):
    assert tells(damaged(whole, scratch, name, content), name)


@more_examples(2.5)
@given(name=FILES, at=st.floats(0, 1, exclude_max=True), byte=st.integers(0, 255))
def test_one_byte_that_flipped_is_told_or_leaves_whole_tables(
    whole: Store, scratch: Path, name: str, at: float, byte: int
):
    content = bytearray((whole.path / name).read_bytes())
    content[int(at * len(content))] = byte
    tells(damaged(whole, scratch, name, bytes(content)), name.split("_")[0])


rows = st.lists(st.lists(st.text(max_size=8), max_size=60), max_size=6)


@more_examples(2.5)
@given(name=FILES, rows=rows)
def test_a_foreign_table_is_told(whole: Store, scratch: Path, name: str, rows: list[list[str]]):
    text = io.StringIO()
    csv.writer(text).writerows(rows)
    assert tells(damaged(whole, scratch, name, text.getvalue().encode(errors="replace")), name)


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3),
    max_leaves=9,
)
keys = st.sampled_from(["schema_version", "run", "environment", "model", "input_sizes", "gpu", "host", "device"])


@more_examples(5)
@given(document=values | st.dictionaries(keys, values | st.dictionaries(keys, values)))
def test_foreign_json_is_told(whole: Store, scratch: Path, document: object):
    assert tells(damaged(whole, scratch, "run.json", json.dumps(document).encode()), "run.json")


def test_json_without_end_to_its_depth_is_told(whole: Store, scratch: Path):
    assert tells(damaged(whole, scratch, "run.json", b"[" * 100_000), "run.json")


@given(data=st.data(), name=st.sampled_from([f"{STEM}_overall.csv", f"{STEM}_layers.csv"]))
def test_reordered_rows_and_columns_are_read_all_the_same(whole: Store, scratch: Path, data: st.DataObject, name: str):
    frame = pd.read_csv(whole.path / name, dtype=str, keep_default_na=False)
    frame = frame[data.draw(st.permutations(list(frame.columns)))]
    frame = frame.iloc[data.draw(st.permutations(range(len(frame))))]
    folder = damaged(whole, scratch, name, frame.to_csv(index=False).encode())
    overall, layers = both(folder)
    assert sorted(overall["input_size"]) == list(SIZES)
    assert (len(layers), list(overall.columns)) == (6, table.columns(OverallRow))


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        (",96,", ",ninety,", "line 3: input_size is 'ninety', not a whole number"),
        (",96,", ",64,", "line 3: input_size 64 stands in line 2 already"),
        (",96,", ",,", "line 3: input_size is empty"),
        (",96,", ",96,1,", "line 3: 56 cells where 55 belong"),
        ("alexnet,direct,96,1.5", "alexnet,direct,96,fast", "line 3: mean is 'fast', not a number"),
        ("model,", "modell,", "line 1: it has other columns than this version writes ('modell', 'model')"),
    ],
)
def test_a_cell_that_cannot_be_is_named_with_its_line(whole: Store, scratch: Path, old: str, new: str, told: str):
    cells = len(table.columns(OverallRow))
    told = told.replace("56", str(cells + 1)).replace("55", str(cells))
    content = whole.files.table("overall").read_text().replace(old, new, 1)
    name = whole.files.table("overall").name
    assert f"{STEM}_overall.csv, {told}" in (tells(damaged(whole, scratch, name, content.encode()),
                                                   "overall") or "")  # fmt: skip


def test_a_size_without_all_its_layers_is_told(whole: Store, scratch: Path):
    lines = whole.files.table("layers").read_text().splitlines(keepends=True)
    said = tells(damaged(whole, scratch, whole.files.table("layers").name, "".join(lines[:-1]).encode()), "layers")
    assert "lacks layers of the sizes 128 that are in" in (said or "")


def test_more_torn_sizes_than_a_cut_leaves_are_not_dropped(whole: Store, scratch: Path):
    header = whole.files.table("layers").read_bytes().split(b"\n")[0] + b"\n"
    folder = damaged(whole, scratch, whole.files.table("layers").name, header)
    with pytest.raises(InputError, match=r"the sizes 64, 96, 128 have .* more than a cut leaves behind"):
        folder.mend()
    assert len(folder.read("overall")) == 3


def test_a_newer_schema_is_refused_naming_both_versions(whole: Store, scratch: Path):
    document = json.loads(whole.files.run.read_text()) | {"schema_version": SCHEMA_VERSION + 1}
    said = tells(damaged(whole, scratch, "run.json", json.dumps(document).encode()), "run.json")
    assert f"has schema version {SCHEMA_VERSION + 1}, this program reads {SCHEMA_VERSION} and older" in (said or "")


@pytest.mark.parametrize("version", ["1_first", "1_last"])
def test_folders_of_schema_version_1_are_read(version: str):
    """Tables as the first and the last program of version 1 wrote them; the first had fewer, in another order."""
    folder = profile_store(DATA / "schema" / version, STEM)
    document = folder.read_run()
    assert document is not None
    assert (document["schema_version"], document["run"]["max_workspace_bytes"]) == (SCHEMA_VERSION, None)
    overall, layers = both(folder)
    assert list(overall.columns) == table.columns(OverallRow)
    assert list(overall["input_size"]) == [64, 96]
    assert (overall["status"] == "ok").all()
    assert (overall["mean"] > 0).all()
    assert overall["oom_asked_bytes"].isna().all()
    assert layers.groupby("input_size").size().to_dict() == {64: 5, 96: 5}


@pytest.mark.parametrize("version", ["1_first", "1_last"])
def test_tables_of_schema_version_1_get_the_columns_of_today_and_keep_every_figure(version: str, tmp_path: Path):
    folder = profile_store(Path(shutil.copytree(DATA / "schema" / version, tmp_path / "run")), STEM)
    before = both(folder)
    assert folder.mend() == [
        f"gave {STEM}_{kind}.csv the columns of schema version {SCHEMA_VERSION}" for kind in ("layers", "overall")
    ]
    for found, expected in zip(both(folder), before, strict=True):
        pd.testing.assert_frame_equal(found, expected)
    assert folder.mend() == []


def test_the_status_leaves_out_what_an_overwrite_kept(whole: Store, tmp_path: Path):
    stage = tmp_path / "3_full"
    shutil.copytree(whole.path, stage / "alexnet_direct_cpu")
    shutil.copytree(whole.path, stage / "alexnet_direct_cpu.before-20261121T093100Z")
    assert [found.path.name for found in folders.read_all(tmp_path).progress] == ["alexnet_direct_cpu"]
