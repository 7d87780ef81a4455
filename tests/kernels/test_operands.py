"""Tensors that do not fit a plan are refused by name before their addresses are handed on."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from convscope.convolution import operator
from convscope.convolution.providers.legacy import CudnnProvider
from convscope.cudnn import legacy
from convscope.cudnn.shape import Convolution
from convscope.errors import InputError
from convscope.kernels.operands import Operands

SHAPE = Convolution((1, 4, 8, 8), (6, 2, 3, 3), (0, 0), (1, 1), (1, 1), groups=2)
X, WEIGHT, BIAS = torch.zeros(SHAPE.input), torch.zeros(SHAPE.weight), torch.zeros(6)


def on_gpu(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor that says it is on a GPU."""
    with FakeTensorMode():
        return torch.empty(tensor.shape, device="cuda:0")


@pytest.mark.parametrize("bias", [BIAS, None])
def test_tensors_of_the_plans_own_type_size_and_device_pass(bias: torch.Tensor | None):
    Operands(SHAPE).check(X, WEIGHT, bias)
    Operands(SHAPE, device=-1).check(X, WEIGHT, bias)


@pytest.mark.parametrize(
    ("x", "weight", "bias", "said"),
    [
        (X.half(), WEIGHT, BIAS, "the input of this convolution is 1×4×8×8, float16 on cpu; it must be"),
        (X, WEIGHT.half(), BIAS, "the weight of this convolution is 6×2×3×3, float16 on cpu; it must be"),
        (X, WEIGHT, BIAS.double(), "the bias of this convolution is 6, float64 on cpu; it must be 6, float32 on cpu"),
        (X[:, :2], WEIGHT, BIAS, "the input of this convolution is 1×2×8×8"),
        (X, WEIGHT[:4], BIAS, "the weight of this convolution is 4×2×3×3"),
        (X, WEIGHT, BIAS[:4], "the bias of this convolution is 4"),
        (X, on_gpu(WEIGHT), BIAS, "the weight of this convolution is 6×2×3×3, float32 on cuda:0"),
        (X, WEIGHT, on_gpu(BIAS), "the bias of this convolution is 6, float32 on cuda:0; it must be 6, float32 on cpu"),
    ],
)  # fmt: skip
def test_another_tensor_is_refused_by_name(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, said: str):
    with pytest.raises(InputError, match=said):
        Operands(SHAPE).check(x, weight, bias)


def test_tensors_on_another_device_than_the_plans_are_refused():
    with pytest.raises(InputError, match=r"the input of this convolution is 1×4×8×8, float32 on cpu; .* on cuda:1"):
        Operands(SHAPE, device=1).check(X, WEIGHT, BIAS)


def test_channels_that_do_not_fit_the_groups_are_refused():
    with pytest.raises(InputError, match="a weight of 6×2×3×3 in 1 groups does not convolve 1×4×8×8: it takes 2"):
        Operands(Convolution((1, 4, 8, 8), (6, 2, 3, 3), (0, 0), (1, 1), (1, 1)))


class Handle:
    """A context that takes no work."""


class LegacyPlan:
    """A plan that must not be run."""

    workspace_bytes, output_shape, algorithm = 0, SHAPE.output, 1

    def __init__(self, *_: object) -> None:
        return None


def test_cudnn_gets_no_address_of_a_weight_of_another_type(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(legacy, "Handle", Handle)
    monkeypatch.setattr(legacy, "LegacyPlan", LegacyPlan)
    plan = CudnnProvider().plan("gemm", SHAPE, torch.device("cpu"))
    with pytest.raises(InputError, match=r"the weight of this convolution is .* float16"):
        plan.run(X, WEIGHT.half(), None)


def test_the_operator_makes_no_plan_for_tensors_that_do_not_fit(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.cuda, "current_device", lambda: None)
    engine = operator.CudaOperator()
    with pytest.raises(InputError, match="the bias of this convolution is 6, float64"):
        engine.forward(X, WEIGHT, BIAS.double(), 0, 0, 1, 1, 1, 1, 0, 2, "gemm")
    assert not engine._plans
