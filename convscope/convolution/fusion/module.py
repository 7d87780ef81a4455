"""Convolution with what follows it as one module, which cuDNN computes in one call on a GPU."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from convscope.convolution.operator import cuda_operator
from convscope.cudnn.shape import Fused


class FusedConv2d(nn.Conv2d):
    """A convolution, an addition where `forward` gets one, the bias and ReLU.

    "torch" is PyTorch's own fused call of cuDNN, which ends with ReLU; it has none for float64 and on a CPU, and there
    the steps follow each other.

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
            NotSupportedError: cuDNN refuses the plan.
        """
        if self.algorithm != "torch":
            padding, stride, dilation = (tuple(each) for each in (self.padding, self.stride, self.dilation))
            sizes: Any = padding, stride, dilation, self.groups
            return cuda_operator().fused(input, self.weight, self.bias, added, sizes, self.fused, self.algorithm)
        options: Any = self.stride, self.padding, self.dilation, self.groups
        if not self.fused.relu or not input.is_cuda or input.dtype == torch.float64:
            y = nn.functional.conv2d(input, self.weight, self.bias, *options)
            y = y if added is None else y + added
            return torch.relu(y) if self.fused.relu else y
        if added is None:
            return torch.cudnn_convolution_relu(input, self.weight, self.bias, *options)
        return torch.cudnn_convolution_add_relu(input, self.weight, added, 1.0, self.bias, *options)
