"""GPU of a test process among several: chosen before PyTorch is imported."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

WORKER, VISIBLE = "PYTEST_XDIST_WORKER", "CUDA_VISIBLE_DEVICES"


def card_of(worker: str, cards: Sequence[str]) -> str:
    """Return the GPU of a process (pytest-xdist's "gw3"): they take turns of the GPUs."""
    return cards[int(re.sub(r"\D", "", worker) or 0) % len(cards)]


def choice(environment: Mapping[str, str] = os.environ, devices: Path = Path("/dev")) -> dict[str, str]:
    """Return the variable that gives a process of pytest-xdist its GPU; nothing elsewhere, or where there is none."""
    numbers = sorted(int(path.name[6:]) for path in devices.glob("nvidia[0-9]*"))
    cards = environment[VISIBLE].split(",") if environment.get(VISIBLE) else [*map(str, numbers)]
    worker = environment.get(WORKER)
    return {VISIBLE: card_of(worker, cards)} if worker and numbers else {}
