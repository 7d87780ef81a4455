"""Kernels of the engine `fused` for channels last on a GPU: right against float64, and in a graph at each replay."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torchvision
from torch import nn

from convscope.convolution.fusion import branches
from convscope.convolution.fusion import graphs as fusion
from convscope.convolution.reference import relative_distance
from convscope.inference import weights
from convscope.inference.engines.fused import first as first_layers
from convscope.inference.engines.fused import joined, own, planned, rows, steps, tails
from convscope.inference.engines.fused.parts import parts_of
from convscope.kernels.channels_last import activations, convolution, depthwise, heads, normalisation, pooling
from convscope.kernels.channels_last.windows import Window
from convscope.timing import graphs


@pytest.mark.parametrize("side_by_side", [False, True])
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("name", ["resnet50", "efficientnet_b0"])
def test_kernels_that_start_early_compute_the_same_at_each_replay(name: str, batch: int, side_by_side: bool):
    """A kernel that read before the one ahead of it had written would see an earlier replay's numbers."""
    network = torchvision.models.get_model(name).eval()
    weights.draw(network, torch.randn(8, 3, 224, 224), seed=0)  # else some numbers leave the range of float16
    model, _ = fusion.fused(fusion.folded(network)[0], steps.step_of)
    model = model.half().cuda().to(memory_format=torch.channels_last)
    plain = copy.deepcopy(model)
    steps.with_maxima(model)
    rows.with_rows(model)
    tails.with_tails(model)
    assert steps.with_heads(model) > 0
    assert first_layers.with_first(model) == 1
    assert first_layers.with_pooled_first(model) == (name == "resnet50")
    assert own.with_chosen(model, {}) > 50
    assert joined.with_joined(model, {}) == (15 if name == "resnet50" else 9)
    if side_by_side:
        branches.with_branches(model)
    given = torch.zeros(batch, 3, 224, 224, device="cuda", dtype=torch.half).contiguous(
        memory_format=torch.channels_last
    )
    outputs: list[torch.Tensor] = []
    with torch.inference_mode():
        model(given)  # blocks are chosen
        assert int(own.count(model).split()[0]) > 5
        with graphs.capture(lambda: outputs.append(model(given))) as captured:
            for _ in range(50):
                expected = plain(given.normal_()).double()
                captured.replay()
                assert relative_distance(outputs[-1], expected) < 1e-2


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    ("channels", "filters", "options"),
    [
        (3, 64, {"kernel_size": 7, "stride": 2, "padding": 3}),
        (3, 32, {"kernel_size": 3, "stride": 2, "padding": 1}),
        (3, 96, {"kernel_size": 4, "stride": 4}),
        (1, 8, {"kernel_size": (5, 3), "stride": (1, 2), "padding": (2, 0)}),
        (4, 24, {"kernel_size": 3, "padding": 1}),
    ],
)
@pytest.mark.parametrize("size", [112, 75])
def test_first_layers_by_the_kernel_are_right(
    channels: int, filters: int, options: dict[str, Any], size: int, dtype: torch.dtype
):
    conv = nn.Conv2d(channels, filters, **options).cuda().to(dtype)
    parts = parts_of(conv)
    assert parts is not None
    assert_right(first_layers.FirstConvolution(nn.Identity(), parts), conv, (2, channels, size, size - 7))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("filters", "side", "stride"), [(64, 7, 2), (24, 3, 2), (96, 3, 1)])
@pytest.mark.parametrize("size", [(2, 3, 224, 224), (33, 3, 75, 61), (1, 3, 40, 300)])
def test_first_layers_and_their_pooling_by_the_kernel_are_right(
    filters: int, side: int, stride: int, size: tuple[int, ...], dtype: torch.dtype
):
    conv = nn.Conv2d(3, filters, side, stride, side // 2).cuda().to(dtype)
    parts = parts_of(conv)
    assert parts is not None
    layer = first_layers.FirstConvolution(nn.Identity(), parts)
    pooled = first_layers.PooledFirstConvolution(layer, nn.Identity())
    assert_right(pooled, nn.Sequential(conv, nn.MaxPool2d(3, 2, 1)), size)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("adds", [False, True])
@pytest.mark.parametrize(
    ("channels", "filters", "options"),
    [
        (512, 512, {"kernel_size": 3, "padding": 1}),
        (256, 64, {"kernel_size": 1}),
        (40, 240, {"kernel_size": 1, "stride": 2}),
        (24, 72, {"kernel_size": (3, 5), "padding": (1, 2), "dilation": (1, 2)}),
    ],
)
def test_whole_convolutions_by_the_kernel_are_right(
    channels: int, filters: int, options: dict[str, Any], adds: bool, dtype: torch.dtype
):
    conv = nn.Conv2d(channels, filters, **options).cuda().to(dtype).requires_grad_(False)
    x = drawn((2, channels, 9, 7), dtype)
    exact = copy.deepcopy(conv).double()(x.double())
    added = drawn(tuple(exact.shape), dtype) if adds else None
    exact = torch.relu(exact if added is None else exact + added.double())
    height, width = exact.shape[2:]
    window: Any = Window(conv.kernel_size, conv.stride, conv.padding, conv.dilation)  # type: ignore[arg-type]
    assert conv.bias is not None
    kernel = convolution.Convolution(conv.weight.detach(), conv.bias.detach(), window, "relu")
    for blocks in convolution.candidates(channels, filters, conv.weight[0, 0].numel(), 2 * height * width, 132):
        for _ in range(3):
            assert_near(kernel(x, added, (height, width), blocks), exact)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_means_products_of_rows_and_factors_by_the_kernels_are_right(dtype: torch.dtype):
    mean = heads.Mean()
    for size in ((1, 40, 112, 113), (3, 2048, 7, 7), (1, 96, 1, 1)):
        x = drawn(size, dtype)
        assert heads.takes_images(x)
        for _ in range(3):
            assert_near(mean(x), x.double().mean((2, 3), keepdim=True))
        factors = drawn((*size[:2], 1, 1), dtype)
        assert activations.takes_factors(x, factors)
        assert_near(activations.scaled(x, factors), x.double() * factors.double())
    for count, depth, outputs in ((1, 2048, 1000), (4, 20, 480), (2, 1030, 7)):
        row, linear = drawn((count, depth), dtype), nn.Linear(depth, outputs).cuda().to(dtype).requires_grad_(False)
        assert heads.takes_rows(row, linear.weight)
        assert_near(rows.Rows(rows.RowProduct(linear, ""), False)(row), copy.deepcopy(linear).double()(row.double()))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("size", [(8, 56, 56, 96), (197, 384), (2, 7, 7, 768), (3, 5000)])
def test_rows_are_normalised_by_the_kernel(size: tuple[int, ...], dtype: torch.dtype):
    x, weight, bias = drawn(size, dtype).contiguous(), drawn(size[-1:], dtype), drawn(size[-1:], dtype)
    assert normalisation.takes(x, size[-1:], weight, bias)
    exact = nn.functional.layer_norm(x.double(), size[-1:], weight.double(), bias.double(), 1e-6)
    assert_near(rows.normalised(x, size[-1:], weight, bias, 1e-6), exact)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("kind", ["gelu", ""])
@pytest.mark.parametrize(("pixels", "depth", "outputs"), [(56 * 56, 96, 384), (197, 1536, 384), (3, 40, 24)])
def test_products_of_rows_with_what_follows_them_are_right(
    pixels: int, depth: int, outputs: int, kind: str, dtype: torch.dtype
):
    linear = nn.Linear(depth, outputs).cuda().to(dtype).requires_grad_(False)
    x, exactly = drawn((2, pixels, depth), dtype), copy.deepcopy(linear).double()
    added = None if kind else drawn((2, pixels, outputs), dtype)
    exact = tails.BY_PYTORCH[kind](exactly(x.double()) + (0 if added is None else added.double()))
    product = rows.RowProduct(linear, kind)
    parts = parts_of(product)
    assert parts is not None
    chosen: Any = own.ChosenConvolution(product, parts, {})
    with torch.inference_mode():
        for inner in (product, chosen):
            for _ in range(2):
                assert_near(rows.Rows(inner, False)(x, added), exact)


@pytest.mark.parametrize("adds", [False, True])
def test_a_convolution_and_what_is_added_to_it_are_right(adds: bool):
    conv = nn.Conv2d(32, 48, 3, padding=1, groups=2).cuda().half().requires_grad_(False)
    x, added = drawn((4, 32, 15, 17), torch.half), drawn((4, 48, 15, 17) if adds else (4, 48, 1, 1), torch.half)
    exact = copy.deepcopy(conv).double()(x.double()) + added.double()
    assert_near(tails.TailedConvolution(conv, "")(x, added), exact)


def test_a_depthwise_convolution_is_done_by_the_faster_of_two():
    conv = nn.Conv2d(64, 64, 3, padding=1, groups=64).cuda().half().requires_grad_(False)
    module, choices = tails.DepthwiseConvolution(conv, "silu"), own.Choices()
    x, exactly = drawn((4, 64, 28, 28), torch.half), copy.deepcopy(conv).double()
    exact = nn.functional.silu(exactly(x.double()))
    for _ in range(2):
        assert_near(own.ChosenDepthwise(module, choices)(x), exact)
    (key,) = choices
    for is_own in (True, False):
        choices[key] = is_own
        chosen = own.ChosenDepthwise(module, choices)
        assert_near(chosen(x), exact)
        assert chosen.is_own is is_own


def drawn(size: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    x = torch.randn(size, device="cuda").to(dtype)
    return x.contiguous(memory_format=torch.channels_last) if x.dim() == 4 else x


def assert_right(module: nn.Module, plain: nn.Module, size: tuple[int, ...]) -> None:
    """Check a module in place of another against float64."""
    x = drawn(size, next(plain.parameters()).dtype)
    with torch.inference_mode():
        found, exact = module(x), copy.deepcopy(plain).double()(x.double())
    assert found.is_contiguous(memory_format=torch.channels_last)
    assert_near(found, exact)


def assert_near(found: torch.Tensor, exact: torch.Tensor) -> None:
    limit = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 2e-2}[found.dtype]
    assert float((found.double() - exact).abs().max()) <= limit * float(exact.abs().max())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    ("size", "options"),
    [
        ((4, 64, 112, 112), {"kernel_size": 3, "stride": 2, "padding": 1}),
        ((2, 192, 27, 29), {"kernel_size": 3, "stride": 2, "ceil_mode": True}),
        ((3, 5, 17, 8), {"kernel_size": (3, 2), "stride": (1, 3), "padding": (1, 0), "dilation": (2, 1)}),
    ],
)
def test_maxima_by_the_kernel_are_pytorchs(size: tuple[int, ...], options: dict[str, Any], dtype: torch.dtype):
    pool = nn.MaxPool2d(**options)
    x = torch.randn(size, device="cuda").to(dtype).contiguous(memory_format=torch.channels_last)
    x[0, 0, 3, 3] = float("nan")
    expected, found = pool(x), steps.MaximumPooling(pool)(x)
    assert pooling.takes(x, (3, 3))
    assert torch.equal(found.isnan(), expected.isnan())
    assert torch.equal(found.nan_to_num(0.5), expected.nan_to_num(0.5))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    ("channels", "size", "options"),
    [
        (96, 112, {"kernel_size": 3, "stride": 2, "padding": 1}),
        (240, 29, {"kernel_size": 5, "padding": 2}),
        (384, 14, {"kernel_size": 7, "padding": 3}),
        (5, 17, {"kernel_size": (3, 2), "stride": (1, 3), "padding": (1, 0), "dilation": (2, 1)}),
    ],
)
@pytest.mark.parametrize("kind", ["", "relu6", "silu", "hardswish", "gelu"])
@pytest.mark.parametrize("many", [1, 2**30])
def test_depthwise_convolutions_by_the_kernel_are_right(
    channels: int, size: int, options: dict[str, Any], kind: str, many: int, dtype: torch.dtype,
    monkeypatch: pytest.MonkeyPatch,
):  # fmt: skip
    monkeypatch.setattr(depthwise, "_MANY", many)
    conv = nn.Conv2d(channels, channels, groups=channels, **options).cuda().to(dtype)
    x = torch.randn(4, channels, size, size, device="cuda").to(dtype).contiguous(memory_format=torch.channels_last)
    precise = copy.deepcopy(conv).double()
    with torch.inference_mode():
        found = tails.DepthwiseConvolution(conv, kind)(x)
        exact = tails.BY_PYTORCH[kind](precise(x.double()))
    assert depthwise.takes(x, (conv.kernel_size[0], conv.kernel_size[1]))
    assert found.is_contiguous(memory_format=torch.channels_last)
    limit = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 2e-2}[dtype]
    assert float((found.double() - exact).abs().max()) <= limit * float(exact.abs().max())


@pytest.mark.parametrize("kind", tails.BY_PYTORCH)
def test_bias_and_activation_by_the_kernel_are_right(kind: str):
    conv = nn.Conv2d(32, 48, 3, padding=1).cuda().half()
    x = torch.randn(4, 32, 15, 17, device="cuda").half().contiguous(memory_format=torch.channels_last)
    precise = copy.deepcopy(conv).double()
    with torch.inference_mode():
        found = tails.TailedConvolution(conv, kind)(x)
        exact = tails.BY_PYTORCH[kind](precise(x.double()))
    assert float((found.double() - exact).abs().max()) <= 3e-3 * float(exact.abs().max())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("adds", [False, True])
@pytest.mark.parametrize("kind", planned.ENDS)
@pytest.mark.parametrize(
    ("size", "filters", "options"),
    [
        ((64, 40, 28, 28), 240, {"kernel_size": 1}),
        ((8, 64, 56, 56), 256, {"kernel_size": 3, "padding": 1, "stride": 2, "bias": False}),
        ((20_000, 384, 1, 1), 256, {"kernel_size": 1}),
    ],
)
def test_plans_that_end_with_a_bias_an_addition_or_silu_are_right(
    size: tuple[int, ...], filters: int, options: dict[str, Any], kind: str, adds: bool, dtype: torch.dtype,
    monkeypatch: pytest.MonkeyPatch,
):  # fmt: skip
    monkeypatch.setattr(planned, "_OUTPUTS_LEAST", 1)
    conv = nn.Conv2d(size[1], filters, **options).cuda().to(dtype).requires_grad_(False)
    x = drawn(size, dtype)
    parts = parts_of(tails.TailedConvolution(conv, kind))
    assert parts is not None
    exact = copy.deepcopy(conv).double()(x.double())
    added = drawn(tuple(exact.shape), dtype) if adds else None
    exact = tails.by_pytorch(exact, None if added is None else added.double(), kind)
    plans = [*planned.plans(x, conv.weight, parts.options, kind, adds)]
    assert plans, "cuDNN has such plans"
    for plan in plans:
        assert_near(plan(x, parts.weight, parts.bias, added), exact)
        assert plan(x, parts.weight, parts.bias, added).is_contiguous(memory_format=torch.channels_last)
        plan.close()


def test_a_plan_is_kept_where_it_is_the_fastest(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(planned, "_OUTPUTS_LEAST", 1)
    ways: list[Any] = []

    def timed(work: Any) -> float:
        way = getattr(work, "args", [None])[0]  # None while the blocks are chosen
        ways.append(way)
        return 1.0 if isinstance(way, planned.Planned) else 2.0

    conv = nn.Conv2d(64, 128, 1).cuda().half().requires_grad_(False)
    tailed = tails.TailedConvolution(conv, "silu")
    parts, choices = parts_of(tailed), own.Choices()
    assert parts is not None
    module, x = own.ChosenConvolution(tailed, parts, choices), drawn((4, 64, 28, 28), torch.float16)
    with monkeypatch.context() as patched:
        patched.setattr("convscope.kernels.autotune.time_us", timed)
        module(x)
    assert (module.is_planned, module.is_own) == (True, False)
    assert False in ways
    assert [*choices.values()] == [next(way for way in ways if isinstance(way, planned.Planned))]
    assert_near(module(x), copy.deepcopy(tailed).double()(x.double()))
    assert own.count(nn.Sequential(module)) == "0 of 1 convolutions by Triton, 1 by plans of cuDNN's graph API"
    own.close(choices.values())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("channels", "filters", "outputs"), [(64, 256, 64), (128, 512, 128), (16, 64, 32)])
def test_pairs_of_convolutions_by_the_kernel_are_right(
    channels: int, filters: int, outputs: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
):
    convs = (nn.Conv2d(channels, filters, 1), nn.Conv2d(filters, outputs, 1))
    first, second = (steps.FusedConvolution(conv.cuda().to(dtype)).requires_grad_(False) for conv in convs)
    x, added = drawn((3, channels, 29, 31), dtype), drawn((3, filters, 29, 31), dtype)
    parts = parts_of(first), parts_of(second)
    assert parts[0] is not None
    assert parts[1] is not None
    module = joined.JoinedConvolutions(first, second, (parts[0], parts[1]), {})
    module._by(False, x, added)
    monkeypatch.setattr(
        "convscope.kernels.autotune.time_us", lambda work: float(getattr(work, "args", [0])[0] is False)
    )
    weights = [copy.deepcopy(conv).requires_grad_(False).double() for conv in convs]
    exact = torch.relu(weights[0](x.double()) + added.double())
    for _ in range(3):
        y, z = module(x, added)
        assert joined.count(nn.Sequential(module)) == "1 of 1 pairs in one kernel"
        assert_near(y, exact)
        assert_near(z, torch.relu(weights[1](exact)))
