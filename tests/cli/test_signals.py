"""Signals are remembered, and end a run in time. What becomes of real runs: test_kill.py."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

from fakes import ROOT

from convscope.cli.signals import GRACE_S, StopSignal

HELD = """
import hashlib, sys
from pathlib import Path
from convscope.cli.signals import StopSignal
from convscope.storage.lock import Lock, release_all
with StopSignal(grace_s=0.5, at_end=release_all), Lock(Path(sys.argv[1]) / "run.lock"):
    print("held", flush=True)
    hashlib.pbkdf2_hmac("sha256", b"", b"", 10**9)  # minutes in C, where no handler of Python runs
"""


def test_a_run_that_is_inside_a_long_call_ends_when_its_grace_is_over_and_leaves_no_lock(tmp_path: Path):
    command = [sys.executable, "-c", HELD, str(tmp_path)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        assert run.stdout.readline() == "held\n"
        run.send_signal(signal.SIGTERM)
        _, said = run.communicate(timeout=60)
    assert run.returncode == 75
    assert said == "run_profile.py: ended by TERM; run the same command again to continue\n"
    assert list(tmp_path.iterdir()) == []


def test_the_time_that_a_size_is_given_is_less_than_slurm_gives_from_term_to_kill():
    assert GRACE_S < 30


NUMBERS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


def test_what_was_there_before_is_put_back():
    before = [signal.getsignal(number) for number in NUMBERS]
    with StopSignal():
        assert not set(before) & {signal.getsignal(number) for number in NUMBERS}
    assert [signal.getsignal(number) for number in NUMBERS] == before


def test_a_terminal_that_is_closed_asks_for_the_end():
    with StopSignal() as stop:
        signal.raise_signal(signal.SIGHUP)
        assert (stop(), stop.exit_code, stop.said) == (True, 75, "HUP")


def test_under_nohup_a_run_outlives_its_terminal():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with StopSignal() as stop:
            signal.raise_signal(signal.SIGHUP)
            assert not stop()
    finally:
        signal.signal(signal.SIGHUP, before)


def test_after_a_warning_and_an_end_it_is_the_end():
    with StopSignal() as stop:
        signal.raise_signal(signal.SIGUSR2)
        assert (stop(), stop.exit_code) == (True, 85)
        signal.raise_signal(signal.SIGTERM)
        assert (stop(), stop.exit_code, stop.said) == (True, 75, "TERM")
