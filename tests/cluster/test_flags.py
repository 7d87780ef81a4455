"""Batch size, data type and layout by the flags of a job: in folders' names as Python and the stages write them."""

from __future__ import annotations

import dataclasses
import shlex
import subprocess

import pytest
from fakes import ROOT

from convscope.cluster.flags import of_line, with_flags
from convscope.storage.paths import Combination, folder_name, precision

PLAIN = Combination("torchvision:resnet18", "fft tiling", "h200")


@pytest.mark.parametrize(
    ("settings", "ending"),
    [
        ({}, ""),
        ({"batch_size": 8}, "_b8"),
        ({"dtype": "float16"}, "_fp16"),
        ({"dtype": "bfloat16", "layout": "nhwc"}, "_bf16_nhwc"),
        ({"layout": "nhwc"}, "_nhwc"),
        ({"batch_size": 8, "dtype": "float16", "layout": "nhwc"}, "_b8_fp16_nhwc"),
    ],
)
def test_a_folder_names_what_is_not_1_float32_and_nchw(settings: dict[str, object], ending: str):
    assert dataclasses.replace(PLAIN, **settings).folder_name == f"resnet18_fft_tiling_h200{ending}"
    assert folder_name("resnet50", "gemm", "h200", **settings) == f"resnet50_gemm_h200{ending}"  # type: ignore[arg-type]


def test_data_type_and_layout_in_words():
    assert precision("float32", "nchw") == ""
    assert precision("bfloat16", "nchw") == ", bfloat16"
    assert precision("float16", "nhwc") == ", float16, nhwc"


@pytest.mark.parametrize(
    ("flags", "ending"),
    [
        ("", ""),
        ("--seed 3 --batch-size 8", "_b8"),
        ("--batch-size=08 --no-energy", "_b8"),
        ("--batch-size 8 --batch-size 1", ""),
        ("--batch 4 --dt bfloat16 --layou nhwc", "_b4_bf16_nhwc"),
        ("--dtype float16 --dtype=float32 --layout nhwc", "_nhwc"),
        ("--device cpu --layer-energy --measure 2", ""),
        ("--dtype half --layout chwn --batch-size x", ""),
        ("--batch-sizes 8", ""),
        ("--dtype", ""),
        ("--batch-size 8 --dtype float16 --layout nhwc", "_b8_fp16_nhwc"),
    ],
)
def test_flags_name_the_folder_in_python_and_in_the_stages_alike(flags: str, ending: str):
    words = shlex.split(flags)
    assert with_flags(PLAIN, words).folder_name == f"resnet18_fft_tiling_h200{ending}"
    script = f'root={ROOT}; source "$root/slurm/stage.sh"; flags=({flags}); model={PLAIN.model} gpu=h200; '
    script += "algorithm='fft tiling'; folder 2_quick"
    said = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True).stdout
    assert said.rpartition("/")[2] == f"resnet18_fft_tiling_h200{ending}"


def test_a_line_that_names_what_the_flags_do_not_brings_its_own_flags():
    half = dataclasses.replace(PLAIN, dtype="float16", layout="nhwc")
    assert of_line(half, []) == ["--dtype", "float16", "--layout", "nhwc"]
    assert of_line(half, ["--dtype", "float16", "--layout", "nhwc"]) == []
    assert of_line(PLAIN, ["--dtype", "float16"]) == ["--dtype", "float32", "--layout", "nchw"]
    assert of_line(PLAIN, ["--batch-size", "8"]) == []
