"""A signal that asks a run to stop: SLURM's warning before the time limit (`--signal=USR2@180`).

The run finishes the input size at hand, writes it, and ends with `STOPPED`; the batch script knows that number, and
puts the job into the queue again. USR2, because NCCL may catch USR1.
"""

from __future__ import annotations

import signal
from types import FrameType, TracebackType

STOPPED = 85
"""The exit code of a run that was asked to stop and has sizes left."""


class StopSignal:
    """Within the `with` block, remembers whether USR2 has come: calling the object tells."""

    def __init__(self) -> None:
        self._came = False

    def __enter__(self) -> StopSignal:
        self._before = signal.signal(signal.SIGUSR2, self._remember)
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        signal.signal(signal.SIGUSR2, self._before)

    def __call__(self) -> bool:
        """Tell whether the signal has come."""
        return self._came

    def _remember(self, number: int, frame: FrameType | None) -> None:
        self._came = True
