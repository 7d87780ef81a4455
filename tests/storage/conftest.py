"""One server for the runs that tests kill, or take the disk away from."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from fakes.killing import Victims, mount_namespaces


@pytest.fixture(scope="package")
def victims() -> Iterator[Victims]:
    with Victims(namespace=mount_namespaces()) as made:
        yield made
