"""One run at a time in a folder: a file that says who is at work there, and that outlives no one who is known dead.

The file comes into being whole, by `link()` from a file of the run's own: that is one step for the server of a network
file system too, and the count of links tells whether it went through when the answer was lost. No byte-range locks are
used: some clusters mount without them. Whether the holder still lives is told by its process on the same machine
(number and start, so that a number used again misleads nobody), and by SLURM's queue from any other machine.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from convscope import slurm
from convscope.errors import InputError, WriteError

NAME = "run.lock"
_AT_WORK = ("RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT", "CONFIGURING", "RESIZING")

_held: list[Lock] = []


@dataclass(frozen=True)
class Holder:
    """Holder of a lock: machine, process and its start, and the job, where SLURM started it."""

    host: str
    boot: str
    process_space: str
    pid: int
    started_ticks: int
    since_utc: str
    job: str | None = None
    restart: int = 0
    cluster: str | None = None

    def __str__(self) -> str:
        job = f", job {self.job}" if self.job else ""
        return f"process {self.pid} on {self.host}{job}, since {self.since_utc}"


def myself() -> Holder:
    """Return this process as a holder."""
    environment = os.environ
    return Holder(
        host=platform.node(),
        boot=Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
        process_space=os.readlink("/proc/self/ns/pid"),
        pid=os.getpid(),
        started_ticks=_started_ticks(os.getpid()) or 0,
        since_utc=time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime()),
        job=environment.get("SLURM_JOB_ID"),
        restart=int(environment.get("SLURM_RESTART_COUNT") or 0),
        cluster=environment.get("SLURM_CLUSTER_NAME"),
    )


def _started_ticks(pid: int) -> int | None:
    """Return when a process began, in clock ticks since the machine did; None where there is none, or a dead one."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else int(fields[19])


def is_gone(holder: Holder, me: Holder, ask: slurm.RunCommand = slurm.run_command) -> bool:
    """Tell whether a holder is certainly dead; False where it lives and where nobody can tell from here."""
    same_machine = holder.host == me.host
    if same_machine and holder.boot == me.boot and holder.process_space == me.process_space:
        return _started_ticks(holder.pid) != holder.started_ticks
    if same_machine and holder.boot != me.boot:
        return True
    if holder.job is None or holder.cluster != me.cluster:
        return False
    if holder.job == me.job:  # SLURM starts a job again only when its processes of the time before are gone
        return holder.restart < me.restart
    states = slurm.states(ask)
    return states is not None and states.get(holder.job) not in _AT_WORK


class Lock:
    """Holds a folder from `with` to the end of the block.

    Raises:
        InputError: another run holds it, or may hold it, the line says who; or the file cannot be made.
    """

    def __init__(
        self, path: Path, ask: slurm.RunCommand = slurm.run_command, me: Callable[[], Holder] = myself
    ) -> None:
        self.path, self._ask, self._me = path, ask, me
        self._content = ""
        self.taken_from: Holder | None = None

    def __enter__(self) -> Lock:
        me = self._me()
        self._content = json.dumps(dataclasses.asdict(me)) + "\n"
        try:
            while not self._link():
                self._take_over(me)
            _held.append(self)
            for left in self.path.parent.glob(f".{self.path.name}.*"):  # of processes that were killed while they asked
                left.unlink(missing_ok=True)
        except OSError as error:
            self.release()
            why = f"cannot lock {self.path.parent} ({error.strerror}): choose another --output-dir"
            raise InputError(why) from None
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        self.release()

    def release(self) -> None:
        """Let the folder go; what is not this process's own lock stays."""
        if self in _held:
            _held.remove(self)
        with contextlib.suppress(OSError):
            if self._read() == self._content:
                self.path.unlink()

    def confirm(self) -> None:
        """Make sure that the folder is still this run's.

        Raises:
            WriteError: the lock is gone, and so perhaps the folder, or it is somebody else's.
        """
        try:
            content = self._read()
        except OSError as error:
            raise WriteError(f"cannot read {self.path} ({error.strerror}): nothing is written any more") from None
        if content != self._content:
            found = "gone" if content is None else "another run's"
            why = f"{self.path} is {found}: somebody took this run's folder away, nothing is written any more"
            raise WriteError(why)

    def _link(self) -> bool:
        mine = self.path.with_name(f".{self.path.name}.{platform.node()}.{os.getpid()}")
        with mine.open("w") as file:
            file.write(self._content)
            file.flush()
            os.fsync(file.fileno())
        try:
            with contextlib.suppress(FileExistsError):
                os.link(mine, self.path)
            return mine.stat().st_nlink == 2
        except FileNotFoundError:  # who holds the lock has tidied up: look again
            return False
        finally:
            mine.unlink(missing_ok=True)

    def _read(self) -> str | None:
        try:
            return self.path.read_text()
        except FileNotFoundError:
            return None

    def _take_over(self, me: Holder) -> None:
        """Remove the lock of a dead holder; one process at a time does, and looks again before it does."""
        content = self._read()
        if content is None:
            return
        try:
            holder = Holder(**json.loads(content))
        except (ValueError, TypeError):
            why = f"{self.path} says nothing of who holds the folder: remove it if no run is at work"
            raise InputError(why) from None
        if not is_gone(holder, me, self._ask):
            raise InputError(
                f"{self.path.parent} is held by {holder}: wait for it, or choose another --output-dir; "
                f"if that run is certainly dead, remove {self.path.name} there"
            )
        with Lock(self.path.with_name(f"{self.path.name}.takeover"), self._ask, self._me):
            if self._read() == content:
                self.path.unlink()
                self.taken_from = holder


def release_all() -> None:
    """Let go of every lock of this process: its last act when it ends without unwinding."""
    for lock in _held.copy():
        lock.release()
