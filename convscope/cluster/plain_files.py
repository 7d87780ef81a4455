"""Plain files of a results folder that anybody may have written: read without following links and without waiting.

A link, a named pipe, a device, a file that may not be read or is far too large raises a `ForeignError`.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

MOST_BYTES = 64 << 20
_NOT_FOLLOWED = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
_KINDS = {stat.S_IFLNK: "a link", stat.S_IFIFO: "a named pipe", stat.S_IFDIR: "a directory", stat.S_IFSOCK: "a socket"}


class ForeignError(Exception):
    """Something in a results folder that no run of this project writes; the message says what, in a few words."""


def kind(mode: int) -> str:
    """Return what a file is by its mode: "a named pipe"."""
    return _KINDS.get(stat.S_IFMT(mode), "no plain file")


def read(path: Path | str, last_bytes: int | None = None) -> bytes | None:
    """Return the content of a plain file, or its last bytes; None where there is none.

    Args:
        path: as text where thousands are read in a row: a `Path` is text with more steps.

    Raises:
        ForeignError: it is no plain file, cannot be read, or is larger than `MOST_BYTES`.
    """
    try:
        opened = os.open(path, os.O_RDONLY | _NOT_FOLLOWED)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise ForeignError(f"{os.path.basename(path)} {_why_not(Path(path), error)}") from None
    try:
        found = os.fstat(opened)
        if not stat.S_ISREG(found.st_mode):
            raise ForeignError(f"{os.path.basename(path)} is {kind(found.st_mode)}")
        if last_bytes is None and found.st_size > MOST_BYTES:
            raise ForeignError(f"{os.path.basename(path)} has {found.st_size} bytes, more than any run writes")
        start = 0 if last_bytes is None else max(0, found.st_size - last_bytes)
        return os.pread(opened, found.st_size - start, start)
    except OSError as error:
        raise ForeignError(f"{os.path.basename(path)} cannot be read ({error.strerror})") from None
    finally:
        os.close(opened)


def append_line(path: Path, line: str) -> None:
    """Add a line to a plain file, which is made where there is none; OSError where that cannot be."""
    opened = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | _NOT_FOLLOWED, 0o666)
    with open(opened, "ab") as file:
        file.write(f"{line}\n".encode())


def _why_not(path: Path, error: OSError | ValueError) -> str:
    try:
        mode = path.lstat().st_mode
    except (OSError, ValueError):
        mode = stat.S_IFREG
    reason = error.strerror if isinstance(error, OSError) else error
    return f"cannot be read ({reason})" if stat.S_ISREG(mode) else f"is {kind(mode)}"
