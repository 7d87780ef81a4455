"""The stage scripts, called without a SLURM."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from fakes import ROOT


def call(
    *arguments: str, script: str = "1_sanity_check.sh", config: Path | str = "/nonexistent", **more: str
) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"CONVSCOPE_CONFIG": str(config)} | more
    return subprocess.run(
        [str(ROOT / script), *arguments], capture_output=True, text=True, check=False, env=environment
    )
