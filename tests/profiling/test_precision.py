"""Profiles in 16 bits and channels last on a CPU: requests, rows, folders, older tables, what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest
import torch
from fakes import Branching, LayerTimer, Meter, layer, run, tiny
from torch import nn

import run_profile
from convscope.errors import InputError
from convscope.profiling import listing
from convscope.profiling.bench import Bench, is_finite
from convscope.profiling.comparison import compare
from convscope.profiling.request import make_run, run_elsewhere
from profiler import UnifiedProfiler

BASIC = {"num_sizes": 1, "input_size_range": (64, 64), "device": "cpu", "warmup_iters": 0, "measure_iters": 2}


def profiled(folder: Path, dtype: str = "float32", layout: str = "nchw") -> tuple[pd.DataFrame, pd.DataFrame]:
    """Profile the tiny model with PyTorch's convolutions; return both tables."""
    asked = UnifiedProfiler(tiny.NAME, "torch", measure_energy=False, dtype=dtype, layout=layout, **BASIC)
    return asked.run(folder)


@pytest.mark.parametrize(
    ("dtype", "layout", "roundoff"),
    [("bfloat16", "nchw", 2.0**-8), ("float16", "nhwc", 2.0**-11), ("float32", "nhwc", 2.0**-20)],
)
def test_pytorch_is_profiled_on_a_cpu_in_16_bits_and_channels_last(tmp_path: Path, dtype: str, layout: str, roundoff):
    overall, layers = profiled(tmp_path, dtype, layout)
    assert [*overall["status"], *layers["status"]] == ["ok"] * (1 + tiny.CONVOLUTIONS)
    for table in (overall, layers):
        assert {(row.dtype, row.layout) for row in table.itertuples()} == {(dtype, layout)}
    assert (layers["relative_error"] < roundoff).all()
    assert dtype == "float32" or (layers["relative_error"] > roundoff / 20).all()
    assert {path.name for path in tmp_path.iterdir()} == {
        "tiny_torch_overall.csv", "tiny_torch_layers.csv", "tiny_torch_work.csv", "run.json",
    }  # fmt: skip


def test_bytes_of_a_layer_are_half_as_many_in_16_bits(tmp_path: Path):
    wide, narrow = (profiled(tmp_path / dtype, dtype)[1]["bytes"] for dtype in ("float32", "bfloat16"))
    assert [*wide] == [2 * count for count in narrow]


def test_a_folder_of_another_data_type_or_layout_is_refused(tmp_path: Path):
    profiled(tmp_path)
    with pytest.raises(InputError, match=r"other settings \(dtype float32, now bfloat16; layout nchw, now nhwc\)"):
        profiled(tmp_path, "bfloat16", "nhwc")


def without_layout(folder: Path) -> None:
    """Make a folder one of a version that knew no layout, and no table of the work."""
    next(folder.glob("*_work.csv")).unlink()
    document = json.loads((folder / "run.json").read_text())
    del document["run"]["layout"]
    (folder / "run.json").write_text(json.dumps(document))
    for path in folder.glob("*.csv"):
        table = pd.read_csv(path, dtype=str).drop(columns=["layout", *(["dtype"] if "layers" in path.name else [])])
        table.to_csv(path, index=False)


def test_a_folder_of_a_version_without_layouts_is_nchw_and_goes_on(tmp_path: Path):
    profiled(tmp_path)
    without_layout(tmp_path)
    asked = BASIC | {"num_sizes": 2, "input_size_range": (64, 96)}
    overall, layers = UnifiedProfiler(tiny.NAME, "torch", measure_energy=False, **asked).run(tmp_path)
    assert [*overall["input_size"]] == [64, 96]
    assert [*overall["layout"].fillna("")] == ["", "nchw"]
    assert [*layers["dtype"].fillna("")] == [""] * tiny.CONVOLUTIONS + ["float32"] * tiny.CONVOLUTIONS
    with pytest.raises(InputError, match=r"other settings \(layout nchw, now nhwc\)"):
        profiled(tmp_path, layout="nhwc")


def test_runs_in_two_layouts_are_compared_and_named_and_in_two_data_types_refused(tmp_path: Path):
    old, last, narrow = (tmp_path / name for name in ("old", "last", "narrow"))
    profiled(old)
    without_layout(old)
    profiled(last, layout="nhwc")
    profiled(narrow, "bfloat16")
    a, b = compare.read(old), compare.read(last)
    assert compare.differences(a, b, across=False) == {"layout": ("nchw", "nhwc")}
    said = compare.as_text(a, b, {}, (), ()).splitlines()
    assert ", fp32, batch 1, on " in said[0]
    assert ", fp32, batch 1, nhwc, on " in said[1]
    with pytest.raises(InputError, match="different work \\(dtype float32 and bfloat16\\)"):
        compare.differences(a, compare.read(narrow), across=True)


# ---- requests


def test_a_run_is_of_float32_in_nchw_unless_asked_otherwise():
    found = make_run("alexnet", "torch", num_sizes=1, device="cpu")
    assert (found.dtype, found.layout, found.folder_name) == ("float32", "nchw", "alexnet_torch_cpu")


def test_a_folder_names_batch_size_data_type_and_layout():
    settings = {"batch_size": 8, "dtype": "float16", "layout": "nhwc"}
    assert run_elsewhere("resnet50", "gemm", gpu="h200", **settings).folder_name == "resnet50_gemm_h200_b8_fp16_nhwc"


@pytest.mark.parametrize(
    ("algorithm", "settings", "line"),
    [
        ("direct", {"dtype": "float16"}, "--dtype float16: ai3 computes direct on a CPU in float32 and NCHW only: "),
        ("smm", {"layout": "nhwc"}, "--layout nhwc: ai3 computes smm on a CPU in float32 and NCHW only: "),
        ("smm", {"dtype": "bfloat16", "layout": "nhwc"}, "--dtype bfloat16 --layout nhwc: ai3 computes smm on a CPU"),
        ("torch", {"dtype": "float64"}, "--dtype float64: choose one of float32, float16, bfloat16"),
        ("torch", {"layout": "chwn"}, "--layout chwn: choose one of nchw, nhwc"),
    ],
)
def test_what_a_cpu_cannot_is_refused_in_one_line(algorithm: str, settings: dict[str, str], line: str):
    with pytest.raises(InputError) as refused:
        make_run("alexnet", algorithm, num_sizes=1, device="cpu", **settings)
    assert str(refused.value).startswith(line)


@pytest.mark.parametrize(
    ("algorithm", "settings", "line"),
    [
        ("fft", {"layout": "nhwc"}, "--layout nhwc: fft reads NCHW only"),
        ("fft tiling", {"dtype": "bfloat16"}, "--dtype bfloat16: fft tiling needs float32 or float16"),
    ],
)
def test_what_no_library_of_a_gpu_has_is_refused_before_a_card_is_asked(algorithm, settings, line):
    with pytest.raises(InputError) as refused:
        run_elsewhere("alexnet", algorithm, gpu="h200", **settings)
    assert str(refused.value) == line


@pytest.mark.parametrize("algorithm", ["gemm", "winograd nonfused", "winograd", "direct", "guess"])
def test_where_no_rule_is_known_the_card_decides(algorithm: str):
    found = run_elsewhere("alexnet", algorithm, gpu="h200", dtype="float16", layout="nhwc", unsupported="fallback")
    assert found.folder_name.endswith("_fp16_nhwc")


def test_the_command_line_refuses_in_one_line_with_2(capsys: pytest.CaptureFixture[str]):
    asked = ["--model", "alexnet", "--algorithm", "smm", "--test", "--device", "cpu", "--layout", "nhwc"]
    assert run_profile.main(asked) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert said.startswith("run_profile.py: --layout nhwc: ai3 computes smm on a CPU in float32 and NCHW only")


def test_combinations_are_listed_with_data_type_and_layout_and_without_what_has_none():
    def listed(gpu: str | None, *precision: str) -> list[str]:
        names = ["fft", "torch"]
        return listing.combination_list(["alexnet"], names, gpu, (224, 224), "fallback", *precision).splitlines()

    assert listed("h200") == ["alexnet\tfft\th200", "alexnet\ttorch\th200"]
    assert listed(None) == ["alexnet\tfft", "alexnet\ttorch"]
    refused, plain = listed("h200", "float16", "nhwc")
    assert (refused, plain) == (
        "# alexnet fft: fft reads NCHW only",
        "alexnet\ttorch\th200\tdtype=float16\tlayout=nhwc",
    )
    assert listed(None, "bfloat16", "nchw")[1] == "alexnet\ttorch\tdtype=bfloat16"


# ---- numbers that leave the range of a type


class Growing(nn.Module):
    """Multiplies the output of another model beyond the range of float16."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        y = self.inner(x)
        return y, {"large": y * 1e6}


@pytest.mark.parametrize(("dtype", "said"), [("float16", True), ("bfloat16", False), ("float32", False)])
def test_an_output_that_is_not_finite_is_said_with_the_row(dtype: str, said: bool):
    model = Growing(Branching()).to(getattr(torch, dtype))
    layers = [layer(name="inner.one"), layer(name="inner.two", position=1)]
    with torch.inference_mode():
        made = Bench(
            run(warmup_iters=0, measure_iters=2, dtype=dtype), model, torch.device("cpu"), LayerTimer([2.0, 1.0]),
            Meter(), note=pytest.fail,
        )  # fmt: skip
        found = made.measure(8, layers, check_errors=False)
    expected = "the model's output is not finite: its numbers leave the range of float16" if said else None
    assert found.infinite == expected


def test_every_part_of_an_output_must_be_finite():
    good, bad = torch.ones(2), torch.tensor([1.0, float("nan")])
    assert is_finite((good, {"a": [good, torch.tensor([1])]}))
    assert not is_finite((good, {"a": [bad]}))
    assert not is_finite(torch.tensor(float("inf")))
