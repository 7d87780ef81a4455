"""A network as a request takes it: a source's model and inputs, in its batch size, data type and layout."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import nn

from convscope.convolution import backends, models
from convscope.convolution.layer import Layer
from convscope.convolution.sources.source import Inputs, Size, Source
from convscope.errors import InputError

_SHORT_RANGE = ("float16", "bfloat16")
_SETTLED_PX, _SETTLED_BATCH = 224, 8  # whatever the sizes to measure, so that all starts of a run have one model


class NetworkRequest(Protocol):
    """The part of a request that decides the network."""

    @property
    def model(self) -> str:
        """The name of the model's source."""

    @property
    def pretrained(self) -> bool:
        """Trained weights instead of weights drawn from the seed."""

    @property
    def seed(self) -> int:
        """The seed of weights and inputs."""

    @property
    def batch_size(self) -> int:
        """The number of images in an input."""

    @property
    def dtype(self) -> str:
        """The data type of weights and inputs."""

    @property
    def layout(self) -> str:
        """The order of channels in memory, "nchw" or "nhwc"."""


@dataclass(frozen=True)
class Network:
    """A model that can be put on a device, its inputs by size, and its convolutions."""

    source: Source
    batch_size: int = 1
    seed: int = 0
    pretrained: bool = False
    dtype: str = "float32"
    layout: str = "nchw"

    @classmethod
    def of(cls, request: NetworkRequest, source: Source | None = None) -> Network:
        """Return the network of a request; its model is of `source`, or of the source that has its name."""
        found = source or models.find_source(request.model)
        return cls(found, request.batch_size, request.seed, request.pretrained, request.dtype, request.layout)

    def on(self, device: torch.device, change: Callable[[nn.Module], nn.Module] | None = None) -> nn.Module:
        """Build the model on a device, in evaluation mode.

        In 16 bits an untrained model has settled statistics (`models.settle`); in float32 it is as it was drawn.

        Args:
            change: puts another in the place of the finished model, which is in float32 on the CPU then.

        Raises:
            InputError: the source cannot be built, its statistics cannot be settled, or as `change`.
        """
        model = self.source.build(self.seed, self.pretrained)
        if self.dtype in _SHORT_RANGE and not self.pretrained:
            self._settle(model)
        model = model if change is None else change(model)
        return model.to(device, getattr(torch, self.dtype)).to(memory_format=self._memory)

    def inputs(self, size: Size, device: torch.device) -> Inputs:
        """Return the arguments of one call for images of this size, on a device."""
        given = self.source.inputs(size, self.batch_size, self.seed)
        return tuple(self._placed(tensor, device) for tensor in given)

    def layers(self, size: Size) -> tuple[Layer, ...]:
        """List the convolutions of one pass at this size (`models.layers_of`)."""
        return models.layers_of(self.source, size, self.batch_size, self.seed, self.pretrained)

    def computed_last(self, size: Size) -> frozenset[str]:
        """Name the `nn.Conv2d` modules that PyTorch computes channels last in one pass of a network in NCHW.

        Their input comes so, behind code that permutes, as the blocks of ConvNeXt do. PyTorch computes channels last
        where input or weight are. Of a network in NHWC none is named: all are.

        Raises:
            InputError: the model cannot take this size.
        """
        found = set[str]()
        if self.layout == "nhwc":
            return frozenset()

        def note(module: nn.Module, given: tuple[torch.Tensor, ...], output: torch.Tensor, name: str) -> torch.Tensor:
            if not _is_last(given[0]):
                return output.contiguous()
            found.add(name)
            return output.contiguous(memory_format=torch.channels_last)  # on the meta device it may lie otherwise

        def watch(model: nn.Module) -> None:
            found.clear()
            for name, module in model.named_modules():
                if isinstance(module, nn.Conv2d):
                    module.register_forward_hook(functools.partial(note, name=name))

        models.called_of(self.source, size, self.batch_size, self.seed, self.pretrained, watch)
        return frozenset(found)

    def _settle(self, model: nn.Module) -> None:
        try:
            batch = self.source.own_batch or _SETTLED_BATCH
            models.settle(model, self.source.inputs(_SETTLED_PX, batch, self.seed))
        except Exception as error:  # whatever a model of the user's does with these inputs
            size, cause = f"{_SETTLED_PX}×{_SETTLED_PX}", next(iter(str(error).splitlines()), type(error).__name__)
            raise InputError(
                f"{self.source.name} cannot be settled for {self.dtype} with {size} images ({cause}): "
                "--dtype float32, or --pretrained"
            ) from None

    def _placed(self, tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
        if not tensor.is_floating_point():
            return tensor.to(device)
        placed = tensor.to(device, getattr(torch, self.dtype))
        return placed.contiguous(memory_format=self._memory) if placed.dim() == 4 else placed

    @property
    def _memory(self) -> Any:
        return backends.LAYOUTS[self.layout]


def _is_last(tensor: torch.Tensor) -> bool:
    return tensor.dim() == 4 and not tensor.is_contiguous() and tensor.is_contiguous(memory_format=torch.channels_last)
