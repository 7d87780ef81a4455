"""Common parts of the command lines: errors are one line and an exit code."""

from __future__ import annotations

import argparse
import contextlib
import errno
import faulthandler
import gc
import io
import os
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, NoReturn, TextIO

from convscope.cli.encoding import allow_every_sign
from convscope.cli.signals import GRACE_S, StopSignal
from convscope.errors import CompilerEndedError, DeviceFaultError, InputError, StopError, WriteError
from convscope.storage.lock import release_all

_kept: list[DeviceFaultError] = []


USAGE_LINES_MOST = 3


class OneLineParser(argparse.ArgumentParser):
    """Prints one line for bad arguments, exit code 2; with examples its help begins with them.

    Args:
        examples: the arguments of each, without its program: "--model alexnet --algorithm direct".
    """

    def __init__(self, *arguments: Any, examples: Sequence[str] = (), **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self._examples = tuple(examples)

    def format_help(self) -> str:
        """Return the help text; examples stand behind a usage that is short enough to see both."""
        whole, usage = super().format_help(), self.format_usage()
        if not self._examples:
            return whole
        lines = (f"  {_typed(self.prog)} {each}".rstrip() for each in self._examples)
        short = usage if usage.count("\n") <= USAGE_LINES_MOST else self._needed_usage()
        return "\n".join([short, "examples:", *lines, whole.removeprefix(usage)])

    def _needed_usage(self) -> str:
        """Return the usage with those arguments alone that must be given."""
        formatter = self._get_formatter()
        needed = [each for each in self._actions if each.required or not each.option_strings]
        formatter.add_usage(None, needed, [])
        return f"{formatter.format_help().rstrip()} [OPTION …]\n"

    def error(self, message: str) -> NoReturn:
        """End the program with this message on one line."""
        self.exit(2, f"{self.prog}: {one_line(message)} (--help lists the options)\n")

    def add_take_over(self) -> None:
        """Add the option of every command that locks a folder."""
        unknown = "take over a folder that is locked by a process on another machine, if that has ended"
        self.add_argument("--take-over", action="store_true", help=unknown)

    def add_model_args(self) -> None:
        """Add the option of every command that builds a model."""
        text = "arguments of a model that is built by a callable, a library or a configuration"
        self.add_argument("--model-args", nargs="+", default=(), metavar="KEY=VALUE", help=text)

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

    def option_names(self) -> list[str]:
        """Return the names of all options that `refuse_ignored` takes, without dashes: "max_workspace"."""
        named = [each for each in self._actions if each.option_strings and each.default != argparse.SUPPRESS]
        return [each.option_strings[0].lstrip("-").replace("-", "_") for each in named]

    def _dest(self, name: str) -> str:
        return self._option_string_actions[f"--{name.replace('_', '-')}"].dest


def _typed(program: str) -> str:
    """Return the words that start a program: "python run_profile.py", "./check_status.sh"."""
    return f"python {program}" if program.endswith(".py") else f"./{program}" if program.endswith(".sh") else program


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """Look for no garbage in the block: among hundreds of thousands of new objects that takes half of the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def report_error(program: str, error: StopError) -> int:
    """Print an error on one line; return the exit code.

    With the error of a lost GPU everything is kept that its traceback holds: taking down what lives there may abort.
    """
    print(f"{program}: {one_line(error)}", file=sys.stderr)
    if isinstance(error, DeviceFaultError):
        _kept.append(error)
    return error.exit_code


def report_missing(name: str, error: ModuleNotFoundError) -> int:
    """Print which package a command needs and this Python does not have; return the exit code.

    Raises:
        ModuleNotFoundError: the error itself, where it is a module of this project.
    """
    if error.name is None or error.name.startswith("convscope"):
        raise error
    here = f"needs {error.name}, which {sys.executable} does not have"
    advice = f"activate the environment of this project, or {sys.executable} -m pip install {error.name}"
    print(f"{name}: {here}: {advice}", file=sys.stderr)
    return InputError.exit_code


def command(name: str, work: Callable[[StopSignal], int], grace_s: float = GRACE_S) -> int:
    """Do the work of a command, which may be asked to stop; return the exit code.

    Args:
        work: called with the signal that asks to stop; an error that ends the command is printed on one line.
        grace_s: time from TERM, INT, HUP or USR1 to the end of the process.
    """
    stop = StopSignal(grace_s, name, release_all)
    try:
        with stop:  # before PyTorch loads: the signal may come at any time
            return work(stop)
    except CompilerEndedError as error:
        code = report_error(name, error)
        return stop.exit_code if stop() else code
    except StopError as error:
        return report_error(name, error)
    except ModuleNotFoundError as error:
        return report_missing(name, error)


def note_by(name: str) -> Callable[[str], None]:
    """Return a function that prints a line on the standard error behind a command's name."""
    return lambda line: print(f"{name}: {one_line(line)}", file=sys.stderr, flush=True)


def say_nothing(line: str) -> None:
    """Leave a line to the first of several processes to print."""


class _Output(io.FileIO):
    """Standard stream that is written to as long as somebody reads it; `error` is what went wrong otherwise."""

    error: OSError | None = None
    has_gone = False

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except OSError as error:
            self.has_gone = error.errno in (errno.EPIPE, errno.EIO)  # EIO: a terminal that was closed
            if not self.has_gone:
                self.error = error
            _open_null(self.fileno())
            return len(data)


def reader_has_gone() -> bool:
    """Tell whether nobody reads the standard output of a program any more (`| head`)."""
    raw = getattr(getattr(sys.stdout, "buffer", None), "raw", None)
    return isinstance(raw, _Output) and raw.has_gone


def _open_null(number: int) -> None:
    null = os.open(os.devnull, os.O_RDWR)
    if null == number:
        os.set_inheritable(null, True)
    else:
        os.dup2(null, number)
        os.close(null)


def _as_output(stream: TextIO | None, number: int) -> tuple[TextIO, _Output]:
    raw = _Output(number, "w", closefd=False)
    encoding, errors = (stream.encoding, stream.errors) if stream else ("utf-8", "replace")
    by_line = isinstance(stream, io.TextIOWrapper) and (stream.line_buffering or stream.write_through)
    return io.TextIOWrapper(io.BufferedWriter(raw), encoding, errors, line_buffering=by_line), raw


def as_program(main: Callable[[], int]) -> int:
    """Run a command line as a program: closed standard streams and a reader that has gone (`| head`) change nothing.

    Where native code crashes, the standard error says in which call of Python. Returns the exit code: that of the
    command, 74 where it succeeded and its output could not be written. Where a GPU was lost the process ends here, and
    nothing of it is taken down.
    """
    # Importing PyTorch makes a million objects that stay: looking through them again and again takes a second of six.
    gc.set_threshold(50_000)
    for number in (0, 1, 2):  # else the next file that is opened gets the number, and what is printed
        if not os.path.lexists(f"/proc/self/fd/{number}"):
            _open_null(number)
    sys.stdout, output = _as_output(sys.stdout, 1)
    sys.stderr, _ = _as_output(sys.stderr, 2)
    faulthandler.enable()
    allow_every_sign()
    code = main()
    sys.stdout.flush()
    if output.error and code == 0:
        print(f"the standard output could not be written ({output.error.strerror})", file=sys.stderr)
        code = WriteError.exit_code
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
    plain = str(text)
    return plain if plain.isprintable() else "".join(e if e.isprintable() else ascii(e)[1:-1] for e in plain)
