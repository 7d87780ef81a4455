"""Plans of a document as the algorithms of a run: which layers have one, and which runs they are not for."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from fakes import layer, run

from convscope.convolution.assignment import assign
from convscope.convolution.layer import Layer
from convscope.cudnn import library
from convscope.errors import InputError
from convscope.pinning import planned
from convscope.pinning.document import FIGURES, SETTINGS, SHAPE, Pin, Pins
from convscope.profiling.request import make_run
from convscope.storage.environment import processor_name

LAYERS = (layer(name="one", position=0), layer(name="two", position=1), layer(name="three", position=2))
RUN = run(algorithm="planned", device="cuda:0", math="tf32")


@pytest.fixture(autouse=True)
def _an_h200(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA H200")
    monkeypatch.setattr(library, "version", lambda: "9.19.0")


NO_PLAN = planned.NO_PLAN.format(input_size=64, batch_size=1)


def pin(each: Layer, algorithm: str, **changes: Any) -> Pin:
    shape = {name: value for name, value in each.columns().items() if name in SHAPE} | {"fused": each.steps}
    return Pin(each.name, algorithm, shape | changes, {}, {})


def pins(*layers: Pin, **changes: Any) -> Pins:
    settings = dict.fromkeys(SETTINGS, "") | {
        "input_size": 64,
        "batch_size": 1,
        "math": "tf32",
        "dtype": "float32",
        "layout": "nchw",
    }
    stack = {"gpu_name": "NVIDIA H200", "driver": "580", "cudnn": "9.19.0"}
    given = [{name: changes.get(name, value) for name, value in each.items()} for each in (settings, stack)]
    return Pins(*given, None, layers)


def test_layers_have_the_plans_of_the_document_and_those_without_one_say_so():
    found = planned.assignment(pins(pin(LAYERS[0], "plan:1"), pin(LAYERS[1], "torch")), RUN, LAYERS)
    assert found.algorithms == {"one": "plan:1", "two": "torch"}
    assert found.reasons == {"three": NO_PLAN}


@pytest.mark.parametrize("changed", [{"in_height_px": 99}, {"stride": "3x3"}, {"groups": 2}, {"out_channels": 7}])
def test_a_layer_of_another_shape_has_no_plan(changed: dict[str, Any]):
    found = planned.assignment(pins(pin(LAYERS[0], "plan:1", **changed)), RUN, LAYERS[:1])
    assert found.reasons == {"one": NO_PLAN}


def test_another_batch_has_no_plan():
    found = planned.assignment(pins(pin(LAYERS[0], "plan:1"), batch_size=8), RUN, LAYERS[:1])
    assert found.reasons == {"one": NO_PLAN.replace("batch 1", "batch 8")}


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"gpu_name": "NVIDIA L40S"}, "gpu_name NVIDIA L40S, here NVIDIA H200"),
        ({"cudnn": "9.24.0"}, "cudnn 9.24.0, here 9.19.0"),
        ({"math": "fp32"}, "math fp32, here tf32"),
        ({"dtype": "float16", "layout": "nhwc"}, "dtype float16, here float32; layout nhwc, here nchw"),
    ],
)
def test_plans_of_other_work_are_refused_before_anything_is_measured(changed: dict[str, str], said: str):
    with pytest.raises(InputError, match=f"not for this run \\({said}\\): export plans of the same"):
        planned.assignment(pins(pin(LAYERS[0], "plan:1"), **changed), RUN, LAYERS)


def test_on_a_cpu_algorithms_of_the_same_processor_are_taken():
    here, cpu = processor_name(), dataclasses.replace(RUN, device="cpu", math="fp32")
    ours = pins(pin(LAYERS[0], "direct"), math="fp32", gpu_name=here, cudnn=None)
    found = planned.assignment(ours, cpu, LAYERS[:1])
    assert found.algorithms == {"one": "direct"}
    assert assign(cpu, LAYERS[:1], None, found) == found
    with pytest.raises(InputError, match=r"gpu_name NVIDIA H200, here .*; cudnn 9\.19\.0, here None"):
        planned.assignment(pins(pin(LAYERS[0], "direct"), math="fp32"), cpu, LAYERS)
    plan = planned.assignment(pins(pin(LAYERS[0], "plan:1"), math="fp32", gpu_name=here, cudnn=None), cpu, LAYERS[:1])
    with pytest.raises(InputError, match="plan:1 needs a CUDA device: 1 of 1 convolutions"):
        assign(cpu, LAYERS[:1], None, plan)


def test_in_16_bits_the_arithmetic_of_float32_is_not_asked_for():
    half = dataclasses.replace(RUN, dtype="float16", math="fp32")
    found = planned.assignment(pins(pin(LAYERS[0], "plan:1"), dtype="float16"), half, LAYERS[:1])
    assert found.algorithms == {"one": "plan:1"}


def test_a_layer_without_a_plan_is_an_error_or_falls_back_and_a_refused_plan_too():
    wanted = planned.assignment(pins(pin(LAYERS[0], "plan:1"), pin(LAYERS[1], "plan:2")), RUN, LAYERS)

    def card(each: Layer, algorithm: str) -> str | None:
        return "cuDNN refuses it" if algorithm == "plan:2" else None

    with pytest.raises(InputError, match=f"{NO_PLAN}: 1 of 3 convolutions") as refused:
        assign(RUN, LAYERS, card, wanted)
    assert "cuDNN refuses it: 1 of 3" in str(refused.value)
    found = assign(dataclasses.replace(RUN, unsupported="fallback"), LAYERS, card, wanted)
    assert found.algorithms == {"one": "plan:1", "two": "implicit precomp gemm", "three": "implicit precomp gemm"}
    assert found.reasons == {"two": "cuDNN refuses it", "three": NO_PLAN}


def test_two_documents_differ_where_a_plan_a_shape_or_the_stack_does():
    first = pins(pin(LAYERS[0], "plan:1"))
    others = [
        pins(pin(LAYERS[0], "plan:2")),
        pins(pin(LAYERS[1], "plan:1")),
        pins(pin(LAYERS[0], "plan:1", groups=2)),
        pins(pin(LAYERS[0], "plan:1"), cudnn="9.24.0"),
    ]
    assert len({each.plans_digest for each in (first, *others)}) == 5
    assert pins(pin(LAYERS[0], "plan:1")).plans_digest == first.plans_digest


def test_planned_and_a_document_go_together():
    with pytest.raises(
        InputError, match="planned, and no other algorithm, takes the plans of a document: --algorithm-file FILE"
    ):
        make_run("alexnet", "planned", device="cpu")
    with pytest.raises(
        InputError, match="planned, and no other algorithm, takes the plans of a document: --algorithm-file FILE"
    ):
        make_run("alexnet", "direct", device="cpu", plans_digest="1")


def test_from_python_a_document_is_for_planned_alone_beside_other_algorithms(tmp_path: Path):
    path = tmp_path / "plans.json"
    figures = dict.fromkeys(FIGURES)
    path.write_text(pins(dataclasses.replace(pin(LAYERS[0], "plan:1"), figures=figures)).text())
    found, settings = planned.pins_in("planned", {"plans": path, "seed": 1})
    assert found is not None
    assert settings == {"seed": 1, "plans_digest": found.plans_digest}
    assert planned.pins_in("torch", {"plans": path, "seed": 1}) == (None, {"seed": 1})
    assert planned.pins_in("planned", {"seed": 1}) == (None, {"seed": 1})
