"""Convolutions with the activation or addition that follows them, and depthwise ones, for the engine `fused`.

cuDNN's fused call of PyTorch ends with ReLU, and takes no groups. What it leaves alone in EfficientNet, MobileNet and
ConvNeXt is done here by kernels of this project: bias, addition and activation in one, a depthwise convolution with
bias and activation in one, factors of channels.
They are for channels last on a GPU; for other tensors PyTorch's steps follow each other.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx, nn

from convscope.convolution import models
from convscope.cudnn.shape import output_extents
from convscope.inference.engines.fused import traces

ACTIVATIONS: dict[type[nn.Module], str] = {
    nn.ReLU: "relu", nn.ReLU6: "relu6", nn.SiLU: "silu", nn.Hardswish: "hardswish", nn.Hardsigmoid: "hardsigmoid",
    nn.Sigmoid: "sigmoid", nn.GELU: "gelu",
}  # fmt: skip
"""Modules of activations, and their names in `kernels.channels_last.activations`; GELU in its exact form alone."""
BY_PYTORCH: dict[str, Any] = {
    "": lambda y: y, "relu": torch.relu, "relu6": nn.functional.relu6, "silu": nn.functional.silu,
    "hardswish": nn.functional.hardswish, "hardsigmoid": nn.functional.hardsigmoid, "sigmoid": torch.sigmoid,
    "gelu": nn.functional.gelu,
}  # fmt: skip


class TailedConvolution(nn.Module):
    """A convolution, then its bias, an addition where `forward` gets one, and activation, if any, in one kernel.

    Args:
        kind: a key of `BY_PYTORCH`.
    """

    def __init__(self, conv: nn.Conv2d, kind: str) -> None:
        super().__init__()
        self.weight, self.kind = conv.weight, kind
        none = conv.weight.new_zeros(conv.out_channels)
        self.bias = conv.bias if conv.bias is not None else nn.Parameter(none)
        self.options: Any = (conv.stride, conv.padding, conv.dilation, conv.groups)

    def forward(self, x: torch.Tensor, added: torch.Tensor | None = None) -> torch.Tensor:
        """Return activation(convolution(x) + bias + added)."""
        if not x.is_cuda:
            return by_pytorch(nn.functional.conv2d(x, self.weight, self.bias, *self.options), added, self.kind)
        return with_tail(nn.functional.conv2d(x, self.weight, None, *self.options), self.bias, self.kind, added)


def with_tail(y: torch.Tensor, bias: torch.Tensor, kind: str, added: torch.Tensor | None = None) -> torch.Tensor:
    """Return activation(y + bias + added), in the place of y where this project's kernel can do it."""
    from convscope.kernels.channels_last import activations  # imports Triton

    if activations.takes(y, added):
        return activations.do(y, bias, kind, added)
    return by_pytorch(y + bias[:, None, None], added, kind)


def by_pytorch(y: torch.Tensor, added: torch.Tensor | None, kind: str) -> torch.Tensor:
    """Return activation(y + added) by PyTorch's operators."""
    found: torch.Tensor = BY_PYTORCH[kind](y if added is None else y + added)
    return found


class DepthwiseConvolution(TailedConvolution):
    """A depthwise convolution with its bias and activation, all in one kernel."""

    def __init__(self, conv: nn.Conv2d, kind: str) -> None:
        super().__init__(conv, kind)
        self._taps: torch.Tensor | None = None

    def takes(self, x: torch.Tensor) -> bool:
        """Tell whether the kernel takes a tensor; others go to `by_library`."""
        if not x.is_cuda:
            return False
        from convscope.kernels.channels_last import depthwise  # imports Triton

        return depthwise.takes(x, self._kernel())

    def _kernel(self) -> tuple[int, int]:
        return self.weight.shape[2], self.weight.shape[3]

    def by_library(self, x: torch.Tensor) -> torch.Tensor:
        """Return activation(convolution(x) + bias), the convolution by cuDNN or PyTorch."""
        return super().forward(x)

    def forward(self, x: torch.Tensor, added: torch.Tensor | None = None) -> torch.Tensor:
        """Return activation(convolution(x) + bias + added)."""
        if added is not None or not self.takes(x):
            return super().forward(x, added)
        from convscope.kernels.channels_last import depthwise  # imports Triton

        kernel = self._kernel()
        stride, padding, dilation, _ = self.options
        size: Any = output_extents(x.shape[2:], kernel, padding, stride, dilation)
        if self._taps is None:
            self._taps = packed(self.weight.detach())
        return depthwise.convolve(x, self._taps, self.bias, kernel, stride, padding, dilation, tuple(size), self.kind)


class ScaledChannels(nn.Module):
    """A product of images and factors of their channels, in either order, by this project's kernel; else PyTorch's."""

    def forward(self, one: Any, other: Any) -> Any:
        """Return the product; of sizes, which a trace multiplies too, a number."""
        are_tensors = isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor)
        if are_tensors and one.is_cuda and one.dim() == other.dim() == 4:
            from convscope.kernels.channels_last import activations  # imports Triton

            x, factors = (one, other) if one.numel() > other.numel() else (other, one)
            if activations.takes_factors(x, factors):
                return activations.scaled(x, factors)
        return one * other


def packed(weight: torch.Tensor) -> torch.Tensor:
    """Return the filters C × 1 × R × S of a depthwise convolution as the kernel reads them: R S × C, in float32."""
    return weight.float().flatten(1).t().contiguous()


def with_tails(model: nn.Module) -> tuple[int, int]:
    """Put these modules in the place of convolutions that end in an activation or addition, and of depthwise ones.

    A convolution takes along the activation that is the only one to use its output, and so nothing between the two can
    tell; or it goes to where an addition was, if nothing on the way changes what it reads.

    Args:
        model: as `fusion.graphs.fused` returns it; it is changed in place. One that is no trace stays as it is.

    Returns:
        the number of convolutions with an activation, addition or bias, and of depthwise ones with or without them.
    """
    if not isinstance(model, fx.GraphModule):
        return 0, 0
    traces.drop_idle(model)
    tailed = depthwise = 0
    for node in list(model.graph.nodes):
        conv = _convolution(model, node)
        if conv is None:
            continue
        following = next(iter(node.users)) if len(node.users) == 1 else None
        kind = activation(model, following) if following is not None else ""
        is_depthwise = conv.groups == conv.in_channels == conv.out_channels > 1
        may_add = following is not None and not kind and not is_depthwise
        other = traces.addend(model, node, node, following) if may_add and following is not None else None
        if not kind and not is_depthwise and conv.bias is None and other is None:
            continue  # PyTorch adds a bias by a kernel of its own
        made = (DepthwiseConvolution if is_depthwise else TailedConvolution)(conv, kind)
        models.set_module(model, str(node.target), made)
        if following is not None and (kind or other is not None):
            traces.replace(model, [node, following], str(node.target), other, following if other is not None else node)
        tailed, depthwise = tailed + (not is_depthwise), depthwise + is_depthwise
    _scale_channels(model)
    traces.finish(model)
    return tailed, depthwise


def _scale_channels(model: fx.GraphModule) -> None:
    """Put `ScaledChannels` in the place of products of what is computed in a trace."""
    for number, node in enumerate(model.graph.nodes):
        is_product = node.op == "call_function" and node.target is operator.mul
        if is_product and all(isinstance(arg, fx.Node) for arg in node.args):
            name = f"scaled_channels_{number}"
            model.add_submodule(name, ScaledChannels())
            node.op, node.target = "call_module", name


def _convolution(model: fx.GraphModule, node: fx.Node) -> nn.Conv2d | None:
    """Return the plain convolution that a node, and no other, calls; None where it is something else."""
    if node.op != "call_module" or node.kwargs:
        return None
    module = model.get_submodule(str(node.target))
    if type(module) is not nn.Conv2d or models.peculiarity(module):
        return None
    calls = sum(each.op == "call_module" and each.target == node.target for each in model.graph.nodes)
    is_usual = module.padding_mode == "zeros" and not isinstance(module.padding, str)
    return module if calls == 1 and is_usual else None


def activation(model: fx.GraphModule, node: fx.Node) -> str:
    """Return the name of the activation that a node is, "" for none of `ACTIVATIONS`."""
    if node.op != "call_module" or node.kwargs or len(node.args) != 1:
        return ""
    module = model.get_submodule(str(node.target))
    exact = getattr(module, "approximate", "none") == "none"
    return ACTIVATIONS.get(type(module), "") if exact and not models.has_hooks(module) else ""
