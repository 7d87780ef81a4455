"""Starts runs in processes of their own, cheaply, and looks at what is left of them."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from convscope.profiling.rows import profile_store
from convscope.storage import lock
from fakes import both, tiny

STEM = "tiny_torch"
SIZES = (32, 36, 40, 44, 48)
SETTINGS = ["--model", tiny.NAME, "--algorithm", "torch", "--device", "cpu", "--no-energy"]
FAST = [*SETTINGS, "--warmup", "0", "--measure", "1", "--num-sizes", "5", "--input-range", "32", "48"]
CONVOLUTIONS = tiny.CONVOLUTIONS

# The clock of a process goes two hours back while there is a file of the name in its variable CLOCK_BACK.
SHIM = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>
static long back(void) { const char *flag = getenv("CLOCK_BACK"); return flag && !access(flag, F_OK) ? 7200 : 0; }
int clock_gettime(clockid_t id, struct timespec *now) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
    int status = real(id, now);
    if (id == CLOCK_REALTIME) now->tv_sec -= back();
    return status;
}
time_t time(time_t *at) {
    struct timespec now; clock_gettime(CLOCK_REALTIME, &now); if (at) *at = now.tv_sec; return now.tv_sec;
}
int gettimeofday(struct timeval *now, void *zone) {
    struct timespec exact; clock_gettime(CLOCK_REALTIME, &exact);
    now->tv_sec = exact.tv_sec; now->tv_usec = exact.tv_nsec / 1000; return 0;
}
"""


def clock_shim(folder: Path) -> dict[str, str]:
    """Return the variable with which a process has such a clock; none without a C compiler."""
    if not shutil.which("cc"):
        return {}
    made = folder / "shim.so"
    command = ["cc", "-shared", "-fPIC", "-o", str(made), "-x", "c", "-", "-ldl"]
    subprocess.run(command, input=SHIM, text=True, check=True)
    return {"LD_PRELOAD": str(made)}


def mount_namespaces() -> bool:
    """Tell whether processes may have a mount namespace of their own here."""
    command = ["unshare", "-rm", "sh", "-c", "mount -t tmpfs none /mnt"]
    return bool(shutil.which("unshare")) and subprocess.run(command, capture_output=True, check=False).returncode == 0


class Victims:
    """A server of processes that each run run_profile.py, or run_training.py (victim.py).

    Args:
        namespace: run them all in a mount namespace, in which `mount` mounts.
        environment: added to the server's.
    """

    def __init__(self, namespace: bool = False, **environment: str) -> None:
        self._namespace, self._environment = namespace, environment

    def __enter__(self) -> Victims:
        command = [sys.executable, str(Path(__file__).with_name("victim.py"))]
        if self._namespace:
            command = ["unshare", "-rm", *command]
        environment = os.environ | self._environment
        self._server = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        self._running: list[int] = []
        self._ask({"ready": True})
        return self

    def __exit__(self, *error: object) -> None:
        for process in self._running:  # a test that failed left it
            os.kill(process, signal.SIGKILL)
        assert self._server.stdin is not None
        self._server.stdin.close()
        self._server.wait(60)
        assert self._server.stdout is not None
        self._server.stdout.close()

    def start(self, folder: Path, *more: str, **request: object) -> int:
        """Start a run; return its process number."""
        return self.run(folder, *FAST, *more, **request)

    def run(self, folder: Path, *arguments: str, **request: object) -> int:
        """Start a run with these arguments alone; return its process number."""
        asked = {"arguments": [*arguments, "--output-dir", str(folder)], "log": f"{folder}.log"} | request
        self._running.append(self._ask(asked))
        return self._running[-1]

    def end(self) -> int:
        """Wait for the end of the run that was started last; return its exit code, negative for a signal."""
        code = os.waitstatus_to_exitcode(self._ask({"wait": self._running[-1]}))
        self._running.pop()
        return code

    def mount(self, *arguments: str) -> None:
        """Mount what the runs are to see, as `mount` does; again while a run has a file open for writing."""
        inside = ["nsenter", f"--target={self._server.pid}", "--user", "--mount", "--preserve-credentials"]
        command = [*inside, "mount", *arguments]
        wait_for(lambda: subprocess.run(command, check=False).returncode == 0)

    def seen(self, path: Path) -> Path:
        """Return the path under which this process reaches what the runs see at a path."""
        return Path(f"/proc/{self._server.pid}/root{path}")

    def _ask(self, request: dict[str, object]) -> int:
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.write(json.dumps(request) + "\n")
        self._server.stdin.flush()
        return int(self._server.stdout.readline())

    def finish(self, folder: Path, *more: str) -> int:
        """Run to the end."""
        self.start(folder, *more)
        return self.end()


def assert_whole(folder: Path, sizes: tuple[int, ...] = SIZES) -> None:
    """Every size once, with each of its layers once, and its work; nothing else in the folder."""
    overall, layers = both(profile_store(folder, STEM))
    assert sorted(overall["input_size"]) == list(sizes)
    assert set(overall["status"]) == {"ok"}
    keys = sorted(zip(layers["input_size"], layers["position"], strict=True))
    assert keys == [(size, position) for size in sizes for position in range(CONVOLUTIONS)]
    assert {*profile_store(folder, STEM).read("work")["input_size"]} == {*sizes}
    expected = {f"{STEM}_layers.csv", f"{STEM}_overall.csv", f"{STEM}_work.csv", "run.json"}
    assert {path.name for path in folder.iterdir()} == expected
    document = json.loads((folder / "run.json").read_text())
    assert document["started_utc"] <= document["ended_utc"]


def is_at_work(process: int) -> bool:
    """Tell whether a process runs, and is no zombie."""
    state, _ = lock._state(process) or ("X", 0)
    return state not in ("Z", "X")


def wait_for(what, seconds: float = 60) -> None:
    """Wait until a condition holds."""
    until_s = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < until_s, "waited in vain"
        time.sleep(0.002)
