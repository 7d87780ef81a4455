"""Plans of cuDNN's graph API on a real GPU: what the card says of itself, and every plan run against float64."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest
import torch

import run_profile
import run_verify
from convscope.atlas import offered
from convscope.convolution import algorithms, backends
from convscope.convolution.layer import Layer
from convscope.convolution.operator import cuda_operator
from convscope.convolution.reference import relative_distance
from convscope.convolution.swap import Conv2d, Swap
from convscope.cudnn.graph import devices
from convscope.cudnn.graph.engines import Offers
from convscope.cudnn.graph.execution import ExecutablePlan
from convscope.cudnn.graph.operations import Tensor
from convscope.cudnn.legacy import Handle
from convscope.cudnn.shape import Convolution, Fused
from convscope.errors import NotSupportedError
from convscope.timing import cupti, graphs, trace
from convscope.verification.evidence import open_subject
from convscope.verification.request import make_verification
from convscope.verification.trial import Trial

SQUARE = Convolution((2, 64, 28, 28), (96, 64, 3, 3), (1, 1), (1, 1), (1, 1))
POINTWISE = Convolution((2, 64, 28, 28), (96, 64, 1, 1), (0, 0), (1, 1), (1, 1))
DEPTHWISE = Convolution((2, 96, 28, 28), (96, 1, 3, 3), (1, 1), (1, 1), (1, 1), groups=96)
CUBE = Convolution((2, 16, 12, 12, 12), (32, 16, 3, 3, 3), (1, 1, 1), (2, 2, 2), (1, 1, 1))
HALF = dataclasses.replace(SQUARE, dtype="float16", layout="nhwc")
CASES = {
    "tf32": SQUARE,
    "fp32": dataclasses.replace(SQUARE, math="fp32"),
    "pointwise": POINTWISE,
    "depthwise": DEPTHWISE,
    "3-D": CUBE,
    "float16 nhwc": HALF,
    "bfloat16": dataclasses.replace(SQUARE, dtype="bfloat16"),
    "float64": dataclasses.replace(SQUARE, dtype="float64"),
    "bias relu": dataclasses.replace(SQUARE, fused=Fused(bias=True, relu=True)),
    "float16 nhwc addition bias relu": dataclasses.replace(HALF, fused=Fused(addition=True, bias=True, relu=True)),
}
TOLERANCES = {"float64": 1e-12, "float16": 1e-3, "bfloat16": 8e-3, "tf32": 2e-3, "fp32": 2e-5}


@pytest.fixture
def handle() -> Iterator[Handle]:
    torch.zeros(1, device="cuda")
    handle = Handle()
    handle.use_stream(torch.cuda.current_stream().cuda_stream)
    yield handle
    handle.close()


def test_a_card_describes_itself_by_the_properties_that_are_known(handle: Handle):
    own = devices.properties_of(handle)
    assert own.keys() >= devices.H200.keys()
    if own["deviceName"] == devices.H200["deviceName"]:
        varying = {"pciDeviceId", "cudaDeviceId", "driverVer", "totalGlobalMem"}
        assert {name: own[name] for name in devices.H200 if name not in varying} == {
            name: value for name, value in devices.H200.items() if name not in varying
        }


def tensors_of(asked: Convolution) -> dict[Tensor, torch.Tensor]:
    """Return the tensors of a graph in their type and layout, the output filled with what no plan writes."""
    torch.manual_seed(0)
    dtype = getattr(torch, asked.dtype)
    last = {4: torch.channels_last, 5: torch.channels_last_3d}[len(asked.input)]
    memory = last if asked.layout == "nhwc" else torch.contiguous_format

    def made(shape: tuple[int, ...]) -> torch.Tensor:
        return torch.randn(shape, device="cuda").to(dtype).contiguous(memory_format=memory)

    tensors = {Tensor.X: made(asked.input), Tensor.W: made(asked.weight), Tensor.Y: made(asked.output)}
    tensors[Tensor.Y].fill_(float("nan"))
    if asked.fused.addition:
        tensors[Tensor.ADDED] = made(asked.output)
    if asked.fused.bias:
        tensors[Tensor.BIAS] = made((1, asked.out_channels, *(1 for _ in asked.size)))
    return tensors


def expected(asked: Convolution, tensors: dict[Tensor, torch.Tensor]) -> torch.Tensor:
    """Return the output in float64, by PyTorch on the CPU."""
    known = {number: tensor.double().cpu().contiguous() for number, tensor in tensors.items()}
    convolve = {2: torch.nn.functional.conv2d, 3: torch.nn.functional.conv3d}[len(asked.size)]
    output = convolve(known[Tensor.X], known[Tensor.W], None, *asked.options)
    for number in (Tensor.ADDED, Tensor.BIAS):
        output = output + known.get(number, torch.zeros(()))
    return output.relu() if asked.fused.relu else output


@pytest.mark.parametrize("asked", CASES.values(), ids=CASES)
def test_every_plan_of_the_card_runs_and_is_right(asked: Convolution, handle: Handle):
    tensors = tensors_of(asked)
    truth = expected(asked, tensors)
    tolerance = TOLERANCES[asked.math if asked.dtype == "float32" else asked.dtype]
    ran, refused, wrong = [], [], []
    with Offers(asked, handle) as offers:
        for offer in offers.plans():
            if offer.why_not_comparable(asked):
                continue
            try:
                plan = ExecutablePlan(offers, offer.plan)
            except NotSupportedError as refusal:
                refused.append((str(offer.plan), str(refusal)))
                continue
            with plan:
                assert plan.workspace_bytes == offer.workspace_bytes
                workspace = torch.empty(plan.workspace_bytes, dtype=torch.uint8, device="cuda")
                tensors[Tensor.Y].fill_(float("nan"))
                pointers = {number: tensor.data_ptr() for number, tensor in tensors.items()}
                plan.launch(handle, pointers, workspace.data_ptr())
                error = relative_distance(tensors[Tensor.Y].cpu(), truth)
            ran.append(str(offer.plan))
            if error is None or not error < tolerance:
                wrong.append((str(offer.plan), error, offer.numerical_notes))
    print(len(ran), "ran;", refused)
    assert ran
    assert wrong == []


@pytest.mark.parametrize("asked", [CASES["bias relu"], CASES["float16 nhwc addition bias relu"]], ids=["tf32", "half"])
def test_every_plan_of_the_convolution_alone_is_right_with_its_steps_behind_it(asked: Convolution):
    torch.manual_seed(0)
    made = Layer(
        input=asked.input, weight=asked.weight, padding=asked.padding, stride=asked.stride, dilation=asked.dilation,
        name="asked", position=0, bias=True, fused=asked.fused,
    )  # fmt: skip
    with backends.math("tf32"), backends.settings(layout=asked.layout), torch.inference_mode():
        found = offered.known_plans(made, torch.device("cuda:0"), asked.dtype, pytest.fail)
        behind = [plan for plan in found if plan.kind == algorithms.WITH_STEPS and plan.outcome != "less precise"]
        assert len(behind) >= 8
        assert {plan.outcome for plan in behind} <= {"ok", "refused"}
        assert sum(plan.outcome == "ok" for plan in behind) >= 8
        tolerance = TOLERANCES["tf32" if asked.dtype == "float32" else asked.dtype]
        assert all(plan.relative_error < tolerance for plan in behind if plan.outcome == "ok")
        best = next(plan.name for plan in behind if plan.outcome == "ok")
        (kernels,) = Trial(made, torch.device("cuda:0"), asked.dtype).kernels([best])
    assert kernels["do_steps"] == 1


@pytest.mark.parametrize("asked", [SQUARE, CASES["bias relu"]], ids=["alone", "fused"])
def test_plans_for_packed_filters_are_right_and_do_not_lay_them_out_in_each_call(asked: Convolution):
    torch.manual_seed(0)
    made = Layer(
        input=asked.input, weight=asked.weight, padding=asked.padding, stride=asked.stride, dilation=asked.dilation,
        name="asked", position=0, bias=asked.fused.bias, fused=asked.fused,
    )  # fmt: skip
    device = torch.device("cuda:0")
    with backends.math("tf32"), torch.inference_mode():
        found = offered.known_plans(made, device, "float32", pytest.fail)
        fine = {plan.name: plan for plan in found if plan.outcome == "ok"}
        packed = [name for name, plan in fine.items() if plan.kind == algorithms.PACKED]
        assert len(packed) >= 6
        assert all(fine[name].relative_error < TOLERANCES["tf32"] for name in packed)
        both = [name for name in packed if name.replace(algorithms.PACKED, algorithms.PLAN) in fine]
        plain = Trial(made, device, "float32").kernels(
            [name.replace(algorithms.PACKED, algorithms.PLAN) for name in both]
        )
        fewer = Trial(made, device, "float32").kernels(both)
    copies = [
        [sum(count for name, count in each.items() if "nchwToNhwc" in name) for each in some] for some in (plain, fewer)
    ]
    assert all(now <= before for before, now in zip(*copies, strict=True))
    assert sum(copies[1]) < sum(copies[0])


def test_packed_filters_follow_a_weight_that_is_written_to_also_in_a_graph():
    model = torch.nn.Sequential(torch.nn.Conv2d(64, 96, 3, padding=1)).cuda().eval()
    x = torch.randn(2, 64, 28, 28, device="cuda")
    with backends.math("tf32"), torch.inference_mode():
        with Offers(dataclasses.replace(SQUARE, packed=True), Handle()) as offers:
            plan = next(offer.plan for offer in offers.plans() if not offer.why_not_comparable(SQUARE))
        truth = model(x)
        swapped = Swap(model)
        swapped.apply({"0": algorithms.plan_name(plan, algorithms.PACKED)})
        assert relative_distance(model(x).cpu(), truth.double().cpu()) < TOLERANCES["tf32"]
        output = torch.empty_like(truth)
        with graphs.capture(lambda: output.copy_(model(x))) as captured:
            model[0].weight.mul_(-1)
            model[0].bias.mul_(-1)
            assert relative_distance(model(x).cpu(), -truth.double().cpu()) < TOLERANCES["tf32"]  # packs anew
            captured.replay()
            assert relative_distance(output.cpu(), -truth.double().cpu()) < TOLERANCES["tf32"]


@pytest.mark.parametrize("algorithm", ["heuristic a", "heuristic b"])
@pytest.mark.parametrize("settings", [("--math", "fp32"), ("--dtype", "float16", "--layout", "nhwc")], ids=" ".join)
def test_a_model_by_a_heuristic_is_confirmed(
    algorithm: str, settings: tuple[str, ...], capsys: pytest.CaptureFixture[str]
):
    code = run_verify.main(["--model", "alexnet", "--algorithm", algorithm, *settings])
    printed = capsys.readouterr().out.splitlines()
    assert [line for line in printed if line.startswith("✗")] == []
    assert printed[-1] == "CONFIRMED"
    assert code == 0
    assert "cudnn graph's plan:" in printed[2]


@pytest.mark.parametrize(("dtype", "layout"), [("float32", "nchw"), ("float16", "nhwc")])
def test_the_first_plan_of_mode_a_launches_what_pytorch_launches(dtype: str, layout: str):
    request = make_verification("resnet50", "heuristic a", 224, device="cuda:0", dtype=dtype, layout=layout)
    cupti.start()
    with open_subject(request) as subject:
        by_pytorch, _ = trace.trace_pass(subject.model, subject.inputs)
        swapped = Swap(subject.model)
        swapped.apply({layer.name: "heuristic a" for layer in subject.layers})
        by_plan, _ = trace.trace_pass(subject.model, subject.inputs)
        swapped.restore()
    others = [
        (layer.name, theirs.kernels, ours.kernels)
        for layer, theirs, ours in zip(subject.layers, by_pytorch, by_plan, strict=True)
        if set(theirs.kernels) != set(ours.kernels)
    ]
    assert others == []


def test_a_layer_by_a_plan_runs_in_a_graph_on_any_stream_and_refuses_what_it_cannot():
    module = torch.nn.Conv2d(64, 96, 3, padding=1, device="cuda")
    x = torch.randn(2, 64, 28, 28, device="cuda")
    with torch.inference_mode():
        expected = module.double()(x.double()).float()
        module.float()
        swapped = Conv2d(module, "heuristic a", "only")
        assert relative_distance(swapped(x), expected.double()) < TOLERANCES["tf32"]
        with graphs.capture(lambda: swapped(x)) as captured:
            captured.replay()
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            y = swapped(x)
        side.synchronize()
        assert relative_distance(y, expected.double()) < TOLERANCES["tf32"]
        with pytest.raises(NotSupportedError, match="CUDNN_STATUS_NOT_SUPPORTED"):
            Conv2d(module, "plan:9999", "only")(x)
    cuda_operator().release()


def test_autotune_profiles_each_layer_with_its_fastest_plan(tmp_path: Path):
    assert (
        run_profile.main(["--model", "alexnet", "--algorithm", "autotune", "--test", "--output-dir", str(tmp_path)])
        == 0
    )
    layers = pd.read_csv(tmp_path / "alexnet_autotune_layers.csv")
    assert len(layers) == 5
    assert layers["ran_algorithm"].map(algorithms.plan_of).notna().all()
    assert set(layers["ran_provider"]) == {"cudnn graph"}
    assert set(layers["status"]) == {"ok"}


def test_autotune_is_confirmed(capsys: pytest.CaptureFixture[str]):
    assert (
        run_verify.main(["--model", "alexnet", "--algorithm", "autotune", "--dtype", "float16", "--layout", "nhwc"])
        == 0
    )
    assert capsys.readouterr().out.splitlines()[-1] == "CONFIRMED"


@pytest.mark.quiet
def test_first_calls_of_every_way(tmp_path: Path):
    assert run_verify.main(["--model", "alexnet", "--first-call", "--output-dir", str(tmp_path)]) == 0
    (folder,) = tmp_path.iterdir()
    passes = pd.read_csv(folder / "first_passes.csv").set_index("convolutions_by")
    assert set(passes.index) == {"torch", "torch benchmark", "guess", "heuristic a", "direct"}
    assert (passes["extra_ms"] > 0).all()
    assert passes.loc["torch benchmark", "extra_ms"] > passes.loc["torch", "extra_ms"]
    assert (passes["layers_by_torch"] == 0).all()
