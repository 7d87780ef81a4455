"""A convolution by one kernel: block shapes chosen and filters packed at the first run, only launches after it.

`KernelPlan` has what 2-D and 3-D kernels share; `catalogue` and `conv3d.catalogue` have the plans themselves. A kernel
is a module with

    candidates(shape, …)                        the block shapes worth timing, the likeliest first
    pack(weight, shape, blocks)                 the filters as the kernel reads them
    workspace_bytes(shape, blocks)              the memory that a run takes besides its tensors (2-D)
    launch(…) or convolve(…)                    the kernel on the current stream
"""

from __future__ import annotations

import abc
import math
from types import ModuleType
from typing import ClassVar, Generic, TypeVar

import torch

from convscope.cudnn.shape import Convolution, dimensions
from convscope.kernels.autotune import TunedBlocks
from convscope.kernels.blocks import LONG_ELEMENTS
from convscope.kernels.operands import Operands
from convscope.kernels.packing import PackedFilters, is_capturing

B = TypeVar("B")


def has_long_images(shape: Convolution) -> bool:
    """Tell whether one image has so many elements that their addresses within it need 64 bits."""
    return max(math.prod(shape.input[1:]), math.prod(shape.output[1:])) >= LONG_ELEMENTS


class KernelPlan(abc.ABC, Generic[B]):
    """A convolution with one kernel.

    Filters are packed once and kept for as long as their tensor lives and is not written to (`packing`). (PyTorch does
    not count writes to tensors made in inference mode: call `renew` after one.)

    Attributes:
        packs_in_graphs: a captured run packs filters that are not packed yet, again at each replay; else it is refused.
        blocks: the block shapes; None before they are chosen, at the first run.
        tuned: the choice as text, by `key`; empty before the first run, and where blocks were given.
    """

    packs_in_graphs: ClassVar[bool] = False
    _keyed_by: ClassVar[tuple[str, ...]]  # attributes of the shape in `key`, besides its sizes

    def __init__(self, algorithm: str, kernel: ModuleType, shape: Convolution, blocks: B | None) -> None:
        self.algorithm, self.shape, self.blocks = algorithm, shape, blocks
        self.tuned: dict[str, str] = {}
        self._kernel, self._operands = kernel, Operands(shape)
        self._packed = PackedFilters()

    @property
    def key(self) -> str:
        """The kernel, sizes and arithmetic as text; block shapes are chosen for each key."""
        shape = self.shape
        sizes = map(dimensions, (shape.input, shape.weight, shape.stride, shape.padding, shape.dilation))
        others = (getattr(shape, name) for name in self._keyed_by)
        return " ".join((self.algorithm, *sizes, f"g{shape.groups}", *others))

    def run(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """Convolve N × C × spatial, contiguous, on the current stream; the weight may lie anyhow.

        Raises:
            InputError: a tensor is not what the plan was made for.
            RuntimeError: this is the first run, and it is being captured.
            autotune.NothingFitsError: at the first run, no block shapes fit the card.
        """
        self._operands.check(x, weight, bias)
        if self.blocks is None:
            self._refuse(is_capturing(weight))
            self.blocks = self._choose(x, weight)
        return self._launch(x, self._pack(weight, self.blocks), bias, self.blocks)

    @abc.abstractmethod
    def _choose(self, x: torch.Tensor, weight: torch.Tensor) -> B:
        """Choose the block shapes."""

    @abc.abstractmethod
    def _launch(self, x: torch.Tensor, packed: torch.Tensor, bias: torch.Tensor | None, blocks: B) -> torch.Tensor:
        """Convolve with packed filters."""

    def _keep(self, choice: TunedBlocks[B], key: str | None = None) -> B:
        self.tuned = {key or self.key: str(choice)}
        return choice.blocks

    def _pack(self, weight: torch.Tensor, blocks: B) -> torch.Tensor:
        def pack() -> torch.Tensor:
            packed: torch.Tensor = self._kernel.pack(weight.detach(), self.shape, blocks)
            return packed

        return self._packed.of(weight, pack, self._refuse)

    def _refuse(self, capturing: bool) -> None:
        """Raise where this run is being captured: a graph would choose, or pack, again at each replay."""
        if capturing and not self.packs_in_graphs:
            raise RuntimeError(
                f"{self.algorithm} chooses its block shapes and lays out its filters at the first call: "
                "run the layer once before capturing it"
            )

    def renew(self) -> None:
        """Have the filters packed again at the next run, as when they were written to."""
        self._packed.renew()

    def close(self) -> None:
        """Give back the packed filters that no graph reads."""
        self._packed.clear()
