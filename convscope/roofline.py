"""What a convolution must do at least: operations and bytes, counted from its shape alone."""

from __future__ import annotations

from convscope.records import Layer

ELEMENT_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}


def flops(layer: Layer) -> int:
    """Return the floating-point operations of a layer's forward pass by the direct definition.

    A multiply and an add count as two; the bias adds one for each output. Fast algorithms (FFT, Winograd) do fewer:
    this is the work asked for, the same for every algorithm, so that rates compare.
    """
    taps = layer.kernel[0] * layer.kernel[1] * layer.in_channels // layer.groups
    return output_elements(layer) * (2 * taps + int(layer.bias))


def minimum_bytes(layer: Layer, element_bytes: int = 4) -> int:
    """Return the bytes that must cross the memory at least: input, weights and bias read once, output written once."""
    weights = layer.out_channels * layer.in_channels // layer.groups * layer.kernel[0] * layer.kernel[1]
    inputs = layer.batch * layer.in_channels * layer.in_height * layer.in_width
    bias = layer.out_channels * int(layer.bias)
    return (weights + inputs + bias + output_elements(layer)) * element_bytes


def output_elements(layer: Layer) -> int:
    """Return the number of elements of a layer's output, batch × channels × height × width."""
    return layer.batch * layer.out_channels * layer.out_height * layer.out_width
