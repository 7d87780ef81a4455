"""Products of rows with what follows them, and layer normalisation, for the engine `fused`.

The blocks of ConvNeXt and of vision transformers are fully connected layers over the pixels of an image: a product, an
activation, a factor of each channel, an addition. A factor that does not change is folded into the weights; activation
and addition are one kernel of this project behind a product, or part of one (`own.ChosenConvolution`). Other tensors
than those on a GPU go to PyTorch's steps.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx, nn

from convscope.convolution import models
from convscope.inference.engines.fused import tails, traces

_LAST_TO_FIRST, _FIRST_TO_LAST = (0, 3, 1, 2), (0, 2, 3, 1)


class RowProduct(nn.Module):
    """A fully connected layer of images of one pixel: a product by cuBLAS, the rest in one kernel.

    Args:
        kind: a key of `tails.BY_PYTORCH`.

    Attributes:
        weight: K × C × 1 × 1, those of a 1×1 convolution.
    """

    def __init__(self, linear: nn.Linear, kind: str) -> None:
        super().__init__()
        none = linear.weight.new_zeros(linear.out_features)
        self.weight = nn.Parameter(linear.weight.detach()[:, :, None, None])
        self.bias = linear.bias if linear.bias is not None else nn.Parameter(none)
        self.kind = kind

    def forward(self, x: torch.Tensor, added: torch.Tensor | None = None) -> torch.Tensor:
        """Return activation(x · weightᵀ + bias + added), N × K × 1 × 1 of N × C × 1 × 1."""
        if added is None and (few := few_rows(x, self.weight, self.bias, self.kind)) is not None:
            return few
        rows, weight = x.flatten(1), self.weight.flatten(1)
        if not x.is_cuda or (added is None and not self.kind):
            y = nn.functional.linear(rows, weight, self.bias)[:, :, None, None]
            return tails.by_pytorch(y, added, self.kind)
        return tails.with_tail(nn.functional.linear(rows, weight)[:, :, None, None], self.bias, self.kind, added)


def few_rows(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, kind: str) -> torch.Tensor | None:
    """Return activation(x · weightᵀ + bias), N × K × 1 × 1 of N × C × 1 × 1, by the kernel of few rows.

    None where that does not take the tensors.
    """
    if not x.is_cuda:
        return None
    from convscope.kernels.channels_last import heads  # imports Triton

    rows, factors = x.flatten(1), weight.flatten(1)
    return heads.linear(rows, factors, bias, kind)[:, :, None, None] if heads.takes_rows(rows, factors) else None


class Rows(nn.Module):
    """A fully connected layer over the last dimension of a tensor, by a module for images of one pixel.

    Args:
        channels_first: the output is N × C × H × W, its memory N × H × W × C.
    """

    def __init__(self, product: RowProduct, channels_first: bool) -> None:
        super().__init__()
        self.product = product
        self._outputs, self._channels_first = len(product.weight), channels_first

    def forward(self, x: torch.Tensor, added: torch.Tensor | None = None) -> torch.Tensor:
        """Return activation(x · weightᵀ + bias), or x · weightᵀ + bias + added as PyTorch's addition would."""
        size = (*x.shape[:-1], self._outputs)
        term = self._rows_of(added, size)
        rows = x.reshape(-1, x.shape[-1])[:, :, None, None]
        y: torch.Tensor = (self.product(rows) if term is None else self.product(rows, term)).view(size)
        y = y.permute(_LAST_TO_FIRST) if self._channels_first else y
        return y if added is None or term is not None else y + added

    def _rows_of(self, added: Any, size: tuple[int, ...]) -> torch.Tensor | None:
        """Return what is added as images of one pixel; None where it is none, or has another size."""
        if not isinstance(added, torch.Tensor) or added.dim() != len(size):
            return None
        added = added.permute(_FIRST_TO_LAST) if self._channels_first else added
        return added.reshape(-1, self._outputs)[:, :, None, None] if added.shape == size else None


def normalised(
    x: torch.Tensor, normalized_shape: Sequence[int], weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None, eps: float = 1e-5,
) -> torch.Tensor:  # fmt: skip
    """Return what `torch.nn.functional.layer_norm` does, by this project's kernel where that takes the tensors."""
    if x.is_cuda:
        from convscope.kernels.channels_last import normalisation  # imports Triton

        if weight is not None and bias is not None and normalisation.takes(x, tuple(normalized_shape), weight, bias):
            return normalisation.layer_norm(x, weight, bias, eps)
    return nn.functional.layer_norm(x, normalized_shape, weight, bias, eps)


class Normalisation(nn.Module):
    """`nn.LayerNorm` by `normalised`."""

    def __init__(self, norm: nn.LayerNorm) -> None:
        super().__init__()
        self.weight, self.bias = norm.weight, norm.bias
        self._shape, self._eps = norm.normalized_shape, norm.eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return x normalised over its last dimensions."""
        return normalised(x, self._shape, self.weight, self.bias, self._eps)


def with_rows(model: nn.Module) -> int:
    """Put these modules, and `normalised`, in the place of what they compute in a trace; return their number."""
    if not isinstance(model, fx.GraphModule):
        return 0
    traces.drop_idle(model)
    shared, count = traces.shared_modules(model), 0
    for node in list(model.graph.nodes):
        if node.op == "call_function" and node.target is nn.functional.layer_norm and node.args:
            node.target = normalised
            count += 1
        if node.op != "call_module" or node.target in shared or node.kwargs:
            continue
        module = model.get_submodule(str(node.target))
        if type(module) not in (nn.LayerNorm, nn.Linear) or models.has_hooks(module):
            continue
        if isinstance(module, nn.LayerNorm):
            models.set_module(model, str(node.target), Normalisation(module))
        elif isinstance(module, nn.Linear):
            _put_rows(model, node, module)
        count += 1
    traces.finish(model)
    return count


def _put_rows(model: fx.GraphModule, node: fx.Node, linear: nn.Linear) -> None:
    """Put `Rows` in the place of a fully connected layer and of those nodes behind it that are fused with it."""
    nodes, other = [node], None
    after = _only_user(node)
    if kind := "".join(tails.activation(model, each) for each in after):
        nodes += after
    after = _only_user(nodes[-1])
    if channels_first := any(map(_puts_channels_first, after)):
        nodes += after
    if not kind:
        after = _only_user(nodes[-1])
        factors = [_factors(model, nodes[-1], each, linear.out_features, channels_first) for each in after]
        if factors and factors[0] is not None:
            linear = _scaled(linear, factors[0])
            nodes += after
        after = _only_user(nodes[-1])
        other = traces.addend(model, node, nodes[-1], after[0]) if after else None
        nodes += after if other is not None else []
    models.set_module(model, str(node.target), Rows(RowProduct(linear, kind), channels_first))
    traces.replace(model, nodes, str(node.target), other, node if other is None else nodes[-1])


def _only_user(node: fx.Node) -> list[fx.Node]:
    """Return the only user of a node's output, in a list; an empty list where several use it."""
    return list(node.users) if len(node.users) == 1 else []


def _puts_channels_first(node: fx.Node) -> bool:
    if node.target not in ("permute", torch.permute) or node.kwargs:
        return False
    order = node.args[1:] if len(node.args) == 5 else node.args[1]
    return isinstance(order, Sequence) and tuple(order) == _LAST_TO_FIRST


def _factors(
    model: fx.GraphModule, output: fx.Node, node: fx.Node, outputs: int, channels_first: bool
) -> torch.Tensor | None:
    """Return the constant factors by which a node multiplies each channel of an output; None where it does not."""
    if node.target not in (operator.mul, torch.mul, "mul") or node.kwargs or len(node.args) != 2:
        return None
    constants = [_constant(model, term) for term in node.args if term is not output]
    if len(constants) != 1 or constants[0] is None:
        return None
    size = tuple(constants[0].shape)  # of more dimensions than the output's, it would give it some
    fits = size in ((outputs, 1, 1), (1, outputs, 1, 1)) if channels_first else size == (outputs,)
    return constants[0].flatten() if fits else None


def _constant(model: fx.GraphModule, node: Any) -> torch.Tensor | None:
    """Return the parameter or buffer that a node is, perhaps in another shape; None where it is none."""
    if not isinstance(node, fx.Node):
        return None
    if node.op == "call_method" and node.target in ("reshape", "view") and not node.kwargs:
        constant, size = _constant(model, node.args[0]), [each for each in node.args[1:] if isinstance(each, int)]
        is_known = constant is not None and len(size) == len(node.args) - 1
        return constant.reshape(size) if is_known and constant is not None else None
    if node.op != "get_attr":
        return None
    found: Any = model
    for part in str(node.target).split("."):
        found = getattr(found, part)
    return found.detach() if isinstance(found, torch.Tensor) else None


def _scaled(linear: nn.Linear, factors: torch.Tensor) -> nn.Linear:
    """Return a layer whose outputs are multiplied by factors."""
    scaled = nn.Linear(linear.in_features, linear.out_features, device="meta")
    bias = linear.bias if linear.bias is not None else linear.weight.new_zeros(linear.out_features)
    scaled.weight = nn.Parameter((linear.weight * factors[:, None]).detach())
    scaled.bias = nn.Parameter((bias * factors).detach())
    return scaled
