"""Autotuning of a kernel's block sizes for a convolution on the current card, with a cache on disk.

Choices are kept in `$XDG_CACHE_HOME/convscope` (`~/.cache/convscope`), one file for each model of card, version of
Triton and version of the kernels' source; a file of another is used only when it is named. The files may be deleted at
any time.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import importlib.metadata
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch

from convscope.errors import InputError, NothingFitsError
from convscope.failures import is_kernel_refusal
from convscope.storage.paths import cache_folder
from convscope.storage.table import write_atomically
from convscope.timing.stopwatch import Stopwatch

B = TypeVar("B")
"""Block sizes of a kernel: a frozen data class of strings, numbers and tuples of these."""
Launch = Callable[[], object]

_REPLAYS = 5
_BATCH_MS, _LAUNCHES_MOST = 0.2, 20  # short kernels are timed several in a row


@dataclass(frozen=True)
class TunedBlocks(Generic[B]):
    """Block sizes chosen for a convolution, their time, and the number of candidates tried.

    Without a time, and with none tried, they are the first candidate, taken untimed.
    """

    blocks: B
    time_us: float | None = None
    tried: int = 0

    def __str__(self) -> str:
        timed = "" if self.time_us is None else f"; {self.time_us:.2f} us, best of {self.tried}"
        return f"{self.blocks}{timed}"


class BlockCache(Generic[B]):
    """Block sizes by convolution: those of a file, and those chosen since.

    Args:
        path: the file to read, and to write unless `fixed`.
        kind: the data class of the block sizes.
        fixed: use the file only, and time nothing.
    """

    def __init__(self, path: Path, kind: type[B], fixed: bool = False) -> None:
        self.path, self.fixed = path, fixed
        self._kind = kind
        self.used: dict[str, TunedBlocks[B]] = {}

    @classmethod
    def of_file(cls, path: Path, kind: type[B]) -> BlockCache[B]:
        """Return the fixed choices of a file.

        Raises:
            InputError: there is no such file, or it has none.
        """
        cache = cls(path, kind, fixed=True)
        if not path.exists():
            raise InputError(f"--load-tuned {path}: there is no such file; leave it out, and choices are made and kept")
        if not cache._read():
            raise InputError(f"--load-tuned {path}: it holds no choices; leave it out, and they are made and kept")
        return cache

    def choose(
        self, key: str, candidates: Sequence[B], launcher: Callable[[B], Launch], timed: bool = True
    ) -> TunedBlocks[B]:
        """Return the fastest of the candidates, from the cache, else timed now and cached.

        Args:
            launcher: returns the function that convolves with some block sizes on the current device.
            timed: there is a card to time them on; without, or with `fixed`, the first candidate is taken.

        A candidate for which there is no memory is passed over, and the choice then not kept on disk.

        Raises:
            NothingFitsError: none of them runs on this card.
            torch.OutOfMemoryError: there is memory for none.
        """
        tuned = self.used.get(key) or self._read().get(key)
        if tuned is None:
            tuned, is_final = TunedBlocks(candidates[0]), False
            if timed and not self.fixed:
                tuned, is_final = _fastest(key, candidates, launcher)
            if is_final:
                self._remember(key, tuned)
        self.used[key] = tuned
        return tuned

    def _remember(self, key: str, choice: TunedBlocks[B]) -> None:
        # An entry that another process writes between the reading and the writing is lost, and timed again later.
        with contextlib.suppress(OSError):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(self.path, as_text(self._read() | {key: choice}))

    def _read(self) -> dict[str, TunedBlocks[B]]:
        try:
            document = json.loads(self.path.read_text())
            return {
                key: TunedBlocks(self._blocks(entry["blocks"]), entry["time_us"], entry["tried"])
                for key, entry in document.items()
            }
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return {}  # missing or damaged: it is only a cache

    def _blocks(self, fields: Mapping[str, Any]) -> B:
        plain = {name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()}
        return self._kind(**plain)


def as_text(choices: Mapping[str, TunedBlocks[B]]) -> str:
    """Return choices as the text of a cache file."""
    document = {key: dataclasses.asdict(choice) for key, choice in sorted(choices.items())}
    return json.dumps(document, indent=1) + "\n"


def cache_file(device_name: str, kernels: str) -> Path:
    """Return the cache file of this model of card, this Triton and these kernels ("conv2d", "conv3d")."""
    card = re.sub(r"[^a-z0-9]+", "-", device_name.lower()).strip("-")
    return cache_folder() / f"{kernels}_{card}_triton-{_triton_version()}_{_source_digest()}.json"


def _triton_version() -> str:
    try:
        return importlib.metadata.version("triton")
    except importlib.metadata.PackageNotFoundError:
        return "none"


@functools.cache
def _source_digest() -> str:
    sources = sorted(Path(__file__).parent.rglob("*.py"))
    return hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()[:12]


def _fastest(key: str, candidates: Sequence[B], launcher: Callable[[B], Launch]) -> tuple[TunedBlocks[B], bool]:
    """Return the fastest candidate, and whether all were tried that this card can run: some may lack memory just now.

    Raises:
        torch.OutOfMemoryError: there is memory for none.
        NothingFitsError: the card can run none.
    """
    found = [(_time_or_error(launcher, blocks), blocks) for blocks in candidates]
    full = next((result for result, _ in found if isinstance(result, torch.OutOfMemoryError)), None)
    timed = [(result, blocks) for result, blocks in found if isinstance(result, float)]
    if not timed:
        raise full or NothingFitsError(f"no cut of {key} fits this card")
    time_us, best = min(timed, key=lambda each: each[0])
    return TunedBlocks(best, time_us, len(timed)), full is None


def _time_or_error(launcher: Callable[[B], Launch], blocks: B) -> float | Exception:
    """Return the time in µs, or the error where this card, or the memory that is free, cannot run these blocks."""
    try:
        return time_us(launcher(blocks))
    except Exception as error:
        if is_kernel_refusal(error) or isinstance(error, torch.OutOfMemoryError):
            return error.with_traceback(None)  # which would keep its tensors alive
        raise


def time_us(launch: Launch) -> float:
    """Return the shortest time of a launch inside a replayed graph."""
    stopwatch = Stopwatch(torch.device("cuda"))
    return stopwatch.measure_calls(launch, calls=_launches, samples=_REPLAYS, probes=_REPLAYS).best_ms * 1e3


def _launches(single_ms: float) -> int:
    return min(_LAUNCHES_MOST, int(_BATCH_MS / max(single_ms, 1e-3)))
