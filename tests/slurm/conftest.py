"""One SLURM for all tests in this folder, and the jobs that run in it side by side while the tests look at them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from slurm_cluster import Cluster, NoSlurmError
from slurm_flows import Flows, Limited, limited_job, submitted


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
def flows(cluster: Cluster) -> Flows:
    """Submit what takes time."""
    return submitted(cluster)


@pytest.fixture(scope="session")
def limited(cluster: Cluster) -> Iterator[Limited]:
    """Submit a job that comes to its time limit."""
    with limited_job(cluster) as job:
        yield job
