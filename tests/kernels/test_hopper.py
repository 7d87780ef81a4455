"""Code that the compiler makes of the tuned kernels for Hopper: no GPU is needed to compile for one."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from fakes.hopper import META, assembled, check_wait

from convscope.cudnn.shape import Convolution
from convscope.inference.engines.fused import tails
from convscope.kernels import direct
from convscope.kernels.blocks import Blocks2d
from convscope.kernels.channels_last import (
    activations,
    convolution,
    depthwise,
    first,
    first_pooled,
    heads,
    joined,
    normalisation,
    pooling,
)
from convscope.kernels.channels_last.windows import Window
from convscope.kernels.eight_bits import convolution as eight_bits
from convscope.kernels.eight_bits import numbers
from convscope.kernels.winograd import nonfused, variants


def launch_2d(compiled: list[Any], module: Any, shape: Convolution, blocks: Blocks2d) -> Any:
    """Return the 2-D kernel that a launch with these blocks compiles."""
    dtype = getattr(torch, shape.dtype)
    weight, bias = (torch.empty(size, dtype=dtype, device=META) for size in (shape.weight, shape.weight[:1]))
    x, y = (torch.empty(size, dtype=dtype, device=META) for size in (shape.input, (1, *shape.output)))
    module.launch(x, module.pack(weight, shape, blocks), bias, y, shape, blocks)
    return compiled[-1]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("where", ["nchw", "nhwc"])
def test_2d_products_in_16_bits_run_on_the_matrix_unit_with_sums_of_float32(
    compiled: list[Any], tmp_path: Path, dtype: str, where: str
):
    shape = Convolution((1, 64, 28, 28), (64, 64, 3, 3), (1, 1), (1, 1), (1, 1), 1, dtype, "tf32", where)
    kind = {"float16": "f16", "bfloat16": "bf16"}[dtype]
    by_taps = launch_2d(compiled, direct, shape, Blocks2d("taps", 64, 64, 64, 4, 3))
    fused = launch_2d(compiled, variants, shape, Blocks2d("F2", 32, 32, 16, 16, 1))
    assert (by_taps.name, fused.name) == ("direct_conv2d_hmma", "winograd_conv2d_hmma")
    assert f"k16.f32.{kind}.{kind}" in by_taps.asm["ptx"]  # wgmma
    assert f"k16.row.col.f32.{kind}.{kind}.f32" in fused.asm["ptx"]
    for made in (by_taps, fused):
        assert re.findall(r"C75\d\d|[1-9]\d* bytes spill", assembled(made.asm["ptx"], tmp_path)) == []


@pytest.mark.parametrize("where", ["nchw", "nhwc"])
@pytest.mark.parametrize(("dtype", "math"), [("float32", "fp32"), ("float32", "tf32"), ("float16", "fp32")])
def test_winograd_in_parts_copies_16_bytes_at_once_into_its_products_and_spills_nothing(
    compiled: list[Any], tmp_path: Path, dtype: str, math: str, where: str
):
    shape = Convolution((8, 64, 56, 56), (64, 64, 3, 3), (1, 1), (1, 1), (1, 1), 1, dtype, math, where)
    unit = {"float32 fp32": "", "float32 tf32": "_tf32", "float16 fp32": "_hmma"}[f"{dtype} {math}"]
    for blocks in nonfused.candidates(shape, shape.output):
        compiled.clear()
        launch_2d(compiled, variants, shape, blocks)
        assert [made.name for made in compiled[:3]] == ["winograd_input", f"winograd_product{unit}", "winograd_output"]
        product = compiled[1].asm["ptx"]
        copies = re.findall(r"cp\.async\.c\w\.shared\.global \[[^]]*\], \[[^]]*\], (0x\w+)", product)
        assert set(copies) == {"0x10"} or math == "tf32"  # of which the matrix unit takes no transposed factor
        assert ("wgmma" in product, "fma.rn.f32" in product) == (bool(unit), not unit)
        for made in compiled[:3]:
            assert re.findall(r"C75\d\d|[1-9]\d* bytes spill", assembled(made.asm["ptx"], tmp_path)) == []


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("kernel", [(3, 3), (1, 1)])
def test_channels_last_moves_in_pieces_of_16_bytes(compiled: list[Any], dtype: str, kernel: tuple[int, int]):
    shape = Convolution((1, 64, 28, 28), (64, 64, *kernel), (0, 0), (1, 1), (1, 1), 1, dtype, "fp32", "nhwc")
    ptx = launch_2d(compiled, direct, shape, Blocks2d("taps", 64, 64, 32, 4, 3)).asm["ptx"]
    copies = re.findall(r"cp\.async\.c\w\.shared\.global \[[^]]*\], \[[^]]*\], (0x\w+)", ptx)
    assert set(copies) == {"0x10"}  # of input and filters
    assert "st.global.v4" in ptx


def test_depthwise_layers_in_channels_last_read_neighbouring_channels_together(compiled: list[Any]):
    shape = Convolution((1, 96, 28, 28), (96, 1, 3, 3), (1, 1), (1, 1), (1, 1), 96, "float16", "fp32", "nhwc")
    ptx = launch_2d(compiled, direct, shape, Blocks2d("thin", 64, 32, 1, 4, 1)).asm["ptx"]
    assert "ld.global.v4.b32" in ptx
    assert "st.global.v4.b32" in ptx
    assert "fma.rn.f32" in ptx


@pytest.mark.parametrize("kind", tails.BY_PYTORCH)
def test_bias_and_activations_compile_and_move_16_bytes_at_once(compiled: list[Any], tmp_path: Path, kind: str):
    y = torch.empty((8, 96, 14, 14), dtype=torch.float16, device=META, memory_format=torch.channels_last)
    activations.do(y, torch.empty(96, dtype=torch.float16, device=META), kind)
    ptx = compiled[-1].asm["ptx"]
    assert "ld.global.v4.b32" in ptx
    assert "st.global.v4.b32" in ptx
    assert re.findall(r"[1-9]\d* bytes spill", assembled(ptx, tmp_path)) == []


@pytest.mark.parametrize("width", [96, 384, 768, 4096])
def test_rows_to_be_normalised_are_read_and_written_in_pieces(compiled: list[Any], tmp_path: Path, width: int):
    normalisation.layer_norm(meta(40_000, width), meta(width), meta(width), 1e-6)
    ptx = compiled[-1].asm["ptx"]
    assert re.search(r"ld\.global\.v[24]\.b32", ptx)
    assert re.search(r"st\.global\.v[24]\.b32", ptx)
    assert re.findall(r"[1-9]\d* bytes spill", assembled(ptx, tmp_path)) == []


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize(("channels", "side"), [(96, 3), (240, 5), (384, 7), (24, 3)])
@pytest.mark.parametrize("many", [1, 2**30])
def test_depthwise_convolutions_of_the_engine_compile_without_spills(
    compiled: list[Any], tmp_path: Path, channels: int, side: int, dtype: str, many: int,
    monkeypatch: pytest.MonkeyPatch,
):  # fmt: skip
    monkeypatch.setattr(depthwise, "_MANY", many)
    placed: Any = {"dtype": getattr(torch, dtype), "device": META}
    x = torch.empty((4, channels, 28, 28), **placed, memory_format=torch.channels_last)
    taps, bias = torch.empty((side * side, channels), **placed), torch.empty(channels, **placed)
    pad = side // 2
    depthwise.convolve(x, taps, bias, (side, side), (1, 1), (pad, pad), (1, 1), (28, 28), "silu")
    ptx = compiled[-1].asm["ptx"]
    assert "fma.rn.f32" in ptx
    assert re.search(r"ld\.global\.v[24]\.b32", ptx) or channels % 16  # masked one by one
    assert re.findall(r"[1-9]\d* bytes spill", assembled(ptx, tmp_path)) == []


def meta(*size: int, dtype: torch.dtype = torch.float16) -> torch.Tensor:
    x = torch.empty(size, dtype=dtype, device=META)
    return x.contiguous(memory_format=torch.channels_last) if len(size) == 4 else x


@pytest.mark.parametrize(
    ("size", "filters", "side", "stride"), [((8, 3, 224, 224), 64, 7, 2), ((1, 3, 224, 224), 32, 3, 2)]
)
def test_first_layers_read_8_bytes_at_once_for_the_matrix_unit(
    compiled: list[Any], tmp_path: Path, size: tuple[int, ...], filters: int, side: int, stride: int
):
    window = (stride, stride), (side // 2, side // 2)
    packed = first.pack(meta(filters, 3, side, side), meta(filters), *window)
    first.convolve(meta(*size), packed, "relu")
    ptx = compiled[-1].asm["ptx"]
    assert re.search(r"cp\.async\.ca\.shared\.global \[[^]]*\], \[[^]]*\], 0x8", ptx)
    assert "wgmma.mma_async" in ptx
    assert re.findall(r"[1-9]\d* bytes spill", assembled(ptx, tmp_path)) == []


@pytest.mark.parametrize(("filters", "side"), [(64, 7), (24, 3)])
def test_first_layers_with_their_pooling_keep_their_filters_in_shared_memory(
    compiled: list[Any], tmp_path: Path, filters: int, side: int
):
    packed = first.pack(meta(filters, 3, side, side), meta(filters), (2, 2), (side // 2, side // 2))
    first_pooled.convolve(meta(32, 3, 224, 224), packed, "relu")
    kernel = compiled[-1]
    assert "wgmma.mma_async" in kernel.asm["ptx"]
    assert kernel.metadata.shared < 114 * 2**10, "two programs are to fit on a multiprocessor"
    assert re.findall(r"[1-9]\d* bytes spill", assembled(kernel.asm["ptx"], tmp_path)) == []


@pytest.mark.parametrize(("channels", "filters", "side"), [(512, 512, 3), (256, 1024, 1), (40, 240, 1), (24, 72, 1)])
def test_whole_convolutions_read_16_bytes_at_once_for_the_matrix_unit(
    compiled: list[Any], tmp_path: Path, channels: int, filters: int, side: int
):
    pad = side // 2
    window = Window((side, side), (1, 1), (pad, pad), (1, 1))
    kernel = convolution.Convolution(meta(filters, channels, side, side), meta(filters), window, "silu")
    for blocks in convolution.candidates(channels, filters, side * side, 14 * 14, 132):
        kernel(meta(1, channels, 14, 14), meta(1, filters, 14, 14), (14, 14), blocks)
        ptx = compiled[-1].asm["ptx"]
        assert re.search(r"cp\.async\.cg\.shared\.global \[[^]]*\], \[[^]]*\], 0x10", ptx)
        assert "wgmma.mma_async" in ptx or ("mma.sync" in ptx and blocks.points < 64)
        assert re.findall(r"[1-9]\d* bytes spill", assembled(ptx, tmp_path)) == []


def test_pairs_are_fetched_by_the_copy_engine_and_fit_several_times(compiled: list[Any], tmp_path: Path):
    pair = joined.Joined(meta(256, 64, 1, 1), meta(256), meta(64, 256, 1, 1), meta(64))
    for blocks in pair.candidates():
        pair(meta(8, 64, 56, 56), meta(8, 256, 56, 56), blocks)
        ptx = compiled[-1].asm["ptx"]
        assert "cp.async.bulk.tensor.2d.shared" in ptx
        assert "wgmma.mma_async" in ptx
        assert compiled[-1].metadata.shared < 227 * 2**10
        assert re.findall(r"[1-9]\d* bytes spill", assembled(ptx, tmp_path)) == []
    assert min(kernel.metadata.shared for kernel in compiled) < 56 * 2**10


@pytest.mark.parametrize(
    ("side", "stride", "channels", "filters", "adds", "is_int8"),
    [
        (1, 1, 64, 256, True, True),
        (3, 1, 64, 64, False, True),
        (3, 2, 128, 128, False, True),
        (1, 2, 256, 512, False, False),
    ],
)
def test_products_of_8_bits_are_wgmma_of_integers_between_copies_of_boxes(
    compiled: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, side: int, stride: int, channels: int,
    filters: int, adds: bool, is_int8: bool,
):  # fmt: skip
    monkeypatch.setattr(eight_bits, "_multiprocessors", lambda device: 132)
    where = Window((side, side), (stride, stride), (side // 2, side // 2), (1, 1))
    weight, bias = meta(filters, channels, side, side), meta(filters)
    kernel = eight_bits.Convolution8(weight, bias, where, "relu", 0.1, 0.1, 0.1 if is_int8 else None)
    x = meta(8, channels, 28, 28, dtype=torch.int8)
    added = meta(8, filters, 28, 28, dtype=torch.int8) if adds else None
    for blocks in kernel.candidates(x, 8):
        kernel(x, added, blocks)
        ptx = compiled[-1].asm["ptx"]
        assert re.search(r"wgmma\.mma_async\S*\.s32\.s8\.s8", ptx), blocks
        assert f"cp.async.bulk.tensor.{4 if stride == 1 else 5}d.shared" in ptx
        assert re.findall(r"[1-9]\d* bytes spill", assembled(ptx, tmp_path)) == [], blocks


def test_kernels_that_start_early_wait_before_they_read(compiled: list[Any], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(eight_bits, "_multiprocessors", lambda device: 132)
    x, window = meta(1, 64, 14, 14), Window((3, 3), (1, 1), (1, 1), (1, 1))
    kernel = convolution.Convolution(meta(64, 64, 3, 3), meta(64), window)
    kernel(x, None, (14, 14), Blocks2d("last", 64, 64, 64, 4, 3))
    first.convolve(meta(1, 3, 14, 14), first.pack(meta(64, 3, 3, 3), meta(64), (1, 1), (1, 1)))
    first_pooled.convolve(meta(1, 3, 14, 14), first.pack(meta(64, 3, 3, 3), meta(64), (1, 1), (1, 1)))
    pair = joined.Joined(meta(64, 64, 1, 1), meta(64), meta(64, 64, 1, 1), meta(64))
    pair(x, x, pair.candidates()[0])
    heads.Mean()(x)
    heads.linear(meta(1, 64), meta(10, 64), meta(10))
    activations.do(x, meta(64), "relu")
    activations.scaled(x, meta(1, 64, 1, 1))
    normalisation.layer_norm(meta(4, 64), meta(64), meta(64), 1e-5)
    pooling.max_pool2d(x, (2, 2), (2, 2), (0, 0), (1, 1), (7, 7))
    taps = torch.empty((9, 64), device=META)
    depthwise.convolve(x, taps, meta(64), (3, 3), (1, 1), (1, 1), (1, 1), (14, 14))
    in_8_bits = meta(1, 64, 14, 14, dtype=torch.int8)
    product = eight_bits.Convolution8(meta(64, 64, 3, 3), meta(64), window, "relu", 0.1)
    product(in_8_bits, None, product.candidates(in_8_bits, 132)[0])
    numbers.to_eight_bits(x, 0.1)
    assert len(compiled) == 13
    for each in compiled:
        check_wait(each)
