"""Folding of batch normalisation into convolutions, and fusing of convolutions with what follows them.

Both work on the model's symbolic trace (`torch.fx`). A model that cannot be traced is not changed.
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import fx, nn
from torch.fx.proxy import TraceError
from torch.nn.utils.fusion import fuse_conv_bn_eval

from convscope.convolution import models
from convscope.convolution.fusion.module import FusedConv2d
from convscope.cudnn.shape import Fused
from convscope.errors import InputError

Make = Callable[[nn.Conv2d, Fused], nn.Module]

_RELUS = (torch.relu, torch.relu_, nn.functional.relu, "relu", "relu_")
_ADDS = (operator.add, operator.iadd, torch.add, "add", "add_")


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


def fused(model: nn.Module, make: Make = FusedConv2d) -> tuple[nn.Module, int]:
    """Fuse each convolution with the ReLU behind it, and with the addition in between where there is one.

    Args:
        model: as `folded` returns it; it is changed in place.
        make: returns the module for a convolution and what is fused with it.

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
            _fuse(model, node, before, None, make)
        elif (pair := _added(model, before)) is not None:
            _take_bias(model, *pair)
            _fuse(model, node, *pair, make)
        else:
            continue
        fusions += 1
    return _finished(model), fusions


def fused_whole(model: nn.Module) -> fx.GraphModule:
    """Return a copy of a model in evaluation mode with all that cuDNN's plans can take in one call as `FusedConv2d`.

    Batch normalisation is folded into the convolution before it; the addition and ReLU behind a convolution, and its
    bias, are fused with it. Grouped convolutions stay as they are, with their bias.

    Raises:
        InputError: the model is in training mode, cannot be followed by `torch.fx`, or has nothing to fuse.
    """
    if model.training:
        raise InputError(f"{type(model).__name__} is in training mode, and cannot be fused: call its eval() first")
    whole, _ = fused(folded(model)[0])
    for name, module in list(whole.named_modules()):
        if type(module) is nn.Conv2d and _is_usual(module) and module.bias is not None:
            models.set_module(whole, name, FusedConv2d(module, Fused(bias=True)))
    if not isinstance(whole, fx.GraphModule):
        raise InputError(f"{type(model).__name__} cannot be fused: torch.fx cannot follow it; leave it as it is")
    if not any(isinstance(module, FusedConv2d) for module in whole.modules()):
        raise InputError(f"{type(model).__name__} has nothing to fuse: no bias, ReLU or normalisation after a Conv2d")
    return whole


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
    calls = sum(each.op == "call_module" and each.target == node.target for each in model.graph.nodes)
    return calls == 1 and _is_usual(_called(model, node))


def _is_usual(conv: nn.Conv2d) -> bool:
    """Tell whether cuDNN's fused call takes a convolution with its options."""
    return conv.padding_mode == "zeros" and not isinstance(conv.padding, str) and conv.groups == 1


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


def _fuse(model: fx.GraphModule, relu: fx.Node, conv: fx.Node, added: fx.Node | None, make: Make) -> None:
    """Put one fused call in the place of a ReLU and the convolution (and addition) before it."""
    module = _called(model, conv)
    steps = Fused(addition=added is not None, bias=module.bias is not None, relu=True)
    models.set_module(model, str(conv.target), make(module, steps))
    with model.graph.inserting_before(relu):
        args = conv.args if added is None else (*conv.args, added)
        call = model.graph.call_module(str(conv.target), args)
    relu.replace_all_uses_with(call)
    before: Any = relu.args[0]
    for node in dict.fromkeys((relu, before, conv)):
        model.graph.erase_node(node)
