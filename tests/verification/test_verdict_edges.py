"""Verdicts at their edges: errors that are just allowed, lists that are just full, each line whole."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
from fakes import layer, run
from fakes.kernel_names import CUTLASS_TF32, FFT_KERNEL, GROUPED_DIRECT, IMPLICIT_KERNEL, XMMA_FFMA, XMMA_TF32

from convscope.convolution.providers.plan import Execution
from convscope.timing import summary
from convscope.timing.summary import Difference
from convscope.verification import verdict
from convscope.verification.evidence import Evidence, LayerEvidence
from convscope.verification.verdict import Finding

FP32 = (16 + 8 * 12) * 2.0**-24  # the tolerance of the fakes' layer
TF32 = FP32 + 2 * 2.0**-11
TIMES = summary.summarize([1.0, 1.1, 1.2]), summary.summarize([2.0, 2.1, 2.2])


def one(
    algorithm: str, *kernels: str, ran: str | None = None, provider: str = "cudnn", error: float | None = 1e-7,
    carried: str | None = None, **changes: Any,
) -> LayerEvidence:  # fmt: skip
    execution = Execution(ran or algorithm, provider, 0)
    counts = dict.fromkeys(kernels, 1)
    return LayerEvidence(layer(**changes), algorithm, carried or algorithm, execution, error, counts)


def evidence(*layers: LayerEvidence, **changes: Any) -> Evidence:
    names = {"algorithm": layers[0].expected, "device": "cuda:0", "math": "fp32", "provider": None}
    asked = run(**{name: changes.pop(name, usual) for name, usual in names.items()})
    made = Evidence(asked, layers, 1e-7, 1e-7, *TIMES, Difference(-1.0, 0.5))
    return dataclasses.replace(made, **changes)


def line(found: Evidence, start: str) -> Finding:
    """Return the finding that begins with these words."""
    (only,) = (check for check in verdict.checks(found) if check.line.startswith(start))
    return only


@pytest.mark.parametrize(("count", "listed"), [(1, "l0"), (4, "l0, l1, l2, l3"), (5, "l0, l1, l2, l3 and 1 more")])
def test_four_layers_are_listed_and_the_others_counted(count: int, listed: str):
    wrong = [one("gemm", carried="torch", name=f"l{index}") for index in range(count)]
    found = line(evidence(*wrong, one("gemm")), "replaced")
    assert found == Finding(False, f"replaced: 1 of {count + 1} convolutions carry the algorithm's name; not {listed}")


def test_names_that_are_all_right_are_counted():
    assert line(evidence(one("gemm"), one("gemm")), "replaced") == Finding(
        True, "replaced: 2 of 2 convolutions carry the algorithm's name"
    )


def test_the_marks_are_a_check_a_cross_and_a_dot():
    assert [str(Finding(passed, "it")) for passed in (True, False, None)] == ["✓ it", "✗ it", "· it"]


def test_what_is_not_checked_speaks_against_nothing():
    assert verdict.confirmed([Finding(None, ""), Finding(True, "")])
    assert verdict.confirmed([])
    assert not verdict.confirmed([Finding(True, ""), Finding(False, "")])


def test_the_identifiers_are_counted_with_cudnns_numbers_most_first():
    ran = [one("gemm"), one("direct", provider="triton"), one("gemm"), one("torch", provider="torch")]
    found = line(evidence(*ran), "identifier")
    assert found == Finding(
        True, "identifier: 2 layers ran cudnn's gemm (2), 1 layer ran triton's direct, 1 layer ran PyTorch's own"
    )


@pytest.mark.parametrize(
    ("provider", "ran", "passed"),
    [
        (None, "cudnn", True),
        (None, "triton", True),
        ("cudnn", "cudnn", True),
        ("cudnn", "triton", False),
        ("triton", "triton", True),
        ("triton", "cudnn", False),
    ],
)
def test_the_library_that_was_asked_for_has_to_run(provider: str | None, ran: str, passed: bool):
    found = line(evidence(one("winograd", provider=ran, name="stem"), provider=provider), "identifier")
    assert found.passed is passed
    assert found.line.endswith("; not what was asked for: stem") is not passed


@pytest.mark.parametrize(("provider", "passed"), [("ai3", True), ("triton", False)])
def test_a_processor_has_its_own_library(provider: str, passed: bool):
    found = evidence(one("direct", provider=provider), device="cpu")
    assert line(found, "identifier").passed is passed


@pytest.mark.parametrize("name", ["guess", "torch"])
def test_names_that_ask_for_no_identifier_have_none_that_is_wrong(name: str):
    assert line(evidence(one(name, ran="gemm")), "identifier").passed


def test_an_algorithm_of_the_same_library_is_not_the_one_asked_for():
    assert not line(evidence(one("fft", ran="gemm")), "identifier").passed


def test_layers_with_kernels_that_do_not_belong_are_counted_by_kernel_most_first():
    layers = [one("fft", GROUPED_DIRECT)] + [one("fft", IMPLICIT_KERNEL)] * 2 + [one("fft", FFT_KERNEL)]
    found = verdict.checks(evidence(*layers))
    assert found[2] == Finding(False, "kernels: 1 of 4 layers launched what their algorithm may launch")
    assert [check.line for check in found[3:5]] == [
        "fft: 2 of 4 layers ran implicit_convolve_sgemm, a kernel of the family implicit GEMM",
        "fft: 1 of 4 layers ran cudnn::cnn::conv2d_grouped_direct_kernel, a kernel of the family direct",
    ]
    assert [check.passed for check in found[3:5]] == [False, False]


def test_the_counts_of_an_algorithm_are_of_its_own_layers():
    layers = [one("fft", GROUPED_DIRECT), one("gemm", IMPLICIT_KERNEL), one("gemm", "im2col")]
    assert {text.split(" layers")[0] for text in verdict.disagreements(layers)} == {"fft: 1 of 1", "gemm: 1 of 2"}


def test_an_error_that_is_just_allowed_is_within_its_tolerance():
    good, more = one("gemm", error=FP32, name="edge"), one("gemm", error=math.nextafter(FP32, 1.0), name="over")
    lesser = one("gemm", error=FP32 / 2)
    assert line(evidence(lesser, good, lesser), "layers against") == Finding(
        True, f"layers against float64: 3 of 3 within their tolerance (nearest to it: edge, {FP32:.1e} of {FP32:.1e})"
    )
    assert line(evidence(good, more), "layers against") == Finding(
        False,
        f"layers against float64: 1 of 2 within their tolerance (nearest to it: over, {FP32:.1e} of {FP32:.1e}); "
        "not over",
    )


def test_nearest_to_its_tolerance_is_a_share_and_not_a_distance():
    winograd = one("winograd", error=2 * FP32 * 0.6, name="wide")
    assert (
        "nearest to it: narrow" in line(evidence(winograd, one("gemm", error=FP32 * 0.7, name="narrow")), "layers").line
    )


@pytest.mark.parametrize("error", [math.nan, math.inf])
def test_an_error_that_is_no_number_is_the_worst(error: float):
    found = line(
        evidence(one("gemm", error=9 * FP32), one("gemm", error=error, name="odd"), one("gemm")), "layers against"
    )
    assert "nearest to it: odd" in found.line
    assert found.passed is False


def test_layers_without_a_reference_are_not_counted_and_without_any_nothing_is_checked():
    assert "1 of 1 within" in line(evidence(one("gemm", error=None), one("gemm")), "layers against").line
    assert line(evidence(one("gemm", error=None)), "layers against") == Finding(
        None, "layers against float64: not checked, every reference is zero"
    )


def test_a_model_may_err_by_the_root_of_its_layers_squares():
    allowed = math.sqrt(FP32**2 + FP32**2)
    found = evidence(one("gemm"), one("gemm"), last_error=allowed, output_error=1e-8)
    assert line(found, "whole model") == Finding(
        True,
        f"whole model against float64: {allowed:.1e} at the last convolution, 1.0e-08 at the output, "
        f"allowed {allowed:.1e} over 2 layers",
    )
    over = dataclasses.replace(found, output_error=math.nextafter(allowed, 1.0))
    assert line(over, "whole model").passed is False


def test_a_model_is_checked_where_there_is_a_reference():
    found = evidence(one("gemm"), last_error=None, output_error=1.0)
    assert line(found, "whole model").passed is False
    assert "at the last convolution" not in line(found, "whole model").line
    assert line(dataclasses.replace(found, output_error=None), "whole model") == Finding(
        None, "whole model against float64: not checked, the references are zero"
    )


@pytest.mark.parametrize(
    ("error", "coarse"), [(None, 0), (FP32, 0), (math.nextafter(FP32, 1.0), 1), (TF32, 1), (math.nan, 1)]
)
def test_an_error_above_that_of_float32_counts_as_one_of_tf32(error: float | None, coarse: int):
    found = line(evidence(one("gemm", error=error, name="it")), "TF32 forbidden")
    assert found.passed is (coarse == 0)
    assert f"0 of 1 layers name tensor cores, {coarse} of 1 have errors above those of float32" in found.line


def test_a_layer_with_tensor_cores_and_their_errors_is_named_once():
    both = one("implicit precomp gemm", XMMA_TF32, error=TF32, name="both")
    coarse = one("implicit precomp gemm", XMMA_FFMA, error=TF32, name="coarse")
    assert line(evidence(both, coarse), "TF32 forbidden") == Finding(
        False,
        "TF32 forbidden: 1 of 2 layers name tensor cores, 2 of 2 have errors above those of float32; "
        "this does not fit both, coarse",
    )


def test_errors_of_tf32_fit_where_it_is_permitted_and_kernels_are_not_known():
    unknown = dataclasses.replace(one("gemm", error=TF32), kernels=None)
    found = line(evidence(unknown, math="tf32", kernels_missing="CUPTI is not permitted"), "TF32 permitted")
    assert found == Finding(True, "TF32 permitted: 1 of 1 have errors above those of float32")


@pytest.mark.parametrize(
    ("apart", "words"),
    [
        (Difference(0.25, 0.125), "slower (+0.2500 ± 0.1250 ms at 99 %)"),
        (Difference(-0.25, 0.125), "faster (-0.2500 ± 0.1250 ms at 99 %)"),
        (Difference(0.25, 0.25), "a tie (+0.2500 ± 0.2500 ms at 99 %)"),
    ],
)
def test_the_time_is_slower_faster_or_a_tie(apart: Difference, words: str):
    found = line(evidence(one("gemm"), time=apart), "time")
    assert found == Finding(None, f"time: 1.1000 ms a pass, PyTorch's own 2.1000 ms: {words}")


def test_the_last_line_says_what_the_verdict_rests_on_first():
    fell_back = [one("implicit precomp gemm")] * 2
    found = evidence(one("fft"), *fell_back, one("gemm"), kernels_missing="CUPTI is not permitted")
    assert verdict.last_line(found, []) == (
        "CONFIRMED (by names, identifiers and outputs; kernels were not checked; "
        "2 of 4 layers as implicit precomp gemm instead; 1 of 4 layers as gemm instead)"
    )
    assert verdict.last_line(evidence(one("fft")), []) == "CONFIRMED"
    assert verdict.last_line(found, [Finding(False, "")]) == "NOT CONFIRMED"


def remarks(*layers: LayerEvidence) -> list[str]:
    return [
        found.line for found in verdict.checks(evidence(*layers)) if found.line.startswith("implicit precomp gemm: ")
    ]


def test_remarks_count_the_layers_of_implicit_precomp_gemm_alone():
    name = "implicit precomp gemm"
    pointwise = {"kernel": (1, 1), "padding": (0, 0)}
    layers = [one(name, IMPLICIT_KERNEL), one(name, XMMA_FFMA), one("implicit gemm", IMPLICIT_KERNEL)]
    assert remarks(*layers) == [f"{name}: 1 of 2 layers ran implicit gemm's kernel: nothing was precomputed"]
    layers = [one(name, CUTLASS_TF32, **pointwise), one(name, CUTLASS_TF32, XMMA_FFMA, **pointwise)]
    assert remarks(*layers) == [f"{name}: 1 of 2 layers have 1×1 kernels and ran as a bare matrix product"]
    assert remarks(one(name, XMMA_FFMA)) == []
    assert remarks(dataclasses.replace(one(name), kernels=None), one("fft", IMPLICIT_KERNEL)) == [
        f"{name}: 1 of 1 layers ran no kernel that shows it"
    ]
