"""Tests of the Triton kernels by Triton's interpreter, on a CPU: TRITON_INTERPRET=1 is set before triton is imported.

`tests/kernels/test_imports.py` runs them in a process of their own; without the variable nothing here is collected.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

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
