"""Power, layer times, and the whole of it from a request to the tables, on a CPU."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pandas as pd
import pytest
import torch
from fakes import Branching, Card, Clock, tiny
from fakes.sensors import Load

from convscope.convolution import models
from convscope.convolution.layer import Layer
from convscope.errors import InputError
from convscope.profiling import sweep
from convscope.profiling.rows import profile_store
from profiler import CUDALayerTimer, PowerMonitor, UnifiedProfiler


@pytest.fixture
def clock() -> Clock:
    return Clock()


def monitor(clock: Clock, card: Card) -> PowerMonitor:
    """Return a monitor that looks at the card by the fake clock, in the calls that are made of it."""
    return PowerMonitor([card], clock=clock, sleep=clock.sleep, period_s=None)


def test_energy_of_an_inference_is_what_a_steady_card_spends_on_it(clock: Clock):
    found, reason = monitor(clock, Card(clock, power_w=400.0)).steady(Load(clock, pass_s=0.005))
    assert reason is None
    assert found is not None
    assert found.per_inference_j == pytest.approx(400.0 * 0.005, rel=0.02)
    assert found.window.power_mean_w == pytest.approx(400.0, rel=0.02)


def test_a_window_of_steady_load_lasts_at_least_a_second(clock: Clock):
    found, _ = monitor(clock, Card(clock)).steady(Load(clock, 0.005))
    assert found is not None
    assert found.window.duration_s >= 1.0


def test_a_counter_that_stands_still_is_a_reason_not_a_wait_for_ever(clock: Clock):
    found, reason = monitor(clock, Card(clock, power_w=0.0)).steady(Load(clock, 0.005))
    assert found is None
    assert reason is not None
    assert "ticked 0 times" in reason


def test_without_a_sensor_there_is_a_reason_and_no_energy(clock: Clock):
    missing = PowerMonitor(reason="the driver is not loaded", clock=clock)
    assert missing.steady(Load(clock, 0.005)) == (None, "no energy: the driver is not loaded")


def test_leaving_a_monitor_lets_its_sensor_go(clock: Clock):
    card = Card(clock)
    with monitor(clock, card):
        assert card.closed == 0
    assert card.closed == 1


def test_a_layer_timer_reads_one_time_for_each_call_of_a_convolution():
    model = Branching()
    timer = CUDALayerTimer(model, "cpu")
    with timer:
        model(torch.zeros(1, 3, 8, 8))
    times_ms = timer.read_ms()
    assert len(times_ms) == 2
    assert all(time_ms > 0 for time_ms in times_ms)


def test_a_layer_timer_is_attached_inside_its_block_only():
    model = Branching()
    timer = CUDALayerTimer(model, "cpu")
    with timer:
        model(torch.zeros(1, 3, 8, 8))
    model(torch.zeros(1, 3, 8, 8))
    assert len(timer.read_ms()) == 2
    assert not model.one._forward_hooks
    assert not model.one._forward_pre_hooks


def test_entering_a_layer_timer_again_forgets_the_pass_before():
    model = Branching()
    timer = CUDALayerTimer(model, "cpu")
    for _ in range(3):
        with timer:
            model(torch.zeros(1, 3, 8, 8))
    assert len(timer.read_ms()) == 2


FAST = {
    "num_sizes": 1,
    "input_size_range": (64, 96),
    "warmup_iters": 0,
    "measure_iters": 2,
    "device": "cpu",
    "measure_energy": False,
}


def make(model: str = tiny.NAME, algorithm: str = "direct", **changes: object) -> UnifiedProfiler:
    return UnifiedProfiler(model, algorithm, **(FAST | changes))


@pytest.fixture(scope="module")
def two_sizes(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, pd.DataFrame, pd.DataFrame]:
    folder = tmp_path_factory.mktemp("tiny_direct")
    overall, layers = make(num_sizes=2).run(folder)
    return folder, overall, layers


def test_each_size_has_one_overall_row_and_one_row_for_each_convolution(two_sizes: tuple):
    _, overall, layers = two_sizes
    assert list(overall["input_size"]) == [64, 96]
    assert layers.groupby("input_size").size().to_dict() == {64: tiny.CONVOLUTIONS, 96: tiny.CONVOLUTIONS}


def test_the_tables_that_come_back_are_those_on_disk(two_sizes: tuple):
    folder, overall, layers = two_sizes
    pd.testing.assert_frame_equal(overall, profile_store(folder, "tiny_direct").read("overall"))
    pd.testing.assert_frame_equal(layers, profile_store(folder, "tiny_direct").read("layers"))


def test_every_layer_says_that_ai3_ran_direct(two_sizes: tuple):
    _, _, layers = two_sizes
    assert set(zip(layers["ran_algorithm"], layers["ran_provider"], layers["status"], strict=True)) == {
        ("direct", "ai3", "ok")
    }


def test_the_error_of_each_layer_is_checked_at_every_size(two_sizes: tuple):
    _, _, layers = two_sizes
    assert layers["relative_error"].between(0, 1e-4, inclusive="neither").all()
    assert (layers["copied_input_bytes"] == 0).all()


def test_layers_take_less_than_the_pass_that_they_are_part_of(two_sizes: tuple):
    _, overall, _ = two_sizes
    assert (overall["layers_sum_ms"] > 0).all()
    assert (overall["convolutions"] == tiny.CONVOLUTIONS).all()


def test_on_a_cpu_the_figures_of_a_gpu_are_empty(two_sizes: tuple):
    _, overall, layers = two_sizes
    empty = ["power_mean_w", "energy_per_inference_j", "event_overhead_us", "peak_memory_bytes", "repeated_samples"]
    assert overall[empty].isna().all(axis=None)
    assert layers[["kernel_ms", "span_ms", "kernels", "workspace_bytes"]].isna().all(axis=None)


def test_run_json_has_request_environment_start_and_end(two_sizes: tuple):
    document = json.loads((two_sizes[0] / "run.json").read_text())
    assert document["run"]["input_sizes"] == [64, 96]
    assert document["environment"]["torch"] == torch.__version__
    assert document["started_utc"] <= document["ended_utc"]


def test_a_size_that_is_missing_is_measured_and_those_there_are_kept(two_sizes: tuple, tmp_path: Path):
    notes: list[str] = []
    first, _ = make().run(tmp_path)
    both, _ = make(num_sizes=2, note=notes.append).run(tmp_path)
    assert notes == [f"1 sizes are in {tmp_path}: measuring the 1 that are missing"]
    assert both.iloc[0]["mean"] == first.iloc[0]["mean"]
    assert list(both["input_size"]) == [64, 96]


def test_layers_of_a_size_that_was_cut_off_are_measured_again(tmp_path: Path):
    notes: list[str] = []
    make().run(tmp_path)
    (tmp_path / "tiny_direct_overall.csv").unlink()
    overall, layers = make(note=notes.append).run(tmp_path)
    assert notes == [f"{tmp_path}: dropped the size 64 px, which was cut off"]
    assert (len(overall), len(layers)) == (1, tiny.CONVOLUTIONS)


def test_an_algorithm_of_the_gpu_is_refused_on_a_cpu_before_a_folder_is_made(tmp_path: Path):
    with pytest.raises(InputError, match="gemm needs a CUDA device"):
        make(algorithm="gemm").run(tmp_path / "results")
    assert not (tmp_path / "results").exists()


def test_a_size_that_the_model_cannot_take_is_refused_before_a_folder_is_made(tmp_path: Path):
    with pytest.raises(InputError, match="alexnet cannot take 8×8 images"):
        make("alexnet", input_size_range=(8, 64), num_sizes=2).run(tmp_path / "results")
    assert not (tmp_path / "results").exists()


def test_a_size_in_the_middle_that_the_model_cannot_take_is_a_row_with_a_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    listed = models.layers_of

    def picky(source: models.Source, size: int, *more: object) -> tuple[Layer, ...]:
        if size == 80:
            raise InputError("tiny cannot take 80×80 images")
        return listed(source, size, *more)

    monkeypatch.setattr(models, "layers_of", picky)
    notes: list[str] = []
    overall, layers = make(num_sizes=3, note=notes.append).run(tmp_path)
    assert list(overall["status"]) == ["ok", "unsupported", "ok"]
    assert overall.iloc[1]["reason"] == "tiny cannot take 80×80 images"
    assert notes == ["80 px: unsupported: tiny cannot take 80×80 images"]
    assert set(layers["input_size"]) == {64, 96}


def test_tables_whose_settings_nobody_knows_are_refused(tmp_path: Path):
    make().run(tmp_path)
    (tmp_path / "run.json").unlink()
    with pytest.raises(InputError, match=r"run\.json"):
        make(batch_size=2).run(tmp_path)


def test_results_outlive_an_overwrite_that_could_not_begin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    make().run(tmp_path)

    def offline(*arguments: object) -> None:
        raise InputError("the trained weights cannot be downloaded")

    monkeypatch.setattr(models.TorchvisionSource, "build", offline)
    with pytest.raises(InputError, match="weights"):
        make(pretrained=True).run(tmp_path, overwrite=True)
    assert (tmp_path / "tiny_direct_overall.csv").exists()


def test_a_batch_that_does_not_fit_into_memory_is_a_row_with_a_reason(tmp_path: Path):
    overall, _ = make(batch_size=10**12, note=lambda line: None).run(tmp_path)
    assert list(overall["status"]) == ["oom"]


SIZES = [64, 72, 80, 88, 96]


def test_sizes_are_measured_in_a_shuffled_order_that_is_recorded_and_read_by_size(tmp_path: Path):
    overall, layers = make(algorithm="torch", num_sizes=5).run(tmp_path)
    assert list(overall["input_size"]) == SIZES
    assert sorted(overall["order"]) == [0, 1, 2, 3, 4]
    assert list(overall["order"]) != [0, 1, 2, 3, 4]
    by_time = overall.sort_values("order")["started_utc"].tolist()
    assert by_time == sorted(by_time)
    assert layers["input_size"].is_monotonic_increasing


def test_the_order_goes_by_the_seed(tmp_path: Path):
    orders = [
        list(make(algorithm="torch", num_sizes=5, seed=seed).run(tmp_path / name)[0]["order"])
        for name, seed in (("a", 1), ("b", 1), ("c", 2))
    ]
    assert orders[0] == orders[1] != orders[2]


def test_the_file_of_a_finished_run_is_sorted_by_size(tmp_path: Path):
    make(algorithm="torch", num_sizes=5).run(tmp_path)
    assert list(pd.read_csv(tmp_path / "tiny_torch_overall.csv")["input_size"]) == SIZES
    assert pd.read_csv(tmp_path / "tiny_torch_layers.csv")["input_size"].is_monotonic_increasing


def test_overheads_are_calibrated_at_the_smallest_size_whatever_comes_first_and_errors_checked_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    calibrated: list[int] = []
    monkeypatch.setattr(sweep.Bench, "calibrate", lambda self, size: calibrated.append(size))
    overall, layers = make(num_sizes=2, seed=0).run(tmp_path)
    assert overall.set_index("input_size").at[64, "order"] != 0
    assert layers["relative_error"].notna().all()
    assert calibrated == [64]


class Memory:
    """Memory that ends at some size: a pass of it and above is out of memory, as long as `full_px` says so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, full_px: float) -> None:
        self.full_px, self.tried = full_px, list[int]()
        measure = sweep.Bench.measure

        def limited(bench: sweep.Bench, size: int, *more: object, **options: object):
            self.tried.append(size)
            if size >= self.full_px:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
            return measure(bench, size, *more, **options)

        monkeypatch.setattr(sweep.Bench, "measure", limited)


QUIET = {"algorithm": "torch", "num_sizes": 5, "note": lambda line: None}


def test_no_size_is_tried_that_is_at_least_as_large_as_one_that_was_out_of_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    memory = Memory(monkeypatch, 80)
    overall, _ = make(**QUIET).run(tmp_path)
    assert list(overall["status"]) == ["ok", "ok", "oom", "oom", "oom"]
    full = [size for size in memory.tried if size >= 80]
    assert full == sorted(full, reverse=True)  # each smaller than those before
    skipped = overall[overall["reason"].fillna("").str.startswith("not tried")]
    assert set(skipped["input_size"]) == {80, 88, 96} - set(full)


def test_a_size_that_failed_or_ran_out_of_memory_is_measured_again_where_that_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    memory = Memory(monkeypatch, 80)
    make(**QUIET).run(tmp_path)
    before = profile_store(tmp_path, "tiny_torch").read("overall").set_index("input_size")
    memory.full_px = float("inf")
    memory.tried.clear()
    assert set(make(**QUIET).run(tmp_path)[0]["status"]) == {"ok", "oom"}
    assert memory.tried == []
    overall, _ = make(**QUIET).run(tmp_path, retry=True)
    assert sorted(memory.tried) == [80, 88, 96]
    assert set(overall["status"]) == {"ok"}
    assert list(overall["start"]) == [0, 0, 1, 1, 1]
    assert overall.set_index("input_size").at[64, "mean"] == before.at[64, "mean"]
    assert not list(tmp_path.glob("before-*"))  # nothing that was measured is replaced


def test_a_retry_tries_a_size_above_an_old_one_that_ran_out_of_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    memory = Memory(monkeypatch, 64)
    make(**QUIET | {"num_sizes": 1}).run(tmp_path)
    memory.full_px = float("inf")
    other = {"num_sizes": 1, "input_size_range": (96, 96)}
    overall, _ = make(**QUIET | other).run(tmp_path, retry=True)
    assert list(overall["status"]) == ["oom", "ok"]


@pytest.mark.parametrize("change", [{"git_commit": "another"}, {"host": "another"}])
def test_an_old_row_that_ran_out_of_memory_elsewhere_or_by_another_program_blocks_no_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: dict[str, str]
):
    memory = Memory(monkeypatch, 64)
    make(**QUIET | {"num_sizes": 1}).run(tmp_path)
    memory.full_px = float("inf")
    read = sweep.backends.environment_on
    monkeypatch.setattr(sweep.backends, "environment_on", lambda *asked: dataclasses.replace(read(*asked), **change))
    overall, _ = make(**QUIET).run(tmp_path)
    assert list(overall["status"]) == ["oom", "ok", "ok", "ok", "ok"]


def test_a_job_that_is_put_back_does_not_retry_what_it_has_retried_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    memory = Memory(monkeypatch, 80)
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    make(**QUIET).run(tmp_path, retry=True)
    memory.tried.clear()
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    make(**QUIET).run(tmp_path, retry=True)
    assert memory.tried == []
    monkeypatch.setenv("SLURM_JOB_ID", "8")
    make(**QUIET).run(tmp_path, retry=True)
    assert memory.tried != []


def test_without_an_output_folder_results_go_by_stage_model_algorithm_and_device():
    parts = make(algorithm="smm", num_sizes=10).folder.parts[-3:]
    assert parts == ("results", "2_quick", "tiny_smm_cpu")


def test_the_unswapped_model_is_the_baseline(tmp_path: Path):
    _, layers = make(algorithm="torch").run(tmp_path)
    assert set(layers["ran_provider"]) == {"torch"}
