"""The stage scripts without a SLURM: what they would submit, what they refuse, and a stage run here."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from fakes import ROOT
from fakes.stages import call

from convscope.cli import fields
from convscope.cluster import submission


@pytest.mark.parametrize("script", ["1_sanity_check.sh", "2_quick_sweep.sh", "3_full_run.sh"])
def test_a_stage_would_submit_itself_with_the_constraint_of_the_gpu_and_logs_in_the_results(script: str):
    done = call("vgg16", "implicit precomp gemm", "l40s", "--dry-run", script=script)
    stage = {"1": "1_sanity", "2": "2_quick", "3": "3_full"}[script[0]]
    folder = f"results/{stage}/vgg16_implicit_precomp_gemm_l40s"
    assert done.returncode == 0
    assert "'--constraint=gpul40s'" in done.stdout
    assert f"'--output={folder}/%x_%j.out'" in done.stdout
    assert done.stdout.rstrip().endswith(f"'{script}' 'vgg16' 'implicit precomp gemm' 'l40s'")
    assert not (ROOT / folder).exists()


def test_a_chain_waits_for_the_stage_before_to_succeed():
    lines = call("vgg16", "gemm", "l40s", "--dry-run", "--chain").stdout.splitlines()
    assert len(lines) == 3
    assert "dependency" not in lines[0]
    assert "'--dependency=afterok:JOB_OF_1_sanity' '--kill-on-invalid-dep=yes'" in lines[1]
    assert "'--dependency=afterok:JOB_OF_2_quick' '--kill-on-invalid-dep=yes'" in lines[2]


def test_flags_after_the_names_are_handed_on_as_they_are():
    done = call("vgg16", "gemm", "l40s", "--dry-run", "--batch-size", "4", "--output-dir", "a b;$(c)")
    assert done.stdout.rstrip().endswith(f"'--batch-size' '4' '--output-dir' '{ROOT}/a b;$(c)'")


@pytest.mark.parametrize(
    "names",
    [
        ("$(touch /tmp/owned)", "gemm", "l40s"),
        ("vgg16", "gemm; touch owned", "l40s"),
        ("vgg16", "gemm", "l40s' --wrap 'touch owned"),
        ("../vgg16", "gemm", "l40s"),
        ("vgg16", "gemm"),
        (),
    ],
)
def test_names_that_are_none_are_refused_in_one_line(names: tuple[str, ...]):
    done = call(*names, "--dry-run")
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("1_sanity_check.sh: ")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("vgg61 gemm l40s", "unknown model 'vgg61'"),
        ("vgg16 gem l40s", "unknown algorithm 'gem'"),
        ("vgg16 gemm k9000", "unknown GPU 'k9000': name one of l40s, v100"),
        ("vgg16 gemm l40s --foo", "unrecognized arguments: --foo"),
        ("vgg16 gemm l40s --num-sizes 5", "--num-sizes is 3_full's"),
        ("vgg16 smm l40s", "smm runs on a CPU only"),
        ("vgg16 implicit gemm l40s", "./1_sanity_check.sh vgg16 implicit_gemm l40s"),
        pytest.param(
            "resnet50 winograd l40s --chain", "40 of 53 convolutions of resnet50 are not", marks=pytest.mark.long
        ),
    ],
)
def test_what_cannot_run_is_refused_in_one_line_before_anything_is_queued(words: str, why: str):
    done = call(*words.split(), "--dry-run")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("1_sanity_check.sh: ")
    assert why in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("arguments", ["--local vgg61 torch cpu", "--local vgg16 gemm cpu"])
def test_what_cannot_run_here_leaves_no_folder(project: Path, arguments: str):
    done = run(project, "./2_quick_sweep.sh", *arguments.split())
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert not (project / "results").exists()


def test_names_are_lower_case_in_every_folder():
    assert "results/1_sanity/resnet18_torch_l40s/" in call("TorchVision:ResNet18", "Torch", "L40S", "--dry-run").stdout


NAMING = [
    [],
    ["--batch-size", "8"],
    ["--batch-size=08", "--seed", "1"],
    ["--batch-size", "1"],
    ["--batch-size", "4", "--batch-size", "16", "--layout", "nhwc", "--dtype", "bfloat16"],
    ["--dty=float16", "--layo=nchw"],
    ["--input-shape", "480X640"],
    ["--input-sh=0224x224"],
    ["--input-s", "480x640"],
    ["--input-size", "224,480"],
    ["--batch-size", "$(touch x)", "--dtype", "../x", "--input-shape", "4"],
    ["--=x", "--dtype", "float16"],
    ["--b", "8", "--d", "float16", "--la=nhwc", "--input", "480x640", "--batch-sizes=4"],
    ["--dtype", "--layout", "nhwc", "--batch-size"],
    ["--", "--dtype=float16", "--dtype=../x", "--dtype=" + "x" * 21],
]


@pytest.mark.parametrize("flags", NAMING, ids=" ".join)
def test_shell_and_python_agree_on_the_name_of_a_folder(tmp_path: Path, flags: list[str]):
    said = in_stage(f"suffix {shlex.join(flags)}", tmp_path).stdout
    assert f"vgg16_gemm_h200{said}" == submission.find("vgg16", "gemm", "h200", flags=flags).folder_name


SETTINGS = ("batch_size=8", "num_sizes=25", "input_range=64 128", "no_energy=true", "max_workspace=512MB", "x=1,8")


@pytest.mark.parametrize("stage", ["1_sanity", "3_full"])
def test_shell_and_python_agree_on_the_flags_of_a_line(tmp_path: Path, stage: str):
    script = f"take_fields {stage} {shlex.join(SETTINGS)}; printf '%s\\n' \"${{fields[@]}}\""
    assert in_stage(script, tmp_path).stdout.split("\n")[:-1] == fields.flags(SETTINGS, stage)


def test_a_task_of_an_array_measures_with_the_settings_of_its_line(tmp_path: Path):
    (tmp_path / "part").write_text("vgg16\tgemm\tl40s\nvgg16\tgemm\tl40s\tbatch_size=8\twarmup=5\n")
    script = """
        flags=(--seed 3); matrix=part SLURM_ARRAY_TASK_ID=1; take_task
        profile_command 1_sanity; printf '%s ' "${profile[@]}" "$(folder 1_sanity)"
    """
    said = in_stage(script, tmp_path).stdout
    assert said.rstrip().endswith("--seed 3 --batch-size 8 --warmup 5 results/1_sanity/vgg16_gemm_l40s_b8")


@pytest.mark.parametrize("field", ["batch_size=8;touch x", "--overwrite", "x=$(touch x)", "seed=--overwrite"])
def test_a_task_whose_line_has_no_setting_is_refused(tmp_path: Path, field: str):
    done = in_stage(f"take_fields 1_sanity {shlex.quote(field)}", tmp_path)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "is no setting" in done.stderr


def test_a_study_is_submitted_as_arrays_and_another_batch_size_has_another_folder(tmp_path: Path):
    lists = 'models = ["vgg16"]\nalgorithms = ["gemm"]\ngpus = ["l40s"]\nbatch_sizes = [1, 8]\n'
    (tmp_path / "study.toml").write_text(lists)
    done = call("--study", str(tmp_path / "study.toml"), "--dry-run", CONVSCOPE_RESULTS=str(tmp_path))
    assert (done.returncode, done.stderr) == (0, "")
    assert "'--array=0-1%4'" in done.stdout
    one = call("vgg16", "gemm", "l40s", "--dry-run", "--batch-size", "8")
    assert "'--output=results/1_sanity/vgg16_gemm_l40s_b8/%x_%j.out'" in one.stdout


def test_results_may_lie_on_another_disk(tmp_path: Path):
    done = call("vgg16", "gemm", "l40s", "--dry-run", CONVSCOPE_RESULTS=str(tmp_path / "on scratch"))
    assert f"--output={tmp_path}/on scratch/1_sanity/vgg16_gemm_l40s/%x_%j.out" in done.stdout


def test_without_a_slurm_both_ways_out_are_named(tmp_path: Path):
    for tool in ("bash", "dirname", "cat", "awk"):
        (tmp_path / tool).symlink_to(shutil.which(tool) or tool)
    done = subprocess.run(
        ["bash", str(ROOT / "1_sanity_check.sh"), "vgg16", "gemm", "l40s"],
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": str(tmp_path), "HOME": str(tmp_path)},
    )
    assert done.returncode == 2
    assert "no sbatch on the PATH" in done.stderr
    assert "--local" in done.stderr


def test_a_job_goes_on_with_a_folder_of_another_card_for_the_queue_chooses_the_card(tmp_path: Path):
    said = in_job(tmp_path, "l40s")
    assert "--gpu l40s --any-card --batch-size 4" in said
    assert "--any-card" not in in_job(tmp_path, "cpu")


def in_job(tmp_path: Path, gpu: str) -> str:
    """Return the command with which a job measures, without a SLURM."""
    script = f"""
        root={ROOT}; source "$root/slurm/stage.sh"; SLURM_JOB_ID=7; flags=(--batch-size 4)
        model=vgg16 algorithm=gemm gpu={gpu}
        in_job() {{ return 0; }}
        profile_command 2_quick; printf '%s ' "${{profile[@]}}"
    """
    return subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True, cwd=tmp_path).stdout


def in_stage(script: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run lines of shell behind those that the stages share."""
    command = ["bash", "-c", f'root={ROOT}; source "$root/slurm/stage.sh"; this=1_sanity; {script}']
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=cwd, timeout=60)


@pytest.mark.parametrize(
    ("said", "blamed"),
    [
        ("sbatch: error: QOSMaxSubmitJobPerUserLimit", "a limit of the site"),
        ("sbatch: error: Batch job submission failed: Invalid account or account/partition combination", "the account"),
        ("sbatch: error: Batch job submission failed: Invalid feature specification", "asks for constraint gpuh100"),
    ],
)
def test_what_sbatch_refuses_is_blamed_on_what_sbatch_names(tmp_path: Path, said: str, blamed: str):
    (tmp_path / "said").write_text(f"{said}\n")
    state = "submitted=() made=() job='' gpu=h100 constraint=gpuh100 gres=gpu:1 partition=gpu"
    done = in_stage(f"{state}; refused {tmp_path}/said", tmp_path)
    line, why = done.stderr.splitlines()
    assert (done.returncode, line) == (2, said)
    assert blamed in why


def test_a_job_says_what_has_changed_since_it_was_submitted(tmp_path: Path):
    def git(*words: str) -> str:
        command = ["git", "-c", "user.name=n", "-c", "user.email=e@x", *words]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout.strip()

    git("init", "--quiet")
    (tmp_path / "code.py").write_text("1")
    git("add", ".")
    git("commit", "--quiet", "--message", "1")
    submitted = git("rev-parse", "HEAD")
    say = f"root={tmp_path}; CONVSCOPE_SUBMITTED={submitted}; note_changes"
    assert in_stage(say, tmp_path).stdout == ""
    (tmp_path / "code.py").write_text("2")
    expected = f"submitted with commit {submitted}, runs {submitted}-dirty; changed since: code.py\n"
    assert in_stage(say, tmp_path).stdout == expected


@pytest.mark.parametrize("planted", ["link", "pipe"])
def test_a_history_that_is_no_plain_file_is_not_written_to_and_that_is_said(tmp_path: Path, planted: str):
    history, precious = tmp_path / "results/1_sanity/vgg16_gemm_h100/jobs.log", tmp_path / "precious"
    history.parent.mkdir(parents=True)
    precious.write_text("mine\n")
    history.symlink_to(precious) if planted == "link" else os.mkfifo(history)
    note = "model=vgg16 algorithm=gemm gpu=h100 own=() flags=(); note_event 1_sanity 7 started"
    done = in_stage(note, tmp_path)
    assert (done.returncode, precious.read_text()) == (0, "mine\n")
    path = "results/1_sanity/vgg16_gemm_h100/jobs.log"
    assert done.stderr == f"1_sanity_check.sh: {path} is no plain file: not noted there: job 7 started\n"
    uncounted = in_stage(f"{note}; requeue=yes; requeue 7", tmp_path)  # how often it was put back, nobody knows
    assert "submit it again to go on" in uncounted.stderr
    assert precious.read_text() == "mine\n"


def test_a_task_of_an_array_measures_in_the_data_type_and_layout_of_its_line(tmp_path: Path):
    (tmp_path / "part").write_text("vgg16\tgemm\th100\tdtype=float16\tlayout=nhwc\nvgg16\tgemm\th100\n")
    script = "matrix=part flags=(--batch-size 4); SLURM_ARRAY_TASK_ID={}; take_task; folder 1_sanity; echo; "
    script += "in_job() {{ return 0; }}; profile_command 2_quick; printf '%s ' \"${{profile[@]}}\""
    first, second = (in_stage(script.format(task), tmp_path).stdout.splitlines() for task in (0, 1))
    assert first[0] == "results/1_sanity/vgg16_gemm_h100_b4_fp16_nhwc"
    assert first[1].rstrip().endswith("--any-card --batch-size 4 --dtype float16 --layout nhwc")
    assert second[0] == "results/1_sanity/vgg16_gemm_h100_b4"
    assert second[1].rstrip().endswith("--any-card --batch-size 4")


def test_a_submitted_task_is_noted_in_its_own_folder_with_the_flags_of_its_line(tmp_path: Path):
    (tmp_path / "part").write_text("vgg16\tgemm\th100\tdtype=float16\nvgg16\tgemm\th100\n")
    state = "needed=1_sanity retry=--retry gpu=h100 dry_run='' throttle=4 events=() own=() flags=(--seed 3)"
    fakes = "find_gpu() { :; }; make_folder() { :; }; send() { job=7; }"
    done = in_stage(f"{fakes}; {state}; submit_array part 2; note_submitted", tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    logs = {path.parent.name: path.read_text().split("\t") for path in tmp_path.glob("results/1_sanity/*/jobs.log")}
    assert {name: (fields[1], fields[6].strip()) for name, fields in logs.items()} == {
        "vgg16_gemm_h100_fp16": ("7_0", "--seed 3 --dtype float16 --retry"),
        "vgg16_gemm_h100": ("7_1", "--seed 3 --retry"),
    }


@pytest.mark.parametrize("given", [("--output-dir", "out"), ("--output-dir=out",)])
def test_a_relative_folder_is_of_where_the_user_stands(tmp_path: Path, given: tuple[str, ...]):
    command = [str(ROOT / "1_sanity_check.sh"), "vgg16", "gemm", "l40s", "--dry-run", *given]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)
    assert f"{tmp_path}/out" in done.stdout


def test_by_hand_another_card_is_a_difference():
    done = call("vgg16", "gemm", "l40s", "--local", "--dry-run")
    assert (done.returncode, "--any-card" in done.stdout) == (0, False)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Return a copy of the project, without results."""
    copy = tmp_path / "a project"
    shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(".*", "results", "__pycache__", "*.egg-info"))
    return copy


def run(project: Path, *command: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    return subprocess.run(command, cwd=project, capture_output=True, text=True, check=False, env=environment)


FLAGS = ("--input-range", "64", "64", "--warmup", "1", "--measure", "2", "--no-energy")


def test_a_stage_runs_here_and_the_status_shows_it(project: Path):
    done = run(project, "./1_sanity_check.sh", "--local", "torchvision:squeezenet1_1", "torch", "cpu", *FLAGS)
    assert done.returncode == 0, done.stderr
    assert (project / "results/1_sanity/squeezenet1_1_torch_cpu/squeezenet1_1_torch_layers.csv").exists()
    assert "done 1/1" in run(project, "./check_status.sh").stdout


@pytest.mark.long
def test_a_matrix_runs_here_two_at_a_time_and_the_status_says_what_failed(project: Path):
    model = "torchvision:squeezenet1_1"
    (project / "matrix").write_text("".join(f"{model}\t{name}\n" for name in ("direct", "torch")))
    foreign = project / "results/1_sanity/squeezenet1_1_direct_cpu/squeezenet1_1_direct_overall.csv"
    foreign.parent.mkdir(parents=True)
    foreign.write_text("somebody's table\n")
    matrix = ("--local", "--matrix", "matrix", "cpu", "--gpus", "cpu,cpu")
    done = run(project, "./1_sanity_check.sh", *matrix, *FLAGS)
    assert done.returncode == 1
    assert "1 done, 1 failed" in done.stdout
    assert f"failed: 1_sanity {model}, direct, cpu: run_profile.py: " in done.stdout
    assert "has tables and no run.json" in done.stdout
    said = run(project, "./check_status.sh").stdout
    assert "1 done, 1 failed" in said
    assert "\nagain:" not in said
    assert "bad input is not offered again" in said
    again = run(project, "./1_sanity_check.sh", *matrix, *FLAGS).stdout
    assert "1 of 2 combinations to run" in again


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("--gpus", "0", "vgg16", "gemm", "l40s"), "--gpus goes with --local --matrix FILE"),
        (("--matrix", "nowhere"), "--matrix nowhere cannot be read"),
        (("--study", "nowhere"), "--study nowhere cannot be read"),
        (("--study", "a", "--matrix", "b"), "name one file, --matrix FILE or --study FILE"),
        (("--throttle", "0", "vgg16", "gemm", "l40s"), "--throttle 0: a number of tasks, at least 1"),
    ],
)
def test_options_that_cannot_be_are_refused_in_one_line(arguments: tuple[str, ...], why: str):
    done = call(*arguments, "--dry-run")
    assert done.returncode == 2
    assert why in done.stderr.replace("'", "")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(("status", "submitted"), [("oom", "'vgg16' 'gemm' 'l40s' '--retry'\n"), ("ok", "")])
def test_only_what_failed_is_submitted_again_with_retry(tmp_path: Path, status: str, submitted: str):
    folder = tmp_path / "1_sanity" / "vgg16_gemm_l40s"
    folder.mkdir(parents=True)
    run = {"model": "vgg16", "algorithm": "gemm", "gpu": "l40s", "input_sizes": [224]}
    (folder / "run.json").write_text(json.dumps({"schema_version": 3, "run": run}))
    header = "input_size,status,reason,fallback_layers,throttle_reasons,wall_s\n"
    (folder / "vgg16_gemm_overall.csv").write_text(f"{header}224,{status},,,,\n")
    done = call("vgg16", "gemm", "l40s", "--dry-run", CONVSCOPE_RESULTS=str(tmp_path))
    assert done.returncode == 0
    assert done.stdout.endswith(submitted)
    assert bool(done.stdout) is bool(submitted) is ("failed, measured again by --retry" in done.stderr)
    assert ("vgg16, gemm, l40s is finished: nothing is queued" in done.stderr) is not bool(submitted)
