"""Modules that stand for a convolution with its bias, addition and ReLU in the engine `fused`."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from convscope.cudnn.shape import Fused, output_extents


def step_of(conv: nn.Conv2d, fused: Fused, channels: int = 0, products: bool = False) -> nn.Module:
    """Return the module for a convolution that ends with ReLU.

    Args:
        channels: as in `FusedConvolution`.
        products: 1×1 convolutions with stride 1 and no addition become products of matrices.
    """
    is_product = (conv.kernel_size, conv.stride, conv.padding) == ((1, 1), (1, 1), (0, 0))
    return FusedProduct(conv) if products and is_product and not fused.addition else FusedConvolution(conv, channels)


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

    def _output_size(self, x: torch.Tensor) -> tuple[int, ...]:
        stride, padding, dilation, _ = self.options
        return len(self.weight), *output_extents(x.shape[2:], self.weight.shape[2:], padding, stride, dilation)

    def forward(self, x: torch.Tensor, added: torch.Tensor | None = None) -> torch.Tensor:
        """Return relu(convolution(x) + bias + added)."""
        x = self._padded(x)
        if not x.is_cuda or (added is not None and added.shape[1:] != self._output_size(x)):
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
