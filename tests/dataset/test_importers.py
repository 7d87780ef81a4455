"""Other people's tables as samples: each form, and what is wrong with a file by its line."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from convscope import __main__ as program
from convscope.dataset import importers, samples, totals
from convscope.errors import InputError

NEUSIGHT = (
    "OPName,Latency,Device,Torch Version,CUDNN Version,Kernel Name,Kernels,B,Input_Channel,Output_Channel,"
    "Kernel_Szie,Input_Size,Stride,Padding\n"
    'conv,1.25,Tesla P4,p2.1.0,8902,k,";void first<0, float>(x);second",38,893,326,3,5,1,1\n'
)
KLAB = 'layer,in_channels,out_channels,kernel_size,mean_ms,percentage\nfeatures.0,3,64,"(3, 3)",0.5,12.0\n'
OVERALL = (
    "model,algorithm,input_size,mean,std,min,max,power_mean_w,energy_per_inference_j\n"
    "VGG16,implicit_precomp_gemm,224,5.5,0.1,5.2,6.0,250.0,1.4\nVGG16,implicit_precomp_gemm,256,7.5,0.1,7.2,8.0,N/A,\n"
)
ABOUT = {"gpu_name": "NVIDIA L40S", "algorithm": "gemm", "model": "vgg16"}


def written(tmp_path: Path, text: str, name: str = "table.csv") -> Path:
    path = tmp_path / name
    path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    return path


@pytest.mark.parametrize("name", ["table.csv", "table.csv.gz"])
def test_a_row_of_neusight(tmp_path: Path, name: str):
    (row,) = importers.samples(written(tmp_path, NEUSIGHT, name), "neusight")
    assert (row.gpu_name, row.algorithm, row.mean_ms) == ("Tesla P4", "torch benchmark", 1.25)
    assert (row.batch_size, row.in_channels, row.out_channels, row.in_height_px, row.in_width_px) == (
        38,
        893,
        326,
        5,
        5,
    )
    assert (row.kernel_size, row.stride, row.padding, row.dilation, row.groups) == ("3x3", "1x1", "1x1", "1x1", 1)
    assert (row.dtype, row.math, row.layout, row.cudnn, row.torch) == ("float32", "fp32", "nchw", "8.9.2", "2.1.0")
    assert row.kernels == "void first<0, float>(x);second"
    assert row.run == f"neusight {name}"


def test_a_row_of_klab_has_no_sizes_of_images(tmp_path: Path):
    (row,) = importers.samples(written(tmp_path, KLAB), "klab", **ABOUT)
    assert (row.gpu_name, row.algorithm, row.model, row.layer) == ("NVIDIA L40S", "gemm", "vgg16", "features.0")
    assert (row.kernel_size, row.mean_ms, row.in_height_px, row.stride) == ("3x3", 0.5, None, None)


def test_klab_needs_to_be_told_what_the_table_does_not_say(tmp_path: Path):
    with pytest.raises(InputError, match=r"line 2: the table does not say the gpu: give it by --gpu"):
        list(importers.samples(written(tmp_path, KLAB), "klab", algorithm="gemm", model="vgg16"))


@pytest.mark.parametrize(("number", "version"), [("8902", "8.9.2"), ("7605", "7.6.5"), ("90100", "9.1.0")])
def test_the_version_of_cudnn_is_read_from_its_number(tmp_path: Path, number: str, version: str):
    (row,) = importers.samples(written(tmp_path, NEUSIGHT.replace("8902", number)), "neusight")
    assert row.cudnn == version


def test_neusight_says_its_gpu_itself(tmp_path: Path):
    with pytest.raises(InputError, match="a neusight file says its gpu, model itself"):
        list(importers.samples(written(tmp_path, NEUSIGHT), "neusight", gpu_name="Tesla T4", model="vgg16"))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (NEUSIGHT.replace("Latency", "Time"), "no neusight file: it has no column Latency"),
        (
            NEUSIGHT.replace("conv,", "linear,"),
            "line 2: OPName is 'linear': only conv, a forward convolution, is known",
        ),
        (NEUSIGHT.replace("1.25", "fast"), "line 2: could not convert string to float: 'fast'"),
        (NEUSIGHT + "conv,1\n", "line 3: it has another number of cells than the header"),
        (NEUSIGHT.removesuffix("\n") + ",1\n", "line 2: it has another number of cells than the header"),
        ("", "it has no column OPName, Latency"),
    ],
)
def test_a_file_that_is_wrong_is_refused_with_its_line(tmp_path: Path, text: str, expected: str):
    with pytest.raises(InputError, match=expected):
        list(importers.samples(written(tmp_path, text), "neusight"))


@pytest.mark.parametrize("content", [b"\xff\xfe", b"\x1f\x8b\x08 cut"])
def test_a_file_that_cannot_be_read_is_one_line(tmp_path: Path, content: bytes):
    path = tmp_path / "table.csv.gz"
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"table\.csv\.gz cannot be read"):
        list(importers.samples(path, "neusight"))


def test_the_command_writes_samples(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    out = tmp_path / "samples.csv"
    path = written(tmp_path, NEUSIGHT)
    assert program.main(["import", "--format", "neusight", str(path), "-o", str(out)]) == 0
    assert capsys.readouterr().out == f"1 sample of Tesla P4: {out}\n"
    assert samples.read([out])["mean_ms"].tolist() == [1.25]
    assert program.main(["import", "--format", "klab", str(path)]) == 2
    assert "no klab file: it has no column layer" in capsys.readouterr().err


def test_a_row_of_a_klab_overall_table_is_a_total_of_a_whole_model(tmp_path: Path):
    first, second = importers.measured_totals(written(tmp_path, OVERALL), gpu_name="NVIDIA L40S")
    assert (first.gpu_name, first.model, first.algorithm) == ("NVIDIA L40S", "vgg16", "implicit precomp gemm")
    assert (first.input_size, first.batch_size, first.dtype, first.math) == (224, 1, "float32", "tf32")
    assert (first.mean_ms, first.std_ms, first.min_ms, first.max_ms) == (5.5, 0.1, 5.2, 6.0)
    assert (first.power_w, first.energy_j) == (250.0, 1.4)
    assert (second.power_w, second.energy_j) == (None, None)


def test_an_older_overall_table_and_this_projects_own_are_read_too(tmp_path: Path):
    older = OVERALL.replace(",mean,", ",mean_ms,")
    (first, _) = importers.measured_totals(written(tmp_path, older), gpu_name="NVIDIA L40S", model="vgg19")
    assert (first.model, first.mean_ms) == ("vgg19", 5.5)
    own = (
        "model,algorithm,input_size,mean,math,status\nvgg16,gemm,224,5.5,fp32,ok\nvgg16,gemm,256,,fp32,out of memory\n"
    )
    (row,) = importers.measured_totals(written(tmp_path, own), gpu_name="NVIDIA L40S")
    assert (row.mean_ms, row.math) == (5.5, "fp32")


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (("5.5,", "fast,"), r"table.csv, line 2: could not convert string to float: 'fast'"),
        (("5.5,", "-1,"), r"line 2: mean_ms is -1.0: a measured value is above 0"),
        (("7.5,", "inf,"), r"line 3: mean_ms is inf"),
        (("250.0,1.4", "250.0,0"), r"line 2: energy_j is 0.0: a measured value is above 0"),
        (("5.5,", ","), r"line 2: it has no mean time of a pass \(column mean or mean_ms\)"),
        (("VGG16,imp", ",imp"), r"line 2: the table does not say the model: give it by --model"),
    ],
)
def test_an_overall_table_that_is_wrong_is_refused_with_its_line(
    tmp_path: Path, change: tuple[str, str], expected: str
):
    with pytest.raises(InputError, match=expected):
        list(importers.measured_totals(written(tmp_path, OVERALL.replace(*change, 1)), gpu_name="NVIDIA L40S"))


def test_the_command_writes_totals_of_overall_tables(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    out, path = tmp_path / "totals.csv", written(tmp_path, OVERALL)
    arguments = ["import", "--format", "klab", "--gpu", "NVIDIA L40S", "-o", str(out), str(path)]
    assert program.main(arguments) == 0
    assert capsys.readouterr().out == f"2 totals of whole models on NVIDIA L40S: {out}\n"
    assert [row.mean_ms for row in totals.read(out)] == [5.5, 7.5]
    layers = written(tmp_path, KLAB, "layers.csv")
    for more, expected in (
        ([str(layers)], "overall tables and layer tables become different files: import each kind by itself"),
        (["-o", str(tmp_path / "no" / "t.csv")], "t.csv cannot be written"),
        ([str(path)], "vgg16, implicit precomp gemm at 224 px stands in it twice"),
    ):
        assert program.main([*arguments, *more]) == 2
        text = capsys.readouterr().err
        assert expected in text
        assert text.count("\n") == 1
    assert program.main(["import", "--format", "klab", str(path)]) == 2
    assert "line 2: the table does not say the gpu: give it by --gpu" in capsys.readouterr().err


def test_a_file_that_is_named_twice_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path, out = str(written(tmp_path, KLAB)), tmp_path / "samples.csv"
    told = ["--gpu", "NVIDIA L40S", "--algorithm", "gemm", "--model", "vgg16", "-o", str(out)]
    assert program.main(["import", "--format", "klab", path, path, *told]) == 2
    assert f"{path}, {path}: 1 sample more than once: name each file once" in capsys.readouterr().err
    assert not out.exists()


def test_a_file_that_is_imported_is_not_written_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = written(tmp_path, KLAB)
    told = ["--gpu", "NVIDIA L40S", "--algorithm", "gemm", "--model", "vgg16", "-o", str(path)]
    assert program.main(["import", "--format", "klab", str(path), *told]) == 2
    expected = f"convscope import: -o {path}: this command reads it: name another file\n"
    assert capsys.readouterr() == ("", expected)
    assert path.read_text() == KLAB


def test_the_place_of_what_is_missing_is_said_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = written(tmp_path, KLAB)
    assert program.main(["import", "--format", "klab", str(path)]) == 2
    assert capsys.readouterr().err.count("line 2") == 1
