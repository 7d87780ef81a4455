"""Descriptors of cuDNN's graph API: create, fill, finalize, read. Integers in, no torch.

A descriptor must outlive those that were made from it: a `Scope` holds them, and destroys them in reverse order.
Source: NVIDIA cuDNN backend API reference, `cudnn_graph.h`.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from ctypes import POINTER, byref, c_char_p, c_int, c_int64, c_size_t, c_void_p
from enum import IntEnum
from typing import Any

from convscope.cudnn import library as cudnn
from convscope.errors import CudnnError, NotSupportedError

_ERROR_BYTES = 2048


class Kind(IntEnum):
    """Kinds of descriptors (`cudnnBackendDescriptorType_t`)."""

    POINTWISE = 0
    CONVOLUTION = 1
    ENGINE = 2
    ENGINE_CONFIG = 3
    ENGINE_HEURISTIC = 4
    EXECUTION_PLAN = 5
    KNOB_CHOICE = 7
    CONVOLUTION_FORWARD = 10
    OPERATION_POINTWISE = 13
    OPERATION_GRAPH = 15
    VARIANT_PACK = 16
    TENSOR = 17
    DEVICE_PROPERTIES = 38


class Type(IntEnum):
    """The type of an attribute's values (`cudnnBackendAttributeType_t`)."""

    HANDLE = 0
    DATA_TYPE = 1
    BOOLEAN = 2
    INT64 = 3
    FLOAT = 4
    DOUBLE = 5
    VOID_POINTER = 6
    CONVOLUTION_MODE = 7
    HEURISTIC_MODE = 8
    KNOB_TYPE = 9
    NUMERICAL_NOTE = 11
    POINTWISE_MODE = 14
    DESCRIPTOR = 15
    BEHAVIOR_NOTE = 19
    CHAR = 24


class Attribute(IntEnum):
    """An attribute of a descriptor (`cudnnBackendAttributeName_t`); the first word is the kind's."""

    POINTWISE_MODE = 0
    POINTWISE_MATH_TYPE = 1
    CONVOLUTION_COMPUTE_TYPE = 100
    CONVOLUTION_MODE = 101
    CONVOLUTION_DILATIONS = 102
    CONVOLUTION_STRIDES = 103
    CONVOLUTION_POST_PADDINGS = 104
    CONVOLUTION_PRE_PADDINGS = 105
    CONVOLUTION_DIMENSIONS = 106
    HEURISTIC_MODE = 200
    HEURISTIC_GRAPH = 201
    HEURISTIC_RESULTS = 202
    HEURISTIC_DEVICE = 204
    CONFIG_ENGINE = 300
    CONFIG_KNOBS = 302
    CONFIG_WORKSPACE_BYTES = 303
    PLAN_HANDLE = 400
    PLAN_CONFIG = 401
    PLAN_WORKSPACE_BYTES = 402
    PLAN_DEVICE = 407
    KNOB_TYPE = 600
    KNOB_VALUE = 601
    FORWARD_ALPHA = 700
    FORWARD_BETA = 701
    FORWARD_CONVOLUTION = 702
    FORWARD_W = 703
    FORWARD_X = 704
    FORWARD_Y = 705
    OPERATION_POINTWISE = 750
    OPERATION_POINTWISE_X = 751
    OPERATION_POINTWISE_B = 752
    OPERATION_POINTWISE_Y = 753
    GRAPH_HANDLE = 800
    GRAPH_OPERATIONS = 801
    GRAPH_ENGINE_COUNT = 802
    TENSOR_ALIGNMENT = 900
    TENSOR_TYPE = 901
    TENSOR_SIZES = 902
    TENSOR_STRIDES = 903
    TENSOR_NUMBER = 906
    TENSOR_IS_VIRTUAL = 907
    PACK_NUMBERS = 1000
    PACK_POINTERS = 1001
    PACK_WORKSPACE = 1003
    ENGINE_GRAPH = 1300
    ENGINE_NUMBER = 1301
    ENGINE_NUMERICAL_NOTES = 1303
    ENGINE_BEHAVIOR_NOTES = 1305
    ENGINE_DEVICE = 1307
    DEVICE_HANDLE = 2701
    DEVICE_JSON = 2702


_C_TYPES: dict[Type, Any] = {
    **dict.fromkeys(Type, c_int),
    **dict.fromkeys((Type.HANDLE, Type.VOID_POINTER, Type.DESCRIPTOR), c_void_p),
    Type.INT64: c_int64,
    Type.FLOAT: ctypes.c_float,
    Type.DOUBLE: ctypes.c_double,
    Type.BOOLEAN: ctypes.c_bool,
}

_SIGNATURES: dict[str, list[Any]] = {
    "cudnnBackendCreateDescriptor": [c_int, POINTER(c_void_p)],
    "cudnnBackendDestroyDescriptor": [c_void_p],
    "cudnnBackendFinalize": [c_void_p],
    "cudnnBackendSetAttribute": [c_void_p, c_int, c_int, c_int64, c_void_p],
    "cudnnBackendGetAttribute": [c_void_p, c_int, c_int, c_int64, POINTER(c_int64), c_void_p],
    "cudnnBackendExecute": [c_void_p, c_void_p, c_void_p],
}


@functools.lru_cache(maxsize=1)
def backend() -> ctypes.CDLL:
    """Load cuDNN, and declare the functions of its graph API; CudnnMissingError where this machine has none."""
    loaded = cudnn.library()
    for name, argument_types in _SIGNATURES.items():
        getattr(loaded, name).argtypes = argument_types
        getattr(loaded, name).restype = c_int
    loaded.cudnnGetLastErrorString.argtypes = [c_char_p, c_size_t]
    loaded.cudnnGetLastErrorString.restype = None
    return loaded


def call(name: str, about: str, *arguments: Any) -> None:
    """Call a function of the graph API.

    Args:
        about: what the call is for, in an error.

    Raises:
        NotSupportedError: cuDNN refuses; the message is its status, and its reason where it gives one.
        CudnnError: any other status than success.
    """
    status = getattr(backend(), name)(*arguments)
    if not status:
        return
    said = ctypes.create_string_buffer(_ERROR_BYTES)
    backend().cudnnGetLastErrorString(said, _ERROR_BYTES)
    text = backend().cudnnGetErrorString(status).decode()
    reason = said.value.decode(errors="replace").strip()
    refused = text.startswith("CUDNN_STATUS_NOT_SUPPORTED")
    message = f"{about}: {text}{f' ({reason})' if reason else ''}"
    raise NotSupportedError(message) if refused else CudnnError(message)


class Descriptor:
    """One descriptor; `Scope.new` makes it, and the scope destroys it."""

    def __init__(self, kind: Kind) -> None:
        pointer = c_void_p()
        call("cudnnBackendCreateDescriptor", f"create {kind.name}", int(kind), byref(pointer))
        self.kind, self.address = kind, pointer.value or 0

    def set(self, attribute: Attribute, kind: Type, *values: Any) -> Descriptor:
        """Set an attribute to one value or several; a descriptor stands for its address."""
        plain = [value.address if isinstance(value, Descriptor) else value for value in values]
        array = (_C_TYPES[kind] * len(plain))(*plain)
        given = self.address, int(attribute), int(kind), len(plain), ctypes.cast(array, c_void_p)
        call("cudnnBackendSetAttribute", f"set {attribute.name}", *given)
        return self

    def set_text(self, attribute: Attribute, text: str) -> Descriptor:
        """Set an attribute to a text."""
        content = text.encode()
        given = self.address, int(attribute), int(Type.CHAR), len(content), ctypes.c_char_p(content)
        call("cudnnBackendSetAttribute", f"set {attribute.name}", *given)
        return self

    def finalized(self) -> Descriptor:
        """Finalize it; from now on its attributes can be read and not set."""
        call("cudnnBackendFinalize", f"finalize {self.kind.name}", self.address)
        return self

    def read(self, attribute: Attribute, kind: Type, most: int = 1) -> list[int]:
        """Return the values of an attribute, at most so many (an attribute of one value wants 1 here)."""
        count, array = c_int64(), (_C_TYPES[kind] * most)()
        given = self.address, int(attribute), int(kind), most, byref(count), ctypes.cast(array, c_void_p)
        call("cudnnBackendGetAttribute", f"read {attribute.name}", *given)
        return [int(value) for value in array[: count.value]]

    def read_text(self, attribute: Attribute, most_bytes: int = 2**20) -> str:
        """Return a text."""
        count, text = c_int64(), ctypes.create_string_buffer(most_bytes)
        given = self.address, int(attribute), int(Type.CHAR), most_bytes, byref(count), ctypes.cast(text, c_void_p)
        call("cudnnBackendGetAttribute", f"read {attribute.name}", *given)
        return text.value.decode()

    def count(self, attribute: Attribute) -> int:
        """Return the number of descriptors that an attribute has."""
        found = c_int64()
        given = self.address, int(attribute), int(Type.DESCRIPTOR), 0, byref(found), None
        call("cudnnBackendGetAttribute", f"count {attribute.name}", *given)
        return found.value

    def fill(self, attribute: Attribute, empty: Sequence[Descriptor]) -> int:
        """Fill descriptors, new ones of the attribute's kind, with those that it has; return how many it had."""
        found, array = c_int64(), (c_void_p * len(empty))(*(each.address for each in empty))
        given = self.address, int(attribute), int(Type.DESCRIPTOR), len(empty), byref(found), array
        call("cudnnBackendGetAttribute", f"read {attribute.name}", *given)
        return min(found.value, len(empty))


class Scope:
    """Descriptors that live and end together."""

    def __init__(self) -> None:
        self._every: list[Descriptor] = []

    def new(self, kind: Kind) -> Descriptor:
        """Return a new descriptor, to be destroyed with the scope."""
        self._every.append(Descriptor(kind))
        return self._every[-1]

    def several(self, kind: Kind, count: int) -> list[Descriptor]:
        """Return so many new descriptors."""
        return [self.new(kind) for _ in range(count)]

    def close(self) -> None:
        """Destroy them, the newest first; twice is once."""
        while self._every:
            call("cudnnBackendDestroyDescriptor", "destroy", self._every.pop().address)

    def __enter__(self) -> Scope:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()
