"""A training study: what a cell gives, and what becomes of one that fails."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import time
from pathlib import Path

import fakes
import pytest
import torch
from fakes.trainings import SMALL, Meter, asked, study
from triton.runtime.errors import OutOfResources

from convscope.convolution import swap
from convscope.distributed import Ranks
from convscope.errors import InputError
from convscope.power.energy import EnergyWindow
from convscope.storage.store import Store
from convscope.timing.hooks import convolution_modules
from convscope.training import datasets, report, trainer
from convscope.training import study as training_study
from convscope.training.request import Training
from convscope.training.rows import SCHEMA, TrainingKey
from convscope.training.step import StepClock
from convscope.training.trainer import Epoch, Trained, Trainer
from profiler import PowerMonitor

CPU = torch.device("cpu")


def own(folder: Path, width: int) -> str:
    """Write a model of the user's own into a folder; return its name."""
    folder.mkdir(exist_ok=True)
    (folder / "net.py").write_text(f"from torch import nn\ndef make(num_classes): return nn.Conv2d(3, {width}, 1)\n")
    return f"{folder}/net.py:make"


def check_join(folder: Path, first: Training, second: Training) -> None:
    """Begin a folder by one request, and ask whether another may go on with it."""
    store = Store(folder / "results", SCHEMA)
    store.prepare()
    store.begin(first, fakes.ENVIRONMENT, ["x"])
    store.missing(second, fakes.ENVIRONMENT, [])


def test_files_of_one_name_in_two_folders_are_no_one_cell(tmp_path: Path):
    one, other = (asked(models=(own(tmp_path / name, 4),)) for name in "ab")
    with pytest.raises(
        InputError, match=r"other settings \(model net.py_make /.*/a/net.py:make, now /.*/b/net.py:make\)"
    ):
        check_join(tmp_path, one, other)


def test_a_model_that_was_edited_does_not_go_on_with_its_folder(tmp_path: Path):
    before = asked(models=(SMALL, own(tmp_path, 4)))
    after = asked(models=(own(tmp_path, 8),))
    with pytest.raises(InputError, match=r"\(the code or the weights of net.py_make are others\): choose another"):
        check_join(tmp_path, before, after)


def test_other_models_and_those_of_unknown_code_go_on_with_a_folder(tmp_path: Path):
    mine = asked(models=(own(tmp_path, 4),))
    check_join(tmp_path, mine, asked(models=(SMALL,)))
    check_join(tmp_path, mine, asked(models=(SMALL, *mine.models)))
    check_join(tmp_path, mine, dataclasses.replace(mine, model_digests=("net.py_make ",)))
    check_join(tmp_path, dataclasses.replace(mine, models=("resnet18",), model_digests=()), asked(models=("resnet18",)))


def test_two_models_with_one_name_in_tables_are_refused_in_one_command(tmp_path: Path):
    both = tuple(own(tmp_path / name, 4) for name in "ab")
    with pytest.raises(
        InputError, match=r"--model: .*/a/net.py:make and .*/b/net.py:make are both net.py_make in tables"
    ):
        asked(models=both)
    assert asked(models=("resnet18", "torchvision:resnet18")).models == ("torchvision:resnet18",)


def test_a_cell_has_its_times_throughput_and_energy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    readings = itertools.count()
    monkeypatch.setattr(time, "perf_counter", lambda: next(readings) / 1e3)  # each takes a millisecond
    monkeypatch.setattr(trainer, "StepClock", functools.partial(StepClock, clock=time.perf_counter))
    meter = Meter()
    made = study(tmp_path, meter)
    made.run()
    row = made.store.read("training").iloc[0]
    assert row["status"] == "ok"
    assert (row["steps"], row["skipped_steps"], meter.windows) == (2, 1, 1)
    parts_ms = sum(row[f"{phase}_ms"] for phase in ("data", "forward", "backward", "optimizer"))
    assert parts_ms == pytest.approx(row["step_ms"])
    assert (row["step_ms"], row["window_s"]) == pytest.approx((4, 0.010))  # a reading before the first step, one behind
    assert row["throughput_samples_per_s"] == pytest.approx(8 / row["window_s"])
    assert row["power_mean_w"] == 10
    assert row["energy_per_sample_j"] == pytest.approx(10 * row["window_s"] / 8)
    assert row["energy_uncertainty_j"] == pytest.approx(row["energy_per_sample_j"] / 100)
    assert row["parameters"] == 727_626
    assert row["timing_method"] == "time.perf_counter"


def test_without_a_sensor_the_row_says_why_there_is_no_energy(tmp_path: Path):
    made = study(tmp_path, PowerMonitor(reason="nobody to ask"))
    made.run()
    row = made.store.read("training").iloc[0]
    assert (row["status"], row["reason"]) == ("ok", "no energy: nobody to ask")
    assert made.store.read("training")["energy_per_sample_j"].isna().all()


def test_out_of_memory_is_a_row_and_the_next_cell_is_trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    train = Trainer.train

    def sometimes(self: Trainer, meter: Meter) -> Trained:
        if self.trained.parameters and self._loader._batch[0].shape[0] == 8:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.\nmore")
        return train(self, meter)

    monkeypatch.setattr(Trainer, "train", sometimes)
    made = study(tmp_path, batch_sizes=(8, 4))
    made.run()
    table = made.store.read("training")
    assert table[["batch_size", "status"]].to_numpy().tolist() == [[8, "oom"], [4, "ok"]]
    assert table["reason"][0] == "CUDA out of memory. Tried to allocate 20.00 GiB."
    assert table.loc[0, ["step_ms", "throughput_samples_per_s", "loss"]].isna().all()


def test_a_kernel_that_does_not_fit_the_card_is_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    refusal = OutOfResources(300_000, 232_448, "shared memory")
    monkeypatch.setattr(Trainer, "train", lambda self, meter: (_ for _ in ()).throw(refusal))
    made = study(tmp_path)
    made.run()
    row = made.store.read("training").iloc[0]
    assert (row["status"], row["reason"]) == ("unsupported", str(refusal))


def test_an_error_that_is_not_a_cells_own_is_not_hidden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Trainer, "train", lambda self, meter: (_ for _ in ()).throw(RuntimeError("a fault")))
    made = study(tmp_path)
    with pytest.raises(RuntimeError, match="a fault"):
        made.run()
    assert set(made.store.cells()) == set()


def test_what_a_model_cannot_take_is_a_row(tmp_path: Path):
    made = study(tmp_path, models=("alexnet",))
    made.run()
    row = made.store.read("training").iloc[0]
    assert row["status"] == "unsupported"
    assert row["reason"].startswith("alexnet cannot take 32×32 images")


def test_a_single_image_that_cannot_be_normalised_is_a_row(tmp_path: Path):
    made = study(tmp_path, batch_sizes=(1,), models=("resnet18",))
    made.run()
    assert made.store.read("training")["status"].tolist() == ["unsupported"]


def test_cells_that_are_there_are_not_trained_again(tmp_path: Path):
    study(tmp_path).run()
    meter = Meter()
    again = study(tmp_path, meter)
    again.run()
    assert meter.windows == 0
    study(tmp_path, meter, batch_sizes=(4, 6)).run()
    assert meter.windows == 1
    assert set(again.store.cells()) == {
        TrainingKey("squeezenet1_1", 4, 1, False, False),
        TrainingKey("squeezenet1_1", 6, 1, False, False),
    }


def test_a_study_that_is_stopped_keeps_what_it_has_and_goes_on_later(tmp_path: Path):
    asked_to_stop = iter([False, True])
    made = study(tmp_path, stop=lambda: next(asked_to_stop), batch_sizes=(4, 6))
    made.run()
    assert made.stopped
    assert set(made.store.cells()) == {TrainingKey("squeezenet1_1", 4, 1, False, False)}
    later = study(tmp_path, batch_sizes=(4, 6))
    later.run()
    assert not later.stopped
    assert len(set(later.store.cells())) == 2


def test_one_seed_gives_one_sequence_of_losses_when_deterministic():
    def losses(seed: int) -> list[float]:
        images = datasets.load("digits", Path("nowhere"), 32)
        request = asked(dataset="digits", seed=seed, deterministic=True, models=("resnet18",))
        small = datasets.Images(images.train, datasets.Pictures(images.held_out.images[:8], images.held_out.labels[:8],
                                                                0.0, 1.0))  # fmt: skip
        with training_study.deterministic(True):
            return Trainer(request, request.models[0], 4, small, CPU, Ranks()).train(Meter()).epochs[0].losses

    assert losses(42) == losses(42)
    assert losses(42) != losses(43)


def test_deterministic_algorithms_are_switched_back():
    with training_study.deterministic(True):
        assert torch.are_deterministic_algorithms_enabled()
    assert not torch.are_deterministic_algorithms_enabled()


def test_an_algorithm_of_ai3_trains_with_gradients_like_pytorchs():
    def losses(algorithm: str) -> list[float]:
        request = asked(algorithm=algorithm, learning_rate=0.01, models=(SMALL,))
        trainer = Trainer(request, request.models[0], 2, datasets.Images(None, None), CPU, Ranks())
        torch.manual_seed(3)  # for the dropout
        assert {swap.carried(module) for module in convolution_modules(trainer._model).values()} == {algorithm}
        return trainer.train(Meter()).epochs[0].losses

    assert losses("direct") == pytest.approx(losses("torch"), rel=1e-4)


def trained(window_s: float, steps: int = 10, energies=()) -> Trained:
    return Trained(
        parameters=1,
        skipped_steps=0,
        epochs=[Epoch([1.0] * steps, None, None)],
        phases_ms=[(1.0, 2.0, 3.0, 4.0)] * steps,
        window_s=window_s,
        energies=list(energies),
        energy_reason=None if energies else "no energy: nobody to ask",
    )


def test_several_processes_are_as_fast_as_the_slowest_and_take_all_their_energy():
    window = EnergyWindow(0.0, 1.0, 100.0, 3.0, "a counter")
    other = EnergyWindow(0.0, 2.0, 200.0, 8.0, "a counter")
    figures = training_study._figures([trained(1.0, 10, [window]), trained(2.0, 10, [other])], 4, on_gpu=True)
    assert figures["throughput_samples_per_s"] == 80 / 2.0
    assert figures["throughput_per_process_samples_per_s"] == 20
    assert figures["power_mean_w"] == 200
    assert figures["energy_per_sample_j"] == pytest.approx(200 / 40)
    assert figures["energy_uncertainty_j"] == pytest.approx(5 / 40)


def test_efficiency_is_told_where_one_process_alone_was_measured(tmp_path: Path):
    made = study(tmp_path)
    alone = made._row(TrainingKey("squeezenet1_1", 4, 1, False, False), throughput_samples_per_s=100.0)
    both = made._row(TrainingKey("squeezenet1_1", 4, 2, False, False), throughput_samples_per_s=180.0)
    assert made._with_efficiency(both).scaling_efficiency_pct is None
    made.store.append([alone])
    assert made._with_efficiency(both).scaling_efficiency_pct == pytest.approx(90)
    assert made._with_efficiency(alone).scaling_efficiency_pct is None
    compiled = dataclasses.replace(both, compiled=True)
    assert made._with_efficiency(compiled).scaling_efficiency_pct is None


def test_without_tensorboard_that_is_said_and_the_rest_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(__import__("sys").modules, "torch.utils.tensorboard", None)
    said: list[str] = []
    made = study(tmp_path)
    report.write_scalars(
        tmp_path / "x", made._row(TrainingKey("squeezenet1_1", 4, 1, False, False)), trained(1.0), said.append
    )
    assert said == ["no curves for TensorBoard: pip install 'convscope[study]'"]
    with contextlib.suppress(FileNotFoundError):
        assert not list((tmp_path / "x").iterdir())


def test_a_cell_that_fails_among_several_processes_ends_the_study(tmp_path: Path):
    made = study(tmp_path)
    made.ranks = Ranks(rank=1, world=2)
    made._fail(made._row(TrainingKey("squeezenet1_1", 4, 2, False, False), status="oom", reason="CUDA out of memory."))
    assert made.broken
    assert set(made.store.cells()) == set()  # the first process writes


def watch(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the list into which every training and trace is written as it begins."""
    seen: list[str] = []
    train, trace = Trainer.train, Trainer.trace
    monkeypatch.setattr(Trainer, "train", lambda self, meter: [seen.append("train"), train(self, meter)][1])
    monkeypatch.setattr(Trainer, "trace", lambda self, path: [seen.append("trace"), trace(self, path)][1])
    return seen


def test_no_cell_is_timed_after_a_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    seen = watch(monkeypatch)
    made = study(tmp_path, batch_sizes=(2, 4), profiler=True)
    made.run()
    assert seen == ["train", "train", "trace", "trace"]
    assert {row.batch_size for row in made.store.objects("operators")["operators"]} == {2, 4}
    assert len(made.store.objects("training")["training"]) == 2


def test_a_study_that_stopped_before_its_traces_takes_them_at_the_next_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    answers = iter([False, False, True])
    study(tmp_path, batch_sizes=(2, 4), profiler=True, stop=lambda: next(answers)).run()
    seen = watch(monkeypatch)
    study(tmp_path, batch_sizes=(2, 4), profiler=True).run()
    assert seen == ["trace", "trace"]


def test_a_cell_whose_curves_cannot_be_written_keeps_its_row_and_the_next_is_trained(tmp_path: Path):
    (tmp_path / "file").write_text("")
    made = study(tmp_path / "run", batch_sizes=(4, 2))
    made.profile_dir, notes = tmp_path / "file" / "profiles", list[str]()
    made.note = notes.append
    made.run()
    assert made.store.read("training")["status"].tolist() == ["ok", "ok"]
    assert sum("no curves" in line and "cannot be written (Not a directory)" in line for line in notes) == 2


def test_of_few_steps_half_are_timed(tmp_path: Path):
    for max_steps, timed in ((1, 1), (6, 3)):
        made = study(tmp_path / str(max_steps), max_steps=None)
        made.training = dataclasses.replace(made.training, skipped_steps=10, max_steps=max_steps)
        made.run()
        row = made.store.read("training").iloc[0]
        assert (row["status"], row["steps"], row["skipped_steps"]) == ("ok", timed, max_steps - timed)


def test_how_a_cell_is_measured_makes_it_no_other_and_memory_is_traced_later(tmp_path: Path):
    study(tmp_path, profiler=True).run()
    before = Store(tmp_path, SCHEMA).read_all()
    assert len(before["operators"])
    assert not len(before["memory"])
    made = study(tmp_path, profiler=True, profile_memory=True, skipped_steps=2, energy=False)
    assert made.store.missing(made.training, fakes.ENVIRONMENT, list(training_study.cells_of(made.training))) == []
    made.run()
    after = Store(tmp_path, SCHEMA).read_all()
    assert len(after["memory"])
    for name in ("training", "operators"):
        assert after[name].equals(before[name])


@pytest.mark.parametrize("searched", [False, True])
def test_plans_are_searched_where_that_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, searched: bool):
    seen: list[bool] = []

    def train(self: Trainer, meter: Meter) -> None:
        seen.append(torch.backends.cudnn.benchmark)
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(Trainer, "train", train)
    study(tmp_path, cudnn_benchmark=searched).run()
    assert set(seen) == {searched}
    assert not torch.backends.cudnn.benchmark
