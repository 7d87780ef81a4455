"""Chooses the block shapes of a kernel for a convolution, on the card at hand, and remembers the choice on disk.

The file lies in `$XDG_CACHE_HOME/convscope` (`~/.cache/convscope`), one for each model of card, version of Triton and
state of these kernels' source: what was chosen for another is never read. It may be deleted at any time.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import json
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import triton
from triton.compiler.errors import CompilationError
from triton.runtime.errors import OutOfResources, PTXASError

from convscope import graphs
from convscope.kernels.blocks import Blocks
from convscope.tables import write_atomically

Launch = Callable[[], object]

_REPLAYS = 5
_BATCH_MS, _LAUNCHES_MOST = 0.2, 20  # short kernels are timed several in a row
_TOO_MUCH = (OutOfResources, PTXASError, CompilationError)  # of this card's shared memory or registers


@dataclass(frozen=True)
class Choice:
    """The block shapes chosen for a convolution and the time that they took when they were; how many were tried."""

    blocks: Blocks
    time_us: float
    tried: int


class NothingFitsError(RuntimeError):
    """No block shape of a kernel fits this card."""


def choose(key: str, candidates: Sequence[Blocks], launcher: Callable[[Blocks], Launch], path: Path) -> Choice:
    """Return the fastest of the candidates: as the file remembers, else timed now and remembered.

    Args:
        launcher: gives the function that launches the kernel with some blocks on the current device.

    Raises:
        NothingFitsError: none of them runs on this card.
    """
    known = _read(path).get(key)
    if known is not None:
        return known
    times_us: dict[Blocks, float] = {}
    for blocks in candidates:
        with contextlib.suppress(*_TOO_MUCH):
            times_us[blocks] = _time_us(launcher(blocks))
    if not times_us:
        raise NothingFitsError(f"no block shape of {key} fits on {torch.cuda.get_device_name()}")
    best = min(times_us, key=lambda blocks: times_us[blocks])
    found = Choice(best, times_us[best], len(times_us))
    _remember(path, key, found)
    return found


def _time_us(launch: Launch) -> float:
    """Return the time of a launch inside a replayed graph, the shortest of some."""
    launch()
    with graphs.capture(launch) as captured:
        once_ms = min(graphs.replay_times_ms(captured, _REPLAYS))
    count = min(_LAUNCHES_MOST, int(_BATCH_MS / max(once_ms, 1e-3)))
    if count < 2:
        return once_ms * 1e3
    with graphs.capture(lambda: [launch() for _ in range(count)]) as captured:
        return min(graphs.replay_times_ms(captured, _REPLAYS)) / count * 1e3


@functools.cache
def cache_file(device_name: str) -> Path:
    """Return the file of choices for this model of card with this Triton and these kernels."""
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "convscope"
    sources = sorted(Path(__file__).parent.glob("*.py"))
    digest = hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()[:12]
    card = re.sub(r"[^a-z0-9]+", "-", device_name.lower())
    return folder / f"{card}_triton-{triton.__version__}_{digest}.json"


def _read(path: Path) -> dict[str, Choice]:
    try:
        document = json.loads(path.read_text())
        return {
            key: Choice(Blocks(**entry["blocks"]), entry["time_us"], entry["tried"]) for key, entry in document.items()
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}  # missing or damaged: it is only a memory


def _remember(path: Path, key: str, choice: Choice) -> None:
    # Another process may remember something at the same time: one of the two is then forgotten, and timed again.
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        every = _read(path) | {key: choice}
        document = {key: dataclasses.asdict(found) for key, found in sorted(every.items())}
        write_atomically(path, json.dumps(document, indent=1) + "\n")
