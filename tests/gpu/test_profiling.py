"""The main job on a GPU, from the command to the tables."""

from __future__ import annotations

import gc
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.autograd import profiler

from convscope.errors import InputError
from convscope.timing import placement
from convscope.timing.layer_times import SPAN_METHOD
from profiler import UnifiedProfiler


def profile(folder: Path, algorithm: str, **options: object):
    settings: dict = {"num_sizes": 2, "input_size_range": (64, 96), "measure_iters": 5, "warmup_iters": 2}
    return UnifiedProfiler("alexnet", algorithm, **settings | options).run(folder)


@pytest.mark.quiet
def test_a_run_has_every_figure_and_what_ran_is_what_was_asked_for(tmp_path: Path):
    overall, layers = profile(tmp_path, "implicit precomp gemm")
    assert list(overall["input_size"]) == [64, 96]
    assert (overall["status"] == "ok").all()
    assert overall[["mean", "std", "eager_mean_ms", "power_mean_w", "energy_per_inference_j"]].notna().all(axis=None)
    assert (overall["mean"] < overall["eager_mean_ms"]).all()
    assert len(layers) == 10
    assert set(layers["ran_algorithm"]) == {"implicit precomp gemm"}
    assert set(layers["ran_provider"]) == {"cudnn"}
    assert layers["span_ms"].notna().all()
    assert (layers["kernel_ms"] <= layers["span_ms"] + 1e-6).all()
    assert layers["kernels"].map(lambda text: bool(json.loads(text))).all()
    assert layers["relative_error"].lt(3e-3).all()


@pytest.mark.quiet
def test_times_rest_on_five_placements_and_layers_on_the_better_witness(tmp_path: Path):
    overall, layers = UnifiedProfiler(
        "resnet50", "torch", num_sizes=1, input_size_range=(224, 224), math="tf32", measure_energy=False
    ).run(tmp_path)
    row = overall.iloc[0]
    assert row["placements"] == 5
    assert row["samples"] == 20
    assert 0 < row["mean_ci95_ms"] < 0.03 * row["mean"]
    assert row["other_processes"] == 0
    sets_memory = layers["kernels"].str.contains("Memset")
    assert sets_memory.any()
    assert set(layers[sets_memory]["timing_method"]) == {row["timing_method"]}
    assert set(layers[~sets_memory]["timing_method"]) == {SPAN_METHOD}
    assert (layers["placements"] == 5).all()
    assert (layers["mean_ci95_ms"] > 0).all()
    by_span = layers[~sets_memory]
    assert by_span["mean_ms"].to_numpy() == pytest.approx(by_span["span_ms"].to_numpy(), rel=0.1)


def spy(monkeypatch: pytest.MonkeyPatch, name: str, calls: list[Any]) -> None:
    """Note what a function of `placement` is given."""
    function = getattr(placement, name)

    def noted(*given: Any) -> Any:
        calls.append(given)
        return function(*given)

    monkeypatch.setattr(placement, name, noted)


@pytest.mark.quiet
def test_placements_that_are_captured_together_have_the_times_of_those_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    settings: dict = {"num_sizes": 1, "input_size_range": (224, 224), "math": "tf32", "energy_budget_s": 2.0}
    at_once, one_by_one = list[Any](), list[Any]()
    spy(monkeypatch, "captured_in_all", at_once)
    together, layers = UnifiedProfiler("resnet50", "implicit precomp gemm", **settings).run(tmp_path / "together")
    assert len(at_once) == 1
    monkeypatch.setattr(placement, "fits_in_all", lambda device: False)
    spy(monkeypatch, "moved", one_by_one)
    apart, others = UnifiedProfiler("resnet50", "implicit precomp gemm", **settings).run(tmp_path / "apart")
    assert len(at_once) == 1
    assert [given[-1] for given in one_by_one] == [0, 1, 2, 3, 4]
    for column, share in (("mean", 0.01), ("layers_sum_ms", 0.01), ("energy_per_inference_j", 0.03)):
        assert together.loc[0, column] == pytest.approx(apart.loc[0, column], rel=share), column
    assert list(layers["timing_method"]) == list(others["timing_method"])
    assert list(layers["kernels"]) == list(others["kernels"])
    differences = (layers["mean_ms"] / others["mean_ms"] - 1).abs()
    assert differences.median() < 0.02
    assert differences.max() < 0.15


def test_placements_that_do_not_fit_together_are_timed_one_by_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def full(*given: object) -> None:
        raise torch.OutOfMemoryError("full")

    monkeypatch.setattr(placement, "captured_in_all", full)
    overall, layers = profile(tmp_path, "implicit precomp gemm", num_sizes=1, measure_energy=False)
    assert (overall.loc[0, "status"], overall.loc[0, "placements"]) == ("ok", 5)
    assert layers["span_ms"].notna().all()


def test_the_process_that_times_never_starts_cupti(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(profiler, "profile", lambda **asked: pytest.fail("a trace in the process that times"))
    monkeypatch.setattr(torch.profiler, "profile", profiler.profile)
    _, layers = profile(tmp_path, "torch", num_sizes=1, measure_energy=False)
    assert layers["span_ms"].notna().all()


@pytest.mark.quiet
def test_energy_of_an_inference_is_power_times_its_time_when_replays_follow_each_other(tmp_path: Path):
    overall, _ = profile(tmp_path, "torch", input_size_range=(512, 512), num_sizes=1, batch_size=8)
    row = overall.iloc[0]
    assert row["energy_window_s"] >= 1
    assert row["energy_per_inference_j"] == pytest.approx(row["power_mean_w"] * row["mean"] / 1e3, rel=0.05)


def test_guess_says_what_it_chose(tmp_path: Path):
    _, layers = profile(tmp_path, "guess", num_sizes=1, measure_energy=False)
    assert set(layers["ran_algorithm"]) <= {"implicit gemm", "implicit precomp gemm", "gemm", "fft", "fft tiling",
                                           "winograd", "winograd nonfused"}  # fmt: skip


def test_layers_that_cannot_are_refused_before_anything_is_measured(tmp_path: Path):
    with pytest.raises(InputError, match=r"fft needs stride 1: 1 of 5 convolutions of alexnet are not.*fallback"):
        profile(tmp_path / "fft", "fft")
    assert not (tmp_path / "fft").exists()


def test_fallback_and_skip_say_what_ran(tmp_path: Path):
    overall, layers = profile(tmp_path / "f", "fft", unsupported="fallback", num_sizes=1, measure_energy=False)
    assert overall.iloc[0]["fallback_layers"] == 1
    assert list(layers["ran_algorithm"]) == ["implicit precomp gemm"] + ["fft"] * 4
    assert list(layers["status"]) == ["fallback"] + ["ok"] * 4
    overall, layers = profile(tmp_path / "s", "fft", unsupported="skip", num_sizes=1, measure_energy=False)
    assert overall.iloc[0]["unsupported_layers"] == 1
    assert list(layers["ran_provider"]) == ["torch"] + ["cudnn"] * 4
    assert layers["mean_ms"].isna().tolist() == [True] + [False] * 4


def test_the_second_run_measures_nothing_and_gives_the_same(tmp_path: Path):
    first, _ = profile(tmp_path, "gemm", measure_energy=False)
    second, _ = profile(tmp_path, "gemm", measure_energy=False)
    assert first.equals(second)


def test_memory_returns_to_its_level_after_each_size(tmp_path: Path):
    profile(tmp_path / "a", "implicit precomp gemm", measure_energy=False, num_sizes=1)
    gc.collect()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved()
    profile(tmp_path / "b", "implicit precomp gemm", measure_energy=False, num_sizes=8)
    gc.collect()
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() <= before


def test_another_card_than_asked_for_is_refused():
    with pytest.raises(InputError, match="the card that is here is"):
        UnifiedProfiler("alexnet", "gemm", gpu="k80")


def test_a_placement_moves_weights_buffers_and_input_and_puts_the_model_back():
    model, given = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8)).cuda(), torch.ones(1, 3, 9, 9)
    given = given.cuda()

    def addresses() -> list[int]:
        return [tensor.data_ptr() for tensor in (*model.parameters(), *model.buffers())]

    with torch.inference_mode():
        home, expected = addresses(), model.eval()(given)
        with placement.moved(model, (given,), 1) as (there,):
            assert not set(home) & set(addresses())
            assert there.data_ptr() != given.data_ptr()
            assert torch.equal(model(there), expected)
        assert addresses() == home
