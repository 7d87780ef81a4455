"""CPU packages through a tree of files like the kernel's."""

from __future__ import annotations

from pathlib import Path

import pytest

from convscope.errors import SensorError
from convscope.power import energy
from convscope.power.rapl import RaplPackages


def package(
    root: Path, folder_name: str, microjoules: int, most: int = 1_000_000, name: str | None = "package-0"
) -> Path:
    folder = root / folder_name
    folder.mkdir(parents=True)
    if name:
        (folder / "name").write_text(f"{name}\n")
    (folder / "energy_uj").write_text(f"{microjoules}\n")
    (folder / "max_energy_range_uj").write_text(f"{most}\n")
    return folder / "energy_uj"


def test_packages_add_up_and_their_parts_do_not_count_twice(tmp_path: Path):
    first, second = package(tmp_path, "intel-rapl:0", 100), package(tmp_path, "intel-rapl:1", 200, name="package-1")
    part = package(tmp_path, "intel-rapl:0:0", 0, name="core")
    packages = RaplPackages(tmp_path)
    first.write_text("500100")
    second.write_text("250200")
    part.write_text("400000")
    assert packages.source == energy.RAPL
    assert packages.read() == (pytest.approx(0.75), None)


def test_the_whole_platform_contains_the_packages_and_is_not_added_to_them(tmp_path: Path):
    first = package(tmp_path, "intel-rapl:0", 100)
    platform = package(tmp_path, "intel-rapl:1", 200, name="psys")
    packages = RaplPackages(tmp_path)
    first.write_text("500100")
    platform.write_text("900200")
    assert packages.read() == (pytest.approx(0.5), None)
    assert packages.source == energy.RAPL


def test_without_packages_the_whole_platform_is_read_and_said_to_be_that(tmp_path: Path):
    platform = package(tmp_path, "intel-rapl:0", 200, name="psys")
    found = RaplPackages(tmp_path)
    platform.write_text("900200")
    assert found.read() == (pytest.approx(0.9), None)
    assert (found.name, found.source) == ("platform", "rapl energy counter of the whole platform")


@pytest.mark.parametrize("name", ["dram", None])
def test_a_domain_that_is_neither_is_not_counted(tmp_path: Path, name: str | None):
    package(tmp_path, "intel-rapl:0", 200, name=name)
    with pytest.raises(SensorError, match="has no counters of CPU packages"):
        RaplPackages(tmp_path)


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
