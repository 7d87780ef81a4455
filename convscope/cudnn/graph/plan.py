"""A plan of cuDNN by its name: an engine and the values of its knobs, of which nothing is asked here."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from convscope.errors import InputError

_NAME = re.compile(r"(\d+)(?::((?:k\d+=-?\d+)(?:,k\d+=-?\d+)*))?")


@dataclass(frozen=True)
class Plan:
    """An engine and the values of its knobs, by the knobs' numbers."""

    engine: int
    knobs: tuple[tuple[int, int], ...] = ()

    @classmethod
    def of(cls, engine: int, knobs: Mapping[int, int]) -> Plan:
        """Return a plan with its knobs in the order of their numbers."""
        return cls(engine, tuple(sorted(knobs.items())))

    @classmethod
    def named(cls, name: str) -> Plan:
        """Return the plan of a name, as `str` writes it.

        Raises:
            InputError: the name is of no plan.
        """
        matched = _NAME.fullmatch(name.replace(" ", ""))
        if matched is None:
            raise InputError(f"{name!r} is no plan: write an engine and its knobs, 38:k2=8,k13=1")
        pairs = [pair[1:].split("=") for pair in (matched[2] or "").split(",") if pair]
        return cls.of(int(matched[1]), {int(knob): int(value) for knob, value in pairs})

    def __str__(self) -> str:
        """The engine, and knobs as cuDNN's own tags number them: "38:k2=8,k13=1"."""
        knobs = ",".join(f"k{knob}={value}" for knob, value in self.knobs)
        return f"{self.engine}:{knobs}" if knobs else str(self.engine)
