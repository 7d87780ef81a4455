"""A model of three convolutions for what does not depend on the model: AlexNet's 61 million weights take a second."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from fakes import tiny


@pytest.fixture(scope="module", autouse=True)
def tiny_model() -> Iterator[None]:
    """Have `torchvision:tiny` among the models."""
    with pytest.MonkeyPatch.context() as patched:
        tiny.register(patched)
        yield
