"""Progress of a run at its edges: counts, files that are damaged, the last lines of a log."""

from __future__ import annotations

import itertools
import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from convscope.cluster import folders, history, progress
from convscope.cluster.history import Job
from convscope.cluster.plain_files import ForeignError
from convscope.cluster.progress import Progress
from convscope.storage.paths import KEPT, PROFILE_VERSION, Combination

WHO = Combination("alexnet", "implicit gemm", "h200")
RUN = {"model": WHO.model, "algorithm": WHO.algorithm, "gpu": WHO.gpu, "input_sizes": [64, 96, 128]}
HEADER = "input_size,status,reason,fallback_layers,throttle_reasons,wall_s"
TABLE = "alexnet_implicit_gemm_overall.csv"


def found(folder: Path, *lines: str, header: str = HEADER, **run: Any) -> Progress:
    """Return the progress of a folder with this run and these lines in its table."""
    folder.mkdir(exist_ok=True)
    (folder / "run.json").write_text(json.dumps({"schema_version": PROFILE_VERSION, "run": RUN | run}))
    (folder / TABLE).write_text("\n".join([header, *lines]) + "\n")
    read = progress.read(folder, "2_quick")
    assert read is not None
    return read


def event(folder: Path, job: str, word: str, who: Combination = WHO, *flags: str) -> None:
    history.note_event(folder, "2026-01-01T00:00:00Z", job, word, who, flags)


def test_rows_are_counted_by_size_status_and_the_worst_of_each_figure(tmp_path: Path):
    read = found(
        tmp_path,
        "64,ok,,2,none,1.5",
        "96,oom,needs 90 GB,,,",
        "128,failed,it broke,11.0,power brake,9e-1",
        "160,failed,of another run,99,thermal,99",
    )
    assert (read.sizes, read.done, read.bad) == ((64, 96, 128), 3, Counter(oom=1, failed=1))
    assert (read.reason, read.fallback_layers, read.throttled, read.slowest_s) == ("it broke", 11, 1, 1.5)
    assert (read.broken, read.job, read.combination) == ("", None, WHO)


def test_empty_figures_are_nothing(tmp_path: Path):
    read = found(tmp_path, "64,ok,,,,")
    assert (read.reason, read.fallback_layers, read.throttled, read.slowest_s) == ("", 0, 0, 0.0)
    read = found(tmp_path)
    assert (read.done, read.fallback_layers, read.throttled, read.slowest_s) == (0, 0, 0, 0.0)


@pytest.mark.parametrize(("sizes", "complete"), [((), False), ((64,), False), ((64, 96), False), ((64, 96, 128), True)])
def test_a_run_is_complete_with_its_last_size(tmp_path: Path, sizes: tuple[int, ...], complete: bool):
    read = found(tmp_path, *(f"{size},ok,,,," for size in sizes))
    assert (read.done, read.complete, read.expected) == (len(sizes), complete, 3)


def test_a_run_that_has_not_begun_expects_the_sizes_of_its_stage(tmp_path: Path):
    waiting = Progress(tmp_path, "2_quick", WHO)
    assert (waiting.expected, waiting.complete, waiting.done, waiting.bad) == (10, False, 0, Counter())
    assert (waiting.fallback_layers, waiting.throttled, waiting.slowest_s, waiting.written_s) == (0, 0, 0.0, 0.0)
    assert not waiting.locked


def test_a_size_with_two_rows_is_done_once(tmp_path: Path):
    assert found(tmp_path, "64,ok,,,,", "64,ok,,,,").done == 1


def test_columns_stand_in_any_order_and_those_that_are_missing_are_empty(tmp_path: Path):
    read = found(tmp_path, "oom,64", header="status,input_size")
    assert (read.done, read.bad, read.reason, read.slowest_s) == (1, Counter(oom=1), "", 0.0)


def test_a_reason_with_a_comma_is_read_whole(tmp_path: Path):
    read = found(tmp_path, '64,failed,"no, not here",,,')
    assert (read.reason, read.done) == ("no, not here", 1)


def test_a_row_that_was_cut_off_is_none(tmp_path: Path):
    assert found(tmp_path, "64,ok,,,,", "96,ok,,").done == 1


@pytest.mark.parametrize("end", ["", "\n"])
def test_rows_are_cut_at_their_commas_as_a_reader_of_csv_cuts_them(end: str):
    for lines in itertools.product(["1,ok,x", "2,ok", "3", "4,ok,,", "", "5,ok,y,z", "6,a,b,c,d,e,"], repeat=3):
        text = "\n".join(["input_size,status,reason", *lines]) + end
        cut, read = ([*map(list, way(text))] for way in (progress._plain, progress._quoted))
        assert cut == read, lines


@pytest.mark.parametrize("line", ["64,ok,,many,,5", "64,ok,,3,,long", "64,ok,,-3,,5", "64,ok,,3,,1e9999"])
def test_words_where_numbers_belong_are_said_and_the_rest_is_read(tmp_path: Path, line: str):
    read = found(tmp_path, line, "96,ok,,7,none,")
    assert read.broken == f"{TABLE} has words where numbers belong"
    assert (read.done, read.fallback_layers) == (2, 7)


def test_figures_beside_words_stay(tmp_path: Path):
    read = found(tmp_path, "64,ok,,many,,5", "96,ok,,9,,long")
    assert (read.fallback_layers, read.slowest_s) == (9, 5.0)


@pytest.mark.parametrize(
    ("more", "said"), [(0, ""), (-1, ""), (1, "run.json has schema version {0}, this program reads {1}")]
)
def test_a_newer_version_is_not_read(tmp_path: Path, more: int, said: str):
    version = PROFILE_VERSION + more
    (tmp_path / "run.json").write_text(json.dumps({"schema_version": version, "run": RUN}))
    read = progress.read(tmp_path, "2_quick")
    assert read is not None
    assert read.broken == said.format(version, PROFILE_VERSION)
    assert read.combination == (Combination(tmp_path.name, "?", "?") if said else WHO)


@pytest.mark.parametrize("odd", [{"model": 1}, {"gpu": None}, {"input_sizes": ["x"]}])
def test_a_run_json_with_other_types_cannot_be_read(tmp_path: Path, odd: dict[str, Any]):
    read = found(tmp_path, "64,ok,,,,", **odd)
    assert (read.broken, read.sizes, read.done) == ("run.json cannot be read", (), 0)


def test_a_fault_of_run_json_comes_before_that_of_the_table(tmp_path: Path):
    event(tmp_path, "7", "submitted")
    (tmp_path / "run.json").write_text("{")
    (tmp_path / TABLE).write_bytes(b"\xff\xfe")
    read = progress.read(tmp_path, "2_quick")
    assert read is not None
    assert (read.combination, read.broken) == (WHO, "run.json cannot be read")


def test_a_table_that_is_no_text_cannot_be_read(tmp_path: Path):
    found(tmp_path)
    (tmp_path / TABLE).write_bytes(b"\xff\xfe")
    read = progress.read(tmp_path, "2_quick")
    assert read is not None
    assert read.broken == f"{TABLE} cannot be read"


def test_an_empty_folder_has_no_progress_and_a_copy_is_left_out(tmp_path: Path):
    (tmp_path / "2_quick" / "empty").mkdir(parents=True)
    assert progress.read(tmp_path / "2_quick" / "empty", "2_quick") is None
    for name in ("run", f"run{KEPT}20260101T000000Z", ".hidden"):
        found(tmp_path / "2_quick" / name)
    assert [(one.path.name, one.stage) for one in folders.read_all(tmp_path).progress] == [("run", "2_quick")]
    assert folders.read_all(tmp_path, ["3_full"]) == ([], [])


def test_the_latest_job_of_a_folder_is_told_with_its_flags(tmp_path: Path):
    other = Combination("vgg16", "fft", "l4")
    event(tmp_path, "6", "started", other)
    event(tmp_path, "6", "ended 1", other)
    event(tmp_path, "7", "submitted", WHO, "--model", "a b")
    event(tmp_path, "7", "started")
    event(tmp_path, "7", "ended 0", WHO, "--seed", "a b")
    jobs, who = history.read(tmp_path)
    assert ([job.number for job in jobs], jobs[-1], who) == (["6", "7"], Job("7", "ended", 0, "--seed 'a b'"), WHO)


def test_a_job_that_started_before_it_was_noted_as_submitted_has_started(tmp_path: Path):
    event(tmp_path, "7", "started")
    event(tmp_path, "7", "submitted")
    assert history.read(tmp_path)[0] == (Job("7", "started", None, ""),)
    event(tmp_path, "8", "submitted")
    assert history.read(tmp_path)[0][-1] == Job("8", "submitted", None, "")


@pytest.mark.parametrize("content", ["a\tb\tc\n", "\t" * 6 + "\n", "\t" * 7 + "\n", "\t" * 13 + "\n"])
def test_lines_of_another_form_are_no_events(tmp_path: Path, content: str):
    (tmp_path / history.HISTORY).write_text(content)
    with pytest.raises(ForeignError, match=r"jobs\.log has no line that can be read"):
        history.read(tmp_path)
    event(tmp_path, "7", "submitted")
    assert history.read(tmp_path) == ((Job("7", "submitted"),), WHO)


def test_an_empty_history_has_no_jobs(tmp_path: Path):
    assert history.read(tmp_path) == ((), None)
    (tmp_path / history.HISTORY).write_text("")
    assert history.read(tmp_path) == ((), None)


def test_an_event_is_a_line(tmp_path: Path):
    event(tmp_path, "7", "submitted", WHO, "--a")
    event(tmp_path, "7", "requeued", WHO)
    assert (tmp_path / history.HISTORY).read_text() == (
        "2026-01-01T00:00:00Z\t7\tsubmitted\talexnet\timplicit gemm\th200\t--a\n"
        "2026-01-01T00:00:00Z\t7\trequeued\talexnet\timplicit gemm\th200\t\n"
    )


def test_the_last_write_is_that_of_the_runs_own_files(tmp_path: Path):
    for seconds, name in enumerate((TABLE, "run.json", history.HISTORY, "slurm.out"), 1):
        (tmp_path / name).write_text("")
        os.utime(tmp_path / name, (seconds, seconds))
    look = progress.look_at(str(tmp_path))
    assert (look.written_s, look.locked, look.owner) == (3.0, False, os.getuid())
    for name, left in ((history.HISTORY, 2.0), ("run.json", 1.0), (TABLE, 0.0)):
        (tmp_path / name).unlink()
        assert progress.look_at(str(tmp_path)).written_s == left


def test_the_last_error_is_the_last_line_of_the_newest_log(tmp_path: Path):
    assert progress.last_error(tmp_path) == ""
    for seconds, name, text in (
        (3, "new", "first\nit broke\n\nsrun: error: task 0\n  \n"),
        (2, "old", "old"),
        (1, "a", "a"),
    ):
        (tmp_path / f"{name}.err").write_text(text)
        os.utime(tmp_path / f"{name}.err", (seconds, seconds))
    assert progress.last_error(tmp_path) == "it broke"
    (tmp_path / "new.err").write_text("srun: error\n\n")
    assert progress.last_error(tmp_path) == ""


@pytest.mark.parametrize(("length", "shown"), [(8192, "it broke"), (8193, "t broke"), (8194, "broke")])
def test_a_log_is_read_from_eight_kibibytes_before_its_end(tmp_path: Path, length: int, shown: str):
    (tmp_path / "job.err").write_text("it broke".ljust(length))
    assert progress.last_error(tmp_path) == shown


def test_a_short_log_is_read_whole_whichever_is_longer(tmp_path: Path):
    (tmp_path / "old.err").write_text("x" * 20000)
    os.utime(tmp_path / "old.err", (1, 1))
    (tmp_path / "new.err").write_text("it broke")
    assert progress.last_error(tmp_path) == "it broke"
