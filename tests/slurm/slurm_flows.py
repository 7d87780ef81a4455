"""Jobs that run side by side while the tests look at them, each there to show one thing."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from slurm_cluster import Cluster

LIGHT = ("--warmup", "1", "--measure", "1", "--no-energy", "--input-range", "64", "163")
BRIEF = ("--warmup", "1", "--measure", "10", "--no-energy", "--input-range", "64", "163")
LONG = ("--warmup", "1", "--measure", "100", "--no-energy", "--input-range", "64", "163")
BY_HAND = ("torchvision:squeezenet1_1", "torch", "cpu")
LIMITED, SIBLING, OUTLASTING = 4, 5, 6  # widths of slow models
FORTY = ("--num-sizes", "40")
UNDISTURBED = "undisturbed"
CODE = """
from torch import nn

def make(width=4):
    return nn.Sequential(nn.Conv2d(3, width, 3), nn.ReLU(), nn.Conv2d(width, 4, 3))
"""
"""A user's file with a model of two layers."""
SLOW = """
import time
from torch import nn

class Slow(nn.Sequential):
    def forward(self, x):
        time.sleep(0.1)
        return super().forward(x)

def make(width):
    return Slow(nn.Conv2d(3, width, 3), nn.ReLU(), nn.Conv2d(width, 4, 3))
"""
"""A user's file with a model that takes two seconds a size with BRIEF, and computes little."""


@dataclass(frozen=True)
class Flows:
    """Numbers of jobs, by what they are there to show."""

    chain: list[str]
    by_hand: list[str]
    broken_chain: list[str]
    gated: list[str]


@dataclass(frozen=True)
class Limited:
    """A task of an array at its time limit, its siblings, and the same run that nothing disturbs."""

    job: str
    failed_sibling: str
    running_sibling: str
    undisturbed: subprocess.Popen[bytes]


def slow(cluster: Cluster, width: int) -> tuple[tuple[str, str, str], Path]:
    """Return what names a combination of a model that takes time, and its folder of the last stage, for each width."""
    (cluster.project / "slow.py").write_text(SLOW)
    names = f"slow.py:make,width={width}", "torch", "cpu"
    return names, cluster.results("3_full", f"slow.py_make_width_{width}_torch_cpu")


def submitted(cluster: Cluster) -> Flows:
    """Submit what takes time."""
    chain = cluster.submit("./1_sanity_check.sh", "--chain", "alexnet", "torch", "cpu", *LIGHT)
    return Flows(chain, _by_hand(cluster), _broken_chain(cluster), _gated(cluster))


@contextmanager
def limited_job(cluster: Cluster) -> Iterator[Limited]:
    """Submit an array, and see its last task past its time limit: the one whose number is also the whole array's.

    SLURM looks at time limits every 30 s. The limit comes down to within the warning's reach when the first sizes are
    there, and goes up again after one restart, which is enough to see.
    """
    at_limit, folder = slow(cluster, LIMITED)
    siblings = ("torchvision:squeezenet1_0", "torch", "cpu"), slow(cluster, SIBLING)[0]
    _foreign_table(cluster.results("3_full", "squeezenet1_0_torch_cpu"))
    matrix = cluster.project / "one at its limit.tsv"
    matrix.write_text("".join("\t".join(names) + "\n" for names in (*siblings, at_limit)))
    flags = ("--matrix", matrix.name, *FORTY, *BRIEF)
    (array,) = cluster.submit("./3_full_run.sh", *flags, SBATCH_TIMELIMIT="30", SBATCH_SIGNAL="USR2@95")
    failed, running, limited = (f"{array}_{task}" for task in range(3))
    with _undisturbed(cluster, *at_limit) as undisturbed:
        cluster.until(lambda: rows(folder) > 1, "the first sizes")
        _limit(cluster, limited, 1 + (_runtime_s(cluster, limited) + 35) // 60)  # ends in 35 to 95 s
        cluster.until(lambda: cluster.job(limited)["Restarts"] == "1", "the first restart")
        _limit(cluster, limited, 30)
        yield Limited(limited, failed, running, undisturbed)


def rows(folder: Path) -> int:
    """Return how many sizes a folder has, 0 before the first."""
    tables = list(folder.glob("*_overall.csv"))
    return max(0, len(tables[0].read_text().splitlines()) - 1) if tables else 0


def _runtime_s(cluster: Cluster, job: str) -> int:
    days, _, clock = cluster.job(job)["RunTime"].rpartition("-")
    hours, minutes, seconds = (int(part) for part in clock.split(":"))
    return 86400 * int(days or 0) + 3600 * hours + 60 * minutes + seconds


def _limit(cluster: Cluster, job: str, minutes: int) -> None:
    cluster.call("scontrol", "update", f"JobId={job}", f"TimeLimit={minutes}")


def _by_hand(cluster: Cluster) -> list[str]:
    command = ("sbatch", "--parsable", "--gres=none")
    names = (*BY_HAND, *LIGHT)
    first = cluster.call(*command, "1_sanity_check.sh", *names).stdout.strip()
    second = cluster.call(*command, f"--dependency=afterok:{first}", "2_quick_sweep.sh", *names).stdout.strip()
    return [first, second]


def _broken_chain(cluster: Cluster) -> list[str]:
    _foreign_table(cluster.results("2_quick", "alexnet_smm_cpu"))
    return cluster.submit("./1_sanity_check.sh", "--chain", "alexnet", "smm", "cpu", *LIGHT)


def _foreign_table(folder: Path) -> None:
    """Put a table into a results folder with which its run refuses to go on."""
    folder.mkdir(parents=True)
    (folder / f"{folder.name.removesuffix('_cpu')}_overall.csv").write_text("somebody's table\n")


def _gated(cluster: Cluster) -> list[str]:
    matrix = cluster.project / "two of them.tsv"
    (cluster.project / "small.py").write_text(CODE)
    matrix.write_text("vgg16\tdirect\nsmall.py:make\ttorch\n")
    foreign = cluster.results("1_sanity", "vgg16_direct_cpu") / "vgg16_direct_overall.csv"
    foreign.parent.mkdir(parents=True)
    foreign.write_text("somebody's table\n")
    return cluster.submit("./1_sanity_check.sh", "--chain", "--matrix", matrix.name, "cpu", *LIGHT)


def _undisturbed(cluster: Cluster, model: str, algorithm: str, device: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "run_profile.py", "--model", model, "--algorithm", algorithm, "--device", device]
    return subprocess.Popen(
        [*command, *FORTY, *LIGHT, "--output-dir", UNDISTURBED],
        cwd=cluster.project,
        env=cluster.environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
