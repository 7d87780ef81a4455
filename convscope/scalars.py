"""Curves of a training cell for `tensorboard --logdir`: losses, accuracy, times, throughput, energy."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from convscope.ledger import TrainingRow
from convscope.trainer import Trained, phase_times

TOTALS = ("throughput_samples_per_s", "peak_memory_bytes", "energy_per_sample_j")


def write(folder: Path, row: TrainingRow, found: Trained, note: Callable[[str], None]) -> None:
    """Write one file of events into a folder; without the package tensorboard nothing is written, and that is noted."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        note("no curves for TensorBoard: pip install 'convscope[study]'")
        return
    for old in folder.glob("events.out.tfevents.*"):
        old.unlink()
    with SummaryWriter(str(folder)) as writer:
        losses = [loss for epoch in found.epochs for loss in epoch.losses]
        for step, loss in enumerate(losses):
            writer.add_scalar("loss/step", loss, step)
        for number, epoch in enumerate(found.epochs, 1):
            if epoch.accuracy_pct is not None and epoch.test_loss is not None:
                writer.add_scalar("loss/held_out", epoch.test_loss, number)
                writer.add_scalar("accuracy_pct", epoch.accuracy_pct, number)
        for name, times_ms in phase_times(found).items():
            for step, time_ms in enumerate(times_ms, row.skipped_steps or 0):
                writer.add_scalar(f"time_ms/{name}", time_ms, step)
        for name in TOTALS:
            if (value := getattr(row, name)) is not None:
                writer.add_scalar(name, value, 0)
