"""Choice of block shapes, its cache, and its reading; the times are a table here, on a card they are measured."""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from fakes import ROOT
from triton.runtime.errors import OutOfResources

from convscope.errors import InputError
from convscope.kernels import autotune, blocks
from convscope.kernels.autotune import BlockCache, Launch, NothingFitsError, TunedBlocks
from convscope.kernels.conv3d import layout

PLANE = [blocks.Blocks2d("rows", 32, points, 8, 4, 3) for points in (64, 128, 256)]
SPACE = [layout.Blocks3d("boxes", 128, 64, 32, 4, stages, box=(1, 2, 64)) for stages in (2, 3, 4)]


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> Callable[[object], Launch]:
    """Return launchers whose launches take 30, 10, 20 us, in the order of their cuts."""
    times_us = dict(zip([*PLANE, *SPACE], [30.0, 10.0, 20.0] * 2, strict=True))
    monkeypatch.setattr(autotune, "time_us", lambda launch: launch())
    return lambda cut: lambda: times_us[cut]


def refusing(error: Exception) -> Callable[[object], Launch]:
    def refuse() -> object:
        raise error

    return lambda cut: refuse


def never(cut: object) -> Launch:
    pytest.fail("timed again")


@pytest.mark.parametrize("cuts", [PLANE, SPACE])
def test_the_fastest_is_taken_and_remembered_in_the_file(tmp_path: Path, launched: Callable[[object], Launch], cuts):
    path = tmp_path / "a folder" / "choices.json"
    found = BlockCache(path, type(cuts[0])).choose("a", cuts, launched)
    assert found == TunedBlocks(cuts[1], 10.0, 3)
    again = BlockCache(path, type(cuts[0]))
    assert again.choose("a", cuts, never) == found
    assert again.used == {"a": found}


def remember_many(path: Path, name: str) -> None:
    memory = BlockCache(path, blocks.Blocks2d)
    for turn in range(100):
        memory._remember(f"{name} {turn}", TunedBlocks(PLANE[0], 1.0, 1))


def test_processes_that_remember_at_once_never_leave_a_damaged_file(tmp_path: Path):
    path = tmp_path / "choices.json"
    processes = [multiprocessing.get_context("fork").Process(target=remember_many, args=(path, name)) for name in "ab"]
    for process in processes:
        process.start()
    while any(process.is_alive() for process in processes):
        assert not path.exists() or json.loads(path.read_text())
    assert [process.exitcode for process in processes] == [0, 0]
    assert {file.name for file in tmp_path.iterdir()} == {"choices.json"}


def test_one_after_another_that_remember_keep_both(tmp_path: Path, launched: Callable[[object], Launch]):
    path = tmp_path / "choices.json"
    one, other = BlockCache(path, blocks.Blocks2d), BlockCache(path, blocks.Blocks2d)
    one.choose("a", PLANE, launched)
    other.choose("b", PLANE[:1], launched)
    assert one.choose("b", PLANE, never).blocks == PLANE[0]
    assert other.choose("a", PLANE, never).blocks == PLANE[1]


def test_what_the_card_refuses_is_passed_over(tmp_path: Path, launched: Callable[[object], Launch]):
    def launcher(cut: blocks.Blocks2d) -> Launch:
        refused = refusing(OutOfResources(262144, 232448, "shared memory"))
        return (refused if cut is PLANE[1] else launched)(cut)

    assert BlockCache(tmp_path / "choices.json", blocks.Blocks2d).choose("a", PLANE, launcher) == TunedBlocks(
        PLANE[2], 20.0, 2
    )


def test_what_does_not_fit_into_the_memory_that_is_free_is_passed_over_this_time_only(
    tmp_path: Path, launched: Callable[[object], Launch]
):
    def launcher(cut: blocks.Blocks2d) -> Launch:
        return (refusing(torch.OutOfMemoryError("CUDA out of memory")) if cut is PLANE[1] else launched)(cut)

    path = tmp_path / "choices.json"
    cache = BlockCache(path, blocks.Blocks2d)
    assert cache.choose("a", PLANE, launcher) == TunedBlocks(PLANE[2], 20.0, 2)
    assert cache.choose("a", PLANE, never) == TunedBlocks(PLANE[2], 20.0, 2)
    assert not path.exists()


def test_where_the_memory_is_too_full_for_all_that_is_the_error(tmp_path: Path):
    with pytest.raises(torch.OutOfMemoryError, match="out of memory"):
        BlockCache(tmp_path / "choices.json", blocks.Blocks2d).choose(
            "a", PLANE, refusing(torch.OutOfMemoryError("CUDA out of memory"))
        )


def test_where_nothing_fits_the_error_names_what_and_nothing_is_remembered(
    tmp_path: Path, launched: Callable[[object], Launch]
):
    path = tmp_path / "choices.json"
    with pytest.raises(NothingFitsError, match="no cut of winograd 1x2 fits"):
        BlockCache(path, blocks.Blocks2d).choose(
            "winograd 1x2", PLANE, refusing(RuntimeError("Triton Error [CUDA]: no"))
        )
    assert not path.exists()


def test_an_error_of_another_kind_is_not_swallowed(tmp_path: Path, launched: Callable[[object], Launch]):
    with pytest.raises(ZeroDivisionError):
        BlockCache(tmp_path / "choices.json", blocks.Blocks2d).choose("a", PLANE, refusing(ZeroDivisionError()))


def test_the_choices_of_a_file_are_taken_as_they_are_and_a_damaged_file_is_none(tmp_path: Path):
    path = tmp_path / "tuned.json"
    choice = TunedBlocks(SPACE[2], 12.5, 7)
    path.write_text(autotune.as_text({"gemm a": choice}))
    memory = BlockCache.of_file(path, layout.Blocks3d)
    assert memory.choose("gemm a", SPACE, never) == choice
    assert memory.choose("gemm b", SPACE, never) == TunedBlocks(SPACE[0])
    assert list(memory.used) == ["gemm a", "gemm b"]
    for damaged in ('{"gemm a": {"blocks": 3}}', '{"gemm a"', "[]"):
        path.write_text(damaged)
        with pytest.raises(InputError, match="it holds no choices"):
            BlockCache.of_file(path, layout.Blocks3d)


def test_a_choice_says_its_time_only_where_it_was_timed():
    assert str(TunedBlocks(PLANE[0], 12.345, 7)) == f"{PLANE[0]}; 12.35 us, best of 7"
    assert str(TunedBlocks(PLANE[0])) == str(PLANE[0])


def test_each_card_and_family_of_kernels_has_a_file_of_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    files = [
        autotune.cache_file(name, kind) for name in ("NVIDIA H200", "NVIDIA L40S") for kind in ("conv2d", "conv3d")
    ]
    assert len(set(files)) == 4
    assert files[0].name.startswith("conv2d_nvidia-h200_triton-")
    assert {file.parent for file in files} == {tmp_path / "convscope"}


@pytest.mark.long
def test_a_user_without_a_passwd_entry_and_a_home_can_measure_and_ask_the_queue():
    namespace = ["unshare", "--user", "--map-user=54321", "env", "-i", f"PATH={os.environ['PATH']}"]
    if subprocess.run([*namespace, "true"], capture_output=True, check=False).returncode:
        pytest.skip("user namespaces are not permitted here")
    asked = (
        "from convscope import slurm; from convscope.kernels import autotune;"
        "slurm.queue(lambda command: print(*command)); print(autotune.cache_file('NVIDIA H200', 'conv3d'))"
    )
    done = subprocess.run([*namespace, sys.executable, "-c", asked], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    queue, file = done.stdout.splitlines()
    assert queue.startswith("squeue ")
    assert file.startswith("/nonexistent/")
