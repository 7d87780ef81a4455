"""Plans that cuDNN ranks for the shapes of samples: its heuristic A, asked for a described card. None need be here.

cuDNN's own choice and several algorithms by name run one of them (`choices`), so that times of that plan are theirs
too. Three engines are offered only where a card is there (`OF_A_CARD`): lists of a process that has a card have them,
and others are the same without (tests/gpu/test_ranked_plans.py). `ranked_for` says which list a sample has.

Numbers of engines belong to a version of cuDNN. Those of 9.19.1 named the kernels that 9.19.0 ran
(docs/prediction.md): the third number of a version is not looked at.
"""

from __future__ import annotations

import dataclasses
import functools
import sys
from collections.abc import Iterable
from operator import attrgetter

from convscope.cudnn import library
from convscope.cudnn.graph import devices
from convscope.cudnn.graph.engines import Mode, Offers
from convscope.cudnn.graph.plan import Plan
from convscope.cudnn.legacy import Handle
from convscope.cudnn.shape import Convolution
from convscope.dataset import columns
from convscope.dataset.samples import ARITHMETIC, SHAPE, SampleRow
from convscope.errors import CudnnError, CudnnMissingError

SEPARATOR = ";"
"""Stands between plans."""
FOURIER, DEPTHWISE, CUBLASLT = 3, 5, 58
OF_A_CARD = frozenset({FOURIER, DEPTHWISE, CUBLASLT})
"""Engines of cuDNN 9.19 that it offers only where a card is there: of Fourier transforms, first for a few layers in
fp32; for depthwise layers; and the one that calls cuBLASLt, first for most 1×1 layers by the matrix unit."""
CARD, DESCRIPTION = columns.RANKED_FOR
"""Values of `ranked_for`: a card was there when the plans were asked for, or none was."""
_REMEMBERED = 1 << 16
_SHAPE = attrgetter("gpu_name", "cudnn", *SHAPE, *ARITHMETIC)


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


@functools.lru_cache(1)
def card_here() -> Handle | None:
    """Return a context of the first card that is here; None where there is none, or one that is not in `BY_NAME`.

    With it, cuDNN offers this process what it offers only where a card is there, also for a description. The process
    has some hundred megabytes of the card's memory from then on; an empty `CUDA_VISIBLE_DEVICES` prevents it.
    """
    handle = None
    try:
        handle = Handle()
        name = devices.properties_of(handle)["deviceName"]
    except CudnnError:  # no card, or a cuDNN that describes none
        name = None
    if name in devices.BY_NAME:
        return handle
    if handle is not None:
        handle.close()
    return None


def filled(rows: Iterable[SampleRow]) -> list[SampleRow]:
    """Return samples, with the plans of each that has none, and whose card and version of cuDNN can be asked.

    Plans that were asked for without a card are asked for again where one is here. Those that another sample of the
    shape has from a card are taken from it.
    """
    asked, given = series(here()), [*rows]
    of_card = {_SHAPE(row): row.ranked_plans for row in given if row.ranked_for == CARD}
    found = []
    for row in given:
        if row.ranked_for != CARD and _SHAPE(row) in of_card:
            row = dataclasses.replace(row, ranked_plans=of_card[_SHAPE(row)], ranked_for=CARD)
        elif asked and series(row.cudnn) == asked and row.gpu_name in devices.BY_NAME and _is_asked(row):
            row = _with_plans(row)
        found.append(row)
    return found


def _is_asked(row: SampleRow) -> bool:
    return row.ranked_plans is None or (row.ranked_for != CARD and card_here() is not None)


def _with_plans(row: SampleRow) -> SampleRow:
    if (plans := _of_row(row)) is None:
        return row
    return dataclasses.replace(row, ranked_plans=plans, ranked_for=DESCRIPTION if card_here() is None else CARD)


def together(one: SampleRow, other: SampleRow) -> tuple[SampleRow, SampleRow]:
    """Return two samples of a shape, each with the plans of the one that knows more; as they are if these disagree."""
    less, more = sorted((one, other), key=_known)
    plans = more.ranked_plans
    if plans and more.ranked_for == CARD and less.ranked_for != CARD:
        plans = without_card(plans)
    if less.ranked_plans not in (None, plans):
        return one, other
    told = functools.partial(dataclasses.replace, ranked_plans=more.ranked_plans, ranked_for=more.ranked_for)
    return told(one), told(other)


def _known(row: SampleRow) -> tuple[bool, str, str]:
    """Return what is the larger the more a sample knows of its plans."""
    return row.ranked_for == CARD, row.ranked_plans or "", row.ranked_for or ""


def without_card(plans: str) -> str | None:
    """Return of a list that was asked for where a card is there what it is without one."""
    kept = [each for each in plans.split(SEPARATOR) if Plan.named(each).engine not in OF_A_CARD]
    return SEPARATOR.join(kept) or None


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

    Those of `OF_A_CARD` are among them where a card is here.

    Args:
        gpu_name: one of `devices.BY_NAME`.

    Returns: None where cuDNN describes no such convolution, or has no plan for it.
    """
    has_card = card_here() is not None
    try:
        with Offers(convolution, devices.BY_NAME[gpu_name]) as offers:
            found = [
                str(each.plan)
                for each in offers.of_mode(Mode.A)
                if (has_card or each.plan.engine not in OF_A_CARD) and not each.why_not_comparable(convolution)
            ]
    except CudnnError:
        return None
    return sys.intern(SEPARATOR.join(found)) or None  # many shapes have the same
