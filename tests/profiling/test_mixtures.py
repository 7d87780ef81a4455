"""Algorithms that differ from layer to layer, through a sweep on a CPU: by a race at each size, or by a document.

On a CPU nothing runs cuDNN's plans: the race and the document give the layers ai3's algorithms here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import pytest
from fakes import tiny
from torch import nn

from convscope.convolution.assignment import Assignment
from convscope.convolution.layer import Layer
from convscope.convolution.sources.source import Inputs
from convscope.convolution.swap import Conv2d
from convscope.profiling import sweep
from convscope.profiling.bench import Bench
from convscope.profiling.request import Run
from profiler import UnifiedProfiler

FAST = {"num_sizes": 2, "input_size_range": (64, 96), "warmup_iters": 0, "measure_iters": 2, "device": "cpu"}


def profiler_of(algorithm: str) -> UnifiedProfiler:
    made = UnifiedProfiler(tiny.NAME, "direct", measure_energy=False, **FAST)
    made._sweep.run = dataclasses.replace(made.request, algorithm=algorithm)
    return made


def test_a_race_at_each_size_gives_each_layer_its_algorithm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    raced: list[int] = []

    def wants(run: Run, layers: Sequence[Layer], check: object, wanted: Assignment | None = None) -> Assignment:
        names = [layer.name for layer in layers]
        if wanted is None:  # before the race
            return Assignment(dict.fromkeys(names, run.algorithm), {})
        return Assignment({name: wanted.algorithms.get(name, "torch") for name in names}, wanted.reasons)

    def race(
        run: Run, model: nn.Module, inputs: Inputs, layers: Sequence[Layer], bench: Bench, note: object
    ) -> Assignment:
        assert not any(isinstance(module, Conv2d) for module in model.modules())  # none is swapped in a race
        raced.append(inputs[0].shape[-1])
        found = {"conv1": "direct" if raced[-1] == 64 else "smm", "conv2": "smm"}
        return Assignment(found, {"conv3": "no plan of it could be timed"})

    monkeypatch.setattr(sweep, "assign", wants)
    made = profiler_of("autotune")
    made._sweep.race = race
    _, layers = made.run(tmp_path)
    assert sorted(raced) == [64, 96]
    ran = {(row.input_size, row.layer): row.ran_algorithm for row in layers.itertuples()}
    assert [ran[64, name] for name in ("conv1", "conv2", "conv3")] == ["direct", "smm", "torch"]
    assert [ran[96, name] for name in ("conv1", "conv2", "conv3")] == ["smm", "smm", "torch"]
    assert set(layers["algorithm"]) == {"autotune"}
    by_layer = layers.groupby("layer")["reason"].first()
    assert by_layer["conv3"] == "no plan of it could be timed"
    assert layers[layers["layer"] != "conv3"]["reason"].isna().all()


def test_a_document_gives_each_layer_its_algorithm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    asked: list[int] = []

    def planned(run: Run, layers: Sequence[Layer]) -> Assignment:
        asked.append(layers[0].size[0])
        return Assignment({"conv1": "smm", "conv2": "direct", "conv3": "torch"}, {})

    made = profiler_of("direct")
    made._sweep.planned = planned
    _, layers = made.run(tmp_path)
    assert set(asked) == {64, 96}
    ran = {row.layer: row.ran_algorithm for row in layers.itertuples()}
    assert ran == {"conv1": "smm", "conv2": "direct", "conv3": "torch"}
