"""A running cluster through the library: its network, hosts and jobs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import hopsum
from hopsum.protocol.channel import ControllerError
from tests.support.controller_service import RunningController

NETWORK = hopsum.star(4)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[hopsum.Cluster]:
    with RunningController(tmp_path / "c.sock", NETWORK) as running:
        yield hopsum.connect(running.address)


def test_its_network_and_hosts(cluster: hopsum.Cluster) -> None:
    assert cluster.network == NETWORK
    assert [row["host"] for row in cluster.hosts] == list(NETWORK.hosts)
    assert not any(row["agent"] for row in cluster.hosts)
    assert list(cluster.jobs) == []


def test_a_job_is_submitted_and_cancelled(cluster: hopsum.Cluster) -> None:
    job = cluster.submit("mine", ["h1", "h2"], servers=["h4"], elements=1000)
    assert job.state == "waiting"
    (row,) = cluster.jobs
    assert (row["name"], row["workers"], row["servers"]) == ("mine", ["h1", "h2"], ["h4"])
    assert cluster.job("mine") == cluster.job(job.number) == job
    with pytest.raises(TimeoutError, match=r"job mine is waiting after 0\.1 s"):
        job.wait(0.1)
    assert job.cancel()["state"] == "cancelled"
    assert job.wait()["state"] == "cancelled"


def test_unknown_jobs_and_impossible_ones_are_errors(cluster: hopsum.Cluster) -> None:
    with pytest.raises(ControllerError, match="no job other"):
        cluster.job("other")
    with pytest.raises(ControllerError, match="h9"):
        cluster.submit("mine", ["h9"])
    with pytest.raises(hopsum.InputError, match="int31"):
        cluster.submit("mine", ["h1"], dtype="int31")
    assert list(cluster.jobs) == []


def test_without_a_controller_there_is_no_cluster(tmp_path: Path) -> None:
    with pytest.raises(ControllerError):
        hopsum.connect(f"unix:{tmp_path / 'none.sock'}")
