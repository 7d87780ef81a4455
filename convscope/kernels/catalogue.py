"""The 2-D kernels of this folder by name, and the plan of one of them for a shape."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType

import torch

from convscope.cudnn.shape import Convolution
from convscope.errors import NothingFitsError
from convscope.kernels import autotune, direct, reduction
from convscope.kernels.blocks import Blocks2d
from convscope.kernels.plan import KernelPlan, has_long_images
from convscope.kernels.winograd import variants

KERNELS: dict[str, ModuleType] = {"direct": direct, "winograd": variants}
DTYPES = ("float32", "float16", "bfloat16")
_MEMORY_FORMATS = {"nchw": torch.contiguous_format, "nhwc": torch.channels_last}


def why_no_kernel(algorithm: str, shape: Convolution) -> str | None:
    """Return why there is no 2-D kernel for a convolution, or None where there is."""
    if shape.fused.count:
        return f"{algorithm} by Triton is a convolution alone: only plans take {shape.fused} with one"
    if algorithm not in KERNELS:
        return f"{algorithm} has no Triton kernel: choose {' or '.join(KERNELS)}"
    if shape.dtype not in DTYPES:
        return f"{algorithm} by Triton takes {', '.join(DTYPES[:-1])} and {DTYPES[-1]}, not {shape.dtype}"
    if shape.layout not in _MEMORY_FORMATS:
        return f"{algorithm} by Triton reads {' and '.join(_MEMORY_FORMATS)}, not {shape.layout}"
    if has_long_images(shape):
        return f"{algorithm} by Triton takes images of less than 2^31 elements"
    if algorithm == "winograd" and (shape.kernel != (3, 3) or shape.stride != (1, 1) or shape.dilation != (1, 1)):
        return "winograd by Triton needs 3×3 kernels with stride 1 and dilation 1"
    return None


class Conv2dPlan(KernelPlan[Blocks2d]):
    """A 2-D convolution with one of `KERNELS` on a device, in the shape's data type and layout.

    Input and output lie in the shape's layout; sums, also the partial ones of a split reduction, are of float32.

    Args:
        blocks: the block shapes; None has them chosen on the card at the first run (`autotune`).
        max_workspace_bytes: those that need more are not chosen; None sets no limit.

    Raises:
        NotImplementedError: there is no kernel for it.
    """

    _keyed_by = ("math", "dtype", "layout")

    def __init__(
        self, algorithm: str, shape: Convolution, device: torch.device, blocks: Blocks2d | None = None,
        max_workspace_bytes: int | None = None,
    ) -> None:  # fmt: skip
        reason = why_no_kernel(algorithm, shape)
        if reason:
            raise NotImplementedError(reason)
        super().__init__(algorithm, KERNELS[algorithm], shape, blocks)
        self._device, self._output, self._most_bytes = device, shape.output, max_workspace_bytes
        self._zeros = torch.zeros(shape.out_channels, dtype=getattr(torch, shape.dtype), device=device)
        self._memory_format = _MEMORY_FORMATS[shape.layout]

    @property
    def workspace_bytes(self) -> int:
        """The memory that a run takes besides its tensors, 0 before its block shapes are chosen."""
        bytes_taken: int = self._kernel.workspace_bytes(self.shape, self.blocks) if self.blocks else 0
        return bytes_taken

    def _launch(
        self, x: torch.Tensor, packed: torch.Tensor, bias: torch.Tensor | None, blocks: Blocks2d
    ) -> torch.Tensor:
        bias = self._zeros if bias is None else bias
        y = torch.empty(self._output, dtype=x.dtype, device=x.device, memory_format=self._memory_format)
        if blocks.splits == 1:
            self._kernel.launch(x, packed, bias, y.unsqueeze(0), self.shape, blocks)
        else:
            parts = torch.empty((blocks.splits, *self._output), dtype=torch.float32, device=x.device)
            self._kernel.launch(x, packed, self._zeros, parts, self.shape, blocks)
            reduction.add(parts, bias, y, last=self.shape.layout == "nhwc")
        return y

    def _choose(self, x: torch.Tensor, weight: torch.Tensor) -> Blocks2d:
        packs: dict[tuple[str, int], torch.Tensor] = {}

        def launcher(blocks: Blocks2d) -> autotune.Launch:
            layout = blocks.variant, blocks.channels
            if layout not in packs:
                packs[layout] = self._kernel.pack(weight, self.shape, blocks)
            return lambda: self._launch(x, packs[layout], None, blocks)

        card = torch.cuda.get_device_properties(self._device)
        candidates = self._kernel.candidates(self.shape, self._output, card.multi_processor_count)
        kept = self.within_limit(candidates)
        key = self.key if len(kept) == len(candidates) else f"{self.key} workspace<={self._most_bytes}"
        cache = autotune.BlockCache(autotune.cache_file(card.name, "conv2d"), Blocks2d)
        return self._keep(cache.choose(key, kept, launcher), key)

    def within_limit(self, candidates: Sequence[Blocks2d]) -> Sequence[Blocks2d]:
        """Return the block shapes whose workspace is within the limit.

        Raises:
            NothingFitsError: none is.
        """
        if self._most_bytes is None:
            return candidates
        needed = [self._kernel.workspace_bytes(self.shape, blocks) for blocks in candidates]
        kept = [blocks for blocks, each in zip(candidates, needed, strict=True) if each <= self._most_bytes]
        if not kept:
            more = f"{self.algorithm} needs {min(needed) / 1e6:g} MB"
            raise NothingFitsError(f"workspace over the limit: {more}, {self._most_bytes / 1e6:g} MB are allowed")
        return kept
