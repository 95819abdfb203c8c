"""A controller that hangs, or cannot be reached, costs no job anything; lost workers do."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from hopsum.simulation.cluster import VirtualCluster
from hopsum.simulation.faults import Outage, OutageKind
from tests.support.virtual_cluster import details, exact, run, running, state, submit

pytestmark = pytest.mark.slow

ROUNDS_A_SECOND = 18
"""More than a job here sums in a second, so that it outlasts an absence."""


async def outlive(cluster: VirtualCluster, trouble: OutageKind, what: str, seconds: float) -> None:
    """Run a job through an outage; expect exact sums under its first plan."""
    await submit(cluster, "a", "h1,h2,h3", rounds=int(ROUNDS_A_SECOND * seconds))
    await running(cluster, "a", 2)
    now = cluster.queue.now
    cluster.plan(Outage(trouble, what, now, now + seconds))
    await asyncio.sleep(seconds + 0.01)
    assert state(cluster, "a") == "running"
    job = await exact(cluster, "a")
    assert trouble is OutageKind.MANAGEMENT_CUT or job.epoch == 1


@pytest.mark.parametrize("seconds", [15.0, 35.0])
def test_a_controller_that_hangs_costs_a_job_nothing(tmp_path: Path, seconds: float) -> None:
    async def test(cluster: VirtualCluster) -> None:
        await outlive(cluster, OutageKind.CONTROLLER_HANGS, "", seconds)

    run(tmp_path, "star:4", test)


@pytest.mark.parametrize(("what", "seconds"), [("h1", 15.0), ("ps", 20.0), ("", 15.0)])
def test_a_cut_of_the_management_network_costs_a_job_nothing(
    tmp_path: Path, what: str, seconds: float
) -> None:
    trouble = OutageKind.PARTED if what else OutageKind.MANAGEMENT_CUT

    async def test(cluster: VirtualCluster) -> None:
        await outlive(cluster, trouble, what, seconds)

    run(tmp_path, "star:4", test)


def test_an_agent_that_was_away_at_its_jobs_end_learns_how_it_ended(tmp_path: Path) -> None:
    async def test(cluster: VirtualCluster) -> None:
        await submit(cluster, "good", "h1,h2", rounds=60)
        await submit(cluster, "bad", "h1,h3", rounds=400)
        ps, h1 = (cluster.hosts[host].agent.agent for host in ("ps", "h1"))
        await running(cluster, "good", 2)
        await running(cluster, "bad", 2)
        cluster.wire("ps").part()
        await exact(cluster, "good")
        cluster.wire("h1").part()
        cluster.crash_host("h3")
        await cluster.until(lambda: state(cluster, "bad") == "failed", "the job's failure", 10.0)
        # They have given up their streams, which had the news.
        await asyncio.sleep(12.0)
        cluster.wire("ps").join()
        cluster.wire("h1").join()
        await cluster.until(lambda: not ps.members and not h1.members, "the ends", 20.0)
        assert [*ps.failures] == [*h1.failures] == [2]
        for agent in (ps, h1):
            why = "job bad has failed: h3: its connection ended"
            assert str(agent.failures[2]).startswith(f"rejected by the controller: {why}")

    run(tmp_path, "star:4", test)


@pytest.mark.parametrize("seconds", [0.0, 20.0])
def test_a_worker_that_dies_while_the_controller_hangs_fails_its_job_by_name(
    tmp_path: Path, seconds: float
) -> None:
    """Every other agent leaves the job, and says why."""

    async def test(cluster: VirtualCluster) -> None:
        await submit(cluster, "a", "h1,h2,h3", rounds=int(ROUNDS_A_SECOND * seconds) + 100)
        await running(cluster, "a", 2)
        if seconds:
            cluster.hang_controller()
        await asyncio.sleep(seconds / 2)
        cluster.crash_host("h2")
        await asyncio.sleep(seconds / 2)
        if seconds:
            cluster.resume_controller()
        began = cluster.queue.now
        await cluster.until(lambda: state(cluster, "a") == "failed", "the job's failure", 10.0)
        assert "h2" in (await details(cluster, "a")).reason
        assert cluster.queue.now - began < 10.0
        agents = [cluster.hosts[host].agent.agent for host in ("h1", "h3", "ps")]
        await cluster.until(lambda: not any(agent.members for agent in agents), "their ends", 5.0)

    run(tmp_path, "star:4", test)
