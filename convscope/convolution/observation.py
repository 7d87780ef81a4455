"""Observation of an eager pass: for each convolution the algorithm it carries, the one that ran, and its error."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from convscope.cli.display import several
from convscope.convolution import models, swap
from convscope.convolution.fusion.module import FusedConv2d
from convscope.convolution.operator import recording
from convscope.convolution.providers.plan import Execution
from convscope.convolution.reference import relative_error
from convscope.errors import HookMismatchError
from convscope.timing.calls import Call, watched
from convscope.timing.hooks import convolution_modules


@dataclass(frozen=True)
class Observation:
    """One call of a convolution: the algorithm that its module carries, and the execution that really happened.

    `relative_error` is that of its output against float64, None where errors were not checked or have no meaning;
    `unchecked` is the reason why it could not be computed. `name` is the layer's.
    """

    carried: str
    execution: Execution
    relative_error: float | None = None
    unchecked: str | None = None
    name: str = ""

    @property
    def algorithm(self) -> str | None:
        """The algorithm that ran by its identifier, None where PyTorch ran the layer."""
        return None if self.execution.provider == "torch" else self.execution.algorithm


def observe(model: nn.Module, inputs: tuple[torch.Tensor, ...], check_errors: bool) -> list[Observation]:
    """Run one eager pass and observe each call of a convolution in it, in order.

    Args:
        check_errors: compute each output once more in float64, to know its error.
    """
    observations: list[Observation] = []
    peculiar = {name: models.peculiarity(module) for name, module in convolution_modules(model).items()}

    def after(name: str, module: nn.Module, given: torch.Tensor, output: torch.Tensor) -> None:
        execution, carried = swap.what_ran(module), swap.carried(module)
        odd = carried == "torch" and not isinstance(module, Call) and peculiar[name] != ""
        error, unchecked = _error(module, given, output, odd) if check_errors else (None, None)
        observations.append(Observation(carried, execution, error, unchecked, name))

    with recording(), watched(model, after=after):
        model(*inputs)
    if check_errors and inputs[0].is_cuda:
        torch.cuda.empty_cache()  # the memory of the references is needed for what is measured
    return observations


def check_listed(observations: Sequence[Observation], listed: Sequence[str]) -> None:
    """Raise HookMismatchError where other layers ran than these, which were listed before by name."""
    ran = [seen.name for seen in observations]
    if ran == list(listed):
        return
    if len(ran) != len(listed):
        difference = f"{several(len(ran), 'convolution')} ran, {len(listed)} were expected"
    else:
        difference = next(f"{a} ran where {b} was expected" for a, b in zip(ran, listed, strict=True) if a != b)
    raise HookMismatchError(f"{difference}: which convolutions this model runs depends on its numbers")


def is_finite(output: Any) -> bool:
    """Tell whether all numbers of a model's output, a tensor or a collection of such, are finite."""
    if isinstance(output, torch.Tensor):
        return not output.is_floating_point() or bool(output.isfinite().all())
    parts = output.values() if isinstance(output, Mapping) else output if isinstance(output, tuple | list) else ()
    return all(map(is_finite, parts))


def _error(
    module: nn.Module, given: torch.Tensor, output: torch.Tensor, peculiar: bool
) -> tuple[float | None, str | None]:
    """Return the relative error of a call, and the reason where it cannot be computed."""
    if isinstance(module, FusedConv2d) and module.fused.addition:
        return None, "not compared with float64: what is added to it is not known here"
    try:
        return relative_error(module, given, output, plain=not peculiar), None
    except torch.OutOfMemoryError:
        return None, "not compared with float64: out of memory"
    except RuntimeError as error:
        if not peculiar:
            raise
        return None, f"not compared with float64: {str(error).splitlines()[0]}"
