"""Engines that are handed in."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch

from convscope.inference.engines import catalogue
from convscope.inference.engines.catalogue import Recipe
from convscope.inference.engines.workload import BuildCost, Engine, Workload


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return what puts an engine into the catalogue; `batch_s` is what one of its calls takes."""

    def put(name: str, wrong_by: float = 0.0, batch_s: float = 0.0, error: Exception | None = None) -> None:
        def make(workload: Workload) -> Engine:
            if error is not None:
                raise error

            given = workload.input()

            def step() -> torch.Tensor:
                time.sleep(batch_s)
                with torch.no_grad():
                    output: torch.Tensor = workload.model(given) * (1 + wrong_by)
                return output

            return workload.local(step, given), BuildCost(remark="put in")

        monkeypatch.setitem(catalogue.ENGINES, name, Recipe(make))

    return put
