"""Shares of a pass by kind of work: operators and kernels put into categories, and their times summed up."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from convscope.timing import shares, trace
from convscope.timing.shares import Launch, Work, category, folded, of_launches, of_operators, shares_pct, short_name


def operator(name: str, start_us: float, end_us: float, thread: object = 1) -> dict[str, Any]:
    return {"ph": "X", "cat": "cpu_op", "name": name, "ts": start_us, "dur": end_us - start_us, "tid": thread}


def module(name: str, start_us: float, end_us: float, thread: object = 1) -> dict[str, Any]:
    return operator(f"{shares.MODULE}{name}", start_us, end_us, thread) | {"cat": "user_annotation"}


@pytest.mark.parametrize(
    ("operators", "kind"),
    [
        (["aten::conv2d", "aten::convolution", "aten::cudnn_convolution"], "convolution"),
        (["aten::conv_transpose3d"], "convolution"),
        (["ai3::conv2d"], "convolution"),
        (["aten::conv2d", "aten::thnn_conv2d", "aten::addmm"], "convolution"),
        (["aten::_conv_depthwise2d", "aten::copy_"], "convolution"),
        (["aten::linear", "aten::addmm"], "matrix product"),
        (["aten::matmul", "aten::mm"], "matrix product"),
        (["aten::matmul", "aten::bmm"], "matrix product"),
        (["aten::linear", "aten::addmm", "aten::copy_"], "copy"),
        (["aten::scaled_dot_product_attention", "aten::_flash_attention_forward"], "attention"),
        (["aten::scaled_dot_product_attention", "aten::matmul", "aten::bmm"], "attention"),
        (["aten::_native_multi_head_attention", "aten::bmm"], "attention"),
        (["aten::_native_multi_head_attention", "aten::linear", "aten::addmm"], "matrix product"),
        (["aten::batch_norm", "aten::cudnn_batch_norm"], "normalisation"),
        (["aten::layer_norm", "aten::native_layer_norm"], "normalisation"),
        (["aten::normal_"], "rest"),
        (["aten::max_pool2d", "aten::max_pool2d_with_indices"], "pooling"),
        (["aten::adaptive_avg_pool2d", "aten::mean"], "pooling"),
        (["aten::relu_", "aten::clamp_min_"], "elementwise"),
        (["aten::hardswish"], "elementwise"),
        (["aten::add_"], "elementwise"),
        (["aten::cat"], "copy"),
        (["aten::to", "aten::_to_copy", "aten::copy_"], "copy"),
        (["aten::_convert_weight_to_int4pack"], "rest"),
        (["aten::softmax", "aten::_softmax"], "rest"),
        (["aten::sort"], "rest"),
        ([], "rest"),
    ],
)
def test_the_operators_that_were_open_say_what_kind_of_work_a_kernel_is(operators: list[str], kind: str):
    assert category(operators) == kind


@pytest.mark.parametrize(
    ("operators", "kind"),
    [
        (["aten::matmul", "aten::bmm"], "attention"),
        (["aten::softmax", "aten::_softmax"], "attention"),
        (["aten::linear", "aten::addmm"], "matrix product"),
        (["aten::mul"], "elementwise"),
    ],
)
@pytest.mark.parametrize("name", ["blocks.3.attn", "encoder.SelfAttention"])
def test_in_a_module_named_after_attention_batched_products_and_softmax_are_attention(
    operators: list[str], kind: str, name: str
):
    assert category(operators, name) == kind


def test_every_category_that_comes_out_is_listed():
    assert {category([each]) for each in ("aten::conv1d", "aten::mm", "aten::instance_norm", "x::y")} <= {
        *shares.CATEGORIES
    }


@pytest.mark.parametrize(
    ("kernel", "short"),
    [
        (
            "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>(int, float)",
            "at::native::vectorized_elementwise_kernel",
        ),
        ("sm80_xmma_fprop_implicit_gemm_f32_tilesize128x64x8_stage3", "sm80_xmma_fprop_implicit_gemm_f32"),
        ("std::enable_if<true, void>::type internal::gemvx::kernel<int>(int)", "internal::gemvx::kernel"),
        ("Memset (Device)", "Memset"),
        ("winograd_kernel", "winograd_kernel"),
    ],
)
def test_a_kernels_short_name_has_no_types_and_no_arguments(kernel: str, short: str):
    assert short_name(kernel) == short


EVENTS = [
    module("", 0, 100),
    module("stem", 10, 30),
    operator("aten::conv2d", 12, 28),
    operator("aten::cudnn_convolution", 14, 26),
    operator("aten::add_", 40, 50),
    operator("aten::relu", 40, 50, thread=2),
]


def test_a_kernel_has_the_module_and_the_kind_of_what_was_open_on_its_thread_at_its_launch():
    launches = [
        Launch("void k<1>(int)", 15, 1, 0.5),
        Launch("void k<2>(int)", 16, 1, 0.25),
        Launch("void k<1>(int)", 45, 1, 0.125),
        Launch("r", 45, 2, 0.0625),
        Launch("k", 99, 1, 0.03125),
    ]
    assert of_launches(EVENTS, launches) == [
        Work("convolution", "k", "stem", 2, 0.75),
        Work("elementwise", "k", None, 1, 0.125),
        Work("elementwise", "r", None, 1, 0.0625),
        Work("rest", "k", None, 1, 0.03125),
    ]


@pytest.mark.parametrize(("launched_us", "kind"), [(40, "elementwise"), (50, "elementwise"), (51, "rest")])
def test_an_operator_is_open_from_its_start_to_its_end(launched_us: float, kind: str):
    assert of_launches(EVENTS, [Launch("k", launched_us, 1, 1.0)])[0].category == kind


def test_the_order_of_events_and_launches_does_not_matter():
    launches = [Launch("a", 15, 1, 0.5), Launch("b", 45, 1, 0.25)]
    assert of_launches(EVENTS[::-1], launches[::-1]) == of_launches(EVENTS, launches)


def test_events_of_another_kind_are_no_operators():
    others = [operator("aten::conv2d", 40, 50) | {"cat": "python_function"}, operator("x", 40, 50) | {"ph": "i"}]
    assert of_launches([*others, EVENTS[4]], [Launch("k", 45, 1, 1.0)])[0].category == "elementwise"


def passed(*events: dict[str, Any]) -> list[dict[str, Any]]:
    return [operator("the pass", 0, 1000) | {"name": trace.EAGER, "cat": "user_annotation"}, *events]


def test_an_operators_time_is_without_those_that_it_called():
    events = passed(
        module("", 1, 999), operator("aten::linear", 10, 110), operator("aten::t", 20, 30),
        operator("aten::addmm", 40, 100), operator("aten::copy_", 50, 60),
    )  # fmt: skip
    found = {work.kernel: (work.category, work.kernel_ms) for work in of_operators(events, trace.EAGER)}
    assert found == {
        "aten::linear": ("matrix product", pytest.approx(0.030)),
        "aten::t": ("copy", pytest.approx(0.010)),
        "aten::addmm": ("matrix product", pytest.approx(0.050)),
        "aten::copy_": ("copy", pytest.approx(0.010)),
    }


def test_an_operator_that_begins_when_another_ends_was_not_called_by_it():
    events = passed(operator("aten::conv2d", 10, 20), operator("aten::relu", 20, 30))
    found = [(work.kernel, work.category, work.kernel_ms) for work in of_operators(events, trace.EAGER)]
    assert sorted(found) == [
        ("aten::conv2d", "convolution", pytest.approx(0.010)),
        ("aten::relu", "elementwise", pytest.approx(0.010)),
    ]


def test_what_runs_outside_the_pass_is_left_out():
    events = passed(operator("aten::relu", 10, 20), operator("aten::relu", 2000, 2100))
    assert of_operators(events, trace.EAGER) == [Work("elementwise", "aten::relu", None, 1, 0.01)]


def test_operators_of_one_name_are_summed_in_each_module():
    events = passed(
        module("a", 10, 50), operator("aten::relu", 11, 21), operator("aten::relu", 31, 41),
        module("b", 60, 90), operator("aten::relu", 61, 62),
    )  # fmt: skip
    assert of_operators(events, trace.EAGER) == [
        Work("elementwise", "aten::relu", "a", 2, pytest.approx(0.020)),
        Work("elementwise", "aten::relu", "b", 1, pytest.approx(0.001)),
    ]


class Everything(nn.Module):
    """A convolution, a normalisation, a pooling, an attention and a product."""

    def __init__(self) -> None:
        super().__init__()
        self.look = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2))
        self.head = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = self.look(x).flatten(2).transpose(1, 2)
        return self.head(nn.functional.scaled_dot_product_attention(tokens, tokens, tokens))


def test_a_real_pass_has_each_kind_of_work_in_the_module_that_does_it():
    with torch.inference_mode():
        events = trace.record_operators(Everything().eval(), (torch.zeros(1, 3, 32, 32),))
    work = of_operators(events, trace.EAGER)
    assert {(each.category, each.module) for each in work} >= {
        ("convolution", "look.0"),
        ("normalisation", "look.1"),
        ("elementwise", "look.2"),
        ("pooling", "look.3"),
        ("attention", None),
        ("matrix product", "head"),
    }
    whole_ms = next(event["dur"] for event in events if event["name"] == trace.EAGER) / 1e3
    assert 0 < sum(each.kernel_ms for each in work) <= whole_ms


def test_shares_add_up_to_a_hundred_the_largest_first():
    found = shares_pct([("copy", 1.0), ("convolution", 2.0), ("copy", 0.5), ("rest", 0.5)])
    assert list(found.items()) == [("convolution", 50.0), ("copy", 37.5), ("rest", 12.5)]


@pytest.mark.parametrize("nothing", [[], [("copy", 0.0)]])
def test_where_no_time_is_known_there_are_no_shares(nothing: list[tuple[str, float]]):
    assert shares_pct(nothing) == {}


def test_what_takes_less_than_a_thousandth_is_one_row_of_its_kind():
    work = [
        Work("convolution", "aten::mm", "a", 1, 9990.0), Work("copy", "aten::view", "a", 3, 9.0),
        Work("copy", "aten::view", "b", 2, 0.5), Work("rest", "aten::empty", None, 1, 0.5),
        Work("convolution", "aten::add", "b", 1, 11.0),
    ]  # fmt: skip
    found = folded(work)
    assert found == [work[0], work[4], Work("copy", "others", None, 5, 9.5), Work("rest", "others", None, 1, 0.5)]
    assert sum(each.kernel_ms for each in found) == sum(each.kernel_ms for each in work)
    assert folded(found) == found
    assert folded([]) == []
