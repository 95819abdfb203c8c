"""Jobs in Mininet that want the same slots: one gives way for a while."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cli.job_commands import make_submission
from cli.main import app
from controller.jobs.priorities import PriorityPolicy
from network.loaders import load_network, save_network
from tests.support.emulated_cluster import Running, emulated_cluster

pytestmark = pytest.mark.network

ELEMENTS = 20_000


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Running]:
    """One whose switches have slots for a single job; slow links let the jobs take their time."""
    file = tmp_path / "network.json"
    save_network(load_network("leaf-spine:2x2x1", link_rate="12Mbit", slots=64), file)
    with emulated_cluster(tmp_path, str(file), "--quota", "1") as running:
        yield running


def test_a_new_job_takes_the_slots_of_one_that_has_run_for_long(
    cluster: Running,
) -> None:
    """The older one bypasses the switches for a while and sums there again; both are exact."""

    def submit(name: str, rounds: int) -> None:
        cluster.queries.submit(make_submission(name, "h1,h2,h3", elements=ELEMENTS, rounds=rounds))

    submit("old", 250)
    early = PriorityPolicy().early_iterations
    cluster.wait_until(
        lambda: least_reported(cluster, ("h1", "h2", "h3")) >= early, "a lower level of old"
    )
    submit("new", 20)
    old = cluster.job("old")
    assert (old["epoch"], old["bypasses"]) == (2, ["l1"])
    # Not as a process: it might start when the new job is over.
    assert "bypasses l1" in CliRunner().invoke(app, ["jobs"]).stdout
    assert cluster.job("new")["state"] in ("waiting", "running")
    cluster.finished("new")
    assert cluster.job("old")["state"] == "running"
    cluster.wait_until(lambda: not cluster.job("old")["bypasses"], "old's return to the switches")
    old = cluster.finished("old")
    assert old["epoch"] == 3
    assert old["checked"] == 3 * ELEMENTS * 250


def least_reported(cluster: Running, hosts: tuple[str, ...]) -> int:
    """The rounds that all of these hosts have reported of their job."""
    reports = {node.host: node.report for node in cluster.queries.nodes()}
    return min(max((job.round for job in reports[host].jobs), default=0) for host in hosts)
