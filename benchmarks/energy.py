#!/usr/bin/env python3
"""Energy of short and long passes on a simulated card whose truth is known: error, stated uncertainty, coverage.

No GPU. Power, phases and the time of a look at the sensor are drawn; the counter ticks every 0.1 s.
"""

from __future__ import annotations

import sys
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from fakes.sensors import DrawnEnergy, drawn_energy

from convscope.cli.display import table

PASSES_S = (0.0005, 0.002, 0.03, 0.2, 0.7)
SWINGS = (0.0, 0.1, 0.3)  # of the power inside each pass: first half more, second half less
DRAWS = 200
HEADER = ("pass ms", "power in a pass", "error % median", "largest", "stated % median", "covered %", "without %")


def row(pass_s: float, swing: float) -> tuple[str, ...]:
    """Return the figures of one length of pass; the last column counts draws that gave a reason and no energy."""
    drawn = [drawn_energy(pass_s, seed, swing) for seed in range(DRAWS)]
    found: list[DrawnEnergy] = [energy for energy in drawn if energy.found]
    without = f"{100 * (1 - len(found) / DRAWS):.0f}"
    power = f"±{100 * swing:.0f} %" if swing else "constant"
    if not found:
        return (f"{pass_s * 1e3:g}", power, "-", "-", "-", "-", without)
    errors = [abs(energy.error_pct) for energy in found]
    return (
        f"{pass_s * 1e3:g}",
        power,
        f"{median(errors):.3f}",
        f"{max(errors):.3f}",
        f"{median(energy.uncertainty_pct for energy in found):.3f}",
        f"{100 * sum(energy.covered for energy in found) / len(found):.0f}",
        without,
    )


if __name__ == "__main__":
    rows = [row(pass_s, swing) for swing in SWINGS for pass_s in PASSES_S if not swing or pass_s >= 0.03]
    print(table(HEADER, rows))
    print(f"{DRAWS} draws each; precision 1 %, at most 5 s")
