"""Common parts of the command lines: errors are one line and an exit code."""

from __future__ import annotations

import argparse
import faulthandler
import os
import sys
from collections.abc import Callable, Collection, Sequence
from typing import NoReturn

from convscope.cli.signals import GRACE_S, StopSignal
from convscope.errors import DeviceFaultError, StopError
from convscope.storage.lock import release_all

_kept: list[DeviceFaultError] = []


class OneLineParser(argparse.ArgumentParser):
    """Prints one line for bad arguments, exit code 2."""

    def error(self, message: str) -> NoReturn:
        """End the program with this message on one line."""
        self.exit(2, f"{self.prog}: {one_line(message)} (--help lists the options)\n")

    def add_take_over(self) -> None:
        """Add the option of every command that locks a folder."""
        unknown = "take over a folder whose holder has ended, where nobody can tell from here whether it has"
        self.add_argument("--take-over", action="store_true", help=unknown)

    def refuse_ignored(self, arguments: Sequence[str] | None, ignored: Collection[str], by: str) -> None:
        """End the program with one line where the command line gives an option that has no effect.

        Args:
            arguments: as `parse_args` took them; a value that is the default counts as given too.
            ignored: names of the options without dashes: "max_workspace".
            by: what makes no use of them: "--choice".
        """
        absent = object()  # argparse writes no default over an attribute that is there
        names = [action.dest for action in self._actions if action.default != argparse.SUPPRESS]
        given = self.parse_args(arguments, argparse.Namespace(**dict.fromkeys(names, absent)))
        refused = [f"--{name.replace('_', '-')}" for name in ignored if getattr(given, self._dest(name)) is not absent]
        if refused:
            self.error(f"{by} makes no use of {', '.join(refused)}: leave {'it' if len(refused) == 1 else 'them'} out")

    def _dest(self, name: str) -> str:
        return self._option_string_actions[f"--{name.replace('_', '-')}"].dest


def report_error(program: str, error: StopError) -> int:
    """Print an error on one line; return the exit code.

    With the error of a lost GPU everything is kept that its traceback holds: taking down what lives there may abort.
    """
    print(f"{program}: {one_line(error)}", file=sys.stderr)
    if isinstance(error, DeviceFaultError):
        _kept.append(error)
    return error.exit_code


def command(name: str, work: Callable[[StopSignal], int], grace_s: float = GRACE_S) -> int:
    """Do the work of a command, which may be asked to stop; return the exit code.

    Args:
        work: called with the signal that asks to stop; an error that ends the command is printed on one line.
        grace_s: time from TERM, INT or USR1 to the end of the process.
    """
    try:
        with StopSignal(grace_s, name, release_all) as stop:  # before PyTorch loads: the signal may come at any time
            return work(stop)
    except StopError as error:
        return report_error(name, error)


def note_by(name: str) -> Callable[[str], None]:
    """Return a function that prints a line on the standard error behind a command's name."""
    return lambda line: print(f"{name}: {line}", file=sys.stderr, flush=True)


def say_nothing(line: str) -> None:
    """Leave a line to the first of several processes to print."""


def as_program(main: Callable[[], int]) -> int:
    """Run a command line as a program: a reader that has gone away (`| head`) is no error.

    Where native code crashes, the standard error says in which call of Python. Returns the exit code; where a GPU was
    lost the process ends here, and nothing of it is taken down.
    """
    faulthandler.enable()
    try:
        code = main()
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    if code == DeviceFaultError.exit_code:
        sys.stderr.flush()
        os._exit(code)
    return code


def split_flags(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return what stands before the first "--", and what stands after it: flags for another program."""
    at = arguments.index("--") if "--" in arguments else len(arguments)
    return list(arguments[:at]), list(arguments[at + 1 :])


def one_line(text: object) -> str:
    """Return a message, and what it quotes, as one line that a terminal can show."""
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in str(text))
