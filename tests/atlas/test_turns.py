"""Turns of processes that share a GPU."""

import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from convscope.atlas.turns import NO_TURNS, Turns
from convscope.errors import InputError

DIES_ALONE = """
import os, sys, pathlib
from convscope.atlas.turns import Turns
turns = Turns(pathlib.Path(sys.argv[1]))
with turns.shared(), turns.alone():
    print("alone", flush=True)
    sys.stdin.read()
    os._exit(9)
"""


def begun(work: object) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)  # type: ignore[arg-type]
    thread.start()
    return thread


def test_many_share_and_none_of_them_while_one_is_alone(tmp_path: Path):
    inside, most, alone_with = [], [], []

    def works(turns: Turns) -> None:
        with turns.shared():
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

    workers = [begun(lambda: works(Turns(tmp_path / "turns"))) for _ in range(4)]
    for worker in workers:
        worker.join(30)
    assert max(most) > 1
    assert alone_with == [0] * 8


def test_who_waits_to_be_alone_comes_before_a_later_one(tmp_path: Path):
    first, second, third = (Turns(tmp_path / "turns") for _ in range(3))
    order, holds = [], threading.Event()

    def waits() -> None:
        with second.shared():
            holds.set()
            with second.alone():
                order.append("alone")

    def comes_later() -> None:
        with third.shared():
            order.append("later")

    with first.shared():
        alone = begun(waits)
        assert holds.wait(30)
        time.sleep(0.1)
        later = begun(comes_later)
        time.sleep(0.1)
        assert order == []
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
            with Turns(path).shared():
                shared.append(time.monotonic())

        waiting = begun(takes)
        time.sleep(0.1)
        assert shared == []
        process.stdin.close()
        waiting.join(30)
    assert process.returncode == 9
    assert len(shared) == 1


def test_without_a_file_nobody_waits():
    with NO_TURNS.shared(), NO_TURNS.alone():
        NO_TURNS.give_way()


def test_a_file_that_cannot_be_made_is_one_line(tmp_path: Path):
    reason = r"--turns .*/none/turns: No such file or directory; name a file"
    with pytest.raises(InputError, match=reason), Turns(tmp_path / "none" / "turns").shared():
        pass
