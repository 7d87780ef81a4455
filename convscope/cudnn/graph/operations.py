"""The operations of a convolution as cuDNN's graph API takes them, alone or with what follows fused into it."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

from convscope.cudnn.graph.backend import Attribute, Descriptor, Kind, Scope, Type
from convscope.cudnn.graph.devices import Device
from convscope.cudnn.legacy import strides
from convscope.cudnn.library import CROSS_CORRELATION, DATA_TYPES
from convscope.cudnn.shape import Convolution

_ADD, _RELU, _SWISH = 0, 100, 106  # cudnnPointwiseMode_t
ALIGNED_BYTES = 16
"""Of the addresses of all tensors; plans that want more are not offered."""


class Tensor(IntEnum):
    """The numbers of a graph's tensors: input, filters, output, bias, what is added, and what lies between."""

    X = 1
    W = 2
    Y = 3
    BIAS = 4
    ADDED = 5
    BETWEEN = 10


def graph_of(scope: Scope, convolution: Convolution, device: Device) -> Descriptor:
    """Return the operation graph of a convolution and of what follows it: tensors contiguous, sums in float32.

    float32 has no attribute for TF32 here: a plan that uses it has the note "tensor core".
    """
    return _Builder(scope, convolution, device).graph()


class _Builder:
    """Puts the operations of one convolution together."""

    def __init__(self, scope: Scope, convolution: Convolution, device: Device) -> None:
        self._scope, self._convolution, self._device = scope, convolution, device
        self._sums = DATA_TYPES["float64" if convolution.dtype == "float64" else "float32"]
        self._between = 0

    def graph(self) -> Descriptor:
        asked, fused = self._convolution, self._convolution.fused
        forward = self._scope.new(Kind.CONVOLUTION_FORWARD)
        scalar = Type.DOUBLE if asked.dtype == "float64" else Type.FLOAT
        forward.set(Attribute.FORWARD_ALPHA, scalar, 1.0).set(Attribute.FORWARD_BETA, scalar, 0.0)
        forward.set(Attribute.FORWARD_CONVOLUTION, Type.DESCRIPTOR, self._described())
        forward.set(Attribute.FORWARD_X, Type.DESCRIPTOR, self._tensor(Tensor.X, asked.input))
        forward.set(Attribute.FORWARD_W, Type.DESCRIPTOR, self._tensor(Tensor.W, asked.weight))
        left = fused.count
        result = self._result(left)
        operations = [forward.set(Attribute.FORWARD_Y, Type.DESCRIPTOR, result).finalized()]
        per_filter = (1, asked.out_channels, *(1 for _ in asked.size))
        added = [(Tensor.ADDED, asked.output)] * fused.addition + [(Tensor.BIAS, per_filter)] * fused.bias
        for number, shape in added:
            left -= 1
            given, result = result, self._result(left)
            operations.append(self._pointwise(_ADD, given, result, self._tensor(number, shape)))
        for mode in [_RELU] * fused.relu + [_SWISH] * fused.swish:
            left -= 1
            given, result = result, self._result(left)
            operations.append(self._pointwise(mode, given, result))
        graph = self._scope.new(Kind.OPERATION_GRAPH)
        self._device.name_to_graph(graph)
        return graph.set(Attribute.GRAPH_OPERATIONS, Type.DESCRIPTOR, *operations).finalized()

    def _described(self) -> Descriptor:
        asked, described = self._convolution, self._scope.new(Kind.CONVOLUTION)
        described.set(Attribute.CONVOLUTION_COMPUTE_TYPE, Type.DATA_TYPE, self._sums)
        described.set(Attribute.CONVOLUTION_MODE, Type.CONVOLUTION_MODE, CROSS_CORRELATION)
        described.set(Attribute.CONVOLUTION_DIMENSIONS, Type.INT64, len(asked.size))
        described.set(Attribute.CONVOLUTION_DILATIONS, Type.INT64, *asked.dilation)
        described.set(Attribute.CONVOLUTION_STRIDES, Type.INT64, *asked.stride)
        described.set(Attribute.CONVOLUTION_PRE_PADDINGS, Type.INT64, *asked.padding)
        return described.set(Attribute.CONVOLUTION_POST_PADDINGS, Type.INT64, *asked.padding).finalized()

    def _result(self, left: int) -> Descriptor:
        """Return the output of an operation after which so many are left: the last is the graph's."""
        if not left:
            return self._tensor(Tensor.Y, self._convolution.output)
        self._between += 1
        return self._tensor(Tensor.BETWEEN + self._between, self._convolution.output, virtual=True)

    def _tensor(self, number: int, shape: Sequence[int], virtual: bool = False) -> Descriptor:
        asked, tensor = self._convolution, self._scope.new(Kind.TENSOR)
        data_type = self._sums if virtual else DATA_TYPES[asked.dtype]
        tensor.set(Attribute.TENSOR_TYPE, Type.DATA_TYPE, data_type)
        tensor.set(Attribute.TENSOR_SIZES, Type.INT64, *shape)
        layout = "nhwc" if asked.packed and number == Tensor.W else asked.layout
        tensor.set(Attribute.TENSOR_STRIDES, Type.INT64, *strides(shape, layout))
        tensor.set(Attribute.TENSOR_NUMBER, Type.INT64, int(number))
        tensor.set(Attribute.TENSOR_ALIGNMENT, Type.INT64, ALIGNED_BYTES)
        return tensor.set(Attribute.TENSOR_IS_VIRTUAL, Type.BOOLEAN, virtual).finalized()

    def _pointwise(
        self, mode: int, given: Descriptor, result: Descriptor, other: Descriptor | None = None
    ) -> Descriptor:
        described = self._scope.new(Kind.POINTWISE).set(Attribute.POINTWISE_MODE, Type.POINTWISE_MODE, mode)
        described.set(Attribute.POINTWISE_MATH_TYPE, Type.DATA_TYPE, self._sums).finalized()
        operation = self._scope.new(Kind.OPERATION_POINTWISE)
        operation.set(Attribute.OPERATION_POINTWISE, Type.DESCRIPTOR, described)
        operation.set(Attribute.OPERATION_POINTWISE_X, Type.DESCRIPTOR, given)
        if other is not None:
            operation.set(Attribute.OPERATION_POINTWISE_B, Type.DESCRIPTOR, other)
        return operation.set(Attribute.OPERATION_POINTWISE_Y, Type.DESCRIPTOR, result).finalized()
