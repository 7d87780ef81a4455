"""One call of a convolution in a network: its place, its shape and its options."""

from __future__ import annotations

import math as mathematics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from convscope.cudnn.shape import ALONE, Convolution, Fused, Geometry, dimensions

if TYPE_CHECKING:
    from convscope.timing.calls import Call

MODULE = "module"
"""The kind of a layer that is an `nn.Conv2d` module."""

_SIZES = ("batch", "in_channels", "out_channels", "size", "kernel", "stride", "padding", "dilation", "groups")
_PLACE = ("name", "position", "bias", "padding_mode", "uneven_padding", "peculiarity")
_USUAL = {"stride": 1, "padding": 0, "dilation": 1}


@dataclass(frozen=True, kw_only=True)
class Layer(Geometry):
    """One call of a convolution in a forward pass: 1-D, 2-D or 3-D, transposed or not.

    The weight of a transposed one is C × K/groups × kernel.

    Attributes:
        name: the module's name in the model, with that of the call where it is no `nn.Conv2d`: "block.conv2d".
        position: the number of the call in the pass, from 0.
        uneven_padding: padding 'same' of an even span, one more behind than in front; `padding` has the lesser.
        peculiarity: what its module does besides the convolution described here; "" for a plain `nn.Conv2d`. Of a
            call, why no other algorithm can take its place.
        fused: what its module does after it in the same call; `bias` is true where one is among it.
        kind: `MODULE`, or the function whose call was seen: "conv1d", "conv_transpose2d".
    """

    name: str
    position: int
    bias: bool = False
    padding_mode: str = "zeros"
    uneven_padding: bool = False
    peculiarity: str = ""
    kind: str = MODULE
    output_padding: tuple[int, ...] = ()
    fused: Fused = ALONE

    @classmethod
    def of_call(cls, name: str, position: int, call: Call, given: Sequence[int]) -> Layer:
        """Return the layer that a call outside `nn.Conv2d` modules is; `given` is the shape of its input."""
        weight = tuple(call.weight.shape)
        return cls(
            input=tuple(given) if len(given) == len(weight) else (1, *given), weight=weight, padding=call.padding,
            stride=call.stride, dilation=call.dilation, groups=call.groups, name=name, position=position,
            bias=call.bias is not None, uneven_padding=call.uneven_padding, peculiarity=call.peculiarity,
            kind=call.kind, output_padding=call.output_padding if call.transposed else (),
        )  # fmt: skip

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
    def transposed(self) -> bool:
        """True for a transposed convolution."""
        return "transpose" in self.kind

    @property
    def out_channels(self) -> int:
        """The channels of the output, of all groups."""
        return self.weight[1] * self.groups if self.transposed else super().out_channels

    @property
    def terms(self) -> int:
        """The number of products that are summed up for one output; with strides, of a transposed one the most."""
        if not self.transposed:
            return super().terms
        return mathematics.prod((self.weight[0] // self.groups, *self.kernel))

    @property
    def output(self) -> tuple[int, ...]:
        """N × K × spatial of the output; padding 'same' keeps the input's extents."""
        if self.transposed:
            return self.batch, self.out_channels, *self._transposed_extents()
        return (self.batch, self.out_channels, *self.size) if self.uneven_padding else super().output

    def _transposed_extents(self) -> tuple[int, ...]:
        sizes = self.size, self.kernel, self.padding, self.stride, self.dilation, self.output_padding
        return tuple(
            (extent - 1) * step - 2 * pad + gap * (width - 1) + more + 1
            for extent, width, pad, step, gap, more in zip(*sizes, strict=True)
        )

    @property
    def flops(self) -> int:
        """The floating-point operations by the direct definition; the bias adds one for each output."""
        # Each number of a transposed one's input is multiplied by each of its channel's weights.
        inputs = mathematics.prod(self.input) * mathematics.prod(self.weight[1:])
        products = 2 * inputs if self.transposed else super().flops
        return products + mathematics.prod(self.output) * int(self.bias)

    @property
    def elements_read(self) -> int:
        """The elements of input and weights that are read; all where it is transposed, or padded not by zeros alone."""
        if self.transposed or self.uneven_padding or self.padding_mode != "zeros":
            return mathematics.prod(self.input) + mathematics.prod(self.weight)
        return super().elements_read

    def minimum_bytes(self, element_bytes: int = 4) -> int:
        """Return the bytes that must cross the memory at least, the bias among them."""
        return super().minimum_bytes(element_bytes) + self.out_channels * int(self.bias) * element_bytes

    @property
    def cost_key(self) -> tuple[object, ...]:
        """All that the cost of the layer depends on: two layers of one key are the same work."""
        options = self.bias, self.padding_mode, self.uneven_padding, self.peculiarity, self.kind, self.output_padding
        return self.input, self.weight, self.padding, self.stride, self.dilation, self.groups, *options, self.fused

    def columns(self) -> dict[str, Any]:
        """Return the place and the shape by the names of columns: sizes as "3x3", heights and widths of 2-D layers."""
        pairs = {name: dimensions(getattr(self, name)) for name in ("stride", "padding", "dilation")}
        counts = {name: getattr(self, name) for name in ("position", "in_channels", "out_channels", "groups")}
        height, width = self.size if len(self.size) == 2 else (None, None)
        sizes = {"batch_size": self.batch, "in_height_px": height, "in_width_px": width}
        return pairs | counts | sizes | {"kernel_size": dimensions(self.kernel)}

    @property
    def steps(self) -> str | None:
        """The steps that are fused with it as tables write them, "bias relu"; None for none."""
        return str(self.fused) or None

    def convolution(self, dtype: str = "float32", math: str = "tf32", layout: str = "nchw") -> Convolution:
        """Return the layer as libraries and kernels take it: without its place, padding mode, and bias not fused."""
        sizes = self.input, self.weight, self.padding, self.stride, self.dilation, self.groups
        return Convolution(*sizes, dtype, math, layout, self.fused)

    def __str__(self) -> str:
        kernel, size = dimensions(self.kernel, short=True), dimensions(self.size, short=True)
        parts = [f"{self.in_channels}-{self.out_channels} {kernel} on {size}"]
        for name, usual in _USUAL.items():
            value: tuple[int, ...] = getattr(self, name)
            parts += [] if set(value) == {usual} else [f"{name} {dimensions(value, short=True)}"]
        parts += [f"groups {self.groups}"] if self.groups > 1 else []
        return f"{', '.join(parts)}, batch {self.batch}"


def has_calls(layers: Sequence[Layer]) -> bool:
    """Tell whether some of these layers are calls outside `nn.Conv2d` modules."""
    return any(layer.kind != MODULE for layer in layers)
