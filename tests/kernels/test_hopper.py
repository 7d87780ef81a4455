"""Code that the compiler makes of the tuned kernels for Hopper: no GPU is needed to compile for one."""

from __future__ import annotations

import itertools
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.runtime.driver import driver
from triton.runtime.jit import JITFunction

from convscope.conv3d.layersets import load
from convscope.convolution.layer import Layer
from convscope.cudnn.shape import Convolution
from convscope.inference.engines.fused import tails
from convscope.kernels import direct, following
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
from convscope.kernels.conv3d import gemm
from convscope.kernels.conv3d.layout import Blocks3d
from convscope.kernels.conv3d.tuned import boxes, candidates
from convscope.kernels.eight_bits import convolution as eight_bits
from convscope.kernels.eight_bits import numbers
from convscope.kernels.winograd import nonfused, variants

LAYERS = load("cosmoflow")
META = torch.device("meta")


class Hopper:
    """A driver of a card that only compiles."""

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)

    def get_active_torch_device(self) -> torch.device:
        return META


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return the list that every kernel launched from here on is added to, compiled in place of launched."""
    found: list[Any] = []
    launch = JITFunction.run

    def only_compile(self: Any, *arguments: Any, grid: Any, warmup: bool, **options: Any) -> Any:
        found.append(launch(self, *arguments, grid=grid, warmup=True, **options))
        return found[-1]

    monkeypatch.setattr(JITFunction, "run", only_compile)
    monkeypatch.setattr(following, "options", lambda x: {"EARLY": True, "launch_pdl": True})
    monkeypatch.setattr(driver, "_active", Hopper())
    return found


def assembled(ptx: str, folder: Path) -> str:
    """Return what the assembler says of a kernel: its registers, spills and warnings."""
    path = folder / "kernel.ptx"
    path.write_text(ptx)
    command = [knobs.nvidia.ptxas.path, "-v", "--gpu-name=sm_90a", str(path), "-o", "/dev/null"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return done.stdout + done.stderr


def launch(layer: Layer, math: str, dtype: str, blocks: Blocks3d, where: str = "nchw") -> None:
    shape = layer.convolution(dtype, math, where)
    x, weight = (torch.empty(size, dtype=getattr(torch, dtype), device=META) for size in (shape.input, shape.weight))
    x = x.contiguous(memory_format=torch.channels_last_3d) if where == "nhwc" else x
    gemm.convolve(x, gemm.pack(weight, shape, blocks), shape, blocks)


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
    for steps, most in itertools.product(range(1, 70), range(1, 9)):
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
def test_a_stride_is_as_fast_as_none(compiled: list[Any], tmp_path: Path, layer: Layer, blocks: Blocks3d):
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


@pytest.mark.parametrize("where", ["nchw", "nhwc"])
def test_3d_kernels_that_start_early_wait_before_they_read(compiled: list[Any], where: str):
    first_layer, layer = LAYERS[0], LAYERS[2]
    launch(layer, "tf32", "float32", Blocks3d("boxes", 64, 64, 32, 4, 3, 2, (1, 8, 8)), where)
    launch(layer, "tf32", "float32", Blocks3d("slices", 128, 64, 32, 4, 2, 1, (2, 8, 8)), where)
    launch(layer, "tf32", "float32", Blocks3d("pipelined", 64, 64, 32, 4, 3), where)
    launch(first_layer, "tf32", "float32", Blocks3d("boxes", 64, 64, 16, 4, 3, 1, (1, 8, 8), 2), where)
    copy = "copy_channels_last" if where == "nchw" else "copy_rounded"
    names = [*(copy, "gemm_boxes", "sum_splits"), *(copy, "gemm_slices"), *(copy, "gemm_pipelined")]
    assert [each.name for each in compiled] == [*names, "copy_channels_last", "gemm_boxes", "gemm_apart"]
    for each in compiled:
        check_wait(each)


def check_wait(made: Any) -> None:
    """Check that a kernel waits for the one before it, and then lets the next one start, before it touches memory."""
    ptx = made.asm["ptx"]
    waits = ptx.index("griddepcontrol.wait")
    assert waits < ptx.index("griddepcontrol.launch_dependents")
    touched = re.search(r"ld\.global|st\.global|cp\.async\.c[ag]|cp\.async\.bulk\.tensor|atom\.", ptx)
    assert touched is not None
    assert waits < touched.start()
