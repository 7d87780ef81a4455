"""Modules that are more than a plain convolution: never replaced, named with the reason, compared with themselves."""

from __future__ import annotations

import pytest
import torch
from fakes import run
from torch import nn
from torch.nn.utils import parametrizations, prune

from convscope.convolution import models
from convscope.convolution.assignment import assign
from convscope.convolution.observation import observe
from convscope.convolution.swap import Swap, carried
from convscope.errors import InputError


class Standardised(nn.Conv2d):
    """Weight standardisation, as in ResNets without batch normalisation."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight = self.weight - self.weight.mean((1, 2, 3), keepdim=True)
        return self._conv_forward(x, weight / (weight.std((1, 2, 3), keepdim=True) + 1e-5), self.bias)


class Named(nn.Conv2d):
    """A subclass that computes what `nn.Conv2d` does."""


def parametrized() -> nn.Module:
    return parametrizations.weight_norm(nn.Conv2d(3, 4, 3))


def pruned() -> nn.Module:
    with torch.no_grad():  # such a module cannot be copied otherwise
        return prune.random_unstructured(nn.Conv2d(3, 4, 3), "weight", 0.5)


def hooked_conv() -> nn.Module:
    conv = nn.Conv2d(3, 4, 3)
    conv.register_forward_hook(lambda module, given, output: 2 * output)
    return conv


ODD = {
    "Standardised overrides forward": lambda: Standardised(3, 4, 3),
    "ParametrizedConv2d has no ordinary parameter as its weight": parametrized,
    "Conv2d has no ordinary parameter as its weight": pruned,
    "Conv2d has hooks": hooked_conv,
}


@pytest.mark.parametrize("why", ODD)
def test_a_module_that_is_more_than_a_convolution_is_unsupported_with_the_reason(why: str):
    torch.manual_seed(0)
    model = nn.Sequential(ODD[why](), nn.Conv2d(4, 5, 3)).eval()
    layers = models.followed("net", model, (2, 3, 9, 9))
    assert [layer.peculiarity for layer in layers] == [why, ""]
    assigned = assign(run(algorithm="smm", unsupported="fallback"), layers, None)
    assert assigned.algorithms == {"0": "torch", "1": "smm"}
    assert assigned.reasons == {"0": f"only plain convolutions can be replaced, and {why}"}
    with torch.inference_mode():
        given = torch.randn(2, 3, 9, 9)
        before = model(given)
        swapped = Swap(model)
        swapped.apply(assigned.algorithms)
        seen = observe(model, (given,), check_errors=True)
        assert torch.allclose(model(given), before, atol=1e-5)
        assert [each.carried for each in seen] == ["torch", "smm"]
        assert all(each.relative_error < 1e-6 for each in seen)
        with pytest.raises(
            InputError, match=f"0 cannot run direct: only plain convolutions can be replaced, and {why}"
        ):
            swapped.apply({"0": "direct"})


def test_a_subclass_that_computes_the_same_is_plain():
    model = nn.Sequential(Named(3, 4, 3))
    assert models.peculiarity(model[0]) == ""
    Swap(model).apply({"0": "direct"})
    assert carried(model[0]) == "direct"
