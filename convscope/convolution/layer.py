"""One call of a convolution in a network: its place, its shape and its options."""

from __future__ import annotations

import math as mathematics
from dataclasses import dataclass
from typing import Any

from convscope.cudnn.shape import Convolution, Geometry, dimensions

_SIZES = ("batch", "in_channels", "out_channels", "size", "kernel", "stride", "padding", "dilation", "groups")
_PLACE = ("name", "position", "bias", "padding_mode", "uneven_padding", "peculiarity")
_USUAL = {"stride": 1, "padding": 0, "dilation": 1}


@dataclass(frozen=True, kw_only=True)
class Layer(Geometry):
    """One call of a convolution, 2-D or 3-D, in a forward pass.

    Attributes:
        name: the module's name in the model.
        position: the number of the call in the pass, from 0.
        uneven_padding: padding 'same' of an even span, one more behind than in front; `padding` has the lesser.
        peculiarity: what its module does besides the convolution described here; "" for a plain `nn.Conv2d`.
    """

    name: str
    position: int
    bias: bool = False
    padding_mode: str = "zeros"
    uneven_padding: bool = False
    peculiarity: str = ""

    @classmethod
    def of_sizes(
        cls, name: str, position: int, *, batch: int, in_channels: int, out_channels: int, size: tuple[int, ...],
        kernel: tuple[int, ...], stride: tuple[int, ...] | None = None, padding: tuple[int, ...] | None = None,
        dilation: tuple[int, ...] | None = None, groups: int = 1, bias: bool = False, padding_mode: str = "zeros",
        uneven_padding: bool = False, peculiarity: str = "",
    ) -> Layer:  # fmt: skip
        """Return the layer of these sizes; stride and dilation are 1, padding 0, where not given."""
        ones, zeros = (1,) * len(size), (0,) * len(size)
        weight = out_channels, in_channels // max(1, groups), *kernel  # a check may still refuse 0 groups
        return cls(
            input=(batch, in_channels, *size), weight=weight, padding=padding or zeros, stride=stride or ones,
            dilation=dilation or ones, groups=groups, name=name, position=position, bias=bias,
            padding_mode=padding_mode, uneven_padding=uneven_padding, peculiarity=peculiarity,
        )  # fmt: skip

    def resized(self, **changes: Any) -> Layer:
        """Return this layer but for the changes, named as the arguments of `of_sizes`."""
        return Layer.of_sizes(**({name: getattr(self, name) for name in (*_PLACE, *_SIZES)} | changes))

    @property
    def in_height(self) -> int:
        """The height of the input."""
        return self.input[-2]

    @property
    def in_width(self) -> int:
        """The width of the input."""
        return self.input[-1]

    @property
    def out_height(self) -> int:
        """The height of the output."""
        return self.output[-2]

    @property
    def out_width(self) -> int:
        """The width of the output."""
        return self.output[-1]

    @property
    def output(self) -> tuple[int, ...]:
        """N × K × spatial of the output; padding 'same' keeps the input's extents."""
        return (self.batch, self.out_channels, *self.size) if self.uneven_padding else super().output

    @property
    def flops(self) -> int:
        """The floating-point operations by the direct definition; the bias adds one for each output."""
        return super().flops + mathematics.prod(self.output) * int(self.bias)

    def minimum_bytes(self, element_bytes: int = 4) -> int:
        """Return the bytes that must cross the memory at least, the bias among them."""
        return super().minimum_bytes(element_bytes) + self.out_channels * int(self.bias) * element_bytes

    @property
    def cost_key(self) -> tuple[object, ...]:
        """All that the cost of the layer depends on: two layers of one key are the same work."""
        options = self.bias, self.padding_mode, self.uneven_padding, self.peculiarity
        return self.input, self.weight, self.padding, self.stride, self.dilation, self.groups, *options

    def columns(self) -> dict[str, Any]:
        """Return the place and the shape of a 2-D layer by the names of columns; pairs as "3x3"."""
        pairs = {name: dimensions(getattr(self, name)) for name in ("stride", "padding", "dilation")}
        counts = {name: getattr(self, name) for name in ("position", "in_channels", "out_channels", "groups")}
        sizes = {"batch_size": self.batch, "in_height_px": self.in_height, "in_width_px": self.in_width}
        return pairs | counts | sizes | {"kernel_size": dimensions(self.kernel)}

    def convolution(self, dtype: str = "float32", math: str = "tf32", layout: str = "nchw") -> Convolution:
        """Return the layer as libraries and kernels take it: without its place, bias and padding mode."""
        sizes = self.input, self.weight, self.padding, self.stride, self.dilation, self.groups
        return Convolution(*sizes, dtype, math, layout)

    def __str__(self) -> str:
        kernel, size = dimensions(self.kernel, short=True), dimensions(self.size, short=True)
        parts = [f"{self.in_channels}-{self.out_channels} {kernel} on {size}"]
        for name, usual in _USUAL.items():
            value: tuple[int, ...] = getattr(self, name)
            parts += [] if set(value) == {usual} else [f"{name} {dimensions(value, short=True)}"]
        parts += [f"groups {self.groups}"] if self.groups > 1 else []
        return f"{', '.join(parts)}, batch {self.batch}"
