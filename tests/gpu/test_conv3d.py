"""3-D convolutions on a GPU: every kernel and cut against float64, tuning, and a whole call."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
import torch
from fakes import layer3d

import run_conv3d
from convscope.conv3d import comparison, stress
from convscope.conv3d.implementations import Implementations
from convscope.conv3d.request import Conv3d
from convscope.conv3d.rows import StressRow
from convscope.convolution import backends
from convscope.convolution.layer import Layer
from convscope.convolution.reference import reference
from convscope.kernels.autotune import BlockCache
from convscope.kernels.conv3d import candidates, catalogue
from convscope.kernels.conv3d.layout import Blocks3d

DEVICE = torch.device("cuda")
LAYERS = {
    "first": layer3d(4, 32, (16, 16, 32), (3, 3, 3), batch=2, padding=(1, 1, 1)),
    "deep": layer3d(128, 96, (8, 8, 8), (3, 3, 3), padding=(1, 1, 1)),
    "odd": layer3d(20, 33, (5, 7, 9), (2, 3, 1), batch=3, padding=(1, 0, 2)),
}


def error_share(name: str, layer: Layer, math: str, dtype: str, blocks: object = None) -> float:
    shape = layer.convolution(dtype, math)
    x, weight = comparison.tensors(shape, DEVICE, 0)
    with backends.math(math), torch.inference_mode():
        output = catalogue.Conv3dPlan(name, shape, blocks=blocks).run(x, weight)
        return reference(x, weight, shape).error(output) / comparison.allowed_error(name, layer, shape)


@pytest.mark.parametrize(("math", "dtype"), [("fp32", "float32"), ("tf32", "float32"), ("tf32", "float16")])
@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("name", catalogue.KERNELS)
def test_every_kernel_is_right(name: str, layer: str, math: str, dtype: str):
    assert error_share(name, LAYERS[layer], math, dtype) < 1


@pytest.mark.parametrize("layer", LAYERS)
def test_every_candidate_that_fits_is_right(layer: str):
    for blocks in candidates.candidates(LAYERS[layer].convolution("float32", "tf32")):
        assert error_share("gemm", LAYERS[layer], "tf32", "float32", blocks) < 1, str(blocks)


def test_random_shapes_are_right(tmp_path: Path):
    asked = Conv3d("cosmoflow", tuple(catalogue.KERNELS), "gpu", "cuda", seed=7)
    with Implementations(DEVICE, BlockCache(tmp_path / "tuned.json", Blocks3d)) as workshop:
        rows: list[StressRow] = []
        stress.run(asked, 20, workshop, lambda line: None, rows, lambda: False)
    assert {row.status for row in rows} == {"ok"}


def test_a_call_measures_and_keeps_what_it_tuned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    asked = ["--first-layer", "4", "--implementation", "gemm,cudnn implicit precomp gemm,torch benchmark"]
    asked += ["--verify", "--compare", "--roofline", "--measure", "20", "--output-dir", str(tmp_path / "out")]
    assert run_conv3d.main(asked) == 0
    rows = pd.read_csv(tmp_path / "out" / "conv3d.csv").set_index("implementation")
    assert (rows["status"] == "ok").all()
    assert 0 < rows.loc["gemm", "ratio_to_roofline"] < 1.2
    assert rows.loc["gemm", "ratio_to_torch_benchmark"] > 0.5
    assert run_conv3d.main([*asked, "--load-tuned", str(tmp_path / "out" / "tuned.json")]) == 0
