"""PyTorch's search takes the least of what its plans take, as far as that is known."""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from fakes.drawn_samples import CARDS, drawn, frame_of

from convscope.dataset import choices
from convscope.dataset.samples import SampleRow
from convscope.prediction import document, predictor
from convscope.prediction.features import features
from convscope.prediction.learners import search
from convscope.prediction.predictor import Predictor

UNMEASURED = "k2=9"
FACTORS = {"1": 4.0, "2": 1.0, "6": 2.0, "7": 8.0}
"""Times of a call by each plan, over the time of the shape."""


def of_search(count: int, seed: int = 0, cards: Sequence[str] = ("Tesla T4",)) -> list[SampleRow]:
    """Return shapes by four plans, and by a search among two of them that no size of a shape explains, and one slow."""
    found = []
    for row in drawn(count, cards, noise=0.01, seed=seed):
        size = repr((row.in_channels, row.out_channels, row.in_height_px, row.batch_size))
        listed = ("1;7", "6;1", "2;7")[zlib.crc32(size.encode()) % 3]
        ranked = f"{listed};7:{UNMEASURED}"
        row = dataclasses.replace(row, cudnn="9.19.0", ranked_plans=ranked, math="tf32")
        took = {f"plan:{name}": factor for name, factor in FACTORS.items()}
        took[choices.SEARCH] = min(took[f"plan:{name}"] for name in listed.split(";"))
        found += [dataclasses.replace(row, algorithm=name, mean_ms=each * row.mean_ms) for name, each in took.items()]
    return found


def of_searches(rows: list[SampleRow]) -> pd.DataFrame:
    return frame_of(row for row in rows if row.algorithm == choices.SEARCH)


def missed(made: Predictor, frame: pd.DataFrame) -> float:
    return float(np.abs(made.predict(frame).middle / frame["mean_ms"] - 1).mean())


def covered(made: Predictor, frame: pd.DataFrame) -> float:
    found = made.predict(frame)
    return float(((found.low <= frame["mean_ms"]) & (frame["mean_ms"] <= found.high)).mean())


@pytest.fixture(scope="module")
def made() -> Predictor:
    return predictor.fit(frame_of(of_search(200)), "time", {})


ASKED = of_searches(of_search(40, seed=5))


def test_a_search_takes_what_the_fastest_of_its_plans_takes(made: Predictor):
    assert missed(made, ASKED) < 0.15
    assert min(made.search.shares.values()) >= 0.9


@pytest.mark.parametrize("changes", [{"ranked_plans": None}, {"cudnn": "9.24.0"}], ids=str)
def test_where_its_plans_are_not_known_it_is_predicted_from_other_searches(made: Predictor, changes: dict[str, object]):
    unknown = ASKED.assign(**changes)
    assert missed(made, unknown) > 0.3
    assert covered(made, unknown) > 0.8


@pytest.mark.parametrize("unit", ["rows", "size", "family"])
def test_it_is_learned_with_any_intervals(unit: str):
    found = predictor.fit(frame_of(of_search(200)), "time", {}, unit)
    assert min(found.search.shares.values()) >= 0.9
    assert missed(found, ASKED) < 0.15


def test_a_search_on_a_new_card_is_predicted_from_other_searches():
    found = predictor.fit(frame_of(of_search(60, cards=tuple(CARDS))), "time", {}, "gpu")
    assert found.search == search.Search()
    assert np.isfinite(found.predict(ASKED).middle).all()


def test_intervals_are_of_the_estimate_by_both(made: Predictor):
    without = predictor.fit(frame_of(of_search(200)).assign(ranked_plans=None), "time", {})
    own, of_calls = (each.predict(ASKED) for each in (made, without))
    assert np.log(own.high / own.low).mean() < 0.4 * np.log(of_calls.high / of_calls.low).mean()
    assert covered(made, ASKED) > 0.8


def test_it_stays_in_a_document(made: Predictor, tmp_path: Path):
    launches = {"float32 tf32 nchw, dense, plan:1": 3.0}
    made = dataclasses.replace(made, search=dataclasses.replace(made.search, launches=launches, hosts={"plan:1": 10.0}))
    document.write(tmp_path / "predictor.json", made, ASKED)
    again = document.read(tmp_path / "predictor.json")
    assert isinstance(again, Predictor)
    assert again.search == made.search
    np.testing.assert_array_equal(again.predict(ASKED).middle, made.predict(ASKED).middle)


def test_plans_that_were_only_tried_are_learned_by_nothing(made: Predictor):
    assert made.learned["samples"] == len(of_search(200))
    plans = [f"plan:{name}" for name in FACTORS]
    assert [*made.core.levels["algorithm"]] == [*plans, choices.SEARCH, choices.SEARCHED]
    assert made.process is not None
    assert {*made.process.points["algorithm"]} <= {*plans, choices.SEARCH, choices.SEARCHED}


ROW = of_search(1)[-1]
ENGINES = [*(f"plan:{name}" for name in (*FACTORS, "67")), choices.FFT]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, ["plan:1", "plan:7"]),
        ({"dtype": "float16", "layout": "nhwc"}, ["plan:1", "plan:7"]),
        ({"ranked_plans": "67:k2=1;9;7"}, ["plan:67:k2=1", "plan:7"]),
        ({"ranked_plans": ";".join(["9"] * 9 + ["1", "7"])}, ["plan:1"]),
        ({"ranked_plans": None}, []),
        ({"algorithm": "torch"}, []),
        ({"math": "fp32"}, []),
        ({"kernel_size": "1x1", "stride": "1x1", "padding": "0x0", "groups": 1}, []),
        ({"in_channels": 8, "out_channels": 8, "groups": 8}, []),
        ({"math": "fp32", "ranked_for": "card", "ranked_plans": "1;3:k11=2;7"}, ["plan:1", choices.FFT, "plan:7"]),
        ({"dtype": "float16", "layout": "nhwc", "ranked_plans": "3:k11=2;7", "ranked_for": "card"}, ["plan:7"]),
    ],
    ids=str,
)
def test_the_plans_that_a_search_tries_are_the_first_ten(changes: dict[str, object], expected: list[str]):
    row = dataclasses.replace(ROW, **{"ranked_plans": "1;7", **changes})
    given = frame_of([dataclasses.replace(ROW, algorithm="direct"), row])
    tried, of = choices.searched(choices.resolved(given), ENGINES)
    assert [*tried["algorithm"]] == expected
    assert of.tolist() == [1] * len(expected)


@pytest.mark.parametrize(
    "frame", [frame_of([ROW]), frame_of([ROW]).drop(columns="ranked_plans")], ids=["none", "no column"]
)
def test_a_row_with_the_name_of_searches_whose_plans_are_known_may_have_none(frame: pd.DataFrame):
    tried, of = choices.searched(
        frame.assign(algorithm=choices.SEARCHED, **dict.fromkeys({*frame} & {"ranked_plans"})), ENGINES
    )
    assert (len(tried), len(of)) == (0, 0)


def tries(
    of: list[int], engines: Sequence[str] | None = None, roofline_ms: float = 1.0, launches: Sequence[float] = ()
) -> search.Tries:
    names = np.array(engines or ["plan:1"] * len(of), dtype=object)
    each = np.array(launches or [1.0] * len(of))
    return search.Tries(np.array(of), max(of) + 2, names, np.full(len(of), roofline_ms), each)


def test_the_least_of_each_row_is_found_and_unknown_with_one_that_is():
    found = tries([2, 0, 2, 0, 3]).least(np.array([3.0, 1.0, 2.0, np.nan, 5.0]), {})
    np.testing.assert_allclose(found, [np.nan, np.nan, 2.0, 5.0, np.nan])


def test_a_plan_that_is_slower_with_its_launches_is_passed_over():
    of, estimates = [0, 0, 1, 1, 2], np.array([1.0, 2.0, 1.0, 2.0, 1.0])
    engines = ["plan:58", "plan:67", "plan:1", "plan:67", "plan:58"]
    np.testing.assert_allclose(tries(of, engines).least(estimates, {"plan:58": 30.0})[:3], [2.0, 1.0, 1.0])
    launches = (np.exp([3.0, 2.5, 1.5, 0.0, 9.0]) / search.LAUNCH_MS).tolist()
    by_groups = tries(of, [each + search.GROUPS for each in engines], launches=launches)
    np.testing.assert_allclose(by_groups.least(estimates, {})[:3], [2.0, 1.0, 1.0])
    hosts = {each + search.GROUPS: 0.0 for each in engines}
    np.testing.assert_allclose(by_groups.least(estimates, hosts)[:3], [1.0, 1.0, 1.0])


def test_plans_within_the_error_of_a_time_are_chosen_alike():
    each_ms = np.array([0.004, 0.004 + search.ERROR_MS / 4, 0.02])
    found = float(tries([0, 0, 0]).least(np.log(each_ms), {})[0])
    assert np.log(each_ms[0]) + 0.2 * np.log(each_ms[1] / each_ms[0]) < found < np.log(each_ms[1])
    longer = float(tries([0, 0, 0], roofline_ms=1e3).least(np.log(each_ms), {})[0])
    assert longer < found  # a time of seconds is hardly in error by so little


def test_times_to_launch_are_those_with_which_searches_take_the_least():
    draw, launch_ms = np.random.default_rng(0), 0.008
    each_ms = draw.uniform(0.003, 0.03, (400, 2))
    of, engines = np.repeat(np.arange(400), 2), ["plan:58", "plan:67"] * 400
    takes = np.maximum(each_ms, [launch_ms, 0.0]).argmin(axis=1)
    took = np.append(np.log(each_ms[np.arange(400), takes]), np.nan)
    asked = tries(of.tolist(), engines)
    found = asked.hosts(np.log(each_ms.ravel()), took)
    assert found == {"plan:58": pytest.approx(launch_ms, abs=0.001), "plan:67": 0.0}
    assert asked.hosts(np.full(800, np.nan), took) == {}


def with_kernels(groups: int, kernels: str | None, plan: str = "plan:45:k2=5,k5=3") -> SampleRow:
    each = {"in_channels": 64 * groups, "out_channels": 64 * groups, "groups": groups, "kernels": kernels}
    return dataclasses.replace(ROW, algorithm=plan, dtype="float16", layout="nhwc", batch_size=8, **each)  # type: ignore[arg-type]


def launches_of(frame: pd.DataFrame) -> dict[str, float]:
    return search.launches(features(frame, {}), frame)


def test_kernels_for_each_group_are_counted_where_samples_agree():
    each = [with_kernels(groups, f'{{"slice": {2 * groups}, "product": {groups}}}') for groups in range(2, 10)]
    constant = [with_kernels(groups, '{"slice": 4, "product": 1}', "plan:62:k2=5,k13=1") for groups in range(2, 10)]
    alone = [dataclasses.replace(with_kernels(1, '{"product": 9}'), groups=1)] * 9
    unknown = [with_kernels(4, kernels) for kernels in (None, "slice;product", "{")]
    found = launches_of(frame_of([*each, *constant, *alone, *unknown]))
    assert found == {"float16 tf32 nhwc, powers alike, plan:45": 3.0}
    assert launches_of(frame_of(each[:4])) == {}
    assert launches_of(frame_of(each).drop(columns="kernels")) == {}
    asked = frame_of([with_kernels(2, None), with_kernels(50, None, "plan:45:k2=7,k5=3"), *constant[:1]])
    given = features(asked, {})
    made = search.Tries.of_rows(given, asked, np.arange(3), 3, found)
    assert made.launches.tolist() == [6, 150, 1]
    assert [*made.engines] == ["plan:45, for each group", "plan:45, for each group", "plan:62"]


def test_what_misses_less_counts_more():
    draw, frame = np.random.default_rng(0), frame_of([ROW] * 400)
    rough, fine = draw.normal(0, 0.3, 400), draw.normal(0.1, 0.02, 400)
    found = search.fit(rough, fine, frame, {}, {})
    (share,), (usual,) = found.shares.values(), found.usual.values()
    assert share >= 0.9
    assert usual == pytest.approx(0.1, abs=0.01)
    own, least = np.zeros(400), np.where(np.arange(400) == 0, np.nan, 1.0)
    both = found.both(own, least, frame)
    np.testing.assert_allclose(both, [0.0, *[share * (1 + usual)] * 399])
    assert search.fit(rough[:40], fine[:40], frame[:40], {}, {}) == search.Search()


def of_many_launches(count: int, seed: int = 0) -> list[SampleRow]:
    """Return grouped shapes by two plans, and by a search that takes the faster one with its launches.

    The one that takes less time launches five kernels for each group, the other one one.
    """
    found = []
    for row in drawn(count, noise=0.01, seed=seed):
        groups = 2 + zlib.crc32(repr((row.in_channels, row.in_height_px)).encode()) % 7
        sizes = {"in_channels": row.in_channels * groups, "out_channels": row.out_channels * groups, "groups": groups}
        row = dataclasses.replace(row, cudnn="9.19.0", ranked_plans="2;1", math="tf32", **sizes)  # type: ignore[arg-type]
        assert row.mean_ms
        took_ms = {"1": (0.5 * row.mean_ms, 5 * groups), "2": (row.mean_ms, groups)}
        fastest = min(took_ms, key=lambda name: max(took_ms[name][0], took_ms[name][1] * search.LAUNCH_MS))
        found += [
            dataclasses.replace(row, algorithm=f"plan:{name}", mean_ms=mean_ms, kernels=f'{{"product": {launches}}}')
            for name, (mean_ms, launches) in took_ms.items()
        ]
        found.append(dataclasses.replace(row, algorithm=choices.SEARCH, mean_ms=took_ms[fastest][0]))
    return found


def test_a_fit_learns_that_a_search_passes_over_plans_of_many_launches():
    rows, asked = of_many_launches(200), of_searches(of_many_launches(40, seed=5))
    made = predictor.fit(frame_of(rows), "time", {})
    assert {round(each, 6) for each in made.search.launches.values()} == {1, 5}
    assert min(made.search.shares.values()) >= 0.8
    without = dataclasses.replace(made, search=dataclasses.replace(made.search, launches={}))
    assert missed(made, asked) < 0.2 < missed(without, asked)
