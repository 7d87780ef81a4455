"""Samples of several runs as one table: kept once, kept all, and conflicts that are shown and never averaged."""

from __future__ import annotations

import dataclasses
import itertools
from pathlib import Path
from typing import Any

import pytest
from fakes.drawn_samples import measured

from convscope.dataset import ranked_plans, samples
from convscope.dataset.package import merging
from convscope.dataset.package.merging import STATUSES, TIMES, ContradictionError
from convscope.dataset.samples import SampleRow
from convscope.storage import wording

T4 = ("Tesla T4",)
ROW = measured(1, T4)[0]
AGAIN = dataclasses.replace(ROW, run="node2 GPU-20 2026-01-02T10:00:00+00:00")


def written(path: Path, *rows: SampleRow) -> Path:
    samples.write(path, rows)
    return path


def test_a_row_that_stands_in_two_files_is_kept_once(tmp_path: Path):
    rows = measured(5, T4)
    one, two = written(tmp_path / "a.csv", *rows), written(tmp_path / "b.csv", *rows[3:])
    kept, again = merging.merged([one, two])
    assert (len(kept), again) == (len(rows), len(rows) - 3)


def test_the_table_is_the_same_in_whatever_order_files_come(tmp_path: Path):
    one, two = written(tmp_path / "a.csv", *measured(5, T4)), written(tmp_path / "b.csv", *measured(5, T4, run=2))
    assert merging.merged([one, two]) == merging.merged([two, one])


def test_a_row_whose_plans_only_one_file_says_is_the_same_row(tmp_path: Path):
    said = dataclasses.replace(ROW, ranked_plans="7")
    one, two = written(tmp_path / "a.csv", ROW), written(tmp_path / "b.csv", said)
    assert merging.merged([one, two]) == merging.merged([two, one]) == ([merging.published(said)], 1)
    other = written(tmp_path / "c.csv", dataclasses.replace(ROW, ranked_plans="8"))
    with pytest.raises(ContradictionError, match="ranked_plans 7 and 8"):
        merging.merged([one, two, other])


def test_plans_that_were_asked_for_with_a_card_are_kept_where_the_others_agree(tmp_path: Path):
    card, description = ranked_plans.CARD, ranked_plans.DESCRIPTION
    known = [(None, None), ("7;0", None), ("7;0", description), ("58:k25=0;7;0", card)]
    said = [dataclasses.replace(ROW, ranked_plans=plans, ranked_for=about) for plans, about in known]
    paths = [written(tmp_path / f"{number}.csv", each) for number, each in enumerate(said)]
    for order in itertools.permutations(paths):
        assert merging.merged(order) == ([merging.published(said[-1])], len(said) - 1)
    other = written(tmp_path / "other.csv", dataclasses.replace(ROW, ranked_plans="0;7", ranked_for=description))
    with pytest.raises(ContradictionError, match=r"ranked_plans 58:k25=0;7;0 and 0;7"):
        merging.merged([paths[-1], other])


def test_rows_of_one_run_that_differ_are_refused_with_both_values(tmp_path: Path):
    one = written(tmp_path / "a.csv", ROW)
    two = written(tmp_path / "b.csv", dataclasses.replace(ROW, mean_ms=99.5))
    with pytest.raises(ContradictionError, match=r"says two things: .*b\.csv: gemm, .* mean_ms .* and 99.5: leave one"):
        merging.merged([one, two])


@pytest.mark.parametrize(("earlier", "now"), wording.PRESENT.items())
def test_a_row_with_an_earlier_text_of_its_timing_method_is_the_same_row_and_keeps_the_present_text(
    tmp_path: Path, earlier: str, now: str
):
    paths = [
        written(tmp_path / f"{number}.csv", dataclasses.replace(ROW, timing_method=method))
        for number, method in enumerate((earlier, now))
    ]
    for files, count in ((paths, 1), (paths[::-1], 1), (paths[:1], 0)):
        (kept,), again = merging.merged(files)
        assert (kept.timing_method, again) == (now, count)


def test_times_of_an_earlier_version_are_left_out_where_their_shapes_are_timed_anew():
    earlier = dataclasses.replace(ROW, timing_method=samples.EVICTED)
    refused = dataclasses.replace(earlier, algorithm="fft", mean_ms=None, status="unsupported", reason="not here")
    joules = dataclasses.replace(earlier, algorithm="winograd", energy_j=1.5, energy_uncertainty_j=0.1)
    other = dataclasses.replace(earlier, stride="2x2")
    anew = dataclasses.replace(AGAIN, timing_method=samples.SHARE)
    kept, count = merging.without_outdated([earlier, refused, joules, other, anew])
    alone = dataclasses.replace(joules, mean_ms=None, mean_ci95_ms=None, placements=None, timing_method=None)
    assert kept == [alone, other, anew]
    assert count == 2
    assert merging.without_outdated([earlier, refused, joules, other]) == ([earlier, refused, joules, other], 0)


@pytest.mark.parametrize(
    "changes",
    [
        {"gpu_name": "NVIDIA H200"},
        {"cudnn": "9.1.0"},
        {"math": "tf32"},
        {"stride": "2x2"},
        {"mean_ms": None, "status": "wrong"},
    ],
)
def test_an_earlier_time_stays_where_nothing_of_the_same_shape_card_and_library_was_timed_anew(changes: dict[str, Any]):
    earlier = dataclasses.replace(ROW, timing_method=samples.EVICTED)
    other = dataclasses.replace(AGAIN, timing_method=samples.SHARE, **changes)
    assert merging.without_outdated([earlier, other]) == ([earlier, other], 0)


def test_rows_of_one_run_timed_in_two_ways_are_refused(tmp_path: Path):
    one, two = (written(tmp_path / f"{way}.csv", dataclasses.replace(ROW, timing_method=way)) for way in "ab")
    with pytest.raises(ContradictionError, match=r"says two things: .* timing_method a and b: leave one"):
        merging.merged([one, two])


def test_repeats_are_all_kept_with_their_own_times(tmp_path: Path):
    other = dataclasses.replace(AGAIN, mean_ms=2 * (ROW.mean_ms or 0))
    kept, _ = merging.merged([written(tmp_path / "a.csv", ROW), written(tmp_path / "b.csv", other)])
    assert sorted(row.mean_ms or 0 for row in kept) == sorted([ROW.mean_ms, other.mean_ms])  # type: ignore[type-var]


def conflicts_of(**changes: object) -> list[tuple[str, float | None]]:
    other = dataclasses.replace(AGAIN, **changes)  # type: ignore[arg-type]
    one = dataclasses.replace(ROW, mean_ms=1.0, mean_ci95_ms=0.02)
    return [(each.kind, each.allowed_ms) for each in merging.conflicts([one, other])]


def test_means_apart_by_more_than_both_intervals_are_a_conflict():
    assert conflicts_of(mean_ms=1.06, mean_ci95_ms=0.03) == [(TIMES, pytest.approx(0.05))]
    assert conflicts_of(mean_ms=1.04, mean_ci95_ms=0.03) == []


def test_a_time_without_an_interval_is_in_no_conflict():
    assert conflicts_of(mean_ms=9.0, mean_ci95_ms=None) == []


def test_another_status_is_a_conflict_and_one_of_chance_is_none():
    refused = {"mean_ms": None, "mean_ci95_ms": None}
    assert conflicts_of(**refused, status="unsupported", reason="no") == [(STATUSES, None)]
    assert conflicts_of(**refused, status="lost the GPU", reason="no") == []


def test_other_work_another_card_or_another_cudnn_is_no_repeat():
    for changes in ({"stride": "2x2"}, {"gpu_name": "Tesla P4"}, {"cudnn": "9.20.0"}):
        assert conflicts_of(mean_ms=9.0, mean_ci95_ms=0.01, **changes) == []


def test_of_many_repeats_the_two_that_are_farthest_apart_are_shown():
    times = [1.0, 1.5, 3.0, 2.0]
    rows = [dataclasses.replace(ROW, run=f"run {ms}", mean_ms=ms, mean_ci95_ms=0.01) for ms in times]
    assert [(each.sample, each.other_sample) for each in merging.conflicts(rows)] == [(0, 2)]


@pytest.mark.parametrize(
    ("run", "public", "card"),
    [
        ("node1 GPU-12-ab 2026-01-01T10:00:00+00:00", "GPU-12-ab 2026-01-01T10:00:00+00:00", "GPU-12-ab"),
        ("node1 cpu 2026-01-01T10:00:00+00:00", "cpu 2026-01-01T10:00:00+00:00", "cpu"),
        ("neusight Tesla_P4.csv", "neusight Tesla_P4.csv", None),
    ],
)
def test_the_host_is_left_out_and_the_card_stays(run: str, public: str, card: str | None):
    assert merging.public_run(run) == public
    assert merging.public_run(public) == public
    assert merging.card_of(public) == card
