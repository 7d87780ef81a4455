"""The errors that end a command in one line, each with its exit code."""

from __future__ import annotations


class StopError(Exception):
    """Say in one line what is wrong, what would be right, and what to do; the command ends with `exit_code`."""

    exit_code = 1


class InputError(StopError, ValueError):
    """What was asked for cannot be; the user's to mend."""

    exit_code = 2


class DeviceFaultError(StopError):
    """The GPU, or this process's hold on it, is lost (EX_SOFTWARE)."""

    exit_code = 70


class WriteError(StopError):
    """What is measured cannot be written any more: disk full, read-only, folder gone (EX_IOERR)."""

    exit_code = 74
