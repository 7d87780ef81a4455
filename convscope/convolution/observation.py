"""Observation of an eager pass: for each convolution the algorithm it carries, the one that ran, and its error."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from convscope.convolution import swap
from convscope.convolution.operator import recording
from convscope.convolution.providers import Execution
from convscope.convolution.reference import relative_error
from convscope.timing.hooks import hooked


@dataclass(frozen=True)
class Observation:
    """One call of a convolution: the algorithm that its module carries, and the execution that really happened.

    `relative_error` is that of its output against float64, None where errors were not checked or have no meaning.
    """

    carried: str
    execution: Execution
    relative_error: float | None = None

    @property
    def algorithm(self) -> str | None:
        """The algorithm that ran by its identifier, None where PyTorch ran the layer."""
        return None if self.execution.provider == "torch" else self.execution.algorithm


def observe(model: nn.Module, given: torch.Tensor, check_errors: bool) -> list[Observation]:
    """Run one eager pass and observe each call of a convolution in it, in order.

    Args:
        check_errors: compute each output once more in float64, to know its error.
    """
    observations: list[Observation] = []

    def after(name: str, module: nn.Module, given: torch.Tensor, output: torch.Tensor) -> None:
        execution = swap.what_ran(module)
        error = relative_error(module, given, output) if check_errors else None
        observations.append(Observation(swap.carried(module), execution, error))

    with recording(), hooked(model, after=after):
        model(given)
    return observations
