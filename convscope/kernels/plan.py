"""A convolution by one kernel: block shapes chosen and filters packed at the first run, only launches after it.

`KernelPlan` has what 2-D and 3-D kernels share; `catalogue` and `conv3d.catalogue` have the plans themselves. A kernel
is a module with

    candidates(shape, …)                        the block shapes worth timing, the likeliest first
    pack(weight, shape, blocks)                 the filters as the kernel reads them
    launch(…) or convolve(…)                    the kernel on the current stream
"""

from __future__ import annotations

import abc
import math
import weakref
from types import ModuleType
from typing import ClassVar, Generic, TypeVar

import torch

from convscope.cudnn.shape import Convolution, dimensions
from convscope.kernels.autotune import TunedBlocks
from convscope.kernels.blocks import LONG_ELEMENTS

B = TypeVar("B")


def has_long_images(shape: Convolution) -> bool:
    """Tell whether one image has so many elements that their addresses within it need 64 bits."""
    return max(math.prod(shape.input[1:]), math.prod(shape.output[1:])) >= LONG_ELEMENTS


class KernelPlan(abc.ABC, Generic[B]):
    """A convolution with one kernel.

    Filters are packed once and kept for as long as their tensor lives and is not written to. (PyTorch does not count
    writes to tensors made in inference mode: call `renew` after one.)

    Attributes:
        blocks: the block shapes; None before they are chosen, at the first run.
        tuned: the choice as text, by `key`; empty before the first run, and where blocks were given.
    """

    _keyed_by: ClassVar[tuple[str, ...]]  # attributes of the shape in `key`, besides its sizes

    def __init__(self, algorithm: str, kernel: ModuleType, shape: Convolution, blocks: B | None) -> None:
        self.algorithm, self.shape, self.blocks = algorithm, shape, blocks
        self.tuned: dict[str, str] = {}
        self._kernel = kernel
        self._packed: dict[int, tuple[weakref.ref[torch.Tensor], int | None, torch.Tensor]] = {}

    @property
    def key(self) -> str:
        """The kernel, sizes and arithmetic as text; block shapes are chosen for each key."""
        shape = self.shape
        sizes = map(dimensions, (shape.input, shape.weight, shape.stride, shape.padding, shape.dilation))
        others = (getattr(shape, name) for name in self._keyed_by)
        return " ".join((self.algorithm, *sizes, f"g{shape.groups}", *others))

    def run(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """Convolve N × C × spatial on the current stream.

        Raises:
            RuntimeError: this is the first run, and it is being captured.
            autotune.NothingFitsError: at the first run, no block shapes fit the card.
        """
        if self.blocks is None:
            self._refuse_capture(weight)
            self.blocks = self._choose(x, weight)
        return self._launch(x, self._pack(weight, self.blocks), bias, self.blocks)

    @abc.abstractmethod
    def _choose(self, x: torch.Tensor, weight: torch.Tensor) -> B:
        """Choose the block shapes."""

    @abc.abstractmethod
    def _launch(self, x: torch.Tensor, packed: torch.Tensor, bias: torch.Tensor | None, blocks: B) -> torch.Tensor:
        """Convolve with packed filters."""

    def _keep(self, choice: TunedBlocks[B]) -> B:
        self.tuned = {self.key: str(choice)}
        return choice.blocks

    def _pack(self, weight: torch.Tensor, blocks: B) -> torch.Tensor:
        # Inference tensors do not count their versions.
        version = None if weight.is_inference() else weight._version
        entry = self._packed.get(weight.data_ptr())
        if entry is not None and entry[0]() is weight and entry[1] == version:
            return entry[2]
        self._refuse_capture(weight)
        packed: torch.Tensor = self._kernel.pack(weight, self.shape, blocks)
        self._packed[weight.data_ptr()] = weakref.ref(weight), version, packed
        return packed

    def _refuse_capture(self, weight: torch.Tensor) -> None:
        """Raise where this run is being captured: a graph would choose, or pack, again at each replay."""
        if weight.is_cuda and torch.cuda.is_current_stream_capturing():
            raise RuntimeError(
                f"{self.algorithm} chooses its block shapes and lays out its filters at the first call: "
                "run the layer once before capturing it"
            )

    def renew(self) -> None:
        """Give back the packed filters, as when they were written to: the next run packs them again."""
        self._packed.clear()

    close = renew
