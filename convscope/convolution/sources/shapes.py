"""Models without Python code: an exported program (`.pt2`), and a table of convolutions (`layers.csv`), shapes alone.

A `.pt2` is trusted as code is: `torch.export.load` unpickles its constants and example inputs.
"""

from __future__ import annotations

import functools
import itertools
import operator
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import fx, nn

from convscope.convolution import names
from convscope.convolution.layer import Layer
from convscope.convolution.sources import table
from convscope.convolution.sources.source import FixedSource, Inputs, Size, checked_batch
from convscope.errors import InputError


class ExportedSource(FixedSource):
    """A program that `torch.export.save` wrote, with the inputs it was exported with.

    Its 2-D convolutions become modules again, named as their weights were, so that they can be given an algorithm.
    """

    def examples(self) -> Inputs | None:
        """Return the inputs that the program was exported with."""
        return self._exported_for[0]

    @property
    def own_batch(self) -> int | None:
        """The batch that the program was exported for, unless that is dynamic."""
        examples, is_dynamic = self._exported_for
        return super().own_batch if is_dynamic else int(examples[0].shape[0])

    def _why_batch(self, own: int) -> str:
        if self._exported_for[1]:
            return super()._why_batch(own)
        return f"{self.name} was exported for batch {own}: say --batch-size {own}, or export it with a dynamic batch"

    @functools.cached_property
    def _exported_for(self) -> tuple[Inputs, bool]:
        """The example inputs, and whether the batch is dynamic."""
        program = self._program()
        arguments, keywords = program.example_inputs or ((), {})
        given = torch.utils._pytree.tree_leaves((arguments, keywords))
        if not given or not all(isinstance(each, torch.Tensor) for each in given):
            raise InputError(f"{self.name} was exported without example inputs that are tensors: export it with them")
        first = next(node for node in program.graph.nodes if node.name in program.graph_signature.user_inputs)
        examples = checked_batch(self.name, tuple(each.detach().cpu() for each in given))
        return examples, not isinstance(first.meta["val"].shape[0], int)

    def _built(self, pretrained: bool) -> nn.Module:
        return with_convolutions(self._program().module())

    def _program(self) -> Any:
        try:
            with warnings.catch_warnings():  # older PyTorch: that what it reads from the file cannot be written
                warnings.filterwarnings("ignore", "The given buffer is not writable")
                return torch.export.load(names.path_of(self.name))
        except Exception as error:
            first = (str(error).splitlines() or [type(error).__name__])[0]
            raise InputError(f"{self.name} is no program of torch.export that can be read: {first}") from None


def with_convolutions(program: nn.Module) -> nn.Module:
    """Return an exported program as a module whose calls of `aten.conv2d` are `nn.Conv2d` modules, weights shared."""
    assert isinstance(program, fx.GraphModule)
    root = fx.GraphModule(program, program.graph)
    for node in list(root.graph.nodes):
        if node.op == "call_module" and node.target == "_guards_fn":  # checks of sizes, which would wait for a GPU
            root.graph.erase_node(node)
        elif node.op == "call_function" and node.target is torch.ops.aten.conv2d.default:
            _replace(root, node, program)
    root.graph.eliminate_dead_code()
    root.recompile()
    return root


def _replace(root: fx.GraphModule, node: fx.Node, program: nn.Module) -> None:
    arguments: list[Any] = [*node.args, *_DEFAULTS[len(node.args) :]]
    given, weight, bias, *extents, groups = arguments
    named = [each.target for each in (weight, bias) if isinstance(each, fx.Node) and each.op == "get_attr"]
    if not isinstance(weight, fx.Node) or weight.op != "get_attr" or (bias is not None and len(named) < 2):
        return  # a filter that is computed
    tensors: list[torch.Tensor] = [operator.attrgetter(str(name))(program) for name in named]
    filters, channels, *kernel = tensors[0].shape
    stride, padding, dilation = map(_pair, extents)
    with torch.device("meta"):
        module = nn.Conv2d(
            channels * groups, filters, _pair(kernel), stride, padding, dilation, groups, bias is not None
        )
    for name, tensor in zip(("weight", "bias"), tensors, strict=False):
        setattr(module, name, tensor if isinstance(tensor, nn.Parameter) else nn.Parameter(tensor, False))
    place = _place(root, [str(name) for name in named])
    root.add_submodule(place, module)
    with root.graph.inserting_before(node):
        node.replace_all_uses_with(root.graph.call_module(place, (given,)))
    root.graph.erase_node(node)


_DEFAULTS: tuple[Any, ...] = (None, None, None, (1, 1), (0, 0), (1, 1), 1)


def _pair(extents: Sequence[int]) -> tuple[int, int]:
    return extents[0], extents[-1]


def _place(root: nn.Module, tensors: Sequence[str]) -> str:
    """Return a name for a convolution of these tensors: their holder's where it holds nothing else, or a free one."""
    path = tensors[0].removesuffix(".weight")
    holder = dict(root.named_modules()).get(path)
    if holder is not None and not isinstance(holder, nn.Conv2d) and not list(holder.children()):
        held = [*holder._parameters, *holder._buffers]
        if {f"{path}.{name}" for name in held} <= set(tensors):
            return path
    repeated = isinstance(holder, nn.Conv2d) and path != tensors[0]  # a filter that is used again
    base = path if repeated else f"{path}_conv"
    parent, _, last = base.rpartition(".")
    among = root.get_submodule(parent)
    numbered = (f"{last}_{number}" for number in itertools.count(2))
    free = next(name for name in itertools.chain([] if repeated else [last], numbered) if not hasattr(among, name))
    return f"{parent}.{free}" if parent else free


class TableSource(FixedSource):
    """Convolutions by their sizes (`table.columns(2)`), each on an input of its own: no network, shapes alone.

    All layers have one batch size. The batch size of a run takes its place where it is 1, and must be it otherwise.
    """

    @property
    def is_network(self) -> bool:
        """False: the layers have nothing to do with each other."""
        return False

    def examples(self) -> Inputs:
        """Return the input of each layer on the meta device, as the table has it."""
        return tuple(torch.empty(layer.input, device="meta") for layer in self._layers)

    @property
    def own_batch(self) -> int | None:
        """The table's batch size, unless 1."""
        batch = self._layers[0].batch
        return batch if batch != 1 else None

    def _why_batch(self, own: int) -> str:
        return f"{self.name} is a table of batch {own}: say --batch-size {own}"

    def inputs(self, size: Size, batch_size: int, seed: int) -> Inputs:
        """Return noise for each layer, in float32 on the CPU."""
        drawn = torch.Generator().manual_seed(seed)
        return tuple(torch.randn(each.shape, generator=drawn) for each in self.input_shapes(size, batch_size))

    def input_shapes(self, size: Size, batch_size: int) -> Inputs:
        """Return the inputs on the meta device."""
        self._check_batch(batch_size)
        every = (layer.resized(batch=batch_size) for layer in self._layers)
        return tuple(torch.empty(layer.input, device="meta") for layer in every)

    @functools.cached_property
    def _layers(self) -> list[Layer]:
        path = names.path_of(self.name)
        try:
            text = Path(path).read_bytes().decode("utf-8-sig")
        except (OSError, ValueError) as error:
            raise InputError(f"{path}: {error}") from None
        layers = table.parse(text, str(path), 2)
        if len(batches := sorted({layer.batch for layer in layers})) > 1:
            shown = ", ".join(map(str, batches))
            raise InputError(f"{path} has layers of batch {shown}: a run has one batch size, so write a table for each")
        return layers

    def _built(self, pretrained: bool) -> nn.Module:
        return LayerTable(self._layers)


class LayerTable(nn.Module):
    """Convolutions beside each other, named as in the table; returns an output for each input."""

    def __init__(self, layers: Sequence[Layer]) -> None:
        super().__init__()
        self._order = [self._added(layer) for layer in layers]

    def _added(self, layer: Layer) -> str:
        base = layer.name.replace(".", "_") or "layer"
        name = next(each for each in (base, f"{base}_{layer.position}") if not hasattr(self, each))
        module = nn.Conv2d(
            layer.in_channels,
            layer.out_channels,
            _pair(layer.kernel),
            _pair(layer.stride),
            _pair(layer.padding),
            _pair(layer.dilation),
            layer.groups,
            bias=False,
        )
        self.add_module(name, module)
        return name

    def forward(self, *inputs: torch.Tensor) -> list[torch.Tensor]:
        """Convolve each input by its layer."""
        return [self.get_submodule(name)(given) for name, given in zip(self._order, inputs, strict=True)]
