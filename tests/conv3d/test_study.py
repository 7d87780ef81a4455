"""The 3-D study on a CPU: what is verified, what fails, what is written and drawn."""

from __future__ import annotations

import dataclasses
import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from fakes import layer3d

import run_conv3d
from convscope.conv3d import comparison, implementations, report
from convscope.conv3d.layersets import load
from convscope.conv3d.request import Conv3d
from convscope.conv3d.rows import Conv3dRow
from convscope.convolution.layer import Layer
from convscope.convolution.roofline import Ceilings
from convscope.convolution.sources.table import columns
from convscope.errors import InputError
from convscope.kernels import descriptors
from convscope.kernels.autotune import BlockCache
from convscope.kernels.conv3d import catalogue, layout
from convscope.kernels.conv3d.copies import inputs
from convscope.kernels.conv3d.layout import Blocks3d
from convscope.kernels.conv3d.tuned import candidates
from convscope.timing import summary

LAYER = layer3d(6, 5, (4, 5, 6), (3, 3, 2), batch=2, padding=(1, 1, 0))
TINY = ",".join(columns(3)) + "\nfirst,2,4,8,6,6,6,3,1,1,1,1\nsecond,2,8,16,5,5,5,1x3x3,1x2x2,0x1x1,1,2\n"


def test_ratios_are_beside_the_fastest_of_cudnn_and_of_pytorch_in_the_same_layout():
    times = {
        "ncdhw": {"gemm": 2.0, "cudnn gemm": 4.0, "cudnn implicit gemm": 3.0, "torch": 5.0, "torch benchmark": 1.0,
                  "torch channels last": 0.5, "direct": None},
        "ndhwc": {"gemm": 1.0, "torch": 2.0, "torch benchmark": 3.0},
    }  # fmt: skip
    rows = [
        Conv3dRow("a", 0, name, "", layout, median_ms=time, packing_ms=3.0 if name == "gemm" else None)
        for layout, some in times.items()
        for name, time in some.items()
    ]
    found = {(row.layout, row.implementation): row for row in comparison.with_ratios(rows)}
    gemm = found["ncdhw", "gemm"]
    assert (gemm.ratio_to_cudnn_best, gemm.cudnn_best) == (1.5, "cudnn implicit gemm")
    assert (gemm.ratio_to_torch_best, gemm.torch_best) == (0.25, "torch channels last")
    assert gemm.ratio_with_packing == 0.1
    assert found["ncdhw", "direct"].ratio_to_cudnn_best is None
    last = found["ndhwc", "gemm"]
    assert (last.ratio_to_cudnn_best, last.ratio_to_torch_best, last.torch_best) == (None, 2.0, "torch")
    assert found["ndhwc", "torch"].ratio_with_packing is None


def test_packing_is_counted_for_both_sides():
    rows = [
        Conv3dRow("a", 0, "gemm", "", "ncdhw", median_ms=2.0, packing_ms=2.0),
        Conv3dRow("a", 0, "torch channels last", "", "ncdhw", median_ms=1.0, packing_ms=5.0),
        Conv3dRow("a", 0, "torch", "", "ncdhw", median_ms=3.0),
    ]
    gemm, last, plain = comparison.with_ratios(rows)
    assert (gemm.ratio_to_torch_best, gemm.ratio_with_packing) == (0.5, 0.75)
    assert last.ratio_with_packing == 0.5
    assert plain.ratio_with_packing is None


@pytest.mark.parametrize("channels", [1, 4])
def test_tensors_in_channels_last_say_so_by_their_strides(channels: int):
    layer = layer3d(channels, 8, (5, 6, 7), (3, 3, 3))
    x, weight = comparison.tensors(layer.convolution("float32", "fp32", "nhwc"), torch.device("cpu"), 0)
    assert x.stride() == (5 * 6 * 7 * channels, 1, 6 * 7 * channels, 7 * channels, channels)
    assert weight.stride() == (27 * channels, 1, 9 * channels, 3 * channels, channels)
    other = comparison.tensors(layer.convolution("float32", "fp32"), torch.device("cpu"), 0)
    assert torch.equal(x, other[0])
    assert torch.equal(weight, other[1])
    assert other[0].is_contiguous()


def test_an_output_in_another_layout_is_not_compared(tmp_path: Path):
    class Planar(implementations.Implementations):
        def prepare(self, *arguments: Any, **options: Any) -> implementations.Prepared:
            ready = super().prepare(*arguments, **options)
            return dataclasses.replace(ready, call=lambda x: ready.call(x).contiguous())

    asked = Conv3d("x", ("torch",), "cpu", "cpu", math="fp32", compare=False, verify=True)
    layer = layer3d(4, 8, (5, 6, 7), (3, 3, 3))
    with Planar(torch.device("cpu"), BlockCache(tmp_path / "tuned.json", Blocks3d)) as made:
        found = [comparison.LayerComparison(asked, layer, layout, made, None) for layout in ("ncdhw", "ndhwc")]
        for each in found:
            each.run()
    (planar,), (last,) = (each.rows for each in found)
    assert planar.status == "ok"
    assert (last.status, last.reason) == ("unsupported", "its output is not in NDHWC here")


def test_a_folder_of_before_there_were_layouts_is_added_to_and_drawn(folder: Path, tmp_path: Path):
    out = shutil.copytree(folder, tmp_path / "out")
    for path in out.glob("*.png"):
        path.unlink()
    document = json.loads((out / "run.json").read_text())
    del document["conv3d"]["layouts"]
    (out / "run.json").write_text(json.dumps(document | {"schema_version": 2}))
    for path in out.glob("*.csv"):
        table = pd.read_csv(path)
        first = table[table["layout"] == "ncdhw"].drop(columns="layout")
        first.to_csv(path, index=False)
    asked = ["--params", str(folder.parent / "tiny.csv"), "--implementation", "torch", "--device", "cpu", "--plots"]
    asked += ["--compare", "--measure", "12", "--warmup", "1", "--layout", "ncdhw"]
    assert run_conv3d.main([*asked, "--output-dir", str(out)]) == 0
    rows = pd.read_csv(out / "conv3d.csv")
    assert rows["layout"].isna().sum() == 4
    assert (rows["layout"] == "ncdhw").sum() == 2
    assert {path.name for path in out.glob("*.png")} == {"violins.png", "relative.png", "roofline.png"}


def test_the_interval_of_a_median_is_of_ranks():
    assert summary.median_interval_ms(list(range(5))) is None
    assert summary.median_interval_ms([float(time) for time in range(6)]) == (0.0, 5.0)
    assert summary.median_interval_ms([float(time) for time in range(100)]) == (39.0, 60.0)


def test_the_older_names_are_understood():
    assert implementations.find("directConvNCDHWtileIC,torch_benchmark") == ("direct tiled", "torch benchmark")
    assert implementations.older_names("directconvncdhwtileic, torch,implicitGemmdace") == (
        "directConvNCDHWtileIC is taken as direct tiled: written by hand, not derived by DaCe",
        "implicitGemmdace is taken as gemm: tuned by timing, with the copy engine; there DaCe optimised it",
    )
    assert implementations.find("all") == implementations.NAMES
    with pytest.raises(InputError, match="choose all, or some of direct, direct merged"):
        implementations.find("gemm,nothing")


def test_every_triton_kernel_comes_in_tutorial_order():
    firsts = [(module.__doc__ or "").split(".")[0] for module in catalogue.KERNELS.values()]
    assert firsts == [f"{number} of 9" for number in range(1, 10)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("conv3d")
    (made / "tiny.csv").write_text(TINY)
    asked = ["--paramscsv", str(made / "tiny.csv"), "--implementation", "torch,implicitGemmdace"]
    asked += ["--verify", "--compareprof"]
    asked += ["--enableplots", "--stress", "2", "--device", "cpu", "--measure", "12", "--warmup", "1"]
    assert run_conv3d.main([*asked, "--output-dir", str(made / "out")]) == 0
    return made / "out"


def test_a_call_leaves_tables_and_what_they_depend_on(folder: Path):
    rows = pd.read_csv(folder / "conv3d.csv").set_index(["layer", "implementation", "layout"])
    assert len(rows) == 8
    row = rows.loc[("second", "torch", "ncdhw")]
    assert row["status"] == "ok"
    assert row["median_low_ms"] <= row["median_ms"] <= row["median_high_ms"]
    assert row["elementwise_error"] < row["tolerance"]
    assert row["flops"] == 2 * 2 * 16 * 5 * 3 * 3 * 4 * 9
    assert rows.loc[("second", "gemm", "ncdhw"), "status"] == "unsupported"
    assert len(pd.read_csv(folder / "samples.csv")) == 12 * (rows["status"] == "ok").sum()
    stressed = pd.read_csv(folder / "stress.csv")
    assert stressed["layout"].tolist() == ["ncdhw"] * 2 + ["ndhwc"] * 2
    document = json.loads((folder / "run.json").read_text())
    assert document["conv3d"]["implementations"] == ["gemm", "torch"]
    assert document["ceilings"]["copy_gbps"] > 0


def test_pictures_are_written(folder: Path):
    assert {path.name for path in folder.glob("*.png")} == {"violins.png", "relative.png", "roofline.png"}
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in folder.glob("*.png"))


def test_bad_input_leaves_an_earlier_calls_figures_alone(folder: Path):
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    asked = ["--params", "cosmoflow", "--device", "cpu", "--load-tuned", str(folder / "no.json")]
    assert run_conv3d.main([*asked, "--output-dir", str(folder)]) == 2
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def call(folder: Path, out: Path, *more: str) -> int:
    asked = ["--params", str(folder.parent / "tiny.csv"), "--implementation", "torch", "--device", "cpu"]
    return run_conv3d.main([*asked, "--measure", "12", "--warmup", "1", "--output-dir", str(out), *more])


def tables(folder: Path) -> dict[str, pd.DataFrame]:
    return {path.name: pd.read_csv(path) for path in sorted(folder.glob("*.csv"))}


def test_a_new_call_adds_to_an_earlier_one_and_measures_nothing_twice(folder: Path, tmp_path: Path):
    before = tables(shutil.copytree(folder, tmp_path / "out"))
    assert call(folder, tmp_path / "out", "--verify", "--compare", "--stress", "3") == 0
    after = tables(tmp_path / "out")
    assert after.keys() == before.keys()
    for name in ("conv3d.csv", "samples.csv"):
        pd.testing.assert_frame_equal(after[name], before[name])
    pd.testing.assert_frame_equal(after["stress.csv"][:4], before["stress.csv"])
    assert after["stress.csv"][["round", "implementation"]].values.tolist()[4:] == [[2, "torch"]]
    assert {path.name for path in folder.glob("*.png")} <= {path.name for path in (tmp_path / "out").iterdir()}
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_an_overwrite_measures_what_is_asked_for_and_keeps_all_that_was_there(folder: Path, tmp_path: Path):
    before = tables(shutil.copytree(folder, tmp_path / "out"))
    assert call(folder, tmp_path / "out", "--stress", "1", "--overwrite") == 0
    (kept,) = tmp_path.glob("out/before-*")
    pd.testing.assert_frame_equal(tables(kept)["stress.csv"], before["stress.csv"])
    after = tables(tmp_path / "out")
    pd.testing.assert_frame_equal(after["conv3d.csv"], before["conv3d.csv"])
    assert len(after["stress.csv"]) == 4


def test_a_layer_that_was_only_timed_is_verified_by_a_later_call_and_keeps_a_time(folder: Path, tmp_path: Path):
    assert call(folder, tmp_path / "out", "--compare") == 0
    assert pd.read_csv(tmp_path / "out" / "conv3d.csv")["elementwise_error"].isna().all()
    assert call(folder, tmp_path / "out", "--verify") == 0
    after = pd.read_csv(tmp_path / "out" / "conv3d.csv")
    assert after[["elementwise_error", "median_ms"]].notna().all(axis=None)
    assert len(list(tmp_path.glob("out/before-*"))) == 1


def test_another_layer_set_of_the_same_name_does_not_join_a_folder(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    shutil.copytree(folder, tmp_path / "out")
    (tmp_path / "tiny.csv").write_text(TINY.replace("first,2,4", "first,2,6"))
    asked = ["--params", str(tmp_path / "tiny.csv"), "--implementation", "torch", "--device", "cpu"]
    assert run_conv3d.main([*asked, "--output-dir", str(tmp_path / "out")]) == 2
    assert "holds a run with other settings" in capsys.readouterr().err


@pytest.mark.long
def test_a_call_that_is_told_to_stop_keeps_what_it_has(tmp_path: Path):
    asked = ["--implementation", "torch", "--stress", "100000", "--device", "cpu", "--output-dir", str(tmp_path)]
    running = subprocess.Popen([sys.executable, run_conv3d.__file__, *asked], stderr=subprocess.PIPE, text=True)
    deadline_s = time.monotonic() + 120
    while not (tmp_path / "stress.csv").exists():
        assert time.monotonic() < deadline_s
        time.sleep(0.1)
    running.send_signal(signal.SIGUSR2)
    _, said = running.communicate(timeout=60)
    assert running.returncode == 85
    assert "what was measured is in" in said.splitlines()[-1]
    assert len(pd.read_csv(tmp_path / "stress.csv")) >= 10
    assert {path.name for path in tmp_path.iterdir()} == {"run.json", "stress.csv"}


def test_means_say_over_how_many_layers_each_is():
    rows = [
        Conv3dRow("a", 0, "gemm", "", ratio_to_cudnn_best=2.0, ratio_to_roofline=0.5),
        Conv3dRow("b", 1, "gemm", "", ratio_to_cudnn_best=8.0),
    ]
    (line,) = report.means(rows)
    assert "4.000 of cuDNN's best (2 layers, 2.00 to 8.00)" in line
    assert "0.500 of the roofline (1 layer, 0.50 to 0.50)" in line


@pytest.mark.parametrize("intensity", [(6.75, 6.75), (48.0, 1500.0), (1000.0, 1500.0)])
def test_a_roof_rises_to_its_ridge_and_is_level_from_there(intensity: tuple[float, float]):
    limits = Ceilings(4000.0, {"fp32": 50.0, "tf32": 400.0, "fp16": 800.0})
    lines = report.roofs(limits, ["fp32", "tf32"], pd.Series(intensity))
    assert lines.keys() == {"fp32", "tf32"}
    for name, ((left, ridge, right), rates) in lines.items():
        assert left < min(ridge, *intensity)
        assert right > max(ridge, *intensity)
        assert ridge == pytest.approx(limits.tflops[name] / 4)
        assert rates == pytest.approx([left * 4, limits.tflops[name], limits.tflops[name]])


def test_bars_and_breakdown_of_several_implementations_are_drawn(tmp_path: Path):
    rows = [
        Conv3dRow(layer, at, name, "", layout, median_ms=1.0, ratio_to_torch_best=ratio, tflops=50 * ratio, flops=10**9,
                  bytes=10**7, arithmetic="tf32")
        for at, layer in enumerate(("conv1", "conv2"))
        for name, ratio in (("gemm", 1.4 - at), ("cudnn gemm", 1.0), ("torch", 0.9))
        for layout in ("ncdhw", "ndhwc")
    ]  # fmt: skip
    kinds = [
        {"implementation": name, "kind": kind, "median_ms": time, "layout": "ndhwc"}
        for name in ("gemm", "torch")
        for kind, time in (("convolution", 3.0), ("pooling", 1.0))
    ]
    table = pd.DataFrame([vars(row) for row in rows])
    limits = Ceilings(4000.0, {"fp32": 50.0, "tf32": 400.0})
    made = report.draw(table, pd.DataFrame(), pd.DataFrame(kinds), limits, tmp_path, lambda line: None)
    assert [path.name for path in made] == ["relative.png", "roofline.png", "breakdown.png"]
    assert all(path.stat().st_size > 5000 for path in made)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (["--first-layer", "3", "--last-layer", "3"], "cosmoflow has the layers 0 to 4"),
        (["--last-layer", "9"], "at most 5"),
        (["--params", "nothing"], "choose one of c3d"),
        (["--implementation", "fast"], "choose all, or some of"),
        (["--dtype", "float16"], "needs a CUDA device"),
        (["--math", "tf32"], "needs a CUDA device"),
        (["--stress", "0"], "--stress 0: it must be at least 1"),
        (["--budget", "nan"], "--budget nan"),
        (["--load-tuned", "/dev/null"], "it holds no choices"),
        (["--load-tuned", "/nowhere/tuned.json"], "there is no such file"),
        (["--batch-size", "0"], "--batch-size 0: it must be at least 1"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    asked: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    assert run_conv3d.main(["--device", "cpu", "--output-dir", str(tmp_path / "out"), *asked]) == 2
    told = capsys.readouterr().err
    assert said in told
    assert len(told.splitlines()) == 1


def test_what_is_there_is_listed(capsys: pytest.CaptureFixture[str]):
    assert run_conv3d.main(["--list"]) == 0
    assert "gemm split-k" in capsys.readouterr().out


def tf32(batch: int, channels: int, filters: int, side: int, **more: object) -> object:
    layer = layer3d(channels, filters, (side,) * 3, (3, 3, 3), batch=batch, padding=(1, 1, 1), **more)
    return layer.convolution("float32", "tf32")


@pytest.mark.parametrize("layer", load("cosmoflow"), ids=lambda layer: layer.name)
def test_candidates_are_few_and_different_and_have_every_variant(layer: Layer):
    found = candidates.candidates(layer.convolution("float32", "tf32"))
    of_matrix_unit = {"boxes", "slices", "pipelined"}
    assert 5 <= len(found) == len(set(found)) <= sum(candidates.TRIED[variant] for variant in of_matrix_unit)
    assert {blocks.variant for blocks in found} == of_matrix_unit


@pytest.mark.parametrize("layer", load("cosmoflow"), ids=lambda layer: layer.name)
def test_without_the_matrix_unit_candidates_are_few_and_different_and_planar(layer: Layer):
    found = candidates.candidates(layer.convolution("float32", "fp32"))
    assert 2 <= len(found) == len(set(found)) <= candidates.TRIED["planar"]
    assert {blocks.variant for blocks in found} == {"planar"}


def test_a_small_deep_layer_has_its_sum_split_and_a_large_one_not():
    assert candidates.candidates(tf32(4, 256, 512, 8))[0].splits > 1
    assert candidates.candidates(tf32(4, 32, 64, 64))[0].splits == 1


@pytest.mark.parametrize(
    ("size", "stride", "variants"),
    [
        (16, (1, 2, 2), ("boxes", "pipelined", "slices")),
        (16, (2, 1, 1), ("boxes", "pipelined")),  # slices are of taps in depth that see neighbours
        (9, (8, 8, 8), ("pipelined",)),  # in phases it would be 16 x 16 x 16
    ],
)
def test_strides_leave_what_needs_no_large_copy(size: int, stride: tuple[int, ...], variants: tuple[str, ...]):
    strided = tf32(4, 32, 64, size, stride=stride)
    assert candidates.variants(strided) == variants
    assert {blocks.variant for blocks in candidates.candidates(strided)} == set(variants)


def test_without_tuning_an_input_is_not_copied_for_a_stride_where_it_can_be_read_where_it_lies():
    even = dataclasses.replace(tf32(4, 32, 64, 64, stride=(2, 2, 2)), layout="nhwc", dtype="float16")
    odd = dataclasses.replace(tf32(4, 32, 64, 65, stride=(2, 2, 2)), layout="nhwc", dtype="float16")
    assert [inputs.is_copied(even), inputs.is_copied(odd)] == [False, False]
    assert [inputs.is_copied(even, by_engine=True), inputs.is_copied(odd, by_engine=True)] == [False, True]
    assert candidates.candidates(even)[0].variant == "boxes"
    assert candidates.candidates(odd)[0].variant == "pipelined"


@pytest.mark.parametrize("rounds", [True, False])
def test_in_tf32_an_input_is_not_copied_if_the_copy_engine_rounds(monkeypatch: pytest.MonkeyPatch, rounds: bool):
    monkeypatch.setattr(descriptors, "can_round", lambda device=None: rounds)
    last = dataclasses.replace(tf32(4, 32, 64, 64, stride=(2, 2, 2)), layout="nhwc")
    shapes = last, dataclasses.replace(last, layout="nchw"), dataclasses.replace(last, input=(4, 32, 65, 65, 65))
    assert all(inputs.is_copied(shape) for shape in shapes)
    assert [inputs.is_copied(shape, by_engine=True) for shape in shapes] == [not rounds, True, True]


def test_a_row_of_taps_of_a_first_layer_is_one_tap_of_many_channels():
    seen = layout.problem(tf32(4, 4, 32, 128))
    assert (seen.folded, seen.kernel, seen.channels, seen.taps) == (True, (3, 3, 1), 16, 9)
    assert seen.pitch == (128 * 128 * 131 * 4, 128 * 131 * 4, 131 * 4, 4)
