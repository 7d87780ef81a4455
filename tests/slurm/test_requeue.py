"""Warned, requeued, cancelled: rows are neither lost nor doubled, and what was cancelled stays so."""

from __future__ import annotations

import re
import shutil
import time
from pathlib import Path

import pandas as pd
import pytest
from slurm_cluster import Cluster
from slurm_flows import BRIEF, LIMITED, LONG, OUTLASTING, SIBLING, UNDISTURBED, Flows, Limited, rows, slow

from convscope.cluster import history
from convscope.storage.paths import Combination, now_utc

pytestmark = pytest.mark.long

HOSTILE = "a \"b\" 'c'; $(touch owned) `touch owned` \\ *"


def more_rows(cluster: Cluster, folder: Path) -> None:
    """Wait until a run has written another size."""
    before = rows(folder)
    cluster.until(lambda: rows(folder) > before, f"another row in {folder}")


def restarted(cluster: Cluster, job: str, count: int) -> None:
    """Wait until a job runs for the time after so many restarts."""

    def found() -> bool:
        said = cluster.job(job)
        return (said.get("Restarts"), said.get("JobState")) == (str(count), "RUNNING")

    cluster.until(found, f"restart {count} of job {job}")


def events(folder: Path) -> list[str]:
    """Return the events of a folder's jobs, sorted."""
    return sorted(line.split("\t")[2] for line in (folder / "jobs.log").read_text().splitlines())


def keys(folder: Path) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return what tells the rows of the two tables apart, in order."""
    overall, layers = ["model", "algorithm", "input_size"], ["model", "algorithm", "input_size", "position", "layer"]
    by_name = {"overall": overall, "layers": layers}
    tables = (pd.read_csv(*folder.glob(f"*_{name}.csv"))[columns] for name, columns in by_name.items())
    first, second = (table.sort_values(list(table.columns), ignore_index=True) for table in tables)
    return first, second


def with_late_scontrol(cluster: Cluster) -> str:
    """Return a PATH whose `scontrol` comes back 2 s after SLURM has done what it was asked for, as under load."""
    folder, path = cluster.folder / "late", cluster.environment["PATH"]
    folder.mkdir()
    script = folder / "scontrol"
    script.write_text(f'#!/bin/sh\n{shutil.which("scontrol", path=path)} "$@"\nrc=$?\nsleep 2\nexit $rc\n')
    script.chmod(0o755)
    return f"{folder}:{path}"


def test_the_siblings_of_a_task_at_its_time_limit_are_not_started_again(cluster: Cluster, limited: Limited):
    assert cluster.job(limited.job)["JobId"] == limited.job.partition("_")[0]  # one number for the task and the array
    siblings = [cluster.job(task) for task in (limited.failed_sibling, limited.running_sibling)]
    assert [job["Restarts"] for job in siblings] == ["0", "0"]
    assert siblings[0]["JobState"] == "FAILED"
    assert siblings[1]["JobState"] in ("RUNNING", "COMPLETED")
    assert events(cluster.results("3_full", "squeezenet1_0_torch_cpu")) == ["ended 2", "started", "submitted"]
    running = slow(cluster, SIBLING)[1]
    assert [event for event in events(running) if event != "ended 0"] == ["started", "submitted"]
    cluster.call("scancel", limited.running_sibling)


def test_a_job_begins_no_size_that_would_outlast_it(cluster: Cluster):
    names, folder = slow(cluster, OUTLASTING)
    # URG, which no program answers: USR2 may come a minute early, and then it is the signal that stops the run.
    late = {"SBATCH_TIMELIMIT": "2", "SBATCH_SIGNAL": "URG@1", "PATH": with_late_scontrol(cluster)}
    (job,) = cluster.submit("./3_full_run.sh", *names, *BRIEF, "--num-sizes", "100", **late)
    restarted(cluster, job, 1)
    said = (folder / f"3_full_{folder.name}_{job}.err").read_text().splitlines()
    cluster.call("scancel", job)  # what has begun once more, and is ended by this, says so, too
    log = (folder / f"3_full_{folder.name}_{job}.out").read_text()
    assert re.search(r"^not begun: \d+ px takes about \d+ s, and the job ends in \d+ s$", log, re.MULTILINE)
    assert "stopped before the job ends" in log
    assert events(folder) in (["requeued", *more, "submitted"] for more in (["started"], ["started", "started"]))
    assert [line for line in said if not line.startswith("slurmstepd")] == []  # which may say that it requeues the job


def test_a_job_is_put_back_three_times_at_most_however_often_it_was_preempted_and_then_says_how_to_go_on(
    cluster: Cluster,
):
    model = "torchvision:shufflenet_v2_x1_5"
    (job,) = cluster.submit("./3_full_run.sh", model, "torch", "cpu", *LONG, SLURM_RESTART_COUNT="3")
    folder = cluster.results("3_full", "shufflenet_v2_x1_5_torch_cpu")
    more_rows(cluster, folder)
    cluster.call("scancel", "--signal=USR2", job)
    restarted(cluster, job, 1)
    assert "; restart 1 of 3" in (folder / f"3_full_shufflenet_v2_x1_5_torch_cpu_{job}.out").read_text()
    more_rows(cluster, folder)
    for _ in range(2):  # as the job itself notes them
        history.note_event(folder, now_utc(), job, "requeued", Combination(model, "torch", "cpu"), LONG)
    cluster.call("scancel", "--signal=USR2", job)
    assert cluster.wait(job) == "FAILED"
    assert cluster.job(job)["ExitCode"] == "85:0"
    assert (
        "after 3 restarts: submit it again to go on"
        in (folder / f"3_full_shufflenet_v2_x1_5_torch_cpu_{job}.err").read_text()
    )
    said = cluster.call("./check_status.sh", "--stage", "3_full", "--model", model).stdout
    assert "submit it again to continue from there" in said
    assert f"  ./3_full_run.sh {model} torch cpu --warmup 1" in said


def test_a_chain_whose_second_stage_is_put_back_waits_for_it_and_goes_on(cluster: Cluster):
    names = ("torchvision:shufflenet_v2_x1_0", "torch", "cpu")
    first, second, third = cluster.submit("./1_sanity_check.sh", "--chain", *names, *BRIEF, "--measure", "30")
    folder = cluster.results("2_quick", "shufflenet_v2_x1_0_torch_cpu")
    more_rows(cluster, folder)
    cluster.call("scancel", "--signal=USR2", second)
    restarted(cluster, second, 1)
    waiting = cluster.job(third)
    assert (waiting["JobState"], waiting["Reason"]) == ("PENDING", "Dependency")
    assert cluster.wait(second) == "COMPLETED"
    assert events(folder) == sorted(["submitted", "started", "requeued", "started", "ended 0"])
    sizes = pd.read_csv(folder / "shufflenet_v2_x1_0_torch_overall.csv")["input_size"]
    assert (len(sizes), sizes.is_unique) == (10, True)
    more_rows(cluster, cluster.results("3_full", folder.name))
    started = cluster.job(third)["StartTime"]
    assert cluster.job(first)["EndTime"] < cluster.job(second)["EndTime"] <= started
    cluster.call("scancel", third)
    said = cluster.call("./check_status.sh", "--model", names[0]).stdout
    assert re.search(r"done 1/1 +done 10/10 ", said)


def test_with_no_requeue_a_warned_job_ends_and_hostile_arguments_are_only_arguments(cluster: Cluster, flows: Flows):
    folder = cluster.project / HOSTILE
    names = ("torchvision:resnet18", "torch", "cpu")
    (job,) = cluster.submit("./3_full_run.sh", "--no-requeue", *names, "--output-dir", HOSTILE, *BRIEF)
    more_rows(cluster, folder)
    cluster.call("scancel", "--signal=USR2", job)
    assert cluster.wait(job) == "FAILED"
    assert cluster.job(job)["Restarts"] == "0"
    log = cluster.results("3_full", "resnet18_torch_cpu") / f"3_full_resnet18_torch_cpu_{job}.err"
    assert "--no-requeue: submit it again to go on" in log.read_text()
    assert not list(cluster.folder.rglob("owned"))


def test_a_job_that_slurm_takes_back_goes_on_and_once_cancelled_stays_so(cluster: Cluster, flows: Flows):
    (job,) = cluster.submit("./3_full_run.sh", "torchvision:shufflenet_v2_x0_5", "torch", "cpu", *BRIEF)
    folder = cluster.results("3_full", "shufflenet_v2_x0_5_torch_cpu")
    more_rows(cluster, folder)
    cluster.call("scontrol", "requeue", job)  # as after preemption, or a node that fails
    restarted(cluster, job, 1)
    more_rows(cluster, folder)
    cluster.call("scancel", job)
    assert cluster.wait(job) == "CANCELLED"
    time.sleep(10)  # twice what a requeued job waits before it starts again
    assert cluster.job(job)["JobState"] == "CANCELLED"
    assert pd.read_csv(folder / "shufflenet_v2_x0_5_torch_overall.csv")["input_size"].is_unique
    said = cluster.call("./check_status.sh", "--model", "torchvision:shufflenet_v2_x0_5").stdout
    assert "failed: 3_full torchvision:shufflenet_v2_x0_5, torch, cpu" in said


def test_a_job_at_its_time_limit_goes_on_later_with_no_row_lost_or_doubled(cluster: Cluster, limited: Limited):
    folder = slow(cluster, LIMITED)[1]
    assert cluster.wait(limited.job, timeout_s=480) == "COMPLETED"
    assert events(folder) == sorted(["submitted", "started", "requeued", "started", "ended 0"])
    assert "sizes are in" in next(folder.glob("*.out")).read_text()  # what the second run found of the first
    assert limited.undisturbed.wait(timeout=240) == 0
    for disturbed, undisturbed in zip(keys(folder), keys(cluster.project / UNDISTURBED), strict=True):
        pd.testing.assert_frame_equal(disturbed, undisturbed)
