"""Shapes that existing samples have a time of: they are counted, and a collection beside them measures the others."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import run_dataset
from convscope.dataset import samples
from convscope.dataset.collect import known, study, uses
from convscope.dataset.collect.coverage import Group, Stratum
from convscope.dataset.collect.group import GroupFolder
from convscope.dataset.collect.request import SETTINGS
from convscope.dataset.samples import SHAPE, SampleRow
from convscope.errors import InputError
from convscope.storage import wording
from convscope.storage.environment import processor_name
from convscope.timing.stopwatch import CPU_METHOD

KEYS = [uses.key_of(layer) for layer, _ in uses.uses_of("alexnet", 64)]
ASKED = ["--models", "alexnet", "--sizes", "64", "--batch-sizes", "1", "--device", "cpu", "--rounds", "2"]


def sample(key: uses.Key, **changes: object) -> SampleRow:
    cells = {name: int(cell) if cell.isdecimal() else cell for name, cell in zip(SHAPE, key, strict=True)}
    given = {"gpu_name": processor_name(), "algorithm": "torch", "run": "a", "mean_ms": 1.0, **SETTINGS["fp32"]}
    return SampleRow(**{**given, **cells, **changes})  # type: ignore[arg-type]


@pytest.fixture
def timed(tmp_path: Path) -> Path:
    """Times of three of the five shapes, an energy alone of the fourth, and a refusal of the fifth."""
    rows = [sample(key) for key in KEYS[:3]]
    rows.append(sample(KEYS[3], mean_ms=None, energy_j=1.0))
    rows.append(sample(KEYS[4], mean_ms=None, status="unsupported", reason="not here"))
    samples.write(tmp_path / "known.csv", rows)
    return tmp_path / "known.csv"


def test_a_shape_with_a_time_is_known_in_its_setting(timed: Path):
    assert known.shapes([timed], processor_name()) == {("fp32", key) for key in KEYS[:3]}
    assert known.shapes([timed], None) == {("fp32", key) for key in KEYS[:3]}


def test_a_sample_without_sizes_beside_them_changes_nothing(timed: Path, tmp_path: Path):
    bare = sample(KEYS[4], in_height_px=None, in_width_px=None, stride=None, padding=None, dilation=None, groups=None)
    samples.write(tmp_path / "bare.csv", [bare])
    assert known.shapes([timed, tmp_path / "bare.csv"], None) == {("fp32", key) for key in KEYS[:3]}


def test_samples_of_another_device_are_refused(timed: Path):
    with pytest.raises(InputError, match=re.escape(f"samples of {processor_name()}, this is NVIDIA H200")):
        known.shapes([timed], "NVIDIA H200")


def test_arithmetic_that_is_not_collected_is_not_counted(tmp_path: Path):
    rows = [sample(KEYS[0], math="tf32"), sample(KEYS[1], dtype="bfloat16")]
    samples.write(tmp_path / "known.csv", rows)
    assert known.shapes([tmp_path / "known.csv"], None) == {("tf32", KEYS[0])}


def test_what_an_earlier_version_timed_otherwise_is_not_known(tmp_path: Path):
    methods = samples.SHARE, samples.EVICTED, samples.IN_A_PASS, [*wording.PRESENT][4]
    rows = [sample(key, timing_method=method) for key, method in zip(KEYS[:4], methods, strict=True)]
    samples.write(tmp_path / "known.csv", rows)
    assert known.shapes([tmp_path / "known.csv"], None) == {("fp32", KEYS[0])}


@pytest.mark.long
def test_what_is_known_is_counted_and_the_others_are_measured(
    timed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    command = [*ASKED, "--known", str(timed), "--output-dir", str(tmp_path / "new")]
    assert run_dataset.main([*command, "--list"]) == 0
    assert capsys.readouterr().out.splitlines()[1].split() == ["fp32", "1", "5", "3", "2"]
    assert run_dataset.main(command) == 0
    assert capsys.readouterr().out.splitlines()[-2].split() == ["fp32", "1", "5", "5", "0"]
    found = samples.read([tmp_path / "new" / "samples.csv"])
    keys = {tuple(map(str, each)) for each in found[[*SHAPE]].itertuples(index=False, name=None)}
    assert keys == set(KEYS[3:])


def test_a_file_that_is_none_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert run_dataset.main([*ASKED, "--known", str(tmp_path / "none.csv"), "--output-dir", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "none.csv does not exist: name a file of samples" in error


@pytest.mark.long
def test_the_shapes_that_earlier_versions_alone_timed_are_measured_anew_for_the_models_that_they_are_of(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    of_a_model = {"model": "alexnet", "family": "alexnet", "input_size": 64, "timing_method": samples.EVICTED}
    rows = [sample(key, layer=f"features.{number}", **of_a_model) for number, key in enumerate(KEYS[:3])]
    rows += [sample(KEYS[0], timing_method=CPU_METHOD, run="b"), sample(KEYS[1], timing_method=samples.IN_A_PASS)]
    rows += [sample(("1", "8", "8", "9", "9", "1x1", "1x1", "0x0", "1x1", "1"), timing_method=samples.IN_A_PASS)]
    earlier, new = tmp_path / "earlier.csv", tmp_path / "new"
    samples.write(earlier, rows)
    command = ["--renew", str(earlier), "--device", "cpu", "--rounds", "2", "--output-dir", str(new)]
    assert run_dataset.main([*command, "--list"]) == 0
    assert capsys.readouterr().out.splitlines()[1].split() == ["fp32", "1", "3", "0", "3"]
    assert run_dataset.main([*command, "--batch-sizes", "1"]) == 0
    found = samples.read([new / "samples.csv"])
    assert {*found.loc[found["in_channels"] != 8, "model"]} == {"alexnet"}
    assert {*found.loc[found["in_channels"] != 8, "layer"]} == {"features.1", "features.2"}
    assert {*found.loc[found["in_channels"] == 8, "model"]} == {None}
    capsys.readouterr()
    assert run_dataset.main(["--renew", str(new / "samples.csv"), "--device", "cpu", "--list", "--json"]) == 0
    said = capsys.readouterr()
    assert "there is nothing to renew" in said.err
    assert [each["shapes"] for each in json.loads(said.out)] == [0, 0, 0]
    other = Group.of(Stratum("fp32", 1), [uses.uses_of("alexnet", 71)[0][1]], energy=False)
    GroupFolder.create(new / "groups" / "0002_fp32_b1", other)
    assert run_dataset.main(command) == 2
    assert "--output-dir names a folder of its own for what is renewed" in capsys.readouterr().err


def test_batch_sizes_are_those_of_what_is_renewed(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    rows = [sample((str(batch), *KEYS[1][1:]), timing_method=samples.EVICTED) for batch in (64, 1)]
    samples.write(tmp_path / "of_64.csv", rows)
    command = ["--renew", str(tmp_path / "of_64.csv"), "--device", "cpu", "--list"]
    assert run_dataset.main(command) == 0
    assert [line.split() for line in capsys.readouterr().out.splitlines()[1:]] == [
        ["fp32", "1", "1", "0", "1"],
        ["fp32", "64", "1", "0", "1"],
    ]
    assert run_dataset.main([*command, "--batch-sizes", "8"]) == 2
    assert "no shape to renew is of these" in capsys.readouterr().err


def test_no_code_is_run_because_samples_that_are_renewed_name_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    code = f"open({str(tmp_path / 'ran')!r}, 'w').close()\nimport torch\ndef make(): return torch.nn.Conv2d(3, 8, 3)\n"
    (tmp_path / "own.py").write_text(code)
    own = {"model": f"{tmp_path / 'own.py'}:make", "family": "own", "input_size": 64, "layer": "0"}
    rows = [sample(KEYS[1], **own)]
    samples.write(tmp_path / "own.csv", [sample(KEYS[1], timing_method=samples.EVICTED, **own)])
    monkeypatch.setattr(study.CollectStudy, "_measured", lambda self, group, began_s: True)
    monkeypatch.setattr(GroupFolder, "samples", lambda self: rows)
    new = tmp_path / "new"
    command = ["--renew", str(tmp_path / "own.csv"), "--device", "cpu", "--output-dir", str(new)]
    assert run_dataset.main(command) == 0
    assert {*samples.read([new / "samples.csv"])["layer"]} == {"0"}
    assert len((new / "calls.csv").read_text().splitlines()) == 1
    assert not (tmp_path / "ran").exists()


def test_without_a_gpu_samples_of_two_cards_are_not_mixed(tmp_path: Path):
    samples.write(tmp_path / "two.csv", [sample(KEYS[0], gpu_name=name) for name in ("NVIDIA H100", "NVIDIA H200")])
    with pytest.raises(InputError, match="samples of NVIDIA H100, NVIDIA H200: name those of one device"):
        known.shapes([tmp_path / "two.csv"], None)


@pytest.mark.parametrize("flag", [["--models", "alexnet"], ["--sizes", "64"], ["--drawn", "4"]])
def test_shapes_are_renewed_or_of_models_or_drawn(flag: list[str], capsys: pytest.CaptureFixture[str]):
    assert run_dataset.main(["--renew", "samples.csv", *flag]) == 2
    assert f"{flag[0]} does not go with --renew" in capsys.readouterr().err


def test_a_shape_that_does_not_exist_is_not_renewed(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    samples.write(tmp_path / "no.csv", [sample(KEYS[1], kernel_size="99x99", timing_method=samples.EVICTED)])
    assert run_dataset.main(["--renew", str(tmp_path / "no.csv"), "--device", "cpu"]) == 2
    assert (
        "no.csv: no convolution has one of its shapes: the kernel (99, dilation 1) is larger than"
        in capsys.readouterr().err
    )
