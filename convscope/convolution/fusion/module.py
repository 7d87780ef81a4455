"""Convolution with what follows it as one module, which cuDNN computes in one call on a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from convscope.convolution.operator import cuda_operator
from convscope.cudnn.shape import Fused, output_extents
from convscope.errors import InputError


class FusedConv2d(nn.Conv2d):
    """A convolution, an addition where `forward` gets one, the bias and ReLU.

    "torch" is PyTorch's own fused call of cuDNN, which ends with ReLU. It has none for float64, on a CPU, under
    autocast, where a gradient is wanted, and for an addition that is broadcast or of another type: there the steps
    follow each other.

    Args:
        conv: whose parameters it shares.
        fused: what follows; the bias is among it where `conv` has one.
        algorithm: by name, "torch" or a plan of cuDNN's graph API.
    """

    def __init__(self, conv: nn.Conv2d, fused: Fused, algorithm: str = "torch") -> None:
        assert fused.bias == (conv.bias is not None), "the bias is one of the steps"
        sizes = conv.in_channels, conv.out_channels, conv.kernel_size, conv.stride, conv.padding, conv.dilation
        super().__init__(*sizes, conv.groups, bias=fused.bias, device="meta")  # type: ignore[arg-type]
        self.weight, self.bias = conv.weight, conv.bias
        self.fused, self.algorithm = fused, algorithm
        self.train(conv.training)

    def with_algorithm(self, algorithm: str) -> FusedConv2d:
        """Return the same by another algorithm; the parameters are shared."""
        return FusedConv2d(self, self.fused, algorithm)

    def forward(self, input: torch.Tensor, added: torch.Tensor | None = None) -> torch.Tensor:
        """Return relu(convolution + added + bias), of these what is fused; N × C × H × W.

        Raises:
            InputError: nothing is given to be added where an addition is fused, or something is where none is.
            NotSupportedError: cuDNN refuses the plan.
        """
        if (added is not None) != self.fused.addition:
            takes = "its input and what is added" if self.fused.addition else "its input alone"
            raise InputError(f"{self.fused} is fused with this convolution: it takes {takes}")
        if self.algorithm != "torch":
            padding, stride, dilation = (tuple(each) for each in (self.padding, self.stride, self.dilation))
            sizes: Any = padding, stride, dilation, self.groups
            return cuda_operator().fused(input, self.weight, self.bias, added, sizes, self.fused, self.algorithm)
        options: Any = self.stride, self.padding, self.dilation, self.groups
        if not self.fused.relu or not self._has_fused_call(input, added):
            y = nn.functional.conv2d(input, self.weight, self.bias, *options)
            y = y if added is None else y + added
            return torch.relu(y) if self.fused.relu else y
        if added is None:
            return torch.cudnn_convolution_relu(input, self.weight, self.bias, *options)
        return torch.cudnn_convolution_add_relu(input, self.weight, added, 1.0, self.bias, *options)

    def output_size(self, size: Sequence[int]) -> torch.Size:
        """Return N × K × height × width of the convolution's output for an input of this size."""
        padding: Any = self.padding
        extents = output_extents(size[-2:], self.kernel_size, padding, self.stride, self.dilation)
        return torch.Size((*size[:-3], self.out_channels, *extents))

    def _has_fused_call(self, input: torch.Tensor, added: torch.Tensor | None) -> bool:
        if not input.is_cuda or input.dtype == torch.float64 or torch.is_autocast_enabled("cuda"):
            return False
        if added is not None and (added.shape, added.dtype) != (self.output_size(input.shape), input.dtype):
            return False
        return not wants_gradient(input, self.weight, self.bias, added)


def wants_gradient(*tensors: torch.Tensor | None) -> bool:
    """Tell whether a gradient of one of these tensors is wanted."""
    return torch.is_grad_enabled() and any(tensor is not None and tensor.requires_grad for tensor in tensors)
