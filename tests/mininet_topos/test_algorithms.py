"""Every algorithm between real processes, over real links: a job of a cluster each."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cli.job_commands import make_submission
from collectives.choices import SCHEDULE_NAMES, DataType
from tests.support.emulated_cluster import Running, emulated_cluster

pytestmark = pytest.mark.network

WORKERS = {"star:3": 3, "leaf-spine:2x2": 4}
ELEMENTS = 20_001
ROUNDS = 2


@pytest.fixture(scope="module", params=WORKERS)
def topology(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def cluster(topology: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("cluster")
    with emulated_cluster(folder, topology, "--link-rate", "25Mbit") as running:
        yield running


@pytest.mark.parametrize("dtype", DataType)
@pytest.mark.parametrize("algorithm", [*SCHEDULE_NAMES, "server", "in-network"])
def test_every_algorithm_sums_exactly(
    cluster: Running, topology: str, algorithm: str, dtype: DataType
) -> None:
    workers, name = WORKERS[topology], f"{algorithm}-{dtype}"
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
