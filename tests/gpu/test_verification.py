"""Verification on a real GPU: the truth confirmed, lies caught, the support map and the choice."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections import Counter
from pathlib import Path

import pytest
import torch
import torchvision
from torch.autograd import profiler

import run_verify
from convscope.cli.options import MATHS
from convscope.convolution import algorithms, backends
from convscope.profiling.bench import Bench
from convscope.profiling.request import Run, make_run
from convscope.storage import environment
from convscope.timing import cupti, trace
from convscope.timing.hooks import module_ranges
from convscope.verification import candidates, choice, support
from convscope.verification.candidates import CandidateSwap
from convscope.verification.evidence import open_subject
from profiler import CUDALayerTimer, PowerMonitor


def made_run(model: str, algorithm: str, math: str = "fp32", size: int = 224) -> Run:
    return make_run(
        model, algorithm, num_sizes=1, input_size_range=(size, size), device="cuda:0", gpu=None,
        stage=None, math=math, unsupported="fallback", batch_size=1, warmup_iters=5, measure_iters=10,
        pretrained=False, seed=0, energy=False,
    )  # fmt: skip


def verified(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, list[str]]:
    code = run_verify.main([*arguments])
    return code, capsys.readouterr().out.splitlines()


@pytest.mark.parametrize("math", MATHS)
@pytest.mark.parametrize("algorithm", ["implicit precomp gemm", "guess"])
def test_what_is_true_is_confirmed(algorithm: str, math: str, capsys: pytest.CaptureFixture[str]):
    code, printed = verified(capsys, "--model", "vgg16", "--algorithm", algorithm, "--math", math)
    assert not [line for line in printed if line.startswith("✗")]
    assert printed[-1] == "CONFIRMED"
    assert code == 0


def test_an_fft_with_fallback_is_confirmed_and_says_how_many_fell_back(capsys: pytest.CaptureFixture[str]):
    code, printed = verified(capsys, "--model", "alexnet", "--algorithm", "fft", "--unsupported", "fallback")
    assert printed[-1] == "CONFIRMED (1 of 5 layers as implicit precomp gemm instead)"
    assert code == 0


def test_another_algorithm_under_the_name_fft_is_caught_by_its_kernels_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    lie = dataclasses.replace(algorithms.ALGORITHMS["fft"], cudnn_number=1)
    monkeypatch.setattr(algorithms, "ALGORITHMS", {**algorithms.ALGORITHMS, "fft": lie})
    monkeypatch.setattr(algorithms, "NAMES_BY_CUDNN_NUMBER", {**algorithms.NAMES_BY_CUDNN_NUMBER, 1: "fft"})
    code, printed = verified(capsys, "--model", "vgg16", "--algorithm", "fft", "--math", "fp32")
    assert printed[-1] == "NOT CONFIRMED"
    assert code == 1
    assert printed[1].startswith("✓ replaced")
    assert printed[2].startswith("✓ identifier")
    assert printed[3].startswith("✗ kernels")
    assert {line.split(":")[0] for line in printed if line.startswith("✗")} == {"✗ kernels", "✗ fft"}


def test_tf32_that_was_forbidden_is_caught(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setattr(backends, "math_in_force", lambda: "tf32")
    arguments = ("--model", "vgg16", "--algorithm", "implicit precomp gemm", "--math", "fp32")
    code, printed = verified(capsys, *arguments)
    assert code == 1
    assert any(line.startswith("✗ TF32 forbidden") for line in printed)
    assert any(line.startswith("✗ layers against float64") for line in printed)


@pytest.mark.parametrize("model", ["alexnet", "torchvision:mobilenet_v2"])
def test_rules_and_card_agree_on_what_each_layer_can_use(model: str):
    run = made_run(model, "guess")
    with open_subject(run) as subject:
        rows = support.survey(subject, environment.read(torch.device(run.device)))
    assert support.disagreements(rows) == []
    assert len(rows) == len(subject.layers) * len(support.ALGORITHMS)
    usable = [row for row in rows if row.status == support.OK]
    assert all(row.relative_error is not None and row.kernels for row in usable)
    assert {row.status for row in rows if row.algorithm == "direct"} == {support.NEVER}


def test_one_kernel_under_three_names_is_marked_as_one():
    run = made_run("torchvision:mobilenet_v2", "guess")
    with open_subject(run) as subject:
        rows = support.survey(subject, environment.read(torch.device(run.device)))
    depthwise = [row for row in rows if row.groups > 1 and row.algorithm == "gemm" and row.status == support.OK]
    assert depthwise
    assert all(row.same_kernels_as is not None for row in depthwise)


def test_a_workspace_over_the_limit_is_a_reason():
    run = made_run("vgg16", "guess")
    with open_subject(run) as subject:
        rows = support.survey(subject, environment.read(torch.device(run.device)), limit_bytes=2**20)
    large = [row for row in rows if row.status == support.WORKSPACE]
    assert {"fft", "winograd nonfused"} <= {row.algorithm for row in large}
    assert all(row.workspace_bytes > 2**20 and row.agrees is None for row in large)


@pytest.mark.quiet
def test_the_choice_ranks_every_algorithm_of_every_layer():
    run = made_run("alexnet", "torch")
    with open_subject(run) as subject:
        timer = CUDALayerTimer(subject.model, "cuda")
        bench = Bench(run, subject.model, subject.device, timer, PowerMonitor(), print)
        bench.calibrate(224)
        found = choice.study(subject, bench, print, rounds=3)
        rows = choice.rows(run, environment.read(torch.device(run.device)), subject.layers, found.candidates)
    for position in range(len(subject.layers)):
        mine = [row for row in rows if row.position == position]
        assert {*candidates.PICKS, "gemm", "implicit gemm", "implicit precomp gemm"} <= {row.candidate for row in mine}
        assert mine[0].rank == 1
        assert all(row.mean_ms > 0 for row in mine)
        assert next(row for row in mine if row.candidate == "guess").chosen in algorithms.ALGORITHMS
    # gemm runs a direct kernel on large layers at batch 1 and is far behind there: no tie can hide that.
    slowest = max((row for row in rows if row.candidate == "gemm"), key=lambda row: row.regret_us)
    assert slowest.regret_us > slowest.regret_ci99_us
    assert slowest.rank > 1
    assert set(found.passes) == set(choice.JUDGED)
    assert all(len(one.passes_ms) == len(one.layers_ms) == 3 for one in found.passes.values())


@pytest.mark.quiet
def test_what_launches_kernels_for_each_group_is_no_candidate_in_depthwise_layers():
    run, noted = made_run("torchvision:mobilenet_v2", "torch"), list[str]()
    with open_subject(run) as subject, contextlib.closing(CandidateSwap(subject, noted.append)) as swapped:
        timer = CUDALayerTimer(subject.model, "cuda")
        bench = Bench(run, subject.model, subject.device, timer, PowerMonitor(), print)
        bench.expect(subject.layers)
        before = {name: sum(usable) for name, usable in swapped.usable.items()}
        swapped.leave_out_wrong()
        swapped.leave_out_hopeless(bench)
        after = {name: sum(usable) for name, usable in swapped.usable.items()}
        depthwise = [layer.groups == layer.out_channels > 100 for layer in subject.layers]
        assert not any(can and many for can, many in zip(swapped.usable["fft tiling"], depthwise, strict=True))
    assert any(note.startswith("fft tiling is left out of") for note in noted)
    assert 0 < after["fft tiling"] < before["fft tiling"]  # the pointwise ones stay
    usual = ("torch", "torch benchmark", "guess", "implicit gemm", "implicit precomp gemm")
    assert {name: after[name] for name in usual} == {name: before[name] for name in usual}


def test_each_step_has_the_kernels_that_it_launched():
    cupti.start()
    left = torch.randn(64, 64, device="cuda")
    product, nothing, total = trace.record_each([lambda: left @ left, lambda: None, lambda: left.sum()])
    assert any("gemm" in name for name in product.kernels)
    assert not nothing.kernels
    assert any("reduce" in name for name in total.kernels)


@pytest.mark.parametrize("name", ["resnet18", "convnext_tiny"])
def test_events_in_memory_are_those_that_would_be_exported(name: str, tmp_path: Path):
    cupti.start()
    model = torchvision.models.get_model(name).cuda().eval()
    x = torch.zeros(1, 3, 64, 64, device="cuda")
    with torch.inference_mode(), module_ranges(model, trace.MODULE_RANGE):
        model(x)
        with profiler.profile(use_kineto=True, use_device="cuda") as profiled, profiler.record_function(trace.EAGER):
            model(x)
    profiled.export_chrome_trace(str(tmp_path / "trace.json"))
    exported = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    found = cupti._events(profiled)
    kinds = {event["cat"] for event in found}
    assert {"kernel", "cpu_op", "user_annotation", "cuda_runtime"} <= kinds
    there = Counter((event["cat"], event["name"]) for event in exported if event.get("cat") in kinds)
    assert Counter((event["cat"], event["name"]) for event in found) == there
    kernels, others = trace.kernels_in_order(found), trace.kernels_in_order(exported)
    assert [(kernel.name, kernel.correlation) for kernel in kernels] == [(k.name, k.correlation) for k in others]
    assert [kernel.start_us for kernel in kernels] == pytest.approx([k.start_us for k in others], abs=2e-3)
    assert [kernel.duration_us for kernel in kernels] == pytest.approx([k.duration_us for k in others], abs=2e-3)
    works = [trace.matched(events).work() for events in (found, exported)]
    first, second = (sorted(map(str, (dataclasses.astuple(each)[:4] for each in work))) for work in works)
    assert first == second
