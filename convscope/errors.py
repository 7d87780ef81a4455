"""The errors that end a command in one line, each with its exit code."""

from __future__ import annotations

CONTINUE = "run the same command again to continue"
"""Advice at the end of a message: what was measured is kept."""


class StopError(Exception):
    """Say in one line what is wrong, what would be right, and what to do; the command ends with `exit_code`."""

    exit_code = 1


class InputError(StopError, ValueError):
    """A request that cannot be met; the user's to mend."""

    exit_code = 2


class ElsewhereError(InputError):
    """A model needs what is not on this machine, and may be on another: a library, or the folder of its file."""


class DeviceFaultError(StopError):
    """The GPU, or this process's hold on it, is lost (EX_SOFTWARE)."""

    exit_code = 70


class CompilerEndedError(StopError):
    """The signal that asks a run to end has reached a compiler that it had started: nothing is known of its cell.

    The code of the signal takes precedence over this one (EX_TEMPFAIL).
    """

    exit_code = 75


class WriteError(StopError):
    """Results cannot be written any more: disk full, read-only, folder gone (EX_IOERR)."""

    exit_code = 74


class MissingError(InputError):
    """An engine is not available here; the message says how to install it."""


class WorkerError(RuntimeError):
    """The process that runs an engine ended; the message is the last that it said."""


class CudnnError(RuntimeError):
    """A cuDNN call failed; the message names the call and the status."""


class CudnnMissingError(CudnnError):
    """There is no cuDNN library on this machine."""


class NotSupportedError(CudnnError):
    """cuDNN refuses this algorithm for this convolution on this card."""


class NothingFitsError(RuntimeError):
    """No blocks of a kernel fit this card."""


class WindowError(ValueError):
    """The readings do not carry a window; the message says what is missing."""


class SensorError(RuntimeError):
    """A sensor does not answer; the message says which and why."""


class HookMismatchError(RuntimeError):
    """The convolutions that ran are not those that the model's description lists."""


class HostTooSlowError(RuntimeError):
    """The host never got its launch out before the spin in front of it ended."""


class NotCapturableError(RuntimeError):
    """A pass cannot be captured as a CUDA graph; the message has CUDA's or PyTorch's reason."""


class TraceMissingError(RuntimeError):
    """CUPTI gave no kernels: it is not permitted here, or another profiler holds it."""
