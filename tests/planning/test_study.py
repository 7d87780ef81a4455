"""Study files: what one says, what it expands to, and what cannot be."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import pytest
from fakes import ROOT

import run_profile
from convscope.cli import fields
from convscope.errors import InputError
from convscope.planning import study
from convscope.profiling.request import Run, run_elsewhere

NAMES = 'models = ["alexnet"]\nalgorithms = ["gemm"]\n'


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "study.toml"
    path.write_text(text)
    return path


def make(model: str, algorithm: str, gpu: str, settings: Sequence[str]) -> Run:
    flags = fields.flags(settings)
    batch_size = int(flags[flags.index("--batch-size") + 1]) if "--batch-size" in flags else 1
    return run_elsewhere(model, algorithm, gpu=gpu, num_sizes=1, batch_size=batch_size)


def items(tmp_path: Path, text: str, gpu: str | None = None) -> list[study.Item]:
    return study.items(study.read(written(tmp_path, text)), gpu, make, lambda line: None)


def test_lists_multiply_and_name_their_settings_in_each_line(tmp_path: Path):
    lists = 'gpus = ["H200"]\nbatch_sizes = [1, 8]\ndtypes = ["float32", "float16"]\nlayouts = ["nchw"]\n'
    assert study.read(written(tmp_path, NAMES + lists)).lines() == [
        ("alexnet", "gemm", "h200", f"batch_size={batch_size}", f"dtype={dtype}", "layout=nchw")
        for dtype in ("float32", "float16")
        for batch_size in (1, 8)
    ]


def test_sizes_and_settings_stand_in_every_line(tmp_path: Path):
    more = 'gpus = ["l40s"]\nno-energy = true\nlayer-energy = false\nenergy_budget = 2\nmax-workspace = "512MB"\n'
    path = written(tmp_path, NAMES + more + "[sizes]\ncount = 25\nrange = [64, 128]\n")
    settings = "num_sizes=25", "input_range=64 128", "max_workspace=512MB", "no_energy=true", "energy_budget=2"
    assert study.read(path).lines() == [("alexnet", "gemm", "l40s", *settings)]
    flags = "--num-sizes 25 --input-range 64 128 --max-workspace 512MB --no-energy --energy-budget 2"
    assert fields.flags(settings) == flags.split()


def test_shapes_are_a_list_of_their_own(tmp_path: Path):
    lines = study.read(written(tmp_path, NAMES + 'gpus = ["l40s"]\ninput_shapes = ["480x640", "64X32"]\n')).lines()
    assert [line[3:] for line in lines] == [("input_shape=480x640",), ("input_shape=64x32",)]


def test_a_list_of_sizes_is_one_field(tmp_path: Path):
    (line,) = study.read(written(tmp_path, NAMES + 'gpus = ["l40s"]\n[sizes]\nlist = [224, 320]\n')).lines()
    assert line[3:] == ("input_size=224,320",)
    assert run_profile.parser().parse_args(fields.flags(line[3:])).input_sizes == [224, 320]


def test_a_file_without_gpus_is_for_the_one_that_is_named(tmp_path: Path):
    found = study.read(written(tmp_path, NAMES))
    assert found.lines("H200") == [("alexnet", "gemm", "h200")]
    with pytest.raises(InputError, match=r"study.toml names no GPUs: add gpus = \[\"h200\"\], or say which with --gpu"):
        found.lines()


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("models = [", "cannot be read"),
        ('algorithms = ["gemm"]', 'models is missing: write models = ["NAME"]'),
        (NAMES + "colour = 1", "unknown key 'colour': choose of models, algorithms"),
        (NAMES + "batch_sizes = 8", "batch_sizes is 8: it must be a list, each entry a whole number"),
        (NAMES + "batch_sizes = [true]", "each entry a whole number"),
        (NAMES + "batch_sizes = []", "it must be a list"),
        (NAMES + "batch_sizes = [8, 8]", "batch_sizes has an entry twice"),
        (NAMES + 'dtypes = ["int8"]', "dtypes has 'int8': choose of float32, float16, bfloat16"),
        (NAMES + 'warmup = "5"', "warmup is '5': it must be a whole number"),
        (NAMES + "seed = -1", "seed is -1: it must not be negative"),
        (NAMES + 'math = ["tf32", "fp32"]', "it must be text in quotes"),
        (NAMES + 'provider = "cudnn; rm"', "is no setting"),
        (NAMES + "sizes = 5", "write [sizes]"),
        (NAMES + "[sizes]\nnumber = 5", "[sizes] has an unknown key 'number': choose of count, range, list"),
        (NAMES + "[sizes]\nrange = [1]", "write smallest and largest size"),
        (NAMES + "[sizes]\nlist = [224, 224]", "list has an entry twice"),
        (NAMES + "[sizes]\nlist = [224]\ncount = 1", "list and the other keys of [sizes] exclude each other"),
        (NAMES + 'input_shapes = ["5"]\n', "say height and width in pixels"),
        (NAMES + 'input_shapes = ["5x6"]\n[sizes]\ncount = 1', "input_shapes and [sizes] exclude each other"),
        ('models = ["vgg61"]\nalgorithms = ["gemm"]', "unknown model 'vgg61'"),
        ('models = ["vgg16"]\nalgorithms = ["gem"]', "unknown algorithm 'gem'"),
    ],
)
def test_what_cannot_be_is_said_with_the_name_of_the_file(tmp_path: Path, text: str, why: str):
    with pytest.raises(InputError, match=r"study\.toml") as said:
        study.read(written(tmp_path, text))
    assert why in str(said.value)


def test_a_file_that_is_not_there_is_named(tmp_path: Path):
    with pytest.raises(InputError, match=r"--study .*nowhere.toml cannot be read"):
        study.read(tmp_path / "nowhere.toml")


def test_what_a_rule_excludes_is_a_comment_with_the_reason(tmp_path: Path):
    text = (
        'models = ["resnet50"]\nalgorithms = ["gemm", "smm", "winograd"]\ngpus = ["h200", "cpu"]\nbatch_sizes = [8]\n'
    )
    texts = [item.text for item in items(tmp_path, text)]
    assert texts[0] == "resnet50\tgemm\th200\tbatch_size=8"
    assert texts[1] == "# resnet50, gemm, cpu, batch 8: gemm needs a CUDA device"
    assert texts[2].startswith("# resnet50, smm, h200, batch 8: smm runs on a CPU only")
    assert texts[3] == "resnet50\tsmm\tcpu\tbatch_size=8"
    assert texts[4].startswith("# resnet50, winograd, h200, batch 8: winograd needs 3×3 kernels with stride 1")


def test_a_data_type_or_layout_that_an_algorithm_lacks_is_a_comment_too(tmp_path: Path):
    text = 'models = ["alexnet"]\nalgorithms = ["gemm", "fft tiling"]\ngpus = ["h200"]\n'
    texts = [item.text for item in items(tmp_path, text + 'layouts = ["nchw", "nhwc"]\ndtypes = ["bfloat16"]\n')]
    assert texts == [
        "alexnet\tgemm\th200\tdtype=bfloat16\tlayout=nchw",
        "alexnet\tgemm\th200\tdtype=bfloat16\tlayout=nhwc",
        "# alexnet, fft tiling, h200, bfloat16: fft tiling needs float32 or float16",
        "# alexnet, fft tiling, h200, bfloat16, nhwc: fft tiling needs float32 or float16",
    ]
    on_cpu = items(tmp_path, 'models = ["alexnet"]\nalgorithms = ["direct"]\ngpus = ["cpu"]\nlayouts = ["nhwc"]\n')
    assert on_cpu[0].why_not == "ai3 computes direct on a CPU in float32 and NCHW only"


def test_a_setting_that_no_run_can_have_is_an_error_and_no_comment(tmp_path: Path):
    with pytest.raises(InputError, match=r"study.toml: --batch-size 0: it must be at least 1"):
        items(tmp_path, NAMES + 'gpus = ["h200"]\nbatch_sizes = [0]\n')


def test_every_setting_of_a_study_is_an_option_of_the_command():
    known = run_profile.parser()
    values = {str: "tf32", int: "1", float: "1"}
    choices = {"unsupported": "skip", "provider": "cudnn"}
    for name, kind in study.SETTINGS.items():
        field = (
            f"{name}=true" if kind is bool else f"{name}={choices.get(name, values[kind])}" if kind in values else ""
        )
        assert isinstance(known.parse_args(fields.flags([field])), argparse.Namespace)


def test_the_example_is_a_study():
    found = study.read(ROOT / "examples" / "study.toml")
    assert len(found.lines()) == 3 * 4 * 2 * 3
    assert found.lines()[0][3:] == (
        *("batch_size=1", "num_sizes=25", "input_range=224 512"),
        *("measure=20", "math=fp32", "unsupported=error"),
    )


def test_models_of_every_kind_make_a_study_and_have_an_estimate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(ROOT / "tests" / "fakes")
    models = 'models = ["own_models.py:Branch,width=2", "own_models.py:pair", "/nowhere/net.py:make"]\n'
    path = written(tmp_path, models + 'algorithms = ["gemm"]\ngpus = ["h200"]\n')
    assert run_profile.main(["--study", str(path), "--estimate"]) == 1
    said = capsys.readouterr()
    assert "h200: no estimate for 1 of 3 runs" in said.out
    rows = {line.split(", gemm")[0]: line.split("h200")[1].split()[:2] for line in said.out.splitlines()[1:4]}
    assert {model: sizes for model, (sizes, _) in rows.items()} == {
        "own_models.py:Branch,width=2": "100",
        "own_models.py:pair": "1",
        "/nowhere/net.py:make": "100",
    }
    assert rows["/nowhere/net.py:make"][1] == "-"
    assert "/nowhere/net.py:make is not checked here (there is no folder /nowhere on this machine)" in said.err
