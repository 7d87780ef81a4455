"""The real library through ctypes, as far as it goes without a GPU: loading, versions, structures, errors, shapes."""

from __future__ import annotations

import ctypes

import pytest
import torch
from fakes.strategies import Case, cases
from hypothesis import given

from convscope.convolution import backends, operator
from convscope.cudnn import legacy, library
from convscope.cudnn.shape import Convolution
from convscope.errors import CudnnError, CudnnMissingError, InputError, NotSupportedError

BAD_PARAM, NOT_SUPPORTED, ARCH_MISMATCH, EXECUTION_FAILED = 2000, 3000, 3007, 5000


def test_the_version_is_the_one_that_pytorch_has_loaded():
    major, minor, patch = (int(part) for part in library.version().split("."))
    assert major * 10000 + minor * 100 + patch == torch.backends.cudnn.version()


@pytest.mark.parametrize("number", [None, torch.backends.cudnn.version()])
def test_pytorchs_own_version_and_none_are_no_difference(number: int | None):
    library.check_same_as(number)


def test_another_version_than_pytorchs_ends_the_command_in_one_line_with_both_and_the_path(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(torch.backends.cudnn, "version", lambda: 91903)
    with pytest.raises(InputError) as refused:
        backends.check_cudnn()
    assert refused.value.exit_code == 2
    said = str(refused.value)
    assert said.startswith(f"{library._library_path()} is cuDNN {library.version()}, PyTorch runs 9.19.3, ")
    assert "==9.19.3.*" in said
    assert "\n" not in said
    with pytest.raises(InputError, match=r"PyTorch runs 9\.19\.3"):
        operator.cuda_operator.__wrapped__()
    with pytest.raises(InputError, match=r"PyTorch runs 9\.19\.3"):
        backends.environment_on(torch.device("cuda:0"), {})


def test_what_pytorch_itself_finds_wrong_with_its_cudnn_is_one_line(monkeypatch: pytest.MonkeyPatch):
    def refuse() -> int:
        raise RuntimeError("cuDNN version incompatibility: PyTorch was compiled against (9, 19, 0)\nmore")

    monkeypatch.setattr(torch.backends.cudnn, "version", refuse)
    with pytest.raises(InputError, match=r"cuDNN version incompatibility: .*\(9, 19, 0\)$"):
        backends.check_cudnn()


def test_the_library_is_loaded_once():
    assert library.library() is library.library()


@pytest.mark.parametrize("name", library._SIGNATURES)
def test_every_call_takes_the_arguments_written_beside_it(name: str):
    assert getattr(library.library(), name).argtypes == library._SIGNATURES[name]


def test_a_library_that_is_not_there_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(library, "_library_path", lambda: "libcudnn-of-nobody.so.9")
    with pytest.raises(CudnnMissingError, match=r"cuDNN 9 cannot be loaded .*install PyTorch's CUDA wheels"):
        library.library.__wrapped__()


def test_success_is_no_error():
    assert library.check(0, "cudnnCreate") is None


@pytest.mark.parametrize("status", [NOT_SUPPORTED, ARCH_MISMATCH])
def test_a_refusal_is_an_error_of_its_own(status: int):
    with pytest.raises(NotSupportedError, match=r"cudnnConvolutionForward: CUDNN_STATUS_NOT_SUPPORTED"):
        library.check(status, "cudnnConvolutionForward")


@pytest.mark.parametrize(("status", "name"), [(BAD_PARAM, "BAD_PARAM"), (EXECUTION_FAILED, "EXECUTION_FAILED")])
def test_any_other_failure_names_the_call_and_the_status(status: int, name: str):
    with pytest.raises(CudnnError, match=rf"cudnnSetStream: CUDNN_STATUS_{name}") as failed:
        library.check(status, "cudnnSetStream")
    assert not isinstance(failed.value, NotSupportedError)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_a_handle_says_that_cudnn_could_not_start():
    with pytest.raises(CudnnError, match=r"cudnnCreate: CUDNN_STATUS_"):
        legacy.Handle()


def test_the_ranking_of_algorithms_is_laid_out_as_in_the_header():
    """int, int, float, padding, size_t, int, int, int[3], padding: 48 bytes on a 64-bit machine."""
    entry = library.AlgorithmPerformance
    assert ctypes.sizeof(entry) == 48
    assert (entry.memory_bytes.offset, entry.determinism.offset, entry.reserved.offset) == (16, 24, 32)


class NoHandle:
    """A stand-in for the source of a plan's context."""

    pointer = 0


def described(convolution: Convolution) -> legacy.LegacyPlan:
    """Return the plan that got as far as a plan does without a context: described, then refused, then closed."""
    plan = object.__new__(legacy.LegacyPlan)
    with pytest.raises(CudnnError, match="cudnnGetConvolutionForwardWorkspaceSize: CUDNN_STATUS_BAD_PARAM"):
        plan.__init__(NoHandle(), convolution, algorithm=1)
    return plan


@given(cases())
def test_cudnn_expects_the_output_that_pytorch_computes(case: Case):
    conv = case.conv
    convolution = Convolution(
        case.shape, tuple(conv.weight.shape), conv.padding, conv.stride, conv.dilation, conv.groups
    )
    assert described(convolution).output_shape == convolution.output == tuple(conv(case.input()).shape)


def test_three_spatial_dimensions_are_described_by_the_same_calls():
    convolution = Convolution(
        (2, 4, 8, 9, 10), (6, 4, 3, 3, 1), padding=(1, 0, 0), stride=(1, 2, 1), dilation=(1, 1, 1)
    )
    assert described(convolution).output_shape == convolution.output == (2, 6, 8, 4, 10)


@pytest.mark.parametrize("dtype", library.DATA_TYPES)
def test_every_data_type_can_be_described(dtype: str):
    convolution = Convolution((1, 4, 8, 8), (4, 4, 3, 3), (1, 1), (1, 1), (1, 1), dtype=dtype)
    assert described(convolution).output_shape == (1, 4, 8, 8)


@pytest.mark.parametrize("shape", [(2, 3, 4, 5), (1, 8, 1, 1), (2, 3, 4, 5, 6), (2, 1, 3, 3)])
def test_strides_are_those_of_pytorch(shape: tuple[int, ...]):
    channels_last = torch.channels_last if len(shape) == 4 else torch.channels_last_3d
    assert legacy.strides(shape, "nchw") == list(torch.empty(shape).stride())
    assert legacy.strides(shape, "nhwc") == list(torch.empty(shape, memory_format=channels_last).stride())


def test_channels_last_is_described_to_cudnn():
    seen: list[int] = []

    def strides(descriptor: int) -> list[int]:
        rank, kind = ctypes.c_int(), ctypes.c_int()
        sizes, found = (ctypes.c_int * 4)(), (ctypes.c_int * 4)()
        read = library.library().cudnnGetTensorNdDescriptor
        library.check(
            read(ctypes.c_void_p(descriptor), 4, ctypes.byref(kind), ctypes.byref(rank), sizes, found), "read back"
        )
        return list(found)

    class Seen(legacy.LegacyPlan):
        def _workspace_bytes(self, handle: legacy.Handle) -> int:
            seen.extend(strides(self._x) + strides(self._y))
            return 0

    Seen(NoHandle(), Convolution((2, 3, 8, 8), (4, 3, 3, 3), (0, 0), (1, 1), (1, 1), layout="nhwc"), 1).close()
    assert seen == [192, 1, 24, 3, 144, 1, 24, 4]


@pytest.mark.parametrize(
    ("dtype", "math", "expected"),
    [
        ("float32", "tf32", 0), ("float32", "fp32", 3),
        ("float16", "tf32", 1), ("float16", "fp32", 1), ("bfloat16", "fp32", 1),
    ],
)  # fmt: skip
def test_the_arithmetic_that_is_asked_for_is_set(monkeypatch: pytest.MonkeyPatch, dtype: str, math: str, expected: int):
    found, call = ctypes.c_int(-1), legacy.call

    def read_back(name: str, *arguments: object) -> None:
        call(name, *arguments)
        if name == "cudnnSetConvolutionMathType":
            descriptor = ctypes.c_void_p(arguments[0])
            library.check(library.library().cudnnGetConvolutionMathType(descriptor, ctypes.byref(found)), "read back")

    monkeypatch.setattr(legacy, "call", read_back)
    shape = (1, 4, 8, 8), (4, 4, 3, 3), (1, 1), (1, 1), (1, 1)
    described(Convolution(*shape, dtype=dtype, math=math))
    assert found.value == expected


def test_a_run_hands_over_each_address_beside_its_descriptor():
    class Idle(legacy.LegacyPlan):
        def _workspace_bytes(self, handle: legacy.Handle) -> int:
            return 64

    class Context(NoHandle):
        argument = ctypes.c_void_p(5)

    plan, seen = Idle(Context(), Convolution((2, 3, 8, 8), (4, 3, 3, 3), (0, 0), (1, 1), (1, 1)), 6), []
    plan._forward = lambda *arguments: seen.extend(getattr(each, "value", each) for each in arguments) or 0
    plan.run(Context(), x=1001, w=1002, y=1003, workspace=1004)
    alpha, beta = plan._alpha.value, plan._beta.value
    assert seen == [5, alpha, plan._x, 1001, plan._w, 1002, plan._conv, 6, 1004, 64, beta, plan._y, 1003]
    assert [ctypes.c_float.from_address(factor).value for factor in (alpha, beta)] == [1.0, 0.0]
    plan.close()


def test_a_plan_that_failed_has_destroyed_its_descriptors(monkeypatch: pytest.MonkeyPatch):
    calls: list[str] = []
    call = legacy.call
    monkeypatch.setattr(legacy, "call", lambda name, *arguments: (calls.append(name), call(name, *arguments)))
    described(Convolution((1, 4, 8, 8), (4, 4, 3, 3), (1, 1), (1, 1), (1, 1)))
    created = sorted(name.removeprefix("cudnnCreate") for name in calls if name.startswith("cudnnCreate"))
    destroyed = sorted(name.removeprefix("cudnnDestroy") for name in calls if name.startswith("cudnnDestroy"))
    assert destroyed == created == ["ConvolutionDescriptor", "FilterDescriptor", "TensorDescriptor", "TensorDescriptor"]


def test_channels_that_do_not_fit_the_weights_are_an_error():
    with pytest.raises(CudnnError, match="cudnnGetConvolutionNdForwardOutputDim"):
        legacy.LegacyPlan(NoHandle(), Convolution((1, 5, 8, 8), (4, 4, 3, 3), (1, 1), (1, 1), (1, 1)), 1)
