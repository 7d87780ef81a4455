"""Branches of a model on CUDA streams of their own: what does not wait for each other runs side by side.

With one image a kernel fills a part of the card, and a captured graph of one stream runs kernel after kernel. Where
branches leave one tensor and meet again (the shortcut of a ResNet's block, the four of an Inception block) the longest
stays on the current stream, and each other one gets a stream that waits for the tensor, and is waited for where they
meet. Captured in a CUDA graph only these dependencies are left.

Works on a symbolic trace (`torch.fx`); a branch is a row of modules of one input and one user each.
"""

from __future__ import annotations

import functools
from collections import defaultdict

import torch
from torch import fx, nn

from convscope.convolution.fusion.graphs import changes_in_place

_STREAMS = 3  # beside the current one


class Branch(nn.Module):
    """Modules one after another on a stream of their own; `Meeting` waits for them. On a CPU they are just called."""

    def __init__(self, steps: list[nn.Module], index: int) -> None:
        super().__init__()
        self.steps, self.index = nn.Sequential(*steps), index

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the output of the last module, on a GPU without waiting for it."""
        if not x.is_cuda:
            return self.steps(x)  # type: ignore[no-any-return]
        side = _stream(x.get_device(), self.index)
        side.wait_stream(torch.cuda.current_stream(x.device))
        with torch.cuda.stream(side):
            return self.steps(x)  # type: ignore[no-any-return]


class Meeting(nn.Module):
    """The place where the current stream waits for a branch."""

    def __init__(self, index: int) -> None:
        super().__init__()
        self.index = index

    def forward(self, y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """Return y, the branch's output.

        Args:
            x: the branch's input, which must not be freed before: the current stream would use its memory again.
        """
        if y.is_cuda:
            torch.cuda.current_stream(y.device).wait_stream(_stream(y.get_device(), self.index))
        return y


@functools.cache
def _stream(device_index: int, index: int) -> torch.cuda.Stream:
    return torch.cuda.Stream(device_index)


def with_branches(model: nn.Module) -> int:
    """Put branches of a trace on streams of their own, and return their number.

    A tensor that something changes in place keeps its branches where they are.

    Args:
        model: a trace in evaluation mode; it is changed in place. Another module stays as it is.
    """
    if not isinstance(model, fx.GraphModule):
        return 0
    count = 0
    for node in list(model.graph.nodes):
        for fork, branches in _meeting_at(model, node).items():
            for index, nodes in enumerate(branches[:_STREAMS]):
                _move(model, fork, nodes, node, count, index)
                count += 1
    model.delete_all_unused_submodules()
    model.recompile()
    return count


def _meeting_at(model: fx.GraphModule, node: fx.Node) -> dict[fx.Node, list[list[fx.Node]]]:
    """Return the branches that meet others at a node, by the tensor that they leave, less the one that stays."""
    given = node.all_input_nodes
    rows: dict[fx.Node, list[list[fx.Node]]] = defaultdict(list)
    for each in given:
        fork, nodes = _followed(each)
        if nodes and not any(changes_in_place(model, user) for user in fork.users):
            rows[fork].append(nodes)
    found = {}
    for fork, branches in rows.items():
        ends = {nodes[-1] for nodes in branches}
        if not any(_depends(each, fork) for each in given if each not in ends):  # nothing else to stay for
            branches = sorted(branches, key=len)[:-1]
        if branches:
            found[fork] = branches
    return found


def _depends(node: fx.Node, on: fx.Node) -> bool:
    """Tell whether a node is computed, directly or not, from another one."""
    seen: set[fx.Node] = set()
    waiting = [*node.all_input_nodes]
    while waiting:
        each = waiting.pop()
        if each is on:
            return True
        if each not in seen:
            seen.add(each)
            waiting += each.all_input_nodes
    return False


def _followed(node: fx.Node) -> tuple[fx.Node, list[fx.Node]]:
    """Return the tensor that the branch which ends at a node leaves, and the nodes of the branch."""
    nodes: list[fx.Node] = []
    while len(node.users) == 1 and node.op == "call_module" and not node.kwargs and len(node.args) == 1:
        before = node.args[0]
        if not isinstance(before, fx.Node):
            break
        nodes.insert(0, node)
        node = before
    return node, nodes


def _move(
    model: fx.GraphModule, fork: fx.Node, nodes: list[fx.Node], meeting: fx.Node, number: int, index: int
) -> None:
    names = f"branch_{number}", f"meeting_{number}"
    modules = Branch([model.get_submodule(str(node.target)) for node in nodes], index), Meeting(index)
    for name, module in zip(names, modules, strict=True):
        model.add_submodule(name, module)
    with model.graph.inserting_after(fork):
        begun = model.graph.call_module(names[0], (fork,))
    with model.graph.inserting_before(meeting):
        met = model.graph.call_module(names[1], (begun, fork))
    meeting.replace_input_with(nodes[-1], met)
    for node in reversed(nodes):
        model.graph.erase_node(node)
