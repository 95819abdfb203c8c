"""Every algorithm between real processes, over real links: a job of a cluster each."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from hopsum.cli.job_commands import make_submission
from hopsum.collectives.choices import SCHEDULE_NAMES, DataType
from tests.support.data_types import OF_HOSTS
from tests.support.emulated_cluster import RunningCluster, emulated_cluster

pytestmark = pytest.mark.network

TOPOLOGY = "leaf-spine:2x2"
WORKERS = (3, 4)
"""Some algorithms do otherwise where the workers are no power of two."""
ELEMENTS = 20_001
ROUNDS = 2


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCluster]:
    folder = tmp_path_factory.mktemp("cluster")
    with emulated_cluster(folder, TOPOLOGY, "--link-rate", "25Mbit") as running:
        yield running


@pytest.mark.parametrize("dtype", OF_HOSTS)
@pytest.mark.parametrize("algorithm", [*SCHEDULE_NAMES, "server", "in-network"])
@pytest.mark.parametrize("workers", WORKERS)
def test_every_algorithm_sums_exactly(
    cluster: RunningCluster, workers: int, algorithm: str, dtype: DataType
) -> None:
    name = f"{algorithm}-{dtype}-{workers}"
    cluster.queries.submit(
        make_submission(
            name,
            str(workers),
            elements=ELEMENTS,
            rounds=ROUNDS,
            algorithm=algorithm,
            dtype=dtype,
        )
    )
    job = cluster.finished(name)
    assert job["checked"] == workers * ROUNDS * ELEMENTS
    assert job["round"] == ROUNDS
