"""A job's lock and standing as others see them: another process of the user, and one whom the queue shows nothing."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
from collections.abc import Iterator

import pytest
from slurm_cluster import Cluster
from slurm_flows import LONG

pytestmark = pytest.mark.long
NOBODY = 65534
HOLD = """
import sys, time
from pathlib import Path
from convscope.storage.lock import Lock
Lock(Path(sys.argv[1])).__enter__()
time.sleep(600)
"""
ASK = """
import os, sys
from pathlib import Path
from convscope.storage.lock import Lock
path, user, take_over = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == "True"
if user: os.setgroups([]), os.setresgid(user, user, user), os.setresuid(user, user, user)
try:
    with Lock(path, take_over=take_over) as lock: print("took it from", lock.taken_from)
except Exception as error: print(error)
"""
STATUS = """
import os, sys
from convscope.cluster import status
status.main([])  # which imports what another user may not read
print("----")
user = int(sys.argv[1])
if user: os.setgroups([]), os.setresgid(user, user, user), os.setresuid(user, user, user)
print(status.main([]))
"""
ELSEWHERE = ["unshare", "-pf"]  # another PID namespace sees no processes, as another node does


@pytest.fixture(scope="module")
def private(cluster: Cluster) -> Iterator[Cluster]:
    """Hide the jobs of other users for the length of these tests."""
    before = (cluster.folder / "slurm.conf").read_text()
    cluster.reconfigure(before + "PrivateData=jobs\n")
    yield cluster
    cluster.reconfigure(before)


@pytest.mark.skipif(os.getuid() != 0 or not shutil.which("unshare"), reason="another user's view needs root")
def test_the_lock_of_a_job_is_judged_by_what_the_queue_shows_and_never_by_what_it_hides(private: Cluster):
    folder = private.folder / "shared"
    folder.mkdir()
    folder.chmod(0o777)
    lock = folder / "run.lock"

    def said(user: int = 0, take_over: bool = False, **more: str) -> str:
        command = [*ELSEWHERE, sys.executable, "-c", ASK, str(lock), str(user), str(take_over)]
        return private.call(*command, SLURM_CLUSTER_NAME="loopback", **more).stdout

    hold = shlex.join([sys.executable, "-c", HOLD, str(lock)])
    job = private.call("sbatch", "--parsable", "--output=/dev/null", "--wrap", f"exec {hold}").stdout.strip()
    private.until(lock.exists, "the job's lock")
    at_work = ": wait for it, or choose another --output-dir\n"
    hidden = f"the queue does not show job {job}, and may hide other users' jobs"
    assert said(SQUEUE_STATES="PENDING", SQUEUE_USERS="nobody").endswith(at_work)
    assert said(take_over=True).endswith(at_work)
    assert hidden in said(NOBODY)
    private.call("scancel", "--signal=KILL", "--full", job)
    private.wait(job)
    assert lock.exists()
    assert hidden in said(NOBODY)
    assert said().endswith("which is gone\n")
    assert not lock.exists()


@pytest.mark.skipif(os.getuid() != 0 or not shutil.which("unshare"), reason="another user's view needs root")
def test_a_job_that_the_queue_hides_from_another_user_is_not_said_to_have_left_it(private: Cluster):
    at_work, waiting = ("torchvision:shufflenet_v2_x1_5", "torch", "cpu"), ("alexnet", "gemm", "l40s")
    (running,) = private.submit("./3_full_run.sh", *at_work, *LONG)
    (queued,) = private.submit("./1_sanity_check.sh", *waiting, SBATCH_PARTITION="closed")
    private.until((private.results("3_full", "shufflenet_v2_x1_5_torch_cpu") / "run.lock").exists, "the job's lock")

    def rows(user: int = 0) -> dict[str, str]:
        """Return what a user's status says of each combination, and its exit code."""
        said = private.call(*ELSEWHERE, sys.executable, "-c", STATUS, str(user)).stdout.split("----\n")[1].splitlines()
        lines = (re.split(" {2,}", line) for line in said if line.startswith(("alexnet", "torchvision")))
        first = {name: next(cell for cell in cells if cell != "-") for name, *cells in lines}
        return first | {"exit code": said[-1]}

    names = [", ".join(names) for names in (at_work, waiting)]
    own, others = rows(), rows(NOBODY)
    assert re.search(r"running \d+/100, [\d:-]+ left", own[names[0]])
    assert re.search(r"running \d+/100$", others[names[0]])
    assert own[names[1]].startswith("queued 0/1, PartitionDown")
    assert others[names[1]].startswith(f"queued 0/1, as job {queued}")
    assert own["exit code"] == others["exit code"] == "3"
    private.call("scancel", running, queued)
    private.wait(queued)
    private.wait(running)
    assert rows()[names[1]].startswith("failed 0/1")
    assert rows(NOBODY)[names[1]].startswith(f"queued 0/1, as job {queued}")
