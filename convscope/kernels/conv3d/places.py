"""Pixels, taps and outputs as the 3-D kernels count them: device functions, in the order of a kernel."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def corner(at, out_h, out_w, stride_d, stride_h, stride_w, pad_d, pad_h, pad_w):
    """Return depth, row and column of the input pixel that the first tap sees from output pixels `at` of an image."""
    plane = out_h * out_w
    return at // plane * stride_d - pad_d, at % plane // out_w * stride_h - pad_h, at % out_w * stride_w - pad_w


@triton.jit
def bits_inside(start, count, step, limit):
    """Return a bit for each of `count` positions start, start + step, … that is one of 0 … limit - 1."""
    bits = start * 0
    for i in range(count):
        at = start + i * step
        bits |= ((at >= 0) & (at < limit)).to(tl.int32) << i
    return bits


@triton.jit
def next_step(r, s, t, start, by, end, kernel_h, kernel_w):
    """Return the next step's tap in depth, height and width, and where its channels start: `by` further, up to `end`.

    By additions: a division for each step would take longer than its loads.
    """
    start += by
    t = tl.where(start == end, t + 1, t)
    start = tl.where(start == end, 0, start)
    s = tl.where(t == kernel_w, s + 1, s)
    t = tl.where(t == kernel_w, 0, t)
    r = tl.where(s == kernel_h, r + 1, r)
    s = tl.where(s == kernel_h, 0, s)
    return r, s, t, start


@triton.jit
def place_of(image, at, filters, plane, VECTOR: tl.constexpr):
    """Return the places, pixels × filters, of outputs in N × K × D × H × W; `image` is what lies before the image."""
    place = image + at
    place = place[:, None] + filters[None, :].to(place.dtype) * plane
    return tl.max_contiguous(tl.multiple_of(place, (VECTOR, 1)), (VECTOR if VECTOR > 1 else 2, 1))


@triton.jit
def place_in(image, group, groups, at, k, kernels, plane, VECTOR: tl.constexpr, LAST: tl.constexpr):
    """Return the places, pixels × filters, of outputs in N × K × D × H × W, or in N × D × H × W × K (`LAST`)."""
    if LAST:
        place = ((image * plane + at) * (groups * kernels) + group * kernels)[:, None] + k[None, :]
        return tl.max_contiguous(tl.multiple_of(place, (1, VECTOR)), (1, VECTOR if VECTOR > 1 else 2))
    return place_of((image * groups + group) * kernels * plane, at, k, plane, VECTOR)


@triton.jit
def are_filters(k, kernels, VECTOR: tl.constexpr, LAST: tl.constexpr):
    """Tell of each k whether it is a filter: of VECTOR that lie together in an output, all are or none."""
    if LAST:
        return tl.max_constancy(k // VECTOR < tl.cdiv(kernels, VECTOR), [VECTOR])
    return k < kernels


@triton.jit
def block_of(
    kernels, pixels, out_plane, BLOCK_P: tl.constexpr, BLOCK_K: tl.constexpr, VECTOR: tl.constexpr, LONG: tl.constexpr
):  # fmt: skip
    """Return a program's filters, and of each of its pixels: is it one, the image, the place in the image.

    Pixels are numbered through all images; after the last one they go on at the first, which is not stored again.
    """
    k_blocks = tl.cdiv(kernels, BLOCK_K)
    p = tl.program_id(0) // k_blocks * BLOCK_P + tl.arange(0, BLOCK_P)
    k = tl.program_id(0) % k_blocks * BLOCK_K + tl.arange(0, BLOCK_K)
    wanted = p // VECTOR < pixels // VECTOR
    p = p % pixels
    image, at = p // out_plane, p % out_plane
    if LONG:
        image = image.to(tl.int64)
    return k, wanted, image, at
