"""One convolution by one of our kernels: block shapes chosen, filters laid out, made once and run many times.

The counterpart of `cudnn.Plan`, for tensors. Choosing and laying out happen at the first call, which therefore must
not be captured in a graph; every call after it only launches.
"""

from __future__ import annotations

import weakref
from types import ModuleType

import torch

from convscope.cudnn.shape import Convolution
from convscope.kernels import autotune, direct, reduction, winograd
from convscope.kernels.blocks import Blocks2d

KERNELS: dict[str, ModuleType] = {"direct": direct, "winograd": winograd}
_IMAGE_MOST = 2**31  # elements: within one, addresses have 32 bits


def why_not(algorithm: str, shape: Convolution) -> str | None:
    """Return why there is no kernel here for a convolution, or None where there is."""
    if algorithm not in KERNELS:
        return f"{algorithm} has no Triton kernel: choose {' or '.join(KERNELS)}"
    if shape.dtype != "float32":
        return f"{algorithm} by Triton needs float32"
    if max(_product(shape.input[1:]), _product(shape.output[1:])) >= _IMAGE_MOST:
        return f"{algorithm} by Triton takes images of less than 2^31 elements"
    if algorithm == "winograd" and (shape.weight[2:] != (3, 3) or shape.stride != (1, 1) or shape.dilation != (1, 1)):
        return "winograd by Triton needs 3×3 kernels with stride 1 and dilation 1"
    return None


class TritonPlan:
    """A convolution with one of `KERNELS` on a device.

    `tuned` says what was chosen for it, by `key`: empty before the first call, and where `blocks` were given.

    Args:
        blocks: how to cut it; None has it chosen on the card at the first call (`tuning`).

    Raises:
        NotImplementedError: there is no kernel for it.
    """

    def __init__(
        self, algorithm: str, shape: Convolution, device: torch.device, blocks: Blocks2d | None = None
    ) -> None:
        reason = why_not(algorithm, shape)
        if reason:
            raise NotImplementedError(reason)
        self.algorithm, self.shape = algorithm, shape
        self.output_shape = shape.output
        self.blocks = blocks
        self.tuned: dict[str, str] = {}
        self._kernel, self._device = KERNELS[algorithm], device
        self._zeros = torch.zeros(shape.weight[0], device=device)
        self._packed: dict[int, tuple[weakref.ref[torch.Tensor], int | None, torch.Tensor]] = {}

    @property
    def workspace_bytes(self) -> int:
        """The memory for partial sums, 0 where the reduction is not split."""
        splits = self.blocks.splits if self.blocks else 1
        return 0 if splits == 1 else 4 * splits * _product(self.output_shape)

    def run(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """Convolve on the current stream.

        Filters are laid out once and kept for as long as their tensor lives and is not written to. (PyTorch does not
        count writes to tensors made in inference mode: make a new tensor instead.)

        Raises:
            RuntimeError: this is the first call, and it is being captured.
        """
        if self.blocks is None:
            self._refuse_capture()
            self.blocks = self._choose(x, weight)
        packed = self._pack(weight, self.blocks)
        return self._run(x, packed, self._zeros if bias is None else bias, self.blocks)

    def _run(self, x: torch.Tensor, packed: torch.Tensor, bias: torch.Tensor, blocks: Blocks2d) -> torch.Tensor:
        y = torch.empty(self.output_shape, device=x.device)
        if blocks.splits == 1:
            self._kernel.launch(x, packed, bias, y.unsqueeze(0), self.shape, blocks)
        else:
            parts = torch.empty((blocks.splits, *self.output_shape), device=x.device)
            self._kernel.launch(x, packed, self._zeros, parts, self.shape, blocks)
            reduction.add(parts, bias, y)
        return y

    def _choose(self, x: torch.Tensor, weight: torch.Tensor) -> Blocks2d:
        packs: dict[tuple[str, int], torch.Tensor] = {}

        def launcher(blocks: Blocks2d) -> autotune.Launch:
            layout = blocks.variant, blocks.channels
            if layout not in packs:
                packs[layout] = self._kernel.pack(weight, self.shape, blocks)
            return lambda: self._run(x, packs[layout], self._zeros, blocks)

        properties = torch.cuda.get_device_properties(self._device)
        candidates = self._kernel.candidates(self.shape, self.output_shape, properties.multi_processor_count)
        memory = autotune.BlockCache(autotune.cache_file(properties.name, "conv2d"), Blocks2d)
        found = memory.choose(self.key, candidates, launcher)
        self.tuned = {self.key: str(found)}
        return found.blocks

    @property
    def key(self) -> str:
        """The algorithm, shape and math mode as text: what block shapes are chosen for."""
        shape = self.shape
        sizes = (shape.input, shape.weight, shape.stride, shape.padding, shape.dilation)
        return f"{self.algorithm} {' '.join('x'.join(map(str, size)) for size in sizes)} g{shape.groups} {shape.math}"

    def _pack(self, weight: torch.Tensor, blocks: Blocks2d) -> torch.Tensor:
        # Inference tensors do not count their versions.
        version = None if weight.is_inference() else weight._version
        entry = self._packed.get(weight.data_ptr())
        if entry is not None and entry[0]() is weight and entry[1] == version:
            return entry[2]
        self._refuse_capture()
        packed: torch.Tensor = self._kernel.pack(weight, self.shape, blocks)
        self._packed[weight.data_ptr()] = weakref.ref(weight), version, packed
        return packed

    def _refuse_capture(self) -> None:
        if self._device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            raise RuntimeError(
                f"{self.algorithm} chooses its block shapes and lays out its filters at the first call: "
                "run the layer once before capturing it"
            )

    def close(self) -> None:
        """Let go of the filters."""
        self._packed.clear()


def _product(shape: tuple[int, ...]) -> int:
    return torch.Size(shape).numel()
