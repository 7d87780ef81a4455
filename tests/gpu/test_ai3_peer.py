"""The tests of the public ai3 with CUDA tensors, through this project's kernel of `ai3::conv2d`.

What covers what (the cases are in `peer`); tolerances follow from the math mode and the length of sums (`accuracy`):
    test/unit/conv2d.py    all 16 different convolutions, with each algorithm of cuDNN, in both modes: they agree with
                           float64 or are refused; the four that their build with cuDNN is tested with are never refused
    test/swap_conv2d.py    all 17 models at 224 pixels, batch 2, by `ai3.swap_conv2d`, with those four; theirs skips the
                           seven with groups. Trained weights need a network: these are drawn
    test/ops/opcheck.py    both samples, with and without gradients, with the four and ai3's default
    test/ops/backward.py   all three cases with the same five, in both modes; the gradient of the input too
    test/ops/compile.py    its network, compiled by two backends, and its gradients
    test/ops/train.py      its network and optimizer on made-up digits: MNIST needs a network
Not here: `test/convert.py` and the other units (ai3's own model in C++ on the CPU), `test/serialization`.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import ai3
import pytest
import torch
from fakes import peer
from torch import nn

from convscope.convolution import algorithms, backends, swap
from convscope.convolution.operator import cuda_operator
from convscope.convolution.reference import relative_distance
from convscope.errors import NotSupportedError

THEIRS = ("gemm", "implicit gemm", "implicit precomp gemm", "guess")
OF_CUDNN = [name for name, found in algorithms.ALGORITHMS.items() if "cudnn" in found.cuda_providers]
MODES = ("fp32", "tf32")

# The first backward pass of a process may find its thread without a CUDA context; PyTorch makes one and warns.
pytestmark = pytest.mark.filterwarnings("ignore:Attempting to run cuBLAS")


@pytest.fixture(autouse=True)
def _engine() -> Iterator[None]:
    engine = cuda_operator()
    with backends.math("fp32"):
        yield
    engine.release()


def swapped(model: nn.Module, algorithm: str) -> nn.Module:
    """Put an algorithm into every convolution, names that ai3 does not list too."""
    swapping = swap.Swap(model)
    swapping.apply(dict.fromkeys(swapping.originals, algorithm))
    return model


@pytest.mark.parametrize("math", MODES)
@pytest.mark.parametrize("algorithm", OF_CUDNN)
@pytest.mark.parametrize("unit", peer.UNITS, ids=lambda unit: unit.name)
def test_a_convolution_agrees_with_float64_or_is_refused(unit: peer.Unit, algorithm: str, math: str):
    conv, given = unit.build("cuda")
    with backends.math(math):
        expected = peer.expect(nn.Sequential(conv), given)
        refused = cuda_operator().why_refused(given.device, expected.layers[0], algorithm)
        swapped(expected.model, algorithm)
        if refused:
            assert algorithm not in THEIRS, refused
            with pytest.raises(NotSupportedError):
                expected.error()
            return
        assert expected.error() < expected.tolerance(algorithm, math)


@pytest.fixture(scope="module", params=peer.ZOO + peer.GROUPED_ZOO)
def of_the_zoo(request: pytest.FixtureRequest) -> peer.Expected:
    """Return one model after the other, each for all the tests that take it."""
    with backends.math("fp32"):
        torch.manual_seed(0)
        return peer.expect(peer.zoo_model(request.param, "cuda"), torch.randn(2, 3, 224, 224, device="cuda"))


@pytest.mark.parametrize(
    ("algorithm", "math"), [*((name, "fp32") for name in THEIRS), ("implicit precomp gemm", "tf32")]
)
def test_a_swapped_model_agrees_with_float64(of_the_zoo: peer.Expected, algorithm: str, math: str):
    ai3.swap_conv2d(of_the_zoo.model, algorithm)
    with backends.math(math):
        assert of_the_zoo.error() < of_the_zoo.tolerance(algorithm, math)
    found = {name for module in of_the_zoo.model.modules() if (name := swap.carried(module)) != "torch"}
    assert found == {algorithm}


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.parametrize("algorithm", [*THEIRS, "default"])
@pytest.mark.parametrize("gradient", [False, True])
def test_the_operator_keeps_pytorchs_rules(algorithm: str, gradient: bool):
    shapes = (1, 3, 224, 224), (3, 3, 5, 5), (3,)
    tensors = [torch.randn(shape, device="cuda", requires_grad=gradient) for shape in shapes]
    # Gradients of weights add up in an order that changes from call to call: 222² terms.
    given = (*tensors, 1, 1, 1, 1, 1, 1, 0, 1, algorithm)
    torch.library.opcheck(torch.ops.ai3.conv2d, given, rtol=1e-4, atol=1e-2)


@pytest.mark.parametrize("math", MODES)
@pytest.mark.parametrize("algorithm", [*THEIRS, "default"])
@pytest.mark.parametrize("case", peer.GRADIENTS)
def test_gradients_agree_with_float64(case: str, algorithm: str, math: str):
    model, given = peer.gradient_case(case, "cuda")
    exact = peer.exact_gradients(model, given)
    ai3.swap_conv2d(model, algorithm)
    with backends.math(math):
        assert peer.gradient_error(model, given, exact) < peer.gradient_tolerance(given, math)


@pytest.mark.parametrize("groups", [1, 2])
def test_the_operators_gradients_are_its_derivatives(groups: int):
    torch.manual_seed(0)
    shapes = (2, 4, 7, 8), (4, 4 // groups, 3, 3), (4,)
    leaves = [torch.randn(shape, device="cuda", dtype=torch.float64, requires_grad=True) for shape in shapes]

    def convolve(*x: torch.Tensor) -> torch.Tensor:
        return torch.ops.ai3.conv2d(*x, 1, 2, 2, 1, 1, 2, 0, groups, "implicit precomp gemm")

    assert torch.autograd.gradcheck(convolve, leaves, nondet_tol=1e-10)


@pytest.mark.filterwarnings("ignore")  # what the compiler warns of is not ours
@pytest.mark.parametrize("algorithm", ["default", "implicit gemm"])
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_a_compiled_model_and_its_gradients_agree_with_float64(backend: str, algorithm: str):
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = peer.TwoConvolutions(second_bias=False).cuda()
    given = torch.randn(3, 224, 224, device="cuda", requires_grad=True)
    expected, exact = peer.expect(model, given.detach()), peer.exact_gradients(model, given)
    swapped(model, algorithm)
    compiled: Any = torch.compile(model, backend=backend, fullgraph=True)
    output = compiled(given).detach()
    assert output.is_cuda
    assert relative_distance(output, expected.reference) < expected.tolerance(algorithm, "fp32")
    assert peer.gradient_error(compiled, given, exact) < peer.gradient_tolerance(given, "fp32")


@pytest.mark.filterwarnings("ignore")
def test_a_compiled_model_takes_inputs_of_other_sizes():
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, stride=2)).cuda()
    inputs = [torch.randn(2, 3, size, size, device="cuda") for size in (64, 80, 97)]
    expected = [peer.expect(model, given) for given in inputs]
    swapped(model, "gemm")
    compiled = torch.compile(model, backend="aot_eager", dynamic=True, fullgraph=True)
    with torch.inference_mode():
        for each in expected:
            error = relative_distance(compiled(each.given), each.reference)
            assert error < each.tolerance("gemm", "fp32")


@pytest.mark.parametrize("algorithm", ["default", "gemm"])
def test_training_a_swapped_model_goes_as_training_pytorchs(algorithm: str):
    torch.manual_seed(0)
    model = peer.Digits().cuda()
    other = copy.deepcopy(model)
    ai3.swap_conv2d(other, algorithm)
    losses, other_losses = (peer.train(each, "cuda", batches=30) for each in (model, other))
    assert other_losses == pytest.approx(losses, abs=1e-3)
    assert sum(other_losses[-5:]) < 0.8 * sum(other_losses[:5])
