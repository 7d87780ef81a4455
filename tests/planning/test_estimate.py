"""GPU-hours of runs: by their own earlier sizes, by runs like them, by a roofline; and how far off they may be."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from fakes import ROOT

from convscope.planning import estimate
from convscope.planning.estimate import START_S, Earlier
from convscope.profiling.request import Run, run_elsewhere


def asked(
    model: str = "resnet50", algorithm: str = "gemm", gpu: str = "h200", count: int = 4, **settings: object
) -> Run:
    return run_elsewhere(model, algorithm, gpu=gpu, num_sizes=count, input_size_range=(200, 500), **settings)


def before(run: Run, walls_s: Mapping[int, float], stage: str = "2_quick", status: str = "ok") -> Earlier:
    return Earlier(dataclasses.asdict(run), stage, run.folder_name, walls_s, dict.fromkeys(walls_s, status))


def test_sizes_between_earlier_ones_lie_on_a_line():
    known = {200: 10.0, 400: 30.0}
    assert estimate.size_s(known, 200, 5.0) == 10.0
    assert estimate.size_s(known, 300, 5.0) == 20.0


def test_beyond_earlier_sizes_what_is_not_fixed_grows_with_the_area():
    known = {200: 10.0, 400: 30.0}
    assert estimate.size_s(known, 800, 6.0) == pytest.approx(6 + 24 * 4)
    assert estimate.size_s(known, 100, 6.0) == pytest.approx(6 + 4 / 4)


def test_a_run_with_earlier_sizes_goes_by_those():
    run = asked()  # 200, 300, 400, 500
    found = estimate.estimate(run, [before(run, {200: 8.0, 500: 11.0})])
    assert found.seconds == pytest.approx(START_S + 8 + 9 + 10 + 11)
    assert found.basis == "2 earlier sizes of the same run, too few to check"
    assert found.factor == estimate.ASSUMED_FACTOR


def test_autotune_goes_by_its_own_earlier_runs_alone():
    run = asked(algorithm="autotune")
    unlike = before(asked(algorithm="heuristic a"), {200: 8.0, 500: 11.0})
    found = estimate.estimate(run, [unlike])
    assert (found.seconds, found.basis) == (None, "nothing is known of autotune but by earlier runs of it on this GPU")
    assert estimate.estimate(run, [unlike, before(run, {200: 90.0, 500: 93.0})]).seconds == START_S + 4 * 91.5


def test_with_enough_earlier_sizes_the_error_is_what_they_miss_each_other_by():
    run = asked()
    straight = estimate.estimate(run, [before(run, {200: 8.0, 300: 9.0, 400: 10.0, 500: 11.0})])
    scattered = estimate.estimate(run, [before(run, {200: 8.0, 300: 30.0, 400: 8.0, 500: 30.0})])
    assert straight.factor == 1.1
    assert scattered.factor > 2


def test_sizes_that_are_measured_take_no_time_unless_they_are_measured_again():
    run = asked()
    earlier = [before(run, {200: 8.0, 500: 11.0}, run.stage)]
    assert estimate.estimate(run, earlier).sizes == 2
    assert estimate.estimate(run, earlier, overwrite=True).sizes == 4
    every = [before(run, dict.fromkeys(run.input_sizes, 8.0), run.stage)]
    assert estimate.estimate(run, every).seconds == 0


def test_sizes_that_failed_are_to_be_measured():
    run = asked()
    assert estimate.estimate(run, [before(run, {200: 8.0}, run.stage, status="oom")]).sizes == 4


@pytest.mark.parametrize("changes", [{"energy": False}, {"measure_iters": 5}, {"math": "fp32"}, {"batch_size": 8}])
def test_earlier_runs_with_other_settings_are_not_the_same_run(changes: dict[str, object]):
    found = estimate.estimate(asked(), [before(asked(**changes), {200: 8.0, 500: 11.0})])
    assert "1 of 1 other runs on this GPU" in found.basis


def test_a_run_like_none_before_goes_by_the_likest_on_its_gpu_with_more_images_in_more_time():
    least_s = estimate.fixed_s(asked())
    like = before(asked(batch_size=2), {200: least_s + 1, 500: least_s + 1})
    other = before(asked(model="vgg16", algorithm="torch"), {200: 500.0, 500: 500.0})
    foreign = before(asked(gpu="l40s"), {200: 900.0, 500: 900.0})
    found = estimate.estimate(asked(batch_size=8), [other, like, foreign])
    assert found.seconds == pytest.approx(START_S + 4 * (least_s + 4))
    assert "resnet50_gemm_h200_b2" in found.basis
    assert found.factor == estimate.ASSUMED_FACTOR


def test_the_error_by_other_runs_is_what_they_miss_each_other_by():
    algorithms = ("gemm", "guess", "torch", "implicit gemm")
    alike = [before(asked(algorithm=name, energy=False), {200: 10.0, 500: 10.0}) for name in algorithms]
    apart = [before(asked(algorithm=name, energy=False), {200: 10.0**at}) for at, name in enumerate(algorithms, 1)]
    assert estimate.estimate(asked(), alike).factor < 1.5
    assert estimate.estimate(asked(), apart).factor > 5


def test_a_gpu_with_peaks_and_no_runs_goes_by_a_roofline():
    one = estimate.estimate(asked("alexnet", "torch", count=1), [])
    assert one.basis == "a roofline"
    fixed_s = START_S + estimate.PLACEMENTS_S + estimate.ENERGY_S + estimate.TRACING_S
    assert fixed_s < (one.seconds or 0) < fixed_s + 1
    many = estimate.estimate(asked("alexnet", "torch", count=1, batch_size=4096), [])
    assert (many.seconds or 0) > (one.seconds or 0)
    assert many.factor > one.factor
    on_other = estimate.estimate(asked("alexnet", "torch", gpu="l40s", count=1), [])
    assert on_other.basis == "a roofline, its error assumed"


@pytest.mark.parametrize(("dtype", "is_longer"), [("float32", True), ("float16", False)])
def test_mathematics_without_tensor_cores_is_slower_in_float32_only(dtype: str, is_longer: bool):
    runs = [asked("alexnet", "torch", count=1, batch_size=64, dtype=dtype, math=math) for math in ("tf32", "fp32")]
    tf32, fp32 = (estimate.estimate(run, []).seconds or 0 for run in runs)
    assert (fp32 > tf32) is is_longer


def test_the_sweep_that_was_clocked_lies_within_the_error_of_its_roofline():
    run = run_elsewhere("resnet152", "implicit precomp gemm", gpu="h200", num_sizes=10)
    found = estimate.estimate(run, [])
    assert 109.3 / found.factor < (found.seconds or 0) < 109.3 * found.factor  # benchmarks/README.md


def test_a_gpu_without_peaks_and_runs_has_no_estimate_and_that_is_said():
    found = estimate.estimate(asked(gpu="b200"), [])
    assert found.seconds is None
    assert estimate.report([found]) == (
        "b200: no estimate for 1 of 1 runs: nothing was measured on b200 yet, and convscope/gpus.py has no peaks of it"
    )


def test_the_report_has_a_line_a_run_and_a_sum_a_gpu():
    run, other = asked(), asked(gpu="l40s", batch_size=8)
    made = [
        estimate.Estimate(run, 4, 3600.0, 1.5, "a roofline"),
        estimate.Estimate(run, 4, 7200.0, 3.0, "a roofline"),
        estimate.Estimate(other, 2, 0.0, 1.0, "every size is measured already"),
    ]
    lines = estimate.report(made).splitlines()
    assert lines[1].split("  ")[0] == "resnet50, gemm, h200"
    assert lines[3].startswith("resnet50, gemm, l40s, b8")
    assert lines[-2] == "h200: 3.00 GPU-hours for 2 runs, 8 sizes, within a factor of 2.5, from a roofline"
    assert lines[-1] == "l40s: 0.00 GPU-hours for 1 run, 2 sizes: every size is measured already"


def test_results_are_read_and_what_is_damaged_is_left_out(tmp_path: Path):
    run = asked()
    folder = tmp_path / "2_quick" / run.folder_name
    folder.mkdir(parents=True)
    (folder / "run.json").write_text(json.dumps({"run": dataclasses.asdict(run)}))
    (folder / "resnet50_gemm_overall.csv").write_text("input_size,status,wall_s\n200,ok,8.5\n300,oom,1.0\n")
    for name, text in (("a", "{"), ("b", "[]"), ("c", '{"run": {}}')):
        (tmp_path / "2_quick" / name).mkdir()
        (tmp_path / "2_quick" / name / "run.json").write_text(text)
    (found,) = estimate.read(tmp_path)
    assert (found.walls_s, found.statuses) == ({200: 8.5}, {200: "ok", 300: "oom"})


@pytest.mark.parametrize("has_rows", [True, False])
def test_without_pytorch_earlier_rows_are_enough_and_a_roofline_says_what_it_needs(tmp_path: Path, has_rows: bool):
    run = run_elsewhere("resnet50", "gemm", gpu="h200", num_sizes=1)
    if has_rows:
        folder = tmp_path / "2_quick" / run.folder_name
        folder.mkdir(parents=True)
        (folder / "run.json").write_text(json.dumps({"run": dataclasses.asdict(run)}))
        (folder / "resnet50_gemm_overall.csv").write_text("input_size,status,wall_s\n224,ok,9.0\n")
    script = "import sys; sys.modules['torch'] = None; import run_profile; sys.exit(run_profile.main())"
    command = [
        sys.executable,
        "-c",
        script,
        *["--estimate", "--model", "resnet50", "--algorithm", "gemm", "--gpu", "h200", "--test"],
    ]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False,
        env={"CONVSCOPE_RESULTS": str(tmp_path), "PATH": "/usr/bin"},
    )  # fmt: skip
    assert done.stderr == ""
    assert done.returncode == (0 if has_rows else 1)
    said = "from 1 earlier size of the same run, too few to check" if has_rows else "and a roofline: "
    assert said in done.stdout
