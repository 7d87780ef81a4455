"""Turns of processes that share a GPU."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from convscope.atlas.turns import NO_TURNS, Turns, file_of
from convscope.errors import InputError

DIES_ALONE = """
import os, sys, pathlib
from convscope.atlas.turns import Turns
turns = Turns(pathlib.Path(sys.argv[1]))
turns.join()
with turns.alone():
    print("alone", flush=True)
    sys.stdin.read()
    os._exit(9)
"""


def begun(work: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def test_many_share_and_none_of_them_while_one_is_alone(tmp_path: Path):
    inside, most, alone_with = [], [], []

    def works(turns: Turns) -> None:
        turns.join()
        for _ in range(20):
            turns.give_way()
            inside.append(1)
            most.append(len(inside))
            time.sleep(0.002)
            inside.pop()
        with turns.alone():
            alone_with.append(len(inside))
            time.sleep(0.01)
            alone_with.append(len(inside))
        turns.leave()

    workers = [begun(lambda: works(Turns(tmp_path / "turns"))) for _ in range(4)]
    for worker in workers:
        worker.join(30)
    assert max(most) > 1
    assert alone_with == [0] * 8


def test_who_waits_to_be_alone_comes_before_a_later_one(tmp_path: Path):
    first, second, third = (Turns(tmp_path / "turns") for _ in range(3))
    order, holds = [], threading.Event()

    def waits() -> None:
        second.join()
        holds.set()
        with second.alone():
            order.append("alone")
        second.leave()

    def comes_later() -> None:
        third.join()
        order.append("later")
        third.leave()

    first.join()
    alone = begun(waits)
    assert holds.wait(30)
    time.sleep(0.1)
    later = begun(comes_later)
    time.sleep(0.1)
    assert order == []
    first.leave()
    alone.join(30)
    later.join(30)
    assert order == ["alone", "later"]


def test_a_process_that_dies_lets_go(tmp_path: Path):
    path = tmp_path / "turns"
    command = [sys.executable, "-c", DIES_ALONE, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        assert process.stdout.readline() == "alone\n"
        shared: list[float] = []

        def takes() -> None:
            turns = Turns(path)
            turns.join()
            shared.append(time.monotonic())
            turns.leave()

        waiting = begun(takes)
        time.sleep(0.1)
        assert shared == []
        process.stdin.close()
        waiting.join(30)
    assert process.returncode == 9
    assert len(shared) == 1


def test_without_a_file_nobody_waits():
    NO_TURNS.join()
    with NO_TURNS.alone():
        NO_TURNS.give_way()


def test_an_error_while_alone_gives_way(tmp_path: Path):
    first, second = Turns(tmp_path / "turns"), Turns(tmp_path / "turns")
    first.join()
    with pytest.raises(RuntimeError), first.alone():
        raise RuntimeError
    second.join()  # would wait for ever
    for each in (first, second):
        each.leave()


@pytest.mark.parametrize(("name", "reason"), [("none/turns", "No such file or directory"), ("link", "Too many levels")])
def test_a_file_that_cannot_be_made_is_one_line(tmp_path: Path, name: str, reason: str):
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InputError, match=rf"--turns .*/{name}: {reason}.*; name a file on a local disk"):
        Turns(tmp_path / name).join()
    assert not (tmp_path / "elsewhere").exists()


def test_a_folder_is_no_file_for_turns():
    with pytest.raises(InputError, match=r"--turns \.: .*; name a file"):
        Turns(Path()).join()


def test_what_is_shared_has_one_file_of_this_user():
    assert file_of("GPU-1") == file_of("GPU-1") != file_of("GPU-2")
    assert str(os.getuid()) in file_of("GPU-1").name
