"""One run at a time in a folder: a file that says who is at work there, and that outlives no one who is known dead.

The file comes into being whole, by `link()` from a file of the run's own: that is one step for the server of a network
file system too, and the count of links tells whether it went through when the answer was lost. No byte-range locks are
used: some clusters mount without them. Whether the holder still lives is told by its process (number and start, so that
a number used again misleads nobody) in the same PID namespace of the same boot, and by SLURM's queue from anywhere
else. A process or a job that cannot be seen is not a dead one: where nobody can tell, only `take_over` does it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import json
import os
import platform
import stat
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from convscope import slurm
from convscope.errors import InputError, WriteError
from convscope.storage.paths import new_beside

NAME = "run.lock"
_LONGEST_BYTES = 10_000
_ENDED = (
    *("PENDING", "COMPLETED", "CANCELLED", "FAILED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "DEADLINE"),
    *("BOOT_FAIL", "REVOKED", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "SPECIAL_EXIT", "RESV_DEL_HOLD"),
)

_held: list[Lock] = []


@dataclass(frozen=True)
class Holder:
    """Holder of a lock: machine, process and its start, and the job, where it runs on a node of one.

    Attributes:
        boot, process_space: of the kernel and of the PID namespace; "" where unknown.
        started_ticks: since the boot; 0 where unknown.
        job_uid: number of the job's user; None where unknown, as in the locks of older versions.
    """

    host: str
    boot: str
    process_space: str
    pid: int
    started_ticks: int
    since_utc: str
    job: str | None = None
    restart: int = 0
    cluster: str | None = None
    job_uid: int | None = None

    def __str__(self) -> str:
        job = f", job {self.job}" if self.job else ""
        return f"process {self.pid} on {self.host}{job}, since {self.since_utc}"


def myself() -> Holder:
    """Return this process as a holder.

    A shell of `salloc` has the number of its job, but runs beside its nodes and survives it: its runs have no job.
    """
    environment = os.environ if "SLURMD_NODENAME" in os.environ else {}
    uid = environment.get("SLURM_JOB_UID", "")
    _, started_ticks = _state("self") or ("", 0)
    boot = process_space = ""
    with contextlib.suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        process_space = os.readlink("/proc/self/ns/pid")
    return Holder(
        host=platform.node(),
        boot=boot,
        process_space=process_space,
        pid=os.getpid(),
        started_ticks=started_ticks,
        since_utc=time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime()),
        job=environment.get("SLURM_JOB_ID"),
        restart=int(environment.get("SLURM_RESTART_COUNT") or 0),
        cluster=os.environ.get("SLURM_CLUSTER_NAME"),
        job_uid=int(uid) if uid.isdecimal() else None,
    )


def _state(process: int | str) -> tuple[str, int] | None:
    """Return the state of a process and when it began, in clock ticks since the boot; None where /proc has it not."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return fields[0], int(fields[19])


def has_ended(holder: Holder) -> bool | None:
    """Tell whether a process of this PID namespace has ended; None where it is hidden (`hidepid`)."""
    try:
        os.kill(holder.pid, 0)  # tells of hidden processes too
    except ProcessLookupError:
        return True
    except PermissionError:
        pass
    with contextlib.suppress(OSError):
        if os.readlink("/proc/self") != str(os.getpid()):  # another namespace's
            return None
    now = _state(holder.pid)
    if now is None or not holder.started_ticks:
        return None
    state, started_ticks = now
    return state in ("Z", "X") or started_ticks != holder.started_ticks


def lives(holder: Holder, me: Holder, ask: slurm.RunCommand = slurm.run_command) -> tuple[bool | None, str]:
    """Tell whether a holder is at work, None where that cannot be known from here, and by what."""
    why = "it is on another machine, or in another container, or this machine was started again"
    if holder.boot and holder.process_space and (holder.boot, holder.process_space) == (me.boot, me.process_space):
        ended = has_ended(holder)
        if ended is not None:
            return not ended, "its process"
        why = "this machine hides its process"
    if holder.job is None or holder.cluster != me.cluster:
        return None, why
    if holder.job == me.job:  # SLURM starts a job again only when its processes of the time before are gone
        return (False, "its job was started again") if holder.restart < me.restart else (None, why)
    states = slurm.states_of(holder.job, ask)
    if states:
        return any(state not in _ENDED for state in states), f"job {holder.job} is {', '.join(states)}"
    if states is None:
        return None, f"{why}, and SLURM's queue does not answer"
    if holder.job_uid == os.getuid():  # the queue hides nobody's own jobs
        return False, "its job has left the queue"
    return None, f"the queue does not show job {holder.job}, and may hide other users' jobs"


def is_gone(holder: Holder, me: Holder, ask: slurm.RunCommand = slurm.run_command) -> bool:
    """Tell whether a holder is certainly dead; False where it lives and where nobody can tell from here."""
    return lives(holder, me, ask)[0] is False


def read_holder(content: str) -> Holder | None:
    """Return the holder that a lock's text names, None where it is no such text; of older versions, what they said."""
    try:
        document = json.loads(content)
        names = {field.name for field in dataclasses.fields(Holder)} & document.keys()
        holder = Holder(**{name: document[name] for name in names})
    except (ValueError, TypeError, AttributeError, RecursionError):
        return None
    texts = (holder.host, holder.boot, holder.process_space, holder.since_utc, holder.job or "", holder.cluster or "")
    numbers = (holder.pid, holder.started_ticks, holder.restart, holder.job_uid or 0)
    if not all(isinstance(text, str) and text.isprintable() for text in texts):
        return None
    return holder if all(type(number) is int for number in numbers) and 0 < holder.pid < 2**31 else None


class Lock:
    """Holds a folder from `with` to the end of the block.

    Args:
        take_over: take it over from a holder of whom nobody can tell whether it is dead; never from one that lives.

    Raises:
        InputError: another run holds it, or may hold it, the line says who; or the file cannot be made.
    """

    def __init__(
        self,
        path: Path,
        ask: slurm.RunCommand = slurm.run_command,
        me: Callable[[], Holder] = myself,
        take_over: bool = False,
    ) -> None:
        self.path, self._ask, self._me, self._may_take_over = path, ask, me, take_over
        self._content = ""
        self.taken_from = ""

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
        mine = new_beside(self.path)
        with mine.open("x") as file:
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
        """Return the file's text, None without a file, "" where it is a link, a pipe or the like."""
        try:
            opened = os.open(self.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except FileNotFoundError:
            return None
        except OSError as error:
            if error.errno == errno.ELOOP:
                return ""
            raise
        with os.fdopen(opened, "rb") as file:
            is_file = stat.S_ISREG(os.fstat(opened).st_mode)
            return file.read(_LONGEST_BYTES).decode(errors="replace") if is_file else ""

    def _take_over(self, me: Holder) -> None:
        """Remove the lock of a dead holder; one process at a time does, and looks again before it does."""
        content = self._read()
        if content is None:
            return
        holder = read_holder(content)
        alive, why = lives(holder, me, self._ask) if holder else (None, "")
        if alive or (alive is None and not self._may_take_over):
            raise InputError(self._refusal(holder, alive, why))
        with Lock(self.path.with_name(f"{self.path.name}.takeover"), self._ask, self._me, self._may_take_over):
            if self._read() == content:
                self.path.unlink()
                gone = "which is gone" if holder and alive is False else "as --take-over says"
                self.taken_from = f"{holder or 'an unknown holder'}, {gone}"

    def _refusal(self, holder: Holder | None, alive: bool | None, why: str) -> str:
        if holder is None:
            return f"{self.path} says nothing of who holds the folder: if no run is at work there, --take-over"
        held = f"{self.path.parent} is held by {holder}"
        if alive:
            return f"{held}: wait for it, or choose another --output-dir"
        return (
            f"{held}, and nobody can tell from here whether that run is still at work ({why}): wait for it, choose "
            "another --output-dir, or, if you know that it has ended, --take-over"
        )


def release_all() -> None:
    """Let go of every lock of this process: its last act when it ends without unwinding."""
    for lock in _held.copy():
        lock.release()
