"""State of a run by its lock, its jobs and the clock: who is at work is running, who was killed is not."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from fakes import ROOT
from fakes.folders import SIZES, WHO, measured, note, only, slurm

from convscope.cluster import advice, status
from convscope.cluster.history import HISTORY
from convscope.cluster.standing import holder_of
from convscope.storage import lock
from convscope.storage.lock import Lock

HOLD = """
import sys
from pathlib import Path
from convscope.storage.lock import Lock
with Lock(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


@contextmanager
def held(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Have another process hold a folder; it is killed at the end, and its lock stays."""
    command = [sys.executable, "-c", HOLD, str(folder / lock.NAME)]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        assert run.stdout.readline() == "held\n"
        try:
            yield run
        finally:
            run.kill()


ELSEWHERE = {"host": "elsewhere", "boot": "another boot"}


def lock_of(folder: Path, **changes: Any) -> None:
    """Write the lock of this process, but for the changes."""
    (folder / lock.NAME).write_text(json.dumps(dataclasses.asdict(lock.myself()) | changes))


def test_a_run_that_holds_its_folder_runs_and_once_killed_does_not(tmp_path: Path):
    folder = note(tmp_path, "started", job="local-12")
    measured(folder, (224, "ok", ""))
    with held(folder) as run:
        assert only(tmp_path, now_s=time.time() + 9000).state == "running"
    found = only(tmp_path, now_s=time.time())
    assert found.state == "stale"
    assert f"process {run.pid} on {os.uname().nodename}, which ran it, is gone" in found.detail
    assert advice.again([found]) == ["./2_quick_sweep.sh alexnet 'implicit gemm' h200 --local --seed 2"]


def test_a_second_run_on_a_held_folder_leaves_it_running_and_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    folder = note(tmp_path, "started", job="local-12")
    measured(folder, (224, "ok", ""))
    note(tmp_path, "started", "ended 2", job="local-13")
    (folder / "2_quick_local-13.err").write_text("run_profile.py: the folder is held by process 12\n")
    with Lock(folder / lock.NAME):
        assert status.main([], tmp_path, slurm()) == 3
    said = capsys.readouterr().out
    assert "running 1/3" in said
    assert "refused: 2_quick alexnet, implicit gemm, h200: job local-13" in said
    assert "the folder is held by process 12" in said
    assert "again:" not in said


def test_a_command_that_was_refused_leaves_a_finished_folder_done(tmp_path: Path):
    measured(note(tmp_path, "started", "ended 0"), *((size, "ok", "") for size in SIZES))
    note(tmp_path, "started", "ended 2", job="8")
    assert only(tmp_path, slurm("")).state == "done"


def test_a_run_by_hand_goes_on_being_one_after_a_job_was_refused(tmp_path: Path):
    folder = note(tmp_path, "started", "ended 2")
    measured(folder, (224, "ok", ""))
    lock_of(folder)
    assert only(tmp_path, slurm("")).state == "running"


def test_before_its_lock_is_there_a_local_run_has_ten_minutes(tmp_path: Path):
    written_s = note(tmp_path, "started", job="local-12").joinpath(HISTORY).stat().st_mtime
    assert only(tmp_path, now_s=written_s + 599).state == "running"
    found = only(tmp_path, now_s=written_s + 661)
    assert (found.state, found.detail) == ("stale", "no run holds the folder; nothing written for 11 min")


def test_a_run_on_a_machine_out_of_sight_runs_as_long_as_it_writes(tmp_path: Path):
    folder = note(tmp_path, "started", job="local-12")
    measured(folder, (224, "ok", ""))
    lock_of(folder, **ELSEWHERE)
    written_s = (folder / "run.json").stat().st_mtime
    assert only(tmp_path, now_s=written_s + 1700).state == "running"
    assert only(tmp_path, now_s=written_s + 1900).state == "stale"


def test_a_job_by_hand_is_found_in_the_queue_by_the_number_in_its_lock(tmp_path: Path):
    folder = tmp_path / "2_quick" / WHO.folder_name
    measured(folder, (224, "ok", ""))
    lock_of(folder, **ELSEWHERE, job="31")
    assert only(tmp_path, slurm("9_3|RUNNING|None|1:59|31\n")).cell == "running 1/3, 1:59 left"
    assert only(tmp_path, slurm("")).detail.startswith("the queue does not know its job")


@pytest.mark.parametrize("content", ["", "{", "[]", '{"pid": 1}', "[" * 100_000])
def test_a_lock_without_a_holder_is_no_holder(tmp_path: Path, content: str):
    folder = note(tmp_path, "started", job="local-12")
    (folder / lock.NAME).write_text(content)
    found = only(tmp_path)
    assert (found.progress.locked, holder_of(found.progress), found.state) == (True, None, "stale")


@pytest.mark.parametrize("odd", [{"pid": "../1"}, {"host": 1}, {"job": 7}, {"started_ticks": None}])
def test_a_lock_with_fields_of_other_types_is_no_holder(tmp_path: Path, odd: dict[str, Any]):
    folder = note(tmp_path, "started", job="local-12")
    lock_of(folder, **odd)
    assert holder_of(only(tmp_path).progress) is None


def test_a_lock_that_is_a_pipe_is_not_waited_for(tmp_path: Path):
    folder = note(tmp_path, "started", job="local-12")
    os.mkfifo(folder / lock.NAME)
    assert only(tmp_path).state == "stale"


# ---- clocks


@pytest.mark.parametrize(
    ("ahead_s", "state", "detail"),
    [
        (500, "running", ""),
        (7300, "stale", "no run holds the folder; its files are dated 2 h ahead of the clock"),
        (-7300, "stale", "no run holds the folder; nothing written for 2 h"),
    ],
)
def test_files_of_tomorrow_do_not_run_until_tomorrow(tmp_path: Path, ahead_s: int, state: str, detail: str):
    folder = note(tmp_path, "started", job="local-12")
    now_s = time.time()
    os.utime(folder / HISTORY, (now_s + ahead_s, now_s + ahead_s))
    found = only(tmp_path, now_s=now_s)
    assert (found.state, found.detail) == (state, detail)


# ---- jobs of others

HIDDEN = "AuthType = auth/munge\nPrivateData             = accounts,jobs\nPrologFlags = (null)\n"
OPEN = "PrivateData             = none\n"


def test_everybodys_jobs_are_asked_for(tmp_path: Path):
    note(tmp_path, "submitted")
    asked: list[list[str]] = []

    def ask(command: Any) -> str:
        asked.append(list(command))
        return ""

    only(tmp_path, ask)
    assert asked[0][0] == "squeue"
    assert not [word for word in asked[0] if "user" in word]


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a file to another user")
def test_a_colleagues_job_that_the_queue_hides_has_not_left_it(tmp_path: Path):
    folder = note(tmp_path, "submitted")
    assert only(tmp_path, slurm("", config=HIDDEN)).state == "failed"  # my own job, which I would see
    os.chown(folder / HISTORY, 12345, 12345)
    assert only(tmp_path, slurm("", config=HIDDEN)).cell == "queued 0/10, as job 7"
    assert only(tmp_path, slurm("", config=None)).state == "queued"
    assert only(tmp_path, slurm("", config=OPEN)).state == "failed"
    assert only(tmp_path, slurm("7|PENDING|Priority|1:00|7\n")).cell == "queued 0/10, Priority"


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a file to another user")
def test_a_colleagues_running_job_that_the_queue_hides_is_stale_only_when_it_is_silent(tmp_path: Path):
    folder = note(tmp_path, "submitted", "started")
    os.chown(folder / HISTORY, 12345, 12345)
    lock_of(folder, **ELSEWHERE, job="7")
    written_s = (folder / HISTORY).stat().st_mtime
    assert only(tmp_path, slurm("", config=HIDDEN), written_s + 1700).state == "running"
    assert only(tmp_path, slurm("", config=HIDDEN), written_s + 1900).state == "stale"
    assert only(tmp_path, slurm("", config=OPEN), written_s + 130).state == "stale"


@pytest.mark.parametrize(("code", "by"), [(75, "by a signal"), (85, "before its time limit")])
def test_a_run_that_was_stopped_has_not_failed_and_is_offered_again(tmp_path: Path, code: int, by: str):
    folder = note(tmp_path, "started", f"ended {code}", job="local-12")
    measured(folder, (224, "ok", ""))
    found = only(tmp_path)
    assert (found.state, found.cell) == ("stopped", "stopped 1/3")
    assert found.detail.startswith(f"stopped {by}")
    assert len(advice.again([found])) == 1
