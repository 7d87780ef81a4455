"""The lock at its edges: answers of a network file system that are lost, the numbers of a process."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from convscope.errors import InputError, WriteError
from convscope.storage import lock
from convscope.storage.lock import Holder, Lock

ME = lock.myself()


def no_queue(command: object) -> None:
    return None


def test_a_process_is_known_by_the_moment_that_it_began():
    with subprocess.Popen(["sleep", "60"]) as child:
        _, ticks = lock._state(child.pid) or ("", 0)
        child.kill()
    assert ticks >= ME.started_ticks > 0
    age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    assert -1 < age_s < 60
    assert lock.myself().started_ticks == ME.started_ticks


def test_a_process_that_is_not_there_has_ended():
    with subprocess.Popen(["true"]) as done:
        done.wait()
    assert lock._state(done.pid) is None
    assert lock.has_ended(dataclasses.replace(ME, pid=done.pid))


def test_a_process_that_nobody_has_waited_for_yet_has_ended_at_the_moment_that_it_began():
    with subprocess.Popen(["true"]) as child:
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        state, ticks = lock._state(child.pid) or ("", 0)
        assert state == "Z"
        assert lock.has_ended(dataclasses.replace(ME, pid=child.pid, started_ticks=ticks))


@pytest.mark.parametrize(("process", "is_one"), [(0, False), (1, True), (2**31 - 1, True), (2**31, False)])
def test_the_number_of_a_process_is_one_that_a_kernel_gives(process: int, is_one: bool):
    content = json.dumps(dataclasses.asdict(dataclasses.replace(ME, pid=process)))
    assert (lock.read_holder(content) is not None) == is_one


@pytest.mark.parametrize(("said", "restart"), [(None, 0), ("", 0), ("3", 3)])
def test_a_holder_says_which_start_of_its_job_it_is(monkeypatch, said: str | None, restart: int):
    monkeypatch.setenv("SLURM_JOB_ID", "77")
    monkeypatch.setenv("SLURM_CLUSTER_NAME", "here")
    monkeypatch.setenv("SLURM_JOB_UID", "1234")
    monkeypatch.setenv("SLURMD_NODENAME", "node1")
    monkeypatch.delenv("SLURM_RESTART_COUNT", raising=False)
    if said is not None:
        monkeypatch.setenv("SLURM_RESTART_COUNT", said)
    found = lock.myself()
    assert (found.job, found.restart, found.cluster, found.pid) == ("77", restart, "here", os.getpid())
    assert found.job_uid == 1234


def test_a_shell_of_an_allocation_runs_beside_its_nodes_and_has_no_job(monkeypatch):
    monkeypatch.setenv("SLURM_JOB_ID", "77")
    monkeypatch.delenv("SLURMD_NODENAME", raising=False)
    assert lock.myself().job is None


def test_a_holder_without_a_job_is_in_its_first_start():
    found = Holder("node1", "boot", "pid:[1]", 7, 1, "now")
    assert (found.job, found.restart, found.cluster) == (None, 0, None)
    assert str(found) == "process 7 on node1, since now"


@pytest.mark.parametrize(("restart", "gone"), [(0, False), (1, False), (2, True)])
def test_only_an_earlier_start_of_the_same_job_is_gone(restart: int, gone: bool):
    then = dataclasses.replace(ME, host="elsewhere", boot="other", job="77", restart=1)
    assert lock.is_gone(then, dataclasses.replace(ME, job="77", restart=restart), no_queue) is gone


@pytest.mark.parametrize("queue", ["", "77|RUNNING\n"])
def test_a_space_of_process_numbers_of_the_same_name_elsewhere_is_another(queue: str):
    """Machines give their first space the same name."""
    then = dataclasses.replace(ME, host="elsewhere", boot="other", job="77", job_uid=os.getuid())
    assert lock.is_gone(then, ME, lambda command: queue) is (queue == "")


def test_a_living_process_of_this_machine_is_not_gone_whatever_the_queue_says():
    assert not lock.is_gone(dataclasses.replace(ME, job="77"), ME, lambda command: "")


def test_a_link_that_went_through_counts_though_its_answer_was_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    link = os.link

    def lost(source: Path, target: Path) -> None:
        link(source, target)
        raise FileExistsError

    monkeypatch.setattr(os, "link", lost)
    with Lock(tmp_path / lock.NAME, no_queue) as taken:
        assert taken.taken_from == ""
        taken.confirm()


def test_who_is_tidied_away_while_asking_asks_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    link, lost = os.link, []

    def tidied(source: Path, target: Path) -> None:
        if not lost:
            lost.append(source)
            source.unlink()
        link(source, target)

    monkeypatch.setattr(os, "link", tidied)
    with Lock(tmp_path / lock.NAME, no_queue) as taken:
        taken.confirm()
    assert len(lost) == 1


def test_who_asks_may_find_the_leftovers_of_others_gone_already(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Path, "glob", lambda folder, pattern: [folder / f".{lock.NAME}.gone"])
    with Lock(tmp_path / lock.NAME, no_queue) as taken:
        taken.confirm()


def test_a_lock_that_changed_hands_while_it_was_judged_stays(tmp_path: Path):
    path, dead = tmp_path / lock.NAME, dataclasses.replace(ME, boot="other", job="77", job_uid=os.getuid())
    with Lock(path, no_queue, lambda: dead):
        content = path.read_text()

    def ask(command: Sequence[str]) -> str:
        path.write_text(content.replace('"77"', '"78"'))  # meanwhile job 78 took it over, and runs
        return "78|RUNNING\n" if "--jobs=78,78" in command else ""

    path.write_text(content)
    with pytest.raises(InputError, match=r"is held by process .*, job 78"):
        Lock(path, ask).__enter__()
    assert '"78"' in path.read_text()


def test_a_release_lets_go_once_of_its_own_lock_only(tmp_path: Path):
    held = Lock(tmp_path / lock.NAME, no_queue).__enter__()
    assert held in lock._held
    held.release()
    assert held not in lock._held
    (tmp_path / lock.NAME).write_text("another run's")
    held.release()
    assert (tmp_path / lock.NAME).read_text() == "another run's"


def test_all_locks_of_a_process_are_let_go_at_its_end(tmp_path: Path):
    for name in ("a", "b"):
        Lock(tmp_path / name, no_queue).__enter__()
    lock.release_all()
    assert list(tmp_path.iterdir()) == []
    assert lock._held == []


@pytest.mark.parametrize(("content", "found"), [(None, "gone"), ("another run's\n", "another run's")])
def test_a_lock_that_was_taken_away_says_how(tmp_path: Path, content: str | None, found: str):
    path = tmp_path / lock.NAME
    with Lock(path, no_queue) as held:
        path.unlink()
        if content is not None:
            path.write_text(content)
        with pytest.raises(WriteError, match=f"{path} is {found}: somebody took"):
            held.confirm()


def test_a_lock_is_one_line_of_json_with_its_holder(tmp_path: Path):
    with Lock(tmp_path / lock.NAME, no_queue, lambda: ME):
        content = (tmp_path / lock.NAME).read_text()
    assert content.endswith("}\n")
    assert content.count("\n") == 1
