"""Output in a locale that lacks signs such as `±` and `×`: they are written with the letters of ASCII."""

from __future__ import annotations

import codecs
import io
import sys

_LOOK_ALIKE = {
    "±": "+-", "×": "x", "·": "*", "…": "...", "µ": "u", "−": "-", "–": "-", "²": "^2", "³": "^3",
    "√": "sqrt", "Σ": "sum", "✓": "yes", "✗": "no",
    **dict(zip("▁▂▃▄▅▆▇█", "_.-~=+*#", strict=True)), **dict.fromkeys("▏▎▍▌", ""), **dict.fromkeys("▋▊▉", "#"),
}  # fmt: skip


def _write_in_ascii(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    signs = error.object[error.start : error.end]
    return "".join(_LOOK_ALIKE.get(sign, ascii(sign)[1:-1]) for sign in signs), error.end


codecs.register_error("look_alike", _write_in_ascii)


def allow_every_sign() -> None:
    """Have both output streams write what their encoding lacks in ASCII, where they would raise an error."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="look_alike")
