"""Method of the page: how each number was obtained, with the commands and environments as `run.json` has them."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any

import pandas as pd

from convscope.report.folders import Folder
from convscope.report.labels import plain, utc
from convscope.report.tables.overview import device
from convscope.storage import wording

EXPLAINED = (
    ("time", "One forward pass on the GPU without the cost of launching it: CUDA events around replays of a captured "
     "CUDA graph, in several placements of weights and activations in memory. “± 95 %” is half the 95 % interval of "
     "the mean over these placements. On a CPU it is Python's performance counter; the column “timing method” says "
     "which."),
    ("time of a layer", "The layer's span in traced replays of the graph, or CUDA events around it less the measured "
     "overhead of a pair. Layers add up to less than the pass: the rest is not convolution."),
    ("energy", "Difference of the card's energy counter over a window of steady replays that begins and ends on a "
     "tick of the counter, over the replays in between. “± 2 std” is two standard deviations of it."),
    ("least time by peaks", "The longer of FLOPs over the card's peak rate and bytes over its peak bandwidth: "
     "FLOPs of the direct definition; weights, output and the touched part of the input moved once. Peaks are the "
     "vendor's, dense. Algorithms that need fewer FLOPs (Winograd, FFT) can stay below it."),
    ("regret", "Extra time over the fastest candidate of the layer, from the same rounds; half its 99 % interval "
     "beside it. The rounds that picked the fastest make it look faster: whole passes are of other rounds."),
    ("gain over PyTorch", "How much shorter the whole pass is than with PyTorch's own choice, from differences round "
     "by round in rounds that did not pick the fastest."),
    ("verdict", "Slower, faster or same where the 95 % interval of the difference lies wholly above, below or within "
     "5 %; else ambiguous, as is what another placement, clocks, heat or chance among many could account for."),
    ("compared", "Ratios, fronts and pictures hold runs of one card, driver, cuDNN, CUDA, PyTorch, Triton and "
     "arithmetic alone. Where runs differ in one of these their pictures say in which."),
    ("+ others", "Another algorithm ran some layers of the pass, as many as “layers by others” says: the time is "
     "not that of the named algorithm alone."),
    ("reference size", "A size of a model at which most of its algorithms have a time: of several the one "
     "that most models of the same setting have, and then the largest. Views that "
     "show one size show this one, unless a filter names another."),
    ("absent", "An empty cell is a figure that was not measured. Rows that failed keep their status and reason."),
)  # fmt: skip

LONGEST_COMMAND = 480
"""Characters of a command that are shown: cut off it could not be run again."""


def of_commands(folders: Sequence[Folder]) -> pd.DataFrame:
    """Return a row for each start of each run: its command, time, and the machine it ran on."""
    return pd.DataFrame([_start(folder, start) for folder in folders for start in folder.document["starts"]])


def _start(folder: Folder, start: dict[str, Any]) -> dict[str, Any]:
    environment = start.get("environment") or {}
    command = start.get("command")
    words = shlex.join(map(str, command)) if isinstance(command, list) else ""
    return {
        "run": plain(folder.path),
        "began_utc": utc(start.get("utc")),
        "command": plain(words, LONGEST_COMMAND) or None,
        "error": plain(start["error"]) if start.get("error") else None,
        "host": plain(environment.get("host") or ""),
        "gpu_uuid": plain(environment.get("gpu_uuid") or ""),
    }


def of_environments(folders: Sequence[Folder]) -> pd.DataFrame:
    """Return a row for each different environment, with the number of runs that it had."""
    names = ("cpu", "python", "torch", "torchvision", "ai3", "driver", "cuda", "cudnn", "triton", "power_limit_w")
    rows = list[dict[str, str | None]]()
    for folder in folders:
        facts = {
            name: folder.environment.get(name) for name in (*names, "ecc", "sm_clock_max_mhz", "host", "git_commit")
        }
        known = {name: None if value is None else plain(value) for name, value in facts.items()}
        rows.append({"card": device(folder), **known})
    if not rows:
        return pd.DataFrame()
    frame = pd.DataFrame(rows)
    return frame.groupby(list(frame.columns), dropna=False, sort=False).size().rename("runs").reset_index()


def of_methods(passes: pd.DataFrame) -> pd.DataFrame:
    """Return how many passes were timed by each method, by card."""
    if not len(passes):
        return pd.DataFrame()
    named = passes.assign(timing_method=passes["timing_method"].map(wording.present, na_action="ignore"))
    counts = named.groupby(["gpu", "timing_method"], sort=False).size().rename("passes")
    return counts.reset_index()
