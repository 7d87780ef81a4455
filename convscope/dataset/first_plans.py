"""First plans of samples: what cuDNN would choose for a shape, asked of it for a described card. None need be here.

cuDNN's own choice (`guess`), its `implicit precomp gemm` and PyTorch's convolution run the first plan of heuristic A
that computes what is asked for, so that times of that plan are theirs too. Two engines are offered only to a card that
is there: the one that calls cuBLASLt, first for 1×1 layers by the matrix unit, whose plan is therefore not known; and
the one of Fourier transforms, first for a few layers in fp32, whose plan is therefore said wrongly.

Numbers of engines belong to a version of cuDNN. Those of 9.19.1 named the kernels that 9.19.0 ran
(docs/prediction.md): the third number of a version is not looked at.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable

from convscope.cudnn import library
from convscope.cudnn.graph import devices
from convscope.cudnn.graph.engines import Offers
from convscope.cudnn.shape import Convolution
from convscope.dataset.samples import SampleRow
from convscope.errors import CudnnError, CudnnMissingError

_REMEMBERED = 1 << 16


def here() -> str | None:
    """Return the version of the cuDNN that is asked, None where there is none."""
    try:
        return library.version()
    except CudnnMissingError:
        return None


def series(version: str | None) -> str:
    """Return the first two numbers of a version of cuDNN, in which engines have the same numbers; "" for none."""
    return ".".join((version or "").split(".")[:2])


def same_as_here(versions: Iterable[str]) -> str | None:
    """Return the one of these versions whose plans the cuDNN that is here can be asked for, None for none."""
    asked = series(here())
    return next((each for each in sorted(versions) if each and series(each) == asked), None)


def why_not(gpu_name: str, versions: Iterable[str]) -> str | None:
    """Return why the first plans of a card and one of these versions of cuDNN cannot be asked for, None if they can."""
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
    """Return samples, with the first plan of each that has none, and whose card and version of cuDNN can be asked."""
    asked = series(here())
    return [
        dataclasses.replace(row, first_plan=_of_row(row))
        if row.first_plan is None and asked and series(row.cudnn) == asked and row.gpu_name in devices.BY_NAME
        else row
        for row in rows
    ]


def _of_row(row: SampleRow) -> str | None:
    """Return the first plan of a sample's shape; None where cuDNN has none, or it is not known without a card."""
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
    return first_plan(shape, row.gpu_name)


@functools.lru_cache(_REMEMBERED)
def first_plan(convolution: Convolution, gpu_name: str) -> str | None:
    """Return the plan that cuDNN ranks first of those that compute what is asked for, "38:k2=8,k13=1".

    Args:
        gpu_name: one of `devices.BY_NAME`.

    Returns: None where cuDNN describes no such convolution, has no plan for it, or would take cuBLASLt's engine on a
        card that is there.
    """
    if is_left_out(convolution):
        return None
    try:
        with Offers(convolution, devices.BY_NAME[gpu_name]) as offers:
            found = offers.first(convolution)
    except CudnnError:
        return None
    return None if found is None else str(found)


def is_left_out(convolution: Convolution) -> bool:
    """Tell whether cuDNN may take an engine that it offers only to a card that is there: cuBLASLt's, for 1×1 layers."""
    of_one = {*convolution.kernel, *convolution.stride, convolution.groups} == {1}
    return of_one and (convolution.dtype, convolution.math) != ("float32", "fp32")
