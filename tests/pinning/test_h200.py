"""A document of plans as it was exported on an H200: read, compared, shown, and given to the layers of the model."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
from fakes import ROOT, run

from convscope.convolution import models
from convscope.cudnn import library
from convscope.pinning import difference, document, planned, repro
from convscope.pinning.command import main

DOCUMENT = ROOT / "tests" / "data" / "plans_resnet50_h200_float16_nhwc.json"
PINS = document.read(DOCUMENT)
RUN = run(model="resnet50", algorithm="planned", device="cuda:0", dtype="float16", layout="nhwc", math="tf32")


def test_its_digest_is_that_of_the_runs_that_were_begun_with_it():
    assert PINS.plans_digest == "4a70ca04c65a18f5"


def test_it_has_a_right_plan_for_every_layer_of_resnet50(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: PINS.stack["gpu_name"])
    monkeypatch.setattr(library, "version", lambda: PINS.stack["cudnn"])
    layers = models.convolutions("resnet50", 224)
    found = planned.assignment(PINS, RUN, layers)
    assert found.reasons == {}
    assert [*found.algorithms] == [layer.name for layer in layers]
    assert len(found.algorithms) == 53
    assert all(name.startswith("plan:") for name in found.algorithms.values())
    assert {*planned.assignment(PINS, RUN, models.convolutions("resnet50", 256)).reasons.values()} == {
        planned.NO_PLAN.format(**PINS.settings)
    }
    for pin in PINS.layers:
        assert pin.figures["outcome"] == "ok"
        assert 0 < pin.figures["relative_error"] < 1e-3
        assert pin.figures["mean_ms"] < 0.1
        assert pin.kernels


def test_its_time_is_the_sum_that_was_seen():
    assert sum(pin.figures["mean_ms"] for pin in PINS.layers) == pytest.approx(0.2548, abs=5e-4)


def test_it_is_the_same_as_itself_and_a_slower_layer_is_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["diff", str(DOCUMENT), str(DOCUMENT)]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "53 layers: 41 same, 12 ambiguous"  # calls of some µs scatter
    first, *rest = PINS.layers
    slow = dataclasses.replace(first, figures={**first.figures, "mean_ms": 1.2 * first.figures["mean_ms"]})
    changed = tmp_path / "slower.json"
    changed.write_text(dataclasses.replace(PINS, layers=[slow, *rest]).text())
    assert main(["diff", str(DOCUMENT), str(changed)]) == 1
    assert "1 slower" in capsys.readouterr().out
    found = difference.compared(PINS, document.read(changed))[0]
    assert (found.layer, found.verdicts) == ("conv1", ("slower",))
    assert found.change_pct == pytest.approx(20.0)


@pytest.mark.parametrize("layer", ["conv1", "layer2.0.downsample.0", "layer4.2.conv3"])
def test_each_of_its_plans_has_a_script(layer: str):
    compile(repro.script(PINS, layer), "repro.py", "exec")
