"""ai3::conv2d on CUDA tensors: right for every option, on the right stream, capturable, and honest about refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from convscope.convolution import algorithms, backends, models, swap
from convscope.convolution.operator import cuda_operator, recording
from convscope.convolution.reference import relative_error
from convscope.cudnn.shape import Convolution
from convscope.errors import InputError, NotSupportedError
from convscope.kernels import autotune
from convscope.timing import graphs

ALWAYS = ("gemm", "implicit gemm", "implicit precomp gemm", "guess")
OPTIONS = [
    {"kernel_size": 3, "padding": 1},
    {"kernel_size": 3, "padding": 1, "bias": False},
    {"kernel_size": (3, 5), "padding": (1, 2)},
    {"kernel_size": (1, 7), "padding": (0, 3)},
    {"kernel_size": 3, "stride": 2, "padding": 1},
    {"kernel_size": 3, "stride": (1, 2)},
    {"kernel_size": 3, "dilation": 2, "padding": 2},
    {"kernel_size": 3, "groups": 4, "padding": 1},
    {"kernel_size": 3, "groups": 16, "padding": 1},
    {"kernel_size": 1},
    {"kernel_size": 1, "stride": 2},
    {"kernel_size": 5, "padding": 2},
    {"kernel_size": 11, "stride": 4, "padding": 2},
    {"kernel_size": 2, "stride": 2},
    {"kernel_size": 3, "padding": 4},
    {"kernel_size": 7, "stride": 2, "padding": 3},
    {"kernel_size": 7, "stride": 3, "padding": 3},
]


def swapped(algorithm: str, **options: object) -> tuple[torch.nn.Conv2d, torch.nn.Sequential]:
    torch.manual_seed(0)
    conv = torch.nn.Conv2d(16, 32, **options).cuda()  # type: ignore[arg-type]
    model = torch.nn.Sequential(conv)
    swap.Swap(model).apply({"0": algorithm})
    return conv, model


def error(output: torch.Tensor, conv: torch.nn.Conv2d, given: torch.Tensor) -> float:
    found = relative_error(conv, given, output)
    assert found is not None
    return found


@pytest.fixture(autouse=True)
def _inference():
    with torch.inference_mode(), backends.math("fp32"), backends.settings(provider="cudnn"):
        yield
    cuda_operator().release()


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize(
    "algorithm", [name for name, a in algorithms.ALGORITHMS.items() if "cudnn" in a.cuda_providers]
)
@pytest.mark.parametrize("batch", [1, 3])
def test_output_agrees_with_float64_or_the_layer_is_refused(algorithm: str, options: dict, batch: int):
    conv, model = swapped(algorithm, **options)
    given = torch.randn(batch, 16, 40, 33, device="cuda")
    layer = models.describe("0", 0, conv, given.shape)
    by_rule = algorithms.why_not_by_rule(algorithms.find(algorithm), layer, "cuda")
    by_library = cuda_operator().why_refused(given.device, layer, algorithm)
    if by_rule:
        assert by_library, f"the rule says {by_rule!r}, cuDNN takes it"
    if by_library:
        assert algorithm not in ALWAYS
        with pytest.raises(NotSupportedError):
            model(given)
        return
    tolerance = 1e-3 if algorithm == "winograd nonfused" and layer.kernel == (5, 5) else 1e-4
    assert error(model(given), conv, given) < tolerance
    with recording():
        model(given)
        ran = swap.what_ran(model[0])
    assert ran.provider == "cudnn"
    assert ran.algorithm == algorithm or algorithm == "guess"


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_other_types_agree_with_float64(dtype: torch.dtype):
    conv, model = swapped("implicit precomp gemm", kernel_size=3, padding=1)
    given = torch.randn(2, 16, 20, 20, device="cuda").to(dtype)
    model.to(dtype)
    reference = torch.nn.functional.conv2d(given.double(), conv.weight.double(), conv.bias.double(), padding=1)
    output = model(given)
    assert output.dtype == dtype
    assert (output.double() - reference).norm() / reference.norm() < {torch.float64: 1e-12}.get(dtype, 1e-2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("algorithm", ["implicit gemm", "implicit precomp gemm", "guess"])
def test_channels_last_agrees_with_float64_or_is_refused(algorithm: str, options: dict, dtype: torch.dtype):
    conv, model = swapped(algorithm, **options)
    given = torch.randn(3, 16, 40, 33, device="cuda").to(dtype)
    model.to(dtype)
    layer = models.describe("0", 0, conv, given.shape)
    with backends.settings(layout="nhwc"):
        if cuda_operator().why_refused(given.device, layer, algorithm, str(dtype).removeprefix("torch.")):
            assert conv.groups > 1 or conv.dilation != (1, 1)
            return
        output = model(given)  # copied to channels last
        again = model(given.to(memory_format=torch.channels_last))
    assert output.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(output, again)
    assert error(output, conv, given) < (1e-4 if dtype == torch.float32 else 1e-2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("algorithm", ["gemm", "fft", "fft tiling", "winograd nonfused"])
def test_what_there_is_not_in_channels_last_is_refused(algorithm: str, dtype: torch.dtype):
    conv, model = swapped(algorithm, kernel_size=3, padding=1)
    model.to(dtype)
    given = torch.randn(1, 16, 40, 33, device="cuda").to(dtype)
    layer = models.describe("0", 0, conv, given.shape)
    with backends.settings(layout="nhwc"):
        assert cuda_operator().why_refused(given.device, layer, algorithm, str(dtype).removeprefix("torch."))
        with pytest.raises((NotSupportedError, NotImplementedError)):
            model(given)


def test_tf32_is_used_only_where_it_is_permitted():
    conv, model = swapped("implicit precomp gemm", kernel_size=5, padding=2)
    given = torch.randn(1, 16, 56, 56, device="cuda")
    assert error(model(given), conv, given) < 1e-5
    with backends.math("tf32"):
        assert 5e-5 < error(model(given), conv, given) < 3e-3


def test_a_strided_view_is_convolved_as_what_it_shows():
    conv, model = swapped("gemm", kernel_size=3)
    given = torch.randn(2, 40, 33, 16, device="cuda").permute(0, 3, 1, 2)
    assert not given.is_contiguous()
    assert error(model(given), conv, given) < 1e-5


def test_an_input_without_a_batch_keeps_its_rank():
    conv, model = swapped("gemm", kernel_size=3)
    given = torch.randn(16, 20, 20, device="cuda")
    assert model(given).shape == (32, 18, 18)
    assert error(model(given), conv, given) < 1e-5


@pytest.mark.parametrize("provider", ["cudnn", "triton"])
@pytest.mark.parametrize("algorithm", ["implicit precomp gemm", "direct"])
def test_a_weight_or_bias_of_another_type_or_device_is_refused(algorithm: str, provider: str):
    conv, _ = swapped(algorithm, kernel_size=3)
    given, rest = torch.randn(1, 16, 20, 20, device="cuda"), (0, 0, 1, 1, 1, 1, 0, 1, algorithm)
    forward = cuda_operator().forward
    with backends.settings(provider=provider):
        for weight, bias in (
            (conv.weight.half(), conv.bias), (conv.weight.cpu(), conv.bias), (conv.weight, conv.bias.cpu()),
            (conv.weight, conv.bias[:-1]), (conv.weight[:, :8], conv.bias),
        ):  # fmt: skip
            with pytest.raises(InputError, match=r"of this convolution is|does not convolve"):
                forward(given, weight, bias, *rest)


def test_other_padding_modes_say_so():
    _, model = swapped("gemm", kernel_size=3, padding=1, padding_mode="reflect")
    with pytest.raises(NotImplementedError, match="pads with zeros only"):
        model(torch.randn(1, 16, 20, 20, device="cuda"))


def test_the_work_goes_to_the_current_stream():
    conv, model = swapped("implicit precomp gemm", kernel_size=3)
    given = torch.zeros(1, 16, 64, 64, device="cuda")
    model(given)
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)
        given.fill_(1.0)
        output = model(given)
    stream.synchronize()
    assert error(output, conv, given) < 1e-5


def test_a_captured_pass_computes_on_what_its_input_holds_at_replay():
    conv, model = swapped("implicit precomp gemm", kernel_size=3)
    given = torch.zeros(1, 16, 64, 64, device="cuda")
    outputs: list[torch.Tensor] = []
    with graphs.capture(lambda: outputs.append(model(given))) as captured:
        given.normal_()
        captured.replay()
        torch.cuda.synchronize()
        assert error(outputs[-1], conv, given) < 1e-5


def test_released_plans_leave_no_descriptor_behind():
    _, model = swapped("gemm", kernel_size=3)
    engine = cuda_operator()
    model(torch.randn(1, 16, 20, 20, device="cuda"))
    plans: list[Any] = list(engine._plans.values())
    assert plans
    engine.release()
    assert all(not plan._call._destroyers for plan in plans)
    assert not engine._plans


def test_the_refusal_of_winograd_names_library_and_card():
    conv, _ = swapped("winograd", kernel_size=3, padding=1)
    given = torch.randn(1, 16, 40, 40, device="cuda")
    layer = models.describe("0", 0, conv, given.shape)
    reason = cuda_operator().why_refused(given.device, layer, "winograd")
    if reason is None:
        pytest.skip("this card has a fused Winograd")
    assert reason.startswith("cuDNN 9.")
    assert reason.endswith(f"has no fused Winograd on {torch.cuda.get_device_name()}")


def test_a_limit_of_workspace_has_triton_choose_other_block_shapes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(autotune, "cache_file", lambda *names: tmp_path / "blocks.json")
    shape = Convolution((32, 128, 28, 28), (128, 128, 3, 3), (1, 1), (1, 1), (1, 1), math="fp32")
    torch.manual_seed(0)
    x, weight = torch.randn(shape.input, device="cuda"), torch.randn(shape.weight, device="cuda")
    expected = torch.nn.functional.conv2d(x.double(), weight.double(), padding=1)
    taken = {}
    for most in (None, 0):
        with backends.math("fp32"), backends.settings("triton", max_workspace_bytes=most):
            plan = cuda_operator().plan(shape, "winograd", x.device)
        assert (plan.run(x, weight, None).double() - expected).norm() < 1e-5 * expected.norm()
        taken[most] = plan.workspace_bytes
        assert all(("workspace<=0" in key) is (most == 0) for key in plan.tuned)
    assert taken[0] == 0
    assert taken[None] > 0
