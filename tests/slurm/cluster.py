"""A real SLURM on this machine's loopback, for the length of a `with` block.

One node, four pretended GPUs, no accounting. Its configuration, sockets, keys, logs and ports are its own, and only the daemons it started are stopped.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

DAEMONS = ("munged", "slurmctld", "slurmd")
CLIENTS = ("sbatch", "squeue", "scontrol", "scancel", "srun", "sinfo")

# cred_expire is also how long a requeued job waits before it starts again (two minutes unless told).
CONFIG = """
ClusterName=loopback
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmctldPort={controller_port}
SlurmdPort={node_port}
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
SchedulerParameters=sched_interval=1,bf_interval=1,batch_sched_delay=1,sched_min_interval=1
MaxArraySize=5
ReturnToService=2
KillWait=5
GresTypes=gpu
NodeName={host} NodeAddr=127.0.0.1 CPUs=64 RealMemory=512000 Gres=gpu:l40s:4 Feature=gpul40s State=UNKNOWN
PartitionName=gpu Nodes={host} Default=YES MaxTime=INFINITE State=UP
"""
# Each pretended GPU needs a device file of its own.
GRES = "".join(f"Name=gpu Type=l40s File=/dev/{device}\n" for device in ("null", "zero", "full", "urandom"))


def why_not() -> str | None:
    """Return why no SLURM can run here, None where one can; Debian's packages are installed if that is all it takes."""
    if os.geteuid() != 0:
        return "a SLURM of its own needs root"
    if not _missing():
        return None
    if shutil.which("apt-get") is None:
        return f"no {', '.join(_missing())}, and no apt-get to install slurm-wlm and munge with"
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    for command in (["apt-get", "update", "-qq"], ["apt-get", "install", "-y", "-qq", "slurm-wlm", "munge"]):
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            return f"{' '.join(command)} failed: {done.stderr.strip().splitlines()[-1:]}"
    return f"no {', '.join(_missing())} in slurm-wlm and munge" if _missing() else None


def _missing() -> list[str]:
    path = os.environ.get("PATH", "") + ":/usr/sbin:/usr/local/sbin"
    return [name for name in (*DAEMONS, *CLIENTS) if shutil.which(name, path=path) is None]


class Cluster:
    """The running SLURM: its environment for commands, and the questions that tests ask it."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self.folder = folder
        self.environment = environment

    def call(self, *command: str, check: bool = True) -> str:
        """Run one of SLURM's commands; return what it printed."""
        done = subprocess.run(command, env=dict(self.environment), capture_output=True, text=True, check=False)
        if check and done.returncode:
            raise RuntimeError(f"{' '.join(command)}: {done.stderr}")
        return done.stdout

    def job(self, number: str) -> dict[str, str]:
        """Return what `scontrol show job` says of a job or of one task of an array ("12_3")."""
        words = self.call("scontrol", "--oneliner", "show", "job", number, check=False).split()
        return dict(word.split("=", 1) for word in words if "=" in word)

    def state(self, number: str) -> str:
        """Return a job's state, "PENDING" to "COMPLETED"."""
        return self.job(number).get("JobState", "UNKNOWN")

    def wait(self, number: str, timeout_s: float = 120) -> dict[str, str]:
        """Wait until a job has ended, whichever way; return what SLURM says of it."""
        ended = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "UNKNOWN"}
        until(lambda: self.state(number) in ended, timeout_s, f"job {number} to end")
        return self.job(number)


def until(true: Callable[[], bool], timeout_s: float, what: str) -> None:
    """Wait until something is so.

    Raises:
        TimeoutError: it has not become so in time.
    """
    end = time.monotonic() + timeout_s
    while not true():
        if time.monotonic() > end:
            raise TimeoutError(f"waited {timeout_s:.0f} s for {what}")
        time.sleep(0.2)


@contextlib.contextmanager
def running() -> Iterator[Cluster]:
    """Start munge, the controller and one node; stop them, and all jobs, at the end."""
    # Short, for a socket's path has at most 108 characters.
    folder = Path(tempfile.mkdtemp(prefix="slurm-", dir="/tmp"))
    environment = os.environ | {"SLURM_CONF": f"{folder}/slurm.conf"}
    for name in [name for name in environment if name.startswith(("SBATCH_", "SLURM_JOB", "SRUN_"))]:
        del environment[name]
    _write_configuration(folder)
    cluster = Cluster(folder, environment)
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        for command in _daemons(folder):
            stack.enter_context(_daemon(command, environment, folder))
        until(lambda: "idle" in cluster.call("sinfo", "-h", "-o", "%T", check=False), 30, "the node")
        stack.callback(_cancel_all, cluster)
        yield cluster


def _write_configuration(folder: Path) -> None:
    ports = _free_ports(2)
    host = socket.gethostname().split(".")[0]
    text = CONFIG.format(folder=folder, host=host, controller_port=ports[0], node_port=ports[1])
    (folder / "slurm.conf").write_text(text)
    (folder / "gres.conf").write_text(GRES)
    key = folder / "munge.key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o600)
    folder.chmod(0o755)
    (folder / "state").mkdir()
    (folder / "spool").mkdir()


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def _daemons(folder: Path) -> list[list[str]]:
    munge = [f"--{what}={folder}/munge.{what.split('-')[0]}" for what in ("socket", "key-file", "log-file", "pid-file")]
    return [
        ["munged", "--foreground", "--force", f"--seed-file={folder}/munge.seed", *munge],
        ["slurmctld", "-D", "-i", "-f", f"{folder}/slurm.conf"],
        ["slurmd", "-D", "-f", f"{folder}/slurm.conf"],
    ]


@contextlib.contextmanager
def _daemon(command: list[str], environment: Mapping[str, str], folder: Path) -> Iterator[None]:
    path = environment.get("PATH", "") + ":/usr/sbin:/usr/local/sbin"
    program = shutil.which(command[0], path=path)
    assert program is not None
    with (folder / f"{command[0]}.printed").open("w") as log:
        process = subprocess.Popen([program, *command[1:]], env=dict(environment), stdout=log, stderr=log)
    try:
        if command[0] == "munged":
            until((folder / "munge.socket").exists, 10, "munged")
        yield
    finally:
        process.terminate()
        try:
            process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _cancel_all(cluster: Cluster) -> None:
    cluster.call("scancel", "--full", "--user", "root", check=False)
    until(lambda: not cluster.call("squeue", "-h", check=False).strip(), 30, "the queue to empty")
