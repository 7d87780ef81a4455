"""The stages through a real queue: what is submitted, in which order it runs, what a failure stops."""

from __future__ import annotations

import re
import subprocess

import pandas as pd
import pytest
from slurm_cluster import LARGEST_ARRAY, Cluster
from slurm_flows import BY_HAND, LIGHT, Flows

pytestmark = pytest.mark.long


def test_a_chain_runs_the_three_stages_in_turn_to_their_tables(cluster: Cluster, flows: Flows):
    assert [cluster.wait(job) for job in flows.chain] == ["COMPLETED"] * 3
    for stage, count in (("1_sanity", 1), ("2_quick", 10), ("3_full", 100)):
        folder = cluster.results(stage, "alexnet_torch_cpu")
        assert len(pd.read_csv(folder / "alexnet_torch_overall.csv")) == count
        assert len(pd.read_csv(folder / "alexnet_torch_layers.csv")) == 5 * count
    started = [cluster.job(job)["StartTime"] for job in flows.chain]
    ended = [cluster.job(job)["EndTime"] for job in flows.chain]
    assert ended[0] <= started[1] < ended[1] <= started[2]


def test_stages_given_to_sbatch_by_hand_run_and_stand_in_the_status(
    cluster: Cluster, flows: Flows, capsys: pytest.CaptureFixture[str]
):
    assert [cluster.wait(job) for job in flows.by_hand] == ["COMPLETED"] * 2
    table = cluster.call("./check_status.sh").stdout
    assert re.search(r"^torchvision:squeezenet1_1, torch, cpu +done 1/1 +done 10/10 ", table, re.MULTILINE)
    with capsys.disabled():
        print(f"\n{table}")


def test_a_stage_that_fails_stops_those_after_it_and_bad_input_is_not_offered_again(cluster: Cluster, flows: Flows):
    assert [cluster.wait(job) for job in flows.broken_chain] == ["COMPLETED", "FAILED", "CANCELLED"]
    assert not list(cluster.results("3_full", "alexnet_smm_cpu").glob("*.csv"))
    said = cluster.call("./check_status.sh", "--algorithm", "smm", "--model", "alexnet").stdout
    assert "done 1/1  failed 0/10  failed 0/100" in said
    assert "has tables and no run.json" in said
    assert "left the queue without starting" in said
    assert "2_quick_sweep.sh" not in said
    assert "bad input is not offered again" in said


def test_one_failed_combination_of_an_array_stops_only_itself(cluster: Cluster, flows: Flows):
    states = [[cluster.wait(f"{array}_{task}") for array in flows.gated] for task in (0, 1)]
    assert states == [["FAILED", "CANCELLED", "CANCELLED"], ["COMPLETED"] * 3]
    overall = cluster.results("3_full", "small.py_make_torch_cpu") / "small.py_make_torch_overall.csv"
    assert len(pd.read_csv(overall)) == 100
    said = cluster.call("./check_status.sh", "--stage", "1_sanity", "--model", "vgg16").stdout
    assert "failed: 1_sanity vgg16, direct, cpu: run_profile.py: " in said
    assert "has tables and no run.json" in said


def test_a_job_that_got_another_card_than_it_asked_for_fails_and_says_so(cluster: Cluster):
    (job,) = cluster.submit("./1_sanity_check.sh", "vgg16", "gemm", "l40s", *LIGHT)
    assert cluster.wait(job) == "FAILED"
    said = cluster.call("./check_status.sh", "--gpu", "l40s", "--algorithm", "gemm").stdout
    assert "l40s" in said.split("failed: ")[1]


def test_a_constraint_that_no_node_has_is_found_before_anything_is_queued(cluster: Cluster):
    done = cluster.call("./1_sanity_check.sh", "--chain", "vgg16", "implicit_gemm", "l40s", SBATCH_CONSTRAINT="gpunone")
    assert done.returncode == 2
    assert "nothing is queued" in done.stderr
    assert "asks for constraint gpunone, gres gpu:1, partition gpu" in done.stderr
    assert "implicit_gemm" not in cluster.call("squeue", "--noheader", "--format=%j").stdout
    assert not cluster.results("1_sanity", "vgg16_implicit_gemm_l40s").exists()


def test_the_last_line_is_the_number_of_the_job_and_the_status_has_the_reason_why_it_waits(cluster: Cluster):
    done = cluster.call("./1_sanity_check.sh", "vgg16", "implicit precomp gemm", "l40s", SBATCH_PARTITION="closed")
    job = cluster.job(done.stdout.splitlines()[-1])
    assert job["JobName"] == "1_sanity_vgg16_implicit_precomp_gemm_l40s"
    assert job["Features"] == "gpul40s"
    assert job["TresPerNode"] == "gres:gpu:1"
    said = cluster.call("./check_status.sh", "--algorithm", "implicit_precomp_gemm").stdout
    assert "vgg16, implicit precomp gemm, l40s  queued 0/1, PartitionDown" in said


def test_a_matrix_is_split_where_the_site_limits_arrays_and_throttled(cluster: Cluster):
    models = ["resnet50", "resnet152", "googlenet", "densenet121", "torchvision:resnet18", "torchvision:resnet34"]
    (cluster.project / "six").write_text("# comment\n" + "".join(f"{model}\tguess\tl40s\n" for model in models))
    arrays = cluster.submit("./2_quick_sweep.sh", "--matrix", "six", "--throttle", "3", SBATCH_PARTITION="closed")
    assert [cluster.job(array)["ArrayTaskId"] for array in arrays] == [f"0-{LARGEST_ARRAY - 1}%3", "0-1%3"]
    said = cluster.call("./check_status.sh", "--algorithm", "guess").stdout
    assert "6 queued" in said
    assert "torchvision:resnet34, guess, l40s  queued 0/10, PartitionDown" in said


def test_finished_combinations_are_left_out_of_a_matrix(cluster: Cluster, flows: Flows):
    cluster.wait(flows.chain[0])
    (cluster.project / "one done").write_text("alexnet\ttorch\tcpu\ntorchvision:resnet18\ttorch\tcpu\n")
    matrix = ("--matrix", "one done", *LIGHT)
    done = cluster.call("./1_sanity_check.sh", *matrix, SBATCH_PARTITION="closed")
    assert "1 of 2 combinations are finished and left out" in done.stderr
    assert cluster.job(done.stdout.splitlines()[-1])["ArrayTaskId"] == "0%4"


def test_a_combination_in_the_queue_is_not_queued_again_even_by_two_at_the_same_moment(cluster: Cluster):
    command = ("./1_sanity_check.sh", "googlenet", "gemm", "l40s")
    closed = cluster.environment | {"SBATCH_PARTITION": "closed"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    both = [subprocess.Popen(command, cwd=cluster.project, env=closed, **pipes) for _ in range(2)]
    said = [each.communicate() for each in both]
    assert sorted(each.returncode for each in both) == [0, 2]
    (job,) = [out.splitlines()[-1] for out, _ in said if out]
    assert any(f"googlenet, gemm, l40s is in the queue as job {job}: nothing is queued again" in err for _, err in said)
    (cluster.project / "queued").write_text("googlenet\tgemm\tl40s\n")
    done = cluster.call("./1_sanity_check.sh", "--matrix", "queued", SBATCH_PARTITION="closed")
    assert (done.returncode, done.stdout) == (0, "")
    assert f"1 of 1 combinations are in the queue and left out (googlenet, gemm, l40s: job {job})" in done.stderr


def test_a_job_submitted_from_an_allocation_starts_and_results_may_lie_elsewhere(cluster: Cluster):
    elsewhere = cluster.folder / "on scratch"
    allocated = ("salloc", "--partition=gpu", "--mem-per-cpu=100", "--cpus-per-task=2")
    command = ("./1_sanity_check.sh", "alexnet", "torch", "cpu", *LIGHT)
    (job,) = cluster.submit(*allocated, *command, CONVSCOPE_RESULTS=str(elsewhere))
    folder = elsewhere / "1_sanity" / "alexnet_torch_cpu"
    assert cluster.wait(job) == "COMPLETED", next(folder.glob("*.err")).read_text()
    assert len(pd.read_csv(folder / "alexnet_torch_overall.csv")) == 1
    assert "done 1/1" in cluster.call("./check_status.sh", CONVSCOPE_RESULTS=str(elsewhere)).stdout


def test_a_stage_given_to_sbatch_that_did_not_ask_for_the_gpu_is_refused_at_once(cluster: Cluster):
    job = cluster.call("sbatch", "--parsable", "--output=refused", "1_sanity_check.sh", "vgg16", "gemm", "h100").stdout
    assert cluster.wait(job.strip()) == "FAILED"
    said = (cluster.project / "refused").read_text()
    assert said.startswith(
        "1_sanity_check.sh: this job did not ask for a h100: give sbatch --constraint=gpuh100 --gres=gpu:1"
    )
    assert not cluster.results("1_sanity", "vgg16_gemm_h100").exists()


def test_a_chain_whose_last_stage_is_refused_leaves_no_job_no_folder_and_no_row(cluster: Cluster):
    config = cluster.folder / "config"
    config.mkdir()
    (config / "gpus.conf").write_text("l40s 3_full --partition=nowhere")
    chain = ("./1_sanity_check.sh", "--chain", "densenet121", "gemm", "l40s")
    done = cluster.call(*chain, CONVSCOPE_CONFIG=str(config), SBATCH_PARTITION="closed")
    assert done.returncode == 2
    assert "nothing is queued" in done.stderr
    assert "densenet121" not in cluster.call("squeue", "--noheader", "--format=%j").stdout
    assert "densenet121, gemm" not in cluster.call("./check_status.sh").stdout
    assert not cluster.results("1_sanity", "densenet121_gemm_l40s").exists()


def test_a_chain_of_a_later_stage_submits_an_earlier_one_only_where_it_is_missing(cluster: Cluster, flows: Flows):
    cluster.wait(flows.by_hand[1])
    chain = ("./2_quick_sweep.sh", "--chain", *BY_HAND)
    done = cluster.call(*chain, *LIGHT, SBATCH_PARTITION="closed")
    assert [line.split(":")[0] for line in done.stdout.splitlines()[:-1]] == ["3_full"]
    other = cluster.call(*chain, *LIGHT, "--seed", "1", SBATCH_PARTITION="closed")
    assert other.returncode == 2
    assert "holds a run with other settings (seed 0, now 1)" in other.stderr
    other = cluster.call(*chain, *LIGHT, "--batch-size", "2", "--dry-run")
    assert "squeezenet1_1_torch_cpu_b2" in other.stdout
