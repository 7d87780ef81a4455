"""3-D convolutions on a GPU: every kernel and cut against float64, tuning, and a whole call."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

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
from convscope.kernels import descriptors
from convscope.kernels.autotune import BlockCache
from convscope.kernels.conv3d import PLANAR_ONLY, catalogue
from convscope.kernels.conv3d.copies import inputs
from convscope.kernels.conv3d.layout import Blocks3d
from convscope.kernels.conv3d.tuned import candidates

DEVICE = torch.device("cuda")
LAYERS = {
    "first": layer3d(4, 32, (16, 16, 32), (3, 3, 3), batch=2, padding=(1, 1, 1)),
    "deep": layer3d(128, 96, (8, 8, 8), (3, 3, 3), padding=(1, 1, 1)),
    "odd": layer3d(20, 33, (5, 7, 9), (2, 3, 1), batch=3, padding=(1, 0, 2)),
    "strided": layer3d(32, 64, (9, 14, 15), (3, 3, 3), batch=2, stride=(2, 2, 2), padding=(1, 1, 1)),
    "strided, of even size": layer3d(32, 64, (8, 14, 16), (3, 3, 3), batch=2, stride=(2, 2, 2), padding=(1, 1, 1)),
    "pointwise, strided": layer3d(48, 64, (5, 14, 15), (1, 1, 1), batch=2, stride=(1, 2, 2)),
    "first, strided": layer3d(3, 32, (6, 31, 32), (3, 5, 5), batch=2, stride=(1, 2, 2), padding=(1, 2, 2)),
}


def error_share(name: str, layer: Layer, math: str, dtype: str, blocks: Any = None, where: str = "nchw") -> float:
    shape = layer.convolution(dtype, math, where)
    x, weight = comparison.tensors(shape, DEVICE, 0)
    with backends.math(math), torch.inference_mode():
        output = catalogue.Conv3dPlan(name, shape, blocks=blocks).run(x, weight)
        return reference(x, weight, shape).error(output) / comparison.allowed_error(name, layer, shape)


@pytest.mark.parametrize(("math", "dtype"), [("fp32", "float32"), ("tf32", "float32"), ("tf32", "float16")])
@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("name", catalogue.KERNELS)
def test_every_kernel_is_right(name: str, layer: str, math: str, dtype: str):
    assert error_share(name, LAYERS[layer], math, dtype) < 1


@pytest.mark.parametrize(("math", "dtype"), [("fp32", "float32"), ("tf32", "float32"), ("tf32", "float16")])
@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("name", [name for name in catalogue.KERNELS if name not in PLANAR_ONLY])
def test_every_kernel_that_knows_channels_last_is_right_in_it(name: str, layer: str, math: str, dtype: str):
    assert error_share(name, LAYERS[layer], math, dtype, where="nhwc") < 1


@pytest.mark.parametrize("where", ["nchw", "nhwc"])
@pytest.mark.parametrize("layer", LAYERS)
def test_every_candidate_that_fits_is_right(layer: str, where: str):
    for blocks in candidates.candidates(LAYERS[layer].convolution("float32", "tf32", where)):
        assert error_share("gemm", LAYERS[layer], "tf32", "float32", blocks, where) < 1, str(blocks)


@pytest.mark.parametrize("where", ["nchw", "nhwc"])
@pytest.mark.parametrize("layer", ["first", "deep", "strided", "strided, of even size"])
def test_kernels_that_start_before_the_last_one_ends_do_not_meet(layer: str, where: str):
    shape = LAYERS[layer].convolution("float32", "tf32", where)
    (x, weight), (other, _) = (comparison.tensors(shape, DEVICE, seed) for seed in (0, 1))
    for blocks in candidates.samples(shape):
        plan = catalogue.Conv3dPlan("gemm", shape, blocks=blocks)
        expected = [plan.run(each, weight).clone() for each in (x, other)]
        torch.cuda.synchronize()
        found = [plan.run(each, weight) for _ in range(20) for each in (x, other)]
        torch.cuda.synchronize()
        assert all(torch.equal(each, expected[place % 2]) for place, each in enumerate(found)), str(blocks)


CASES = [
    (name, where)
    for name in catalogue.KERNELS
    for where in ("nchw", "nhwc")
    if where == "nchw" or name not in PLANAR_ONLY
]


@pytest.mark.skipif(not descriptors.can_round(), reason="a copy rounds for GPUs before Hopper")
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("variant", ["boxes", "slices"])
def test_the_copy_engine_rounds_to_the_nearest_and_to_the_even_of_two(variant: str, stride: int):
    layer = layer3d(32, 32, (4, 8, 16), (3, 3, 3), batch=4, stride=(1, stride, stride), padding=(1, 1, 1))
    shape = layer.convolution("float32", "tf32", "nhwc")
    x, weight = comparison.tensors(shape, DEVICE, 0)
    bits = x.view(torch.int32)
    bits[:, ::2] = bits[:, ::2] & -0x2000 | 0x1000  # half way between two
    bits[:, 5, 1, 2, 4] = torch.tensor([0x7F800001, 0x7FFFFFFF, 0x7F800000, 0x7F7FFFFF], device=DEVICE)  # of 4 images
    even = ((bits + 0xFFF + (bits >> 13 & 1)) & -0x2000).view(torch.float32)
    even[:, 5, 1, 2, 4] = torch.tensor([torch.nan, torch.nan, torch.inf, torch.inf], device=DEVICE)
    assert inputs.fetched(x, shape).to_round
    plan = catalogue.Conv3dPlan("gemm", shape, blocks=Blocks3d(variant, 128, 32, 32, 4, 2, box=(2, 4, 16)))
    found, expected = plan.run(x, weight).clone(), plan.run(even, weight)
    assert [bool(image.isnan().any()) for image in found] == [True, True, False, False]
    assert [bool(image.isinf().any()) for image in found] == [False, False, True, True]
    assert found[0].isfinite().any()
    assert torch.equal(found.nan_to_num(7.0), expected.nan_to_num(7.0))


@pytest.mark.parametrize(("name", "where"), CASES)
def test_products_in_tf32_are_of_rounded_factors(name: str, where: str):
    layer = LAYERS["deep"]
    shape = layer.convolution("float32", "tf32", where)
    x, weight = (tensor.abs() for tensor in comparison.tensors(shape, DEVICE, 0))  # what is cut off adds up
    with backends.math("tf32"), torch.inference_mode():
        output = catalogue.Conv3dPlan(name, shape).run(x, weight)
    exact = torch.nn.functional.conv3d(x.double(), weight.double(), None, *shape.options)
    bias = float(((output - exact) / exact).mean())
    assert abs(bias) < 5e-5  # digits that are cut off make it -7e-4


@pytest.mark.parametrize(("math", "dtype"), [("fp32", "float32"), ("tf32", "float32"), ("tf32", "float16")])
def test_random_shapes_are_right_in_every_cut(tmp_path: Path, math: str, dtype: str):
    names = tuple(catalogue.KERNELS) if math == "tf32" and dtype == "float32" else ("gemm",)
    asked = Conv3d("cosmoflow", names, "gpu", "cuda", math=math, dtype=dtype, seed=7)
    with Implementations(DEVICE, BlockCache(tmp_path / "tuned.json", Blocks3d)) as workshop:
        rows: list[StressRow] = []
        stress.run(asked, 60, workshop, lambda line: None, rows, lambda: False)
    assert {row.status for row in rows} <= {"ok", "unsupported"}
    assert {row.layout for row in rows} == {"ncdhw", "ndhwc"}
    cuts = {row.blocks for row in rows if row.implementation == "gemm"}
    assert len(cuts) >= (5 if math == "fp32" else 15)


CALL = ["--first-layer", "4", "--implementation", "gemm,cudnn implicit precomp gemm,torch benchmark"]
CALL += ["--verify", "--compare", "--roofline", "--measure", "20"]


@pytest.fixture(scope="module")
def call(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of a whole call, whose tuned blocks no other call has or gets."""
    folder = tmp_path_factory.mktemp("conv3d")
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        assert run_conv3d.main([*CALL, "--output-dir", str(folder / "out")]) == 0
        yield folder / "out"


def rows_of(folder: Path) -> pd.DataFrame:
    """Return the rows of a call by implementation and layout."""
    return pd.read_csv(folder / "conv3d.csv").set_index(["implementation", "layout"])


def test_a_call_measures_and_keeps_what_it_tuned(call: Path):
    rows = rows_of(call)
    cudnn = "cudnn implicit precomp gemm", "ndhwc"
    assert (rows.drop(index=[cudnn])["status"] == "ok").all()
    assert rows.loc[cudnn, "status"] in ("ok", "unsupported")
    tuned = str(call / "tuned.json")
    assert run_conv3d.main([*CALL, "--output-dir", str(call), "--load-tuned", tuned]) == 0


@pytest.mark.quiet
@pytest.mark.parametrize("layout", ["ncdhw", "ndhwc"])
def test_a_kernel_is_within_the_roofline_and_not_far_behind_pytorch(call: Path, layout: str):
    gemm = rows_of(call).loc["gemm", layout]
    assert 0 < gemm["ratio_to_roofline"] < 1.2
    assert gemm["ratio_to_torch_best"] > 0.5
    assert gemm["ratio_with_packing"] > 0


def test_the_network_is_timed_in_both_layouts_with_searched_gradients(tmp_path: Path):
    names = "gemm,torch,torch benchmark,torch channels last"
    asked = ["--end-to-end", "--implementation", names, "--measure", "10", "--output-dir", str(tmp_path)]
    assert run_conv3d.main([*asked, "--batch-size", "1"]) == 0
    rows = pd.read_csv(tmp_path / "end_to_end.csv").set_index(["implementation", "layout"])
    last = rows.loc["torch channels last", "ndhwc"]
    assert last["status"] == "unsupported"
    others = rows.drop(index=[("torch channels last", "ndhwc")])
    assert (others["status"] == "ok").all()
    assert (others["relative_error"] < 3e-4).all()  # 4.6e-4 where the kernels cut digits off
    assert others[["inference_ms", "training_step_ms"]].gt(0).all(axis=None)
