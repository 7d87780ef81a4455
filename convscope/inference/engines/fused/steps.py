"""Modules of the engine `fused`: a convolution with its bias, addition and ReLU, products, maxima and means.

Those that are this project's kernels are for channels last on a GPU; other tensors go to the module that they replace.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from convscope.convolution import models
from convscope.cudnn.shape import Fused, output_extents
from convscope.inference.engines.fused import traces


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


class MaximumPooling(nn.Module):
    """`nn.MaxPool2d` by this project's kernel where that takes the tensor: on a GPU, channels last. Else by PyTorch."""

    def __init__(self, pool: nn.MaxPool2d) -> None:
        super().__init__()
        self.pool = pool
        given = pool.kernel_size, pool.stride, pool.padding, pool.dilation
        self._options = [_pair(each) for each in given]

    def _extent(self, size: int, axis: int) -> int:
        """Return the number of windows along an axis; none begins behind the image and its first padding."""
        kernel, stride, padding, dilation = (each[axis] for each in self._options)
        reach = size + 2 * padding - dilation * (kernel - 1) - 1
        count = (-(-reach // stride) if self.pool.ceil_mode else reach // stride) + 1
        return count - 1 if self.pool.ceil_mode and (count - 1) * stride >= size + padding else count

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the maxima of windows."""
        from convscope.kernels.channels_last import pooling  # imports Triton

        kernel, stride, padding, dilation = self._options
        if not x.is_cuda or not pooling.takes(x, kernel):
            pooled: torch.Tensor = self.pool(x)
            return pooled
        size = self._extent(x.shape[2], 0), self._extent(x.shape[3], 1)
        return pooling.max_pool2d(x, kernel, stride, padding, dilation, size)


def _pair(value: int | tuple[int, ...]) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else (value[0], value[-1])


def with_maxima(model: nn.Module) -> int:
    """Put `MaximumPooling` in the place of each `nn.MaxPool2d` that does nothing more; return their number."""
    pools = {
        name: module
        for name, module in model.named_modules()
        if type(module) is nn.MaxPool2d and not module.return_indices and not models.has_hooks(module)
    }
    for name, module in pools.items():
        models.set_module(model, name, MaximumPooling(module))
    return len(pools)


class MeanOfPixels(nn.Module):
    """`nn.AdaptiveAvgPool2d(1)` by this project's kernel where that takes the tensor, else by PyTorch."""

    def __init__(self, pool: nn.AdaptiveAvgPool2d) -> None:
        super().__init__()
        self._pool = pool
        self._mean: Any = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the mean of each channel's pixels, N × C × 1 × 1."""
        from convscope.kernels.channels_last import heads  # imports Triton

        if not x.is_cuda or not heads.takes_images(x):
            pooled: torch.Tensor = self._pool(x)
            return pooled
        self._mean = self._mean or heads.Mean()
        means: torch.Tensor = self._mean(x)
        return means


def with_heads(model: nn.Module) -> int:
    """Put `MeanOfPixels` in the place of means of all pixels; return their number."""
    shared = traces.shared_modules(model)
    found = {
        name: MeanOfPixels(module)
        for name, module in model.named_modules()
        if type(module) is nn.AdaptiveAvgPool2d and module.output_size in (1, (1, 1))
        if not models.has_hooks(module) and name not in shared
    }
    for name, module in found.items():
        models.set_module(model, name, module)
    return len(found)
