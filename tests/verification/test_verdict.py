"""Verdicts on evidence: some recorded on an H200, some made by hand, and some of it lies."""

from __future__ import annotations

import dataclasses
import gzip
import json
from typing import Any

import pytest
from fakes import DATA, layer, run
from fakes.kernel_names import CUTLASS_TF32, FFT_KERNEL, GROUPED_DIRECT, IMPLICIT_KERNEL, XMMA_FFMA, XMMA_TF32

from convscope.convolution import models
from convscope.convolution.providers.plan import Execution
from convscope.timing import summary, trace
from convscope.verification import verdict
from convscope.verification.evidence import CONFIDENCE, Evidence, LayerEvidence

GOLDEN = DATA / "trace_resnet50_tf32_h200.json.gz"
FP32_ERROR, TF32_ERROR = 5e-7, 3e-4


def one(
    algorithm: str, *kernels: str, ran: str | None = None, provider: str = "cudnn", error: float = FP32_ERROR,
    **changes: Any,
):  # fmt: skip
    """Return a layer's evidence: this algorithm asked for, `ran` (or the same) run, these kernels seen."""
    execution = Execution(ran or algorithm, provider, 0)
    return LayerEvidence(layer(**changes), algorithm, algorithm, execution, error, dict.fromkeys(kernels, 1))


def evidence(*layers: LayerEvidence, algorithm: str | None = None, **changes: Any) -> Evidence:
    """Return evidence of a model with these layers, in fp32 on a GPU, but for the changes."""
    times = summary.summarize([1.0, 1.1, 1.2]), summary.summarize([2.0, 2.1, 2.2])
    asked = run(algorithm=algorithm or layers[0].expected, device="cuda:0", math=changes.pop("math", "fp32"))
    made = Evidence(asked, layers, 1e-6, 1e-6, *times, summary.difference(*times, CONFIDENCE))
    return dataclasses.replace(made, **changes)


def recorded(algorithm: str) -> Evidence:
    """Return what was recorded of ResNet-50 with implicit precomp gemm in tf32, under the name of an algorithm."""
    traces = trace.matched(json.loads(gzip.decompress(GOLDEN.read_bytes()))).layers()
    execution = Execution(algorithm, "cudnn", 0)
    return evidence(
        *(
            LayerEvidence(described, algorithm, algorithm, execution, TF32_ERROR, found.kernels)
            for described, found in zip(models.convolutions("resnet50", 224), traces, strict=True)
        ),
        math="tf32",
        last_error=1e-3,
        output_error=1e-3,
    )


def lines(found: Evidence) -> list[str]:
    """Return the lines of the verdict on evidence."""
    return [str(check) for check in verdict.checks(found)]


def test_what_was_recorded_is_confirmed_under_its_own_name():
    # The errors here are TF32's on every layer, so those that ran FMA kernels do not fit: leave that line out.
    every = [check for check in verdict.checks(recorded("implicit precomp gemm")) if "TF32" not in check.line]
    assert verdict.confirmed(every)
    assert str(every[2]) == "✓ kernels: 53 of 53 layers launched what their algorithm may launch"


@pytest.mark.parametrize("lie", ["fft", "fft tiling", "gemm", "winograd nonfused"])
def test_what_was_recorded_is_not_confirmed_under_another_name(lie: str):
    found = recorded(lie)
    every = verdict.checks(found)
    assert verdict.last_line(found, every) == "NOT CONFIRMED"
    assert [check.passed for check in every[:2]] == [True, True], "name and identifier lie; only the kernels do not"
    assert str(every[2]).startswith("✗ kernels: ")


def test_a_lie_is_told_by_the_kernel_that_ran():
    assert (
        "✗ fft: 1 of 53 layers ran implicit_convolve_sgemm, a kernel of the family implicit GEMM"
        in lines(recorded("fft"))
    )  # fmt: skip


def test_gemm_that_runs_a_direct_kernel_is_counted_by_layers():
    found = evidence(*[one("gemm", GROUPED_DIRECT)] * 12, one("gemm", "void explicit_convolve_sgemm<float>()"))
    assert (
        "✗ gemm: 12 of 13 layers ran cudnn::cnn::conv2d_grouped_direct_kernel, a kernel of the family direct"
        in lines(found)
    )  # fmt: skip


def test_a_layer_without_any_kernel_that_shows_its_algorithm_is_not_confirmed():
    assert "✗ fft: 1 of 1 layers ran no kernel that shows it" in lines(evidence(one("fft", "Memset (Device)")))


def test_without_kernels_the_verdict_says_what_it_rests_on():
    found = evidence(dataclasses.replace(one("gemm"), kernels=None), kernels_missing="CUPTI is not permitted")
    every = verdict.checks(found)
    assert "· kernels: not checked, CUPTI is not permitted" in map(str, every)
    assert verdict.last_line(found, every) == (
        "CONFIRMED (by names, identifiers and outputs; kernels were not checked)"
    )


def test_a_convolution_that_was_not_replaced_is_named():
    left = dataclasses.replace(one("gemm", IMPLICIT_KERNEL, name="head"), carried="torch")
    assert "✗ replaced: 1 of 2 convolutions carry the algorithm's name; not head" in lines(evidence(one("gemm"), left))


def test_another_identifier_than_the_one_asked_for_is_named():
    found = lines(evidence(one("implicit gemm", IMPLICIT_KERNEL, ran="implicit precomp gemm", name="stem")))
    assert found[1] == ("✗ identifier: 1 layer ran cudnn's implicit precomp gemm (1); not what was asked for: stem")


def test_guess_is_held_to_what_cudnn_chose():
    assert verdict.confirmed(verdict.checks(evidence(one("guess", XMMA_FFMA, ran="implicit precomp gemm"))))
    assert not verdict.confirmed(verdict.checks(evidence(one("guess", GROUPED_DIRECT, ran="implicit precomp gemm"))))


def test_layers_that_fell_back_are_held_to_what_they_fell_back_to():
    found = evidence(one("fft", FFT_KERNEL), one("implicit precomp gemm", XMMA_FFMA), algorithm="fft")
    every = verdict.checks(found)
    assert verdict.last_line(found, every) == "CONFIRMED (1 of 2 layers as implicit precomp gemm instead)"


def test_plans_that_differ_from_layer_to_layer_are_what_autotune_asks_for():
    by_graph = {"provider": "cudnn graph"}
    plans = [one(name, XMMA_FFMA, ran=name, **by_graph) for name in ("plan:38:k2=8", "plan:0")]
    found = evidence(*plans, one("implicit precomp gemm", XMMA_FFMA), algorithm="autotune")
    assert verdict.last_line(found, []) == "CONFIRMED (1 of 3 layers as implicit precomp gemm instead)"
    assert verdict.last_line(evidence(*plans, algorithm="autotune"), []) == "CONFIRMED"


@pytest.mark.parametrize("error", [1e-3, float("nan"), float("inf")])
def test_a_wrong_layer_is_not_confirmed(error: float):
    found = lines(evidence(one("gemm", error=error, name="bad"), one("gemm")))
    assert found[-4].startswith("✗ layers against float64: 1 of 2 within their tolerance (nearest to it: bad, ")
    assert found[-4].endswith("; not bad")


@pytest.mark.parametrize("place", ["last_error", "output_error"])
@pytest.mark.parametrize("error", [1e-2, float("nan")])
def test_a_wrong_model_is_not_confirmed_wherever_it_shows(place: str, error: float):
    found = lines(evidence(one("gemm"), **{place: error}))
    assert any(line.startswith("✗ whole model against float64") for line in found)


def test_tensor_cores_where_tf32_is_forbidden_are_not_confirmed():
    found = lines(evidence(one("implicit precomp gemm", XMMA_TF32, name="loud")))
    assert (
        "✗ TF32 forbidden: 1 of 1 layers name tensor cores, 0 of 1 have errors above those of float32; "
        in (found[-2].split("this does not fit")[0])
    )
    assert found[-2].endswith("this does not fit loud")


def test_errors_of_tf32_from_kernels_that_name_fma_do_not_fit():
    found = evidence(one("implicit precomp gemm", XMMA_FFMA, error=TF32_ERROR, name="quiet"), math="tf32")
    assert lines(found)[-2].endswith("this does not fit quiet")


def test_tf32_that_is_permitted_and_used_fits():
    found = evidence(
        one("implicit precomp gemm", XMMA_TF32, error=TF32_ERROR),
        math="tf32",
        last_error=TF32_ERROR,
        output_error=TF32_ERROR,
    )
    assert lines(found)[-2] == (
        "✓ TF32 permitted: 1 of 1 layers name tensor cores, 1 of 1 have errors above those of float32"
    )


def test_the_override_of_the_environment_is_recorded():
    assert "NVIDIA_TF32_OVERRIDE=0" in lines(evidence(one("gemm"), tf32_override="0"))[-2]


def test_the_time_is_told_with_its_interval_and_never_decides():
    check = verdict.checks(evidence(one("gemm")))[-1]
    assert check.passed is None
    assert check.line.startswith("time: 1.1000 ms a pass, PyTorch's own 2.1000 ms: faster (-1.0000 ± 0.")
    assert check.line.endswith(" ms at 99 %)")


def test_times_that_nothing_tells_apart_are_a_tie():
    same = summary.summarize([1.0, 1.1, 1.2])
    tie = evidence(one("gemm"), swapped=same, torch=same, time=summary.difference(same, same))
    assert "a tie" in lines(tie)[-1]


def test_a_heuristic_may_be_any_plan_and_a_plan_is_held_to_its_name():
    by_graph = {"provider": "cudnn graph"}
    found = lines(evidence(one("heuristic a", XMMA_FFMA, ran="plan:38:k2=8", **by_graph)))
    assert found[1] == "✓ identifier: 1 layer ran cudnn graph's plan:38:k2=8"
    assert found[2] == "· kernels: these names promise none; seen: precomputed implicit GEMM in 1"
    named = one("plan:38:k2=8", XMMA_FFMA, **by_graph)
    assert verdict.confirmed(verdict.checks(evidence(named)))
    other = one("plan:38:k2=8", XMMA_FFMA, ran="plan:38", name="stem", **by_graph)
    assert lines(evidence(other))[1].endswith("ran cudnn graph's plan:38; not what was asked for: stem")
    legacy = one("plan:38:k2=8", XMMA_FFMA, name="stem")
    assert lines(evidence(legacy))[1].endswith("not what was asked for: stem")


def test_of_layers_that_fell_back_the_kernels_are_judged_all_the_same():
    left = one("implicit precomp gemm", GROUPED_DIRECT)
    found = lines(evidence(one("plan:38", XMMA_FFMA, provider="cudnn graph"), left, algorithm="plan:38"))
    assert found[2] == "✗ kernels: 0 of 1 layers launched what their algorithm may launch"


def test_nothing_precomputed_and_bare_products_are_remarked_on():
    found = lines(
        evidence(
            one("implicit precomp gemm", IMPLICIT_KERNEL),
            one("implicit precomp gemm", CUTLASS_TF32, kernel=(1, 1), padding=(0, 0), error=TF32_ERROR),
            math="tf32",
        )
    )
    assert "· implicit precomp gemm: 1 of 2 layers ran implicit gemm's kernel: nothing was precomputed" in found
    assert "· implicit precomp gemm: 1 of 2 layers have 1×1 kernels and ran as a bare matrix product" in found
