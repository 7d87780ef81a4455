"""Everything in this folder needs an NVIDIA GPU: `make gpu-test`, or `pytest -m gpu`."""

from pathlib import Path

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.gpu)
