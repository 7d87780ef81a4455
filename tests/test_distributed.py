"""Processes that are started together: their places, their end, and what their exit codes come to."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from convscope import distributed

PLACES = "import os; open(os.environ['RANK'], 'w').write(' '.join(os.environ[n] for n in ('LOCAL_RANK', 'WORLD_SIZE')))"


def launched(program: str, count: int = 2, stop: bool = False) -> int:
    return distributed.launch([sys.executable, "-c", program], count, lambda: stop)


def test_each_process_has_a_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    assert launched(PLACES, 3) == 0
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"0": "0 3", "1": "1 3", "2": "2 3"}


@pytest.mark.parametrize("code", [1, 2])
def test_the_largest_exit_code_is_that_of_all(code: int):
    assert launched(f"import os, sys; sys.exit({code} if os.environ['RANK'] == '1' else 0)") == code


def test_where_one_ends_badly_the_others_do_not_wait_for_it():
    started_s = time.monotonic()
    assert launched("import os, sys, time; sys.exit(70) if os.environ['RANK'] == '0' else time.sleep(60)") == 70
    assert time.monotonic() - started_s < 30


def test_a_stop_ends_all():
    started_s = time.monotonic()
    launched("import time; time.sleep(60)", stop=True)
    assert time.monotonic() - started_s < 30
