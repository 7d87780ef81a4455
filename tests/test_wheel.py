"""Wheel built from the source distribution: no top-level name but the package, the commands, results in `./results`."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from fakes import ROOT, drawn_samples, reports

from convscope import __version__
from convscope.dataset import samples

pytestmark = pytest.mark.long
UV = Path(sys.executable).with_name("uv")
PROGRAMS = sorted(path.name for path in (ROOT / "profiler.py", *ROOT.glob("run_*.py")))


def done(command: list[str], **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=300, **options)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the two distributions; the build's own files stay out of the checkout."""
    if not UV.exists():
        pytest.skip("uv is not installed beside this Python")
    pytest.importorskip("setuptools")
    copy, into = tmp_path_factory.mktemp("copy"), tmp_path_factory.mktemp("dist")
    shutil.copytree(ROOT / "convscope", copy / "convscope", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("setup.py", "pyproject.toml", "MANIFEST.in", "README.md", "LICENSE", *PROGRAMS):
        shutil.copy(ROOT / name, copy)
    build = done(
        [str(UV), "build", "--offline", "--no-build-isolation", "--python", sys.executable, "-o", str(into), str(copy)]
    )
    assert build.returncode == 0, build.stderr
    return into


@pytest.fixture(scope="module")
def installed(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder that the wheel is installed in, as on `sys.path`, with its script in `bin/`."""
    target = tmp_path_factory.mktemp("installed")
    wheel = next(built.glob("*.whl"))
    install = [str(UV), "pip", "install", "--offline", "--no-deps", "--python", sys.executable]
    result = done([*install, "--target", str(target), str(wheel)])
    assert result.returncode == 0, result.stderr
    return target


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the working directory of the commands; they share it, for one reads what another measures."""
    return tmp_path_factory.mktemp("elsewhere")


def environment(installed: Path, elsewhere: Path) -> dict[str, str]:
    others = {name: value for name, value in os.environ.items() if not name.startswith("CONVSCOPE_")}
    return others | {"PYTHONPATH": str(installed), "XDG_CACHE_HOME": str(elsewhere / "cache")}


def convscope(installed: Path, elsewhere: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    script = [sys.executable, str(installed / "bin" / "convscope")]
    return done([*script, *arguments], cwd=elsewhere, env=environment(installed, elsewhere))


def python(installed: Path, elsewhere: Path, code: str) -> str:
    result = done([sys.executable, "-c", code], cwd=elsewhere, env=environment(installed, elsewhere))
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_the_package_is_the_only_name_that_a_wheel_installs(built: Path):
    with zipfile.ZipFile(next(built.glob("*.whl"))) as wheel:
        names = wheel.namelist()
        info = next(name.split("/")[0] for name in names if name.endswith(".dist-info/METADATA"))
        assert {name.split("/")[0] for name in names} == {"convscope", info}
        assert wheel.read(f"{info}/top_level.txt").split() == [b"convscope"]
    inside = [name.rpartition("/")[2] for name in names if name.startswith("convscope/programs/")]
    assert sorted(inside) == PROGRAMS


def test_a_source_distribution_has_the_programs_at_its_top(built: Path):
    with tarfile.open(next(built.glob("*.tar.gz"))) as archive:
        top = {Path(name).name for name in archive.getnames() if name.count("/") == 1}
    assert {*PROGRAMS, "setup.py", "pyproject.toml"} <= top


def test_the_version_is_that_of_the_wheel(built: Path, installed: Path, elsewhere: Path):
    version = next(built.glob("*.whl")).name.split("-")[1]
    assert convscope(installed, elsewhere, "--version").stdout == f"convscope {version}\n"


def test_a_machine_is_described(installed: Path, elsewhere: Path):
    described = convscope(installed, elsewhere, "env")
    assert described.returncode in (0, 1), described.stderr
    assert f"{elsewhere / 'results'}, " in described.stdout


def test_a_model_is_profiled_and_reported_below_the_working_directory(installed: Path, elsewhere: Path):
    quick = ["--num-sizes", "1", "--input-range", "64", "64", "--warmup", "1", "--measure", "2", "--device", "cpu"]
    asked = ["--model", "torchvision:squeezenet1_1", "--algorithm", "torch", *quick]
    profiled = convscope(installed, elsewhere, "profile", *asked)
    assert profiled.returncode == 0, profiled.stderr
    folder = elsewhere / "results" / "3_full" / "squeezenet1_1_torch_cpu"
    assert profiled.stdout.splitlines()[-1] == f"results: {folder}"
    start = json.loads((folder / "run.json").read_text())["starts"][-1]
    assert start["command"][1:] == ["profile", *asked]
    assert start["environment"]["git_commit"] == f"v{__version__}"
    reported = convscope(installed, elsewhere, "report", "-o", "page.html")
    assert reported.returncode == 0, reported.stderr
    assert "squeezenet1_1" in (elsewhere / "page.html").read_text()
    assert not (installed / "results").exists()
    assert not (installed / "convscope" / "results").exists()


def test_a_combination_is_checked_without_a_checkout(installed: Path, elsewhere: Path):
    checked = convscope(installed, elsewhere, "stages", "alexnet", "direct", "cpu", "--stages", "1_sanity")
    assert (checked.stdout, checked.stderr) == ("alexnet\tdirect\tcpu\t1_sanity\t-\n", "")


def test_stages_that_need_a_checkout_say_so(installed: Path, elsewhere: Path):
    (elsewhere / "matrix.tsv").write_text("alexnet\tdirect\tcpu\n")
    refused = convscope(installed, elsewhere, "local", "matrix.tsv", "--gpu", "cpu", "--stages", "1_sanity")
    assert refused.returncode == 2
    assert "1_sanity_check.sh is missing, which runs a stage: run it in a checkout" in refused.stderr
    assert len(refused.stderr.splitlines()) == 1


ABSENT = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("torch", "torchvision", "ai3", "triton", "nvidia"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
"""
"""Module that hides PyTorch and its libraries from every Python that starts with it on its path."""


def test_without_pytorch_results_are_read(installed: Path, tmp_path: Path):
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    (hidden / "sitecustomize.py").write_text(ABSENT)
    runs = [str(reports.profile(tmp_path / "results", "alexnet", algorithm)) for algorithm in ("gemm", "torch")]
    samples.write(tmp_path / "samples.csv", drawn_samples.measured(120, ("Tesla T4",)))
    variables = environment(installed, tmp_path)
    variables["PYTHONPATH"] = f"{hidden}{os.pathsep}{installed}"
    script = [sys.executable, str(installed / "bin" / "convscope")]
    for words in (
        ["env"], ["status"], ["compare", *runs], ["report"], ["summary"], ["figures", "figures", "--view", "scaling"],
        ["check", "samples.csv"], ["predict", "fit", "samples.csv"], ["matrix", "--help"],
    ):  # fmt: skip
        result = done([*script, *words], cwd=tmp_path, env=variables)
        assert (words, result.returncode, result.stderr) == (words, 0, "")
    refused = done([*script, "profile", "--model", "alexnet", "--algorithm", "torch"], cwd=tmp_path, env=variables)
    assert (refused.returncode, "profile: needs torch" in refused.stderr) == (2, True)


LIBRARY = """
import sys, types
sys.modules["profiler"] = own = types.ModuleType("profiler")
import convscope
from convscope.cli import programs
assert convscope.UnifiedProfiler is programs.profiler().UnifiedProfiler
assert convscope.PowerMonitor(reason="none") and convscope.CUDALayerTimer and convscope.profile
assert sys.modules["profiler"] is own
print(programs.profiler().__file__)
"""


def test_the_library_leaves_a_module_of_the_same_name_alone(installed: Path, elsewhere: Path):
    assert python(installed, elsewhere, LIBRARY) == f"{installed}/convscope/programs/profiler.py\n"


IN_A_COMMAND = """
import convscope
first = convscope.UnifiedProfiler
from convscope.__main__ import main
assert main(["profile", "--list-models"]) == 0
from profiler import UnifiedProfiler
assert UnifiedProfiler is first is convscope.UnifiedProfiler
"""


def test_a_command_and_the_library_share_one_profiler(installed: Path, elsewhere: Path):
    assert "torchvision:mobilenet_v2" in python(installed, elsewhere, IN_A_COMMAND)
