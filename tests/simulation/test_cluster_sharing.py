"""Jobs that want the same slots, in virtual time."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import pytest

from controller.jobs.job_state import JobState
from controller.jobs.priorities import ONE_LEVEL
from controller.jobs.sharing import SharingPolicy
from protocol import hopsum_pb2 as pb
from simulation.cluster import VirtualCluster
from tests.support.virtual_cluster import all_free, details, exact, run, running, submit


@pytest.mark.slow
def test_a_job_of_higher_priority_takes_slots_of_another(tmp_path: Path) -> None:
    """The older one bypasses the switches for a while and sums there again; both are exact."""

    async def test(cluster: VirtualCluster) -> None:
        low = await submit(cluster, "low", "h1,h2", "ps", rounds=125, window=64)
        await running(cluster, "low")
        # The longer a job has run, the lower its level.
        await cluster.until(lambda: level(cluster, low.job) > 0, "a lower level")
        high = await submit(cluster, "high", "h1,h3", "ps", rounds=5, window=64)
        assert high.state != JobState.QUEUED
        old = await details(cluster, "low")
        assert (old.epoch, old.bypassed) == (2, ["l1"])
        await exact(cluster, "high")
        assert (await details(cluster, "low")).state == JobState.RUNNING
        manager = cluster.controller.manager if cluster.controller else None
        assert manager is not None
        await cluster.until(lambda: not manager.bypassed(low.job), "its return to the switches")
        assert (await exact(cluster, "low")).epoch == 3

    run(
        tmp_path,
        "leaf-spine:2x2x1",
        test,
        slots=64,
        policies={"sharing": SharingPolicy(Fraction(1))},
    )


def level(cluster: VirtualCluster, job: int) -> int:
    assert cluster.controller is not None
    return cluster.controller.priorities.levels().get(job, 0)


@pytest.mark.slow
def test_a_queued_job_starts_when_a_cancelled_one_has_gone(tmp_path: Path) -> None:
    async def test(cluster: VirtualCluster) -> None:
        first = await submit(cluster, "first", "h1,h2", rounds=3000, window=64)
        await running(cluster, "first")
        second = await submit(cluster, "second", "h1,h2", window=64)
        assert second.state == JobState.QUEUED
        assert "slots" in second.reason
        gone = await cluster.people.Cancel(pb.JobQuery(name="first"))
        assert (gone.state, gone.reason) == (JobState.CANCELLED, "cancelled by its owner")
        await exact(cluster, "second")
        await all_free(cluster)
        assert all(first.job not in host.agent.agent.members for host in cluster.hosts.values())

    run(
        tmp_path,
        "star:4",
        test,
        slots=64,
        policies={"sharing": SharingPolicy(Fraction(1)), "priorities": ONE_LEVEL},
    )
