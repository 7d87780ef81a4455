"""Runs that are killed, and looked at while they write: nothing whole is lost, nothing torn is ever seen."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import random
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest
from fakes import both
from fakes.killing import CONVOLUTIONS, STEM, Victims, assert_whole, is_at_work, wait_for

from convscope.cli.display import several
from convscope.profiling.rows import profile_store
from convscope.storage import lock


def means(folder: Path) -> dict[int, float]:
    overall = profile_store(folder, STEM).read("overall")
    return dict(zip(overall["input_size"], overall["mean"], strict=True))


@pytest.mark.parametrize("kills", [6, pytest.param(100, marks=pytest.mark.long)])
def test_a_run_killed_at_any_moment_keeps_what_was_whole_and_goes_on_to_the_end(
    victims: Victims, tmp_path: Path, kills: int
):
    chance = random.Random(1)
    three = ("--num-sizes", "3")
    victims.finish(tmp_path / "warm", *three)
    started_s = time.perf_counter()
    victims.finish(tmp_path / "whole", *three)
    length_s = time.perf_counter() - started_s
    killed = 0
    for trial in itertools.count():
        if killed == kills:
            break
        assert trial < 3 * kills, f"{killed} of {trial} runs were killed: the others had ended"
        folder = tmp_path / str(trial)
        process = victims.start(folder, *three)
        after_s = chance.uniform(0, length_s)
        time.sleep(after_s)
        with contextlib.suppress(ProcessLookupError):  # it may have ended
            os.kill(process, signal.SIGKILL)
        if victims.end() == -signal.SIGKILL:
            killed += 1
        else:
            length_s = after_s  # this one took less, and so the next are killed in time
        before = means(folder)
        assert victims.finish(folder, *three) == 0, Path(f"{folder}.log").read_text()
        assert_whole(folder, (32, 40, 48))
        assert before.items() <= means(folder).items()


def steps(every: int) -> Iterator[int]:
    """Yield steps on the file system to be killed at: more of the first ten, where files come to be, than later."""
    yield from range(1, 11, min(every, 3))
    yield from range(11, 1000, every)


@pytest.mark.parametrize("every", [9, pytest.param(1, marks=pytest.mark.long)])
def test_a_run_killed_before_any_of_its_steps_on_the_disk_goes_on_to_the_end(
    victims: Victims, tmp_path: Path, every: int
):
    two = ("--num-sizes", "2")
    for step in steps(every):
        folder = tmp_path / str(step)
        victims.start(folder, *two, die_at=step, below=str(folder))
        if victims.end() == 0:
            break
        before = means(folder)
        assert victims.finish(folder, *two) == 0, Path(f"{folder}.log").read_text()
        assert_whole(folder, (32, 48))
        assert before.items() <= means(folder).items()
    assert step > 30  # so many steps there are


@pytest.mark.parametrize("every", [5, pytest.param(1, marks=pytest.mark.long)])
def test_an_overwrite_killed_before_any_of_its_steps_loses_neither_the_old_nor_the_new(
    victims: Victims, tmp_path: Path, every: int
):
    one, without_run, measured = ("--num-sizes", "1"), 0, tmp_path / "measured"
    assert victims.finish(measured, *one) == 0
    old = means(measured)
    for step in steps(every):
        folder = tmp_path / str(step) / "run"
        shutil.copytree(measured, folder)
        victims.start(folder, *one, "--overwrite", die_at=step, below=str(folder))
        ended = victims.end()
        copies = [folder, *folder.glob("before-*")]
        assert all(len(both(profile_store(path, STEM))[1]) % CONVOLUTIONS == 0 for path in copies)
        assert old in [means(path) for path in copies]
        if ended == 0:
            break
        if not (folder / "run.json").exists():  # the same command, without --overwrite, goes on here too
            without_run += 1
            assert victims.finish(folder, *one) == 0
    assert without_run > (2 if every == 1 else 0)
    assert step > 20


def test_a_reader_sees_whole_sizes_only_at_every_moment(victims: Victims, tmp_path: Path):
    folder, seen, looks = profile_store(tmp_path / "run", STEM), set(), 0
    process = victims.start(folder.path, "--measure", "20")
    while is_at_work(process):
        overall, layers = both(folder)
        counts = layers.groupby("input_size").size().to_dict()
        assert counts == dict.fromkeys(overall["input_size"], CONVOLUTIONS)
        seen.add(len(overall))
        looks += 1
    assert victims.end() == 0
    assert looks > 20
    assert seen >= {0, 5}
    assert len(seen) > 2


def test_pandas_alone_sees_whole_files_at_every_moment_and_layers_never_behind_the_sizes(
    victims: Victims, tmp_path: Path
):
    folder, looks = profile_store(tmp_path / "run", STEM), 0
    process = victims.start(folder.path, "--measure", "20")
    wait_for(folder.files.table("overall").exists)
    while is_at_work(process):
        overall, layers = pd.read_csv(folder.files.table("overall")), pd.read_csv(folder.files.table("layers"))
        counts = layers.groupby("input_size").size()
        assert set(counts) == {CONVOLUTIONS}
        assert set(overall["input_size"]) <= set(counts.index)
        looks += 1
    assert victims.end() == 0
    assert looks > 5


@pytest.mark.parametrize(
    "sent",
    [
        *(signal.SIGTERM, signal.SIGUSR2),
        *(pytest.param(each, marks=pytest.mark.long) for each in (signal.SIGINT, signal.SIGHUP, signal.SIGUSR1)),
    ],
)
def test_a_signal_ends_a_run_between_two_sizes_without_a_lock_and_the_same_command_goes_on(
    victims: Victims, tmp_path: Path, sent: signal.Signals
):
    folder = tmp_path / "run"
    many = ("--num-sizes", "16", "--input-range", "32", "47", "--measure", "20")
    process = victims.start(folder, *many)
    wait_for((folder / f"{STEM}_overall.csv").exists)
    os.kill(process, sent)
    assert victims.end() == (85 if sent == signal.SIGUSR2 else 75)
    said = Path(f"{folder}.log").read_text().splitlines()[-1]
    done = means(folder)
    assert said == (
        f"run_profile.py: stopped by {sent.name[3:]} with {several(len(done), 'size')} in the folder: "
        "run the same command again to continue"
    )
    assert 0 < len(done) < 16
    tables = {f"{STEM}_{name}.csv" for name in ("overall", "layers", "work")}
    assert {path.name for path in folder.iterdir()} == {*tables, "run.json"}
    assert victims.finish(folder, *many) == 0
    assert_whole(folder, tuple(range(32, 48)))
    assert done.items() <= means(folder).items()


SLOW = ("--num-sizes", "2", "--measure", "1000000")


def test_a_second_interrupt_ends_a_run_at_once_and_leaves_no_lock(victims: Victims, tmp_path: Path):
    process = victims.start(tmp_path / "run", *SLOW)
    wait_for((tmp_path / "run" / "run.json").exists)
    time.sleep(1)  # into the first size, which takes hours
    os.kill(process, signal.SIGINT)
    time.sleep(0.3)
    assert is_at_work(process)  # the first leaves the size at hand its time
    os.kill(process, signal.SIGINT)
    started_s = time.monotonic()
    assert victims.end() == 75
    assert time.monotonic() - started_s < 10
    said = Path(f"{tmp_path}/run.log").read_text().splitlines()[-1]
    assert said == "run_profile.py: ended by INT; run the same command again to continue"
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["run.json"]


def test_a_second_run_in_the_same_folder_says_who_holds_it_and_ends(victims: Victims, tmp_path: Path):
    folder = tmp_path / "run"
    process = victims.start(folder, *SLOW)
    wait_for((folder / "run.json").exists)
    assert victims.finish(folder, *SLOW) == 2
    said = Path(f"{folder}.log").read_text()
    os.kill(process, signal.SIGKILL)
    victims.end()
    assert f"{folder} is held by process {process} on {os.uname().nodename}, since 20" in said
    assert said.count("\n") == 1


def test_the_lock_of_a_run_that_was_killed_is_taken_over_and_that_is_said(victims: Victims, tmp_path: Path):
    folder = tmp_path / "run"
    process = victims.start(folder)
    wait_for((folder / f"{STEM}_overall.csv").exists)
    os.kill(process, signal.SIGKILL)
    victims.end()
    assert (folder / lock.NAME).exists()
    assert victims.finish(folder) == 0
    assert f"took {folder} over from process {process} on " in Path(f"{folder}.log").read_text()
    assert_whole(folder)


def test_a_run_whose_end_was_not_noted_any_more_is_closed_by_the_same_command(victims: Victims, tmp_path: Path):
    folder = tmp_path / "run"
    victims.finish(folder)
    document = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps(document | {"ended_utc": None}))
    assert victims.finish(folder) == 0
    assert_whole(folder)
