"""A run made from a user's arguments, or one line that says what cannot be."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from fakes import ENVIRONMENT, ROOT
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from convscope.cli.options import device_here, find_device, folder_gpu, parse_bytes
from convscope.errors import InputError
from convscope.profiling.request import Run, make_run, parse_shape, run_elsewhere, spread_sizes, stage_of
from convscope.profiling.rows import SCHEMA
from convscope.storage.schema import plain
from profiler import UnifiedProfiler

CPU, CUDA = torch.device("cpu"), torch.device("cuda:0")
ASKED: dict[str, Any] = {
    "model": "alexnet",
    "algorithm": "direct",
    "num_sizes": 1,
    "input_size_range": (64, 96),
    "device": "cpu",
    "gpu": None,
    "stage": None,
    "math": None,
    "unsupported": "error",
    "batch_size": 1,
    "warmup_iters": 1,
    "measure_iters": 1,
    "pretrained": False,
    "seed": 0,
    "energy": True,
}


def make(**changes: object) -> Run:
    return make_run(**(ASKED | changes))


@pytest.fixture
def h200(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make PyTorch see two cards."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device=None: "NVIDIA H200")


def test_names_are_taken_in_the_spelling_of_the_catalogues():
    run = make(model="AlexNet", algorithm="Implicit_GEMM")
    assert (run.model, run.algorithm) == ("alexnet", "implicit gemm")


def test_on_a_cpu_the_math_is_fp32_and_the_folder_says_cpu():
    run = make()
    assert (run.math, run.gpu) == ("fp32", "cpu")


@pytest.mark.usefixtures("h200")
def test_on_a_gpu_the_math_is_tf32_and_energy_is_measured():
    run = make(device="cuda:0")
    assert (run.math, run.energy, run.gpu) == ("tf32", True, "h200")


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"batch_size": 0}, "--batch-size 0: it must be at least 1"),
        ({"warmup_iters": -1}, "--warmup -1: it must be at least 0"),
        ({"measure_iters": 0}, "--measure 0: it must be at least 1"),
        ({"num_sizes": 0}, "--num-sizes 0: it must be at least 1"),
        ({"seed": -1}, "--seed -1: it must be at least 0"),
        ({"input_size_range": (0, 64)}, "--input-range 0: it must be at least 1"),
        ({"input_size_range": (96, 64)}, "--input-range 96 64: the first number is the smaller one"),
        ({"num_sizes": 34}, "--num-sizes 34: 64 to 96 pixels are only 33 sizes"),
        ({"unsupported": "ignore"}, "--unsupported ignore: choose one of error, fallback, skip"),
        ({"math": "fp16"}, "--math fp16: choose one of tf32, fp32"),
        ({"math": "tf32"}, "--math tf32 needs a CUDA device: a CPU computes in fp32"),
        ({"gpu": "h200"}, "--gpu h200: the device is a CPU"),
    ],
)
def test_what_cannot_be_is_said_in_one_line(changes: dict[str, object], line: str):
    with pytest.raises(InputError) as refused:
        make(**changes)
    assert str(refused.value).startswith(line)


def test_a_seed_that_pytorch_cannot_take_is_refused():
    with pytest.raises(InputError, match="--seed"):
        make(seed=2**64)


@pytest.mark.parametrize(("count", "stage"), [(1, "1_sanity"), (10, "2_quick"), (100, "3_full"), (7, "3_full")])
def test_the_stage_goes_by_the_number_of_sizes(count: int, stage: str):
    assert stage_of(count) == stage


def test_a_named_stage_wins_over_the_number_of_sizes():
    assert make(stage="3_full").stage == "3_full"


def test_the_quick_sizes_are_the_documented_ones():
    assert spread_sizes(10, (224, 512)) == (224, 256, 288, 320, 352, 384, 416, 448, 480, 512)


def test_the_hundred_sizes_follow_the_formula():
    assert spread_sizes(100, (224, 512)) == tuple(224 + int(i * (512 - 224) / 99) for i in range(100))


def test_one_size_is_the_smallest():
    assert spread_sizes(1, (224, 512)) == (224,)


@given(low=st.integers(1, 1000), width=st.integers(1, 1000), data=st.data())
def test_sizes_rise_from_the_first_bound_to_the_last(low: int, width: int, data: st.DataObject):
    count = data.draw(st.integers(2, width + 1))
    sizes = spread_sizes(count, (low, low + width))
    assert len(sizes) == count
    assert (sizes[0], sizes[-1]) == (low, low + width)
    assert all(a < b for a, b in pairwise(sizes))


@pytest.mark.usefixtures("no_gpu")
def test_auto_is_the_cpu_where_there_is_no_gpu():
    assert find_device("auto") == CPU


@pytest.mark.usefixtures("h200")
def test_auto_is_the_first_gpu_where_there_is_one():
    assert find_device("auto") == CUDA


@pytest.mark.usefixtures("h200")
@pytest.mark.parametrize(("name", "index"), [("cuda", 0), ("cuda:1", 1)])
def test_a_gpu_goes_by_its_number(name: str, index: int):
    assert find_device(name) == torch.device("cuda", index)


@pytest.mark.usefixtures("h200")
def test_a_gpu_beyond_the_last_is_refused_with_the_count():
    line = r"--device cuda:2: PyTorch sees 2 CUDA devices here; choose one of cuda:0, cuda:1$"
    with pytest.raises(InputError, match=line):
        find_device("cuda:2", "a GPU is needed")


@pytest.mark.usefixtures("no_gpu")
def test_without_a_gpu_cuda_is_refused():
    with pytest.raises(InputError, match="--device cuda: PyTorch sees 0 CUDA devices here; --device cpu measures"):
        find_device("cuda")


@pytest.mark.usefixtures("no_gpu")
def test_without_a_gpu_the_advice_is_that_of_the_command():
    with pytest.raises(InputError, match=r"--device cuda: PyTorch sees 0 CUDA devices here; this needs a GPU$"):
        find_device("cuda", "this needs a GPU")


@pytest.mark.usefixtures("no_gpu")
@pytest.mark.parametrize(
    ("algorithm", "advice"),
    [("gemm", "gemm needs a CUDA device: on a CPU choose direct, smm or torch"), ("smm", "--device cpu measures")],
)
def test_an_algorithm_that_no_cpu_runs_is_not_sent_to_one(algorithm: str, advice: str):
    with pytest.raises(InputError, match=f"PyTorch sees 0 CUDA devices here; {advice}"):
        make_run("alexnet", algorithm, device="cuda")


@pytest.mark.usefixtures("no_gpu")
def test_a_gpu_that_is_not_here_is_no_device_and_no_error_where_none_is_needed():
    assert (device_here("cuda"), device_here("cuda:3"), device_here("auto")) == (None, None, CPU)


@pytest.mark.usefixtures("h200")
def test_of_a_machine_with_gpus_one_that_is_not_there_is_refused_although_none_is_needed():
    assert device_here("cuda:1") == torch.device("cuda", 1)
    with pytest.raises(InputError, match="--device cuda:2: PyTorch sees 2"):
        device_here("cuda:2")


@pytest.mark.usefixtures("no_gpu")
@pytest.mark.parametrize("find", [find_device, device_here])
@pytest.mark.parametrize("name", ["gpu", "cuda:", "cuda:x", "cuda:-1", ""])
def test_what_is_no_device_is_answered_with_those_there_are(find: Callable[[str], object], name: str):
    with pytest.raises(InputError, match="is none of auto, cpu, cuda, cuda:N"):
        find(name)


@pytest.mark.usefixtures("h200")
def test_another_card_than_asked_for_is_refused_naming_the_one_that_is_here():
    with pytest.raises(InputError, match="--gpu l40s: the card that is here is NVIDIA H200; say --gpu h200"):
        folder_gpu("l40s", CUDA)


@pytest.mark.usefixtures("h200")
def test_the_folder_has_the_short_name_however_the_card_was_called():
    assert folder_gpu("NVIDIA H200", CUDA) == "h200"


@pytest.mark.parametrize(
    ("text", "count"),
    [("0", 0), ("1048576", 2**20), ("512MB", 512_000_000), ("2GiB", 2**31), ("1.5 kib", 1536), ("3g", 3 * 10**9)],
)
def test_a_number_of_bytes_may_have_a_unit(text: str, count: int):
    assert parse_bytes("--max-workspace", text) == count


@pytest.mark.parametrize("text", ["", "-1", "many", "1XB", "1e9", "1MBit"])
def test_what_is_no_number_of_bytes_is_refused(text: str):
    with pytest.raises(InputError, match="say a number of bytes, such as 1048576, 512MB or 2GiB"):
        parse_bytes("--max-workspace", text)


@pytest.mark.parametrize(
    ("shape", "sizes", "kept", "name"),
    [
        ("480x640", (640,), "480x640", "alexnet_gemm_h200_480x640"),
        ("0640X480", (640,), "640x480", "alexnet_gemm_h200_640x480"),
        ("224x224", (224,), None, "alexnet_gemm_h200"),
    ],
)
def test_images_that_are_not_square_are_one_size_with_a_folder_of_its_own(
    shape: str, sizes: tuple[int, ...], kept: str | None, name: str
):
    run = run_elsewhere("alexnet", "gemm", gpu="h200", input_shape=shape)
    assert (run.input_sizes, run.input_shape, run.folder_name) == (sizes, kept, name)
    assert run.image_size(640) == (tuple(map(int, kept.split("x"))) if kept else 640)


@pytest.mark.parametrize(
    ("model", "gpu", "is_row"),
    [("layers.csv", "h200", True), ("layers.csv", "cpu", False), ("alexnet", "h200", False)],
)
def test_a_table_of_convolutions_on_a_gpu_is_timed_as_a_row_with_its_data_out_of_the_cache(
    model: str, gpu: str, is_row: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    Path("layers.csv").touch()
    run = run_elsewhere(model, "direct", gpu=gpu)
    assert run.evicts is run.adds_up is is_row
    asked = {name: value for name, value in plain(run).items() if name not in ("evicts", "adds_up")}
    before = {"run": asked, "environment": {}, "starts": []}  # by an older version, whose times are others
    assert SCHEMA.differences(before, run, ENVIRONMENT) == (
        ["evicts False, now True", "adds_up False, now True"] if is_row else []
    )


def test_sizes_may_be_named_one_by_one():
    run = run_elsewhere("alexnet", "gemm", gpu="h200", input_sizes=[320, 224])
    assert (run.input_sizes, run.folder_name) == ((224, 320), "alexnet_gemm_h200")
    with pytest.raises(InputError, match="--input-size 0: it must be at least 1"):
        run_elsewhere("alexnet", "gemm", gpu="h200", input_sizes=[0, 224])


@pytest.mark.parametrize("shape", ["480", "0x5", "4x", "axb", "480x640x3", "-1x5"])
def test_what_is_no_height_and_width_is_refused(shape: str):
    with pytest.raises(InputError, match="say height and width in pixels, such as 480x640"):
        parse_shape(shape)


@pytest.mark.parametrize(
    ("given", "ways"),
    [
        ({"input_sizes": [224], "input_shape": "48x64"}, "input_sizes, input_shape: these name the sizes in 2 ways"),
        ({"input_sizes": [224], "num_sizes": 3}, "input_sizes, num_sizes: these name"),
        ({"input_shape": "48x64", "num_sizes": 3, "input_size_range": (64, 96)}, "input_shape, num_sizes and input_"),
        ({"input_sizes": []}, "input_sizes has no size"),
    ],
)
def test_sizes_are_named_in_one_way(given: dict[str, Any], ways: str):
    with pytest.raises(InputError, match=f"^{ways}"):
        make_run("alexnet", "direct", device="cpu", **given)


def test_the_constructor_refuses_sizes_in_two_ways_with_a_value_error():
    with pytest.raises(ValueError, match="input_sizes, input_shape: these name the sizes in 2 ways, leave out all but"):
        UnifiedProfiler("alexnet", "direct", device="cpu", input_sizes=[224], input_shape="48x64")


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"inputs": torch.ones(1, 3, 8, 8)}, "model 'alexnet' makes no use of inputs: give them with a module alone"),
        ({"inputs": torch.ones(1, 3, 8, 8), "name": "net"}, "makes no use of inputs and name"),
        ({"batch_size": 0}, "--batch-size 0: it must be at least 1"),
    ],
)
def test_the_constructor_leaves_no_argument_unused(given: dict[str, Any], why: str):
    with pytest.raises(ValueError, match=why):
        UnifiedProfiler("alexnet", "direct", device="cpu", **given)


def test_the_constructor_refuses_sizes_beside_the_inputs_of_a_module():
    with pytest.raises(ValueError, match="one size alone, 8 px: leave out --input-size"):
        UnifiedProfiler(nn.Conv2d(3, 4, 3), "direct", inputs=torch.ones(1, 3, 8, 8), device="cpu", input_sizes=[224])


@pytest.mark.parametrize(
    ("given", "option"),
    [
        ({"input_sizes": [320]}, "--input-size"),
        ({"input_sizes": [48, 320]}, "--input-size"),
        ({"input_size_range": (64, 96), "num_sizes": 2}, "--input-range"),
        ({"input_shape": "40x48"}, "--input-shape"),
    ],
)
def test_a_model_of_one_size_refuses_others_that_are_named(given: dict[str, Any], option: str):
    model = f"{ROOT}/tests/fakes/own_models.py:pair"
    line = f"pair takes inputs of one size alone, 48 px: leave out {option}, or say --input-size 48"
    with pytest.raises(InputError, match=line):
        make_run(model, "direct", device="cpu", **given)


@pytest.mark.parametrize("given", [{}, {"num_sizes": 10}, {"input_sizes": [48]}, {"input_shape": "48x48"}])
def test_a_model_of_one_size_is_measured_at_that(given: dict[str, Any]):
    run = make_run(f"{ROOT}/tests/fakes/own_models.py:pair", "direct", device="cpu", **given)
    assert run.input_sizes == (48,)
