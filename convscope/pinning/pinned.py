"""Plans put into a PyTorch model: `convscope.pin(model, "plans.json")`.

A pinned layer runs its plan for inputs of the size, type and batch that the plan was measured for, and PyTorch's own
convolution, with a warning, for others. It is an operator of its own, so that graphs capture and `torch.compile` traces
it. There is no gradient of it: where one is wanted PyTorch computes.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from convscope.convolution import backends, models
from convscope.convolution.fusion import graphs
from convscope.convolution.fusion.module import FusedConv2d, wants_gradient
from convscope.convolution.operator import ZEROS, cuda_operator
from convscope.cudnn import library
from convscope.cudnn.shape import Fused, dimensions, output_extents
from convscope.errors import InputError, NotSupportedError
from convscope.pinning import document
from convscope.pinning.document import TORCH, Pin, Pins

Tell = Callable[[str], None]


class PinWarning(UserWarning):
    """A layer, or a model, runs as PyTorch runs it: its plan is of another stack or shape."""


@torch.library.custom_op("convscope::planned_conv2d", mutates_args=(), device_types="cuda")
def planned_conv2d(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, padding: list[int], stride: list[int],
    dilation: list[int], groups: int, algorithm: str, layout: str,
) -> torch.Tensor:  # fmt: skip
    """Convolve N × C × H × W with a plan, in a layout; errors as `CudaOperator.forward`."""
    with backends.settings(layout=layout):
        sizes = padding[0], padding[1], stride[0], stride[1], dilation[0], dilation[1]
        return cuda_operator().forward(x, weight, bias, *sizes, ZEROS, groups, algorithm)


@planned_conv2d.register_fake
def _(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, padding: list[int], stride: list[int],
    dilation: list[int], groups: int, algorithm: str, layout: str,
) -> torch.Tensor:  # fmt: skip
    return _empty(x, weight, padding, stride, dilation, layout)


@torch.library.custom_op("convscope::planned_fused_conv2d", mutates_args=(), device_types="cuda")
def planned_fused_conv2d(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, added: torch.Tensor | None, padding: list[int],
    stride: list[int], dilation: list[int], groups: int, relu: bool, algorithm: str, layout: str,
) -> torch.Tensor:  # fmt: skip
    """Return convolution + added + bias, where they are given, and its ReLU if asked for, by a plan, in a layout.

    Errors as `CudaOperator.fused`.
    """
    steps = Fused(addition=added is not None, bias=bias is not None, relu=relu)
    options: Any = tuple(padding), tuple(stride), tuple(dilation), groups
    with backends.settings(layout=layout):
        return cuda_operator().fused(x, weight, bias, added, options, steps, algorithm)


@planned_fused_conv2d.register_fake
def _(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, added: torch.Tensor | None, padding: list[int],
    stride: list[int], dilation: list[int], groups: int, relu: bool, algorithm: str, layout: str,
) -> torch.Tensor:  # fmt: skip
    return _empty(x, weight, padding, stride, dilation, layout)


def _empty(
    x: torch.Tensor, weight: torch.Tensor, padding: list[int], stride: list[int], dilation: list[int], layout: str
) -> torch.Tensor:
    extents = output_extents(x.shape[-2:], weight.shape[-2:], padding, stride, dilation)
    size = x.shape[0], weight.shape[0], *extents
    return torch.empty(size, dtype=x.dtype, device=x.device, memory_format=backends.LAYOUTS[layout])


class PinnedConv2d(nn.Module):
    """A convolution, or a `FusedConv2d`, that runs one plan for one shape, and the `original` for others.

    Args:
        tell: called with the reason, once, where the original runs instead.

    Attributes:
        left: the reason of the first call in which the original ran instead; None where there was none.
    """

    def __init__(self, original: nn.Conv2d, pin: Pin, batch_size: int, dtype: str, layout: str, tell: Tell) -> None:
        super().__init__()
        self.original, self._tell = original, tell
        self.left: str | None = None
        self.algorithm, self._layout = pin.algorithm, layout
        size = batch_size, original.in_channels, pin.shape["in_height_px"], pin.shape["in_width_px"]
        self._size, self._dtype = torch.Size(size), getattr(torch, dtype)
        self._options = [*map(list, (original.padding, original.stride, original.dilation))]

    def forward(self, x: torch.Tensor, *added: torch.Tensor) -> torch.Tensor:
        """Convolve N × C × H × W; `added` is one tensor where an addition is fused, none elsewhere."""
        if why := self._why_not(x, *added):
            return self._by_pytorch(why, x, *added)
        try:
            return self._planned(x, *added)
        except (NotSupportedError, NotImplementedError) as refused:
            return self._by_pytorch(str(refused), x, *added)

    def _planned(self, x: torch.Tensor, added: torch.Tensor | None = None) -> torch.Tensor:
        weight, bias, groups = self.original.weight, self.original.bias, self.original.groups
        y: torch.Tensor
        if isinstance(self.original, FusedConv2d):
            given = x, weight, bias, added, *self._options, groups, self.original.fused.relu
            y = planned_fused_conv2d(*given, self.algorithm, self._layout)
        else:
            y = planned_conv2d(x, weight, bias, *self._options, groups, self.algorithm, self._layout)
        return y

    def _why_not(self, x: torch.Tensor, added: torch.Tensor | None = None) -> str | None:
        if x.shape != self._size or x.dtype != self._dtype:
            pinned = f"{dimensions(self._size)} in {self._dtype}"
            return f"it was pinned for {pinned}, and the input is {dimensions(x.shape)} in {x.dtype}"
        if wants_gradient(x, self.original.weight, self.original.bias, added):
            return "a plan has no gradient: run it under torch.inference_mode()"
        if isinstance(self.original, FusedConv2d) and added is not None:
            size = self.original.output_size(x.shape)
            if (added.shape, added.dtype) != (size, x.dtype):
                there = f"{dimensions(added.shape)} in {added.dtype}"
                return f"{there} is added to an output of {dimensions(size)} in {x.dtype}"
        return None if _is_on_gpu(x) else f"the input is on {x.device}"

    def _by_pytorch(self, why: str, *given: torch.Tensor) -> torch.Tensor:
        if self.left is None:
            self._tell(f"{self.algorithm} is left to PyTorch: {why}")
            self.left = why  # not where that was an error, which is one at each call
        output: torch.Tensor = self.original(*given)
        return output


def pin(model: nn.Module, plans: Pins | Path | str, *, strict: bool = False) -> nn.Module:
    """Have a model on a GPU run the plans of a document in place of PyTorch's choices.

    The model is changed in place and returned; its weights are shared. `unpin` brings its own modules back. A document
    of an atlas with `--fused` is for the model that `fused` returns.

    Args:
        plans: a document, or the file of one, as `python -m convscope plans export` writes it.
        strict: what is not as it was measured is an InputError; else a PinWarning, and PyTorch runs it.

    Raises:
        InputError: the file is no document of plans; with `strict`, also another GPU or cuDNN, a layer that is not
            there or is another, and at a call an input of another shape.
    """
    pins = plans if isinstance(plans, Pins) else document.read(Path(plans))

    def tell(line: str) -> None:
        if strict:
            raise InputError(line)
        warnings.warn(line, PinWarning, stacklevel=3)

    unpin(model)
    if why := other_stack(_device_of(model), pins):
        tell(f"no layer is pinned: {why}; export plans of this one")
        return model
    modules, found = dict(model.named_modules()), dict[str, PinnedConv2d]()
    given = pins.settings["batch_size"], pins.settings["dtype"], pins.settings["layout"], tell
    for each in (each for each in pins.layers if each.algorithm != TORCH):
        module = modules.get(each.layer)
        if why := other_layer(module, each):
            tell(f"{each.layer} is left to PyTorch: {why}")
        elif isinstance(module, nn.Conv2d):
            found[each.layer] = PinnedConv2d(module, each, *given)
    for name, pinned in found.items():  # after all were looked at: an error leaves the model as it was
        models.set_module(model, name, pinned)
    return model


def unpin(model: nn.Module) -> nn.Module:
    """Bring the own modules of a pinned model back; return it."""
    for name, module in list(model.named_modules()):
        if isinstance(module, PinnedConv2d):
            models.set_module(model, name, module.original)
    return model


def renew() -> None:
    """Have packed filters laid out again, after weights were written to in a way that PyTorch does not count.

    Those ways are `weight.data`, tensors made in inference mode, and replays of a graph that writes to weights.
    """
    cuda_operator().renew()


def other_stack(device: torch.device, pins: Pins) -> str | None:
    """Return what sets this GPU and cuDNN apart from those of a document, None for nothing."""
    if device.type != "cuda":
        return f"the model is on {device}, and its plans are of {pins.stack['gpu_name']}"
    here = {"gpu_name": torch.cuda.get_device_name(device), "cudnn": library.version()}
    others = [f"{name} is {here[name]}, and was {pins.stack[name]}" for name in here if here[name] != pins.stack[name]]
    return "; ".join(others) or None


def other_layer(module: nn.Module | None, pin: Pin) -> str | None:
    """Return what sets a module apart from the layer of a document, None for nothing."""
    if not isinstance(module, nn.Conv2d):
        return "there is no nn.Conv2d of this name" if module is None else f"it is a {type(module).__name__}"
    if peculiar := models.peculiarity(module):
        return peculiar
    if isinstance(module.padding, str) or module.padding_mode != "zeros":
        return "its padding is no number of zeros"
    sizes = {
        "in_channels": module.in_channels, "out_channels": module.out_channels, "groups": module.groups,
        "kernel_size": dimensions(module.kernel_size), "stride": dimensions(module.stride),
        "padding": dimensions(module.padding), "dilation": dimensions(module.dilation),
        "fused": str(module.fused) or None if isinstance(module, FusedConv2d) else None,
    }  # fmt: skip
    others = (name for name, size in sizes.items() if size != pin.shape[name])
    first = next(others, None)
    if first == "fused":
        return f"{sizes[first] or 'nothing'} is fused with it, not {pin.shape[first] or 'nothing'}: see convscope.fused"
    return None if first is None else f"its {first} is {sizes[first]}, not {pin.shape[first]}"


def fused(model: nn.Module, *example: torch.Tensor) -> nn.Module:
    """Return a copy of a model in evaluation mode whose convolutions do what follows them in the same call of cuDNN.

    Batch normalisation is folded into the convolution before it: in float32, before the model is brought to 16 bits.
    Until the copy is pinned, PyTorch's own fused calls run.

    Args:
        example: the arguments of a call, for which model and copy must return the same.

    Raises:
        InputError: the model is in training mode, `torch.fx` cannot follow it, it has nothing to fuse, or the copy
            returns something else.
    """
    return graphs.fused_whole(model, *example)


def _device_of(model: nn.Module) -> torch.device:
    return next((parameter.device for parameter in model.parameters()), torch.device("cpu"))


def _is_on_gpu(x: torch.Tensor) -> bool:
    return x.is_cuda
