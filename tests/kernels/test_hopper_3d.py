"""Code that the compiler makes of the 3-D kernels for Hopper: no GPU is needed to compile for one."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from fakes.hopper import META, assembled, check_wait

from convscope.conv3d.layersets import load
from convscope.convolution.layer import Layer
from convscope.kernels.conv3d import gemm, gemm_tiled
from convscope.kernels.conv3d.copies import inputs
from convscope.kernels.conv3d.layout import Blocks3d
from convscope.kernels.conv3d.tuned import boxes, candidates

LAYERS = load("cosmoflow")
DOWN = next(layer for layer in load("r3d_18") if layer.name == "layer2.0.conv1.0")  # with a stride of 2


def launch(
    layer: Layer, math: str, dtype: str, blocks: Blocks3d, where: str = "nchw", kernel: ModuleType = gemm
) -> None:
    shape = layer.convolution(dtype, math, where)
    x, weight = (torch.empty(size, dtype=getattr(torch, dtype), device=META) for size in (shape.input, shape.weight))
    x = x.contiguous(memory_format=torch.channels_last_3d) if where == "nhwc" else x
    kernel.convolve(x, kernel.pack(weight, shape, blocks), shape, blocks)


def cuts(where: str = "nchw") -> list[Any]:
    """Return every cut that is a candidate for a layer of CosmoFlow, with the first layer that it is one for.

    All but the first of each variant, number of warps and of slices, in runs or not, are marked `long`.
    """
    found: dict[tuple[object, ...], Any] = {}
    kinds: set[tuple[object, ...]] = set()
    for layer in LAYERS:
        for blocks in candidates.candidates(layer.convolution("float32", "tf32", where)):
            kind = (blocks.variant, blocks.warps, blocks.run > 1, blocks.box[0] if blocks.variant == "slices" else 1)
            key = (*kind, blocks.pixels, blocks.filters, blocks.depth, blocks.stages)
            marks = [pytest.mark.long] if kind in kinds else []
            found.setdefault(key, pytest.param(layer, blocks, id=f"{layer.name} {blocks}", marks=marks))
            kinds.add(kind)
    return list(found.values())


def test_no_split_of_a_sum_is_empty():
    for steps, most in itertools.product(range(1, 70), range(1, 25)):
        share, splits = boxes.shares(steps, most)
        assert splits <= most
        assert (splits - 1) * share < steps <= splits * share


@pytest.mark.parametrize(("layer", "blocks"), cuts())
def test_products_are_wgmma_in_tf32_that_nothing_serialises(
    compiled: list[Any], tmp_path: Path, layer: Layer, blocks: Blocks3d
):
    launch(layer, "tf32", "float32", blocks)
    check(compiled, tmp_path, blocks)


@pytest.mark.parametrize(("layer", "blocks"), cuts("nhwc"))
@pytest.mark.parametrize("dtype", ["float32", pytest.param("float16", marks=pytest.mark.long)])
def test_channels_last_in_and_out_is_as_fast(
    compiled: list[Any], tmp_path: Path, layer: Layer, blocks: Blocks3d, dtype: str
):
    launch(layer, "tf32", dtype, blocks, "nhwc")
    check(compiled, tmp_path, blocks)


def strided() -> list[Any]:
    """Return each candidate of the copy engine for layers of r3d_18 with a stride; all but one of a kind are `long`."""
    found, seen = [], set()
    for layer in load("r3d_18"):
        shape = layer.convolution("float32", "tf32", "nhwc")
        for blocks in candidates.candidates(shape) if max(shape.stride) > 1 else ():
            kind = blocks.variant, blocks.warps, blocks.run > 1
            marks = [pytest.mark.long] if kind in seen else []
            if blocks.variant != "pipelined":
                found.append(pytest.param(layer, blocks, id=f"{layer.name} {blocks}", marks=marks))
            seen.add(kind)
    return found


@pytest.mark.parametrize(("layer", "blocks"), strided())
def test_products_with_a_stride_are_wgmma_that_nothing_serialises(
    compiled: list[Any], tmp_path: Path, layer: Layer, blocks: Blocks3d
):
    launch(layer, "tf32", "float32", blocks, "nhwc")
    check(compiled, tmp_path, blocks)


def check(compiled: list[Any], tmp_path: Path, blocks: Blocks3d) -> None:
    """Check that products of what was launched are asynchronous, spill nothing, and that outputs are stored widely."""
    made = next(kernel for kernel in compiled if kernel.name.startswith("gemm"))
    assert made.name == f"gemm_{blocks.variant}"
    assert "wgmma.mma_async.sync.aligned.m64" in made.asm["ptx"]
    assert "mma.sync" not in made.asm["ptx"]
    assert ("cp.async.bulk.tensor.5d" in made.asm["ptx"]) == (blocks.variant != "pipelined")
    assert "st.global.v4" in made.asm["ptx"]
    said = assembled(made.asm["ptx"], tmp_path)
    assert re.findall(r"C75\d\d", said) == [], said  # wgmma serialised
    assert re.findall(r"[1-9]\d* bytes spill", said) == [], said
    assert made.metadata.shared <= 232_448


@pytest.mark.parametrize("where", ["nchw", "nhwc"])
def test_3d_kernels_that_start_early_wait_before_they_read(compiled: list[Any], where: str):
    first_layer, layer = LAYERS[0], LAYERS[2]
    launch(layer, "tf32", "float32", Blocks3d("boxes", 64, 64, 32, 4, 3, 2, (1, 8, 8)), where)
    launch(layer, "tf32", "float32", Blocks3d("slices", 128, 64, 32, 4, 2, 1, (2, 8, 8)), where)
    launch(layer, "tf32", "float32", Blocks3d("pipelined", 64, 64, 32, 4, 3), where)
    launch(first_layer, "tf32", "float32", Blocks3d("boxes", 64, 64, 16, 4, 3, 1, (1, 8, 8), 2), where)
    launch(DOWN, "tf32", "float32", Blocks3d("boxes", 64, 64, 32, 4, 3, 1, (1, 8, 8)), where)
    launch(layer, "tf32", "float32", Blocks3d("tiled", 64, 64, 32, 4, 1), where, gemm_tiled)
    copy = "copy_channels_last" if where == "nchw" else "copy_rounded"
    for_boxes = [copy] if where == "nchw" else []  # the copy engine rounds what lies in order
    calls = [
        (*for_boxes, "gemm_boxes", "sum_splits"), (*for_boxes, "gemm_slices"), (copy, "gemm_pipelined"),
        ("copy_channels_last", "gemm_boxes", "gemm_apart"), (*for_boxes, "gemm_boxes"), (copy, "gemm_tiled"),
    ]  # fmt: skip
    assert [each.name for each in compiled] == [name for call in calls for name in ("pack_filters", *call)]
    for each in compiled:
        check_wait(each)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_an_input_in_channels_last_is_copied_16_bytes_at_a_time(compiled: list[Any], dtype: str):
    shape = DOWN.convolution(dtype, "tf32", "nhwc")
    x = torch.empty(shape.input, dtype=getattr(torch, dtype), device=META)
    inputs.channels_last(x.contiguous(memory_format=torch.channels_last_3d), shape, in_phases=True)
    assert set(re.findall(r"(?:ld|st)\.global[.\w]*", compiled[-1].asm["ptx"])) == {
        "ld.global.v4.b32",
        "st.global.v4.b32",
    }
