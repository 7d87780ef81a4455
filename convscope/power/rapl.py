"""CPU packages through RAPL: the kernel's energy counters under /sys/class/powercap.

A domain is known by its `name` file. Packages are added up. `psys` is the whole platform, packages included: it is read
only where there are no packages.
"""

from __future__ import annotations

from pathlib import Path

from convscope.errors import SensorError
from convscope.power import energy
from convscope.power.energy import CardState

POWERCAP = Path("/sys/class/powercap")


class RaplPackages:
    """All CPU packages of the machine as one counter; the wrap-around of each package is accounted for.

    Raises:
        SensorError: no package, or none that this user may read.
    """

    reason: str | None = None

    def __init__(self, root: Path = POWERCAP) -> None:
        domains = {path: _domain(path) for path in sorted(root.glob("intel-rapl:*/energy_uj"))}
        packages = [path for path, domain in domains.items() if domain.startswith("package-")]
        self._counters = packages or [path for path, domain in domains.items() if domain == "psys"]
        if not self._counters:
            raise SensorError(f"{root} has no counters of CPU packages")
        self.name, self.source = ("cpu packages", energy.RAPL) if packages else ("platform", energy.PSYS)
        self._ranges = [_microjoules(path.with_name("max_energy_range_uj")) for path in self._counters]
        self._last = [_microjoules(path) for path in self._counters]
        self._total_j = 0.0

    def read(self) -> tuple[float | None, float | None]:
        """Return joules since this object was created, and None: RAPL has no power reading."""
        for index, path in enumerate(self._counters):
            now = _microjoules(path)
            step = now - self._last[index]
            self._total_j += (step if step >= 0 else step + self._ranges[index]) / 1e6
            self._last[index] = now
        return self._total_j, None

    def state(self) -> CardState:
        """Return an empty state: RAPL has no clocks and no temperature."""
        return CardState()

    def settings(self) -> dict[str, object]:
        """Return no settings: RAPL has none that are recorded."""
        return {}

    def close(self) -> None:
        """Do nothing: no file stays open."""


def _domain(counter: Path) -> str:
    try:
        return counter.with_name("name").read_text().strip()
    except OSError:
        return ""


def _microjoules(path: Path) -> int:
    try:
        return int(path.read_text())
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "not a number"
        raise SensorError(f"{path} cannot be read ({why}); the kernel reserves it to root") from None
