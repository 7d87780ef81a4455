"""The observation of a pass, on a CPU: what each convolution carries, what ran, its error."""

from __future__ import annotations

import torch
from fakes import Branching

from convscope.convolution.observation import observe
from convscope.convolution.operator import Execution
from convscope.convolution.swap import Swap


def test_each_call_says_what_it_carries_and_what_ran():
    model = Branching()
    Swap(model).apply({"one": "direct"})
    with torch.inference_mode():
        first, second = observe(model, (torch.randn(1, 3, 8, 8),), check_errors=False)
    assert (first.carried, first.execution, first.algorithm) == (
        "direct",
        Execution("direct", "ai3", None, 0),
        "direct",
    )
    assert (second.carried, second.execution, second.algorithm) == ("torch", Execution("torch", "torch"), None)
    assert first.relative_error is None


def test_errors_are_against_float64():
    model = Branching()
    Swap(model).apply({"one": "direct", "two": "smm"})
    with torch.inference_mode():
        seen = observe(model, (torch.randn(1, 3, 8, 8),), check_errors=True)
    assert all(0 < observation.relative_error < 1e-5 for observation in seen)
