"""Chooses the blocks of a 3-D convolution on the card at hand, and remembers the choice on disk.

Choices lie in `$XDG_CACHE_HOME/convscope` (`~/.cache/convscope`), a file for each model of card, version of Triton and
state of these kernels' source: what was chosen for another is never taken unasked. The file may be deleted at any time.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import triton
from triton.compiler.errors import CompilationError
from triton.runtime.errors import OutOfResources, PTXASError

from convscope import graphs
from convscope.errors import InputError
from convscope.kernels.conv3d_layout import Blocks
from convscope.tables import write_atomically

_REPLAYS = 5
_TOO_MUCH = (OutOfResources, PTXASError, CompilationError)  # of this card's shared memory or registers


@dataclass(frozen=True)
class Choice:
    """The blocks chosen for a shape, the time that they took when they were, and how many were tried."""

    blocks: Blocks
    time_us: float | None = None
    tried: int = 0


class NothingFitsError(RuntimeError):
    """No blocks of a kernel fit this card."""


class Memory:
    """Choices by shape: those of a file, and those that are made.

    Args:
        path: the file to read, and to write unless `fixed`.
        fixed: take what the file has, and time nothing.
    """

    def __init__(self, path: Path, fixed: bool = False) -> None:
        self.path, self.fixed = path, fixed
        self.used: dict[str, Choice] = {}

    @classmethod
    def of_file(cls, path: Path) -> Memory:
        """Take the choices of a file as they are.

        Raises:
            InputError: it is no such file.
        """
        if not _read(path):
            raise InputError(f"--load-tuned {path}: it holds no choices; leave it out, and they are made and kept")
        return cls(path, fixed=True)

    def choose(
        self, key: str, candidates: Sequence[Blocks], launcher: Callable[[Blocks], Callable[[], object]], timed: bool
    ) -> Choice:
        """Return the fastest of the candidates: as remembered, else timed now and remembered.

        Args:
            launcher: gives the function that convolves with some blocks on the current device.
            timed: there is a card to time them on; without, or with `fixed`, the likeliest is taken.

        Raises:
            NothingFitsError: none of them runs on this card.
        """
        found = self.used.get(key) or _read(self.path).get(key)
        if found is None:
            found = fastest(key, candidates, launcher) if timed and not self.fixed else Choice(candidates[0])
            if found.tried:
                self._remember(key, found)
        self.used[key] = found
        return found

    def _remember(self, key: str, choice: Choice) -> None:
        # Another process may remember something at the same time: one of the two is then forgotten, and timed again.
        with contextlib.suppress(OSError):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(self.path, as_text(_read(self.path) | {key: choice}))


def fastest(key: str, candidates: Sequence[Blocks], launcher: Callable[[Blocks], Callable[[], object]]) -> Choice:
    """Time every candidate and return the fastest.

    Raises:
        NothingFitsError: none of them runs on this card.
    """
    found = {blocks: _time_or_refusal(launcher, blocks) for blocks in candidates}
    times_us = {blocks: time_us for blocks, time_us in found.items() if time_us is not None}
    if not times_us:
        raise NothingFitsError(f"no blocks of {key} fit this card")
    best = min(times_us, key=lambda blocks: times_us[blocks])
    return Choice(best, times_us[best], len(times_us))


def is_refusal(error: BaseException) -> bool:
    """Tell whether this card, or its driver, cannot run a kernel as it is cut."""
    return isinstance(error, (*_TOO_MUCH, NothingFitsError)) or str(error).startswith("Triton Error")


def _time_or_refusal(launcher: Callable[[Blocks], Callable[[], object]], blocks: Blocks) -> float | None:
    try:
        return _time_us(launcher(blocks))
    except Exception as error:
        if is_refusal(error):
            return None
        raise


def _time_us(launch: Callable[[], object]) -> float:
    """Return the time of a call inside a replayed graph, the shortest of some."""
    launch()
    with graphs.capture(launch) as captured:
        return min(graphs.replay_times_ms(captured, _REPLAYS)) * 1e3


def cache_file(device_name: str) -> Path:
    """Return the file of choices for this model of card with this Triton and these kernels."""
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "convscope"
    sources = sorted(Path(__file__).parent.glob("conv3d_*.py"))
    digest = hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()[:12]
    card = re.sub(r"[^a-z0-9]+", "-", device_name.lower()).strip("-")
    return folder / f"conv3d_{card}_triton-{triton.__version__}_{digest}.json"


def as_text(choices: dict[str, Choice]) -> str:
    """Return choices as the text of their file."""
    document = {key: dataclasses.asdict(choice) for key, choice in sorted(choices.items())}
    return json.dumps(document, indent=1) + "\n"


def _read(path: Path) -> dict[str, Choice]:
    try:
        document = json.loads(path.read_text())
        return {
            key: Choice(_blocks(entry["blocks"]), entry["time_us"], entry["tried"]) for key, entry in document.items()
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}  # missing or damaged: it is only a memory


def _blocks(entry: dict[str, object]) -> Blocks:
    depth, height, width = map(int, entry.pop("box"))  # type: ignore[call-overload]
    return Blocks(**entry, box=(depth, height, width))  # type: ignore[arg-type]
