"""Objectives that a choice is to make least, and their units."""

from __future__ import annotations

from collections.abc import Mapping

OBJECTIVES: Mapping[str, tuple[str, ...]] = {"time": ("time",), "energy": ("energy",), "edp": ("time", "energy")}
"""Objectives to be least, each with the targets that it is the product of: `edp` is energy times delay."""
UNITS: Mapping[str, tuple[str, float]] = {"time": ("ms", 1.0), "energy": ("mJ", 1e3), "edp": ("mJ·ms", 1e3)}
"""Unit that each is shown in, and what J, ms or their product are multiplied by."""
