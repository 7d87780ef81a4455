"""Candidates of samples, and the one card and cuDNN that they are of."""

from __future__ import annotations

import dataclasses
from typing import Any

import pandas as pd
import pytest
from fakes.drawn_samples import drawn, frame_of

from convscope.dataset.samples import SampleRow
from convscope.errors import InputError
from convscope.selection import stack
from convscope.selection.candidates import Candidate, Measured, Value, gathered, is_pinnable, keys
from convscope.selection.stack import Stack
from convscope.storage import wording
from convscope.timing.summary import half_width_ms

ROW = dataclasses.replace(next(drawn(1)), mean_ms=2.0, mean_ci95_ms=0.5, placements=5, cudnn="9.19.0", driver="580")


def frame(*rows: SampleRow) -> pd.DataFrame:
    return frame_of(rows)


def row(**changes: Any) -> SampleRow:
    return dataclasses.replace(ROW, **changes)


def only(found: Measured) -> Candidate:
    (by_name,) = found.candidates.values()
    (candidate,) = by_name.values()
    return candidate


def test_a_sample_is_a_candidate_with_its_interval():
    given = row(energy_j=0.3, energy_uncertainty_j=0.4, workspace_bytes=8, relative_error=1e-6, kernels='{"k": 2}')
    found = only(gathered(frame(given)))
    assert found.values == {"time": Value(2.0, 1.5, 2.5), "energy": Value(0.3, 0.0, 0.7)}
    assert (found.workspace_bytes, found.relative_error, found.kernels) == (8, 1e-6, {"k": 2})
    assert found.std_ms is not None
    assert half_width_ms(found.std_ms, 5) == pytest.approx(0.5)


def test_repeats_have_the_interval_that_holds_all_of_them():
    repeats = row(), row(run="b", mean_ms=2.2), row(run="c", mean_ms=1.9, workspace_bytes=8)
    found = gathered(frame(*repeats))
    assert only(found).values["time"] == Value(2.0, 1.4, pytest.approx(2.7))
    assert (only(found).std_ms, only(found).workspace_bytes, found.contradictions) == (None, None, 0)


def test_an_energy_alone_is_no_repeat_of_a_time():
    found = only(gathered(frame(row(), row(run="b", mean_ms=None, mean_ci95_ms=None, energy_j=0.5))))
    assert (found.values["time"].middle, found.values["energy"].middle, found.rounds) == (2.0, 0.5, 5)
    alone = gathered(frame(row(mean_ms=None, mean_ci95_ms=None, energy_j=0.5)))
    assert ([*only(alone).values], alone.contradictions) == (["energy"], 0)


def test_repeats_that_contradict_each_other_are_counted():
    assert gathered(frame(row(), row(run="b", mean_ms=3.5))).contradictions == 1


def test_one_time_has_no_interval():
    ends = only(gathered(frame(row(mean_ci95_ms=None)))).values["time"]
    assert (ends.low, ends.high) == (0.0, float("inf"))


def test_what_was_refused_once_is_no_candidate():
    found = gathered(frame(row(), row(run="b", status="wrong", reason="error 0.3", mean_ms=None)))
    assert found.candidates == {}
    assert [*found.refused.values()] == [{"gemm": "error 0.3"}]


def test_choices_of_somebody_and_rows_without_sizes_are_no_candidates():
    rows = row(algorithm="torch benchmark"), row(algorithm="guess"), row(in_height_px=None)
    assert gathered(frame(*rows)) == Measured({}, {}, 0)


@pytest.mark.parametrize("name", ["torch", "gemm", "direct", "smm", "plan:38:k2=8", "plan+packed:67"])
def test_algorithms_and_plans_can_be_pinned(name: str):
    assert is_pinnable(name)


@pytest.mark.parametrize("name", ["guess", "heuristic a", "autotune", "planned", "plan+steps:3", "torch benchmark"])
def test_choosers_and_what_is_fused_cannot(name: str):
    assert not is_pinnable(name)


def test_the_same_work_has_the_same_key_whatever_the_type_of_its_columns():
    one = frame(row())
    assert [*keys(one)] == [*keys(one.astype({"in_height_px": float}))]
    assert [*keys(one)] != [*keys(frame(row(stride="2x2")))]


def test_the_arithmetic_of_float32_tells_nothing_apart_in_16_bits():
    in_16, other = (frame(row(dtype="float16", math=math)) for math in ("tf32", "fp32"))
    assert [*keys(in_16)] == [*keys(other)]
    assert [*keys(frame(row(math="tf32")))] != [*keys(frame(row(math="fp32")))]


def test_one_card_and_one_cudnn_are_kept():
    every = frame(row(), row(gpu_name="NVIDIA H200", algorithm="fft"), row(cudnn="9.24.0", algorithm="fft"))
    here, kept = stack.narrowed(every, "Tesla T4", "9.19.0")
    assert here == Stack("Tesla T4", "9.19.0", "580")
    assert [*kept["algorithm"]] == ["gemm"]
    assert stack.narrowed(every, "h200", None)[0].gpu_name == "NVIDIA H200"


def test_a_cpu_has_no_cudnn():
    here, kept = stack.narrowed(frame(row(gpu_name="AMD EPYC", cudnn=None, driver=None)), None, None)
    assert (here, here.device_type, len(kept)) == (Stack("AMD EPYC", None), "cpu", 1)


def test_several_drivers_are_not_named():
    assert stack.narrowed(frame(row(), row(run="b", driver="590")), None, None)[0].driver is None


@pytest.mark.parametrize(
    ("others", "asked", "expected"),
    [
        ({"gpu_name": "NVIDIA H200"}, (None, None), "several cards: name one .* by --gpu: NVIDIA H200; Tesla"),
        ({}, ("h100", None), "--gpu h100: name one of the samples' cards by --gpu: Tesla T4"),
        ({"cudnn": "9.24.0"}, (None, None), "several versions of cuDNN: say --cudnn, one of 9.19.0, 9.24.0"),
        ({"cudnn": None}, (None, None), "say --cudnn, one of none, 9.19.0"),
        ({}, (None, "9.1.0"), "--cudnn 9.1.0: Tesla T4 has samples of 9.19.0"),
        (
            {"timing_method": "a watch"}, (None, None),
            "samples of 1 shape were timed in several ways, .* compared: a watch; events: leave a file out",
        ),
    ],
)  # fmt: skip
def test_several_stacks_are_never_mixed(others: dict[str, Any], asked: tuple[Any, Any], expected: str):
    every = frame(row(timing_method="events"), row(**{"timing_method": "events", **others, "algorithm": "fft"}))
    with pytest.raises(InputError, match=expected):
        stack.narrowed(every, *asked)


def test_shapes_that_were_timed_in_different_ways_are_not_compared_with_each_other():
    energy = row(timing_method=None, mean_ms=None, energy_j=0.3, algorithm="fft")
    every = frame(row(timing_method="events"), row(timing_method="a watch", stride="2x2"), energy)
    assert len(stack.narrowed(every, None, None)[1]) == 3
    without_sizes = [row(timing_method=way, in_height_px=None, run=way) for way in ("events", "a watch")]
    assert len(stack.narrowed(frame(*without_sizes), None, None)[1]) == 2


def test_samples_with_an_earlier_text_of_their_timing_method_are_of_the_same_method():
    earlier, now = next(iter(wording.PRESENT.items()))
    every = frame(row(timing_method=earlier), row(timing_method=now, algorithm="fft"), row(algorithm="gemm"))
    assert len(stack.narrowed(every, None, None)[1]) == 3
