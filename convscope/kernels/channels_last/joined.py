"""Two 1×1 convolutions in one kernel, channels last (NHWC), in 16 bits: the first's output is read on the chip.

    y[p, f] = a(bias[f] + added[p, f] + sum over c of w[f, c] · x[p, c])
    z[p, k] = b(shift[k] + sum over f of v[k, f] · y[p, f])

The end of a ResNet's block and the begin of the next: y has four times as many channels as x and z. With many images
the memory is the bound, and it is spared to read y again. A program does BLOCK_P pixels:

    for each block of filters f:
        y[p, f] from x[p], added[p, f]                  wgmma; stored, and kept as the next one's factor
        z[p] += y[p, f] · v[:, f]ᵀ                      wgmma, its first factor from registers

y is rounded before it is multiplied, as it is stored. Tensor descriptors have Hopper's copy engine fetch and store.

Cost of P pixels, C → F → K channels, b bytes an element: b P (C + 2 F + K) bytes at least, 2 P F (C + K) operations.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from convscope.cudnn.shape import dimensions
from convscope.kernels import autotune, following
from convscope.kernels.autotune import TunedBlocks
from convscope.kernels.blocks import Blocks2d
from convscope.kernels.channels_last.activations import activated
from convscope.kernels.following import follow

DTYPES = (torch.float16, torch.bfloat16)
_CHANNELS = (16, 32, 64, 128)  # of x and z: a program holds all of them
_FILTERS_STEP = 64
_SHAPES = ((64, 32, 4, 3), (128, 64, 4, 2), (128, 64, 8, 3), (64, 64, 4, 3))  # pixels, filters, warps, stages


@triton.jit(do_not_specialize=["filters"])
def joined_last(
    x, w, added, y, v, z, bias, shift, filters,
    KIND: tl.constexpr, NEXT_KIND: tl.constexpr, EARLY: tl.constexpr, OUTPUTS: tl.constexpr, BLOCK_P: tl.constexpr,
    BLOCK_F: tl.constexpr,
):  # fmt: skip
    """Do BLOCK_P pixels of both convolutions; all but bias and shift are tensor descriptors."""
    p = tl.program_id(0) * BLOCK_P
    follow(EARLY)
    values = x.load([p, 0])
    total = tl.zeros((BLOCK_P, OUTPUTS), tl.float32)
    for f in range(0, filters, BLOCK_F):
        part = tl.dot(values, w.load([f, 0]).T)
        part += tl.load(bias + f + tl.arange(0, BLOCK_F)).to(tl.float32)[None, :]
        part += added.load([p, f]).to(tl.float32)
        rounded = activated(part, KIND).to(bias.dtype.element_ty)
        y.store([p, f], rounded)
        total = tl.dot(rounded, v.load([0, f]).T, total)
    total += tl.load(shift + tl.arange(0, OUTPUTS)).to(tl.float32)[None, :]
    z.store([p, 0], activated(total, NEXT_KIND).to(bias.dtype.element_ty))


def takes(x: torch.Tensor, added: Any, first: torch.Tensor, second: torch.Tensor) -> bool:
    """Tell whether `Joined` is for an input, what is added, and filters F × C × 1 × 1 and K × F × 1 × 1."""
    filters, channels = first.shape[:2]
    alike = x.dim() == 4 and x.dtype == first.dtype == second.dtype and x.dtype in DTYPES
    if not alike or x.numel() == 0 or not x.is_contiguous(memory_format=torch.channels_last):
        return False
    sizes = first.shape[2:] == second.shape[2:] == (1, 1) and x.shape[1] == channels and second.shape[1] == filters
    fits = channels in _CHANNELS and len(second) in _CHANNELS and filters % _FILTERS_STEP == 0
    if not isinstance(added, torch.Tensor):
        return False
    lies = added.shape == (len(x), filters, *x.shape[2:]) and added.is_contiguous(memory_format=torch.channels_last)
    return sizes and fits and lies and (added.dtype, added.device) == (x.dtype, x.device)


class Joined:
    """Two convolutions, and what is added to the first, by blocks chosen on the card.

    Args:
        first, second: filters F × C × 1 × 1 and K × F × 1 × 1.
        bias, shift: of the first, F, and of the second, K.
        kinds: their activations, by `activations.activated`.
    """

    def __init__(
        self, first: torch.Tensor, bias: torch.Tensor, second: torch.Tensor, shift: torch.Tensor,
        kinds: tuple[str, str] = ("relu", "relu"),
    ) -> None:  # fmt: skip
        self._first, self._second = first.flatten(1).contiguous(), second.flatten(1).contiguous()
        self._bias, self._shift, self._kinds = bias, shift, kinds

    def key(self, x: torch.Tensor) -> str:
        """Return the sizes, type and steps as text; blocks are chosen for each key."""
        sizes = map(dimensions, (x.shape, self._first.shape, self._second.shape))
        return " ".join(("joined", *sizes, *self._kinds, str(x.dtype).removeprefix("torch.")))

    def candidates(self) -> list[Blocks2d]:
        """Return the blocks to be timed."""
        channels = self._first.shape[1]
        return [Blocks2d("joined", filters, pixels, channels, *rest) for pixels, filters, *rest in _SHAPES]

    def choose(self, x: torch.Tensor, added: torch.Tensor) -> TunedBlocks[Blocks2d]:
        """Return the fastest blocks for an input, from the cache on disk, or timed now.

        Raises:
            NothingFitsError: none runs on this card.
        """
        card = torch.cuda.get_device_properties(x.device)
        cache = autotune.BlockCache(autotune.cache_file(card.name, "joined_last"), Blocks2d)
        return cache.choose(self.key(x), self.candidates(), lambda blocks: lambda: self(x, added, blocks))

    def __call__(self, x: torch.Tensor, added: torch.Tensor, blocks: Blocks2d) -> tuple[torch.Tensor, torch.Tensor]:
        """Return y, N × F × H × W, and z, N × K × H × W, of what `takes` wants."""
        images, channels, *size = x.shape
        y, z = (
            torch.empty(images, len(each), *size, dtype=x.dtype, device=x.device, memory_format=torch.channels_last)
            for each in (self._first, self._second)
        )
        of = TensorDescriptor.from_tensor
        pixels, outputs = _pixels(x), len(self._second)
        joined_last[triton.cdiv(len(pixels), blocks.points),](
            of(pixels, [blocks.points, channels]), of(self._first, [blocks.filters, channels]),
            of(_pixels(added), [blocks.points, blocks.filters]), of(_pixels(y), [blocks.points, blocks.filters]),
            of(self._second, [outputs, blocks.filters]), of(_pixels(z), [blocks.points, outputs]),
            self._bias, self._shift, len(self._first), KIND=self._kinds[0], NEXT_KIND=self._kinds[1], OUTPUTS=outputs,
            BLOCK_P=blocks.points, BLOCK_F=blocks.filters, num_warps=blocks.warps, num_stages=blocks.stages,
            **following.options(x),
        )  # fmt: skip
        return y, z


def _pixels(x: torch.Tensor) -> torch.Tensor:
    """Return N × C × H × W, channels last, as pixels × C of the same memory."""
    return x.permute(0, 2, 3, 1).reshape(-1, x.shape[1])
