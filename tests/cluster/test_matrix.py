"""A file of combinations: read, cut into arrays; and how such a file comes about."""

from __future__ import annotations

from pathlib import Path

import pytest
from fakes import ROOT

from convscope.cluster import matrix, submission
from convscope.cluster.submission import Work
from convscope.errors import InputError
from convscope.profiling import listing
from convscope.storage.paths import Combination

WHO = Combination("alexnet", "fft", "h200")


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "matrix.tsv"
    path.write_text(text)
    return path


def test_a_line_is_model_algorithm_and_gpu_and_each_counts_once(tmp_path: Path):
    path = written(tmp_path, "# comment\n\nalexnet\tfft_tiling\th200\nalexnet\tfft tiling\th200\nvgg16\tgemm\n")
    assert matrix.read(path, "l40s") == [
        Combination("alexnet", "fft tiling", "h200"),
        Combination("vgg16", "gemm", "l40s"),
    ]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("alexnet\tfft\n", "line 1 names no GPU"),
        ("alexnet fft h200\n", "is not model, algorithm, GPU, separated by tabs"),
        ("$(touch x)\tfft\th200\n", "unknown model"),
        ("alexnet\tnone\th200\n", "none"),
        ("# nothing\n", "has no combination"),
        ("alexnet\tfft\th200\tbatch_size=8;x\n", "is no setting"),
        ("alexnet\tfft\th200\tbatch_size=8\tbatch_size=1\n", "has a setting twice"),
    ],
)
def test_a_line_that_is_no_combination_is_named(tmp_path: Path, text: str, why: str):
    with pytest.raises(InputError, match=why.replace("(", r"\(")):
        matrix.read(written(tmp_path, text))


def test_further_columns_are_settings_and_the_first_four_name_the_folder(tmp_path: Path):
    path = written(tmp_path, "vgg16\tgemm\th200\tbatch_size=8\tdtype=float16\twarmup=5\nvgg16\tgemm\tbatch_size=4\n")
    first, second = matrix.read(path, "l40s", flags=["--batch-size", "2", "--layout", "nhwc"])
    assert first.folder_name == "vgg16_gemm_h200_b8_fp16_nhwc"
    assert first.settings == ("batch_size=8", "dtype=float16", "warmup=5")
    assert second.folder_name == "vgg16_gemm_l40s_b4_nhwc"


def test_a_setting_may_be_a_list_with_commas(tmp_path: Path):
    path = written(tmp_path, "vgg16\tgemm\tl40s\tinput_size=224,320\n")
    (each,) = matrix.read(path)
    (run,) = submission.requests([each], ["3_full"], []).runs.values()
    assert run["input_sizes"] == [224, 320]
    with pytest.raises(InputError, match="--input-size is 3_full's: the stages before it have their own sizes"):
        submission.requests([each], ["2_quick"], [])


@pytest.mark.parametrize(
    ("field", "why"),
    [
        ("input_size=224,224", "'224,224': say different numbers with commas between"),
        ("input_size=224,", "say different numbers with commas between"),
        ("batch_size=1,8", "argument --batch-size: invalid int value: '1,8'"),
        ("batch_sizes=1,8", "a line of a matrix makes no use of --batch-sizes"),
        ("dtype=float16,float32", "argument --dtype: invalid choice: 'float16,float32'"),
    ],
)
def test_a_list_that_a_setting_does_not_take_is_one_line(tmp_path: Path, field: str, why: str):
    (each,) = matrix.read(written(tmp_path, f"vgg16\tgemm\tl40s\t{field}\n"))
    with pytest.raises(InputError, match=why) as refused:
        submission.requests([each], ["3_full"], [])
    assert str(refused.value).count("\n") == 0


def test_settings_stand_in_the_file_of_an_array(tmp_path: Path):
    line = "vgg16\tgemm\th200\tbatch_size=8\twarmup=5"
    (each,) = matrix.read(written(tmp_path, line))
    assert matrix.save([Work(each, ("2_quick",))], tmp_path / "arrays").read_text() == f"{line}\n"


def test_two_lines_of_one_folder_with_other_settings_are_refused(tmp_path: Path):
    path = written(tmp_path, "vgg16\tgemm\th200\twarmup=5\nvgg16\tgemm\th200\twarmup=6\n")
    with pytest.raises(InputError, match="vgg16, gemm, h200 is listed twice, with different settings"):
        matrix.read(path)


def test_a_study_is_a_matrix_without_what_rules_exclude(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = tmp_path / "study.toml"
    path.write_text('models = ["alexnet"]\nalgorithms = ["gemm", "smm"]\ngpus = ["h200"]\nbatch_sizes = [1, 8]\n')
    read = matrix.read_study(path)
    assert [each.folder_name for each in read] == ["alexnet_gemm_h200", "alexnet_gemm_h200_b8"]
    said = capsys.readouterr().err.splitlines()
    assert said[0] == "2 of 4 combinations are excluded by rules, and left out:"
    assert said[1].startswith("# alexnet, smm, h200: smm runs on a CPU only")


def test_a_study_that_cannot_be_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = tmp_path / "study.toml"
    path.write_text('models = ["alexnett"]\nalgorithms = ["gemm"]\n')
    arguments = [str(path), "--study", "--stages", "2_quick", "--into", str(tmp_path / "arrays")]
    assert matrix.main(arguments) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"2_quick_sweep.sh: {path}: unknown model 'alexnett'")
    assert said.count("\n") == 1


def test_names_are_taken_in_any_case(tmp_path: Path):
    path = written(tmp_path, "TorchVision:ResNet18\tFFT_Tiling\tL40S\nVGG16\tgemm\tl40s\nvgg16\tGEMM\tL40S\n")
    assert matrix.read(path) == [
        Combination("torchvision:resnet18", "fft tiling", "l40s"),
        Combination("vgg16", "gemm", "l40s"),
    ]


def test_parts_are_of_one_gpu_and_the_same_stages_and_no_longer_than_the_site_allows():
    works = [Work(Combination("alexnet", "fft", gpu), ("2_quick",)) for gpu in ("a", "b", "a", "a", "b")]
    works.append(Work(Combination("alexnet", "gemm", "b"), ("2_quick",), retry=True))
    works.append(Work(Combination("alexnet", "guess", "b"), ("1_sanity", "2_quick")))
    parts = [[work.combination.gpu for work in part] for part in matrix.slices(works, 2)]
    assert parts == [["a", "a"], ["a"], ["b", "b"], ["b"], ["b"]]


def test_the_file_of_an_array_is_new_each_time_and_never_half_there(tmp_path: Path):
    part = [Work(WHO, ("2_quick",))]
    first, second = matrix.save(part, tmp_path), matrix.save(part, tmp_path)
    assert first != second
    assert first.read_text() == second.read_text() == "alexnet\tfft\th200\n"
    assert {path.name for path in tmp_path.iterdir()} == {first.name, second.name}


def test_one_folder_for_all_combinations_is_refused():
    planner = submission.Planner(submission.Requests({}, False, False, "x"), ["2_quick"], "2_quick")
    with pytest.raises(InputError, match="every combination needs its own folder"):
        matrix.plan(planner, [WHO])


def test_the_command_takes_flags_after_two_dashes(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = written(tmp_path, "vgg16\tguess\n")
    arguments = [str(path), "--stages", "3_full", "--gpu", "l40s", "--into", str(tmp_path / "arrays")]
    assert matrix.main([*arguments, "--", "--num-sizes", "3"]) == 0
    name, gpu, lines, stages, retry = capsys.readouterr().out.split()
    assert (gpu, lines, stages, retry) == ("l40s", "1", "3_full", "-")
    assert matrix.read(Path(name)) == [Combination("vgg16", "guess", "l40s")]


@pytest.mark.parametrize(
    ("lines", "flags", "why"),
    [
        ("vgg16\tgemm\tl40s\nvgg61\tgemm\tl40s\n", [], "m, line 2: unknown model 'vgg61'"),
        ("vgg16\tgemm\tl40s\nvgg16\tgemm\tk9000\n", [], "m, line 2: unknown GPU 'k9000'"),
        ("vgg16\tgemm\tl40s\nvgg16\tsmm\tl40s\n", [], "vgg16, smm, l40s: smm runs on a CPU only"),
        ("vgg16\tgemm\tl40s\n", ["--foo"], "unrecognized arguments: --foo"),
    ],
)
def test_one_combination_that_cannot_run_stops_all_before_a_file_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], lines: str, flags: list[str], why: str
):
    path, into = tmp_path / "m", tmp_path / "arrays"
    path.write_text(lines)
    arguments = [str(path), "--stages", "2_quick", "--into", str(into), "--known-gpus", "l40s", "cpu", "--", *flags]
    assert matrix.main(arguments) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("2_quick_sweep.sh: ")
    assert why in said.err
    assert not into.exists()


@pytest.mark.parametrize("most", ["0", "-1", "x"])
def test_a_part_has_at_least_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str], most: str):
    arguments = [str(tmp_path), "--stages", "2_quick", "--into", str(tmp_path), f"--most={most}"]
    with pytest.raises(SystemExit) as end:
        matrix.main(arguments)
    assert end.value.code == 2
    assert f"{most}: a number of lines, at least 1" in capsys.readouterr().err


def test_a_list_of_combinations_comments_out_what_the_rules_rule_out(tmp_path: Path):
    listed = listing.combination_list(["alexnet"], ["winograd", "guess"], "h200", (224, 512))
    first, second = listed.splitlines()
    assert first.startswith("# alexnet winograd: ")
    assert second == "alexnet\tguess\th200"
    assert matrix.read(written(tmp_path, listed)) == [Combination("alexnet", "guess", "h200")]


def test_a_list_of_a_cpu_has_what_a_cpu_runs():
    listed = listing.combination_list(["alexnet"], None, "cpu", (224, 224)).splitlines()
    assert [line for line in listed if not line.startswith("#")] == [
        f"alexnet\t{algorithm}\tcpu" for algorithm in ("direct", "smm", "torch")
    ]


def test_models_of_every_kind_are_listed_and_read_again(tmp_path: Path):
    own = ROOT / "tests" / "fakes" / "own_models.py"
    models = [f"{own}:Branch,width=2", f"{own}:pair", "timm:test_resnet", "torchvision:vit_b_16"]
    listed = listing.combination_list(models, ["gemm"], "h200", (224, 512))
    assert listed.splitlines() == [f"{model}\tgemm\th200" for model in models]
    assert [each.model for each in matrix.read(written(tmp_path, listed))] == models
