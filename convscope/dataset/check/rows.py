"""Checks of samples one by one: values and units, the least time that the card allows, kernels against the name."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from convscope import gpus
from convscope.dataset.check import roofline
from convscope.dataset.columns import COLUMNS
from convscope.dataset.package.merging import title
from convscope.dataset.samples import SampleRow, kernel_names
from convscope.verification import kernel_families

_FAST = frozenset({"fft", "fft tiling", "winograd", "winograd nonfused"})
_FAST_FAMILIES = frozenset({kernel_families.FFT, kernel_families.WINOGRAD})
_PLAIN = frozenset({"gemm", "implicit gemm", "implicit precomp gemm", "direct", "smm"})
_MAY_BE_INFINITE = ("relative_error",)


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong with a sample: its number among those that were given, what it is, what is wrong."""

    sample: int
    about: str
    what: str

    def line(self, where: str) -> str:
        """Return it as a line behind the place of the sample."""
        return f"{where} ({self.about}): {self.what}"


@dataclass
class Checked:
    """Numbers of samples that a check could say something of, and of those that it could not, by reason."""

    floors: int = 0
    kernels: int = 0
    not_checked: Counter[str] = field(default_factory=Counter)


def findings(rows: Sequence[SampleRow], checked: Checked) -> Iterator[Finding]:
    """Yield what is wrong with samples, in their order; `checked` counts what was looked at."""
    for number, row in enumerate(rows):
        for problem in (*values(row), *too_fast(row, checked), *other_kernels(row, checked)):
            yield Finding(number, title(row), problem)


def values(row: SampleRow) -> Iterator[str]:
    """Yield the values of a sample that its column does not allow, or that do not go together."""
    cells = vars(row)
    for column in COLUMNS:
        value = cells[column.name]
        if value is None:
            continue
        if column.values and value not in column.values:
            yield f"{column.name} is {value!r}: choose one of {', '.join(column.values)}"
        if column.kind == "float" and not math.isfinite(value) and column.name not in _MAY_BE_INFINITE:
            yield f"{column.name} is {value}: leave it empty where it was not measured"
        elif column.minimum is not None and value < column.minimum:
            yield f"{column.name} is {value}: the least is {column.minimum}"
    if row.status != "ok" and not row.reason:
        yield f"the status is {row.status} and there is no reason: say why"
    if row.groups and (row.in_channels % row.groups or row.out_channels % row.groups):
        yield f"{row.groups} groups do not divide {row.in_channels} channels and {row.out_channels} filters"
    elif _has_sizes(row) and roofline.work(row, is_fast=False) is None:
        yield "there is no output: the filter is larger than the padded input"


def _has_sizes(row: SampleRow) -> bool:
    return None not in (row.in_height_px, row.in_width_px, row.stride, row.padding, row.dilation, row.groups)


def too_fast(row: SampleRow, checked: Checked) -> Iterator[str]:
    """Yield where a time is below the least that the card allows."""
    if row.mean_ms is None:
        return
    gpu = gpus.identify(row.gpu_name)
    floor = None if gpu is None else roofline.floor(row, gpu, may_be_fast(row))
    if floor is None or gpu is None:
        reason = f"no peaks are known of {row.gpu_name}" if gpu is None else "sizes are not said"
        checked.not_checked[f"against the card's limits: {reason}"] += 1
        return
    checked.floors += 1
    if row.mean_ms < floor.time_ms:
        by = "its memory" if floor.memory_ms > floor.compute_ms else f"its arithmetic in {row.dtype}, {row.math}"
        yield f"{row.mean_ms:.4g} ms is faster than the card: {by} takes {floor.time_ms:.4g} ms at the least"


def may_be_fast(row: SampleRow) -> bool:
    """Tell whether what ran may be an algorithm that does fewer products than the definition of a convolution.

    Kernels decide where they are known; else the name of what ran; else it may be any.
    """
    kernels = kernel_names(row.kernels)
    if kernels:
        return any(kernel_families.family(each) in _FAST_FAMILIES for each in kernels)
    return (row.ran_algorithm or row.algorithm) not in _PLAIN


def other_kernels(row: SampleRow, checked: Checked) -> Iterator[str]:
    """Yield where the kernels of a sample are not those of the algorithm that it says ran, or of its arithmetic."""
    kernels = kernel_names(row.kernels)
    if kernels is None:
        yield f"kernels is {_short(row.kernels or '')}: write a JSON object of counts by name, or names with ; between"
        return
    if not kernels:
        checked.not_checked["against their kernels: these are not known"] += row.mean_ms is not None
        return
    checked.kernels += 1
    name = row.ran_algorithm or row.algorithm
    pointwise = row.kernel_size == "1x1" and row.stride == "1x1"
    odd = kernel_families.stranger(name, kernels, pointwise=pointwise)
    if odd == "":
        yield f"it says that {name} ran, and no kernel of it did: {_short(next(iter(kernels)))}"
    elif odd is not None:
        yield f"it says that {name} ran, and a kernel of {kernel_families.family(odd)} did: {_short(odd)}"
    if row.dtype == "float32" and row.math == "fp32":
        coarse = next((each for each in kernels if kernel_families.uses_tensor_cores(each)), None)
        if coarse is not None:
            yield f"it says fp32, and a kernel of the tensor cores ran: {_short(coarse)}"


def is_renamed(row: SampleRow) -> bool:
    """Tell whether a name that promises kernels ran as another algorithm, which the sample says."""
    promises = kernel_families.allowed(row.algorithm, pointwise=False) is not None
    return promises and row.ran_algorithm is not None and row.ran_algorithm != row.algorithm


def _short(kernel: str) -> str:
    plain = re.sub(r"\s+", " ", kernel_families.short_name(kernel))
    return plain if len(plain) <= 80 else plain[:80] + "…"
