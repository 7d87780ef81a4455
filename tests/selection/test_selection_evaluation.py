"""Regret of a selection on drawn samples, whose optimum is known: predictions, single algorithms, sums by model."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator

import pandas as pd
import pytest
from fakes.drawn_samples import drawn, frame_of

from convscope.dataset.calls import AT_ANY_BATCH, CALLS, CallRow
from convscope.dataset.samples import SampleRow
from convscope.errors import InputError
from convscope.prediction import predictor
from convscope.selection import evaluation
from convscope.selection.evaluation import MEASURED_BEYOND, PREDICTED_BEYOND, PREDICTED_LEAST, SINGLE, Question, Regret

PYTORCH, LAYERS = "always PyTorch", 240


def rows(count: int = LAYERS, noise: float = 0.005) -> Iterator[SampleRow]:
    """Yield samples where winograd is the fastest with many channels, by a fifth, and PyTorch's own with few."""
    for each in drawn(count, algorithms=("torch", "gemm", "winograd"), noise=noise):
        assert each.mean_ms is not None
        slow = 2.0 if each.algorithm == "winograd" and each.in_channels <= 30 else 1.0
        model = f"net{each.in_channels % 4}"
        yield dataclasses.replace(
            each, mean_ms=each.mean_ms * slow, mean_ci95_ms=0.02 * each.mean_ms, placements=5, model=model,
            input_size=64, layer=f"{each.in_channels} {each.out_channels} {each.in_height_px}",
        )  # fmt: skip


FRAME = frame_of(rows())


def best_of(frame: pd.DataFrame) -> pd.Series[float]:
    return frame.groupby(["batch_size", "in_channels", "out_channels", "in_height_px"])["mean_ms"].min()


@pytest.fixture(scope="module")
def found() -> dict[str, Regret]:
    return {each.by: each for each in evaluation.regrets(FRAME, Question(level=90))}


def test_every_layer_is_judged_once_by_each_way(found: dict[str, Regret]):
    assert [*found] == [PREDICTED_BEYOND, PREDICTED_LEAST, SINGLE, PYTORCH, MEASURED_BEYOND]
    assert {each.layers for each in found.values()} == {LAYERS}
    assert {each.models for each in found.values()} == {9}  # three remainders, each at three batch sizes


def test_always_pytorch_has_the_regret_that_the_formula_gives(found: dict[str, Regret]):
    own = FRAME[FRAME["algorithm"] == "torch"].set_index(["batch_size", "in_channels", "out_channels", "in_height_px"])
    ratios = own["mean_ms"] / best_of(FRAME)
    assert found[PYTORCH].mean_pct == pytest.approx(100 * (ratios.mean() - 1))
    assert found[PYTORCH].p95_pct == pytest.approx(100 * (ratios.quantile(0.95) - 1))
    assert found[PYTORCH].changed_pct == 0


def test_a_prediction_finds_the_optimum_of_layers_that_it_did_not_learn(found: dict[str, Regret]):
    assert found[PREDICTED_LEAST].mean_pct < 0.25 * found[PYTORCH].mean_pct
    assert found[PREDICTED_LEAST].models_mean_pct is not None
    assert found[PREDICTED_LEAST].models_mean_pct < 1
    low, high = found[PREDICTED_LEAST].mean_low_pct, found[PREDICTED_LEAST].mean_high_pct
    assert low is not None
    assert high is not None
    assert low < found[PREDICTED_LEAST].mean_pct < high


def test_beyond_the_intervals_it_is_better_than_pytorch_and_changes_less(found: dict[str, Regret]):
    assert found[PREDICTED_BEYOND].mean_pct < 0.75 * found[PYTORCH].mean_pct
    assert found[PREDICTED_BEYOND].changed_pct < found[PREDICTED_LEAST].changed_pct


def test_measured_times_with_narrow_intervals_leave_little_regret(found: dict[str, Regret]):
    assert found[MEASURED_BEYOND].mean_pct < 1
    assert 40 < found[MEASURED_BEYOND].changed_pct < 60


def test_the_best_single_algorithm_is_chosen_by_what_is_learned(found: dict[str, Regret]):
    assert found[SINGLE].mean_pct == found[PYTORCH].mean_pct  # winograd loses 60 % with few channels
    truth = {"one": {"torch": 2.0, "gemm": 1.0, "guess": 0.1}, "two": {"torch": 1.0, "fft": 0.9}}
    assert evaluation.best_single(truth) == "gemm"
    assert evaluation.best_single({"one": {"gemm": 1.0}}) == "torch"


def test_the_prediction_of_a_layer_does_not_rest_on_its_times():
    """Shuffled times among algorithms of each layer cannot be predicted: the regret is that of a guess."""
    mixed = FRAME.copy()
    draw = random.Random(0)
    mixed["mean_ms"] = mixed.groupby(["batch_size", "in_channels", "out_channels", "in_height_px"])[
        "mean_ms"
    ].transform(lambda each: draw.sample([*each], len(each)))
    by = {each.by: each for each in evaluation.regrets(mixed, Question(level=90))}
    assert by[PREDICTED_LEAST].mean_pct > 0.5 * by[PYTORCH].mean_pct
    assert by[MEASURED_BEYOND].mean_pct < 5


@pytest.mark.long
def test_the_same_samples_in_another_order_have_the_same_regrets(found: dict[str, Regret]):
    mixed = FRAME.sample(frac=1, random_state=3)
    again = evaluation.regrets(mixed, Question(level=90))
    assert {each.by: pytest.approx(each.mean_pct) for each in again} == {k: v.mean_pct for k, v in found.items()}


def test_a_whole_family_can_be_held_back():
    found = evaluation.regrets(FRAME, Question(kind="family", level=90))
    assert {each.split for each in found} == {"family"}
    assert {each.layers for each in found} == {LAYERS}


def calls_of(frame: pd.DataFrame, **changes: object) -> list[CallRow]:
    """Return each layer that samples name as one call of its model."""
    once = frame.drop_duplicates(["model", "layer"]).assign(position=0, **changes)
    once["position"] = once.groupby("model").cumcount()
    return [CallRow(**{str(name): row[name] for name in CALLS.columns}) for row in once.to_dict("records")]


def test_a_shape_that_another_kind_of_network_has_too_is_held_back_with_both(monkeypatch: pytest.MonkeyPatch):
    some = FRAME[FRAME["batch_size"] == 1].assign(model="net " + FRAME["family"])
    shared = some[(some["family"] == "vgg") & (some["in_channels"] > 30)]
    known = calls_of(some) + calls_of(shared, model="net b", family="resnet")
    learned: list[set[tuple[object, ...]]] = []
    fit = predictor.fit

    def noted(frame: pd.DataFrame, *rest: object, **named: object) -> object:
        learned.append({*frame[[*AT_ANY_BATCH]].itertuples(index=False, name=None)})
        return fit(frame, *rest, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(predictor, "fit", noted)
    taken, about = evaluation.chosen(some, Question(kind="family", calls=known))
    least = taken[taken["by"] == PREDICTED_LEAST]
    again = least[least["split"] == "family resnet"].merge(about["family"], left_on="work", right_index=True)
    assert {*again["family"]} == {"resnet", "vgg"}
    shapes = {*shared[[*AT_ANY_BATCH]].itertuples(index=False, name=None)}
    of_kind = [not shapes & each for each in learned]  # densenet, resnet, vgg
    assert of_kind == [False, True, True]
    assert least["work"].value_counts().max() == 2
    assert len(least) == some["layer"].nunique() + (again["family"] == "vgg").sum()


@pytest.mark.long
def test_the_sum_of_a_model_is_over_all_its_calls_where_every_one_is_judged():
    some = FRAME[FRAME["batch_size"] == 1].assign(model="one")
    known = calls_of(some)
    twice = [*known, dataclasses.replace(known[0], position=len(known))]
    by = {each.by: each for each in evaluation.regrets(some, Question(level=90, calls=twice))}
    own = some[some["algorithm"] == "torch"]
    best = some.groupby("layer")["mean_ms"].min()
    first = known[0].layer
    expected = (own["mean_ms"].sum() + own.set_index("layer")["mean_ms"][first]) / (best.sum() + best[first])
    assert by[PYTORCH].models == 1
    assert by[PYTORCH].models_mean_pct == pytest.approx(100 * (expected - 1))
    more = [*twice, dataclasses.replace(known[0], position=len(twice), in_channels=7)]
    assert {each.models for each in evaluation.regrets(some, Question(level=90, calls=more))} == {0}


@pytest.mark.long
def test_choices_of_others_are_judged_where_there_are_any(found: dict[str, Regret]):
    searched = FRAME[FRAME["algorithm"] == "winograd"].assign(algorithm="torch benchmark").iloc[::2]
    by = {each.by: each for each in evaluation.regrets(pd.concat([FRAME, searched]), Question(level=90))}
    assert by["always cudnn.benchmark"].layers == LAYERS
    assert 0 < by["always cudnn.benchmark"].changed_pct <= 50
    assert by[PYTORCH].mean_pct == pytest.approx(found[PYTORCH].mean_pct)


def test_samples_without_pytorchs_own_choice_cannot_be_judged():
    with pytest.raises(InputError, match="no layer has samples of PyTorch's own choice"):
        evaluation.regrets(FRAME[FRAME["algorithm"] != "torch"], Question(level=90))
    with pytest.raises(InputError, match="no layer has samples of PyTorch's own choice"):
        evaluation.regrets(FRAME, Question("energy", level=90))
    with pytest.raises(InputError, match="split by family: all samples are of vgg: at least two are needed"):
        evaluation.regrets(FRAME.assign(family="vgg"), Question(kind="family", level=90))


def test_layers_of_no_kind_of_network_are_not_judged_by_kind():
    one = FRAME["family"] == "vgg"
    unjudged = FRAME[~one | FRAME["algorithm"].isin(["gemm", "winograd"])].assign(
        family=FRAME["family"].mask(FRAME["family"] == "densenet", None)
    )
    with pytest.raises(InputError, match="split by family: all samples that name a family are of vgg: at least two"):
        evaluation.regrets(unjudged[unjudged["family"] != "resnet"], Question(kind="family", level=90))
    found = evaluation.regrets(unjudged, Question(kind="family", level=90))
    resnets = FRAME[FRAME["family"] == "resnet"]["layer"].nunique()
    assert {each.layers for each in found} >= {resnets}
    only_drawn = unjudged[(unjudged["family"] != "resnet") | (unjudged["algorithm"] != "torch")]
    with pytest.raises(InputError, match="split by family: no layer that it holds back can be judged"):
        evaluation.regrets(only_drawn, Question(kind="family", level=90))


@pytest.mark.long
def test_regret_in_energy_is_of_the_layers_that_have_energies():
    layer = FRAME.groupby(["batch_size", "in_channels", "out_channels", "in_height_px"], sort=False).ngroup()
    frame = FRAME.assign(energy_j=(0.07 * FRAME["mean_ms"]).where(layer % 2 == 0))
    found = {each.by: each for each in evaluation.regrets(frame, Question("energy", level=80))}
    assert found[PYTORCH].layers == LAYERS // 2
    assert found[PREDICTED_LEAST].mean_pct < 0.3 * found[PYTORCH].mean_pct
