"""The support map: what the rules predict, what a card answered, and the rows that both become."""

from __future__ import annotations

from typing import Any

import pytest
from fakes import ENVIRONMENT, layer, run
from fakes.kernel_names import GROUPED_DIRECT, IMPLICIT_KERNEL, TO_NHWC, XMMA_TF32

from convscope.verification import support
from convscope.verification.support import Answer, Outcome

AMPERE, HOPPER = (8, 0), (9, 0)


@pytest.mark.parametrize(
    ("algorithm", "changes", "status", "reason"),
    [
        ("direct", {}, support.NEVER, "cuDNN implements no direct convolution"),
        ("winograd", {}, support.GENERATION, "cuDNN has no fused Winograd on Hopper and later"),
        ("winograd nonfused", {}, support.OK, None),
        ("winograd nonfused", {"stride": (2, 2)}, support.SHAPE, "winograd nonfused needs 3×3 or 5×5 kernels"),
        ("fft", {"in_height": 300}, support.SHAPE, "fft needs padded inputs of at most 256×256"),
        ("fft tiling", {"dilation": (2, 2)}, support.SHAPE, "fft tiling needs dilation 1"),
        ("gemm", {"groups": 16}, support.OK, None),
    ],
)
def test_the_rules_predict_for_a_hopper_card(algorithm: str, changes: dict[str, Any], status: str, reason: str | None):
    found = support.predict(layer(**changes), algorithm, HOPPER)
    assert found.status == status
    assert (found.reason or "").startswith(reason or "")


def test_an_older_card_has_the_fused_winograd():
    assert support.predict(layer(), "winograd", AMPERE) == Answer(support.OK)
    assert support.predict(layer(kernel=(5, 5)), "winograd", AMPERE).status == support.SHAPE


def test_fft_and_winograd_are_for_two_types_only():
    assert support.predict(layer(), "fft", HOPPER, "float16").status == support.OK
    assert support.predict(layer(), "fft", HOPPER, "float64") == Answer(support.TYPE, "fft needs float32 or float16")
    assert support.predict(layer(), "gemm", HOPPER, "float64").status == support.OK


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"peculiarity": "Standardized has a forward of its own"}, "only plain convolutions can be replaced"),
        ({"padding_mode": "reflect"}, "gemm pads with zeros only"),
        ({"uneven_padding": True}, "gemm pads both sides alike"),
    ],
)
def test_a_card_is_not_asked_about_what_it_cannot_see_of_a_module(changes: dict[str, Any], reason: str):
    found = {
        one.algorithm: one.answer for one in support.outcomes_of(layer(**changes), HOPPER, "float32", lambda _: [])
    }
    assert found["gemm"].status == support.SHAPE
    assert (found["gemm"].reason or "").startswith(reason)
    assert set(found) == set(support.ALGORITHMS)


def test_a_card_is_asked_about_a_plain_convolution():
    answers = [Outcome("gemm", Answer(support.OK))]
    assert support.outcomes_of(layer(), HOPPER, "float32", lambda _: answers) == answers


def rows(*found: Outcome, predicted: str = support.OK) -> list[support.SupportRow]:
    made = run(device="cuda:0", input_sizes=(224,))
    return [
        support.row(made, ENVIRONMENT, "float32", layer(), one, Answer(predicted, "by rule"), found) for one in found
    ]


def test_rule_and_card_that_agree_have_the_rules_reason():
    (found,) = rows(Outcome("fft", Answer(support.SHAPE, "cudnnCreate: CUDNN_STATUS_NOT_SUPPORTED")), predicted="shape")
    assert found.agrees is True
    assert found.reason == "by rule"


def test_rule_and_card_that_differ_show_both():
    found = rows(Outcome("fft", Answer(support.SHAPE, "cudnnCreate: CUDNN_STATUS_NOT_SUPPORTED")))
    assert found[0].agrees is False
    assert support.disagreements(found) == [
        "features.0, fft: predicted ok, found shape (cudnnCreate: CUDNN_STATUS_NOT_SUPPORTED)"
    ]


def test_a_workspace_over_the_limit_is_no_matter_of_the_rules():
    found = rows(Outcome("fft", Answer(support.WORKSPACE, "needs a workspace of 9 bytes, allowed are 8", 9)))
    assert found[0].agrees is None
    assert found[0].reason == "needs a workspace of 9 bytes, allowed are 8"
    assert support.disagreements(found) == []


def test_algorithms_that_launch_the_same_work_are_marked_as_the_first_of_them():
    found = rows(
        Outcome("implicit gemm", Answer(support.OK), {GROUPED_DIRECT: 1}),
        Outcome("implicit precomp gemm", Answer(support.OK), {XMMA_TF32: 1, TO_NHWC: 2}),
        Outcome("gemm", Answer(support.OK), {GROUPED_DIRECT: 1, "Memset (Device)": 1}),
        Outcome("fft", Answer(support.OK), None),
    )
    assert [one.same_kernels_as for one in found] == [None, None, "implicit gemm", None]
    assert [one.families for one in found] == ["direct", "precomputed implicit GEMM", "direct", None]


def test_a_card_that_is_far_off_the_reference_counts_as_failed():
    judged = support.judged(layer(), "gemm", 1e-2, 0, "float32")
    assert judged.status == "wrong"
    assert judged.reason.startswith("its error against float64 is 1.0e-02, allowed are ")
    assert support.judged(layer(), "gemm", float("nan"), 0, "float32").status == "wrong"
    assert support.judged(layer(), "gemm", 1e-7, 0, "float32") == Answer(support.OK, None, 0, 1e-7)


def test_the_summary_counts_layers_reasons_and_ties():
    found = rows(Outcome("implicit gemm", Answer(support.OK), {IMPLICIT_KERNEL: 1}))
    found += rows(Outcome("fft", Answer(support.SHAPE, "refused")), predicted="shape")
    by_name = {line[0]: line[1:] for line in support.summary(found)}
    assert by_name["implicit gemm"] == ("1 of 1", "")
    assert by_name["fft"] == ("0 of 1", "shape: by rule (1)")
