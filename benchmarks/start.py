#!/usr/bin/env python3
"""Time of the commands that measure nothing: help, a typo, lists, status. Prints a table, asserts nothing.

python benchmarks/start.py [REPEATS]

Each runs in a process of its own, some times; the median counts, and the slowest stands beside it.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from convscope.cli.display import table

ROOT = Path(__file__).resolve().parent.parent
COMMANDS_OF_CONVSCOPE = ("report", "figures", "summary", "compare", "dataset", "check", "predict", "select", "plans")
PROGRAMS = ("run_profile.py", "run_verify.py", "run_inference.py", "run_training.py", "run_conv3d.py", "run_dataset.py")
COMMANDS = (
    *((sys.executable, program, "--help") for program in PROGRAMS),
    (sys.executable, "run_profile.py", "--modle", "resnet50"),
    (sys.executable, "run_profile.py", "--list-models"),
    (sys.executable, "-m", "convscope", "--help"),
    *((sys.executable, "-m", "convscope", name, "--help") for name in COMMANDS_OF_CONVSCOPE),
    ("./check_status.sh",),
)


def main() -> int:
    """Print the median and the slowest time of each command."""
    repeats = int(sys.argv[1]) if len(sys.argv) > 1 else 7
    cells = []
    for command in COMMANDS:
        times_s = []
        for _ in range(repeats):
            started_s = time.perf_counter()
            subprocess.run(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
            times_s.append(time.perf_counter() - started_s)
        named = " ".join("python" if part == sys.executable else part for part in command)
        cells.append((named, f"{median(times_s):.2f}", f"{max(times_s):.2f}"))
    print(table(("command", "median, s", "slowest, s"), cells))
    return 0


if __name__ == "__main__":
    sys.exit(main())
