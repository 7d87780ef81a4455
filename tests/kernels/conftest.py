"""The list of kernels that were compiled for Hopper, for the tests of what the compiler makes of them."""

from __future__ import annotations

from typing import Any

import pytest
from fakes import hopper


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return the list that every kernel launched from here on is added to, compiled in place of launched."""
    return hopper.compiling(monkeypatch)
