"""Engines that run an exported ONNX model: ONNX Runtime and TensorRT."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch

from convscope.errors import MissingError, WorkerError
from convscope.inference.engines import runners, variants
from convscope.inference.engines.runners import LocalRunner, RemoteRunner
from convscope.inference.engines.workload import DTYPES, BuildCost, Engine, Workload

_PROVIDERS = {
    "cuda": ("CUDAExecutionProvider", "onnxruntime-gpu in onnxruntime's place"),
    "cpu": ("CPUExecutionProvider", "onnxruntime"),
}
_NUMPY = {"float32": np.float32, "float16": np.float16}
_NUMPY_METHOD = "time.perf_counter around a call in a separate process, NumPy arrays in and out"
_GRAPH = {"enable_cuda_graph": "1"}
# Options of the CUDA provider that the fastest is chosen among; its search of cuDNN's algorithms is on by default. A
# model with an operator that the provider lacks, which runs on the CPU then, can only be launched step by step.
_ON_GPU: Mapping[str, Mapping[str, str]] = {
    "its cuda graph, channels first": _GRAPH,
    "its cuda graph, channels last": _GRAPH | {"prefer_nhwc": "1"},
    "its cuda graph, channels first, bias fused": _GRAPH | {"fuse_conv_bias": "1"},
    "its cuda graph, channels last, bias fused": _GRAPH | {"prefer_nhwc": "1", "fuse_conv_bias": "1"},
    "launched step by step": {},
}


def onnxruntime(workload: Workload) -> Engine:
    """Build an ONNX Runtime session: on a GPU a CUDA graph, on a CPU fed with NumPy in a process without PyTorch."""
    if workload.dtype == "bfloat16":
        raise MissingError("onnxruntime is fed with NumPy, which has no bfloat16: choose --dtype float16 or float32")
    import onnxruntime as installed

    provider, package = _PROVIDERS[workload.device.type]
    if provider not in installed.get_available_providers():
        raise MissingError(f"onnxruntime {installed.__version__} has no {provider}: pip install {package}")
    path, export = _exported(workload)
    if workload.on_gpu:
        return _fastest_session(workload, path, export)
    np.save(workload.folder / "input.npy", workload.given.to(DTYPES[workload.dtype]).numpy())
    files = path, workload.folder / "input.npy"
    command = runners.module("onnx_worker", torch.get_num_threads())
    runner = RemoteRunner("onnxruntime", command, files, workload.folder, _NUMPY_METHOD)
    remark = f"{export.remark}, version {runner.version}"
    return runner, replace(export, compile_s=runner.load_s, remark=remark, layout="nchw")


def _fastest_session(workload: Workload, path: Path, export: BuildCost) -> Engine:
    """Build sessions of the CUDA provider with each of some options, and keep the fastest."""
    import onnxruntime as installed

    started_s = time.perf_counter()
    given, stream = workload.input("nchw"), _capturing_stream(workload.device)
    build = partial(_session_in_stream, workload, path, given, stream)
    builds = {name: partial(build, options) for name, options in _ON_GPU.items()}
    runner, name, tried = variants.fastest_of(builds)
    remark = f"{export.remark}, version {installed.__version__}; best of {tried}: {name}"
    return runner, replace(export, compile_s=time.perf_counter() - started_s, remark=remark, layout="nchw")


def _capturing_stream(device: torch.device) -> torch.cuda.Stream:
    """Return the thread's stream; instead of CUDA's default one, on which nothing can be captured, set a new one."""
    stream = torch.cuda.current_stream(device)
    if stream == torch.cuda.default_stream(device):
        stream = torch.cuda.Stream(device)
        torch.cuda.set_stream(stream)
    return stream


def tf32_option(math: str) -> dict[str, str]:
    """Return the option of ONNX Runtime's CUDA provider that permits TF32 for float32, or forbids it."""
    return {"use_tf32": str(int(math == "tf32"))}


def _session_in_stream(
    workload: Workload, path: Path, given: torch.Tensor, stream: torch.cuda.Stream, options: Mapping[str, str]
) -> LocalRunner:
    """Build a session that reads and writes PyTorch's tensors in a stream of PyTorch's."""
    import onnxruntime as installed

    provider, _ = _PROVIDERS["cuda"]
    wanted = dict(options) | {"device_id": str(given.device.index), "user_compute_stream": str(stream.cuda_stream)}
    quiet = installed.SessionOptions()
    quiet.log_severity_level = 4  # what an option cannot do is raised too
    session = installed.InferenceSession(str(path), quiet, providers=[(provider, wanted | tf32_option(workload.math))])
    if provider not in session.get_providers():
        raise WorkerError("onnxruntime could not load its CUDA provider: its version needs other CUDA libraries")
    binding, (found,) = session.io_binding(), session.get_outputs()
    output = torch.empty(found.shape, dtype=given.dtype, device=given.device)
    for bind, name, tensor in (
        (binding.bind_input, session.get_inputs()[0].name, given),
        (binding.bind_output, found.name, output),
    ):
        bind(name, "cuda", tensor.device.index, _NUMPY[workload.dtype], tuple(tensor.shape), tensor.data_ptr())
    unwaited = installed.RunOptions()
    unwaited.add_run_config_entry("disable_synchronize_execution_providers", "1")

    def step() -> torch.Tensor:
        current = torch.cuda.current_stream(given.device)
        if current == stream:
            session.run_with_iobinding(binding, unwaited)
            return output
        stream.wait_stream(current)
        session.run_with_iobinding(binding, unwaited)
        current.wait_stream(stream)
        return output

    runner = workload.local(step, given, counted=False)
    if options.items() >= _GRAPH.items():
        runner.timing_method += ", replay of ONNX Runtime's CUDA graph"
    return runner


def tensorrt(workload: Workload) -> Engine:
    """Build a TensorRT engine from the ONNX model, run as a CUDA graph."""
    workload.needs_gpu("tensorrt")
    path, export = _exported(workload)
    import tensorrt as trt

    started_s = time.perf_counter()
    logger = trt.Logger(trt.Logger.ERROR)
    builder = trt.Builder(logger)
    network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    parser = trt.OnnxParser(network, logger)
    if not parser.parse_from_file(str(path)):
        raise WorkerError(f"tensorrt cannot read the model: {parser.get_error(0).desc()}")
    config = builder.create_builder_config()
    if workload.math == "fp32":
        config.clear_flag(trt.BuilderFlag.TF32)  # it is set
    plan = builder.build_serialized_network(network, config)
    if plan is None:
        raise WorkerError("tensorrt cannot build an engine for this model")
    engine = trt.Runtime(logger).deserialize_cuda_engine(plan)
    context = engine.create_execution_context()
    given = workload.input("nchw")
    names = [engine.get_tensor_name(index) for index in range(engine.num_io_tensors)]
    (input_name,) = [name for name in names if engine.get_tensor_mode(name) == trt.TensorIOMode.INPUT]
    (output_name,) = [name for name in names if engine.get_tensor_mode(name) == trt.TensorIOMode.OUTPUT]
    output = torch.empty(tuple(engine.get_tensor_shape(output_name)), dtype=given.dtype, device=workload.device)

    def step() -> torch.Tensor:
        context.set_tensor_address(input_name, given.data_ptr())
        context.set_tensor_address(output_name, output.data_ptr())
        context.execute_async_v3(torch.cuda.current_stream().cuda_stream)
        return output

    compile_s = time.perf_counter() - started_s
    remark = f"{export.remark}, version {trt.__version__}"
    (workload.folder / "model.plan").write_bytes(plan)
    cost = BuildCost(export.export_s, compile_s, plan.nbytes, remark, "nchw", (workload.folder / "model.plan",))
    return workload.local(step, given, captured=True, counted=False), cost


def _exported(workload: Workload) -> tuple[Path, BuildCost]:
    """Write the model as ONNX, in the workload's data type; return the file and the cost of the export."""
    model, remark = workload.folded()
    path, dtype = workload.folder / "model.onnx", DTYPES[workload.dtype]
    started_s = time.perf_counter()
    torch.onnx.export(model.to(dtype), (workload.given.to(dtype),), str(path), dynamo=True, verbose=False)
    export_s = time.perf_counter() - started_s
    files = tuple(workload.folder.iterdir())
    disk_bytes = sum(file.stat().st_size for file in files)
    return path, BuildCost(export_s=export_s, disk_bytes=disk_bytes, remark=remark, files=files)
