"""Memory that really runs out, workspaces that are really over a limit, and a context that is really lost."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from fakes import both

from convscope.errors import InputError
from convscope.profiling.rows import profile_store
from profiler import UnifiedProfiler

ROOT = Path(__file__).parents[2]
LEFT_BYTES = 2 * 2**30


@pytest.fixture
def nearly_full() -> Iterator[None]:
    """Hold all of the GPU's memory but 2 GiB."""
    gc.collect()
    torch.cuda.empty_cache()
    free_bytes, _ = torch.cuda.mem_get_info()
    held = torch.empty(free_bytes - LEFT_BYTES, dtype=torch.uint8, device="cuda")
    yield
    del held
    torch.cuda.empty_cache()


def run_at(folder: Path, algorithm: str, **changes: object) -> tuple[pd.DataFrame, pd.DataFrame]:
    settings: dict = {"input_size_range": (64, 512), "num_sizes": 4, "warmup_iters": 1, "measure_iters": 3}
    return UnifiedProfiler("alexnet", algorithm, **settings | {"measure_energy": False} | changes).run(folder)


@pytest.mark.quiet
@pytest.mark.usefixtures("nearly_full")
@pytest.mark.parametrize("algorithm", ["torch", "implicit precomp gemm"])
def test_memory_that_runs_out_is_a_row_with_what_was_asked_for_and_larger_sizes_are_not_tried(
    tmp_path: Path, algorithm: str
):
    overall, layers = run_at(tmp_path, algorithm, batch_size=256)
    statuses = list(overall["status"])
    first = statuses.index("oom")
    assert statuses == ["ok"] * first + ["oom"] * (4 - first)
    assert 0 < first < 4
    assert overall.iloc[first]["reason"].startswith("CUDA out of memory. Tried to allocate")
    assert overall.iloc[first]["oom_asked_bytes"] > 2**20
    # The smallest was tried; of the larger ones those that came before it in the shuffled order.
    said = overall["reason"][first + 1 :]
    assert said.str.match(r"CUDA out of memory|not tried: out of memory at \d+ px already").all()
    assert layers["input_size"].nunique() == first


@pytest.mark.quiet
@pytest.mark.usefixtures("nearly_full")
def test_memory_returns_to_its_level_after_it_ran_out(tmp_path: Path):
    run_at(tmp_path / "warm", "implicit precomp gemm", num_sizes=1)
    gc.collect()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
    overall, _ = run_at(tmp_path / "run", "implicit precomp gemm", batch_size=256)
    assert "oom" in set(overall["status"])
    gc.collect()
    torch.cuda.empty_cache()
    assert (torch.cuda.memory_allocated(), torch.cuda.memory_reserved()) <= before


def test_memory_is_the_same_before_each_size(tmp_path: Path):
    levels: list[int] = []

    def look() -> bool:
        levels.append(torch.cuda.memory_reserved())
        return False

    run_at(tmp_path, "implicit precomp gemm", num_sizes=8, stop=look)
    assert len(levels) == 8
    assert len(set(levels)) == 1


VGG: dict[str, Any] = {
    "input_size_range": (64, 64),
    "num_sizes": 1,
    "warmup_iters": 1,
    "measure_iters": 3,
    "measure_energy": False,
}


def test_a_workspace_up_to_the_limit_runs_and_one_byte_less_is_refused_before_measuring(tmp_path: Path):
    _, layers = UnifiedProfiler("vgg16", "winograd nonfused", **VGG).run(tmp_path / "free")
    largest = int(layers["workspace_bytes"].max())
    assert largest > 0
    within = UnifiedProfiler("vgg16", "winograd nonfused", max_workspace_bytes=largest, **VGG)
    overall, _ = within.run(tmp_path / "within")
    assert list(overall["status"]) == ["ok"]
    over = UnifiedProfiler("vgg16", "winograd nonfused", max_workspace_bytes=largest - 1, **VGG)
    with pytest.raises(
        InputError, match=r"workspace over the limit: winograd nonfused takes more than .*--unsupported"
    ):
        over.run(tmp_path / "over")
    assert not (tmp_path / "over").exists()


def test_layers_over_the_limit_fall_back_or_are_skipped_with_the_reason_in_their_rows(tmp_path: Path):
    made = UnifiedProfiler("vgg16", "winograd nonfused", max_workspace_bytes=0, unsupported="skip", **VGG)
    overall, layers = made.run(tmp_path)
    over = layers["reason"].str.startswith("workspace over the limit", na=False)
    assert over.any()
    assert set(layers[over]["status"]) == {"unsupported"}
    assert (layers[~over]["workspace_bytes"].fillna(0) == 0).all()
    assert overall.iloc[0]["unsupported_layers"] == over.sum()


LOST = """
import sys
sys.path.insert(0, sys.argv.pop(1))
import torch
import run_profile
from convscope.cli import parser
from convscope.convolution import models

build = models.Source.build

def breaks_at_96(*given, **options):
    model = build(*given, **options)
    def out_of_range(module, inputs):
        if inputs[0].shape[-1] == 96:
            torch.zeros(4, device="cuda")[torch.full((8,), 10**6, device="cuda")]
    model.register_forward_pre_hook(out_of_range)
    return model

models.Source.build = breaks_at_96
sys.exit(parser.as_program(run_profile.main))
"""


@pytest.mark.parametrize("algorithm", ["torch", "gemm"])
def test_a_lost_context_ends_the_run_with_70_after_what_is_whole_and_the_same_command_goes_on(
    tmp_path: Path, algorithm: str
):
    folder = profile_store(tmp_path / "run", f"alexnet_{algorithm}")
    asked = ["--model", "alexnet", "--algorithm", algorithm, "--num-sizes", "3", "--input-range", "64", "128"]
    asked += ["--seed", "1"]  # measures 64, 128, 96
    asked += ["--no-energy", "--warmup", "1", "--measure", "3", "--output-dir", str(folder.path)]
    lost = subprocess.run(
        [sys.executable, "-c", LOST, str(ROOT), *asked], capture_output=True, text=True, check=False, timeout=300
    )
    assert lost.returncode == 70, lost.stderr
    said = lost.stderr.splitlines()[-1]
    assert said.startswith("run_profile.py: cuda:0 is lost: CUDA error: device-side assert triggered")
    assert "Traceback" not in lost.stderr
    assert json.loads(folder.files.run.read_text())["error"].startswith("CUDA error: device-side assert triggered")
    assert list(both(folder)[0]["input_size"]) == [64, 128]
    assert not (folder.path / "run.lock").exists()
    again = subprocess.run(
        [sys.executable, str(ROOT / "run_profile.py"), *asked], capture_output=True, text=True, check=False, timeout=300
    )
    assert again.returncode == 0, again.stderr
    assert list(both(folder)[0]["input_size"]) == [64, 96, 128]
    document = json.loads(folder.files.run.read_text())
    assert document["error"] is None
    assert document["starts"][0]["error"].startswith("CUDA error: device-side assert triggered")
