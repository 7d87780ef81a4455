"""Predictor: the same twice, kept and read again, honest about what it never saw, better after a few measurements."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from fakes.drawn_samples import CARDS, drawn, frame_of
from threadpoolctl import threadpool_info, threadpool_limits

from convscope.dataset import splits
from convscope.errors import InputError
from convscope.prediction import document, held_out, intervals, predictor
from convscope.prediction.features import features
from convscope.prediction.learners import process, threads
from convscope.prediction.predictor import Predictor

BOTH = ("gemm", "winograd")


def samples(count: int, *cards: str, **options: Any) -> pd.DataFrame:
    rows = drawn(count, cards or ("Tesla T4",), **{"algorithms": BOTH, **options})
    return frame_of(rows)


LEARNED = samples(300)
ASKED = samples(60, seed=9)


@pytest.fixture(scope="module")
def made() -> Predictor:
    return predictor.fit(LEARNED, "time", {})


def errors(found: predictor.Prediction, frame: pd.DataFrame) -> float:
    return float(np.abs(found.middle / frame["mean_ms"].to_numpy() - 1).mean())


def test_layers_that_were_not_learned_are_predicted(made: Predictor):
    assert errors(made.predict(ASKED), ASKED) < 0.12


def test_intervals_hold_what_they_claim_for_layers_that_were_not_learned(made: Predictor):
    frame = samples(400, seed=5)
    found = made.predict(frame, level=80)
    truth = frame["mean_ms"].to_numpy()
    assert 100 * ((found.low <= truth) & (truth <= found.high)).mean() == pytest.approx(80, abs=8)
    wider = made.predict(frame, level=95)
    assert (wider.low < found.low).all()
    assert (wider.high > found.high).all()


def test_the_same_samples_give_the_same_predictor(made: Predictor):
    again = predictor.fit(LEARNED, "time", {})
    np.testing.assert_array_equal(made.predict(ASKED).middle, again.predict(ASKED).middle)
    assert made.learned == again.learned


def test_the_order_of_the_samples_changes_nothing():
    mixed = LEARNED.sample(frac=1, random_state=1)
    one, other = (predictor.fit(predictor.usable(frame, "time"), "time", {}) for frame in (LEARNED, mixed))
    np.testing.assert_array_equal(one.predict(ASKED).middle, other.predict(ASKED).middle)
    assert one.widths == other.widths


def test_the_digest_tells_samples_apart_and_not_their_order():
    assert predictor.digest(LEARNED) == predictor.digest(LEARNED.iloc[::-1])
    assert predictor.digest(LEARNED) == predictor.digest(LEARNED.astype({"in_height_px": float}))
    assert predictor.digest(LEARNED) != predictor.digest(LEARNED.assign(mean_ms=LEARNED["mean_ms"] * 1.01))


def test_what_was_never_learned_is_said(made: Predictor):
    asked = ASKED.iloc[:4].copy()
    asked["in_channels"] = [4096, *asked["in_channels"][1:]]
    asked["dtype"] = ["float32", "float16", "float32", "float32"]
    asked["gpu_name"] = ["Tesla T4", "Tesla T4", "Tesla P4", "Tesla T4"]
    outside = made.predict(asked).outside
    assert "log_channels" in outside[0]
    assert outside[1] == "dtype, far from all"
    assert outside[2].startswith("card")
    assert outside[3] == ""


def test_a_predictor_is_kept_and_read_again(made: Predictor, tmp_path: Path):
    path = tmp_path / "predictor.json"
    document.write(path, made, LEARNED)
    read = document.read(path)
    for one, other in zip(
        dataclasses.astuple(made.predict(ASKED)), dataclasses.astuple(read.predict(ASKED)), strict=True
    ):
        np.testing.assert_array_equal(one, other)
    assert (read.target, read.unit, read.learned) == ("time", "layer", made.learned)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda text: text[: len(text) // 2], "is no predictor, or a damaged one"),
        (
            lambda text: text.replace('"convscope predictor"', '"something"'),
            f"is something {document.VERSION}, not convscope predictor {document.VERSION}",
        ),
        (lambda text: text.replace('"version": ', '"version": 9'), rf"is convscope predictor 9{document.VERSION}, not"),
        (lambda text: text.replace('"effects"', '"affects"'), r"is damaged \("),
        (lambda text: text.replace("tree\\n", "bush\\n", 1), r"is damaged \(its contents have another SHA-256"),
        (lambda text: "[]", "is no predictor, or a damaged one"),
    ],
)
def test_a_damaged_document_is_one_line(
    made: Predictor, tmp_path: Path, change: Callable[[str], str], expected: str
):  # fmt: skip
    path = tmp_path / "predictor.json"
    document.write(path, made, LEARNED)
    path.write_text(change(path.read_text()))
    with pytest.raises(InputError, match=expected):
        document.read(path)


@pytest.mark.parametrize(
    "change",
    [
        lambda parts: parts["core"].pop("effects"),
        lambda parts: parts["core"]["folds"].append("no trees"),
        lambda parts: parts["core"]["levels"].pop("dtype"),
    ],
)
def test_a_document_that_was_made_wrong_is_one_line(
    made: Predictor, tmp_path: Path, change: Callable[[dict[str, Any]], object]
):  # fmt: skip
    path = tmp_path / "predictor.json"
    document.write(path, made, LEARNED)
    parts = json.loads(path.read_text())
    change(parts)
    path.write_text(json.dumps({**parts, "sha256": document.digest(parts)}))
    with pytest.raises(InputError, match="is no predictor, or a damaged one"):
        document.read(path)


def test_a_document_that_predicts_otherwise_here_is_refused(made: Predictor, tmp_path: Path):
    path = tmp_path / "predictor.json"
    document.write(path, made, LEARNED)
    changed = json.loads(path.read_text())
    changed["core"]["usual_headroom"] = 1.0
    changed["core"]["headroom_share"] = 0.5
    changed["sha256"] = document.digest(changed)
    path.write_text(json.dumps(changed))
    with pytest.raises(InputError, match="predicts other values here than where it was written: fit it again"):
        document.read(path)


def test_a_correction_makes_another_card_better_and_no_other_one_different(tmp_path: Path):
    learned = samples(250, "Tesla P4", "Tesla P100-PCIE-16GB")
    made = predictor.fit(learned, "time", {})
    # A card that is 30 % slower at one algorithm than anything that was learned says.
    there = samples(250, "Tesla T4")
    there["mean_ms"] = there["mean_ms"] * np.where(there["in_channels"] > 64, 1.3, 1.0)
    corrected = made.corrected(there.iloc[::5])
    rest = there.drop(index=there.index[::5])
    assert errors(corrected.predict(rest), rest) < 0.7 * errors(made.predict(rest), rest)
    np.testing.assert_array_equal(corrected.predict(learned).middle, made.predict(learned).middle)
    assert "card" in made.predict(rest).outside[0]
    assert not any("card" in text for text in corrected.predict(rest).outside)
    path = tmp_path / "predictor.json"
    document.write(path, corrected, there)
    np.testing.assert_allclose(document.read(path).predict(rest).middle, corrected.predict(rest).middle)


def test_a_correction_replaces_the_one_before(made: Predictor):
    there = samples(40, "Tesla P4")
    once = made.corrected(there)
    assert once.corrected(there).corrections == once.corrections


@pytest.mark.parametrize("cards", [("Tesla P4", "Tesla T4"), ("Tesla P4",)])
def test_a_correction_needs_some_samples_of_one_card(made: Predictor, cards: tuple[str, ...]):
    with pytest.raises(InputError, match="at least 10 samples of one card are needed"):
        made.corrected(samples(10 if len(cards) > 1 else 4, *cards))


def test_an_arithmetic_of_too_few_samples_for_a_process_leaves_all_intervals_finite():
    few = samples(14, seed=3).assign(dtype="float16")  # two algorithms of each
    made = predictor.fit(predictor.usable(pd.concat([samples(100), few], ignore_index=True), "time"), "time", {})
    widths = [width for by in (*made.widths.values(), *made.pairs.values()) for width in by.values()]
    assert np.isfinite([width for width in widths if width is not None]).all()
    found = made.predict(few, level=95)
    assert np.isfinite(found.high).all()
    assert all(text.endswith("far from all") for text in found.outside)


@pytest.mark.parametrize(("unit", "fifths"), [("layer", "12345"), ("size", "15")])
def test_intervals_are_learned_from_what_was_held_out_as_what_is_asked_for(
    unit: str, fifths: str, monkeypatch: pytest.MonkeyPatch
):
    asked = held_out.is_asked(LEARNED, unit)
    assert {*splits.labels(LEARNED, "size")[asked]} == {f"fifth {number}" for number in fifths}
    assert asked.mean() == pytest.approx(len(fifths) / 5, abs=0.05)
    counts, widths = list[int](), intervals.widths

    def counted(rests: Any, groups: Any) -> Any:
        counts.append(len(rests))
        return widths(rests, groups)

    monkeypatch.setattr(intervals, "widths", counted)
    predictor.fit(LEARNED, "time", {}, unit)
    parts = [asked] if unit == "layer" else [splits.labels(LEARNED, unit) == f"fifth {number}" for number in fifths]
    assert counts[: len(parts)] == [part.sum() for part in parts]


def test_what_is_of_no_kind_of_network_is_learned_and_intervals_are_of_the_others(monkeypatch: pytest.MonkeyPatch):
    frame = samples(120, *CARDS, noise=0.05, algorithms=("gemm",))
    is_drawn = frame["in_channels"] == 64
    frame = frame.assign(family=frame["family"].mask(is_drawn, None))
    counts, widths = list[int](), intervals.widths
    monkeypatch.setattr(intervals, "widths", lambda rests, groups: counts.append(len(rests)) or widths(rests, groups))
    made = predictor.fit(frame, "time", {}, "family")
    assert counts[0] == (~is_drawn).sum() < len(frame)
    assert made.learned["samples"] == len(frame)
    assert made.widths[""]["90"] is not None
    assert [division.own[is_drawn].any() for division in held_out.by(frame, "family")] == [False] * 3


def test_energies_of_no_kind_of_network_are_learned_too():
    frame = with_few_joules(samples(200, *CARDS, noise=0.05, algorithms=("gemm",)))
    joules = frame["energy_j"].notna()
    frame = frame.assign(family=frame["family"].mask(frame["in_channels"] == 64, None))
    made = predictor.fit(predictor.usable(frame, "energy"), "energy", {}, "family")
    assert frame["family"][joules].isna().any()
    assert made.learned["samples"] == joules.sum()


@pytest.mark.filterwarnings("ignore:The 'mode.copy_on_write' option is deprecated")  # by pandas 3
def test_energies_are_learned_where_what_pandas_gives_cannot_be_written_to():
    """pandas 3 gives arrays of a table that are read-only, as this option of pandas 2 does."""
    with pd.option_context("mode.copy_on_write", True):
        frame = predictor.usable(with_few_joules(samples(200, *CARDS, algorithms=("gemm",))), "energy")
        assert predictor.fit(frame, "energy", {}).learned["samples"] == frame["energy_j"].notna().sum()


@pytest.mark.parametrize("unit", ["rows", "family", "size", "gpu"])
def test_intervals_can_be_of_other_ways_to_hold_back(unit: str):
    frame = samples(120, *CARDS, noise=0.05, algorithms=("gemm",))
    made = predictor.fit(frame, "time", {}, unit)
    assert made.unit == unit
    assert made.widths[""]["90"] is not None


def test_too_few_samples_or_too_few_shapes_are_refused():
    with pytest.raises(InputError, match="99 samples with sizes and a measured time: at least 100 are needed"):
        predictor.fit(LEARNED.iloc[:99], "time", {})
    with pytest.raises(InputError, match="intervals for another layer need samples of at least two"):
        predictor.fit(pd.concat([LEARNED.iloc[:1]] * 150, ignore_index=True), "time", {})
    with pytest.raises(InputError, match="intervals for another gpu need samples of at least two"):
        predictor.fit(LEARNED, "time", {}, "gpu")


def with_few_joules(frame: pd.DataFrame) -> pd.DataFrame:
    """Return samples of which each fourth layer has energy: a power of 60 W, 80 W with many channels."""
    joules = frame["mean_ms"] * np.where(frame["in_channels"] > 64, 0.08, 0.06)
    layer = np.arange(len(frame)) // len(BOTH)
    return frame.assign(energy_j=joules.where(layer % 4 == 0))


@pytest.fixture(scope="module")
def of_energy() -> Predictor:
    return predictor.fit(predictor.usable(with_few_joules(LEARNED), "energy"), "energy", {})


def test_energies_of_few_layers_are_learned_beside_the_times_of_all(of_energy: Predictor):
    truth = ASKED["mean_ms"] * np.where(ASKED["in_channels"] > 64, 0.08, 0.06)
    missed = np.abs(of_energy.predict(ASKED).middle / truth - 1).mean()
    few = with_few_joules(LEARNED).dropna(subset="energy_j")
    alone = predictor.fit(few.assign(mean_ms=few["energy_j"]), "time", {})
    missed_alone = np.abs(alone.predict(ASKED).middle / truth - 1).mean()
    assert missed < min(0.12, 0.8 * missed_alone)


def test_an_energy_without_a_time_goes_by_the_times_of_the_same_work(of_energy: Predictor):
    whole = with_few_joules(LEARNED)
    alone = whole.dropna(subset="energy_j").assign(mean_ms=np.nan, run="another")
    apart = pd.concat([whole.assign(energy_j=np.nan), alone], ignore_index=True)
    made = predictor.fit(predictor.usable(apart, "energy"), "energy", {})
    assert made.learned["samples"] == of_energy.learned["samples"]
    np.testing.assert_allclose(made.predict(ASKED).middle, of_energy.predict(ASKED).middle, rtol=1e-6)
    others = pd.concat([whole.assign(energy_j=np.nan, in_channels=77), alone], ignore_index=True)
    for frame, lacking in ((alone, "time"), (others, "energy, and a time of the same work")):
        with pytest.raises(InputError, match=f"0 samples with sizes and a measured {lacking}: at least"):
            predictor.fit(predictor.usable(frame, "energy"), "energy", {})
    unknown = predictor.usable(pd.concat([apart, alone.assign(in_channels=77)], ignore_index=True), "energy")
    assert predictor.fit(unknown, "energy", {}).learned["samples"] == made.learned["samples"]


def test_a_predictor_of_energy_is_kept_with_that_of_time(of_energy: Predictor, tmp_path: Path):
    document.write(tmp_path / "energy.json", of_energy, LEARNED)
    read = document.read(tmp_path / "energy.json")
    np.testing.assert_array_equal(read.predict(ASKED).middle, of_energy.predict(ASKED).middle)


def test_what_the_times_beneath_an_energy_never_saw_is_said_once(of_energy: Predictor):
    asked = ASKED.iloc[:1].assign(in_channels=4096)
    (outside,) = of_energy.predict(asked).outside
    assert outside.split(", ").count("log_channels") == 1


def test_a_card_is_known_to_a_predictor_of_energy_by_its_energies_or_a_correction():
    both = with_few_joules(samples(300, "Tesla T4", "Tesla P4"))
    both["energy_j"] = both["energy_j"].where(both["gpu_name"] == "Tesla T4")
    made = predictor.fit(predictor.usable(both, "energy"), "energy", {})
    asked = with_few_joules(samples(60, "Tesla P4", seed=9))
    assert made.predict(asked).outside[0].startswith("card")
    measured = asked.dropna(subset="energy_j").reset_index(drop=True)
    assert not any("card" in text for text in made.corrected(measured).predict(asked).outside)


def test_facts_of_a_card_reach_the_times_beneath_an_energy(of_energy: Predictor):
    facts = {"fp32_tflops": 9.3, "bandwidth_gbps": 732.0, "sm_count": 56}
    asked = ASKED.assign(gpu_name="A card of tomorrow")
    with pytest.raises(InputError, match="A card of tomorrow"):
        of_energy.predict(asked)
    assert np.isfinite(of_energy.with_cards({"A card of tomorrow": facts}).predict(asked).middle).all()


def test_samples_that_were_refused_or_have_no_sizes_are_not_learned():
    frame = LEARNED.copy()
    frame.loc[0, "status"] = "refused"
    frame.loc[1, "in_height_px"] = np.nan
    frame.loc[2, "mean_ms"] = np.nan
    assert len(predictor.usable(frame, "time")) == len(LEARNED) - 3
    assert not predictor.has(predictor.usable(frame, "energy"), "energy").any()
    with pytest.raises(InputError, match="0 samples with sizes and a measured energy"):
        predictor.fit(predictor.usable(frame, "energy"), "energy", {})


def test_intervals_against_pytorchs_own_choice_hold_and_are_narrower_for_what_both_share():
    def shared(count: int, seed: int) -> pd.DataFrame:
        """Return samples whose shapes each have a factor that nothing tells, the same for both algorithms."""
        frame = samples(count, algorithms=("torch", "gemm"), noise=0.02, seed=seed)
        draws = np.random.default_rng(seed).normal(0, 0.3, count)
        return frame.assign(mean_ms=frame["mean_ms"] * np.exp(np.repeat(draws, 2)))

    made, asked = predictor.fit(shared(300, 0), "time", {}), shared(300, 7)
    other = asked[asked["algorithm"] == "gemm"].reset_index(drop=True)
    half = made.against_own(other, level=80)
    found, truth = (
        pd.Series(values).to_numpy().reshape(-1, 2) for values in (made.predict(asked).middle, asked["mean_ms"])
    )
    missed = np.abs(np.log(found[:, 1] / found[:, 0]) - np.log(truth[:, 1] / truth[:, 0]))
    assert 100 * (missed <= half).mean() == pytest.approx(80, abs=8)
    width = made.widths["gemm"]["80"]
    assert width is not None
    assert half.max() < 0.6 * width


def test_without_pytorchs_own_choice_there_is_no_interval_against_it(made: Predictor):
    assert np.isinf(made.against_own(ASKED)).all()


def test_the_number_of_threads_changes_no_digit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr(process, "ENOUGH", 60)
    frame, texts = samples(100), set[str]()
    assert len({*process.groups_of(features(frame, {}), frame)}) > 1
    for count in (1, 3):
        monkeypatch.setattr(threads, "count", functools.partial(int, count))
        document.write(tmp_path / "predictor.json", predictor.fit(frame, "time", {}, "family"), frame)
        texts.add((tmp_path / "predictor.json").read_text(encoding="utf-8"))
    assert len(texts) == 1


def test_one_thread_computes_a_part_whatever_the_caller_has(monkeypatch: pytest.MonkeyPatch):
    found: list[int] = []
    fitted = predictor._fitted

    def watched(*arguments: Any) -> Any:
        found.extend(each["num_threads"] for each in threadpool_info() if each["user_api"] == "blas")
        return fitted(*arguments)

    monkeypatch.setattr(predictor, "_fitted", watched)
    with threadpool_limits(2, user_api="blas"):
        predictor.fit(samples(60), "time", {})
    assert found
    assert {*found} == {1}
