"""Changes to the trace of a model that the engine `fused` makes in more than one place."""

from __future__ import annotations

from collections import Counter

import torchvision.ops
from torch import fx, nn

from convscope.convolution import models
from convscope.convolution.fusion.graphs import may_move, sums_of


def shared_modules(model: nn.Module) -> set[str]:
    """Return the names of modules that a trace calls more than once, maybe in branches side by side."""
    nodes = model.graph.nodes if isinstance(model, fx.GraphModule) else ()
    calls = Counter(str(node.target) for node in nodes if node.op == "call_module")
    return {name for name, count in calls.items() if count > 1}


def inputs(model: nn.Module) -> dict[str, int]:
    """Return the number of inputs of each module that a trace calls, 0 where one is named."""
    nodes = model.graph.nodes if isinstance(model, fx.GraphModule) else ()
    return {str(node.target): 0 if node.kwargs else len(node.args) for node in nodes if node.op == "call_module"}


def addend(model: fx.GraphModule, moved: fx.Node, output: fx.Node, sum_node: fx.Node) -> fx.Node | None:
    """Return the other term where a node adds it to an output, and the node that is to move there may; else None."""
    others = [other for term, other in sums_of(model, sum_node) if term is output]
    return others[0] if others and may_move(model, moved, sum_node) else None


def replace(model: fx.GraphModule, nodes: list[fx.Node], name: str, other: fx.Node | None, place: fx.Node) -> None:
    """Put a call of a module with the first node's input, and the other term, in the place of nodes that follow."""
    with model.graph.inserting_before(place):
        call = model.graph.call_module(name, (*nodes[0].args, *([] if other is None else [other])))
    nodes[-1].replace_all_uses_with(call)
    for node in reversed(nodes):
        model.graph.erase_node(node)


def finish(model: fx.GraphModule) -> None:
    """Make a changed trace ready to be called."""
    model.delete_all_unused_submodules()
    model.recompile()


def drop_idle(model: fx.GraphModule) -> None:
    """Take out of a trace what returns its input in evaluation: dropout, stochastic depth, identities."""
    for node in list(model.graph.nodes):
        if _is_idle(model, node):
            node.replace_all_uses_with(node.args[0])
            model.graph.erase_node(node)


def _is_idle(model: fx.GraphModule, node: fx.Node) -> bool:
    if not node.args or not isinstance(node.args[0], fx.Node):
        return False
    if node.op == "call_module":
        module = model.get_submodule(str(node.target))
        is_idle = type(module) is nn.Identity or (type(module) in (nn.Dropout, nn.Dropout2d) and not module.training)
        return is_idle and len(node.args) == 1 and not models.has_hooks(module)
    if node.op != "call_function" or node.target is not torchvision.ops.stochastic_depth:
        return False
    return dict(zip(("p", "mode", "training"), node.args[1:], strict=False), **node.kwargs).get("training") is False
