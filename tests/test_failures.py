"""Meaning of an error at a size: a row, a lost device, or neither; and the sizes after it."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from fakes import ROOT, both, layer
from fakes.swapping import SwapsNothing, subject_on
from onnxruntime.capi import onnxruntime_pybind11_state as ort_errors
from torch._inductor.exc import CppCompileError, InvalidCxxCompiler
from triton.compiler.errors import CompilationError
from triton.runtime.errors import OutOfResources, PTXASError

from convscope import failures
from convscope.cli.options import parse_bytes
from convscope.convolution.operator import CudaOperator
from convscope.convolution.providers.plan import workspace_refusal
from convscope.errors import (
    CudnnError,
    CudnnMissingError,
    DeviceFaultError,
    HostTooSlowError,
    InputError,
    MissingError,
    NothingFitsError,
    NotSupportedError,
    WorkerError,
)
from convscope.failures import Failure
from convscope.profiling import sweep
from convscope.profiling.rows import profile_store
from convscope.verification import choice
from profiler import UnifiedProfiler

TOO_LARGE = OutOfResources(300_000, 232_448, "shared memory")
CUDA_OOM = "CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total capacity of 139.80 GiB."


@pytest.mark.parametrize(
    ("error", "status", "asked"),
    [
        (torch.OutOfMemoryError(CUDA_OOM), "oom", 2_684_354_560),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0"), "oom", 20 * 2**20),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 600 bytes."),
         "oom", 600),
        (CudnnError("cudnnConvolutionForward: CUDNN_STATUS_ALLOC_FAILED"), "oom", None),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), "oom", None),
        (NotSupportedError("cudnnConvolutionForward: CUDNN_STATUS_NOT_SUPPORTED"), "unsupported", None),
        (InputError("alexnet cannot take 8×8 images"), "unsupported", None),
        (CudnnError("cudnnConvolutionForward: CUDNN_STATUS_EXECUTION_FAILED"), "failed", None),
        (RuntimeError("cuDNN error: CUDNN_STATUS_BAD_PARAM"), "failed", None),
        (RuntimeError("FIND was unable to find an engine to execute this computation"), "failed", None),
        (RuntimeError("CUDA error: invalid configuration argument\nCUDA kernel errors might be"), "failed", None),
    ],
)  # fmt: skip
def test_an_error_that_is_a_sizes_own_is_a_row(error: Exception, status: str, asked: int | None):
    failure = failures.classify(error)
    assert failure == Failure(status, str(error).splitlines()[0], asked)


@pytest.mark.parametrize("error", [RuntimeError("a fault of ours"), CudnnMissingError("no cuDNN")])
def test_an_error_that_nobody_can_name_is_no_row(error: Exception):
    assert failures.classify(error) is None


DETERMINISTIC = "grid_sampler_2d_backward_cuda does not have a deterministic implementation, but you set"
FULL = "aot: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"


@pytest.mark.parametrize(
    ("error", "failure"),
    [
        (MissingError("none"), Failure("unsupported", "none")),
        (NotImplementedError("groups are not written yet"), Failure("unsupported", "groups are not written yet")),
        (RuntimeError(DETERMINISTIC), Failure("unsupported", DETERMINISTIC)),
        (ValueError("Expected more than 1 value per channel when training, got input size [1, 8]"),
         Failure("unsupported", "Expected more than 1 value per channel when training, got input size [1, 8]")),
        (HostTooSlowError("the launch took too long"), Failure("failed", "the launch took too long")),
        (WorkerError("no"), Failure("failed", "no")),
        (WorkerError(FULL), Failure("oom", FULL, 2 * 2**30)),
        (torch.OutOfMemoryError("CUDA out of memory."), Failure("oom", "CUDA out of memory.")),
        (subprocess.CalledProcessError(1, "g++"), Failure("failed", "Command 'g++' returned non-zero exit status 1.")),
        (torch._dynamo.exc.TorchDynamoException("\n no\nmore"), Failure("failed", "no")),
        (torch._dynamo.exc.Unsupported("no"), Failure("failed", "no")),
        (torch.onnx.OnnxExporterError("no"), Failure("failed", "no")),
        (ort_errors.NotImplemented("no kernel"), Failure("failed", "no kernel")),
        (ort_errors.RuntimeException("CUDA failure 2: out of memory ; GPU=0"),
         Failure("oom", "CUDA failure 2: out of memory ; GPU=0")),
        (RuntimeError("Error in execution: Non-zero status code returned while running Conv"),
         Failure("failed", "Error in execution: Non-zero status code returned while running Conv")),
        (InvalidCxxCompiler(), Failure("failed", str(InvalidCxxCompiler()).splitlines()[0])),
        (CppCompileError(["g++"], "no"), Failure("failed", "C++ compile error")),
    ],
)  # fmt: skip
def test_an_error_of_an_engine_or_a_training_step_is_a_row(error: Exception, failure: Failure):
    assert failures.classify(error) == failure


def test_the_row_of_a_failed_export_says_why():
    error = torch.onnx.OnnxExporterError("Failed to export.\x1b[96mThis is step 2/3\x1b[0m. Next steps:\n- report it")
    error.__cause__ = FutureWarning("deprecated\nmore")
    assert failures.classify(error) == Failure("failed", "Failed to export.This is step 2/3. FutureWarning: deprecated")


@pytest.mark.parametrize(
    "error",
    [
        PTXASError("ptxas fatal: too many registers"),
        CompilationError(None, ast.Pass(), "no such block"),
        RuntimeError("Triton Error [CUDA]: invalid argument"),
        RuntimeError("PassManager::run failed"),
    ],
)
def test_a_kernel_that_the_driver_or_its_compiler_refuses_is_a_failed_row(error: Exception):
    assert failures.is_kernel_refusal(error)
    failure = failures.classify(error)
    assert failure is not None
    assert failure.status == "failed"


@pytest.mark.parametrize("error", [TOO_LARGE, NothingFitsError("no cut of gemm fits this card")])
def test_a_kernel_that_does_not_fit_the_card_is_unsupported(error: Exception):
    assert failures.is_kernel_refusal(error)
    assert failures.classify(error) == Failure("unsupported", str(error))


@pytest.mark.parametrize("library", ["Triton Error [CUDA]", "CUDA error", "CUDA driver error"])
def test_a_driver_that_is_out_of_memory_is_out_of_memory(library: str):
    assert failures.classify(RuntimeError(f"{library}: out of memory")) == Failure("oom", f"{library}: out of memory")


class ForeignError(RuntimeError):
    """A class of the right name and another package."""


ForeignError.__name__ = "OutOfResources"


def test_a_class_of_the_same_name_of_another_package_is_none_of_tritons():
    assert not failures.is_kernel_refusal(ForeignError("no"))


def test_classifying_imports_no_compiler():
    code = "import sys, convscope.failures; print('triton' in sys.modules, 'torch._dynamo' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout == "False False\n"


CPU = torch.device("cpu")


def test_an_error_of_a_cell_is_its_row_and_any_other_is_raised():
    assert failures.of_cell(WorkerError("no"), CPU) == Failure("failed", "no")
    mistake = RuntimeError("a mistake")
    with pytest.raises(RuntimeError) as raised:
        failures.of_cell(mistake, CPU)
    assert raised.value is mistake


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "the GPU is lost (ECC): run the same command again to continue"),
        (
            {"where": "resnet18_batch32"},
            "resnet18_batch32: the GPU is lost (ECC): run the same command again to continue",
        ),
    ],
)
def test_an_error_with_which_the_device_is_lost_is_no_row(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], message: str
):
    monkeypatch.setattr(failures, "device_fault", lambda device: "ECC")
    with pytest.raises(DeviceFaultError) as raised:
        failures.of_cell(WorkerError("no"), CPU, **options)
    assert str(raised.value) == message


def test_memory_that_ran_out_while_a_graph_was_captured_is_found_behind_the_captures_own_error():
    capture = RuntimeError("CUDA error: operation failed due to a previous error during capture")
    capture.__context__ = torch.OutOfMemoryError(CUDA_OOM)
    assert failures.classify(capture) == Failure("oom", CUDA_OOM, 2_684_354_560)


def test_a_cpu_is_never_lost():
    assert failures.device_fault(torch.device("cpu")) is None


class Device:
    """A CUDA device as far as synchronizing tells: raises as often as it is said."""

    def __init__(self, errors: float) -> None:
        self.errors = errors

    def synchronize(self, device: torch.device) -> None:
        self.errors -= 1
        if self.errors >= 0:
            raise RuntimeError("CUDA error: an illegal memory access was encountered\nCUDA kernel errors might be")


@pytest.mark.parametrize(("errors", "lost"), [(0, False), (1, False), (float("inf"), True)])
def test_a_device_is_lost_when_its_error_comes_back(monkeypatch: pytest.MonkeyPatch, errors: float, lost: bool):
    monkeypatch.setattr(torch.cuda, "synchronize", Device(errors).synchronize)
    said = failures.device_fault(torch.device("cuda:0"))
    assert said == ("CUDA error: an illegal memory access was encountered" if lost else None)


FAST = {"input_size_range": (64, 96), "warmup_iters": 0, "measure_iters": 2, "device": "cpu", "measure_energy": False}


def test_a_lost_device_ends_the_run_after_what_is_whole_with_the_error_in_run_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    measure = sweep.Bench.measure

    def fails_at_80(self: sweep.Bench, size: int, *more: object, **options: object):
        if size == 80:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        return measure(self, size, *more, **options)

    monkeypatch.setattr(sweep.Bench, "measure", fails_at_80)
    monkeypatch.setattr(failures, "device_fault", lambda device: "CUDA error: an illegal memory access was encountered")
    with pytest.raises(
        DeviceFaultError, match="cpu is lost: CUDA error: an illegal memory access was encountered; run"
    ):
        UnifiedProfiler("alexnet", "torch", num_sizes=3, seed=1, **FAST).run(tmp_path)
    assert list(both(profile_store(tmp_path, "alexnet_torch"))[0]["input_size"]) == [64, 96]  # 80 came last
    assert DeviceFaultError.exit_code == 70
    assert json.loads((tmp_path / "run.json").read_text())["error"].startswith("CUDA error: an illegal")
    monkeypatch.undo()
    again = UnifiedProfiler("alexnet", "torch", num_sizes=3, seed=1, note=lambda line: None, **FAST)
    overall, _ = again.run(tmp_path)
    document = json.loads((tmp_path / "run.json").read_text())
    assert list(overall["input_size"]) == [64, 80, 96]
    assert document["error"] is None
    assert [start["error"] for start in document["starts"]] == [
        "CUDA error: an illegal memory access was encountered",
        None,
    ]


def test_a_kernel_that_does_not_fit_is_the_row_of_its_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    measure = sweep.Bench.measure

    def refuses_at_64(self: sweep.Bench, size: int, *more: object, **options: object):
        if size == 64:
            raise TOO_LARGE
        return measure(self, size, *more, **options)

    monkeypatch.setattr(sweep.Bench, "measure", refuses_at_64)
    notes: list[str] = []
    overall, _ = UnifiedProfiler("alexnet", "torch", num_sizes=2, note=notes.append, **FAST).run(tmp_path)
    assert list(overall["status"]) == ["unsupported", "ok"]
    assert overall["reason"][0] == str(TOO_LARGE)
    assert notes == [f"64 px: unsupported: {TOO_LARGE}"]


def test_a_candidate_of_a_choice_with_a_kernel_that_does_not_fit_is_left_out_with_the_reason():
    notes: list[str] = []
    swapped = SwapsNothing(subject_on("cpu"), notes.append)

    def layer_times_ms(given: object, place: int) -> list[float]:
        if swapped.name == "winograd":
            raise TOO_LARGE
        return [1.0]

    bench = SimpleNamespace(layer_times_ms=layer_times_ms, release=lambda: None)
    times = choice._rounds(swapped._subject, bench, swapped, range(2), ["gemm", "winograd"])
    assert times == {"gemm": [[1.0], [1.0]]}
    assert notes == [f"winograd is left out: {TOO_LARGE}"]


def test_sizes_above_one_that_ran_out_of_memory_are_not_tried_and_say_so(tmp_path: Path):
    notes: list[str] = []
    asked = {"num_sizes": 3, "batch_size": 10**12, "seed": 1, "note": notes.append} | FAST
    overall, layers = UnifiedProfiler("alexnet", "torch", **asked).run(tmp_path)
    assert list(overall["status"]) == ["oom"] * 3
    assert overall["oom_asked_bytes"].tolist()[0] == 10**12 * 3 * 64 * 64 * 4
    assert overall["oom_asked_bytes"].isna().tolist() == [False, True, True]
    assert list(overall["reason"])[1:] == ["not tried: out of memory at 64 px already"] * 2
    assert len(notes) == 1
    assert layers.empty


def test_a_run_that_goes_on_remembers_where_memory_ran_out(tmp_path: Path):
    asked = {"batch_size": 10**12, "note": lambda line: None} | FAST
    UnifiedProfiler("alexnet", "torch", num_sizes=1, **asked).run(tmp_path)
    overall, _ = UnifiedProfiler("alexnet", "torch", num_sizes=2, **asked).run(tmp_path)
    assert overall.iloc[1]["reason"] == "not tried: out of memory at 64 px already"


def test_a_workspace_over_the_limit_is_a_reason_that_names_algorithm_and_limit():
    told = "workspace over the limit: fft takes more than 512 MB (--max-workspace)"
    assert workspace_refusal("fft", 512_000_001, 512_000_000) == told


@pytest.mark.parametrize(("workspace", "most"), [(512, 512), (0, 0), (10**12, None)])
def test_a_workspace_up_to_the_limit_is_no_reason(workspace: int, most: int | None):
    assert workspace_refusal("fft", workspace, most) is None


class Plan:
    """A plan of cuDNN's with a workspace; counts how often it is given back."""

    workspace_bytes = 2_200_000_000

    def __init__(self) -> None:
        self.closed = 0

    def close(self) -> None:
        self.closed += 1


def test_the_limit_goes_the_way_of_every_other_reason_and_the_plan_is_given_back(monkeypatch: pytest.MonkeyPatch):
    engine, plan = CudaOperator(), Plan()
    monkeypatch.setattr(engine, "plan", lambda *asked: plan)
    monkeypatch.setattr(torch.cuda, "device", lambda device: torch.inference_mode())
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    device = torch.device("cuda:0")
    assert engine.why_refused(device, layer(), "fft") is None
    assert "over the limit" in (engine.why_refused(device, layer(), "fft", max_workspace_bytes=10**9) or "")
    assert plan.closed == 2


@pytest.mark.parametrize("text", ["", "MB", "-1", "1e9", "1 XB", "٣MB", "1.2.3GB", "nan", "9" * 400])
def test_what_is_no_number_of_bytes_is_refused(text: str):
    with pytest.raises(InputError, match=r"--max-workspace .*: say a number of bytes, such as 1048576, 512MB or 2GiB"):
        parse_bytes("--max-workspace", text)


GROWTH = """
import sys
sys.path.insert(0, sys.argv[1])
import torch
torch.set_num_threads(1)
from profiler import UnifiedProfiler
seen = []
def stop():
    seen.append(int(open("/proc/self/statm").read().split()[1]) * 4096)
    return False
count = int(sys.argv[2])
for folder in sys.argv[3:]:
    UnifiedProfiler("torchvision:squeezenet1_1", "torch", num_sizes=count, input_size_range=(32, 31 + count),
                    warmup_iters=0, measure_iters=1, device="cpu", measure_energy=False, stop=stop).run(folder)
print(*seen)
"""


@pytest.mark.long
def test_host_memory_does_not_grow_from_size_to_size(tmp_path: Path):
    """Larger images take more: so from sweep to sweep over the same sizes, after two that take what all need.

    The allocator takes some megabytes once, most of them in the first two sweeps, and gives some back; what grows from
    size to size grows over all sweeps, and over the last of them as well.
    """
    count, folders = 60, [str(tmp_path / str(sweep)) for sweep in range(6)]
    command = [sys.executable, "-c", GROWTH, str(ROOT), str(count), *folders]
    seen = [int(each) for each in subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()]
    _, _, *means = [sum(seen[at : at + count]) / count for at in range(0, len(folders) * count, count)]
    grown = min((means[-1] - means[since]) / (len(means) - 1 - since) for since in (0, 2))
    assert grown < count * 20_000, f"{grown / 1e6:.2f} MB in {count} sizes"


class _Raising(torch.nn.Module):
    def __init__(self, work: Callable[[], object]) -> None:
        super().__init__()
        self._work = work

    def forward(self) -> None:
        self._work()


def _raised(work: Callable[[], object]) -> Exception:
    with pytest.raises(Exception) as caught:  # noqa: PT011
        _Raising(work)()
    return caught.value


def test_what_a_model_raises_is_its_own_and_what_the_program_raises_inside_it_is_not():
    found = failures.of_model(_raised(lambda: torch.zeros(2) @ torch.zeros(3)))
    assert found is not None
    assert found.status == "failed"
    assert found.reason.startswith("the model raised RuntimeError: ")
    assert failures.of_model(_raised(lambda: failures.asked_bytes(None))) is None  # type: ignore[arg-type]
    assert failures.of_model(KeyError("of the program")) is None
