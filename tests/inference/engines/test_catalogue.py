"""The catalogue of engines: what is missing is said with how to get it, and what runs elsewhere says so."""

from __future__ import annotations

import contextlib
import itertools
import re
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import run_inference
from convscope.convolution import models
from convscope.errors import InputError, MissingError
from convscope.inference.engines import catalogue, compilers, variants
from convscope.inference.engines.runners import LocalRunner, RemoteRunner
from convscope.inference.engines.workload import Workload


def workload(folder: Path, **changes: Any) -> Workload:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.LazyLinear(5))
    given = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        model(given)
    options: dict[str, Any] = {
        "name": "it",
        "model": model.eval(),
        "given": given,
        "device": torch.device("cpu"),
        "dtype": "float32",
        "layout": "nchw",
        "math": "fp32",
        "folder": folder,
        "make_bench": None,
        "note": print,
        "more": lambda count: torch.randn(count, 3, 8, 8, generator=torch.Generator().manual_seed(1)),
    }
    return Workload(**options | changes)


def test_onnxruntime_computes_the_same_in_a_process_without_pytorch(tmp_path: Path):
    asked = workload(tmp_path)
    runner, setup = catalogue.make("onnxruntime", asked)
    try:
        assert isinstance(runner, RemoteRunner)
        assert not runner.has_torch
        expected = asked.model(asked.given).detach()
        assert (runner.output(asked.given) - expected).norm() < 1e-5 * expected.norm()
        assert len(runner.latencies_ms(3)) == 3
        calls, seconds = runner.window(0.05)
        assert calls > 0
        assert seconds >= 0.05
        runner.call()
    finally:
        runner.close()
    assert setup.disk_bytes > 4 * (4 * 27 + 4 * 36 * 5)
    assert setup.export_s > 0
    assert setup.compile_s > 0
    assert setup.remark.startswith("1 of 1 batch normalisations folded, version ")


def test_half_precision_goes_through_onnxruntime(tmp_path: Path):
    asked = workload(tmp_path, dtype="float16")
    runner, _ = catalogue.make("onnxruntime", asked)
    expected = asked.model(asked.given).detach()
    assert 1e-5 < (runner.output(asked.given) - expected).norm() / expected.norm() < 1e-2
    runner.close()


def test_a_provider_that_onnxruntime_lacks_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    import onnxruntime

    monkeypatch.setattr(onnxruntime, "get_available_providers", list)
    with pytest.raises(MissingError, match="has no CPUExecutionProvider: pip install onnxruntime"):
        catalogue.make("onnxruntime", workload(tmp_path))


NEED_A_GPU = ["graph", "graph-unfolded", "fused", "cudnn-best", "compile-graph", "compile-overhead", "aot-graph"]


@pytest.mark.parametrize("name", NEED_A_GPU)
def test_what_needs_a_gpu_says_so(name: str, tmp_path: Path):
    with pytest.raises(MissingError, match=f"{name} needs an NVIDIA GPU"):
        catalogue.make(name, workload(tmp_path))


@pytest.mark.parametrize("is_faster", [True, False], ids=["with the changes before", "each change alone"])
@pytest.mark.parametrize(("name", "ways"), [("graph", (2, 2)), ("graph-unfolded", (2, 2)), ("fused", (8, 7))])
def test_the_ways_of_a_graph_agree_in_half_precision_channels_last(
    name: str, ways: tuple[int, int], is_faster: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """All but the graph, cuDNN and the times: on a CPU each step is launched, and the fused calls are done in steps.

    What would change nothing in this small model is no way; what there is to change depends on the changes before.

    Args:
        is_faster: each change makes the model faster, so that the next ones come on top of it.
    """
    tried: list[torch.Tensor] = []
    times_ms = itertools.count(1000.0, -1.0 if is_faster else 1.0)

    def timed_ms(runner: LocalRunner) -> float:
        runner.close()
        return next(times_ms)

    def uncaptured(
        workload: Workload, step: Callable[[], torch.Tensor], given: torch.Tensor, captured: bool = False
    ) -> LocalRunner:
        tried.append(step())
        return LocalRunner(step, given, captured=False, counted=False)

    monkeypatch.setattr(Workload, "needs_gpu", lambda workload, engine: None)
    monkeypatch.setattr(Workload, "local", uncaptured)
    monkeypatch.setattr(variants, "_time_ms", timed_ms)
    asked = workload(tmp_path, dtype="bfloat16", layout="nhwc")
    runner, setup = catalogue.make(name, asked)
    expected = asked.model(asked.given).detach()
    tried.append(runner.output(asked.given))
    runner.close()
    count = ways[0] if is_faster else ways[1]
    assert len(tried) == count + 2  # each way, the kept one again, and its output
    assert all((output.float() - expected).norm() < 2e-2 * expected.norm() for output in tried)
    assert re.search(rf"; best of {count}: plans .* \(\d\S* ms, the next \d\S* ms\)(; |$)", setup.remark)
    assert setup.compile_s > 0


@pytest.mark.parametrize("name", ["onnxruntime", "tensorrt"])
def test_a_package_that_is_not_installed_is_said_with_how_to_install_it(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(catalogue.importlib.util, "find_spec", lambda package: None if package == name else "there")
    with pytest.raises(MissingError, match=f"{name} needs {name}, not installed: pip install"):
        catalogue.make(name, workload(tmp_path))


@pytest.mark.parametrize("name", ["compile", "compile-max", "aot"])
def test_without_a_compiler_the_reason_says_what_to_install(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(MissingError, match="no-such-compiler is not here: install g"):
        catalogue.make(name, workload(tmp_path))


@pytest.mark.parametrize("options", ["", " -O1"])
@pytest.mark.parametrize(("there", "is_refused"), [("*", False), ("*.a", True), ("none", False)])
def test_a_compiler_with_a_static_library_only_is_refused_for_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: str, is_refused: bool, options: str
):
    script = tmp_path / "cxx"
    last = 'for last; do :; done; name="${last#*=}"'
    script.write_text(f'#!/bin/sh\n{last}\ncase $name in {there}) echo "/lib/$name" ;; *) echo "$name" ;; esac\n')
    script.chmod(0o755)
    monkeypatch.setenv("CXX", str(script) + options)
    refused = pytest.raises(MissingError, match="has a static one only") if is_refused else contextlib.nullcontext()
    with refused:
        compilers._needs_shared_library(compilers._needs_compiler())


def test_a_compiler_that_cannot_be_started_has_no_library(tmp_path: Path):
    (tmp_path / "cxx").write_bytes(b"\x7fELF of another machine")
    (tmp_path / "cxx").chmod(0o755)
    assert not compilers._has(str(tmp_path / "cxx"), "libstdc++.a")


def test_a_workload_goes_to_a_worker_without_what_lives_in_this_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    ready = {"timing_method": "events", "setup": {}}
    monkeypatch.setattr(compilers, "RemoteRunner", lambda *given: types.SimpleNamespace(ready=ready))
    asked = workload(tmp_path, make_bench=lambda: None, note=lambda line: None)
    runner, _ = catalogue.make("compile-max", asked)
    assert runner.timing_method == "events, in a separate process"
    there = torch.load(tmp_path / "workload.pt", weights_only=False)
    assert torch.equal(there.given, asked.given)
    for call in (there.make_bench, there.more):
        with pytest.raises(NotImplementedError, match="in a worker process"):
            call(1)


@pytest.mark.long
def test_the_most_of_the_compiler_runs_in_a_process_of_its_own(tmp_path: Path):
    asked = workload(tmp_path)
    try:
        runner, setup = catalogue.make("compile-max", asked)
    except MissingError as missing:
        pytest.skip(str(missing))
    try:
        assert isinstance(runner, RemoteRunner)
        expected = asked.model(asked.given).detach()
        assert (runner.output(asked.given) - expected).norm() < 1e-5 * expected.norm()
        assert runner.peak_memory_bytes() is None
        assert runner.timing_method == "time.perf_counter around a call, in a separate process"
    finally:
        runner.close()
    assert setup.compile_s > 0
    assert setup.remark == "1 of 1 batch normalisations folded"


def test_the_command_line_lists_all_engines():
    assert list(catalogue.ENGINES) == run_inference.ENGINES


def test_numpy_has_no_bfloat16(tmp_path: Path):
    with pytest.raises(MissingError, match="NumPy, which has no bfloat16"):
        catalogue.make("onnxruntime", workload(tmp_path, dtype="bfloat16"))


def test_the_input_has_the_layout_and_type_asked_for(tmp_path: Path):
    asked = workload(tmp_path, layout="nhwc", dtype="bfloat16")
    given = asked.input()
    assert given.dtype == torch.bfloat16
    assert given.is_contiguous(memory_format=torch.channels_last)
    assert asked.input("nchw").is_contiguous()
    placed = asked.placed(asked.model)
    assert placed[0].weight.is_contiguous(memory_format=torch.channels_last)


def test_a_model_of_timm(monkeypatch: pytest.MonkeyPatch):
    def create(name: str, pretrained: bool) -> nn.Module:
        if pretrained:
            raise OSError("no network")
        return nn.Linear(1, 1)

    fake = SimpleNamespace(
        is_model=lambda name: name == "resnet50", create_model=create, list_models=lambda: ["resnet50"]
    )
    monkeypatch.setitem(sys.modules, "timm", fake)
    assert models.find_source(" timm:resnet50").name == "timm:resnet50"
    one, two = (models.find_source("timm:resnet50").build(3) for _ in range(2))
    assert torch.equal(one.weight, two.weight)
    assert not one.training
    with pytest.raises(InputError, match="timm has no model 'resnet51'"):
        models.find_source("timm:resnet51")
    with pytest.raises(InputError, match="trained weights of resnet50 cannot be loaded"):
        models.find_source("timm:resnet50").build(0, pretrained=True)
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(InputError, match="pip install timm"):
        models.find_source("timm:resnet50")
    assert models.find_source("resnet50").name == "resnet50"


def test_settled_statistics_keep_the_numbers_of_a_deep_model_small():
    model = models.build("resnet50")
    given = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(5))
    largest: list[float] = []
    for module in model.modules():
        if isinstance(module, nn.ReLU):
            module.register_forward_hook(lambda module, given, output: largest.append(float(output.max())))
    with torch.inference_mode():
        model(given)
        wild = max(largest)
        models.settle_statistics(model, 64, 0)
        largest.clear()
        model(given)
    assert max(largest) < 100 < wild
    assert not any(module.training for module in model.modules())


@pytest.mark.parametrize(
    ("dtype", "layout", "left_out"),
    [
        ("float16", "nhwc", set()),
        ("float32", "nhwc", {"first", "pooled", "own", "joined"}),
        ("float16", "nchw", {"first", "pooled", "own", "joined", "pools", "tails", "heads"}),
    ],
)
def test_kernels_are_tried_for_their_types_and_layout(
    dtype: str, layout: str, left_out: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    tried: set[str] = set()

    def fastest(build: object, device: torch.device, steps: Sequence[Mapping[str, int]]) -> None:
        tried.update(*steps)
        raise MissingError("enough")

    monkeypatch.setattr(Workload, "needs_gpu", lambda workload, engine: None)
    monkeypatch.setattr(catalogue.variants, "fastest", fastest)
    with pytest.raises(MissingError, match="enough"):
        catalogue.make("fused", workload(tmp_path, dtype=dtype, layout=layout))
    every = set[str]().union(*catalogue.variants.FUSED_STEPS)
    assert every - tried == left_out
