"""GPU-hours that runs will take: from earlier sizes of the same run, else from runs like it, else from a roofline.

Every estimate has an error, as a factor: what estimates of earlier rows missed them by, where there are enough of them.
PyTorch is imported for the roofline only.
"""

from __future__ import annotations

import csv
import functools
import itertools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from convscope import gpus
from convscope.cli.display import several, table
from convscope.convolution import algorithms
from convscope.errors import ElsewhereError
from convscope.profiling.request import Run
from convscope.storage.paths import RETRIED, STAGES, slug, suffix

START_S = 10.0  # of a run besides its sizes: benchmarks/README.md, a sweep of ten less ten of its median size
PLACEMENTS_S, ENERGY_S, TRACING_S = 2.6, 1.6, 1.7  # of a size, whatever its model: benchmarks/README.md
LAYER_MS = 0.015  # of a pass for each layer, however small; with the factors below fitted to docs/h200.md
OVER_FLOOR = {
    "torch": 9.5,
    "guess": 9.5,
    "implicit precomp gemm": 9.5,
    "implicit gemm": 67.0,
    "gemm": 196.0,
    "fft": 334.0,
    "fft tiling": 129.0,
    "winograd nonfused": 41.0,
}
"""Passes above the least time that the card allows: six models at 224 and 512 pixels on an H200, within 3.2."""
OTHERS_OVER_FLOOR = 40.0
TENSOR_CORES = ("torch", "guess", "implicit precomp gemm")  # what they use on those layers of the six models in TF32
FP32_OVER_TF32 = 2.5  # their passes in FP32: benchmarks/README.md, fidelity.py
ROOFLINE_FACTOR, OTHERS_FACTOR = 3.2, 5.0  # by which a pass may differ; the second is assumed, no pass was compared
FIXED_FACTOR = 1.3  # by which the rest may
ASSUMED_FACTOR = 3.0  # of earlier rows too few to compare
ROWS_SHOWN = 40
# Settings in which runs of the same sizes take the same time.
SAME = (
    *("model", "algorithm", "gpu", "batch_size", "dtype", "layout", "input_shape", "math", "unsupported", "provider"),
    *("energy", "layer_energy", "warmup_iters", "measure_iters"),
)
_WEIGHTS = {"model": 8, "algorithm": 4, "batch_size": 2, "layer_energy": 2, "dtype": 1, "layout": 1, "math": 1}


@dataclass(frozen=True)
class Earlier:
    """Earlier run: its settings, its folder's stage and name, seconds by size, and the status of each size."""

    settings: Mapping[str, Any]
    stage: str
    folder: str
    walls_s: Mapping[int, float]
    statuses: Mapping[int, str]


@dataclass(frozen=True)
class Estimate:
    """Time that one run will take. `seconds` is None where nothing is known, and `basis` then says why."""

    run: Run
    sizes: int
    seconds: float | None
    factor: float
    basis: str


def read(results: Path) -> list[Earlier]:
    """Return the runs of a folder of results; what cannot be read, or is another study's, is left out."""
    found = []
    for stage in STAGES:
        for path in sorted((results / stage).glob("*/run.json")):
            try:
                settings = json.loads(path.read_text())["run"]
                name = f"{slug(settings['model'])}_{slug(settings['algorithm'])}_overall.csv"
                with open(path.parent / name, newline="") as file:
                    rows = [(int(row["input_size"]), row["status"], row["wall_s"]) for row in csv.DictReader(file)]
                walls_s = {size: float(wall_s) for size, status, wall_s in rows if status == "ok" and wall_s}
            except (OSError, ValueError, LookupError, TypeError, AttributeError):
                continue
            statuses = {size: status for size, status, _ in rows}
            found.append(Earlier(settings, stage, path.parent.name, walls_s, statuses))
    return found


def estimate(run: Run, earlier: Sequence[Earlier], overwrite: bool = False) -> Estimate:
    """Estimate one run; sizes that its folder has already take no time, unless they are measured again."""
    own = [each for each in earlier if (each.stage, each.folder) == (run.stage, run.folder_name)]
    done = {} if overwrite else {size: how for each in own for size, how in each.statuses.items() if how not in RETRIED}
    sizes = [size for size in run.input_sizes if size not in done]
    if not sizes:
        return Estimate(run, 0, 0.0, 1.0, "every size is measured already")
    if run.algorithm == algorithms.AUTOTUNE:  # most of whose time is a race that no other run has
        unknown = "nothing is known of autotune but by earlier runs of it on this GPU"
        return _by_same(run, sizes, earlier) or Estimate(run, len(sizes), None, 1.0, unknown)
    return _by_same(run, sizes, earlier) or _by_similar(run, sizes, earlier) or _by_roofline(run, sizes)


def fixed_s(run: Run) -> float:
    """Return the seconds of a size that do not depend on how long its passes take."""
    if run.device_type == "cpu":
        return ENERGY_S if run.energy else 0.0
    return PLACEMENTS_S + TRACING_S + (ENERGY_S if run.energy else 0.0)


def size_s(known: Mapping[int, float], size: int, least_s: float) -> float:
    """Return the seconds of a size by those of others: between two in a line, beyond them by the area of the images.

    Args:
        known: seconds by size in pixels, at least one.
        least_s: the part that does not grow with the images.
    """
    below, above = (
        max((s for s in known if s <= size), default=None),
        min((s for s in known if s >= size), default=None),
    )
    if below is not None and above is not None:
        share = (size - below) / (above - below) if above > below else 0.0
        return known[below] + share * (known[above] - known[below])
    nearest = below if below is not None else min(known)
    least_s = min(least_s, known[nearest])
    return least_s + (known[nearest] - least_s) * (size / nearest) ** 2


def _settings(run: Run) -> dict[str, Any]:
    return {name: getattr(run, name) for name in SAME}


def _agree(settings: Mapping[str, Any], run: Run, among: Sequence[str]) -> bool:
    """Tell whether settings are those of a run; what an older version did not record is no difference."""
    return all(settings.get(name, value) == value for name, value in _settings(run).items() if name in among)


def _by_same(run: Run, sizes: Sequence[int], earlier: Sequence[Earlier]) -> Estimate | None:
    known: dict[int, float] = {}
    for each in earlier:
        if _agree(each.settings, run, SAME):
            known |= each.walls_s
    if not known:
        return None
    seconds = START_S + sum(size_s(known, size, fixed_s(run)) for size in sizes)
    basis = f"{several(len(known), 'earlier size')} of the same run"
    factor = _factor_of_sizes(known, fixed_s(run))
    return Estimate(
        run, len(sizes), seconds, factor or ASSUMED_FACTOR, basis + ("" if factor else ", too few to check")
    )


def _factor_of_sizes(known: Mapping[int, float], least_s: float) -> float | None:
    """Return by which factor each other size misses those between, as sums; None for fewer than four sizes."""
    if len(known) < 4:
        return None
    ordered = sorted(known)
    kept, left = {size: known[size] for size in ordered[::2]}, ordered[1::2]
    ratio = sum(size_s(kept, size, least_s) for size in left) / sum(known[size] for size in left)
    return max(1.1, ratio, 1 / ratio)


def _by_similar(run: Run, sizes: Sequence[int], earlier: Sequence[Earlier]) -> Estimate | None:
    here = [each for each in earlier if each.settings.get("gpu") == run.gpu and each.walls_s]
    if not here:
        return None
    seconds, likest = _like(_settings(run), fixed_s(run), sizes, here)
    ratios = []
    for each in here[:50]:
        others = [other for other in here if other is not each]
        if others:
            true_s = sum(each.walls_s.values())
            least_s = min(fixed_s(run), min(each.walls_s.values()))
            ratio = _like(each.settings, least_s, list(each.walls_s), others)[0] / true_s
            ratios.append(max(ratio, 1 / ratio))
    basis = f"{len(likest)} of {len(here)} other runs on this GPU ({', '.join(each.folder for each in likest[:2])})"
    if len(ratios) < 3:
        return Estimate(run, len(sizes), START_S + seconds, ASSUMED_FACTOR, f"{basis}, too few to check")
    factor = max(1.1, sorted(ratios)[math.ceil(0.9 * len(ratios)) - 1])
    return Estimate(run, len(sizes), START_S + seconds, factor, basis)


def _like(
    settings: Mapping[str, Any], least_s: float, sizes: Sequence[int], others: Sequence[Earlier]
) -> tuple[float, list[Earlier]]:
    """Return the seconds of sizes by the runs that are most like these settings, their median; and those runs.

    What grows with the images grows with the batch too.
    """

    def likeness(each: Earlier) -> int:
        return sum(w for name, w in _WEIGHTS.items() if each.settings.get(name) == settings.get(name))

    most = max(map(likeness, others))
    likest = [each for each in others if likeness(each) == most]
    sums_s = []
    for each in likest:
        images = float(settings.get("batch_size") or 1) / float(each.settings.get("batch_size") or 1)
        found_s = [size_s(each.walls_s, size, least_s) for size in sizes]
        sums_s.append(sum(least_s + max(0.0, one_s - least_s) * images for one_s in found_s))
    return median(sums_s), likest


def _by_roofline(run: Run, sizes: Sequence[int]) -> Estimate:
    gpu = gpus.by_label(run.gpu)
    if gpu is None:
        why = f"nothing was measured on {run.gpu} yet, and convscope/gpus.py has no peaks of it"
        return Estimate(run, len(sizes), None, 1.0, why)
    some = dict.fromkeys((sizes[0], sizes[len(sizes) // 2], sizes[-1]))
    try:
        from convscope.convolution import roofline

        layers_by_size = {size: _layers(run.model, run.image_size(size), run.batch_size) for size in some}
    except (ModuleNotFoundError, ElsewhereError) as error:
        return Estimate(run, len(sizes), None, 1.0, f"nothing was measured on {run.gpu} yet, and a roofline: {error}")
    over = OVER_FLOOR.get(run.algorithm, OTHERS_OVER_FLOOR)
    known = {}
    for size, layers in layers_by_size.items():
        floor_ms = roofline.hardware_limit(layers, gpu, run.dtype, "tf32").time_ms
        known[size] = LAYER_MS * len(layers) + over * floor_ms
    passes_s = sum(size_s(known, size, 0.0) for size in sizes) / 1e3 * _passes(run)
    if gpu.tf32_tflops and (run.dtype, run.math) == ("float32", "fp32") and run.algorithm in TENSOR_CORES:
        passes_s *= FP32_OVER_TF32
    each_s = fixed_s(run) + (ENERGY_S * len(layers) if run.layer_energy else 0.0)
    rest_s = START_S + len(sizes) * each_s
    compared = run.algorithm in OVER_FLOOR and gpu.label == "h200"
    pass_factor = ROOFLINE_FACTOR if compared else OTHERS_FACTOR
    factor = (passes_s * pass_factor + rest_s * FIXED_FACTOR) / (passes_s + rest_s)
    basis = "a roofline" if compared else "a roofline, its error assumed"
    return Estimate(run, len(sizes), passes_s + rest_s, factor, basis)


@functools.lru_cache(maxsize=512)
def _layers(model: str, size: int | tuple[int, int], batch_size: int) -> tuple[Any, ...]:
    from convscope.convolution import models

    return models.convolutions(model, size, batch_size)


def _passes(run: Run) -> int:
    """Return how many passes a size takes: bare, with events, eager; by placement warm-up and traces."""
    return 3 * run.measure_iters + 5 * (run.warmup_iters + 8)


def report(found: Sequence[Estimate]) -> str:
    """Return a line a run where they are few, and for each GPU its hours with their error."""
    lines = []
    if 1 < len(found) <= ROWS_SHOWN:
        rows = [(_name(each.run), str(each.sizes), _hours(each), each.basis + _within(each)) for each in found]
        lines += [table(("run", "sizes", "hours", "from"), rows), ""]
    for gpu, of_gpu in itertools.groupby(sorted(found, key=lambda each: each.run.gpu), lambda each: each.run.gpu):
        lines.append(_summary(gpu, list(of_gpu)))
    return "\n".join(lines)


def document(found: Sequence[Estimate]) -> str:
    """Return estimates as JSON, an object a run; seconds are null where nothing is known."""
    named = ("model", "algorithm", "gpu", "batch_size", "dtype", "layout", "input_shape")
    rows = [
        {name: getattr(each.run, name) for name in named}
        | {"sizes": each.sizes, "seconds": each.seconds, "factor": each.factor, "basis": each.basis}
        for each in found
    ]
    return json.dumps(rows, indent=1)


def _name(run: Run) -> str:
    others = suffix(run.batch_size, run.dtype, run.layout, run.input_shape).split("_")
    return ", ".join(filter(None, (run.model, run.algorithm, run.gpu, *others)))


def _hours(each: Estimate) -> str:
    return "-" if each.seconds is None else f"{each.seconds / 3600:.2f}"


def _within(each: Estimate) -> str:
    return f", within a factor of {each.factor:.1f}" if each.seconds else ""


def _summary(gpu: str, every: Sequence[Estimate]) -> str:
    known = [each for each in every if each.seconds is not None]
    total_s = sum(each.seconds or 0.0 for each in known)
    factor = sum((each.seconds or 0.0) * each.factor for each in known) / total_s if total_s else 1.0
    unit = "hours on the CPU" if gpu == "cpu" else "GPU-hours"
    runs = f"{several(len(known), 'run')}, {several(sum(each.sizes for each in known), 'size')}"
    text = f"{gpu}: {total_s / 3600:.2f} {unit} for {runs}"
    if total_s:
        text += f", within a factor of {factor:.1f}, from " + "; ".join(dict.fromkeys(e.basis for e in known[:3]))
    elif known:
        text += ": every size is measured already"
    unknown = [each for each in every if each.seconds is None]
    if not unknown:
        return text
    remark = f"{gpu}: no estimate for {len(unknown)} of {len(every)} runs: {unknown[0].basis}"
    return remark if not known else f"{text}\n{remark}"
