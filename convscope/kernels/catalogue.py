"""The 2-D kernels of this folder by name, and the plan of one of them for a shape."""

from __future__ import annotations

import math
from types import ModuleType

import torch

from convscope.cudnn.shape import Convolution
from convscope.kernels import autotune, direct, reduction, winograd
from convscope.kernels.blocks import Blocks2d
from convscope.kernels.plan import KernelPlan, has_long_images

KERNELS: dict[str, ModuleType] = {"direct": direct, "winograd": winograd}


def why_no_kernel(algorithm: str, shape: Convolution) -> str | None:
    """Return why there is no 2-D kernel for a convolution, or None where there is."""
    if algorithm not in KERNELS:
        return f"{algorithm} has no Triton kernel: choose {' or '.join(KERNELS)}"
    if shape.dtype != "float32":
        return f"{algorithm} by Triton needs float32"
    if has_long_images(shape):
        return f"{algorithm} by Triton takes images of less than 2^31 elements"
    if algorithm == "winograd" and (shape.kernel != (3, 3) or shape.stride != (1, 1) or shape.dilation != (1, 1)):
        return "winograd by Triton needs 3×3 kernels with stride 1 and dilation 1"
    return None


class Conv2dPlan(KernelPlan[Blocks2d]):
    """A 2-D convolution with one of `KERNELS` on a device.

    Args:
        blocks: the block shapes; None has them chosen on the card at the first run (`autotune`).

    Raises:
        NotImplementedError: there is no kernel for it.
    """

    _keyed_by = ("math",)

    def __init__(
        self, algorithm: str, shape: Convolution, device: torch.device, blocks: Blocks2d | None = None
    ) -> None:
        reason = why_no_kernel(algorithm, shape)
        if reason:
            raise NotImplementedError(reason)
        super().__init__(algorithm, KERNELS[algorithm], shape, blocks)
        self._device, self._output = device, shape.output
        self._zeros = torch.zeros(shape.out_channels, device=device)

    @property
    def workspace_bytes(self) -> int:
        """The memory for partial sums, 0 where the reduction is not split."""
        splits = self.blocks.splits if self.blocks else 1
        return 0 if splits == 1 else 4 * splits * math.prod(self._output)

    def _launch(
        self, x: torch.Tensor, packed: torch.Tensor, bias: torch.Tensor | None, blocks: Blocks2d
    ) -> torch.Tensor:
        bias = self._zeros if bias is None else bias
        y = torch.empty(self._output, device=x.device)
        if blocks.splits == 1:
            self._kernel.launch(x, packed, bias, y.unsqueeze(0), self.shape, blocks)
        else:
            parts = torch.empty((blocks.splits, *self._output), device=x.device)
            self._kernel.launch(x, packed, self._zeros, parts, self.shape, blocks)
            reduction.add(parts, bias, y)
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
        cache = autotune.BlockCache(autotune.cache_file(card.name, "conv2d"), Blocks2d)
        return self._keep(cache.choose(self.key, candidates, launcher))
