"""Holders of a folder, and those that are certainly dead."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from convscope.errors import InputError, WriteError
from convscope.storage import lock
from convscope.storage.lock import Holder, Lock

ME = lock.myself()


def no_queue(command: object) -> None:
    return None


def held_by(path: Path, **changes: object) -> Path:
    """Write the lock of another holder."""
    with Lock(path / lock.NAME, no_queue, lambda: dataclasses.replace(ME, **changes)):
        content = (path / lock.NAME).read_text()
    (path / lock.NAME).write_text(content)
    return path / lock.NAME


def ended_process() -> int:
    with subprocess.Popen(["true"]) as done:
        done.wait()
    return done.pid


def test_a_folder_that_is_held_is_refused_saying_who_holds_it(tmp_path: Path):
    with Lock(tmp_path / lock.NAME, no_queue), pytest.raises(InputError) as refused, Lock(tmp_path / lock.NAME):
        pass
    assert str(refused.value).startswith(f"{tmp_path} is held by process {os.getpid()} on {ME.host}, since ")


def test_leaving_takes_the_lock_away(tmp_path: Path):
    with Lock(tmp_path / lock.NAME):
        assert [path.name for path in tmp_path.iterdir()] == [lock.NAME]
    assert list(tmp_path.iterdir()) == []


def test_a_process_that_is_gone_is_taken_over_from(tmp_path: Path):
    path = held_by(tmp_path, pid=ended_process())
    with Lock(path, no_queue) as taken:
        assert taken.taken_from.endswith(", which is gone")
    assert list(tmp_path.iterdir()) == []


def test_a_process_with_the_same_number_that_began_at_another_time_is_another(tmp_path: Path):
    path = held_by(tmp_path, started_ticks=ME.started_ticks - 1)
    with Lock(path, no_queue) as taken:
        assert taken.taken_from


def test_on_the_same_machine_in_another_space_of_process_numbers_nobody_can_tell():
    assert not lock.is_gone(dataclasses.replace(ME, process_space="pid:[1]", pid=ended_process()), ME, no_queue)


def test_a_zombie_is_gone():
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert lock.has_ended(dataclasses.replace(ME, pid=child.pid))


ELSEWHERE = dataclasses.replace(ME, host="elsewhere", boot="other", job="77", cluster="here", job_uid=os.getuid())
HERE = dataclasses.replace(ME, cluster="here")


@pytest.mark.parametrize(
    ("queue", "alive"),
    [
        ("77|RUNNING\n", True),
        ("77|COMPLETING\n", True),
        ("77|SUSPENDED\n", True),
        ("77|A STATE OF TOMORROW\n", True),
        ("77|RUNNING\n77|PENDING\n", True),  # the last task of an array has the number of those that wait
        ("77|PENDING\n", False),
        ("77|NODE_FAIL\n", False),
        ("", False),
        (None, None),
    ],
)
def test_a_job_elsewhere_lives_as_the_queue_says(queue: str | None, alive: bool | None):
    assert lock.lives(ELSEWHERE, HERE, lambda command: queue)[0] is alive


@pytest.mark.parametrize("uid", [os.getuid() + 1, None])
def test_the_job_of_another_user_that_the_queue_does_not_show_may_be_hidden(uid: int | None):
    alive, why = lock.lives(dataclasses.replace(ELSEWHERE, job_uid=uid), HERE, lambda command: "")
    assert (alive, why) == (None, "the queue does not show job 77, and may hide other users' jobs")


def test_without_a_job_nobody_can_tell_from_elsewhere():
    assert not lock.is_gone(dataclasses.replace(ELSEWHERE, job=None), HERE, lambda command: "")


def test_the_queue_of_one_cluster_does_not_speak_for_another():
    assert not lock.is_gone(dataclasses.replace(ELSEWHERE, cluster="there"), HERE, lambda command: "")


@pytest.mark.parametrize(("restart", "gone"), [(1, True), (0, False)])
def test_a_job_that_was_put_into_the_queue_again_is_its_own_heir(restart: int, gone: bool):
    again = dataclasses.replace(HERE, job="77", restart=restart)
    assert lock.is_gone(ELSEWHERE, again, lambda command: "77|RUNNING\n") == gone


def test_a_holder_elsewhere_is_refused_with_what_to_do(tmp_path: Path):
    path = held_by(tmp_path, host="elsewhere", boot="other", job="77")
    with pytest.raises(InputError, match=r"process \d+ on elsewhere, job 77, .* that it has ended, --take-over"):
        Lock(path, no_queue).__enter__()
    assert path.exists()


def test_a_takeover_that_was_cut_off_is_itself_taken_over(tmp_path: Path):
    gone = dataclasses.replace(ME, pid=ended_process())
    path = held_by(tmp_path, pid=gone.pid)
    (tmp_path / f"{lock.NAME}.takeover").write_text(path.read_text())
    with Lock(path, no_queue):
        assert [each.name for each in tmp_path.iterdir()] == [lock.NAME]


def test_of_many_that_take_over_at_once_one_gets_it(tmp_path: Path):
    for _ in range(50):
        path = held_by(tmp_path, pid=ended_process())
        asked = [Lock(path, no_queue, _as(number)) for number in range(4)]
        with ThreadPoolExecutor(4) as pool:
            got = list(pool.map(_try, asked))
        holders = [each for each in got if each]
        assert len(holders) <= 1
        for each in holders:
            each.release()
        path.unlink(missing_ok=True)


def _as(number: int):
    return lambda: dataclasses.replace(ME, since_utc=f"thread {number}")


def _try(asked: Lock) -> Lock | None:
    try:
        return asked.__enter__()
    except InputError:
        return None


@pytest.mark.parametrize("content", [None, "another run's\n"])
def test_a_run_whose_lock_was_taken_away_writes_no_more(tmp_path: Path, content: str | None):
    with Lock(tmp_path / lock.NAME) as held:
        held.confirm()
        (tmp_path / lock.NAME).unlink()
        if content:
            (tmp_path / lock.NAME).write_text(content)
        with pytest.raises(WriteError, match="nothing is written any more"):
            held.confirm()
    assert (tmp_path / lock.NAME).exists() == bool(content)


def test_what_a_killed_process_left_of_its_asking_is_tidied_up(tmp_path: Path):
    (tmp_path / f".{lock.NAME}.node1.17").write_text("")
    with Lock(tmp_path / lock.NAME):
        assert [path.name for path in tmp_path.iterdir()] == [lock.NAME]


def test_a_folder_that_is_not_there_cannot_be_locked(tmp_path: Path):
    with pytest.raises(InputError, match=r"cannot lock .* choose another --output-dir"):
        Lock(tmp_path / "absent" / lock.NAME).__enter__()


def test_the_holder_says_machine_process_and_job():
    assert str(Holder("node1", "b", "pid:[1]", 7, 1, "now", job="12")) == "process 7 on node1, job 12, since now"
