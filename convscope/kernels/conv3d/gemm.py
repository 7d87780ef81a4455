"""9 of 9. Implicit GEMM, auto-tuned: the ideas of the files before it, by the copy engine, in timed block shapes.

Variant "boxes": the output pixels of a program are a box of depth × height × width. The input that one tap sees is then
a box as well, the same box moved by the tap; a tensor descriptor describes it, and one instruction of one thread has
Hopper's copy engine (TMA) fetch BLOCK_P × BLOCK_C numbers. What lies outside the input arrives as zeros: no mask, no
address, no bit for each row in the loop:

    for each step (tap, block of channels):
        X[box, BLOCK_C] = x[image, box + tap · dilation - padding, channels]
        acc += X · W[filters, tap, channels]ᵀ                              wgmma, both factors from shared memory

A box of several rows reaches wgmma as its first factor by way of registers only, and then each product waits for the
one before it: with 64 filters or more the product is W · Xᵀ, and is turned over at the end.

Each step reads its blocks anew from the L2 cache: BLOCK_P · BLOCK_C + BLOCK_K · BLOCK_C numbers for
2 · BLOCK_P · BLOCK_K · BLOCK_C operations. A layer of 64 filters has less than 32 operations a byte in float32, however
large the block, and waits for that cache. Variant "slices" reads less: a program computes several neighbouring slices
of depth, and a slice of the input, once in shared memory, serves all taps in depth that see it from one of them:

    for each step (tap in height and width, block of channels):
        W[r] = weight[filters, r, s, t, channels] for the taps in depth r = 0, 1, 2
        for each slice z of the input, SLICES + 2 of them:
            X = x[image, z, box + (s, t) - padding, channels]
            acc[z - r] += X · W[r]ᵀ for each r with a slice z - r

Two slices of 128 pixels × 64 filters read 704 rows of BLOCK_C numbers for what "boxes" of 128 reads 1152 for. Without
stride or dilation in depth.

With a stride of two a tap sees each second pixel, and the copy engine fetches neighbours. So it is given the even
pixels of an axis and the odd ones as two images (*phases*, `layout`), in which they are neighbours. They are in place
if they lie in channels last and are as many, else in the copy of the input. In TF32 the engine rounds what it fetches,
so an input in channels last needs no rounded copy either.

First layers come as a view with the taps of a row as channels (`layout`): the same kernels, and 9 steps of 16
for 3 × 3 × 3 taps of 4 channels. Such a step reads 16 numbers of each pixel for few filters, and waits for the L2
cache again. In runs of two neighbouring outputs (`layout`) the same 16 numbers serve both. Variant "pipelined" is the
seventh file's kernel, wherever it is faster: where boxes fit the output badly, or where a copy for a stride costs more.

Without the matrix unit (float32 that may not be TF32) the factors lie better the other way round: pixels and filters
contiguous, the summed channels not, so that a thread reads four neighbours of each at once for its multiply-adds.
Variant "planar" does that: it reads N × C × D × H × W where it lies (channels last is copied to it), as the third
file's kernel, in one loop over all steps, in which the next blocks are always on their way. Where the channels fill no
step of 16 a step takes the channels of all taps of a row.

All may have their sum split as in the eighth. Which variant, block, box, stages, warps and splits:
`tuned.candidates` has a few for each shape, likeliest first, and `autotune` times them on the card once. The kernels
are in `tuned.boxes` ("boxes" and "slices") and `tuned.planar`.
"""

from __future__ import annotations

import torch

from convscope.cudnn.shape import Convolution
from convscope.kernels.conv3d import gemm_pipelined
from convscope.kernels.conv3d.copies import filters
from convscope.kernels.conv3d.layout import Blocks3d
from convscope.kernels.conv3d.tuned import boxes, planar
from convscope.kernels.conv3d.tuned.candidates import candidates as candidates

NAME = "gemm"


def default(shape: Convolution) -> Blocks3d:
    """Return the likeliest of the candidates, for use without tuning."""
    return candidates(shape)[0]


def pack(weight: torch.Tensor, shape: Convolution, blocks: Blocks3d) -> torch.Tensor:
    """Lay the filters out as the variant reads them."""
    if blocks.variant == "planar":
        return planar.pack(weight, shape, blocks.depth)
    return filters.pack(weight, shape, blocks.run)


def convolve(x: torch.Tensor, packed: torch.Tensor, shape: Convolution, blocks: Blocks3d) -> torch.Tensor:
    """Convolve N × C × D × H × W with packed filters on the current stream; adds up the splits where there are some."""
    if blocks.variant == "pipelined":
        return gemm_pipelined.convolve(x, packed, shape, blocks)
    if blocks.variant == "planar":
        return planar.convolve(x, packed, shape, blocks)
    return boxes.convolve(x, packed, shape, blocks)
