"""Plans that cuDNN ranks for the shapes of samples: its heuristic A, asked for a described card. None need be here.

cuDNN's own choice and several algorithms by name run one of them (`choices`), so that times of that plan are theirs
too. Two engines are offered only to a card that is there, so they are not in the list: the one that calls cuBLASLt,
first for most 1×1 layers by the matrix unit; and the one of Fourier transforms, first for a few layers in fp32. One for
depthwise layers is offered to a described card where any card is there: it is left out, so that a shape has the same
plans on every machine.

Numbers of engines belong to a version of cuDNN. Those of 9.19.1 named the kernels that 9.19.0 ran
(docs/prediction.md): the third number of a version is not looked at.
"""

from __future__ import annotations

import dataclasses
import functools
import sys
from collections.abc import Iterable

from convscope.cudnn import library
from convscope.cudnn.graph import devices
from convscope.cudnn.graph.engines import Mode, Offers
from convscope.cudnn.shape import Convolution
from convscope.dataset.samples import SampleRow
from convscope.errors import CudnnError, CudnnMissingError

SEPARATOR = ";"
"""Stands between plans."""
OF_A_MACHINE = 5
"""Engine for depthwise layers, which only a machine with a card offers to a described one."""
_REMEMBERED = 1 << 16


def here() -> str | None:
    """Return the version of the cuDNN that is asked, None where there is none."""
    try:
        return library.version()
    except CudnnMissingError:
        return None


def series(version: str | None) -> str:
    """Return the first two numbers of a version of cuDNN, in which engines have the same numbers; "" for none."""
    return ".".join(version.split(".")[:2]) if isinstance(version, str) else ""  # a data frame may say NaN for none


def same_as_here(versions: Iterable[str]) -> str | None:
    """Return the one of these versions whose plans the cuDNN that is here can be asked for, None for none."""
    asked = series(here())
    return next((each for each in sorted(versions) if each and series(each) == asked), None)


def why_not(gpu_name: str, versions: Iterable[str]) -> str | None:
    """Return why the plans of a card and one of these versions of cuDNN cannot be asked for, None if they can."""
    if gpu_name not in devices.BY_NAME:
        return f"cuDNN is only told of {', '.join(sorted(devices.BY_NAME))}"
    known = [each for each in versions if each]
    if same_as_here(known):
        return None
    wanted = f"the samples are of {', '.join(sorted(known)) or 'no version'}"
    try:
        return f"cuDNN {library.version()} is here, {wanted} ({library.NAMED} names another)"
    except CudnnMissingError as error:
        return f"{error}; {wanted}"


def filled(rows: Iterable[SampleRow]) -> list[SampleRow]:
    """Return samples, with the plans of each that has none, and whose card and version of cuDNN can be asked."""
    asked = series(here())
    return [
        dataclasses.replace(row, ranked_plans=_of_row(row))
        if row.ranked_plans is None and asked and series(row.cudnn) == asked and row.gpu_name in devices.BY_NAME
        else row
        for row in rows
    ]


def _of_row(row: SampleRow) -> str | None:
    """Return the plans of a sample's shape; None where it lacks a size, or cuDNN has none."""
    if row.in_height_px is None or row.in_width_px is None or row.groups is None:
        return None
    options = (row.padding, row.stride, row.dilation)
    if None in options:
        return None
    kernel, padding, stride, dilation = (tuple(map(int, str(each).split("x"))) for each in (row.kernel_size, *options))
    shape = Convolution(
        (row.batch_size, row.in_channels, row.in_height_px, row.in_width_px),
        (row.out_channels, row.in_channels // row.groups, *kernel), padding, stride, dilation, row.groups, row.dtype,
        row.math, row.layout,
    )  # fmt: skip
    return ranked(shape, row.gpu_name)


@functools.lru_cache(_REMEMBERED)
def ranked(convolution: Convolution, gpu_name: str) -> str | None:
    """Return the plans of heuristic A that compute what is asked for, in cuDNN's order: "38:k2=8,k13=1;0".

    Args:
        gpu_name: one of `devices.BY_NAME`.

    Returns: None where cuDNN describes no such convolution, or has no plan for it.
    """
    try:
        with Offers(convolution, devices.BY_NAME[gpu_name]) as offers:
            found = [
                str(each.plan)
                for each in offers.of_mode(Mode.A)
                if each.plan.engine != OF_A_MACHINE and not each.why_not_comparable(convolution)
            ]
    except CudnnError:
        return None
    return sys.intern(SEPARATOR.join(found)) or None  # many shapes have the same
