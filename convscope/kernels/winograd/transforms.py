"""Winograd's minimal filtering for 3×3 kernels: its transforms, and the filters as the kernels read them.

A 3×3 convolution with stride 1 gives m × m neighbouring outputs from (m + 2) × (m + 2) inputs. Winograd's minimal
filtering computes them with (m + 2)² multiplications for a channel instead of 9 m²: 16 for 36 with m = 2, 36 for 144
with m = 4 (Lavin and Gray, "Fast algorithms for convolutional neural networks", 2015):

    Y = Aᵀ [ Σ_c (G w Gᵀ) ⊙ (Bᵀ d B) ] A        d: input tile, w: filter, Y: output tile

For each of the (m + 2)² points of the transformed domain the sum over channels is a product of matrices, filters ×
channels times channels × tiles. The filters' transform U = G w Gᵀ depends on no input: it is computed once and kept
(`pack`).

Accuracy: the products are float32 (or TF32 where permitted) and summed in float32. The transforms of m = 4 have
coefficients up to 8, so that its error is about ten times that of m = 2.
16 bits (float16, bfloat16): the transforms are computed in float32; transformed input and filters are rounded to the
tensors' type, once each, because the matrix unit multiplies them in it; sums and inverse transform are of float32, and
the output is rounded once. On random numbers that is an error of 1.1 unit roundoffs of the type (2^-11, 2^-8), where
the definition has the 0.42 of its output. It leaves no digits for m = 4, nor does TF32, which has float16's digits.
With m = 2 the input's transform adds four numbers up, the filters' grows by 2.25 at most. So that no finite number
leaves the range of float16 (65504) on the way, both are multiplied by 1/4 before they are rounded, and the output by
16: exact, but inputs and filters below 2.4e-4 lose digits. bfloat16 has float32's range and is not scaled.
Infinity and NaN: an infinity enters several sums of the transforms with both signs, and infinity minus infinity is NaN.
So an output that sees one is not finite, though it may be NaN where the definition has an infinity; an output that sees
a NaN is NaN. With m = 2 all others are right. With m = 4 outputs of the same tile that do not see it may be lost too.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from convscope.cudnn.shape import Convolution
from convscope.kernels import tf32
from convscope.kernels.blocks import Blocks2d, is_float32

K_PITCH, C_PITCH = 64, 16  # what `pack` rounds filters and channels up to, so that no load of U needs a mask
SHRINK = {"float16": 0.25}  # factor that keeps transformed input and filters within the type's range

_G = {
    2: ((1, 0, 0), (0.5, 0.5, 0.5), (0.5, -0.5, 0.5), (0, 0, 1)),
    4: (
        (1 / 4, 0, 0),
        (-1 / 6, -1 / 6, -1 / 6),
        (-1 / 6, 1 / 6, -1 / 6),
        (1 / 24, 1 / 12, 1 / 6),
        (1 / 24, -1 / 12, 1 / 6),
        (0, 0, 1),
    ),
}


@triton.jit
def times_bt(d, at: tl.constexpr, step: tl.constexpr, TILE: tl.constexpr):
    """Multiply a row or column of an input tile (elements `at`, `at + step`, …) by Bᵀ."""
    a, b, c, e = d[at], d[at + step], d[at + 2 * step], d[at + 3 * step]
    if TILE == 2:
        return a - c, b + c, c - b, b - e
    else:
        f, g = d[at + 4 * step], d[at + 5 * step]
        p, q = f - 4 * c, e - 4 * b
        r, s = f - c, 2 * (e - b)
        return 4 * a - 5 * c + f, p + q, p - q, r + s, r - s, 4 * b - 5 * e + g


@triton.jit
def times_at(m, at: tl.constexpr, step: tl.constexpr, TILE: tl.constexpr):
    """Multiply a row or column of transformed outputs by Aᵀ."""
    a, b, c, e = m[at], m[at + step], m[at + 2 * step], m[at + 3 * step]
    if TILE == 2:
        return a + b + c, b - c - e
    else:
        f, g = m[at + 4 * step], m[at + 5 * step]
        p, q, r, s = b + c, b - c, e + f, e - f
        return a + p + r, q + 2 * s, p + 4 * r, q + 8 * s + g


@triton.jit
def fits(start, EXTENT: tl.constexpr, limit):
    """Return a bit for each of EXTENT positions from `start` that lies inside 0 … limit."""
    bits = start * 0
    for i in tl.static_range(EXTENT):
        bits |= ((start + i >= 0) & (start + i < limit)).to(tl.int32) << i
    return bits


def pack(weight: torch.Tensor, shape: Convolution, blocks: Blocks2d) -> torch.Tensor:
    """Transform the filters K × C/G × 3 × 3 to U = G w Gᵀ, laid out as [G · points, C/G, K/G], the last two padded.

    In float64: it is done once, and every product has its rounding in it. With TF32 it ends at the nearest such number,
    in 16 bits at the nearest of the weight's type; in float16 U is multiplied by 1/4.
    """
    g = torch.tensor(_G[tile_of(blocks)], dtype=torch.float64, device=weight.device)
    grouped = weight.double().unflatten(0, (shape.groups, -1))
    exact = torch.einsum("ir,gkcrs,js->gijck", g, grouped, g).flatten(0, 2)
    transformed = (exact * SHRINK.get(shape.dtype, 1)).to(weight.dtype)
    if precision(shape) == "tf32":
        transformed = tf32.rounded(transformed)
    missing = -transformed.shape[1] % C_PITCH, -transformed.shape[2] % K_PITCH
    return torch.nn.functional.pad(transformed, (0, missing[1], 0, missing[0])).contiguous()


def precision(shape: Convolution) -> str:
    """Return the products' arithmetic: "ieee" (FMA), "tf32", or "hmma" (the matrix unit, in the tensors' 16 bits)."""
    if not is_float32(shape):
        return "hmma"
    return "tf32" if shape.math == "tf32" else "ieee"


def tile_of(blocks: Blocks2d) -> int:
    """Return m, the side of a tile of outputs: 2 or 4."""
    return int(blocks.variant[1])


def reference(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, shape: Convolution) -> torch.Tensor:
    """Return F(2×2, 3×3) step by step, for one group, in the tensors' own type: slow, and plain to see."""
    g = torch.tensor(_G[2], dtype=x.dtype)
    b = torch.tensor(((1, 0, -1, 0), (0, 1, 1, 0), (0, -1, 1, 0), (0, 1, 0, -1)), dtype=x.dtype)
    a = torch.tensor(((1, 1, 1, 0), (0, 1, -1, -1)), dtype=x.dtype)
    pad_h, pad_w = shape.padding
    out_h, out_w = x.shape[2] + 2 * pad_h - 2, x.shape[3] + 2 * pad_w - 2
    padded = torch.nn.functional.pad(x, (pad_w, pad_w + out_w % 2, pad_h, pad_h + out_h % 2))
    d = padded.unfold(2, 4, 2).unfold(3, 4, 2)  # N, C, tiles down, tiles across, 4, 4
    v, u = b @ d @ b.T, g @ weight @ g.T
    y = a @ torch.einsum("kcij,nctuij->nktuij", u, v) @ a.T
    y = y.permute(0, 1, 2, 4, 3, 5).flatten(4, 5).flatten(2, 3)[..., :out_h, :out_w]
    return y if bias is None else y + bias.view(1, -1, 1, 1)
