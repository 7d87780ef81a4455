"""The algorithm of each layer, and the fate of layers that cannot have the one asked for."""

from __future__ import annotations

import pytest
from fakes import layer, run

from convscope.convolution import models
from convscope.convolution.algorithms import find
from convscope.convolution.assignment import assign, why_not_each
from convscope.convolution.layer import Layer
from convscope.errors import InputError

PLAIN, STRIDED = layer(name="plain"), layer(name="strided", position=1, stride=(2, 2))
GROUPED = layer(name="grouped", position=2, groups=16)


class Library:
    """Answers for the library on the card, and remembers what it was asked."""

    def __init__(self, reason: str | None = None) -> None:
        self.asked: list[tuple[str, str]] = []
        self._reason = reason

    def __call__(self, layer: Layer, algorithm: str) -> str | None:
        self.asked.append((layer.name, algorithm))
        return self._reason


def test_layers_that_can_get_the_algorithm_asked_for():
    found = assign(run(algorithm="fft", device="cuda:0"), [PLAIN], Library())
    assert (found.algorithms, found.reasons) == ({"plain": "fft"}, {})


def test_a_layer_that_cannot_stops_the_run_with_count_reason_and_way_on():
    with pytest.raises(InputError) as refused:
        assign(run(algorithm="fft", model="net", device="cuda:0"), [PLAIN, STRIDED], Library())
    assert str(refused.value) == (
        "fft needs stride 1: 1 of 2 convolutions of net are not at 56 px (strided); "
        "--unsupported fallback runs these with implicit precomp gemm"
    )


def test_winograd_is_refused_for_108_of_155_convolutions_of_resnet152():
    asked = run(model="resnet152", algorithm="winograd", device="cuda:0")
    refusal = "winograd needs 3×3 kernels with stride 1: 108 of 155 convolutions of resnet152 are not"
    with pytest.raises(InputError, match=refusal):
        assign(asked, models.convolutions("resnet152", 224), None)


def test_a_long_list_of_layers_is_cut_short():
    with pytest.raises(InputError, match=r"\(conv1, layer1.0.conv1, layer1.0.conv3, layer1.0.downsample.0 …\)"):
        assign(run(algorithm="winograd", device="cuda:0"), models.convolutions("resnet152", 224), None)


def test_what_the_library_itself_refuses_is_said_in_its_words():
    words = "cuDNN 9.19 has no fused Winograd on NVIDIA H200"
    with pytest.raises(InputError) as refused:
        assign(run(algorithm="winograd", model="net", device="cuda:0"), [PLAIN], Library(words))
    assert str(refused.value).startswith(f"{words}: 1 of 1 convolutions of net (plain); --unsupported fallback")


def test_fallback_on_a_gpu_is_implicit_precomp_gemm():
    found = assign(run(algorithm="fft", unsupported="fallback", device="cuda:0"), [PLAIN, STRIDED], Library())
    assert found.algorithms == {"plain": "fft", "strided": "implicit precomp gemm"}
    assert found.reasons == {"strided": "fft needs stride 1"}


def test_skipped_layers_are_left_to_pytorch():
    found = assign(run(algorithm="fft", unsupported="skip", device="cuda:0"), [PLAIN, STRIDED], Library())
    assert found.algorithms == {"plain": "fft", "strided": "torch"}


@pytest.mark.parametrize("unsupported", ["fallback", "skip"])
def test_on_a_cpu_pytorch_takes_the_layers_that_ai3_cannot(unsupported: str):
    found = assign(run(algorithm="smm", unsupported=unsupported), [PLAIN, GROUPED], None)
    assert found.algorithms == {"plain": "smm", "grouped": "torch"}


@pytest.mark.parametrize("unsupported", ["error", "fallback", "skip"])
def test_an_algorithm_that_nothing_runs_on_a_cpu_is_refused_whatever_was_said(unsupported: str):
    refusal = "gemm needs a CUDA device: on a CPU choose direct, smm or torch, or run where a GPU is"
    with pytest.raises(InputError, match=refusal):
        assign(run(algorithm="gemm", unsupported=unsupported), [PLAIN], None)


def test_an_algorithm_of_the_cpu_can_fall_back_as_a_whole_on_a_gpu():
    found = assign(run(algorithm="smm", unsupported="fallback", device="cuda:0"), [PLAIN], Library())
    assert found.algorithms == {"plain": "implicit precomp gemm"}


def test_on_a_cpu_the_way_on_is_pytorch():
    with pytest.raises(InputError, match="--unsupported fallback runs these with PyTorch"):
        assign(run(algorithm="smm"), [GROUPED], None)


def test_grouped_layers_are_counted_together():
    with pytest.raises(InputError, match="2 of 2 convolutions"):
        assign(run(algorithm="smm"), [GROUPED, layer(name="other", groups=8)], None)


def test_a_layer_that_the_fallback_cannot_take_either_stays_with_pytorch():
    reflecting = layer(name="reflecting", padding_mode="reflect")
    found = assign(run(algorithm="fft", unsupported="fallback", device="cuda:0"), [PLAIN, reflecting], Library())
    assert found.algorithms["reflecting"] == "torch"


def test_a_layer_called_twice_has_one_algorithm_that_both_calls_take():
    small, large = layer(name="shared"), layer(name="shared", position=1, in_height=400)
    found = assign(run(algorithm="fft", unsupported="skip", device="cuda:0"), [small, large], Library())
    assert found.algorithms == {"shared": "torch"}


def test_the_library_is_asked_once_for_each_shape():
    library = Library()
    why_not_each(find("gemm"), [PLAIN, layer(name="twin", position=5), STRIDED], "cuda", library)
    assert library.asked == [("plain", "gemm"), ("strided", "gemm")]


def test_the_library_is_not_asked_what_a_rule_forbids():
    library = Library()
    why_not_each(find("fft"), [STRIDED], "cuda", library)
    assert library.asked == []


@pytest.mark.parametrize(("algorithm", "kind"), [("torch", "cuda"), ("direct", "cpu")])
def test_cudnn_is_not_asked_about_what_it_does_not_run(algorithm: str, kind: str):
    library = Library("no")
    assert why_not_each(find(algorithm), [PLAIN], kind, library) == [None]
    assert library.asked == []
