"""The engines that run an exported ONNX model: ONNX Runtime and TensorRT."""

from __future__ import annotations

import time
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


def onnxruntime(task: Workload) -> Engine:
    """ONNX Runtime, fed with NumPy alone, in a process that never imports PyTorch."""
    if task.dtype == "bfloat16":
        raise MissingError("onnxruntime is fed with NumPy, which has no bfloat16: choose --dtype float16 or float32")
    import onnxruntime as installed

    provider, package = _PROVIDERS[task.device.type]
    if provider not in installed.get_available_providers():
        raise MissingError(f"onnxruntime {installed.__version__} has no {provider}: pip install {package}")
    path, setup = _exported(task)
    np.save(task.folder / "input.npy", task.given.to(DTYPES[task.dtype]).numpy())
    command = runners.module("onnx_worker", path, task.folder / "input.npy", provider, torch.get_num_threads())
    copied = ", copies to and from the device included" if task.on_gpu else ""
    runner = RemoteRunner("onnxruntime", command, task.folder, _NUMPY_METHOD + copied)
    return runner, BuildCost(
        setup.export_s, runner.load_s, setup.disk_bytes, f"{setup.remark}, version {runner.version}", "nchw"
    )


def tensorrt(task: Workload) -> Engine:
    """TensorRT from the ONNX model, as a CUDA graph."""
    task.needs_gpu("tensorrt")
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
    made = BuildCost(setup.export_s, compile_s, plan.nbytes, remark, "nchw")
    return task.local(step, captured=True, counted=False), made


def _exported(task: Workload) -> tuple[Path, BuildCost]:
    """Write the model as ONNX, in the task's data type."""
    model, remark = task.folded()
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
    return path, BuildCost(
        export_s=export_s, disk_bytes=sum(file.stat().st_size for file in task.folder.iterdir()), remark=remark
    )
