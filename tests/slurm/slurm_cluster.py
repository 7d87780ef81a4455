"""A SLURM of one node on loopback: its own daemons, key, ports and folders, all gone when it is stopped.

The programs are those that `make slurm` unpacked into `.slurm/`, else the system's. No file of the system is written,
no daemon of the system is asked.
"""

from __future__ import annotations

import getpass
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")
ROOT = Path(__file__).parents[2]
UNPACKED = ROOT / ".slurm"
DAEMONS = ("munged", "slurmctld", "slurmd")
NEEDED = (*DAEMONS, "sbatch", "srun", "squeue", "scontrol", "scancel", "sinfo", "sacct")
LARGEST_ARRAY = 4
ENDED = ("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "TIMEOUT")
_READY_S = 30


class NoSlurmError(Exception):
    """There is no SLURM to be had here; the message says why."""


def programs() -> dict[str, str]:
    """Return the path of each program that is needed.

    Raises:
        NoSlurmError: one of them is missing.
    """
    places = [UNPACKED / "usr/sbin", UNPACKED / "usr/bin", *os.environ["PATH"].split(":"), "/usr/sbin"]
    found = {name: shutil.which(name, path=":".join(map(str, places))) for name in NEEDED}
    missing = [name for name, path in found.items() if path is None]
    if missing:
        raise NoSlurmError(f"no {', '.join(missing)} here: make slurm fetches them (Debian and its kin)")
    return {name: path for name, path in found.items() if path}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Cluster:
    """A running SLURM with a copy of the project that jobs are submitted from.

    The node claims more CPUs and memory than there are, so that some jobs run side by side on a small machine. The
    partition `closed` starts nothing: what is submitted there stays in the queue.
    """

    def __init__(self) -> None:
        self._programs = programs()
        self.folder = Path(tempfile.mkdtemp(prefix="slurm"))
        self.folder.chmod(0o711)  # munge wants its socket within reach of everyone
        self.project = self.folder / "a project"
        self._running: list[subprocess.Popen[bytes]] = []
        self.environment = self._environment()

    # ---- starting and stopping

    def start(self) -> None:
        """Start the daemons, and wait until the node is idle.

        Raises:
            NoSlurmError: one of them ended, or the node did not come up; the message has the last line of the log.
        """
        wanted = shutil.ignore_patterns(".*", "results", "__pycache__", "*.egg-info")
        shutil.copytree(ROOT, self.project, ignore=wanted)
        self._configure()
        warming = subprocess.Popen(
            [sys.executable, "-c", "import run_profile, profiler"], cwd=self.project, env=self.environment
        )
        munge, socket_path = self.folder / "munge", self.folder / "munge/socket"
        self._daemon(
            "munged", "--foreground", "--force", f"--socket={socket_path}", f"--key-file={munge}/key",
            f"--pid-file={munge}/pid", f"--log-file={self._log('munged')}", f"--seed-file={munge}/seed",
        )  # fmt: skip
        self._wait("munged", socket_path.exists)
        self._daemon("slurmctld", "-D", "-i")
        stepd = Path(self._programs["slurmd"]).with_name("slurmstepd")
        self._daemon("slurmd", "-D", "-N", "loopback", "-d", str(stepd))
        self._wait("slurmd", lambda: "idle" in self.call("sinfo", "--noheader", "--format=%T").stdout)
        warming.wait()  # else the first jobs all compile PyTorch's Python files at once

    def stop(self) -> None:
        """End every job and daemon of this cluster, and remove its folder."""
        if len(self._running) == len(DAEMONS):
            self.call("scancel", "--user", getpass.getuser())
            deadline_s = time.monotonic() + _READY_S
            while self.call("squeue", "--noheader").stdout and time.monotonic() < deadline_s:
                time.sleep(0.2)
        for daemon in reversed(self._running):
            daemon.terminate()
            daemon.wait(timeout=_READY_S)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _daemon(self, name: str, *arguments: str) -> None:
        command = [self._programs[name], *arguments]
        with self._log(name).with_suffix(".said").open("wb") as said:
            self._running.append(
                subprocess.Popen(command, env=self.environment, stdin=subprocess.DEVNULL, stdout=said, stderr=said)
            )

    def _wait(self, name: str, ready: Callable[[], bool]) -> None:
        deadline_s = time.monotonic() + _READY_S
        while not ready():
            if self._running[-1].poll() is not None or time.monotonic() > deadline_s:
                texts = (self._log(name), self._log(name).with_suffix(".said"))
                lines = [line for path in texts if path.exists() for line in path.read_text().splitlines()]
                raise NoSlurmError(f"{name} does not start here: {lines[-1] if lines else 'it says nothing'}")
            time.sleep(0.1)

    def _log(self, name: str) -> Path:
        return self.folder / f"{name}.log"

    # ---- its files

    def _configure(self) -> None:
        for name in ("munge", "state", "spool", "empty"):
            (self.folder / name).mkdir()
        key = self.folder / "munge/key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o600)
        user, at = getpass.getuser(), self.folder
        plugins = UNPACKED / "usr/lib/x86_64-linux-gnu/slurm-wlm"
        settings = {
            "ClusterName": "loopback",
            "SlurmctldHost": f"{socket.gethostname()}(127.0.0.1)",
            "SlurmctldPort": _free_port(),
            "SlurmdPort": _free_port(),
            "SlurmUser": user,
            "SlurmdUser": user,
            "AuthType": "auth/munge",
            "AuthInfo": f"socket={at}/munge/socket,cred_expire=5",  # a requeued job starts again after so many seconds
            "StateSaveLocation": f"{at}/state",
            "SlurmdSpoolDir": f"{at}/spool",
            "SlurmctldPidFile": f"{at}/slurmctld.pid",
            "SlurmdPidFile": f"{at}/slurmd.pid",
            "SlurmctldLogFile": self._log("slurmctld"),
            "SlurmdLogFile": self._log("slurmd"),
            "ProctrackType": "proctrack/linuxproc",
            "TaskPlugin": "task/none",
            "SelectType": "select/cons_tres",
            "SelectTypeParameters": "CR_Core",
            "GresTypes": "gpu",
            "SchedulerParameters": "sched_interval=2,bf_interval=2",
            "SlurmdParameters": "config_overrides",
            "MaxArraySize": LARGEST_ARRAY,
            "KillWait": 5,
            "MinJobAge": 86400,  # else the jobs that ended five minutes ago are forgotten before the last tests look
            "MailProg": "/bin/true",
        }
        if plugins.is_dir():
            settings["PluginDir"] = plugins
        lines = [f"{name}={value}" for name, value in settings.items()]
        lines += [
            "NodeName=loopback NodeAddr=127.0.0.1 CPUs=16 RealMemory=262144 Gres=gpu:l40s:2 Feature=gpul40s",
            "PartitionName=gpu Nodes=loopback Default=YES MaxTime=INFINITE State=UP",
            "PartitionName=closed Nodes=loopback MaxTime=INFINITE State=DOWN",
        ]
        (at / "slurm.conf").write_text("\n".join(lines) + "\n")
        (at / "gres.conf").write_text(
            "Name=gpu Type=l40s File=/dev/null Cores=0-7\nName=gpu Type=l40s File=/dev/zero Cores=0-7\n"
        )

    def _environment(self) -> dict[str, str]:
        foreign = ("SBATCH_", "SLURM_", "SQUEUE_", "CONVSCOPE_")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
        kept.pop("PYTHONDONTWRITEBYTECODE", None)
        folders = dict.fromkeys(str(Path(path).parent) for path in self._programs.values())
        added = {
            "SLURM_CONF": f"{self.folder}/slurm.conf",
            "PATH": ":".join([str(Path(sys.executable).parent), *folders, os.environ["PATH"]]),
            "CONVSCOPE_CONFIG": f"{self.folder}/empty",
            "HOME": f"{self.folder}/empty",
            "OMP_NUM_THREADS": "1",
        }
        if sys.dont_write_bytecode:
            added["PYTHONPYCACHEPREFIX"] = f"{self.folder}/pycache"
        if UNPACKED.is_dir():
            libraries = UNPACKED / "usr/lib/x86_64-linux-gnu"
            added["LD_LIBRARY_PATH"] = f"{libraries}/slurm-wlm:{libraries}"
        return kept | added

    # ---- using it

    def call(self, *command: str, **more: str) -> subprocess.CompletedProcess[str]:
        """Run a command in the project's folder, with further environment variables."""
        return subprocess.run(
            command, cwd=self.project, env=self.environment | more, capture_output=True, text=True, check=False
        )

    def reconfigure(self, settings: str) -> None:
        """Give the daemons another slurm.conf, whole at every moment: they read it when they come to it."""
        beside = self.folder / "slurm.conf.new"
        beside.write_text(settings)
        beside.replace(self.folder / "slurm.conf")
        self.call("scontrol", "reconfigure")

    def submit(self, *command: str, **more: str) -> list[str]:
        """Run a command that submits; return the number that each of its jobs got, in order."""
        done = self.call(*command, **more)
        assert done.returncode == 0, done.stderr
        return [line.split("job ")[1].split(",")[0] for line in done.stdout.splitlines() if ": job " in line]

    def job(self, number: str) -> dict[str, str]:
        """Return what `scontrol show job` says, field by field; a task of an array is "12_3".

        Raises:
            AssertionError: SLURM knows no such job, or not any more.
        """
        said = self.call("scontrol", "--oneliner", "show", "job", number)
        assert "Invalid job id" not in said.stderr, f"SLURM knows no job {number}, or not any more"
        return dict(word.partition("=")[::2] for word in said.stdout.split() if "=" in word)

    def wait(self, number: str, *states: str, timeout_s: float = 240) -> str:
        """Wait until a job is in one of these states, else until it has ended; return the state.

        Raises:
            AssertionError: it is in none of them in time, or SLURM knows no such job.
        """
        return self.until(lambda: self._state_in(number, states or ENDED), f"job {number} {states}", timeout_s)

    def _state_in(self, number: str, states: tuple[str, ...]) -> str:
        state = self.job(number).get("JobState", "")
        return state if state in states else ""

    def until(self, found: Callable[[], T], what: str, timeout_s: float = 240) -> T:
        """Wait until a function returns something that is true; return that."""
        deadline_s = time.monotonic() + timeout_s
        while not (answer := found()):
            assert time.monotonic() < deadline_s, f"{what}: not within {timeout_s} s\n{self.call('squeue').stdout}"
            time.sleep(0.3)
        return answer

    def results(self, stage: str, name: str) -> Path:
        """Return the folder of a combination's results."""
        return self.project / "results" / stage / name
