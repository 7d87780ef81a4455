"""Chooses how a kernel is cut for a convolution, on the card at hand, and remembers the choice on disk.

Choices lie in `$XDG_CACHE_HOME/convscope` (`~/.cache/convscope`), a file for each model of card, version of Triton and
state of these kernels' source: what was chosen for another is never taken unasked. The file may be deleted at any time.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import triton
from triton.compiler.errors import CompilationError
from triton.runtime.errors import OutOfResources, PTXASError

from convscope.errors import InputError
from convscope.timing import graphs

B = TypeVar("B")
"""A cut: a frozen data class of words, numbers and tuples of these."""
Launch = Callable[[], object]

_REPLAYS = 5
_BATCH_MS, _LAUNCHES_MOST = 0.2, 20  # short kernels are timed several in a row
_TOO_MUCH = (OutOfResources, PTXASError, CompilationError)  # of this card's shared memory or registers
_REFUSED = ("Triton Error", "PassManager::run failed")  # by the driver: a launch, or a tensor map; by the compiler


@dataclass(frozen=True)
class TunedBlocks(Generic[B]):
    """The cut chosen for a convolution, the time that it took when it was, and how many were tried.

    No time, and none tried: it was the likeliest, and taken as that.
    """

    blocks: B
    time_us: float | None = None
    tried: int = 0

    def __str__(self) -> str:
        timed = "" if self.time_us is None else f"; {self.time_us:.2f} us, best of {self.tried}"
        return f"{self.blocks}{timed}"


class NothingFitsError(RuntimeError):
    """No cut of a kernel fits this card."""


def is_refusal(error: BaseException) -> bool:
    """Tell whether this card, or its driver, cannot run a kernel as it is cut."""
    return isinstance(error, (*_TOO_MUCH, NothingFitsError)) or str(error).startswith(_REFUSED)


class BlockCache(Generic[B]):
    """Choices by convolution: those of a file, and those that are made.

    Args:
        path: the file to read, and to write unless `fixed`.
        kind: the data class of the cuts.
        fixed: take what the file has, and time nothing.
    """

    def __init__(self, path: Path, kind: type[B], fixed: bool = False) -> None:
        self.path, self.fixed = path, fixed
        self._kind = kind
        self.used: dict[str, TunedBlocks[B]] = {}

    @classmethod
    def of_file(cls, path: Path, kind: type[B]) -> BlockCache[B]:
        """Take the choices of a file as they are.

        Raises:
            InputError: it is no such file.
        """
        found = cls(path, kind, fixed=True)
        if not found._read():
            raise InputError(f"--load-tuned {path}: it holds no choices; leave it out, and they are made and kept")
        return found

    def choose(
        self, key: str, candidates: Sequence[B], launcher: Callable[[B], Launch], timed: bool = True
    ) -> TunedBlocks[B]:
        """Return the fastest of the candidates: as remembered, else timed now and remembered.

        Args:
            launcher: gives the function that convolves with one cut on the current device.
            timed: there is a card to time them on; without, or with `fixed`, the first is taken.

        Raises:
            NothingFitsError: none of them runs on this card.
        """
        found = self.used.get(key) or self._read().get(key)
        if found is None:
            found = _fastest(key, candidates, launcher) if timed and not self.fixed else TunedBlocks(candidates[0])
            if found.tried:
                self._remember(key, found)
        self.used[key] = found
        return found

    def _remember(self, key: str, choice: TunedBlocks[B]) -> None:
        # What another process remembers between the reading and the writing is forgotten, and timed again some day.
        with contextlib.suppress(OSError):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            new = self.path.with_name(f".{self.path.name}.{os.getpid()}")  # each process its own: nobody sees half
            new.write_text(as_text(self._read() | {key: choice}))
            new.replace(self.path)

    def _read(self) -> dict[str, TunedBlocks[B]]:
        try:
            document = json.loads(self.path.read_text())
            return {
                key: TunedBlocks(self._cut(entry["blocks"]), entry["time_us"], entry["tried"])
                for key, entry in document.items()
            }
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return {}  # missing or damaged: it is only a memory

    def _cut(self, fields: Mapping[str, Any]) -> B:
        plain = {name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()}
        return self._kind(**plain)


def as_text(choices: Mapping[str, TunedBlocks[B]]) -> str:
    """Return choices as the text of their file."""
    document = {key: dataclasses.asdict(choice) for key, choice in sorted(choices.items())}
    return json.dumps(document, indent=1) + "\n"


def cache_file(device_name: str, kernels: str) -> Path:
    """Return the file of choices for this model of card with this Triton and these kernels ("conv2d", "conv3d")."""
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "convscope"
    card = re.sub(r"[^a-z0-9]+", "-", device_name.lower()).strip("-")
    return folder / f"{kernels}_{card}_triton-{triton.__version__}_{_source_digest()}.json"


@functools.cache
def _source_digest() -> str:
    sources = sorted(Path(__file__).parent.rglob("*.py"))
    return hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()[:12]


def _fastest(key: str, candidates: Sequence[B], launcher: Callable[[B], Launch]) -> TunedBlocks[B]:
    timed = [(time_us, blocks) for blocks in candidates if (time_us := _time_or_refusal(launcher, blocks)) is not None]
    if not timed:
        raise NothingFitsError(f"no cut of {key} fits this card")
    time_us, blocks = min(timed, key=lambda each: each[0])
    return TunedBlocks(blocks, time_us, len(timed))


def _time_or_refusal(launcher: Callable[[B], Launch], blocks: B) -> float | None:
    try:
        return _time_us(launcher(blocks))
    except Exception as error:
        if is_refusal(error):
            return None
        raise


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
