"""Folding of batch normalisation and fusing of convolutions, before any compiler sees a model.

Both work on the model's symbolic trace (`torch.fx`). A model that cannot be traced is not changed.
"""

from __future__ import annotations

import copy
import operator
from typing import Any

import torch
from torch import fx, nn
from torch.fx.proxy import TraceError
from torch.nn.utils.fusion import fuse_conv_bn_eval

from convscope.convolution import models

_RELUS = (torch.relu, torch.relu_, nn.functional.relu, "relu", "relu_")
_ADDS = (operator.add, operator.iadd, torch.add, "add", "add_")


class FusedConvolution(nn.Module):
    """A convolution, its bias, an addition where `forward` gets one, and ReLU: one call of cuDNN, on a CPU steps.

    An input of fewer than `channels` channels is padded to this number with zeros.
    """

    def __init__(self, conv: nn.Conv2d, channels: int = 0) -> None:
        super().__init__()
        self._missing = max(0, channels - conv.in_channels)
        self.weight = nn.Parameter(self._padded(conv.weight.detach()))
        self.bias = conv.bias if conv.bias is not None else nn.Parameter(torch.zeros(conv.out_channels))
        self.options: Any = (conv.stride, conv.padding, conv.dilation, conv.groups)

    def _padded(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.pad(x, (0, 0, 0, 0, 0, self._missing)) if self._missing else x

    def forward(self, x: torch.Tensor, added: torch.Tensor | None = None) -> torch.Tensor:
        """Return relu(convolution(x) + bias + added)."""
        x = self._padded(x)
        if not x.is_cuda:
            y = nn.functional.conv2d(x, self.weight, self.bias, *self.options)
            return torch.relu(y if added is None else y + added)
        if added is None:
            return torch.cudnn_convolution_relu(x, self.weight, self.bias, *self.options)
        return torch.cudnn_convolution_add_relu(x, self.weight, added, 1.0, self.bias, *self.options)


class FusedProduct(nn.Module):
    """A 1×1 convolution with stride 1, its bias and ReLU as a product of matrices: one call of cuBLASLt.

    Meant for channels last, where pixels are rows of a matrix already; else they are copied.
    """

    def __init__(self, conv: nn.Conv2d) -> None:
        super().__init__()
        self.weight = conv.weight
        self.bias = conv.bias if conv.bias is not None else nn.Parameter(torch.zeros(conv.out_channels))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return relu(convolution(x) + bias), channels last."""
        batch, channels, height, width = x.shape
        pixels = x.permute(0, 2, 3, 1).reshape(-1, channels)
        y = torch._addmm_activation(self.bias, pixels, self.weight.flatten(1).t())
        return y.view(batch, height, width, -1).permute(0, 3, 1, 2)


def folded(model: nn.Module) -> tuple[nn.Module, int, int]:
    """Fold batch normalisation into the convolutions before it, in a copy of a model in evaluation mode.

    Returns:
        the copy, the number of normalisations folded, and the number in the model.
    """
    count = sum(isinstance(module, nn.BatchNorm2d) for module in model.modules())
    try:
        traced = fx.symbolic_trace(copy.deepcopy(model))
    except (TraceError, TypeError, ValueError):
        return copy.deepcopy(model), 0, count
    calls = [node.target for node in traced.graph.nodes if node.op == "call_module"]
    folds = 0
    for node in list(traced.graph.nodes):
        if not _is(traced, node, nn.BatchNorm2d) or not _is(traced, node.args[0], nn.Conv2d):
            continue
        before = node.args[0]
        if len(before.users) > 1 or calls.count(before.target) > 1 or calls.count(node.target) > 1:
            continue
        models.set_module(traced, before.target, fuse_conv_bn_eval(_called(traced, before), _called(traced, node)))
        node.replace_all_uses_with(before)
        traced.graph.erase_node(node)
        folds += 1
    return _finished(traced), folds, count


def fused(model: nn.Module, channels: int = 0, products: bool = False) -> tuple[nn.Module, int]:
    """Fuse each convolution with the ReLU behind it, and with the addition in between where there is one.

    Args:
        model: as `folded` returns it; it is changed in place.
        channels: as in `FusedConvolution`.
        products: 1×1 convolutions with stride 1 and no addition become products of matrices.

    Returns:
        the model, and the number of convolutions fused.
    """
    if not isinstance(model, fx.GraphModule):
        return model, 0
    fusions = 0
    for node in list(model.graph.nodes):
        if not _is_relu(model, node) or not isinstance(node.args[0], fx.Node) or len(node.args[0].users) > 1:
            continue
        before = node.args[0]
        if _is_plain(model, before):
            _fuse(model, node, before, None, channels, products)
        elif (pair := _added(model, before)) is not None:
            _take_bias(model, *pair)
            _fuse(model, node, *pair, channels, products)
        else:
            continue
        fusions += 1
    return _finished(model), fusions


def _finished(model: fx.GraphModule) -> fx.GraphModule:
    model.graph.eliminate_dead_code()
    model.delete_all_unused_submodules()
    model.recompile()
    return model


def _is(model: fx.GraphModule, node: Any, kind: type[nn.Module]) -> bool:
    """Tell whether a node calls a module of exactly this type: a subclass may do more."""
    return isinstance(node, fx.Node) and node.op == "call_module" and type(_called(model, node)) is kind


def _called(model: fx.GraphModule, node: fx.Node) -> Any:
    return model.get_submodule(str(node.target))


def _is_relu(model: fx.GraphModule, node: fx.Node) -> bool:
    return _is(model, node, nn.ReLU) or (node.op in ("call_function", "call_method") and node.target in _RELUS)


def _is_plain(model: fx.GraphModule, node: Any) -> bool:
    """Tell whether a node is a convolution, called once, used once, that cuDNN's fused call can do."""
    if not _is(model, node, nn.Conv2d) or len(node.users) > 1:
        return False
    conv = _called(model, node)
    calls = sum(each.op == "call_module" and each.target == node.target for each in model.graph.nodes)
    return calls == 1 and conv.padding_mode == "zeros" and not isinstance(conv.padding, str) and conv.groups == 1


def _added(model: fx.GraphModule, node: fx.Node) -> tuple[fx.Node, fx.Node] | None:
    """Return the convolution and the other term of an addition, None where it is none."""
    if node.op not in ("call_function", "call_method") or node.target not in _ADDS or node.kwargs:
        return None
    terms = [term for term in node.args if isinstance(term, fx.Node)]
    if len(terms) != 2 or terms[0] is terms[1]:
        return None
    conv = next((term for term in terms if _is_plain(model, term)), None)
    return None if conv is None else (conv, next(term for term in terms if term is not conv))


def _take_bias(model: fx.GraphModule, conv: fx.Node, other: fx.Node) -> None:
    """Move the bias of a convolution that is only added to another into the other, where it costs nothing."""
    if not _is_plain(model, other):
        return
    one, two = _called(model, conv), _called(model, other)
    if two.bias is not None:
        own = one.bias if one.bias is not None else torch.zeros_like(two.bias)
        one.bias = nn.Parameter((own + two.bias).detach())
        two.bias = None


def _fuse(
    model: fx.GraphModule, relu: fx.Node, conv: fx.Node, added: fx.Node | None, channels: int, products: bool
) -> None:
    """Put one fused call in the place of a ReLU and the convolution (and addition) before it."""
    module = _called(model, conv)
    is_product = (module.kernel_size, module.stride, module.padding) == ((1, 1), (1, 1), (0, 0))
    as_product = products and added is None and is_product
    fused_module = FusedProduct(module) if as_product else FusedConvolution(module, channels)
    models.set_module(model, str(conv.target), fused_module)
    with model.graph.inserting_before(relu):
        args = conv.args if added is None else (*conv.args, added)
        call = model.graph.call_module(str(conv.target), args)
    relu.replace_all_uses_with(call)
    before: Any = relu.args[0]
    for node in dict.fromkeys((relu, before, conv)):
        model.graph.erase_node(node)
