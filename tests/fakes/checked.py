"""Samples that hold, and the errors that `convscope check` finds in what became of them."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from convscope import __main__ as program
from convscope.dataset.check import checking
from convscope.dataset.package import merging
from convscope.dataset.package.facts import Release
from fakes.drawn_samples import measured

RELEASE = Release("1.0.0", "2026-02-03", "https://example.org", "a person")
AGAIN = measured(2, run=2)
ROWS = merging.in_order([*measured(60), *AGAIN[:-1], dataclasses.replace(AGAIN[-1], mean_ms=90.0, mean_ci95_ms=0.1)])


def errors(path: Path) -> list[str]:
    """Return what is wrong, by the command: one line each, exit code 1."""
    found = checking.check(path).errors
    assert program.main(["check", str(path)]) == (1 if found else 0)
    assert all("\n" not in line and line.isprintable() for line in found)
    return found
