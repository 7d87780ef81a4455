"""Folders that others write in too: links and pipes that they plant, commands that look in while a run writes."""

from __future__ import annotations

import glob
import os
import shutil
import subprocess
import sys
from datetime import datetime, timezone
from pathlib import Path

import pytest
from fakes import DATA, ENVIRONMENT, LAYER_ROW, OVERALL, ROOT, run
from fakes.killing import STEM as VICTIM
from fakes.killing import Victims, assert_whole, mount_namespaces

from convscope.cli.display import Figures
from convscope.errors import InputError
from convscope.profiling.comparison import compare
from convscope.profiling.rows import profile_store
from convscope.storage import lock, mending, table
from convscope.storage.store import Store

NOW = datetime(2026, 11, 21, 9, 31, tzinfo=timezone.utc)
STEM = "alexnet_direct"
TABLES = [f"{STEM}_layers.csv", f"{STEM}_overall.csv", f"{STEM}_work.csv", "run.json"]


def measured(folder: Path) -> Store:
    """Fill a folder with one size."""
    store = profile_store(folder, STEM)
    with store:
        store.missing(run(), ENVIRONMENT, [], overwrite=True)
        store.begin(run(), ENVIRONMENT, ["x"])
        store.append([OVERALL, LAYER_ROW])
    return store


def test_links_planted_under_temporary_names_are_not_written_through(tmp_path: Path):
    folder, precious = tmp_path / "run", tmp_path / "precious"
    precious.write_text("mine")
    folder.mkdir()
    for name in TABLES:
        (folder / f".{name}.new").symlink_to(precious)
    (folder / f".{lock.NAME}.{os.uname().nodename}.{os.getpid()}").symlink_to(precious)
    measured(folder).mend()
    assert precious.read_text() == "mine"
    assert sorted(path.name for path in folder.iterdir()) == TABLES


def test_links_planted_under_the_names_of_pictures_and_texts_are_replaced_not_followed(tmp_path: Path):
    precious, store = tmp_path / "precious", measured(tmp_path / "run")
    precious.write_text("mine")
    for name in ("violins.png", "table.md"):
        (store.path / name).symlink_to(precious)
    Figures(store.path, print).save("violins", (1, 1), lambda figure: None)
    store.save_text("table.md", "a table")
    assert precious.read_text() == "mine"
    assert (store.path / "table.md").read_text() == "a table\n"
    assert (store.path / "violins.png").read_bytes().startswith(b"\x89PNG")
    assert not (store.path / "violins.png").is_symlink()


@pytest.mark.parametrize("name", TABLES)
def test_a_pipe_in_the_place_of_a_file_is_refused_and_keeps_nobody_waiting(tmp_path: Path, name: str):
    store = measured(tmp_path)
    (tmp_path / name).unlink()
    os.mkfifo(tmp_path / name)
    with pytest.raises(InputError, match=f"{name}.*(it is no file|is not a run.json)"):
        store.read_run(), store.read_all()


def test_a_command_that_is_refused_does_not_touch_what_the_run_at_work_is_writing(tmp_path: Path):
    with profile_store(tmp_path, STEM) as store:
        at_work = table.Replacement(store.files.run, "whole")
        with pytest.raises(InputError, match="is held by process"):
            profile_store(tmp_path, STEM).__enter__()
        at_work.commit()
        assert store.files.run.read_text() == "whole"


def test_what_overwrite_kept_is_not_among_the_results(tmp_path: Path):
    folder = tmp_path / "results" / "3_full" / "alexnet_direct_cpu"
    measured(folder)
    measured(folder)
    (kept,) = folder.glob("before-*")
    assert glob.glob(f"{tmp_path}/results/*/*/*_overall.csv") == [str(folder / f"{STEM}_overall.csv")]
    assert len(profile_store(kept, STEM).read("overall")) == 1
    assert compare.read(kept).overall.keys() == {64}


def test_what_an_older_version_kept_beside_the_folder_stays_readable(tmp_path: Path):
    store = measured(tmp_path / "run")
    kept = mending.keep(store.files, NOW, move=False)
    assert kept is not None
    older = kept.rename(tmp_path / "run.before-20261121T093100Z")
    store.files.run.unlink()  # a version that moved it there was killed just then
    assert mending.finish_keeping(store.files) == (
        f"{store.path}: removed the tables that an interrupted --overwrite left; they are in {older}"
    )
    assert len(profile_store(older, STEM).read("overall")) == 1


def test_copies_that_a_killed_overwrite_had_begun_are_taken_away(tmp_path: Path):
    store = measured(tmp_path)
    (tmp_path / ".before-20261121T093100Z.x").mkdir()
    os.link(store.files.run, tmp_path / ".before-20261121T093100Z.x" / "run.json")
    store.mend()
    assert sorted(path.name for path in tmp_path.iterdir()) == TABLES


@pytest.mark.skipif(not mount_namespaces(), reason="mount namespaces are not permitted here")
def test_a_folder_that_is_a_mount_point_can_be_overwritten(victims: Victims, tmp_path: Path):
    folder, disk, one = tmp_path / "run", tmp_path / "disk", ("--num-sizes", "1")
    folder.mkdir()
    disk.mkdir()
    victims.mount("--bind", str(disk), str(folder))
    assert victims.finish(folder, *one) == 0
    assert victims.finish(folder, *one, "--overwrite") == 0, Path(f"{folder}.log").read_text()
    (kept,) = disk.glob("before-*")
    assert_whole(kept, (32,))
    assert len(profile_store(disk, VICTIM).read("overall")) == 1


def test_a_folder_may_be_given_as_text(tmp_path: Path):
    shutil.copytree(DATA / "schema" / "1_last", tmp_path / "run")
    store = profile_store(f"{tmp_path}/run", STEM)
    assert list(store.read("overall")["input_size"]) == [64, 96]
    assert compare.read(f"{tmp_path}/run").overall.keys() == {64, 96}


def test_what_reads_results_works_without_packages_or_says_which_is_missing(tmp_path: Path):
    def said(*arguments: str) -> tuple[int, str]:
        command = [sys.executable, "-S", "-m", "convscope", *arguments]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        return done.returncode, done.stderr

    assert said("status") == (0, "")
    for name, package in (("compare", "scipy"), ("local", "tqdm")):
        assert said(name, str(tmp_path), str(tmp_path)) == (
            2,
            f"convscope {name}: needs {package}, which {sys.executable} does not have: activate the environment of "
            f"this project, or {sys.executable} -m pip install {package}\n",
        )
    stores = "from convscope.storage.store import Store; import sys; assert 'pandas' not in sys.modules"
    assert subprocess.run([sys.executable, "-S", "-c", stores], cwd=ROOT, check=False).returncode == 0
