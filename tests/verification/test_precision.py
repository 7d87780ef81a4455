"""Verification in 16 bits and channels last: evidence and verdict, predictions, folders; on a CPU by PyTorch."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pandas as pd
import pytest
import torch
from fakes import layer, run

import run_verify
from convscope.convolution.providers.plan import Execution
from convscope.errors import InputError
from convscope.timing import summary
from convscope.verification import support, verdict
from convscope.verification.evidence import CONFIDENCE, Evidence, LayerEvidence, gather, open_subject
from convscope.verification.report import subject_title
from convscope.verification.request import SUPPORT, Verification, make_verification

HALF_KERNEL = "sm80_xmma_fprop_implicit_gemm_f16f16_f16f32_f32_nhwckrsc_nhwc_tilesize64x64x32_tensor16x8x16_execute"
NAME = "implicit precomp gemm"


def made(model: str = "alexnet", algorithm: str = "torch", size: int = 64, **settings: object) -> Verification:
    return make_verification(model, algorithm, size, device="cpu", **settings)


def evidence(*errors: float, kernel: str = HALF_KERNEL, dtype: str = "float16", **changes: object) -> Evidence:
    """Return evidence of layers with these errors in 16 bits on a GPU."""
    times = summary.summarize([1.0, 1.1, 1.2]), summary.summarize([2.0, 2.1, 2.2])
    layers = [LayerEvidence(layer(), NAME, NAME, Execution(NAME, "cudnn", 0), error, {kernel: 1}) for error in errors]
    asked = run(algorithm=NAME, device="cuda:0", math="fp32", dtype=dtype, layout="nhwc")
    found = Evidence(asked, layers, 1e-4, 1e-4, *times, summary.difference(*times, CONFIDENCE))
    return dataclasses.replace(found, **changes)


def failed(found: Evidence) -> list[str]:
    return [str(check) for check in verdict.checks(found) if check.passed is False]


def test_errors_and_kernels_of_16_bits_are_confirmed_in_16_bits_alone():
    assert failed(evidence(2e-4, 3e-4)) == []
    as_float32 = evidence(2e-4, 3e-4, dtype="float32")
    assert {line.split(":")[0] for line in failed(as_float32)} == {
        "✗ layers against float64", "✗ whole model against float64", "✗ TF32 forbidden",
    }  # fmt: skip


def test_an_error_beyond_what_the_type_rounds_is_not_confirmed():
    assert failed(evidence(2e-4, 2e-3))[0].startswith("✗ layers against float64: 1 of 2 within their tolerance")
    assert failed(evidence(2e-3, dtype="bfloat16")) == []


def test_the_verdict_says_how_many_layers_use_the_matrix_unit_and_that_tf32_does_not_apply():
    said = [str(check) for check in verdict.checks(evidence(2e-4))]
    assert "· float16: TF32 does not apply, 1 of 1 layers name tensor cores" in said
    said = [str(check) for check in verdict.checks(evidence(2e-4, kernels_missing="not permitted"))]
    assert "· float16: TF32 does not apply, kernels were not checked" in said


def test_a_deep_model_may_err_as_far_as_its_roundings_alone_move_it():
    far = evidence(2e-4, last_error=0.01, output_error=0.01)
    assert failed(far)[0].startswith("✗ whole model against float64")
    assert failed(dataclasses.replace(far, moved=0.006)) == []
    assert failed(dataclasses.replace(far, moved=0.004)) != []


@pytest.mark.parametrize(
    ("dtype", "layout"), [pytest.param("bfloat16", "nchw", marks=pytest.mark.long), ("float16", "nhwc")]
)
def test_evidence_is_gathered_in_16_bits_and_channels_last(dtype: str, layout: str):
    with open_subject(made("torchvision:resnet18", dtype=dtype, layout=layout)) as subject:
        assert subject.inputs[0].dtype == getattr(torch, dtype)
        found = gather(subject)
    assert [one.ran.provider for one in found.layers] == ["torch"] * 20
    roundoff = {"float16": 2.0**-11, "bfloat16": 2.0**-8}[dtype]
    assert roundoff / 2 < (found.moved or 0) < 40 * roundoff
    assert all(roundoff / 10 < (one.relative_error or 0) <= one.tolerance("fp32", dtype) for one in found.layers)
    whole = next(check for check in verdict.checks(found) if check.line.startswith("whole model"))
    assert whole.passed, whole.line


def test_float32_is_not_rounded_to_know_what_is_allowed():
    with open_subject(made()) as subject:
        assert gather(subject).moved is None


# ---- requests and folders


def test_a_folder_of_tables_names_data_type_and_layout():
    assert made().name == "alexnet_cpu_64px_batch1_fp32"
    assert made(dtype="bfloat16", layout="nhwc").name == "alexnet_cpu_64px_batch1_fp32_bf16_nhwc"
    assert dataclasses.replace(made(), dtype="float64").name == "alexnet_cpu_64px_batch1_fp32_fp64"


def test_the_title_names_what_is_not_float32_and_nchw():
    assert subject_title(made(dtype="float16")) == "alexnet, torch, 64 px, batch 1, fp32, float16, on a CPU"


def test_float64_is_a_data_type_of_support_only():
    with pytest.raises(InputError, match="--dtype float64 is for --support"):
        made(dtype="float64")
    assert made(algorithm="guess", question=SUPPORT, dtype="float64").dtype == "float64"


def test_an_algorithm_of_ai3_cannot_be_verified_in_16_bits(capsys: pytest.CaptureFixture[str]):
    asked = ("--model", "alexnet", "--algorithm", "smm", "--device", "cpu", "--dtype", "bfloat16")
    assert run_verify.main([*asked]) == 2
    said = capsys.readouterr().err
    assert said == (
        "run_verify.py: --dtype bfloat16: ai3 computes smm on a CPU in float32 and NCHW only: "
        "algorithm torch does, or a GPU\n"
    )


def test_the_choice_in_bfloat16_is_pytorchs_alone_on_a_cpu_and_its_rows_say_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    asked = ("--model", "alexnet", "--choice", "--device", "cpu", "--input-size", "64", "--rounds", "2")
    assert run_verify.main([*asked, "--dtype", "bfloat16", "--output-dir", str(tmp_path)]) == 0
    (folder,) = tmp_path.iterdir()
    assert folder.name == "alexnet_cpu_64px_batch1_fp32_bf16"
    for name in ("choice", "passes"):
        table = pd.read_csv(folder / f"{name}.csv")
        assert {*table["dtype"]} == {"bfloat16"}
        assert {*table["layout"]} == {"nchw"}
    assert {*pd.read_csv(folder / "choice.csv")["candidate"]} == {"torch"}


# ---- support


HOPPER = (9, 0)


@pytest.mark.parametrize(
    ("algorithm", "dtype", "layout", "status"),
    [
        ("implicit gemm", "bfloat16", "nhwc", support.OK),
        ("implicit precomp gemm", "float16", "nhwc", support.OK),
        ("fft", "float16", "nchw", support.OK),
        ("fft", "float16", "nhwc", support.TYPE),
        ("fft tiling", "bfloat16", "nchw", support.TYPE),
        ("gemm", "float16", "nhwc", support.UNKNOWN),
        ("winograd nonfused", "float16", "nhwc", support.UNKNOWN),
        ("winograd nonfused", "bfloat16", "nchw", support.OK),
        ("winograd", "float16", "nhwc", support.GENERATION),
        ("direct", "float16", "nhwc", support.NEVER),
    ],
)
def test_the_rules_know_which_algorithm_takes_which_type_and_layout(algorithm, dtype, layout, status):
    assert support.predict(support.EASY, algorithm, HOPPER, dtype, layout).status == status
