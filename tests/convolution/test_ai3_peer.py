"""The tests of the public ai3 with this project's way of swapping, on a CPU: its algorithms direct and smm.

What covers what (the cases are in `peer`):
    test/unit/conv2d.py    all 16 different convolutions, each with both algorithms
    test/swap_conv2d.py    five of the ten models without groups, small (tests/gpu runs all 17)
    test/ops/opcheck.py    both samples, smaller, with and without gradients, with both algorithms and ai3's default
    test/ops/backward.py   all three cases, smaller; the gradient of the input too
    test/ops/compile.py    its network, compiled, and its gradients
    test/ops/train.py      its network and optimizer on made-up digits: MNIST needs a network
Not here: `test/convert.py` and the other units (ai3's own model in C++, which nothing here uses), `test/serialization`.
"""

from __future__ import annotations

import copy
import shutil

import ai3
import pytest
import torch
from fakes import peer
from torch import nn

from convscope.convolution import swap
from convscope.convolution.reference import relative_distance

ON_A_CPU = ("direct", "smm")
COMPILER = "inductor" if shutil.which("g++") else "aot_eager"


def swapped(model: nn.Module, algorithm: str) -> nn.Module:
    """Put an algorithm into every convolution."""
    swapping = swap.Swap(model)
    swapping.apply(dict.fromkeys(swapping.originals, algorithm))
    return model


@pytest.mark.parametrize("algorithm", ON_A_CPU)
@pytest.mark.parametrize("unit", peer.UNITS, ids=lambda unit: unit.name)
def test_a_convolution_agrees_with_float64(unit: peer.Unit, algorithm: str):
    conv, given = unit.build("cpu")
    expected = peer.expect(nn.Sequential(conv), given)
    swapped(expected.model, algorithm)
    assert expected.error() < expected.tolerance(algorithm, "fp32")


@pytest.mark.parametrize("algorithm", ON_A_CPU)
@pytest.mark.parametrize(
    ("name", "batch", "size"),
    [
        ("two convolutions", 2, 64), ("alexnet", 1, 64), ("densenet121", 2, 32), ("googlenet", 2, 32),
        ("squeezenet1_1", 2, 64),
    ],
)  # fmt: skip
def test_a_swapped_model_agrees_with_float64(name: str, batch: int, size: int, algorithm: str):
    expected = peer.expect(peer.zoo_model(name, "cpu"), torch.randn(batch, 3, size, size))
    ai3.swap_conv2d(expected.model, algorithm)
    assert expected.error() < expected.tolerance(algorithm, "fp32")


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.parametrize("algorithm", [*ON_A_CPU, "default"])
@pytest.mark.parametrize("gradient", [False, True])
def test_the_operator_keeps_pytorchs_rules(algorithm: str, gradient: bool):
    shapes = (1, 3, 40, 40), (3, 3, 5, 5), (3,)
    tensors = [torch.randn(shape, requires_grad=gradient) for shape in shapes]
    torch.library.opcheck(torch.ops.ai3.conv2d, (*tensors, 1, 1, 1, 1, 1, 1, 0, 1, algorithm))


@pytest.mark.parametrize("algorithm", ON_A_CPU)
@pytest.mark.parametrize("case", peer.GRADIENTS)
def test_gradients_agree_with_float64(case: str, algorithm: str):
    model, given = peer.gradient_case(case, "cpu", most_px=60)
    exact = peer.exact_gradients(model, given)
    assert peer.gradient_error(swapped(model, algorithm), given, exact) < peer.gradient_tolerance(given, "fp32")


@pytest.mark.parametrize("algorithm", ON_A_CPU)
def test_the_operators_gradients_are_its_derivatives(algorithm: str):
    torch.manual_seed(0)
    leaves = [
        torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in ((2, 3, 7, 8), (4, 3, 3, 3), (4,))
    ]
    assert torch.autograd.gradcheck(lambda *x: torch.ops.ai3.conv2d(*x, 1, 2, 2, 1, 1, 2, 0, 1, algorithm), leaves)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")  # what the compiler warns of is not ours
def test_a_compiled_model_and_its_gradients_agree_with_float64():
    torch.manual_seed(0)
    model, given = peer.TwoConvolutions(second_bias=False), torch.randn(3, 224, 224, requires_grad=True)
    expected, exact = peer.expect(model, given.detach()), peer.exact_gradients(model, given)
    compiled = torch.compile(swapped(model, "direct"), backend=COMPILER, fullgraph=True)
    output = compiled(given).detach()
    assert relative_distance(output, expected.reference) < expected.tolerance("direct", "fp32")
    assert peer.gradient_error(compiled, given, exact) < peer.gradient_tolerance(given, "fp32")


@pytest.mark.parametrize("algorithm", ON_A_CPU)
def test_training_a_swapped_model_goes_as_training_pytorchs(algorithm: str):
    torch.manual_seed(0)
    model = peer.Digits()
    other = swapped(copy.deepcopy(model), algorithm)
    losses, other_losses = (peer.train(each, "cpu", batches=30) for each in (model, other))
    assert other_losses == pytest.approx(losses, abs=1e-3)
    assert sum(other_losses[-5:]) < 0.8 * sum(other_losses[:5])
