"""One SLURM for all tests in this folder, and the jobs that run in it side by side while the tests look at them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from slurm_cluster import Cluster, NoSlurmError
from slurm_flows import Flows, submitted


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """Start a SLURM; skip, with the reason, where there is none to be had."""
    try:
        made = Cluster()
    except NoSlurmError as error:
        pytest.skip(str(error))
    try:
        made.start()
        yield made
    except NoSlurmError as error:
        pytest.skip(str(error))
    finally:
        made.stop()


@pytest.fixture(scope="session")
def flows(cluster: Cluster) -> Iterator[Flows]:
    """Submit everything that takes time."""
    with submitted(cluster) as jobs:
        yield jobs
