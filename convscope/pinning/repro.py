"""Script that shows the plan of one layer with PyTorch and nvidia-cudnn-frontend alone, for who looks after cuDNN."""

from __future__ import annotations

import math
from typing import Any

from convscope.convolution import algorithms
from convscope.cudnn.shape import output_extents
from convscope.errors import InputError
from convscope.pinning.document import TORCH, Pin, Pins

_SCRIPT = '''"""{title}
{measured}
pip install torch nvidia-cudnn-frontend; prints the time of a call in a CUDA graph, and its error against float64."""
import cudnn
import torch
PLAN = {tags}  # the engine and its knobs
torch.backends.cudnn.allow_tf32 = {allows_tf32}
torch.manual_seed(0)
kind, memory = {{"device": "cuda", "dtype": torch.{dtype}}}, torch.{memory}
sizes = {input}, {weight}, {output}
x, w, y = (torch.randn(size, **kind).contiguous(memory_format=memory) for size in sizes)
filters = w.mul_({scale}).contiguous(memory_format=torch.{filters})  # as the plan reads them
handle, kind, single = cudnn.create_handle(), cudnn.data_type.{type}, cudnn.data_type.FLOAT
graph = cudnn.pygraph(handle=handle, io_data_type=kind, intermediate_data_type=single, compute_data_type=single)
X, W = (graph.tensor(dim=[*t.size()], stride=[*t.stride()], data_type=kind) for t in (x, filters))
padding, stride, dilation = {padding}, {stride}, {dilation}
Y = graph.conv_fprop(image=X, weight=W, pre_padding=padding, post_padding=padding, stride=stride, dilation=dilation)
Y.set_output(True).set_dim([*y.size()]).set_stride([*y.stride()])
graph.validate()
graph.build_operation_graph()
graph.create_execution_plans([cudnn.heur_mode.A, cudnn.heur_mode.B, cudnn.heur_mode.FALLBACK])
names = [graph.get_plan_name_at_index(index) for index in range(graph.get_execution_plan_count())]
index = [sorted(name.split("_")) for name in names].index(sorted(PLAN))  # ValueError: not offered here
graph.build_plan_at_index(index)
workspace = torch.empty(graph.get_workspace_size_plan_at_index(index), device="cuda", dtype=torch.uint8)
def plan(x, w):
    cudnn.set_stream(handle=handle, stream=torch.cuda.current_stream().cuda_stream)
    graph.execute_plan_at_index({{X: x, W: filters, Y: y}}, workspace, index, handle=handle)
    return y
def pytorch(x, w):
    return torch.nn.functional.conv2d(x, w, None, stride, padding, dilation, {groups})
truth = pytorch(x.double(), w.double())
for work in plan, pytorch:
    error = (work(x, w).double() - truth).norm() / truth.norm()
    with torch.cuda.graph(captured := torch.cuda.CUDAGraph()):
        [work(x, w) for _ in range(20)]
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    captured.replay(), start.record(), captured.replay(), end.record(), end.synchronize()
    print(f"{{work.__name__}}: {{1e3 * start.elapsed_time(end) / 20:.1f}} us, error {{error:.1e}}")
'''
_TYPES = {"float32": "FLOAT", "float16": "HALF", "bfloat16": "BFLOAT16"}
_MEMORY = {"nchw": "contiguous_format", "nhwc": "channels_last"}


def script(pins: Pins, layer: str) -> str:
    """Return a script of a layer's plan and PyTorch's choice: the time and the error of each.

    Raises:
        InputError: the document has no such layer, leaves it to PyTorch, or has something fused with it.
    """
    pin = next((pin for pin in pins.layers if pin.layer == layer), None)
    if pin is None:
        names = ", ".join(pin.layer for pin in pins.layers)
        raise InputError(f"no layer {layer!r} has plans here: choose one of {names}")
    plan = algorithms.plan_of(pin.algorithm)
    if plan is None:
        why = "is left to PyTorch" if pin.algorithm == TORCH else f"has {pin.algorithm}, an algorithm by name"
        raise InputError(f"{layer} {why}: a script shows a plan of cuDNN's graph API")
    if pin.shape["fused"]:
        raise InputError(f"{pin.shape['fused']} is fused with {layer}: a script shows a convolution alone")
    settings, dtype = pins.settings, str(pins.settings["dtype"])
    return _SCRIPT.format(
        title=f"{pin.algorithm} of {layer} of {settings['model']}: {_shape(pin, settings['batch_size'])}",
        measured=_measured(pins, pin), tags=[f"eng{plan.engine}", *(f"k{knob}={value}" for knob, value in plan.knobs)],
        allows_tf32=settings["math"] == "tf32", dtype=dtype, type=_TYPES[dtype], memory=_MEMORY[settings["layout"]],
        filters=_MEMORY["nhwc" if algorithms.packs_filters(pin.algorithm) else settings["layout"]],
        **_sizes(pin, int(settings["batch_size"])),
    )  # fmt: skip


def _pair(text: str) -> list[int]:
    return [int(part) for part in text.split("x")]


def _sizes(pin: Pin, batch: int) -> dict[str, Any]:
    """Return the sizes of a layer's tensors, its options, and the factor that keeps its outputs near 1."""
    shape = pin.shape
    channels, filters, groups = (shape[name] for name in ("in_channels", "out_channels", "groups"))
    size, kernel = [shape["in_height_px"], shape["in_width_px"]], _pair(shape["kernel_size"])
    options = {name: _pair(shape[name]) for name in ("padding", "stride", "dilation")}
    extents = output_extents(size, kernel, *options.values())
    tensors = {
        "input": [batch, channels, *size],
        "weight": [filters, channels // groups, *kernel],
        "output": [batch, filters, *extents],
    }
    scale = round((channels // groups * math.prod(kernel)) ** -0.5, 6)
    return {**tensors, **options, "groups": groups, "scale": scale}


def _shape(pin: Pin, batch: int) -> str:
    shape = pin.shape
    size = f"{batch}x{shape['in_channels']}x{shape['in_height_px']}x{shape['in_width_px']}"
    return f"{size}, {shape['out_channels']} filters {shape['kernel_size']}, stride {shape['stride']}"


def _measured(pins: Pins, pin: Pin) -> str:
    """Return a line that says what was measured of the plan, and where."""
    mean_ms, error = pin.figures["mean_ms"], pin.figures["relative_error"]
    time = "not timed" if mean_ms is None else f"{mean_ms * 1e3:.1f} us in the model"
    wrong = "" if error is None else f", error {error:.1e}"
    return f"{pins.stack['gpu_name']}, driver {pins.stack['driver']}, cuDNN {pins.stack['cudnn']}: {time}{wrong}."
