"""NaN and infinities in the input of every convolution on a GPU: what PyTorch gives, or what its algorithm can."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from unittest import mock

import pytest
import torch
from fakes import nonfinite

from convscope.convolution import backends
from convscope.convolution.operator import CudaOperator, cuda_operator
from convscope.convolution.providers.legacy import CudnnProvider
from convscope.cudnn.shape import Convolution
from convscope.errors import NotSupportedError
from convscope.failures import is_kernel_refusal
from convscope.kernels.blocks import Blocks2d
from convscope.kernels.catalogue import KERNELS, Conv2dPlan
from convscope.kernels.conv3d import catalogue
from convscope.kernels.conv3d.tuned import candidates
from convscope.kernels.winograd import nonfused

DEVICE = torch.device("cuda", 0)
PLANE = Convolution((2, 32, 20, 23), (40, 32, 3, 3), (1, 1), (1, 1), (1, 1))
IN_2D = {
    "plain": PLANE,
    "pointwise": dataclasses.replace(PLANE, weight=(40, 32, 1, 1), padding=(0, 0)),
    "first": dataclasses.replace(PLANE, input=(2, 3, 20, 23), weight=(40, 3, 7, 7), stride=(2, 2), padding=(3, 3)),
    "thin": dataclasses.replace(PLANE, weight=(32, 1, 3, 3), groups=32),
}
SPACE = Convolution((2, 20, 5, 7, 9), (33, 20, 3, 3, 3), (1, 1, 1), (1, 1, 1), (1, 1, 1))
IN_3D = {
    "plain": SPACE,
    "folded": dataclasses.replace(SPACE, input=(2, 4, 5, 7, 9), weight=(33, 4, 3, 3, 3)),
    "folded wide": dataclasses.replace(SPACE, input=(2, 3, 5, 7, 9), weight=(33, 3, 2, 3, 5), stride=(1, 2, 2)),
    "in runs": dataclasses.replace(SPACE, input=(2, 4, 5, 7, 16), weight=(33, 4, 3, 3, 3)),
    "grouped": dataclasses.replace(SPACE, weight=(34, 10, 2, 3, 3), groups=2, dilation=(1, 2, 1)),
}
NAMES = [(name,) for name in nonfinite.VALUES] + [("nan of a GPU", "inf", "-inf")]
BOUNDS = {"fp32": 1e-5, "tf32": 2e-3, "fp16": 2e-3, "float32": 1e-5, "float16": 2e-3, "bfloat16": 1.6e-2}
OTHERS = [("float32", "nhwc"), *((dtype, layout) for dtype in ("float16", "bfloat16") for layout in ("nchw", "nhwc"))]
"""Data types and layouts of the 2-D Triton kernels besides float32 in NCHW."""
DEFINITION = ("implicit gemm", "implicit precomp gemm", "gemm")
"""The algorithms of cuDNN that compute each output from what it sees alone."""

each_value = pytest.mark.parametrize("names", NAMES, ids=" ".join)


@pytest.fixture(autouse=True)
def _inference() -> Iterator[None]:
    with torch.inference_mode():
        yield
    cuda_operator().release()


def tensors(shape: Convolution, names: tuple[str, ...]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return input, filters and PyTorch's output, computed in float64."""
    drawn, dtype = torch.Generator(DEVICE).manual_seed(0), getattr(torch, shape.dtype)
    x, weight = (torch.randn(size, generator=drawn, device=DEVICE).to(dtype) for size in (shape.input, shape.weight))
    x = nonfinite.planted(x.cpu(), *names).to(DEVICE)
    if len(shape.size) == 2:
        x = x.contiguous(memory_format=backends.LAYOUTS[shape.layout])
    return x, weight, nonfinite.expected(shape, x.cpu(), weight.cpu()).to(DEVICE)


def winograds(shape: Convolution) -> list[Blocks2d]:
    """Return block shapes of Winograd, those in parts for few tiles too."""
    with mock.patch.dict(nonfused.LEAST_TILES, {2: 1, 4: 1}):
        return KERNELS["winograd"].candidates(shape, shape.output, 132)


def check_transformed(y: torch.Tensor, shape: Convolution, x: torch.Tensor, by_torch: torch.Tensor) -> None:
    """Check what every algorithm owes: an output that sees a NaN is NaN, one that is not finite stays so."""
    assert y[nonfinite.seeing(shape, x.isnan())].isnan().all()
    assert not y[~by_torch.isfinite()].isfinite().any()


@each_value
@pytest.mark.parametrize("kind", IN_2D)
def test_direct_gives_what_pytorch_gives(kind: str, names: tuple[str, ...]):
    x, weight, by_torch = tensors(IN_2D[kind], names)
    for blocks in KERNELS["direct"].candidates(IN_2D[kind], by_torch.shape, 132):
        y = Conv2dPlan("direct", IN_2D[kind], DEVICE, blocks).run(x, weight)
        assert nonfinite.same(y, by_torch, BOUNDS["fp32"]), str(blocks)


@each_value
@pytest.mark.parametrize("math", ["fp32", "tf32"])
def test_winograd_keeps_nan_and_what_is_not_finite_in_its_tile(math: str, names: tuple[str, ...]):
    shape = dataclasses.replace(PLANE, math=math)
    x, weight, by_torch = tensors(shape, names)
    for blocks in winograds(shape):
        y = Conv2dPlan("winograd", shape, DEVICE, blocks).run(x, weight)
        check_transformed(y, shape, x, by_torch)
        small = blocks.variant == "F2"
        outside = by_torch.isfinite() if small else ~nonfinite.tiles(~by_torch.isfinite(), 4)
        assert nonfinite.close(y, by_torch, outside, BOUNDS[math]), str(blocks)


@each_value
@pytest.mark.parametrize(("dtype", "layout"), OTHERS)
@pytest.mark.parametrize("kind", IN_2D)
def test_direct_gives_what_pytorch_gives_in_every_type_and_layout(
    kind: str, dtype: str, layout: str, names: tuple[str, ...]
):
    shape = dataclasses.replace(IN_2D[kind], dtype=dtype, layout=layout)
    x, weight, by_torch = tensors(shape, names)
    for blocks in KERNELS["direct"].candidates(shape, by_torch.shape, 132)[:3]:
        y = Conv2dPlan("direct", shape, DEVICE, blocks).run(x, weight)
        assert nonfinite.same(y, by_torch, BOUNDS[dtype]), str(blocks)


@each_value
@pytest.mark.parametrize(("dtype", "layout"), OTHERS)
def test_winograd_keeps_nan_and_what_is_not_finite_in_every_type_and_layout(
    dtype: str, layout: str, names: tuple[str, ...]
):
    shape = dataclasses.replace(PLANE, math="fp32", dtype=dtype, layout=layout)
    x, weight, by_torch = tensors(shape, names)
    for blocks in winograds(shape):
        y = Conv2dPlan("winograd", shape, DEVICE, blocks).run(x, weight)
        check_transformed(y, shape, x, by_torch)
        small = blocks.variant == "F2"
        outside = by_torch.isfinite() if small else ~nonfinite.tiles(~by_torch.isfinite(), 4)
        assert nonfinite.close(y, by_torch, outside, BOUNDS[dtype]), str(blocks)


@each_value
@pytest.mark.parametrize(("math", "dtype"), [("fp32", "float32"), ("tf32", "float32"), ("tf32", "float16")])
@pytest.mark.parametrize("kind", IN_3D)
@pytest.mark.parametrize("name", catalogue.KERNELS)
def test_every_3d_kernel_gives_what_pytorch_gives(name: str, kind: str, math: str, dtype: str, names: tuple[str, ...]):
    shape = dataclasses.replace(IN_3D[kind], math=math, dtype=dtype)
    x, weight, by_torch = tensors(shape, names)
    bound = BOUNDS["fp16" if dtype == "float16" else math]
    chosen = candidates.candidates(shape) if name == "gemm" and names == NAMES[-1] else [None]
    for blocks in chosen:
        try:
            y = catalogue.Conv3dPlan(name, shape, blocks=blocks).run(x, weight)
        except Exception as error:
            if not (blocks and is_kernel_refusal(error)):
                raise
            continue
        assert nonfinite.same(y, by_torch, bound), str(blocks)


@each_value
@pytest.mark.parametrize("math", ["fp32", "tf32"])
@pytest.mark.parametrize("kind", IN_2D)
# Not winograd nonfused: cuDNN's writes -3.4e38 where it sees a NaN (9.19 on an H200), which nothing here can mend.
@pytest.mark.parametrize("algorithm", [*DEFINITION, "guess", "fft", "fft tiling"])
def test_cudnns_algorithms_give_what_pytorch_gives(algorithm: str, kind: str, math: str, names: tuple[str, ...]):
    shape = dataclasses.replace(IN_2D[kind], math=math)
    x, weight, by_torch = tensors(shape, names)
    with backends.math(math), backends.settings(provider="cudnn"):
        try:
            y = CudaOperator().plan(shape, algorithm, DEVICE).run(x, weight, None)
        except NotSupportedError:
            pytest.skip(f"cuDNN refuses {algorithm} for this shape")
    if algorithm in DEFINITION:
        assert nonfinite.same(y, by_torch, BOUNDS[math])
    else:
        check_transformed(y, shape, x, by_torch)


@each_value
@pytest.mark.parametrize("kind", ["plain", "folded"])
@pytest.mark.parametrize("algorithm", ["implicit gemm", "implicit precomp gemm"])
def test_cudnns_algorithms_give_what_pytorch_gives_in_3d(algorithm: str, kind: str, names: tuple[str, ...]):
    shape = dataclasses.replace(IN_3D[kind], math="fp32")
    x, weight, by_torch = tensors(shape, names)
    y = CudnnProvider().plan(algorithm, shape, DEVICE).run(x, weight, None)
    assert nonfinite.same(y, by_torch, BOUNDS["fp32"])


@each_value
@pytest.mark.parametrize("algorithm", ["direct", "implicit precomp gemm"])
def test_the_operator_gives_what_pytorchs_own_convolution_gives(algorithm: str, names: tuple[str, ...]):
    x, weight, _ = tensors(PLANE, names)
    with backends.math("fp32"):
        own = torch.nn.functional.conv2d(x, weight, None, *PLANE.options)
        y = cuda_operator().forward(x, weight, None, 1, 1, 1, 1, 1, 1, 0, 1, algorithm)
    assert torch.equal(y.isfinite(), own.isfinite())
    assert torch.equal(y.isnan(), own.isnan())
    assert nonfinite.close(y, own.double(), own.isfinite(), BOUNDS["fp32"])
