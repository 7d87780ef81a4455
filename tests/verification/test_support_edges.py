"""The survey of a card, which a fake stands for: limits that are just kept, refusals, what is run once."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace

import pytest
import torch
from fakes import ENVIRONMENT, layer, run
from fakes.kernel_names import FFT_KERNEL, GROUPED_DIRECT, TO_NHWC, XMMA_FFMA

from convscope.convolution import backends
from convscope.convolution.layer import Layer
from convscope.errors import CudnnError, NotSupportedError, TraceMissingError
from convscope.verification import support, trial
from convscope.verification.evidence import Subject
from convscope.verification.support import Answer, Outcome

CPU = torch.device("cpu")
SMALL = layer(in_channels=4, out_channels=8, in_height=12, in_width=12, bias=False)


class Operator:
    """cuDNN as far as a survey asks it: workspaces and refusals by algorithm, and results of PyTorch."""

    def __init__(self) -> None:
        self.workspaces: dict[str, int] = {}
        self.refused: dict[str, str] = {}  # for every shape
        self.refused_shapes: dict[str, str] = {}  # for all but the easy one
        self.refused_types: dict[str, str] = {}  # for all but float32
        self.fails: dict[str, Exception] = {}
        self.factors: dict[str, float] = {}
        self.asked: list[tuple[Layer, str]] = []
        self.limits: set[int | None] = set()  # of the blocks that a Triton kernel may choose

    def workspace_bytes(self, device: torch.device, layer: Layer, algorithm: str, dtype: str) -> int:
        self.asked.append((layer, algorithm))
        self.limits.add(backends.settings_in_force().max_workspace_bytes)
        reason = self.refused.get(algorithm)
        reason = reason or (self.refused_shapes.get(algorithm) if layer != support.EASY else None)
        reason = reason or (self.refused_types.get(algorithm) if dtype != "float32" else None)
        if reason:
            raise NotSupportedError(reason)
        return self.workspaces.get(algorithm, 0)

    def convolve(self, x: torch.Tensor, w: torch.Tensor, layer: Layer, algorithm: str) -> torch.Tensor:
        if algorithm in self.fails:
            raise self.fails[algorithm]
        exact = torch.nn.functional.conv2d(x.double(), w.double(), None, *layer.options)
        return (exact * self.factors.get(algorithm, 1.0)).to(x.dtype)


@pytest.fixture
def operator(monkeypatch: pytest.MonkeyPatch) -> Operator:
    made = Operator()

    def record(steps: Sequence[Callable[[], object]]) -> list[SimpleNamespace]:
        for step in steps:
            step()
        return [SimpleNamespace(kernels={f"kernel {index}": 1}) for index, _ in enumerate(steps)]

    for module in (support, trial):
        monkeypatch.setattr(module, "cuda_operator", lambda: made)
    monkeypatch.setattr(trial.trace, "record_each", record)
    return made


@pytest.fixture(autouse=True)
def in_float32() -> Iterator[None]:
    with backends.math("fp32"):
        yield


def every(limit_bytes: int = 0, dtype: str = "float32") -> dict[str, Outcome]:
    """Return the outcome of each algorithm for a small layer."""
    return {one.algorithm: one for one in support._Trial(SMALL, CPU, dtype).every(limit_bytes)}


def test_an_algorithm_that_runs_and_is_exact_is_ok_with_its_kernels(operator: Operator):
    operator.workspaces["fft"] = 7
    found = every(7)
    assert list(found) == list(support.ALGORITHMS)
    assert {one.answer.status for one in found.values()} == {support.OK}
    assert found["fft"].answer.workspace_bytes == 7
    assert [one.kernels for one in found.values()] == [{f"kernel {index}": 1} for index in range(8)]


def test_a_workspace_that_just_fits_is_used_and_one_byte_more_is_not(operator: Operator):
    operator.workspaces |= {"gemm": 8, "fft": 9}
    found = every(8)
    assert found["gemm"].answer.status == support.OK
    reason = "needs a workspace of 9 bytes, allowed are 8"
    assert found["fft"] == Outcome("fft", Answer(support.WORKSPACE, reason, 9))


def test_a_refusal_is_of_the_shape_where_the_easy_one_is_taken(operator: Operator):
    operator.refused_shapes["fft"] = "cuDNN says no"
    assert every()["fft"].answer == Answer(support.SHAPE, "cuDNN says no")


def test_a_refusal_is_of_the_type_where_the_easy_shape_is_taken_in_float32(operator: Operator):
    operator.refused_types["fft"] = "cuDNN says no"
    assert every(dtype="float16")["fft"].answer == Answer(support.TYPE, "cuDNN says no")


def test_what_is_refused_altogether_is_not_on_this_generation_and_direct_was_never_there(operator: Operator):
    operator.refused |= {"winograd": "no", "direct": "no"}
    found = every()
    assert found["winograd"].answer.status == support.GENERATION
    assert found["direct"].answer.status == support.NEVER


@pytest.mark.parametrize("error", [CudnnError("it broke\nat night"), torch.OutOfMemoryError("it broke\nhere")])
def test_an_algorithm_that_fails_when_run_says_its_first_line(operator: Operator, error: Exception):
    operator.fails["gemm"], operator.workspaces["gemm"] = error, 5
    assert every(5)["gemm"].answer == Answer(support.FAILED, "it broke", 5)


def test_a_wrong_result_is_not_traced(operator: Operator):
    operator.factors["gemm"] = 1.001
    found = every()["gemm"]
    assert found.answer.status == "wrong"
    assert found.answer.relative_error == pytest.approx(0.001, rel=0.01)
    assert found.kernels is None


def test_without_cupti_no_kernels_are_known(operator: Operator, monkeypatch: pytest.MonkeyPatch):
    def record(steps: object) -> None:
        raise TraceMissingError("not permitted")

    monkeypatch.setattr(trial.trace, "record_each", record)
    assert {one.kernels for one in every().values()} == {None}


def test_the_numbers_of_a_trial_are_seeded_and_give_results_of_about_one():
    tried = trial.Trial(SMALL, CPU, "float32")
    generator = torch.Generator().manual_seed(0)
    assert torch.equal(tried._x, torch.randn(SMALL.input, generator=generator))
    assert torch.equal(tried._w, torch.randn(SMALL.weight, generator=generator) * SMALL.terms**-0.5)
    assert float(tried._exact.std()) == pytest.approx(1.0, rel=0.1)


@pytest.mark.parametrize(("dtype", "storage"), [("float32", 0.0), ("float16", 2 * 2.0**-11), ("bfloat16", 2 * 2.0**-8)])
def test_an_error_that_is_just_allowed_is_ok(dtype: str, storage: float):
    allowed = (16 + 8 * 12) * 2.0**-24 + storage
    assert support.judged(layer(), "gemm", allowed, 3, dtype) == Answer(support.OK, None, 3, allowed)
    more = math.nextafter(allowed, 1.0)
    reason = f"its error against float64 is {more:.1e}, allowed are {allowed:.1e}"
    assert support.judged(layer(), "gemm", more, 3, dtype) == Answer("wrong", reason, 3, more)


def test_an_error_is_judged_by_the_math_in_force_and_a_reference_of_zero_by_nothing():
    allowed = (16 + 8 * 12) * 2.0**-24 + 2 * 2.0**-11
    with backends.math("tf32"):
        assert support.judged(layer(), "gemm", allowed, 0, "float32").status == support.OK
    assert support.judged(layer(), "gemm", allowed, 0, "float32").status == "wrong"
    assert support.judged(layer(), "gemm", None, 0, "float32") == Answer(support.OK, None, 0, None)


def test_the_easy_shape_is_one_that_every_rule_takes():
    easy = Layer.of_sizes(
        "easy", 0, batch=1, in_channels=64, out_channels=64, size=(56, 56), kernel=(3, 3), padding=(1, 1)
    )
    assert easy == support.EASY
    answers = {name: support.predict(support.EASY, name, (8, 0)).status for name in support.ALGORITHMS}
    assert answers == dict.fromkeys(support.ALGORITHMS, support.OK) | {"direct": support.NEVER}


@pytest.fixture
def card(operator: Operator, monkeypatch: pytest.MonkeyPatch) -> Operator:
    """A Hopper card with 8 of 100 bytes free."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (8, 100))
    return operator


def subject(*layers: Layer) -> Subject:
    asked = run(device="cuda:0", input_sizes=(224, 96))
    return Subject(asked, torch.nn.Identity(), layers, torch.zeros(1))


def test_each_shape_is_asked_once_and_every_layer_has_a_row_for_each_algorithm(card: Operator):
    twin = SMALL.resized(name="twin", position=1)
    other = SMALL.resized(name="other", position=2, out_channels=4)
    found = support.survey(subject(SMALL, twin, other), ENVIRONMENT)
    names = [one.layer for one in found]
    assert names == [SMALL.name] * 8 + ["twin"] * 8 + ["other"] * 8
    assert {one.input_size for one in found} == {224}
    assert len(card.asked) == 16
    by_name = {one.algorithm: one for one in found}
    assert by_name["winograd"].predicted_status == support.GENERATION
    assert by_name["winograd"].agrees is False
    assert by_name["gemm"].agrees is True


@pytest.mark.parametrize(
    ("limit_bytes", "status"), [(None, support.WORKSPACE), (9, support.OK), (8, support.WORKSPACE)]
)
def test_the_free_memory_is_the_limit_where_none_is_given(card: Operator, limit_bytes: int | None, status: str):
    card.workspaces["fft"] = 9
    found = support.survey(subject(SMALL), ENVIRONMENT, limit_bytes)
    assert [one.status for one in found if one.algorithm == "fft"] == [status]
    assert card.limits == {limit_bytes}, "a Triton kernel must choose among what is allowed"


def row(one: Outcome, predicted: Answer, *siblings: Outcome) -> support.SupportRow:
    asked = run(device="cuda:0", input_sizes=(224, 96))
    return support.row(asked, ENVIRONMENT, "float16", layer(), one, predicted, siblings or (one,))


def test_a_row_has_the_kernels_and_their_families_in_order():
    kernels = {XMMA_FFMA: 2, FFT_KERNEL: 1, TO_NHWC: 3}
    found = row(Outcome("fft", Answer(support.OK, None, 4, 1e-7), kernels), Answer(support.OK))
    assert found.families == "FFT, precomputed implicit GEMM"
    assert json.loads(found.kernels or "") == kernels
    assert (found.dtype, found.workspace_bytes, found.relative_error) == ("float16", 4, 1e-7)
    assert row(Outcome("fft", Answer(support.OK)), Answer(support.OK)).kernels is None


def test_the_work_of_algorithms_is_the_same_where_kernels_and_counts_are():
    first, more, none = (Outcome(name, Answer(support.OK), found) for name, found in (
        ("gemm", {GROUPED_DIRECT: 1}), ("fft", {GROUPED_DIRECT: 2}), ("winograd", {}),
    ))  # fmt: skip
    last = Outcome("fft tiling", Answer(support.OK), {GROUPED_DIRECT: 2})
    siblings = [none, first, more, last]
    assert [support.same_kernels_as(one, siblings) for one in siblings] == [None, None, None, "fft"]


def test_the_summary_has_a_line_for_each_algorithm_with_counted_reasons():
    refused = row(Outcome("fft", Answer(support.SHAPE, "too wide")), Answer(support.OK))
    other = row(Outcome("fft", Answer(support.FAILED, "it broke")), Answer(support.OK))
    fine = row(Outcome("fft", Answer(support.OK), {FFT_KERNEL: 1}), Answer(support.OK))
    earlier = Outcome("gemm", Answer(support.OK), {FFT_KERNEL: 1})
    tied = row(Outcome("fft", Answer(support.OK), {FFT_KERNEL: 1}), Answer(support.OK), earlier)
    by_name = {line[0]: line[1:] for line in support.summary([other, refused, refused, fine, tied])}
    assert list(by_name) == list(support.ALGORITHMS)
    notes = "shape: too wide (2); failed when run: it broke (1); same kernels as gemm (1)"
    assert by_name["fft"] == ("2 of 5", notes)
    assert by_name["gemm"] == ("0 of 0", "")


def test_only_rows_that_differ_are_disagreements():
    agreed = row(Outcome("fft", Answer(support.OK)), Answer(support.OK))
    unknown = row(Outcome("fft", Answer(support.WORKSPACE, "too much", 9)), Answer(support.OK))
    differing = row(Outcome("fft", Answer(support.SHAPE, "no")), Answer(support.OK))
    lines = support.disagreements([agreed, unknown, differing])
    assert lines == ["features.0, fft: predicted ok, found shape (no)"]
