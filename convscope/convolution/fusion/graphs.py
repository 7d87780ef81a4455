"""Folding of batch normalisation into convolutions, and fusing of convolutions with what follows them.

Both work on the model's symbolic trace (`torch.fx`). A model that cannot be traced is not changed; a convolution,
normalisation or ReLU that has hooks, or computes its weights, is left as it is. A fused call stands where the ReLU
stood: nothing between the two may change a tensor in place, but the addition.
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import fx, nn
from torch.fx.passes.shape_prop import ShapeProp
from torch.nn.utils.fusion import fuse_conv_bn_eval

from convscope.convolution import models
from convscope.convolution.fusion.module import FusedConv2d
from convscope.convolution.reference import relative_distance
from convscope.convolution.sources.source import first_tensor
from convscope.cudnn.shape import Fused
from convscope.errors import InputError

Make = Callable[[nn.Conv2d, Fused], nn.Module]

_RELUS = (torch.relu, torch.relu_, nn.functional.relu, "relu", "relu_")
_SAME = 1e-2  # relative distance: folded weights are rounded anew, which deep models enlarge
_ADDS = (operator.add, operator.iadd, torch.add, "add", "add_")
_IN_PLACE = (operator.setitem, *(getattr(operator, f"i{name}") for name in ("add", "sub", "mul", "truediv", "pow")))


def folded(model: nn.Module) -> tuple[nn.Module, int, int]:
    """Fold batch normalisation into the convolutions before it, in a copy of a model in evaluation mode.

    Returns:
        the copy, the number of normalisations folded, and the number in the model.
    """
    count = sum(isinstance(module, nn.BatchNorm2d) for module in model.modules())
    copied = copy.deepcopy(model)
    try:
        traced = fx.symbolic_trace(copied)
    except Exception:  # whatever the code of a model does with what stands for its tensors
        return copy.deepcopy(model), 0, count
    calls = [node.target for node in traced.graph.nodes if node.op == "call_module"]
    folds = 0
    for node in list(traced.graph.nodes):
        if not _is(traced, node, nn.BatchNorm2d) or not _is(traced, node.args[0], nn.Conv2d):
            continue
        before = node.args[0]
        once = [len(before.users), calls.count(before.target), calls.count(node.target)] == [1, 1, 1]
        if not once or _called(traced, node).running_mean is None:
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
            if not may_move(model, before, node, but=before):
                continue
            _fuse(model, node, before, None, make)
        elif (pair := _added(model, before, node)) is not None:
            _take_bias(model, *pair)
            _fuse(model, node, *pair, make)
        else:
            continue
        fusions += 1
    return _finished(model), fusions


def fused_whole(model: nn.Module, *example: torch.Tensor) -> fx.GraphModule:
    """Return a copy of a model in evaluation mode with all that cuDNN's plans can take in one call as `FusedConv2d`.

    Batch normalisation is folded into the convolution before it; the addition and ReLU behind a convolution, and its
    bias, are fused with it. Grouped convolutions stay as they are, with their bias.

    Args:
        example: the arguments of a call. With them an addition that is broadcast is left alone, which no plan can do,
            and model and copy must return the same: what `torch.fx` follows wrongly is seen so (`other = x;
            other += y`, where x is used again).

    Raises:
        InputError: the model is in training mode, cannot be followed by `torch.fx`, or has nothing to fuse; the copy
            returns something else.
    """
    if any(module.training for module in model.modules()):
        raise InputError(f"{type(model).__name__} is in training mode, and cannot be fused: call its eval() first")
    try:
        copied = folded(model)[0]
    except RuntimeError as error:  # weights that are computed in each pass
        raise InputError(f"{type(model).__name__} cannot be copied, and so not be fused: {error}") from None
    if example and isinstance(copied, fx.GraphModule):
        with torch.inference_mode():
            ShapeProp(copied).propagate(*(given.clone() for given in example))
    whole, _ = fused(copied)
    for name, module in list(whole.named_modules()):
        if type(module) is nn.Conv2d and _is_usual(module) and module.bias is not None:  # its call stays where it is
            models.set_module(whole, name, FusedConv2d(module, Fused(bias=True)))
    if not isinstance(whole, fx.GraphModule):
        raise InputError(f"{type(model).__name__} cannot be fused: torch.fx cannot follow it; leave it as it is")
    if not any(isinstance(module, FusedConv2d) for module in whole.modules()):
        raise InputError(f"{type(model).__name__} has nothing to fuse: no bias, ReLU or normalisation after a Conv2d")
    if example:
        _check_same(model, whole, example)
    return whole


def _check_same(model: nn.Module, whole: nn.Module, example: tuple[torch.Tensor, ...]) -> None:
    """Raise InputError where the two return other tensors for the same call."""
    with torch.inference_mode():
        expected, found = (first_tensor(each(*(given.clone() for given in example))) for each in (model, whole))
    if found.shape == expected.shape and (relative_distance(found, expected.double()) or 0.0) < _SAME:
        return
    raise InputError(
        f"{type(model).__name__} cannot be fused: torch.fx does not follow it rightly, its copy returns something else"
    )


def _finished(model: fx.GraphModule) -> fx.GraphModule:
    model.delete_all_unused_submodules()
    model.recompile()
    return model


def _is(model: fx.GraphModule, node: Any, kind: type[nn.Module]) -> bool:
    """Tell whether a node calls a module of exactly this type, and nothing else: a subclass or a hook may do more."""
    if not isinstance(node, fx.Node) or node.op != "call_module" or node.kwargs:
        return False
    module = _called(model, node)
    does_more = models.peculiarity(module) if kind is nn.Conv2d else models.has_hooks(module)
    return type(module) is kind and not does_more


def _called(model: fx.GraphModule, node: fx.Node) -> Any:
    return model.get_submodule(str(node.target))


def _is_relu(model: fx.GraphModule, node: fx.Node) -> bool:
    is_call = node.op in ("call_function", "call_method") and node.target in _RELUS and len(node.args) > 0
    return is_call or _is(model, node, nn.ReLU)


def _is_plain(model: fx.GraphModule, node: Any) -> bool:
    """Tell whether a node is a convolution, called once, used once, that cuDNN's fused call can do."""
    if not _is(model, node, nn.Conv2d) or len(node.users) > 1:
        return False
    calls = sum(each.op == "call_module" and each.target == node.target for each in model.graph.nodes)
    return calls == 1 and _is_usual(_called(model, node))


def _is_usual(conv: nn.Conv2d) -> bool:
    """Tell whether cuDNN's fused call takes a convolution with its options, and it does nothing else."""
    usual = conv.padding_mode == "zeros" and not isinstance(conv.padding, str) and conv.groups == 1
    return usual and not models.peculiarity(conv)


def _added(model: fx.GraphModule, node: fx.Node, relu: fx.Node) -> tuple[fx.Node, fx.Node] | None:
    """Return the convolution and the other term of an addition before a ReLU, None where it is none."""
    pairs = [pair for pair in sums_of(model, node) if _is_plain(model, pair[0])]
    pair = next((pair for pair in pairs if may_move(model, pair[0], relu, but=node)), None)
    if pair is None:
        return None
    filters = [_called(model, term).out_channels for term in pair if _is(model, term, nn.Conv2d)]
    sizes = [term.meta["tensor_meta"].shape for term in pair if "tensor_meta" in term.meta]
    return pair if len({*filters}) == 1 and len({*sizes}) <= 1 else None


def sums_of(model: fx.GraphModule, node: fx.Node) -> list[tuple[fx.Node, fx.Node]]:
    """Return each term of an addition that the other may be added to, and the other; none where it is no addition.

    One in place must be into the first term: what else has the second would miss it.
    """
    if node.op not in ("call_function", "call_method") or node.target not in _ADDS or node.kwargs:
        return []
    terms = [term for term in node.args if isinstance(term, fx.Node)]
    if len(terms) != 2 or len(node.args) != 2 or terms[0] is terms[1]:
        return []
    first, second = terms
    return [(first, second)] if changes_in_place(model, node) else [(first, second), (second, first)]


def changes_in_place(model: fx.GraphModule, node: fx.Node) -> bool:
    """Tell whether a node may change a tensor that it is given."""
    if node.op == "call_module":
        return bool(getattr(_called(model, node), "inplace", False))
    name = str(node.target if node.op == "call_method" else getattr(node.target, "__name__", ""))
    is_activation = getattr(node.target, "__module__", None) == nn.functional.__name__  # inplace by position, perhaps
    asked = node.kwargs.get("inplace") is True or (is_activation and any(one is True for one in node.args))
    return name.endswith("_") or node.target in _IN_PLACE or asked


def may_move(model: fx.GraphModule, node: fx.Node, end: fx.Node, but: fx.Node | None = None) -> bool:
    """Tell whether nothing between a node and its new place, but one, changes a tensor in place."""
    nodes = [*model.graph.nodes]
    between = nodes[nodes.index(node) + 1 : nodes.index(end)]
    return not any(changes_in_place(model, each) for each in between if each is not but)


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
