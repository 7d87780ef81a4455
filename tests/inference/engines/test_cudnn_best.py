"""The engine `cudnn-best`: plans of cuDNN by layer, raced in the model; neither a card nor a graph is needed here."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from fakes.racing import SQUARE, TIMES, OnPaper, shapes
from torch import nn

from convscope import failures
from convscope.atlas import tuning
from convscope.atlas.race import Shape
from convscope.atlas.rows import REFUSED
from convscope.convolution import backends, operator
from convscope.convolution.assignment import Assignment
from convscope.convolution.swap import Conv2d
from convscope.errors import DeviceFaultError
from convscope.inference.engines import catalogue
from convscope.inference.engines.runners import LocalRunner
from convscope.inference.engines.workload import Workload
from convscope.profiling.request import Run
from convscope.verification.candidates import HEURISTIC

FOLDED = "1 of 1 batch normalisations folded; "


def three_layers() -> nn.Module:
    """The layers that `fakes.racing` has times for, one behind the other, and a batch normalisation to fold."""
    square = {"in_channels": 64, "out_channels": 64, "kernel_size": SQUARE["kernel"], "padding": SQUARE["padding"]}
    wide = square | {"out_channels": 128}
    layers = {"one": nn.Conv2d(**square), "norm": nn.BatchNorm2d(64), "two": nn.Conv2d(**wide)}
    return nn.Sequential(OrderedDict(layers, three=nn.Conv2d(**square | {"in_channels": 128}))).eval()


class Engine:
    """Builds the engine on a CPU without a graph, and records the steps.

    Attributes:
        models: the model of each bench that was made.
        runs: the request of each bench, and the image sizes that it was calibrated at.
        settings: layout and search in force where plans are raced, and where the graph is made.
    """

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.models: list[nn.Module] = []
        self.runs: list[Run | int] = []
        self.settings: list[tuple[str, bool]] = []
        self.noted: list[str] = []
        self._folder = folder
        monkeypatch.setattr(Workload, "needs_gpu", lambda *_: None)
        monkeypatch.setattr(Workload, "local", self._local)
        monkeypatch.setattr(failures, "device_fault", lambda device: None)

    def built(self, model: nn.Module, channels: int = 64) -> tuple[LocalRunner, str]:
        """Build the engine for two images of 56 pixels; return its runner and its remark."""
        runner, cost = catalogue.cudnn_best(Workload(
            name="it", model=model, given=torch.randn(2, channels, 56, 56), device=torch.device("cpu"),
            dtype="float32", layout="nhwc", math="fp32", folder=self._folder, make_bench=self._bench,
            note=self.noted.append, more=pytest.fail,
        ))  # fmt: skip
        assert isinstance(runner, LocalRunner)
        assert cost.compile_s is not None
        return runner, str(cost.remark)

    def note_settings(self) -> None:
        """Record the settings that are in force."""
        self.settings.append((backends.settings_in_force().layout, torch.backends.cudnn.benchmark))

    def plans(self) -> dict[str, str]:
        """Return the algorithm of each layer that is not PyTorch's."""
        every = self.models[-1].named_modules()
        return {name: str(module.algorithm) for name, module in every if isinstance(module, Conv2d)}

    def _bench(self, run: Run, model: nn.Module) -> Any:
        self.models.append(model)
        self.runs.append(run)
        return SimpleNamespace(calibrate=self.runs.append, expect_captures=lambda inputs: None)

    def _local(self, step: Callable[[], torch.Tensor], given: torch.Tensor, captured: bool) -> LocalRunner:
        self.note_settings()
        assert captured
        no_plan = torch.zeros(1)  # where plans are in the model, a CPU cannot run it
        return LocalRunner((lambda: no_plan) if self.plans() else step, given, captured=False, counted=False)


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Engine:
    return Engine(tmp_path, monkeypatch)


@pytest.fixture
def raced(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> list[Shape]:
    """Have races take the times of `fakes.racing`; the shapes and plans of the next one."""
    mine = shapes()

    def race(subject: object, bench: object, note: object, found: Sequence[Shape]) -> OnPaper:
        engine.note_settings()
        return OnPaper(found)

    def shapes_of(subject: object, note: object, first: int | None) -> list[Shape]:
        assert first == 8, "the set-up must end in time"
        return mine

    monkeypatch.setattr(tuning, "Race", race)
    monkeypatch.setattr(tuning, "shapes_of", shapes_of)
    return mine


def test_each_layer_runs_the_fastest_of_its_plans(engine: Engine, raced: list[Shape]):
    _, remark = engine.built(three_layers())
    assert engine.plans() == {"one": "plan:1", "two": "plan:5", "three": "plan:1"}
    assert remark == f"{FOLDED}2 plan:1, 1 plan:5"


def test_a_layer_is_left_to_pytorch_where_that_is_faster(
    engine: Engine, raced: list[Shape], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(TIMES, "two", {**TIMES["two"], HEURISTIC: 1.8})
    _, remark = engine.built(three_layers())
    assert engine.plans() == {"one": "plan:1", "three": "plan:1"}
    assert remark == f"{FOLDED}2 plan:1, 1 torch"


def test_a_layer_without_a_plan_that_runs_is_left_to_pytorch(engine: Engine, raced: list[Shape]):
    for plan in raced[0].plans:
        plan.outcome = REFUSED
    _, remark = engine.built(three_layers())
    assert engine.plans() == {"two": "plan:5"}
    assert remark == f"{FOLDED}2 torch, 1 plan:5"


def test_race_and_graph_are_in_the_layout_asked_for_and_without_the_search(engine: Engine, raced: list[Shape]):
    with backends.searching(every=True):  # as in every cell of a study
        engine.built(three_layers())
    assert engine.settings == [("nhwc", False), ("nhwc", False)]
    assert backends.settings_in_force().layout == "nchw"
    run, calibrated_px = engine.runs
    assert isinstance(run, Run)
    assert (run.layout, run.batch_size, run.input_sizes, run.energy) == ("nhwc", 2, (56,), False)
    assert calibrated_px == 56  # a plan that cannot be captured must not have the others timed eagerly


def test_the_plans_live_as_long_as_the_graph_that_runs_them(
    engine: Engine, raced: list[Shape], monkeypatch: pytest.MonkeyPatch
):
    closed: list[str] = []
    plan = SimpleNamespace(close=lambda: closed.append("plan"))
    monkeypatch.setattr(operator, "hand_over", lambda device: [plan])
    runner, _ = engine.built(three_layers())
    assert closed == []
    runner.close()
    assert closed == ["plan"]


def test_a_model_without_a_plan_computes_what_it_computed(engine: Engine, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tuning, "raced", lambda *_, **__: Assignment({}, {"0": tuning.UNTIMED}))
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)).eval()
    runner, remark = engine.built(model, channels=3)
    images = torch.randn(2, 3, 56, 56)
    assert torch.allclose(runner.output(images), model(images), atol=1e-5)
    assert remark == f"{FOLDED}1 torch"


def test_a_plan_that_loses_the_gpu_is_named(engine: Engine, monkeypatch: pytest.MonkeyPatch):
    def lose(*_: object, **__: object) -> Assignment:
        raise DeviceFaultError("plan:5 of two has lost the GPU: misaligned address")

    monkeypatch.setattr(tuning, "raced", lose)
    with pytest.raises(DeviceFaultError, match="plan:5 of two"):
        engine.built(three_layers())
    said = "cudnn-best: plan:5 of two has lost the GPU: misaligned address; --engines without it measures the others"
    assert engine.noted == [said]
