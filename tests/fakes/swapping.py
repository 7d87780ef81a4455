"""A swap of candidates that leaves the model alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from convscope.verification.candidates import CandidateSwap
from fakes import run


def subject_on(device: str, layers: Sequence[Any] = ()) -> Any:
    """A model of these layers, whose work is nothing, on a device that need not be there."""
    return SimpleNamespace(
        run=run(), layers=layers, inputs=(torch.zeros(1),), device=torch.device(device), model=torch.nn.Identity()
    )


class SwapsNothing(CandidateSwap):
    """Each candidate has its own algorithm in all layers and can use some of them; `name` is whose turn it is."""

    def __init__(self, subject: Any, note: Callable[[str], None] = pytest.fail, **usable: Sequence[bool]) -> None:
        self._subject, self._note, self.name = subject, note, ""
        self.usable = {name: list(can) for name, can in usable.items()}
        self.assignments = {name: {layer.name: name for layer in subject.layers} for name in usable}

    def run(self, name: str, work: Callable[[], Any]) -> Any:
        self.name = name
        return work()
