"""Runs run_profile.py again and again in processes that may be killed: PyTorch is loaded once, each run is a fork.

Reads a line of JSON for each run: `arguments`, `log` (a file for what it prints), and optionally `program`
(run_training instead), `environment` (variables), and `die_at`, the number of the step on the file system below
`below` at which the process kills itself with SIGKILL. Answers with the run's
process number; to `{"wait": number}` with its status, as `os.waitpid` gives it, when it has ended; to `{"ready": true}`
with 0. Nothing is found on the PATH: git's answer would take as long as a size here.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
STEPS = ("open", "os.rename", "os.link", "os.remove", "os.mkdir", "shutil.copyfile")


def main() -> None:
    sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
    import pytest
    import torch

    torch.set_num_threads(1)  # a pool of threads would not outlive the fork
    import profiler  # noqa: F401
    import run_profile
    import run_training
    from convscope.cli.parser import as_program
    from convscope.convolution import models
    from convscope.profiling import report
    from convscope.training import study
    from fakes import tiny

    assert report
    assert study
    tiny.register(pytest.MonkeyPatch())
    for size in (32, 40):
        models.convolutions(tiny.NAME, size)
    os.environ["PATH"] = ""
    gc.collect()
    gc.freeze()  # a collection in a fork would copy every page that it looks at
    for line in sys.stdin:
        request = json.loads(line)
        if "ready" in request:
            print(0, flush=True)
            continue
        if "wait" in request:
            print(os.waitpid(request["wait"], 0)[1], flush=True)
            continue
        number = os.fork()
        if number == 0:
            program = request.get("program", "run_profile")
            sys.argv = [f"{program}.py", *request["arguments"]]
            os.environ |= request.get("environment", {})
            log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(log, 1)
            os.dup2(log, 2)
            os.close(0)
            if request.get("die_at"):
                _die(request["die_at"], request["below"])
            try:
                code = as_program({"run_profile": run_profile, "run_training": run_training}[program].main)
                sys.stdout.flush()
            except SystemExit as ended:
                code = ended.code
            except BaseException:
                import traceback

                traceback.print_exc()
                code = 99
            os._exit(code)
        print(number, flush=True)


def _die(at: int, below: str) -> None:
    """Kill this process just before its `at`-th step on the file system below a folder."""
    steps = 0

    def count(event: str, arguments: tuple) -> None:
        nonlocal steps
        if event in STEPS and any(str(argument).startswith(below) for argument in arguments[:2]):
            steps += 1
            if steps == at:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(count)


if __name__ == "__main__":
    main()
