"""The Triton kernels on a GPU: right on random shapes, on the units they should use, in graphs, on the current stream.

In float32, float16 and bfloat16, in NCHW and NHWC, on random shapes and on the layers of the six models.
"""

from __future__ import annotations

import dataclasses
import json
from typing import Any
from unittest import mock

import pytest
import torch
import triton
from hypothesis import given, settings
from hypothesis import strategies as st

from convscope.convolution import backends, models, swap
from convscope.convolution.operator import cuda_operator, recording
from convscope.convolution.reference import relative_error
from convscope.convolution.tolerance import STORAGE_ROUNDOFF
from convscope.cudnn.shape import Convolution
from convscope.kernels import autotune, catalogue, direct
from convscope.kernels.blocks import Blocks2d
from convscope.kernels.catalogue import KERNELS, Conv2dPlan
from convscope.kernels.winograd import fused, nonfused
from convscope.timing import graphs

DEVICE = torch.device("cuda", 0)
HALF = [(dtype, layout) for dtype in ("float16", "bfloat16") for layout in ("nchw", "nhwc")]
NEW = [("float32", "nhwc"), *HALF]
each_new = pytest.mark.parametrize(("dtype", "layout"), NEW)


@pytest.fixture(autouse=True)
def _inference():
    with torch.inference_mode(), backends.math("fp32"):
        yield
    cuda_operator().release()


@st.composite
def shapes(
    draw: st.DrawFn, winograd_only: bool = False, math: str = "fp32", dtype: str = "float32", layout: str = "nchw"
) -> Convolution:
    """Draw convolutions of all kinds: a kernel fits into its padded input, each direction has options of its own."""

    def pair(low: int, high: int) -> tuple[int, int]:
        return draw(st.integers(low, high)), draw(st.integers(low, high))

    kernel = (3, 3) if winograd_only else pair(1, draw(st.sampled_from((1, 3, 7, 11))))
    stride, dilation = ((1, 1), (1, 1)) if winograd_only else (pair(1, 3), pair(1, 3))
    groups = draw(st.sampled_from((1, 1, 1, 2, 3, 8)))
    channels = draw(st.sampled_from((1, 2, 3, 5, 16, 20, 32, 48, 64, 80)))
    filters = draw(st.sampled_from((1, 2, 7, 16, 17, 32, 40, 64, 130)))
    padding = pair(0, 5)
    least = [d * (k - 1) + 1 - 2 * p for k, d, p in zip(kernel, dilation, padding, strict=True)]
    size = tuple(max(1, low) + draw(st.integers(0, 30)) for low in least)
    images = draw(st.sampled_from((1, 1, 2, 3, 5)))
    return Convolution((images, channels * groups, *size), (filters * groups, channels, *kernel), padding, stride,
                       dilation, groups, dtype, math, layout)  # fmt: skip


def tensors(shape: Convolution, scale: float = 1.0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator(DEVICE).manual_seed(0)
    sizes = shape.input, shape.weight, shape.weight[:1]
    x, weight, bias = (torch.randn(size, generator=generator, device=DEVICE) for size in sizes)
    dtype = getattr(torch, shape.dtype)
    x = (x * scale).to(dtype).contiguous(memory_format=backends.LAYOUTS[shape.layout])
    return x, weight.to(dtype), (bias * scale).to(dtype)


def exact(shape: Convolution, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    options = shape.stride, shape.padding, shape.dilation, shape.groups
    return torch.nn.functional.conv2d(x.double(), weight.double(), bias.double(), *options)


def error(algorithm: str, shape: Convolution, blocks: Blocks2d, scale: float = 1.0) -> float:
    """Return the relative error of a kernel whose output and partial sums hold NaN before it runs."""
    x, weight, bias = tensors(shape, scale)
    plan = Conv2dPlan(algorithm, shape, DEVICE, blocks)
    empty = torch.empty
    with mock.patch.object(torch, "empty", lambda *size, **options: empty(*size, **options).fill_(float("nan"))):
        y = plan.run(x, weight, bias)
    expected = exact(shape, x, weight, bias)
    assert y.dtype == x.dtype
    assert y.is_contiguous(memory_format=backends.LAYOUTS[shape.layout])
    return float((y - expected).norm() / expected.norm())


def candidates(algorithm: str, shape: Convolution) -> list[Blocks2d]:
    """Return block shapes, those of Winograd in parts for few tiles too."""
    with mock.patch.dict(nonfused.LEAST_TILES, {2: 1, 4: 1}):
        return KERNELS[algorithm].candidates(shape, shape.output, 132)


@settings(max_examples=400)
@given(shape=shapes(), choice=st.randoms(use_true_random=False))
def test_direct_agrees_with_float64_on_random_shapes(shape: Convolution, choice):
    assert error("direct", shape, choice.choice(candidates("direct", shape))) < 2e-6


@settings(max_examples=300)
@given(shape=shapes(winograd_only=True), choice=st.randoms(use_true_random=False))
def test_winograd_agrees_with_float64_on_random_shapes(shape: Convolution, choice):
    blocks = choice.choice(candidates("winograd", shape))
    assert error("winograd", shape, blocks) < (2e-6 if blocks.variant == "F2" else 1e-5)


@settings(max_examples=40)
@given(shape=shapes(winograd_only=True, math="tf32"), choice=st.randoms(use_true_random=False))
def test_winograd_on_the_matrix_unit_keeps_the_digits_of_tf32(shape: Convolution, choice):
    assert error("winograd", shape, choice.choice(candidates("winograd", shape))) < 4e-3


@settings(max_examples=30)
@given(shape=shapes(winograd_only=True), scale=st.sampled_from((1e-18, 1e-6, 1e6, 1e18)))
def test_the_error_of_winograd_does_not_depend_on_the_scale_of_the_input(shape: Convolution, scale: float):
    blocks = candidates("winograd", shape)[0]
    assert error("winograd", shape, blocks, scale) < (2e-6 if blocks.variant == "F2" else 1e-5)


def test_winograd_on_inputs_far_from_zero_loses_what_the_transforms_cancel():
    shape = Convolution((1, 64, 28, 28), (64, 64, 3, 3), (1, 1), (1, 1), (1, 1), 1, "float32", "fp32")
    x, weight, bias = tensors(shape)
    x += 100.0
    expected = exact(shape, x, weight, bias)
    found = {}
    for variant in ("F2", "F4"):
        blocks = next(blocks for blocks in candidates("winograd", shape) if blocks.variant == variant)
        y = Conv2dPlan("winograd", shape, DEVICE, blocks).run(x, weight, bias)
        found[variant] = float((y - expected).abs().max() / expected.abs().max())
    assert found["F2"] < 1e-6
    assert found["F4"] < 1e-5


@pytest.mark.parametrize(
    ("algorithm", "variant", "dtype", "layout", "options"),
    [
        (*kind, *of, options)
        for kinds, every in (
            ((("direct", "taps"), ("winograd", "F2"), ("winograd", "F4")), [("float32", "nchw")]),
            ((("direct", "taps"), ("winograd", "F2")), HALF),
        )
        for kind in kinds
        for of in every
        for options in ({"splits": 1}, {"splits": 4}, {"splits": 1, "chunk": 16})
        if kind[0] == "winograd" or "chunk" not in options
    ],
)
def test_every_run_gives_the_same_bits(algorithm: str, variant: str, dtype: str, layout: str, options: dict[str, int]):
    shape = Convolution((1, 256, 14, 14), (256, 256, 3, 3), (1, 1), (1, 1), (1, 1), 1, dtype, "fp32", layout)
    blocks = next(
        found for found in KERNELS[algorithm].candidates(shape, shape.output, 132) if found.variant == variant
    )
    plan = Conv2dPlan(algorithm, shape, DEVICE, dataclasses.replace(blocks, **options))
    x, weight, bias = tensors(shape)
    first = plan.run(x, weight, bias)
    assert all(torch.equal(plan.run(x, weight, bias), first) for _ in range(20))


@each_new
@settings(max_examples=60)
@given(data=st.data(), choice=st.randoms(use_true_random=False))
def test_direct_agrees_with_float64_in_every_type_and_layout(dtype: str, layout: str, data: st.DataObject, choice):
    shape = data.draw(shapes(dtype=dtype, layout=layout))
    # Products are exact in 16 bits and sums are of float32: the output's rounding is all, and what the unit drops.
    bound = 1.5 * STORAGE_ROUNDOFF[dtype] if dtype in STORAGE_ROUNDOFF else 2e-6
    assert error("direct", shape, choice.choice(candidates("direct", shape)[:4])) < bound


@each_new
@settings(max_examples=40)
@given(data=st.data(), choice=st.randoms(use_true_random=False))
def test_winograd_agrees_with_float64_in_every_type_and_layout(dtype: str, layout: str, data: st.DataObject, choice):
    shape = data.draw(shapes(winograd_only=True, dtype=dtype, layout=layout))
    blocks = choice.choice(candidates("winograd", shape))
    # Outputs of few terms may cancel, which the roundings of the factors do not: more than the three of a layer.
    allowed = 8 * STORAGE_ROUNDOFF.get(dtype, 0)
    assert error("winograd", shape, blocks) < (allowed or (2e-6 if blocks.variant == "F2" else 1e-5))


@each_new
@pytest.mark.parametrize("algorithm", ["direct", "winograd"])
@pytest.mark.parametrize("model", models.MODELS)
def test_the_layers_of_the_models_are_right_in_every_type_and_layout(
    model: str, algorithm: str, dtype: str, layout: str
):
    every = {layer.convolution(dtype, "fp32", layout) for layer in models.convolutions(model, 64, 2)}
    able = [shape for shape in every if not catalogue.why_no_kernel(algorithm, shape)]
    assert able
    roundings = 1.5 if algorithm == "direct" else 3.0
    bound = roundings * STORAGE_ROUNDOFF[dtype] if dtype in STORAGE_ROUNDOFF else 1e-5
    wrong = {str(shape): found for shape in able
             if not (found := error(algorithm, shape, candidates(algorithm, shape)[0])) < bound}  # fmt: skip
    assert not wrong


@pytest.mark.parametrize(("dtype", "layout"), HALF)
@pytest.mark.parametrize("scale", [1e-2, 1e2])
def test_winograd_in_16_bits_errs_alike_at_usual_scales(dtype: str, layout: str, scale: float):
    shape = Convolution((2, 64, 28, 28), (64, 64, 3, 3), (1, 1), (1, 1), (1, 1), 1, dtype, "tf32", layout)
    for blocks in candidates("winograd", shape):
        assert error("winograd", shape, blocks, scale) < 3 * STORAGE_ROUNDOFF[dtype], str(blocks)


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_winograd_in_float16_does_not_overflow_on_the_way(layout: str):
    shape = Convolution((1, 64, 14, 14), (32, 64, 3, 3), (1, 1), (1, 1), (1, 1), 1, "float16", "tf32", layout)
    rows, columns = torch.meshgrid(torch.arange(14), torch.arange(14), indexing="ij")
    signs = 1.0 - 2.0 * ((rows // 2 + columns // 2) % 2)  # what the transform subtracts has opposite signs
    x = (signs.expand(shape.input) * 65504).half().to(DEVICE).contiguous(memory_format=backends.LAYOUTS[layout])
    weight = torch.full(shape.weight, 1e-3, device=DEVICE).half()
    weight[:, 1::2] *= -1
    weight[:, 0] *= 0.5
    expected = exact(shape, x, weight, torch.zeros(32, device=DEVICE))
    y = Conv2dPlan("winograd", shape, DEVICE, candidates("winograd", shape)[0]).run(x, weight)
    # All filters are alike, so that their roundings do not average out: an error of 7 roundoffs by the interpreter.
    assert float((y - expected).norm() / expected.norm()) < 16 * STORAGE_ROUNDOFF["float16"]


def machine_code(kernel: triton.JITFunction) -> str:
    """Return the assembly of every binary of a kernel that this process has loaded."""
    (binaries, *_) = kernel.device_caches[DEVICE.index]
    assert binaries
    return "".join(found.asm["ptx"] for found in binaries.values())


def test_direct_multiplies_on_fma_units_alone_whatever_is_permitted():
    shape = Convolution((2, 64, 14, 14), (64, 64, 3, 3), (1, 1), (1, 1), (1, 1), 1, "float32", "tf32")
    direct.direct_conv2d.device_caches.clear()
    with backends.math("tf32"):
        for blocks in candidates("direct", shape):
            assert error("direct", shape, blocks) < 2e-6
    code = machine_code(direct.direct_conv2d)
    assert "fma.rn.f32" in code
    assert "mma" not in code


def test_winograd_in_fp32_multiplies_on_fma_units():
    shape = Convolution((2, 64, 14, 14), (64, 64, 3, 3), (1, 1), (1, 1), (1, 1), 1, "float32", "fp32")
    products = (fused.winograd_conv2d, nonfused.winograd_product)
    for kernel in products:
        kernel.device_caches.clear()
    for blocks in candidates("winograd", shape):
        error("winograd", shape, blocks)
    for code in map(machine_code, products):
        assert "fma.rn.f32" in code
        assert "mma" not in code


@pytest.mark.parametrize(("dtype", "layout"), HALF)
@pytest.mark.parametrize(
    ("algorithm", "kernel", "in_parts"),
    [
        ("direct", direct.direct_conv2d, False),
        ("winograd", fused.winograd_conv2d, False),
        ("winograd", nonfused.winograd_product, True),
    ],
)
def test_products_in_16_bits_run_on_the_matrix_unit_and_the_name_says_so(
    algorithm: str, kernel: triton.JITFunction, in_parts: bool, dtype: str, layout: str
):
    shape = Convolution((2, 64, 14, 14), (64, 64, 3, 3), (1, 1), (1, 1), (1, 1), 1, dtype, "fp32", layout)
    kernel.device_caches.clear()
    for blocks in [found for found in candidates(algorithm, shape) if bool(found.chunk) == in_parts][:3]:
        error(algorithm, shape, blocks)
    (binaries, *_) = kernel.device_caches[DEVICE.index]
    kind = "bf16" if dtype == "bfloat16" else "f16"
    name = "winograd_product_hmma" if in_parts else f"{algorithm}_conv2d_hmma"
    assert {found.name for found in binaries.values()} == {name}
    assert all(f".f32.{kind}.{kind}" in found.asm["ptx"] for found in binaries.values())


@each_new
@pytest.mark.parametrize("algorithm", ["direct", "winograd"])
def test_a_swapped_layer_runs_in_every_type_and_layout(algorithm: str, dtype: str, layout: str):
    conv, model = swapped(algorithm)
    model.to(getattr(torch, dtype))
    conv.to(getattr(torch, dtype))
    given = torch.randn(2, 16, 20, 24, device=DEVICE, dtype=getattr(torch, dtype))
    given = given.contiguous(memory_format=backends.LAYOUTS[layout])
    with backends.settings(provider="triton", layout=layout), recording():
        output = model(given)
        ran = swap.what_ran(model[0])
    assert (ran.algorithm, ran.provider, output.dtype) == (algorithm, "triton", given.dtype)
    assert output.is_contiguous(memory_format=backends.LAYOUTS[layout])
    expected = torch.nn.functional.conv2d(given.double(), conv.weight.double(), conv.bias.double(), padding=1)
    bound = 3 * STORAGE_ROUNDOFF[dtype] if dtype in STORAGE_ROUNDOFF else 1e-5
    assert float((output - expected).norm() / expected.norm()) < bound


def swapped(algorithm: str, **options: Any) -> tuple[torch.nn.Conv2d, torch.nn.Sequential]:
    torch.manual_seed(0)
    conv = torch.nn.Conv2d(16, 32, 3, padding=1, **options).cuda()
    model = torch.nn.Sequential(conv)
    swap.Swap(model).apply({"0": algorithm})
    return conv, model


@pytest.mark.parametrize("algorithm", ["direct", "winograd"])
def test_a_swapped_layer_says_that_triton_ran_it(algorithm: str):
    conv, model = swapped(algorithm)
    given = torch.randn(2, 16, 20, 24, device=DEVICE)
    with backends.settings(provider="triton"), recording():
        output = model(given)
        ran = swap.what_ran(model[0])
    assert (ran.algorithm, ran.provider) == (algorithm, "triton")
    assert relative_error(conv, given, output) < 1e-5


@pytest.mark.parametrize("algorithm", ["direct", "winograd"])
def test_a_captured_pass_computes_on_what_its_input_holds_at_replay(algorithm: str):
    conv, model = swapped(algorithm)
    given = torch.zeros(1, 16, 14, 14, device=DEVICE)
    outputs: list[torch.Tensor] = []
    with backends.settings(provider="triton"), graphs.capture(lambda: outputs.append(model(given))) as captured:
        given.normal_()
        captured.replay()
        torch.cuda.synchronize()
        assert relative_error(conv, given, outputs[-1]) < 1e-5


def test_packed_filters_live_with_the_graph_and_follow_their_weight():
    shape = Convolution((1, 16, 14, 14), (32, 16, 3, 3), (1, 1), (1, 1), (1, 1), 1, "float32", "fp32")
    x, weight, bias = tensors(shape)
    with torch.inference_mode(False):
        weight = torch.nn.Parameter(weight.clone())
    plan = Conv2dPlan("direct", shape, DEVICE, candidates("direct", shape)[0])
    outputs: list[torch.Tensor] = []
    with graphs.capture(lambda: outputs.append(plan.run(x, weight, bias))) as captured:
        with torch.inference_mode(False), torch.no_grad():
            weight.mul_(2)
        plan.run(x, weight, bias)  # packs them again, where the graph reads them
        plan.close()
        filling = [torch.full((2**20,), torch.nan, device=DEVICE) for _ in range(64)]
        captured.replay()
        torch.cuda.synchronize()
        expected = exact(shape, x, weight, bias)
        assert float((outputs[-1] - expected).norm() / expected.norm()) < 1e-5
        del filling


def test_the_first_call_must_not_be_captured():
    _, model = swapped("direct")
    given = torch.zeros(1, 16, 15, 13, device=DEVICE)
    with (
        pytest.raises(RuntimeError, match="run the layer once before capturing it"),
        torch.cuda.graph(torch.cuda.CUDAGraph()),
    ):
        model(given)


@pytest.mark.parametrize("algorithm", ["direct", "winograd"])
def test_the_work_goes_to_the_current_stream(algorithm: str):
    conv, model = swapped(algorithm)
    given = torch.zeros(1, 16, 64, 64, device=DEVICE)
    with backends.settings(provider="triton"):
        model(given)
        torch.cuda.synchronize()
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            torch.cuda._sleep(50_000_000)
            given.fill_(1.0)
            output = model(given)
        stream.synchronize()
    assert relative_error(conv, given, output) < 1e-5


@pytest.mark.parametrize(("dtype", "layout"), [("float32", "nchw"), *NEW])
def test_the_choice_is_remembered_on_disk_and_read_again(
    tmp_path, monkeypatch: pytest.MonkeyPatch, dtype: str, layout: str
):
    path = tmp_path / "choices.json"
    monkeypatch.setattr(autotune, "cache_file", lambda *names: path)
    shape = Convolution((1, 64, 28, 28), (64, 64, 3, 3), (1, 1), (1, 1), (1, 1), 1, dtype, "fp32", layout)
    x, weight, bias = tensors(shape)
    first = Conv2dPlan("direct", shape, DEVICE)
    first.run(x, weight, bias)
    assert first.key in json.loads(path.read_text())
    monkeypatch.setattr(autotune, "time_us", None)
    second = Conv2dPlan("direct", shape, DEVICE)
    second.run(x, weight, bias)
    assert second.blocks == first.blocks
    assert second.tuned == first.tuned


@pytest.mark.parametrize(("dtype", "layout", "bound"), [("float32", "nchw", 1e-6), ("float16", "nhwc", 2**-11)])
def test_a_batch_of_more_than_two_to_the_31_elements_is_addressed_in_64_bits(dtype: str, layout: str, bound: float):
    shape = Convolution((5, 16, 5200, 5200), (16, 16, 1, 1), (0, 0), (1, 1), (1, 1), 1, dtype, "fp32", layout)
    x, weight, bias = tensors(shape)
    y = Conv2dPlan("direct", shape, DEVICE, candidates("direct", shape)[0]).run(x, weight, bias)
    expected = exact(shape, x[-1:, :, -8:], weight, bias)
    assert float((y[-1:, :, -8:] - expected).norm() / expected.norm()) < bound
