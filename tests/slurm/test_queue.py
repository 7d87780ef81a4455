"""The stages through a real queue: what is submitted, in which order it runs, what a failure stops."""

from __future__ import annotations

import re

import pandas as pd
import pytest
from slurm_cluster import LARGEST_ARRAY, Cluster
from slurm_flows import LIGHT, Flows


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
    assert re.search(r"^alexnet, direct, cpu +done 1/1 +done 10/10 ", table, re.MULTILINE)
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
    assert len(pd.read_csv(cluster.results("3_full", "mnasnet0_5_torch_cpu") / "mnasnet0_5_torch_overall.csv")) == 100
    said = cluster.call("./check_status.sh", "--stage", "1_sanity", "--algorithm", "gemm").stdout
    assert "failed: 1_sanity torchvision:mnasnet0_5, gemm, cpu: run_profile.py: gemm needs a CUDA device" in said


def test_a_job_that_got_another_card_than_it_asked_for_fails_and_says_so(cluster: Cluster):
    (job,) = cluster.submit("./1_sanity_check.sh", "vgg16", "gemm", "l40s", *LIGHT)
    assert cluster.wait(job) == "FAILED"
    said = cluster.call("./check_status.sh", "--gpu", "l40s", "--algorithm", "gemm").stdout
    assert "l40s" in said.split("failed: ")[1]


def test_a_constraint_that_no_node_has_is_found_before_anything_is_queued(cluster: Cluster):
    done = cluster.call("./1_sanity_check.sh", "--chain", "vgg16", "winograd", "l40s", SBATCH_CONSTRAINT="gpunone")
    assert done.returncode == 2
    assert "nothing is queued" in done.stderr
    assert "asks for constraint gpunone, gres gpu:1, partition gpu" in done.stderr
    assert "winograd" not in cluster.call("squeue", "--noheader", "--format=%j").stdout


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
