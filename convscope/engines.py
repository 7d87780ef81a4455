"""The engines: what turns a PyTorch model into something that answers fast. Each makes a `runner.Runner` of a task.

Every engine but eager gets the model with its batch normalisation folded (`fusion`), on a GPU with PyTorch's search for
the fastest of cuDNN's plans (`torch.backends.cudnn.benchmark`); the graphs keep cuDNN's heuristic where that is faster
(`ways`).
"""

from __future__ import annotations

import copy
import gc
import importlib.util
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from convscope import algorithms, choice, failures, floor, fusion, remote, swap, ways
from convscope.bench import Bench
from convscope.errors import InputError
from convscope.failures import Failure
from convscope.records import Run
from convscope.remote import Remote, WorkerError
from convscope.runner import Local, Runner, method
from convscope.verify import Subject
from convscope.ways import Way

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
LAYOUTS = {"nchw": torch.contiguous_format, "nhwc": torch.channels_last}
CHOICE_ROUNDS = 2

# Weights are constants of what is compiled: their layout is chosen once, and on a CPU they are packed.
_FROZEN: dict[str, Any] = {"freezing": True}
# 1×1 convolutions as matrix products, for which there are more kernels to choose from, with the ReLU inside them.
_MOST: dict[str, Any] = {"conv_1x1_as_mm": True}
_PROVIDERS = {
    "cuda": ("CUDAExecutionProvider", "onnxruntime-gpu in onnxruntime's place"),
    "cpu": ("CPUExecutionProvider", "onnxruntime"),
}
_NUMPY_METHOD = "time.perf_counter around a call in a process of its own, from NumPy array to NumPy array"
_MODE_MOST = "max-autotune-no-cudagraphs"  # the graph is captured here, as every engine's


class MissingError(InputError):
    """An engine cannot be had here; the message says how to get it."""


@dataclass(frozen=True)
class Task:
    """What an engine is given: a model in float32 on the CPU, and its input, N × 3 × H × W, likewise.

    Attributes:
        folder: an empty directory for the engine's files, gone when the cell is done.
        make_bench: makes the bench that times a model's layers (`cudnn-best`).
    """

    name: str
    model: nn.Module
    given: torch.Tensor
    device: torch.device
    dtype: str
    layout: str
    math: str
    folder: Path
    make_bench: Callable[[Run, nn.Module], Bench]
    note: Callable[[str], None]

    @property
    def on_gpu(self) -> bool:
        """The device is a GPU."""
        return self.device.type == "cuda"

    def input(self, layout: str | None = None) -> torch.Tensor:
        """Return the input as the engine takes it."""
        memory = LAYOUTS[layout or self.layout]
        return self.given.to(self.device, DTYPES[self.dtype]).contiguous(memory_format=memory)

    def placed(self, model: nn.Module, layout: str | None = None) -> nn.Module:
        """Move a model of this task's own to the device, in its data type and layout."""
        memory = LAYOUTS[layout or self.layout]
        return model.to(self.device, DTYPES[self.dtype]).to(memory_format=memory)


@dataclass(frozen=True)
class Setup:
    """What setting up an engine took: seconds of its steps, the bytes of what it leaves on disk, and a remark."""

    export_s: float | None = None
    compile_s: float | None = None
    disk_bytes: int | None = None
    remark: str | None = None
    layout: str | None = None


Made = tuple[Runner, Setup]


def eager(task: Task) -> Made:
    """PyTorch as it is, called from Python: the baseline, nothing folded."""
    model, given = task.placed(copy.deepcopy(task.model)), task.input()

    def step() -> torch.Tensor:
        with torch.inference_mode():
            output: torch.Tensor = model(given)
            return output

    return _local(task, step), Setup()


def graph(task: Task) -> Made:
    """The same operators launched by a CUDA graph."""
    _needs_gpu(task, "graph")
    folded, remark = _folded(task)

    def make(way: Way) -> Local:
        return _captured(task, copy.deepcopy(folded))

    return _fastest(task, make, ways.GRAPH_STEPS, remark)


def fused(task: Task) -> Made:
    """A CUDA graph in which convolution, bias, addition and ReLU are one call of cuDNN."""
    _needs_gpu(task, "fused")
    folded, remark = _folded(task)
    _, count = fusion.fused(copy.deepcopy(folded))

    def make(way: Way) -> Local:
        model, _ = fusion.fused(copy.deepcopy(folded), way.channels, way.products)
        return _captured(task, model)

    return _fastest(task, make, ways.FUSED_STEPS, f"{remark}, {count} convolutions fused with their ReLU")


def _captured(task: Task, model: nn.Module) -> Local:
    model, given = task.placed(model), task.input()
    return _local(task, lambda: model(given), captured=True)


def _fastest(task: Task, make: Callable[[Way], Local], steps: Sequence[Mapping[str, int]], remark: str) -> Made:
    started_s = time.perf_counter()
    runner, way, tried = ways.fastest(make, task.device, steps)
    return runner, Setup(compile_s=time.perf_counter() - started_s, remark=f"{remark}; best of {tried}: {way}")


def compiled(task: Task) -> Made:
    """`torch.compile` by its default, called from Python."""
    return _compiled(task, dict(_FROZEN), captured=False)


def compiled_most(task: Task) -> Made:
    """`torch.compile` that tries everything (max-autotune), as a CUDA graph where there is a GPU.

    In a process of its own: PyTorch's compiler has crashed over what it tried.
    """
    _needs_compiler_on_cpu(task)
    return apart("compile-max", task)


def _compiled_most_here(task: Task) -> tuple[Local, Setup]:
    options = {**torch._inductor.list_mode_options(_MODE_MOST), **_FROZEN, **_MOST}
    return _compiled(task, options, captured=task.on_gpu)


def _compiled(task: Task, options: dict[str, Any], captured: bool) -> tuple[Local, Setup]:
    _needs_compiler_on_cpu(task)
    model, remark = _folded(task)
    model, given = task.placed(model), task.input()
    function = torch.compile(model, dynamic=False, options=options)
    compile_s = _first_s(task, lambda: function(given))
    return _local(task, lambda: function(given), captured=captured), Setup(compile_s=compile_s, remark=remark)


APART: dict[str, Callable[[Task], tuple[Local, Setup]]] = {"compile-max": _compiled_most_here}
_NOT_SENT = ("make_bench", "note")


def apart(name: str, task: Task) -> Made:
    """Set an engine of `APART` up in a process of its own (`engine_worker`)."""
    path = task.folder / "task.pt"
    torch.save({field.name: getattr(task, field.name) for field in fields(Task) if field.name not in _NOT_SENT}, path)
    command = remote.module("engine_worker", name, path, torch.get_num_threads())
    runner = Remote(name, command, task.folder, "")
    runner.timing_method = f"{runner.ready['timing_method']}, in a process of its own"
    return runner, Setup(**runner.ready["setup"])


def saved_task(path: str) -> Task:
    """Read what `apart` saved: pickled objects, from this user's own temporary directory alone."""

    def unavailable(*_: object) -> Any:
        raise NotImplementedError("an engine in a process of its own has no bench")

    return Task(**torch.load(path, weights_only=False), make_bench=unavailable, note=print)


def aot(task: Task) -> Made:
    """An AOTInductor package: compiled into a file, run in a process that never saw the Python model."""
    _needs_compiler()
    model, remark = _folded(task)
    model, given = task.placed(model), task.input()
    started_s = time.perf_counter()
    exported = torch.export.export(model, (given,))
    exported_s = time.perf_counter()
    path = torch._inductor.aoti_compile_and_package(
        exported, package_path=str(task.folder / "model.pt2"), inductor_configs=dict(_FROZEN)
    )
    compile_s = time.perf_counter() - exported_s
    torch.save(given, task.folder / "input.pt")
    del model, exported, given
    gc.collect()
    if task.on_gpu:
        torch.cuda.empty_cache()  # the memory is the other process's now
    command = remote.module(
        "aot_worker", path, task.folder / "input.pt", task.device, task.math, torch.get_num_threads()
    )
    runner = Remote("aot", command, task.folder, f"{method(task.device)}, in a process of its own")
    return runner, Setup(exported_s - started_s, compile_s + runner.load_s, Path(path).stat().st_size, remark)


def onnxruntime(task: Task) -> Made:
    """ONNX Runtime, fed with NumPy alone, in a process that never imports PyTorch."""
    if task.dtype == "bfloat16":
        raise MissingError("onnxruntime is fed with NumPy, which has no bfloat16: choose --dtype float16 or float32")
    import onnxruntime as installed

    provider, package = _PROVIDERS[task.device.type]
    if provider not in installed.get_available_providers():
        raise MissingError(f"onnxruntime {installed.__version__} has no {provider}: pip install {package}")
    path, setup = _exported(task)
    np.save(task.folder / "input.npy", task.given.to(DTYPES[task.dtype]).numpy())
    command = remote.module("onnx_worker", path, task.folder / "input.npy", provider, torch.get_num_threads())
    copied = ", copies to and from the device included" if task.on_gpu else ""
    runner = Remote("onnxruntime", command, task.folder, _NUMPY_METHOD + copied)
    return runner, Setup(
        setup.export_s, runner.load_s, setup.disk_bytes, f"{setup.remark}, version {runner.version}", "nchw"
    )


def tensorrt(task: Task) -> Made:
    """TensorRT from the ONNX model, as a CUDA graph."""
    _needs_gpu(task, "tensorrt")
    path, setup = _exported(task)
    import tensorrt as trt

    started_s = time.perf_counter()
    logger = trt.Logger(trt.Logger.ERROR)
    builder = trt.Builder(logger)
    network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    parser = trt.OnnxParser(network, logger)
    if not parser.parse_from_file(str(path)):
        raise WorkerError(f"tensorrt cannot read the model: {parser.get_error(0).desc()}")
    plan = builder.build_serialized_network(network, builder.create_builder_config())
    if plan is None:
        raise WorkerError("tensorrt cannot build an engine for this model")
    engine = trt.Runtime(logger).deserialize_cuda_engine(plan)
    context = engine.create_execution_context()
    given = task.input("nchw")
    names = [engine.get_tensor_name(index) for index in range(engine.num_io_tensors)]
    (fed,) = [name for name in names if engine.get_tensor_mode(name) == trt.TensorIOMode.INPUT]
    (read,) = [name for name in names if engine.get_tensor_mode(name) == trt.TensorIOMode.OUTPUT]
    output = torch.empty(tuple(engine.get_tensor_shape(read)), dtype=given.dtype, device=task.device)

    def step() -> torch.Tensor:
        context.set_tensor_address(fed, given.data_ptr())
        context.set_tensor_address(read, output.data_ptr())
        context.execute_async_v3(torch.cuda.current_stream().cuda_stream)
        return output

    compile_s = time.perf_counter() - started_s
    remark = f"{setup.remark}, version {trt.__version__}"
    made = Setup(setup.export_s, compile_s, plan.nbytes, remark, "nchw")
    return _local(task, step, captured=True, counted=False), made


def cudnn_best(task: Task) -> Made:
    """This project's choice of the fastest of cuDNN's algorithms for each layer, timed first, as a CUDA graph."""
    _needs_gpu(task, "cudnn-best")
    model, remark = _folded(task)
    layers = [one for one in floor.layers_of(task.name, model, task.given.shape) if not one.name.startswith("linear.")]
    model, given = task.placed(model, "nchw"), task.input("nchw")
    run = Run(
        model=task.name,
        algorithm="guess",
        stage="1_sanity",
        gpu="cuda",
        input_sizes=(task.given.shape[-1],),
        device=str(task.device),
        batch_size=task.given.shape[0],
        math=task.math,
        dtype=task.dtype,
        energy=False,
    )
    started_s = time.perf_counter()
    best = choice.pick(Subject(run, model, layers, given), task.make_bench(run, model), task.note, rounds=CHOICE_ROUNDS)
    compile_s = time.perf_counter() - started_s
    swap.Swap(model).apply(best)
    counts = [
        f"{sum(name == one for one in best.values())} {name}" for name in algorithms.ALGORITHMS if name in best.values()
    ]
    made = Setup(compile_s=compile_s, remark=f"{remark}; {', '.join(counts)}", layout="nchw")
    return _local(task, lambda: model(given), captured=True), made


@dataclass(frozen=True)
class Engine:
    """An engine of the catalogue: how it is made, the packages that it needs, and how these are installed."""

    make: Callable[[Task], Made]
    needs: tuple[str, ...] = ()
    install: str = ""


ENGINES = {
    "eager": Engine(eager),
    "graph": Engine(graph),
    "fused": Engine(fused),
    "compile": Engine(compiled),
    "compile-max": Engine(compiled_most),
    "aot": Engine(aot),
    "onnxruntime": Engine(
        onnxruntime,
        ("onnx", "onnxscript", "onnxruntime"),
        "pip install 'convscope[inference]' (on a GPU onnxruntime-gpu in onnxruntime's place)",
    ),
    "tensorrt": Engine(tensorrt, ("onnx", "onnxscript", "tensorrt"), "pip install tensorrt onnx onnxscript"),
    "cudnn-best": Engine(cudnn_best),
}
BASELINE = "eager"


def make(name: str, task: Task) -> Made:
    """Set an engine up.

    Raises:
        MissingError: what it needs is not here; the message says how to get it.
    """
    engine = ENGINES[name]
    missing = [package for package in engine.needs if importlib.util.find_spec(package) is None]
    if missing:
        raise MissingError(f"{name} needs {' and '.join(missing)}, not installed: {engine.install}")
    held_bytes = torch.cuda.memory_allocated(task.device) if task.on_gpu else 0
    runner, setup = engine.make(task)
    if isinstance(runner, Local) and runner.held_before_bytes is None:
        runner.held_before_bytes = held_bytes
    return runner, setup


def failure_of(error: Exception) -> Failure | None:
    """Return the status and reason of a cell whose engine failed so, None for an error that is not a cell's own."""
    found = failures.of_size(error)
    if found is not None:
        return found
    from torch._inductor.exc import CppCompileError, InvalidCxxCompiler  # seconds of imports, for a failure only

    known = (
        NotImplementedError,
        torch._dynamo.exc.TorchDynamoException,
        torch.onnx.errors.OnnxExporterError,
        CppCompileError,
        InvalidCxxCompiler,
        subprocess.CalledProcessError,
        WorkerError,
    )
    if isinstance(error, known):
        return Failure("failed", next(filter(None, map(str.strip, str(error).splitlines())), type(error).__name__))
    return None


def _local(task: Task, step: Callable[[], torch.Tensor], captured: bool = False, counted: bool = True) -> Local:
    return Local(step, task.device, captured, counted)


def _folded(task: Task) -> tuple[nn.Module, str]:
    model, done, count = fusion.folded(task.model)
    return model, f"{done} of {count} batch normalisations folded"


def _first_s(task: Task, step: Callable[[], object]) -> float:
    """Run a step for the first time, which compiles, and return how long that took."""
    started_s = time.perf_counter()
    step()
    if task.on_gpu:
        torch.cuda.synchronize()
    return time.perf_counter() - started_s


def _exported(task: Task) -> tuple[Path, Setup]:
    """Write the model as ONNX, in the task's data type."""
    model, remark = _folded(task)
    path, dtype = task.folder / "model.onnx", DTYPES[task.dtype]
    started_s = time.perf_counter()
    torch.onnx.export(
        model.to(dtype),
        (task.given.to(dtype),),
        str(path),
        dynamo=True,
        input_names=["input"],
        output_names=["output"],
        verbose=False,
    )
    export_s = time.perf_counter() - started_s
    return path, Setup(
        export_s=export_s, disk_bytes=sum(file.stat().st_size for file in task.folder.iterdir()), remark=remark
    )


def _needs_gpu(task: Task, engine: str) -> None:
    if not task.on_gpu:
        raise MissingError(f"{engine} needs an NVIDIA GPU: run where one is, with --device cuda")


def _needs_compiler_on_cpu(task: Task) -> None:
    if not task.on_gpu:  # there Triton needs a C compiler only
        _needs_compiler()


def _needs_compiler() -> None:
    compiler = os.environ.get("CXX", "g++")
    if shutil.which(compiler) is None:
        raise MissingError(
            f"a C++ compiler is needed, and {compiler} is not here: install g++ (Debian: apt install g++), "
            "or name another in CXX"
        )
