"""Locks seen by other users, from other PID namespaces, after another boot: who cannot be seen is not dead."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from fakes import ROOT

from convscope import slurm
from convscope.errors import InputError
from convscope.storage import lock
from convscope.storage.lock import Lock

ME = lock.myself()
NOBODY = "65534"
BEGIN = """
import os, subprocess, sys, time
from pathlib import Path
from convscope.storage.lock import Lock
path = Path(sys.argv[1])
def ask():
    try:
        with Lock(path) as got: print("took it over" if got.taken_from else "got it")
    except Exception as error: print(error)
"""
HOLD = "Lock(path).__enter__(); print(os.getpid(), flush=True); sys.stdin.read()"
ASK = "ask()"
ASK_BESIDE = """
hold = [sys.executable, "-c", sys.argv[2], sys.argv[1]]
with subprocess.Popen(hold, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
    holder.stdout.readline()
    if user := int(sys.argv[3]):
        os.setgroups([]), os.setresgid(user, user, user), os.setresuid(user, user, user)
    ask()
    holder.stdin.close()
"""
COMPETE = """
link = os.link
os.link = lambda old, new: (link(old, new), time.sleep(0.02))  # as on a slow file system
until_s = time.monotonic() + 1
while time.monotonic() < until_s:
    try:
        with Lock(path) as mine: mine.confirm()
    except Exception as error:
        if "is held by" not in str(error): print(error)
"""


def program(text: str, folder: Path, *arguments: str) -> list[str]:
    """Return a command that runs a program with the lock of a folder as `path`."""
    return [sys.executable, "-c", BEGIN + text, str(folder / lock.NAME), *arguments]


def no_queue(command: object) -> None:
    return None


def said(*command: str) -> str:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


def needs(*namespaces: str) -> pytest.MarkDecorator:
    done = shutil.which("unshare") and subprocess.run([*namespaces, "true"], capture_output=True, check=False)
    return pytest.mark.skipif(not done or done.returncode != 0, reason=f"{' '.join(namespaces)} is not permitted here")


CONTAINER = ("unshare", "-rpf", "--mount-proc")
OTHERS_PROC = ("unshare", "-rpf", "sh", "-c", 'echo 4194000 > /proc/sys/kernel/ns_last_pid; "$@"; exit', "sh")
HIDDEN = ("unshare", "-mpf", "--mount-proc", "sh", "-c", 'mount -o remount,hidepid=2 /proc && "$@"; exit', "sh")


@contextlib.contextmanager
def held(folder: Path, *namespaces: str) -> Iterator[None]:
    """Let a process hold the folder; it is killed in the end."""
    command = [*namespaces, *program(HOLD, folder)]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield
        process.kill()


@needs(*CONTAINER)
def test_a_run_in_another_container_of_the_same_host_name_is_not_taken_over_from(tmp_path: Path):
    with held(tmp_path, *CONTAINER):
        assert "nobody can tell from here whether that run is still at work" in said(
            *CONTAINER, *program(ASK, tmp_path)
        )


@needs(*CONTAINER)
def test_two_containers_of_the_same_host_name_never_hold_a_folder_at_once(tmp_path: Path):
    command = [*CONTAINER, *program(COMPETE, tmp_path)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as other:
        assert said(*command) == ""
        assert other.communicate() == ("", None)


@needs(*OTHERS_PROC)
def test_where_proc_is_another_namespaces_a_run_beside_is_not_taken_over_from(tmp_path: Path):
    told = said(*OTHERS_PROC, *program(ASK_BESIDE, tmp_path, BEGIN + HOLD, "0"))
    assert "is held by process 4194" in told


@needs(*HIDDEN)
def test_a_run_of_another_user_whom_proc_hides_is_not_taken_over_from():
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o777)
        told = said(*HIDDEN, *program(ASK_BESIDE, Path(folder), BEGIN + HOLD, NOBODY))
    assert "is held by process" in told
    assert "this machine hides its process" in told


def place(folder: Path, **changes: object) -> Path:
    """Write the lock of another holder."""
    (folder / lock.NAME).write_text(json.dumps(dataclasses.asdict(ME) | changes))
    return folder / lock.NAME


CLONE = {"boot": "another"}


def test_a_machine_of_the_same_name_that_booted_another_time_may_be_another_machine(tmp_path: Path):
    with pytest.raises(InputError, match=r"or this machine was started again.*, --take-over"):
        Lock(place(tmp_path, **CLONE), no_queue).__enter__()


def test_take_over_takes_what_nobody_can_know_and_says_so(tmp_path: Path):
    with Lock(place(tmp_path, **CLONE), no_queue, take_over=True) as taken:
        assert taken.taken_from == f"process {ME.pid} on {ME.host}, since {ME.since_utc}, as --take-over says"
        taken.confirm()
    assert list(tmp_path.iterdir()) == []


def test_take_over_never_takes_from_a_run_that_lives(tmp_path: Path):
    path = place(tmp_path)
    with pytest.raises(InputError) as refused:
        Lock(path, no_queue, take_over=True).__enter__()
    assert str(refused.value).endswith(": wait for it, or choose another --output-dir")
    job = place(tmp_path, **CLONE, job="77", cluster="here")
    with pytest.raises(InputError, match="wait for it"):
        Lock(job, lambda command: "77|RUNNING\n", lambda: dataclasses.replace(ME, cluster="here"), True).__enter__()


def test_a_takeover_that_was_cut_off_on_another_machine_is_taken_over_too(tmp_path: Path):
    path = place(tmp_path, **CLONE)
    shutil.copy(path, tmp_path / f"{lock.NAME}.takeover")
    with Lock(path, no_queue, take_over=True):
        assert [each.name for each in tmp_path.iterdir()] == [lock.NAME]


@pytest.mark.parametrize("content", ["", "{", "[1]", "[" * 100_000, '{"host": "a"}', "\0", "link", "pipe"])
def test_a_lock_that_says_nothing_is_refused_in_one_line_and_taken_over_where_asked(tmp_path: Path, content: str):
    path = tmp_path / lock.NAME
    if content == "link":
        path.symlink_to("/dev/zero")
    elif content == "pipe":
        os.mkfifo(path)
    else:
        path.write_text(content)
    with pytest.raises(InputError, match=r"says nothing of who holds the folder: .*--take-over$"):
        Lock(path, no_queue).__enter__()
    with Lock(path, no_queue, take_over=True) as taken:
        assert taken.taken_from == "an unknown holder, as --take-over says"


@pytest.mark.parametrize(
    "odd", [{"pid": "7"}, {"pid": -1}, {"pid": 2**40}, {"host": "a\x1b[2J"}, {"job": 77}, {"restart": None}]
)
def test_a_lock_with_odd_fields_names_nobody(tmp_path: Path, odd: dict[str, object]):
    assert lock.read_holder(place(tmp_path, **odd).read_text()) is None


def test_locks_of_other_versions_are_understood(tmp_path: Path):
    older = {name: value for name, value in dataclasses.asdict(ME).items() if name != "job_uid"}
    assert lock.read_holder(json.dumps(older)) == ME
    assert lock.read_holder(json.dumps(older | {"a field of tomorrow": 1})) == ME


def test_a_holder_whose_start_is_unknown_is_not_called_dead(tmp_path: Path):
    assert lock.lives(dataclasses.replace(ME, started_ticks=0), ME, no_queue)[0] is None


def test_without_boot_and_namespace_nobody_knows_whether_a_process_is_meant(tmp_path: Path):
    unknown = dataclasses.replace(ME, boot="", process_space="", started_ticks=1)
    assert lock.lives(unknown, unknown, no_queue)[0] is None


def test_a_users_own_filters_do_not_hide_a_job_from_the_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The queue's answer is a script's; the same on a SLURM stands in tests/slurm."""
    queue = tmp_path / "squeue"
    queue.write_text('#!/bin/sh\ntest -n "$SQUEUE_STATES$SQUEUE_USERS$SLURM_CLUSTERS" || echo "77|RUNNING"\n')
    queue.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    for name in ("SQUEUE_STATES", "SQUEUE_USERS", "SLURM_CLUSTERS"):
        monkeypatch.setenv(name, "other")
    assert slurm.states_of("77") == ["RUNNING"]
