"""Engines that run an exported ONNX model: ONNX Runtime and TensorRT."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from convscope.errors import MissingError, WorkerError
from convscope.inference.engines import runners
from convscope.inference.engines.runners import RemoteRunner
from convscope.inference.engines.workload import DTYPES, BuildCost, Engine, Workload

_PROVIDERS = {
    "cuda": ("CUDAExecutionProvider", "onnxruntime-gpu in onnxruntime's place"),
    "cpu": ("CPUExecutionProvider", "onnxruntime"),
}
_NUMPY_METHOD = "time.perf_counter around a call in a process of its own, from NumPy array to NumPy array"


def onnxruntime(workload: Workload) -> Engine:
    """Build an ONNX Runtime session, fed with NumPy, in a process that never imports PyTorch."""
    if workload.dtype == "bfloat16":
        raise MissingError("onnxruntime is fed with NumPy, which has no bfloat16: choose --dtype float16 or float32")
    import onnxruntime as installed

    provider, package = _PROVIDERS[workload.device.type]
    if provider not in installed.get_available_providers():
        raise MissingError(f"onnxruntime {installed.__version__} has no {provider}: pip install {package}")
    path, export = _exported(workload)
    np.save(workload.folder / "input.npy", workload.given.to(DTYPES[workload.dtype]).numpy())
    files = path, workload.folder / "input.npy"
    command = runners.module("onnx_worker", provider, torch.get_num_threads(), workload.math)
    copied = ", copies to and from the device included" if workload.on_gpu else ""
    runner = RemoteRunner("onnxruntime", command, files, workload.folder, _NUMPY_METHOD + copied)
    remark = f"{export.remark}, version {runner.version}"
    return runner, replace(export, compile_s=runner.load_s, remark=remark, layout="nchw")


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
