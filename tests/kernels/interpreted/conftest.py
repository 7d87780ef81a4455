"""Tests of the Triton kernels by Triton's interpreter, on a CPU: TRITON_INTERPRET=1 is set before triton is imported.

`tests/kernels/test_imports.py` runs them in a process of their own; without the variable nothing here is collected.
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType

import pytest

if os.environ.get("TRITON_INTERPRET") != "1":
    collect_ignore_glob = ["*"]


@pytest.fixture(scope="session", autouse=True)
def sums_of_indices_unchecked(pytestconfig: pytest.Config) -> Iterator[None]:
    """Look for overflows of integers with `-m long` alone: of a launch's time by the interpreter they take 2 / 5."""
    from triton.runtime.interpreter import InterpreterOptions, interpreter_builder

    with pytest.MonkeyPatch.context() as patched:
        if "not long" in pytestconfig.option.markexpr:
            patched.setattr(interpreter_builder, "options", InterpreterOptions(sanitize_overflow=False))
        yield


@functools.cache
def languages(of: Callable[..., object]) -> list[ModuleType]:
    """Return the modules of Triton's language that a kernel or one of its helpers sees."""
    import triton.language as tl

    return [each for each in of.__globals__.values() if inspect.ismodule(each) and each in (tl, tl.core)]


@pytest.fixture(scope="session", autouse=True)
def language_patched_once() -> Iterator[None]:
    """Let helpers find the language as their kernel has patched it: the interpreter patches it at each call."""
    import triton.language as tl
    from triton.runtime import interpreter

    patch = interpreter._patch_lang

    def patched_once(of: Callable[..., object]) -> object:
        if any(tl.core.is_builtin(language.load) for language in languages(of)):
            return patch(of)
        return interpreter._LangPatchScope()

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(interpreter, "_patch_lang", patched_once)
        yield


@pytest.fixture(scope="session", autouse=True)
def types_described_once() -> Iterator[None]:
    """Have what follows from a type found once: the interpreter finds it for each value, for half of its time."""
    import triton.language as tl
    from triton.runtime import interpreter

    describe, make, type_of = tl.block_type.__init__, tl.tensor.__init__, interpreter._get_np_dtype
    of_blocks: dict[tuple[str, tuple[int, ...]], dict[str, object]] = {}
    of_values: dict[str, dict[str, object]] = {}
    of_numpy: dict[str, object] = {}

    def block_type(self: tl.block_type, element_ty: tl.dtype, shape: Sequence[object]) -> None:
        key = str(element_ty), tuple(int(getattr(each, "value", each)) for each in shape)
        if key not in of_blocks:
            describe(self, element_ty, shape)
            of_blocks[key] = dict(vars(self))
        vars(self).update(of_blocks[key])

    def tensor(self: tl.tensor, handle: object, type: tl.dtype) -> None:
        if type.name not in of_values:
            make(self, handle, type)
            of_values[type.name] = dict(vars(self))
        vars(self).update(of_values[type.name], handle=handle)

    def numpy_type(of: tl.dtype) -> object:
        return of_numpy[of.name] if of.name in of_numpy else of_numpy.setdefault(of.name, type_of(of))

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(tl.block_type, "__init__", block_type)
        patched.setattr(tl.tensor, "__init__", tensor)
        patched.setattr(interpreter, "_get_np_dtype", numpy_type)
        yield


@pytest.fixture(scope="session", autouse=True)
def operands_checked_once() -> Iterator[None]:
    """Have a pair of types checked once, and the same number made a constant once: they take a seventh of the time."""
    import triton.language as tl
    from triton.language.semantic import TritonSemantic

    check = TritonSemantic.binary_op_type_checking_impl
    stay: set[tuple[object, ...]] = set()
    constants: dict[tuple[object, ...], tl.tensor] = {}

    def checked(semantic: TritonSemantic, one: object, other: object, *how: object, **named: object) -> object:
        if not isinstance(one, tl.tensor):
            return check(semantic, one, other, *how, **named)
        flags = (*how, *named.items())
        if isinstance(other, tl.tensor):
            key = one.type.name, other.type.name, flags
            if key in stay:
                return one, other
            found = check(semantic, one, other, *how, **named)
            if found[0] is one and found[1] is other:
                stay.add(key)
            return found
        key = one.type.name, type(other), repr(other), flags
        if key in constants:
            return one, constants[key]
        found = check(semantic, one, other, *how, **named)
        if found[0] is one:
            constants[key] = found[1]
        return found

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(TritonSemantic, "binary_op_type_checking_impl", checked)
        yield


@pytest.fixture(scope="session", autouse=True)
def filters_packed_by_pytorch() -> Iterator[None]:
    """Have PyTorch pack filters for 3-D kernels: most programs of a small convolution only fill padding.

    Tests of the kernel that packs them take it from its module before.
    """
    from fakes import packing

    from convscope.kernels.conv3d.copies import filters

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(filters, "pack", packing.packed)
        yield
