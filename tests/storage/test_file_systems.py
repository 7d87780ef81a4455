"""Disks that are full, read-only or gone, and clocks that go back, under real runs: what was whole stays whole."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path

import pandas as pd
import pytest
from fakes import both
from fakes.killing import CONVOLUTIONS, STEM, Victims, assert_whole, mount_namespaces, wait_for

from convscope.profiling.rows import profile_store

KIB = 1024
ENOUGH_KIB = 320
"""Room for a whole run, which took more than 120 once."""

in_a_namespace = pytest.mark.skipif(not mount_namespaces(), reason="mount namespaces are not permitted here")


def said(log: Path) -> str:
    return log.read_text().splitlines()[-1]


@in_a_namespace
@pytest.mark.parametrize(
    "free_kib", [(0, 40, 80, ENOUGH_KIB), pytest.param((*range(0, 160, 10), ENOUGH_KIB), marks=pytest.mark.long)]
)
def test_a_disk_of_1_mb_that_fills_up_keeps_every_whole_size_and_with_room_the_run_goes_on(
    victims: Victims, tmp_path: Path, free_kib: tuple[int, ...]
):
    disk, log = tmp_path / "disk", tmp_path / "log"
    disk.mkdir()
    victims.mount("-t", "tmpfs", "-o", "size=1m", "none", str(disk))
    seen, ends = victims.seen(disk), []
    for free in free_kib:
        (seen / "ballast").write_bytes(bytes(KIB * (KIB - free)))
        victims.start(disk / "run", log=str(log))
        ends.append(victims.end())
        overall, layers = both(profile_store(seen / "run", STEM))
        assert layers.groupby("input_size").size().to_dict() == dict.fromkeys(overall["input_size"], CONVOLUTIONS)
        if ends[-1] == 74:
            assert said(log) == (
                f"run_profile.py: cannot write to {disk}/run (No space left on device): the sizes already written "
                "are complete; remove the cause, then run the same command again to continue"
            )
        (seen / "ballast").unlink()
        victims.start(disk / "run", log=str(log))
        assert victims.end() == 0, log.read_text()
        assert_whole(seen / "run")
        shutil.rmtree(seen / "run")
    assert set(ends) == {0, 2, 74}
    assert ends.count(74) >= len(free_kib) / 5


@in_a_namespace
def test_a_folder_on_a_disk_that_is_read_only_is_refused_before_anything_is_measured(victims: Victims, tmp_path: Path):
    disk, log = tmp_path / "disk", tmp_path / "log"
    disk.mkdir()
    victims.mount("--bind", str(disk), str(disk))
    victims.mount("-o", "remount,bind,ro", str(disk))
    victims.start(disk, log=str(log))
    assert victims.end() == 2
    assert log.read_text() == (
        f"run_profile.py: cannot write results to {disk} (Read-only file system): "
        "choose another folder with --output-dir\n"
    )


MANY = ("--num-sizes", "16", "--input-range", "32", "47", "--measure", "20")


@in_a_namespace
def test_a_disk_that_becomes_read_only_under_a_run_ends_it_with_one_line(victims: Victims, tmp_path: Path):
    disk, log = tmp_path / "disk", tmp_path / "log"
    disk.mkdir()
    victims.mount("-t", "tmpfs", "none", str(disk))
    seen = profile_store(victims.seen(disk / "run"), STEM)
    victims.start(disk / "run", *MANY, log=str(log))
    wait_for(seen.files.table("overall").exists)
    victims.mount("-o", "remount,ro", str(disk))
    assert victims.end() == 74
    done = list(both(seen)[0]["input_size"])
    victims.mount("-o", "remount,rw", str(disk))
    victims.start(disk / "run", *MANY, log=f"{log}2")
    assert victims.end() == 0
    assert_whole(seen.path, tuple(range(32, 48)))
    assert 0 < len(done) < 16
    assert "(Read-only file system)" in said(log)
    assert "Traceback" not in log.read_text()


def test_a_folder_that_is_removed_under_a_run_ends_it_with_one_line(victims: Victims, tmp_path: Path):
    folder = tmp_path / "run"
    victims.start(folder, *MANY)
    wait_for((folder / f"{STEM}_overall.csv").exists)
    folder.rename(tmp_path / "elsewhere")
    assert victims.end() == 74
    assert said(tmp_path / "run.log") == (
        f"run_profile.py: {folder}/run.lock is gone: somebody took this run's folder away, nothing is written any more"
    )
    assert not folder.exists()
    overall, layers = both(profile_store(tmp_path / "elsewhere", STEM))
    assert len(layers) == CONVOLUTIONS * len(overall) > 0


@pytest.mark.skipif(not shutil.which("cc"), reason="no C compiler to make the clock's shim with")
def test_a_clock_that_is_set_back_by_two_hours_under_a_run_changes_no_figure_and_loses_nothing(
    victims: Victims, tmp_path: Path
):
    folder, flag = tmp_path / "run", tmp_path / "back"
    clock = {"environment": {"CLOCK_BACK": str(flag)}}
    victims.start(folder, *MANY, **clock)
    wait_for((folder / f"{STEM}_overall.csv").exists)
    flag.touch()
    assert victims.end() == 0
    document = json.loads((folder / "run.json").read_text())
    assert document["ended_utc"] < document["started_utc"]  # so it went back
    overall = pd.read_csv(folder / f"{STEM}_overall.csv")
    assert len(overall) == 16
    assert overall["wall_s"].between(0, 60).all()
    process = victims.start(folder, *MANY, "--overwrite", **clock)
    wait_for(lambda: any(folder.glob("before-*")))
    os.kill(process, signal.SIGKILL)
    victims.end()
    victims.start(folder, *MANY, **clock)
    assert victims.end() == 0
    (kept,) = folder.glob("before-*")
    assert len(pd.read_csv(kept / f"{STEM}_overall.csv")) == 16
    assert len(both(profile_store(folder, STEM))[0]) == 16
