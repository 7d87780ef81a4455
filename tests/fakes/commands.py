"""Flags of runs that take the least time, one size, two passes, no energy; and what a command has printed."""

from __future__ import annotations

from fakes import tiny

FAST = [
    "--device",
    "cpu",
    "--input-range",
    "64",
    "96",
    "--num-sizes",
    "1",
    "--warmup",
    "0",
    "--measure",
    "2",
    "--no-energy",
]
TINY = ["--model", tiny.NAME, "--algorithm", "direct", *FAST]
ALEXNET = ["--model", "alexnet", "--algorithm", "direct", *FAST]


class Printed:
    """Answer and output of one call of `main`."""

    def __init__(self, code: object, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err
