"""USR2 ends a sweep after the size at hand; the same command goes on with the sizes that are missing."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd

ROOT = Path(__file__).parents[1]
COMMAND = [sys.executable, str(ROOT / "run_profile.py"), "--model", "alexnet", "--algorithm", "torch"]
SIZES = ["--num-sizes", "40", "--input-range", "64", "103"]
SETTINGS = [*SIZES, "--device", "cpu", "--warmup", "1", "--measure", "20", "--no-energy"]


def test_a_run_that_is_warned_ends_with_85_between_sizes_and_goes_on_later(tmp_path: Path):
    command = [*COMMAND, *SETTINGS, "--output-dir", str(tmp_path)]
    overall = tmp_path / "alexnet_torch_overall.csv"
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as run:
        deadline_s = time.monotonic() + 60
        while not (overall.exists() and len(overall.read_text().splitlines()) > 2) and time.monotonic() < deadline_s:
            time.sleep(0.01)
        run.send_signal(signal.SIGUSR2)
        _, said = run.communicate(timeout=60)
    assert run.returncode == 85
    assert "stopped by USR2 after" in said
    done = pd.read_csv(overall)["input_size"].tolist()
    assert 0 < len(done) < 40
    assert set(pd.read_csv(tmp_path / "alexnet_torch_layers.csv")["input_size"]) == set(done)
    again = subprocess.run(command, capture_output=True, text=True, check=False)
    assert again.returncode == 0
    assert pd.read_csv(overall)["input_size"].tolist() == list(range(64, 104))
