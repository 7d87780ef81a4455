"""CPU packages through a tree of files like the kernel's."""

from __future__ import annotations

from pathlib import Path

import pytest

from convscope.errors import SensorError
from convscope.power import energy
from convscope.power.rapl import RaplPackages


def package(root: Path, name: str, microjoules: int, most: int = 1_000_000) -> Path:
    folder = root / name
    folder.mkdir(parents=True)
    (folder / "energy_uj").write_text(f"{microjoules}\n")
    (folder / "max_energy_range_uj").write_text(f"{most}\n")
    return folder / "energy_uj"


def test_packages_add_up_and_their_parts_do_not_count_twice(tmp_path: Path):
    first, second = package(tmp_path, "intel-rapl:0", 100), package(tmp_path, "intel-rapl:1", 200)
    part = package(tmp_path, "intel-rapl:0:0", 0)
    packages = RaplPackages(tmp_path)
    first.write_text("500100")
    second.write_text("250200")
    part.write_text("400000")
    assert packages.source == energy.RAPL
    assert packages.read() == (pytest.approx(0.75), None)


def test_a_counter_that_wraps_around_goes_on(tmp_path: Path):
    counter = package(tmp_path, "intel-rapl:0", 900_000, most=1_000_000)
    packages = RaplPackages(tmp_path)
    counter.write_text("100000")
    assert packages.read()[0] == pytest.approx(0.2)


def test_a_machine_without_counters_says_so(tmp_path: Path):
    with pytest.raises(SensorError, match="has no counters of CPU packages"):
        RaplPackages(tmp_path)


def test_a_counter_that_cannot_be_read_says_so(tmp_path: Path):
    package(tmp_path, "intel-rapl:0", 0).unlink()
    (tmp_path / "intel-rapl:0" / "energy_uj").mkdir()
    with pytest.raises(SensorError, match="cannot be read"):
        RaplPackages(tmp_path)
