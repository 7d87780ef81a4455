"""Progress that is remembered between looks: the same as what is read, and read again where a file has changed."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import pytest
from fakes.folders import SIZES, WHO, measured, note

from convscope.cluster import folders, memory, progress
from convscope.cluster.memory import Remembered
from convscope.cluster.progress import Progress
from convscope.storage import lock
from convscope.storage.paths import cache_folder


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(memory, "_FEWEST", 1)


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """Return results of a run that is done, one that failed, one that was submitted only, all written a while ago."""
    made = tmp_path / "results"
    measured(note(made, "submitted", "started", "ended 0"), *((size, "ok", "") for size in SIZES))
    failed = dataclasses.replace(WHO, model="vgg16", batch_size=4, layout="nhwc")
    rows = (224, "ok", ""), (256, "oom", "needs 90 GB, 80 are there"), (288, "failed", "it broke")
    measured(note(made, "submitted", "ended 1", job="8", who=failed), *rows, who=failed)
    note(made, "submitted", job="9", who=dataclasses.replace(WHO, model="resnet50"))
    for path in made.rglob("*"):
        os.utime(path, (1e9, 1e9))
    return made


def look(results: Path, remembered: Remembered | None = None) -> list[Progress]:
    found = remembered or Remembered(results)
    every = folders.read_all(results, memory=found)
    found.save(("1_sanity", "2_quick", "3_full"))
    return every.progress


def plain(found: list[Progress]) -> list[dict[str, object]]:
    return [{**vars(each), "measured": dict(each.measured), "done": each.done} for each in found]


def test_what_is_remembered_is_what_was_read_and_no_file_is_opened(results: Path, monkeypatch: pytest.MonkeyPatch):
    first = look(results)
    assert len(first) == 3
    assert {each.owner for each in first} == {os.getuid()}
    monkeypatch.setattr(progress, "read_as", lambda *given: pytest.fail("it is read again"))
    assert plain(look(results)) == plain(first) == plain(progress_without_memory(results, monkeypatch))


def progress_without_memory(results: Path, monkeypatch: pytest.MonkeyPatch) -> list[Progress]:
    monkeypatch.undo()
    return folders.read_all(results).progress


def appended(path: Path) -> None:
    path.write_text(path.read_text() + path.read_text().splitlines()[-1].replace("224", "320") + "\n")


CHANGES: dict[str, Callable[[Path], object]] = {
    "a row more": lambda folder: appended(next(folder.glob("*_overall.csv"))),
    "another request": lambda folder: (folder / "run.json").write_text('{"schema_version": 1}'),
    "an event more": lambda folder: (folder / "jobs.log").write_text((folder / "jobs.log").read_text() * 2),
    "a table that is gone": lambda folder: next(folder.glob("*_overall.csv")).unlink(),
    "the same size, another time": lambda folder: os.utime(folder / "run.json", (2e9, 2e9)),
    "a lock": lambda folder: (folder / lock.NAME).write_text("held"),
    "another file of the same name, size and time": lambda folder: replaced(folder / "run.json"),
}


def replaced(path: Path) -> None:
    new = path.with_name("new")
    new.write_bytes(path.read_bytes().replace(b"ok", b"no"))
    os.utime(new, (1e9, 1e9))
    new.rename(path)


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_folder_that_changed_is_read_again(
    results: Path, change: Callable[[Path], object], monkeypatch: pytest.MonkeyPatch
):
    look(results)
    folder = results / "2_quick" / WHO.folder_name
    change(folder)
    read: list[Path] = []
    reads = progress.read_as
    monkeypatch.setattr(progress, "read_as", lambda path, *given: read.append(path) or reads(path, *given))
    found = look(results)
    assert read == [folder]
    assert plain(found) == plain(folders.read_all(results).progress)


def test_what_was_written_a_moment_ago_or_is_locked_is_not_remembered(results: Path):
    done, third, failed = sorted((results / "2_quick").iterdir())
    (done / "jobs.log").touch()
    (failed / lock.NAME).write_text("held")
    look(results)
    (file,) = cache_folder().iterdir()
    assert list(json.loads(file.read_text())["folders"]) == [f"2_quick/{third.name}"]


def test_folders_that_are_gone_are_forgotten_and_other_stages_are_not(results: Path):
    shutil.copytree(results / "2_quick", results / "3_full", copy_function=shutil.copy2)
    look(results)
    shutil.rmtree(results / "2_quick" / WHO.folder_name)
    remembered = Remembered(results)
    folders.read_all(results, ("2_quick",), remembered)
    remembered.save(("2_quick",))
    (file,) = cache_folder().iterdir()
    kept = json.loads(file.read_text())["folders"]
    assert sum(key.startswith("2_quick/") for key in kept) == 2
    assert sum(key.startswith("3_full/") for key in kept) == 3


@pytest.mark.parametrize("text", ["", "[]", "{", '{"of": 1}', '{"of": "OF", "sizes": 3, "folders": []}', "\x00"])
def test_a_file_that_is_damaged_or_of_other_code_is_as_none(results: Path, text: str):
    first = look(results)
    (file,) = cache_folder().iterdir()
    file.write_text(text.replace("OF", memory._source_digest()))
    assert plain(look(results)) == plain(first)


def test_an_entry_that_is_damaged_is_read_again(results: Path):
    first = look(results)
    (file,) = cache_folder().iterdir()
    document = json.loads(file.read_text())
    for at, key in enumerate(document["folders"]):
        document["folders"][key] = [[document["folders"][key][0], []], [], {"x": 1}][at]
    file.write_text(json.dumps(document))
    assert plain(look(results)) == plain(first)


@pytest.mark.parametrize("entries", [{"sizes": [[[1]]]}, {"folders": {"2_quick/x": 5}}, {"folders": 7}])
def test_a_file_with_other_things_in_it_is_as_none(results: Path, entries: dict[str, object]):
    first = look(results)
    (file,) = cache_folder().iterdir()
    file.write_text(json.dumps(json.loads(file.read_text()) | entries))
    assert plain(look(results)) == plain(first)


def test_a_fault_that_may_pass_is_not_remembered(results: Path):
    (results / "2_quick" / WHO.folder_name / "run.json").write_text("{")
    history = next(path for path in results.rglob("jobs.log") if "vgg16" in str(path))
    history.write_text("no event\n")
    for path in results.rglob("*"):
        os.utime(path, (1e9, 1e9))
    assert sum(bool(each.broken or each.remark) for each in look(results)) == 2
    (file,) = cache_folder().iterdir()
    assert list(json.loads(file.read_text())["folders"]) == ["2_quick/resnet50_implicit_gemm_h200"]


def test_few_folders_are_not_worth_a_file_and_a_cache_that_cannot_be_written_is_none(
    results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(memory, "_FEWEST", 4)
    look(results)
    assert not cache_folder().exists()
    monkeypatch.setattr(memory, "_FEWEST", 3)
    (tmp_path / "cache").write_text("no folder")
    assert len(look(results)) == 3


@pytest.mark.parametrize("start", [True, False], ids=["two processes", "none can be started"])
def test_what_several_processes_read_is_the_same_in_the_same_order(
    results: Path, monkeypatch: pytest.MonkeyPatch, start: bool
):
    (results / "2_quick" / "empty").mkdir()
    (results / "2_quick" / "odd").mkdir()
    (results / "2_quick" / "odd" / "run.json").mkdir()
    expected = folders.read_all(results)
    assert any("odd" in remark for remark in expected.skipped)
    monkeypatch.setattr(folders, "_LEAST", 2)  # of four folders
    monkeypatch.setattr(folders, "_AT_ONCE", 1)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})
    started: list[int] = []

    def pool(processes: int, *options: Any) -> ProcessPoolExecutor:
        started.append(processes)
        if not start:
            raise BlockingIOError("no more processes")
        return ProcessPoolExecutor(processes, *options)

    monkeypatch.setattr(folders, "ProcessPoolExecutor", pool)
    found = folders.read_all(results)
    assert set(started) == {2}
    assert plain(found.progress) == plain(expected.progress)
    assert found.skipped == expected.skipped


def test_what_a_broken_pool_has_not_read_is_read_once(results: Path, monkeypatch: pytest.MonkeyPatch):
    expected = folders.read_all(results)
    monkeypatch.setattr(folders, "_LEAST", 1)
    monkeypatch.setattr(folders, "_AT_ONCE", 1)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})
    times_read: list[str] = []
    read = folders._read
    monkeypatch.setattr(folders, "_read", lambda task: times_read.append(str(task.path)) or read(task))

    class Broken(ThreadPoolExecutor):
        """A pool of which a process dies after the first folder."""

        def __init__(self, processes: int, context: object, begin: Any, given: tuple[Any, ...]) -> None:
            super().__init__(1)
            folders._inherited = given[0]

        def map(self, function: Any, firsts: Any, **options: Any) -> Any:
            yield function(next(iter(firsts)))
            raise BrokenProcessPool

    monkeypatch.setattr(folders, "_inherited", ())
    monkeypatch.setattr(folders, "ProcessPoolExecutor", Broken)
    found = folders.read_all(results)
    assert plain(found.progress) == plain(expected.progress)
    assert len(times_read) == len({*times_read}) == len(expected.progress)
