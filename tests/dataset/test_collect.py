"""Collection of a data set: what is covered, in which order, what is kept, and a real one on the CPU."""

from __future__ import annotations

import csv
import dataclasses
import itertools
import json
import shutil
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import run_dataset
from convscope.atlas import turns
from convscope.atlas.rows import PLANS
from convscope.dataset import calls, samples
from convscope.dataset.collect import coverage, study, traced, uses
from convscope.dataset.collect.coverage import Stratum
from convscope.dataset.collect.group import ABOUT, STATUS, TABLE, GroupFolder
from convscope.dataset.collect.request import FAMILIES, SETTINGS, Collection, processes_for
from convscope.dataset.collect.study import CollectStudy
from convscope.dataset.columns import STATUSES
from convscope.errors import InputError
from convscope.storage import table

SQUEEZE = "torchvision:squeezenet1_1"
ASKED = Collection(
    device="cuda:0", models=(SQUEEZE, "alexnet"), sizes=(64, 96), batch_sizes=(1, 8), settings=tuple(SETTINGS), first=4,
    rounds=2, seed=0, group_shapes=10, group_bytes=2**33, energy_every=0,
)  # fmt: skip


def unstopped() -> bool:
    return False


def collecting(folder: Path, **changes: object) -> tuple[CollectStudy, list[str]]:
    notes: list[str] = []
    asked = dataclasses.replace(ASKED, **changes)  # type: ignore[arg-type]
    return CollectStudy(asked, folder, unstopped, notes.append), notes  # type: ignore[arg-type]


def test_every_shape_is_in_one_group():
    found = [*coverage.groups(ASKED, set())]
    keys = [(group.stratum.setting, key) for group in found for key in group.keys]
    assert len(keys) == len(set(keys))
    wanted = {(each.setting, key) for each in coverage.strata(ASKED) for key in coverage.shapes_of(ASKED, each)}
    assert set(keys) == wanted
    assert all(len(group.keys) <= 10 for group in found)


def test_the_first_groups_are_of_each_setting_and_batch_size():
    found = [group.stratum for group, _ in zip(coverage.groups(ASKED, set()), range(6), strict=False)]
    assert found == coverage.strata(ASKED)
    assert len({(each.setting, each.batch_size) for each in found}) == 6


def test_a_group_has_shapes_of_many_models_and_sizes():
    asked = dataclasses.replace(ASKED, models=("resnet50", "vgg16", SQUEEZE), sizes=(64, 96, 128), group_shapes=64)
    first = next(coverage.groups(asked, set()))
    assert len(first.keys) == 64
    assert len({(use.model, use.input_size) for use in first.uses}) >= 8
    by_model = [use.model for use in first.uses]
    assert max(len([*run]) for _, run in itertools.groupby(by_model)) <= 3 * coverage.TURN_SHAPES


def test_grouped_convolutions_are_ahead_of_the_others_in_a_group():
    asked = dataclasses.replace(ASKED, models=("torchvision:regnet_y_400mf",), sizes=(128,), group_shapes=32)
    first = next(coverage.groups(asked, set()))
    grouped = [use.key[-1] != "1" for use in first.uses]
    assert 4 <= sum(grouped) < len(grouped)
    assert grouped == sorted(grouped, reverse=True)
    assert first.keys == tuple(use.key for use in first.uses)
    assert [line.split(",")[1:] for line in first.table().splitlines()[1:]] == [[*key] for key in first.keys]


def test_groups_are_the_same_in_each_start_and_leave_out_what_is_known():
    first = [*coverage.groups(ASKED, set())]
    assert first == [*coverage.groups(ASKED, set())]
    assert first != [*coverage.groups(dataclasses.replace(ASKED, seed=1), set())]
    known = {(group.stratum.setting, key) for group in first[:6] for key in group.keys}
    rest = {(group.stratum.setting, key) for group in coverage.groups(ASKED, known) for key in group.keys}
    assert not known & rest
    assert len(known | rest) == sum(len(group.keys) for group in first)


def test_parts_share_the_shapes_among_them():
    found = []
    for number in (1, 2, 3):
        asked = dataclasses.replace(ASKED, part=(number, 3))
        keys = {(group.stratum.setting, key) for group in coverage.groups(asked, set()) for key in group.keys}
        listed = {(each.setting, key) for each in coverage.strata(asked) for key in coverage.shapes_of(asked, each)}
        assert keys == listed
        found.append(keys)
    every = {(group.stratum.setting, key) for group in coverage.groups(ASKED, set()) for key in group.keys}
    assert set.union(*found) == every
    assert sum(map(len, found)) == len(every)
    assert min(map(len, found)) > len(every) / 5


def test_a_part_has_a_folder_of_its_own(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    flags = ["--models", "alexnet", "--sizes", "64", "--device", "cpu", "--list"]
    asked: list[Path] = []
    monkeypatch.setattr(CollectStudy, "done", lambda self: asked.append(self.folder) or set())
    for part in ("1/1", "2/3"):
        assert run_dataset.main([*flags, "--part", part]) == 0
    assert [folder.name for folder in asked] == ["cpu", "cpu_part2of3"]
    assert capsys.readouterr().out.count("fp32") == 6


def test_a_group_ends_where_memory_would_and_a_larger_shape_is_one_of_its_own():
    least = dataclasses.replace(ASKED, group_bytes=1)
    assert {len(group.keys) for group in coverage.groups(least, set())} == {1}


def test_groups_with_energy_are_small_and_every_nth_counting_those_before():
    asked = dataclasses.replace(ASKED, energy_every=3)
    found = [group for group, _ in zip(coverage.groups(asked, set(), begun=2), range(7), strict=False)]
    assert [group.energy for group in found] == [True, False, False, True, False, False, True]
    assert all(len(group.keys) <= coverage.ENERGY_SHAPES for group in found if group.energy)


def test_a_model_that_does_not_take_a_size_has_no_shapes_there():
    assert uses.uses_of("alexnet", 64)
    assert uses.uses_of("alexnet", 8) == ()


def test_the_default_models_are_of_thirteen_kinds_and_all_known():
    models = [name for each in FAMILIES.values() for name in each]
    assert len(FAMILIES) >= 12
    assert len(dataclasses.replace(ASKED, models=tuple(models)).models) == len(set(models))


def test_a_group_comes_back_from_its_folder(tmp_path: Path):
    group = next(coverage.groups(ASKED, set()))
    written = GroupFolder.create(tmp_path / "0001", group)
    assert GroupFolder.read(tmp_path / "0001") == written
    assert (tmp_path / "0001" / TABLE).read_text().splitlines()[1].startswith("s0,1,")
    flags = written.flags(4, 5, "cuda:0")
    assert flags[flags.index("--math") + 1] == "fp32"
    assert "--energy" not in flags
    (tmp_path / "0001" / ABOUT).write_text("{")
    with pytest.raises(InputError, match=r"group.json is damaged .*: remove the folder"):
        GroupFolder.read(tmp_path / "0001")


@pytest.fixture(scope="module")
def collected(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real collection of two groups on the CPU, side by side; the first was begun by a start that ended at once."""
    folder = tmp_path_factory.mktemp("dataset")
    asked = dataclasses.replace(
        ASKED, device="cpu", models=("alexnet",), sizes=(64,), batch_sizes=(1,), settings=("fp32",), group_shapes=3
    )
    begun = next(coverage.groups(asked, set()))
    GroupFolder.create(folder / "groups" / f"0001_{begun.stratum}", begun)
    assert run_dataset.main(command(folder, "--processes", "2")) == 0
    return folder


def command(folder: Path, *more: str) -> list[str]:
    what = ["--models", "alexnet", "--sizes", "64", "--batch-sizes", "1", "--rounds", "2", "--group-shapes", "3"]
    return [*what, "--device", "cpu", "--output-dir", str(folder), *more]


def test_what_was_begun_goes_on_and_all_is_measured(collected: Path):
    assert sorted(each.name for each in (collected / "groups").iterdir()) == ["0001_fp32_b1", "0002_fp32_b1"]
    found = samples.read([collected / "samples.csv"])
    assert len(found) == 5 * 3
    assert set(found["algorithm"]) == {"direct", "smm", "torch"}
    assert set(found["family"]) == {"alexnet"}
    assert found["gpu_name"].notna().all()
    assert set(found["layer"]) == {f"features.{number}" for number in (0, 3, 6, 8, 10)}
    assert calls.read([collected / "calls.csv"]) == traced.calls([("alexnet", 64)])
    measured = found[found["status"] == "ok"]
    assert (measured["mean_ms"] > 0).all()
    assert (measured["relative_error"] < 1e-5).all()
    assert set(measured.query("algorithm == 'direct'")["ran_provider"]) == {"ai3"}
    first = measured[measured["layer"] == "features.0"].iloc[0]
    assert (first["kernel_size"], first["stride"], first["in_height_px"], first["math"]) == ("11x11", "4x4", 64, "fp32")


def test_a_second_start_measures_nothing(collected: Path, monkeypatch: pytest.MonkeyPatch):
    def ran(*given: object) -> int:
        raise AssertionError("nothing is left to measure")

    monkeypatch.setattr(CollectStudy, "_ran", ran)
    before = (collected / "samples.csv").read_bytes()
    assert run_dataset.main(command(collected)) == 0
    assert (collected / "samples.csv").read_bytes() == before


def test_the_list_says_how_much_is_left(collected: Path, capsys: pytest.CaptureFixture[str]):
    assert run_dataset.main([*command(collected, "--list"), "--sizes", "64", "96"]) == 0
    assert capsys.readouterr().out.splitlines()[1].split() == ["fp32", "1", "10", "5", "5"]


def test_the_list_is_printed_for_programs_too(collected: Path, capsys: pytest.CaptureFixture[str]):
    assert run_dataset.main([*command(collected, "--list", "--json"), "--sizes", "64", "96"]) == 0
    part = {"setting": "fp32", "batch_size": 1, "shapes": 10, "measured": 5, "left": 5}
    assert json.loads(capsys.readouterr().out)[0] == part
    with pytest.raises(SystemExit):
        run_dataset.main(command(collected, "--json"))
    assert "--json goes with --list" in capsys.readouterr().err


@pytest.mark.usefixtures("no_gpu")
def test_what_a_gpu_would_measure_is_listed_where_there_is_none(collected: Path, capsys: pytest.CaptureFixture[str]):
    asked = ["--models", "alexnet", "--sizes", "64", "--batch-sizes", "1", "--device", "cuda"]
    assert run_dataset.main([*asked, "--list"]) == 0
    printed = capsys.readouterr()
    parts = [line.split() for line in printed.out.splitlines()[1:]]
    assert parts == [[setting, "1", "5", "0", "5"] for setting in SETTINGS]
    assert printed.err == "run_dataset.py: no GPU is here: --output-dir names the folder whose samples are counted\n"
    assert run_dataset.main([*asked, "--list", "--output-dir", str(collected)]) == 0
    printed = capsys.readouterr()
    assert [line.split()[-2:] for line in printed.out.splitlines()[1:]] == [["5", "0"], ["0", "5"], ["0", "5"]]
    assert printed.err == ""
    assert run_dataset.main(asked) == 2
    assert "--device cuda: PyTorch sees 0 CUDA devices here" in capsys.readouterr().err


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[list[str]]]:
    """Commands that would measure; each ends with the next code of `codes`."""
    ran: list[list[str]] = []

    def end(self: CollectStudy, given: list[str], log: Path) -> int:
        ran.append(given)
        return 70

    monkeypatch.setattr(CollectStudy, "_ran", end)
    return ran


def test_a_group_that_loses_the_gpu_each_time_is_left_and_said(tmp_path: Path, measured: list[list[str]]):
    asked = {"models": ("alexnet",), "sizes": (64,), "batch_sizes": (1,), "settings": ("tf32",)}
    collection, notes = collecting(tmp_path, **asked)
    assert collection.run() == 1
    assert len(measured) == study.STARTS_MOST
    assert notes[-1].startswith("0001_tf32_b1 could not be measured: see ")
    assert not (tmp_path / "samples.csv").exists()


def test_a_group_that_fails_otherwise_is_tried_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    codes = iter((1, 2))
    monkeypatch.setattr(CollectStudy, "_ran", lambda self, command, log: next(codes))
    asked = {"models": ("alexnet",), "sizes": (64,), "batch_sizes": (1,), "settings": ("tf32",), "group_shapes": 3}
    collection, notes = collecting(tmp_path, **asked)
    assert collection.run() == 1
    assert [line.partition(" ")[0] for line in notes[-2:]] == ["0001_tf32_b1", "0002_tf32_b1"]


def test_tables_of_a_start_with_other_flags_that_never_ended_hide_nothing(collected: Path, tmp_path: Path):
    group = tmp_path / "0001"
    shutil.copytree(collected / "groups" / "0001_fp32_b1", group)
    whole = next(each for each in group.iterdir() if (each / "plans.csv").exists())
    (group / "a first one").mkdir()
    shutil.copy(whole / "run.json", group / "a first one" / "run.json")
    assert len(GroupFolder.read(group).samples()) == 3 * 3


def test_a_candidate_that_became_one_after_the_rounds_is_no_sample(collected: Path, tmp_path: Path):
    """A start that goes on may find right what an earlier one had left out: it works, and no round has timed it."""
    group = tmp_path / "0001"
    shutil.copytree(collected / "groups" / "0001_fp32_b1", group)
    (plans,) = group.glob("*/plans.csv")
    rows = table.rows(plans, PLANS.tables["plans"])
    rows[0].update(dict.fromkeys(("mean_ms", "std_ms"), ""), rounds="0")
    with plans.open("w", newline="") as file:
        writer = csv.DictWriter(file, [*rows[0]])
        writer.writeheader()
        writer.writerows(rows)
    found = GroupFolder.read(group).samples()
    assert len(found) == 3 * 3 - 1
    assert samples.write(tmp_path / "samples.csv", found) == len(samples.read([tmp_path / "samples.csv"]))


def test_every_outcome_of_an_atlas_is_a_status_that_samples_may_have():
    assert sorted(STATUS.values()) == sorted(STATUSES)


def test_groups_under_way_at_once_take_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    under_way: list[Path] = []
    most: list[int] = []
    files: set[str] = set()
    together = threading.Barrier(3)

    def end(self: CollectStudy, given: list[str], log: Path) -> int:
        under_way.append(log)
        if self.asked.processes == 3:
            together.wait(30)
        most.append(len(under_way))
        if self.asked.processes == 3:
            together.wait(30)
        under_way.remove(log)
        files.add(given[given.index("--turns") + 1])
        return 1

    monkeypatch.setattr(CollectStudy, "_ran", end)
    for processes, count in ((1, 1), (3, 3)):
        collection, notes = collecting(tmp_path / str(processes), processes=processes, models=("alexnet",))
        collection.gpu_uuid = "GPU-1"
        assert collection.run() == 1
        assert max(most) == count
        assert [sum(word in line for line in notes) for word in (" took ", "could not be measured")] == [6, 6]
        most.clear()
    assert files == {str(turns.file_of("GPU-1"))}  # of every collection on this GPU


def test_what_processes_of_one_gpu_share_is_named_by_its_uuid(monkeypatch: pytest.MonkeyPatch):
    h200 = SimpleNamespace(name="NVIDIA H200", uuid=uuid.UUID(int=5), total_memory=140 * 2**30)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: h200)
    assert run_dataset._card(torch.device("cuda:1")) == (f"GPU-{uuid.UUID(int=5)}", 140 * 2**30)
    assert run_dataset._card(torch.device("cpu")) == (None, None)
    options = run_dataset.parser().parse_args([])
    assert run_dataset._request(options, "cuda:1", 40 * 2**30).processes == 2


def test_processes_are_as_many_as_the_memory_holds_groups_twice():
    found = {gib: processes_for("cuda", gib * 2**30) for gib in (8, 16, 24, 40, 80, 140)}
    assert found == {8: 1, 16: 1, 24: 1, 40: 2, 80: 4, 140: 4}
    assert (processes_for("cuda", None), processes_for("cpu", None)) == (4, 1)


def test_an_error_of_one_group_ends_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def ends(self: CollectStudy, given: list[str], log: Path) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(CollectStudy, "_ran", ends)
    collection, _ = collecting(tmp_path, processes=2, group_shapes=1)
    with pytest.raises(OSError, match="No space left"):
        collection.run()
    assert len([*(tmp_path / "groups").iterdir()]) <= 2


def test_no_group_begins_that_would_end_after_the_time(tmp_path: Path, measured: list[list[str]]):
    collection, notes = collecting(tmp_path)
    collection.budget_s = 1e-9
    assert collection.run() == 1
    assert len([*(tmp_path / "groups").iterdir()]) == 2  # the second is begun by the next start
    assert any(line == "the time is up: run the same command again to continue" for line in notes)
    assert float(measured[0][measured[0].index("--minutes") + 1]) == 1.0


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (["--settings", "tf32"], "--settings tf32: ai3 computes fp32 alone on a CPU"),
        (["--settings", "int8"], "--settings int8: choose some of fp32 tf32 float16,nhwc"),
        (["--sizes", "0"], "--sizes 0"),
        (["--sizes", "224", "224"], "--sizes 224 224: a number stands twice, say each once"),
        (["--batch-sizes", "1", "8", "1"], "--batch-sizes 1 8 1: a number stands twice"),
        (["--models", "resnet51"], "unknown model 'resnet51'"),
        (["--budget-minutes", "0"], "--budget-minutes 0.0: say how many minutes, above 0"),
        (["--rounds", "1"], "--rounds 1"),
        (["--processes", "0"], "--processes 0"),
        (["--drawn", "-1"], "--drawn -1"),
        (["--part", "3/2"], "--part 3/2: say which of how many, 1/2 and 2/2 for two"),
    ],
)
def test_bad_input_is_one_line(flags: list[str], reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert run_dataset.main([*command(tmp_path), *flags]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert reason in error


@pytest.mark.parametrize("text", ["2", "1/2/3", "a/b", "/"])
def test_a_part_that_is_none_is_one_line(text: str, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit, match="2"):
        run_dataset.main(["--part", text])
    assert f"argument --part: '{text}' is not I/N, as in 1/2" in capsys.readouterr().err


@pytest.mark.parametrize("flags", [[], ["--list"]])
def test_models_that_take_none_of_the_sizes_are_one_line(
    flags: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    assert run_dataset.main([*command(tmp_path), *flags, "--sizes", "8", "16"]) == 2
    assert capsys.readouterr().err == (
        "run_dataset.py: alexnet: no convolution to measure at --sizes 8 16: name sizes that the model takes\n"
    )
    asked = ["--models", "alexnet", SQUEEZE, "--sizes", "32", "--list"]
    assert run_dataset.main([*command(tmp_path), *asked]) == 0
    printed = capsys.readouterr()
    assert printed.err == (
        "run_dataset.py: alexnet: no convolution to measure at --sizes 32: name sizes that the model takes\n"
    )
    assert int(printed.out.split()[-3]) > 5


def test_a_stratum_reads_as_a_folder_does():
    assert str(Stratum("float16,nhwc", 8)) == "float16_nhwc_b8"
    assert json.dumps(dataclasses.asdict(Stratum("tf32", 1))) == '{"setting": "tf32", "batch_size": 1}'
