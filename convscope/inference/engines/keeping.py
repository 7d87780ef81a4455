"""Files of a compiled engine, kept with a program that runs them without PyTorch's Python, or without PyTorch."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from convscope.convolution import backends
from convscope.inference.engines.workload import DTYPES

_ONNX = '''"""Run the exported model on images.npy by ONNX Runtime; PyTorch is not needed."""

import numpy as np
import onnxruntime

session = onnxruntime.InferenceSession("model.onnx", providers=onnxruntime.get_available_providers())
output = session.run(None, {{session.get_inputs()[0].name: np.load("images.npy")}})[0]
np.save("output.npy", output.astype(np.float32))
print(output.shape, output.argmax(1))
'''
_TENSORRT = '''"""Run the engine on images.npy by TensorRT, without PyTorch (pip install tensorrt cuda-python numpy)."""

import numpy as np
import tensorrt as trt
from cuda.bindings import runtime as cuda

engine = trt.Runtime(trt.Logger()).deserialize_cuda_engine(open("model.plan", "rb").read())
context, images = engine.create_execution_context(), np.load("images.npy")
names = [engine.get_tensor_name(index) for index in range(engine.num_io_tensors)]
arrays = {{name: images if engine.get_tensor_mode(name) == trt.TensorIOMode.INPUT
          else np.empty(tuple(engine.get_tensor_shape(name)), images.dtype) for name in names}}
memory = {{name: cuda.cudaMalloc(array.nbytes)[1] for name, array in arrays.items()}}
for name, array in arrays.items():
    cuda.cudaMemcpy(memory[name], array.ctypes.data, array.nbytes, cuda.cudaMemcpyKind.cudaMemcpyHostToDevice)
    context.set_tensor_address(name, memory[name])
context.execute_async_v3(0)
for name, array in arrays.items():
    cuda.cudaMemcpy(array.ctypes.data, memory[name], array.nbytes, cuda.cudaMemcpyKind.cudaMemcpyDeviceToHost)
np.save("output.npy", arrays[names[-1]].astype(np.float32))
'''
_PACKAGE = """// Run the package on images.bin by PyTorch's C++ library; Python is needed to find it, and not to run:
//   T=$(python -c 'import os, torch; print(os.path.dirname(torch.__file__))')
//   I="-I$T/include -I$T/include/torch/csrc/api/include"
//   c++ -std=c++20 run.cpp -o run $I -L$T/lib -Wl,-rpath,$T/lib {libraries}
//   ./run
#include <fstream>
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>
#include <torch/torch.h>

int main() {{
  c10::InferenceMode guard;
  auto images = torch::from_file("images.bin", false, {count}, torch::{dtype}).view({{{shape}}}){order};
  torch::inductor::AOTIModelPackageLoader model("model.pt2");
  auto output = model.run({{images.to(torch::{device})}})[0].to(torch::kCPU, torch::kFloat32).contiguous();
  std::ofstream("output.bin", std::ios::binary).write(static_cast<const char*>(output.data_ptr()), output.nbytes());
  std::cout << output.sizes() << " " << output.argmax(1) << std::endl;
}}
"""
_CPP_DTYPES = {"float32": "kFloat32", "float16": "kFloat16", "bfloat16": "kBFloat16"}


def gather(files: Sequence[Path], folder: Path, images: torch.Tensor, dtype: str, layout: str, on_gpu: bool) -> None:
    """Copy an engine's files into a new folder, with its images and the program that runs them.

    Args:
        folder: a temporary one, which the caller stores.
        images: N × 3 × H × W, in float32 on the CPU.
        dtype: the engine's, as `layout`.
    """
    folder.mkdir()
    for file in files:
        shutil.copy2(file, folder)
    kinds = {file.suffix for file in files}
    if ".pt2" in kinds:
        (folder / "run.cpp").write_text(_cpp(images, dtype, layout, on_gpu))
        placed = images.to(DTYPES[dtype]).contiguous(memory_format=backends.LAYOUTS[layout])
        rows = placed.permute(0, 2, 3, 1) if layout == "nhwc" else placed
        (folder / "images.bin").write_bytes(rows.contiguous().view(torch.uint8).numpy().tobytes())
        return
    if dtype == "bfloat16":
        return  # NumPy has none
    (folder / "run.py").write_text((_ONNX if ".onnx" in kinds else _TENSORRT).format())
    np.save(folder / "images.npy", images.to(DTYPES[dtype]).numpy())


def _cpp(images: torch.Tensor, dtype: str, layout: str, on_gpu: bool) -> str:
    count, channels, height, width = images.shape
    extents = (count, height, width, channels) if layout == "nhwc" else (count, channels, height, width)
    libraries = "-ltorch -ltorch_cpu -lc10" + (" -Wl,--no-as-needed -ltorch_cuda -lc10_cuda" if on_gpu else "")
    return _PACKAGE.format(
        libraries=libraries, count=images.numel(), dtype=_CPP_DTYPES[dtype], shape=", ".join(map(str, extents)),
        order=".permute({0, 3, 1, 2})" if layout == "nhwc" else "", device="kCUDA" if on_gpu else "kCPU",
    )  # fmt: skip
