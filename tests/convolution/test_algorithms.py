"""The catalogue: names, numbers, and which layers an algorithm can take."""

from __future__ import annotations

import dataclasses

import pytest
from fakes import layer

from convscope.convolution import algorithms
from convscope.convolution.algorithms import ALGORITHMS, find, why_not_by_rule
from convscope.convolution.layer import Layer
from convscope.cudnn.graph.plan import Plan
from convscope.cudnn.shape import Fused
from convscope.errors import InputError
from convscope.storage.paths import slug

CUDNN_NUMBERS = {
    "implicit gemm": 0,
    "implicit precomp gemm": 1,
    "gemm": 2,
    "fft": 4,
    "fft tiling": 5,
    "winograd": 6,
    "winograd nonfused": 7,
}
NAMES = {*CUDNN_NUMBERS, "direct", "smm", "guess", "torch"}


def test_the_catalogue_has_every_algorithm():
    assert set(ALGORITHMS) == NAMES


@pytest.mark.parametrize(("name", "number"), CUDNN_NUMBERS.items())
def test_each_algorithm_has_cudnns_own_number(name: str, number: int):
    assert ALGORITHMS[name].cudnn_number == number


def test_every_number_of_cudnn_has_a_name():
    assert {number: name for name, number in CUDNN_NUMBERS.items()} | {3: "direct"} == algorithms.NAMES_BY_CUDNN_NUMBER


@pytest.mark.parametrize("name", ["implicit precomp gemm", "implicit_precomp_gemm", " Implicit  Precomp_GEMM "])
def test_spaces_underscores_and_capitals_name_the_same_algorithm(name: str):
    assert find(name).name == "implicit precomp gemm"


def test_an_unknown_algorithm_is_answered_with_those_there_are():
    with pytest.raises(
        InputError,
        match=r"unknown algorithm 'gem': choose one of direct, smm, gemm, .*torch, heuristic a, .* or plan:ENGINE",
    ):
        find("gem")


@pytest.mark.parametrize(
    ("name", "in_a_path"),
    [("fft tiling", "fft_tiling"), ("Heuristic_A", "heuristic_a"), ("Plan: 38 : k13=1, k2=8", "plan_38_k2_8_k13_1")],
)
def test_a_name_in_a_path_has_underscores(name: str, in_a_path: str):
    assert slug(find(name).name) == in_a_path


def test_a_plan_is_an_algorithm_of_cudnns_graph_whatever_the_order_of_its_knobs():
    found = find("plan:38:k13=1,k2=8")
    assert found == find("PLAN:38:k2=8,k13=1")
    assert (found.name, found.cuda_providers) == ("plan:38:k2=8,k13=1", ("cudnn graph",))
    assert algorithms.plan_of(found.name) == Plan.of(38, {2: 8, 13: 1})
    assert algorithms.plan_of("heuristic a") is None
    assert why_not_by_rule(found, layer(), "cpu") == "plan:38:k2=8,k13=1 needs a CUDA device"
    assert why_not_by_rule(found, layer(), "cuda") is None


def test_a_plan_with_steps_behind_it_is_for_layers_with_something_fused():
    found = find("Plan+Steps:38:k2=8")
    assert (found.name, found.cuda_providers) == ("plan+steps:38:k2=8", ("cudnn graph",))
    assert algorithms.plan_of(found.name) == Plan.of(38, {2: 8})
    assert algorithms.plan_name(Plan.of(38, {2: 8}), algorithms.WITH_STEPS) == found.name
    assert why_not_by_rule(found, layer(), "cuda") == "nothing is fused with this layer: plan:38:k2=8 is the same"
    assert why_not_by_rule(found, dataclasses.replace(layer(), fused=Fused(relu=True)), "cuda") is None


def test_a_plan_for_packed_filters_is_for_those_that_do_not_lie_in_channels_last():
    found = find("plan+packed:67:k2=8")
    assert (found.name, found.cuda_providers) == ("plan+packed:67:k2=8", ("cudnn graph",))
    assert algorithms.plan_of(found.name) == Plan.of(67, {2: 8})
    assert algorithms.plan_name(Plan.of(67, {2: 8}), algorithms.PACKED) == found.name
    assert why_not_by_rule(found, layer(), "cuda") is None
    same = "these filters lie in channels last as they are: plan:67:k2=8 is the same"
    assert why_not_by_rule(found, layer(kernel=(1, 1), padding=(0, 0)), "cuda") == same
    assert algorithms.why_not_in(found, "cuda", "float16", "nhwc") == same
    assert algorithms.why_not_in(found, "cuda", "float16", "nchw") is None


@pytest.mark.parametrize("name", ["plan:", "plan+steps:", "plan+packed:", "plan:gemm", "plan:38:k2", "plan:38,k2=8"])
def test_what_is_no_plan_says_how_one_is_written(name: str):
    with pytest.raises(InputError, match="is no plan: write an engine and its knobs, 38:k2=8,k13=1"):
        find(name)


@pytest.mark.parametrize("name", ["direct", "smm", "torch"])
def test_these_run_on_a_cpu(name: str):
    assert why_not_by_rule(find(name), layer(), "cpu") is None


@pytest.mark.parametrize("name", sorted(NAMES - {"direct", "smm", "torch"}))
def test_the_others_say_on_a_cpu_that_they_need_a_cuda_device(name: str):
    assert why_not_by_rule(find(name), layer(), "cpu") == f"{name} needs a CUDA device"


@pytest.mark.parametrize("name", sorted(NAMES - {"smm"}))
def test_a_plain_three_by_three_layer_can_use_every_algorithm_of_the_gpu(name: str):
    assert why_not_by_rule(find(name), layer(), "cuda") is None


@pytest.mark.parametrize(
    ("provider", "name", "reason"),
    [
        ("cudnn", "direct", "cuDNN implements no direct convolution"),
        ("triton", "direct", None),
        ("cudnn", "winograd", None),
        ("triton", "winograd", None),
        ("triton", "gemm", "gemm is not one of triton's"),
    ],
)
def test_a_provider_by_hand_must_have_the_algorithm(provider: str, name: str, reason: str | None):
    assert algorithms.why_not_by_provider(find(name), provider) == reason


def test_smm_says_on_a_gpu_that_it_is_for_a_cpu():
    assert why_not_by_rule(find("smm"), layer(), "cuda") == "smm runs on a CPU only"


WINOGRAD = "winograd needs 3×3 kernels with stride 1"
NONFUSED = "winograd nonfused needs 3×3 or 5×5 kernels with stride 1"


@pytest.mark.parametrize(
    ("name", "odd", "reason"),
    [
        ("winograd", layer(kernel=(5, 5)), WINOGRAD),
        ("winograd", layer(stride=(2, 1)), WINOGRAD),
        ("winograd", layer(dilation=(1, 2)), "winograd needs dilation 1"),
        ("winograd nonfused", layer(kernel=(3, 5)), NONFUSED),
        ("winograd nonfused", layer(stride=(1, 2)), NONFUSED),
        ("winograd nonfused", layer(dilation=(2, 2)), "winograd nonfused needs dilation 1"),
        ("fft", layer(stride=(1, 2)), "fft needs stride 1"),
        ("fft", layer(in_height=255), "fft needs padded inputs of at most 256×256"),
        ("fft", layer(in_width=255), "fft needs padded inputs of at most 256×256"),
        ("fft", layer(padding=(3, 1)), "fft needs less padding than kernel"),
        ("fft", layer(padding=(1, 3)), "fft needs less padding than kernel"),
        ("fft", layer(dilation=(2, 1)), "fft needs dilation 1"),
        ("fft tiling", layer(stride=(1, 3)), "fft tiling needs strides of at most 2"),
        ("fft tiling", layer(kernel=(1, 1), padding=(0, 0), stride=(2, 2)), "fft tiling needs stride 1 with 1-wide"),
        ("fft tiling", layer(kernel=(33, 3)), "fft tiling needs kernels of at most 32×32"),
        ("fft tiling", layer(padding=(1, 3)), "fft tiling needs less padding than kernel"),
        ("fft tiling", layer(dilation=(2, 2)), "fft tiling needs dilation 1"),
    ],
)
def test_a_layer_against_a_rule_hears_the_rule(name: str, odd: Layer, reason: str):
    answer = why_not_by_rule(find(name), odd, "cuda")
    assert answer is not None
    assert answer.startswith(reason)


@pytest.mark.parametrize(
    ("name", "edge"),
    [
        ("winograd nonfused", layer(kernel=(5, 5), padding=(2, 2))),
        ("fft", layer(in_height=254, in_width=254)),
        ("fft tiling", layer(in_height=2000)),
        ("fft tiling", layer(kernel=(7, 7), padding=(3, 3), stride=(2, 2))),
        ("fft tiling", layer(kernel=(32, 32), padding=(3, 3))),
        ("fft tiling", layer(kernel=(1, 1), padding=(0, 0))),
    ],
)
def test_a_layer_on_the_edge_of_a_rule_is_taken(name: str, edge: Layer):
    assert why_not_by_rule(find(name), edge, "cuda") is None


@pytest.mark.parametrize("name", ["direct", "smm"])
def test_ai3_takes_no_groups_on_a_cpu(name: str):
    answer = why_not_by_rule(find(name), layer(groups=4), "cpu")
    assert answer is not None
    assert answer.startswith("ai3 has no grouped convolution on a CPU")


@pytest.mark.parametrize(("name", "kind"), [("direct", "cpu"), ("gemm", "cuda")])
def test_other_padding_modes_than_zeros_are_refused_by_name(name: str, kind: str):
    assert (
        why_not_by_rule(find(name), layer(padding_mode="reflect"), kind)
        == f"{name} pads with zeros only, not 'reflect'"
    )


@pytest.mark.parametrize(("name", "kind"), [("direct", "cpu"), ("gemm", "cuda")])
def test_padding_that_is_not_alike_on_both_sides_is_refused(name: str, kind: str):
    answer = why_not_by_rule(find(name), layer(uneven_padding=True), kind)
    assert answer is not None
    assert answer.startswith(f"{name} pads both sides alike")


@pytest.mark.parametrize("odd", [layer(padding_mode="circular"), layer(uneven_padding=True), layer(groups=4)])
def test_pytorch_itself_takes_every_layer(odd: Layer):
    assert why_not_by_rule(find("torch"), odd, "cpu") is None


def test_only_fft_depends_on_the_input_size():
    assert [name for name, a in ALGORITHMS.items() if a.rule_depends_on_size] == ["fft"]


def test_refusals_count_each_reason_most_frequent_first():
    every = [None, "fft needs stride 1", "cuDNN 9.19 refuses fft", "fft needs stride 1"]
    assert algorithms.refusals(every, "net") == (
        "fft needs stride 1: 2 of 4 convolutions of net are not",
        "cuDNN 9.19 refuses fft: 1 of 4 convolutions of net",
    )


def test_without_a_reason_there_is_no_refusal():
    assert algorithms.refusals([None, None], "net") == ()
