"""Steps behind a convolution in one kernel, in place: y[i] = relu(y[i] + added[i] + bias[filter of i]).

For plans of the convolution alone: where cuDNN's fused plans are slower than its plans of the convolution, that and one
more kernel take less. Sums are of float32, rounded once when they are stored. A program does BLOCK elements, and moves
4 bytes an element (two more where something is added) in 16 bits, twice that in float32, mostly to and from L2.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

DTYPES = ("float32", "float16", "bfloat16")
_BLOCK = 1024
_SHORT = 2**31 - _BLOCK  # elements whose numbers fit 32 bits, in which divisions take a quarter of the time


@triton.jit(do_not_specialize=["plane", "filters"])
def do_steps(
    y, added, bias, elements, plane, filters,
    ADDS: tl.constexpr, BIASED: tl.constexpr, RELU: tl.constexpr, LONG: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Do BLOCK elements; `plane` is how many elements of one filter follow one another."""
    first = tl.program_id(0)
    if LONG:
        first = first.to(tl.int64)
    at = first * BLOCK + tl.arange(0, BLOCK)
    wanted = at < elements
    total = tl.load(y + at, mask=wanted, other=0.0).to(tl.float32)
    if ADDS:
        total += tl.load(added + at, mask=wanted, other=0.0).to(tl.float32)
    if BIASED:
        total += tl.load(bias + at // plane % filters, mask=wanted, other=0.0).to(tl.float32)
    if RELU:
        total = tl.where(total < 0, 0.0, total)  # a maximum would make 0 of what is not a number
    tl.store(y + at, total, mask=wanted)


def do(
    y: torch.Tensor, bias: torch.Tensor | None, added: torch.Tensor | None, relu: bool, last: bool = False
) -> torch.Tensor:
    """Do the steps in place, and return y (N × K × P × Q).

    Args:
        added: of y's size and type; it lies in memory as y does.
        last: they lie with the filters last (NHWC).
    """
    elements, plane = y.numel(), 1 if last else y.shape[2] * y.shape[3]
    do_steps[(triton.cdiv(elements, _BLOCK),)](
        y, y if added is None else added, y if bias is None else bias, elements, plane, y.shape[1],
        ADDS=added is not None, BIASED=bias is not None, RELU=relu, LONG=elements > _SHORT, BLOCK=_BLOCK,
    )  # fmt: skip
    return y
