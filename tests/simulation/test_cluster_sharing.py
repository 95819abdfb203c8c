"""Jobs that want the same slots, in virtual time."""

from __future__ import annotations

import asyncio
from fractions import Fraction
from pathlib import Path

import pytest

from hopsum.controller.jobs.job_state import JobState
from hopsum.controller.jobs.priorities import ONE_LEVEL
from hopsum.controller.jobs.sharing import SharingPolicy
from hopsum.host_agent.node.client import process_job
from hopsum.protocol import hopsum_pb2 as pb
from hopsum.protocol.tos import level_of_tos
from hopsum.simulation.cluster import VirtualCluster
from hopsum.simulation.processes import Process
from tests.support.departures import Departures
from tests.support.virtual_cluster import (
    all_free,
    attached,
    details,
    exact,
    run,
    running,
    state,
    submit,
)

TOS_AT = 15


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
        assert cluster.controller is not None
        plans = cluster.controller.plans
        await cluster.until(lambda: not plans.bypassed(low.job), "its return to the switches")
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
        assert cluster.controller is not None
        node = cluster.controller.nodes.node("h1")
        await cluster.until(lambda: node.report and node.report.jobs, "a report on the job")
        assert node.report is not None
        assert node.report.jobs[0].summed_bytes == 4 * 256 * node.report.jobs[0].round > 0
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


@pytest.mark.slow
def test_queued_jobs_are_withdrawn_when_their_submitters_are_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One job whose submitter stops polling, and one whose submitting process has exited."""

    async def test(cluster: VirtualCluster) -> None:
        await cluster.until(lambda: attached(cluster), "the agents")
        holding = process_job("first", ["h1", "h2"])
        holding.window = 64
        await cluster.people.Submit(holding)
        persons = await submit(cluster, "persons", "h1,h2", window=64, awaited=True)
        training = await cluster.people.Submit(process_job("training", ["h1", "h2"]))
        assert persons.state == training.state == JobState.QUEUED
        submitted = [training.job]
        host = cluster.hosts["h1"].agent
        monkeypatch.setattr(host, "awaited", lambda: submitted)
        end = host.connect(lambda: None)
        process = Process(end)
        process.say({"kind": "attend", "job": training.job, "rank": 0})
        host.hear()
        for _ in range(40):
            await asyncio.sleep(1.0)
            await cluster.people.JobDetails(pb.JobQuery(job=persons.job, awaited=True))
        assert state(cluster, "persons") == state(cluster, "training") == JobState.QUEUED
        submitted.clear()
        await cluster.until(lambda: state(cluster, "training") == JobState.CANCELLED, "it", 2.0)
        why = "withdrawn: the process on h1 that submitted it is gone"
        assert (await details(cluster, "training")).reason == why
        over = f"job {training.job} is over on host h1: {why}"
        await asyncio.sleep(0.1)
        assert {"kind": "ended", "why": over} in process.hear()
        end.close()
        await cluster.until(lambda: state(cluster, "persons") == JobState.CANCELLED, "its", 31.0)
        assert "has not been heard of for" in (await details(cluster, "persons")).reason
        assert state(cluster, "first") == JobState.RUNNING

    run(tmp_path, "star:4", test, slots=64, policies={"sharing": SharingPolicy(Fraction(1))})


@pytest.mark.slow
def test_short_iterations_have_the_first_level_no_longer_than_ten(tmp_path: Path) -> None:
    """Though hosts report their progress once a second only."""
    levels: dict[int, set[int]] = {}

    async def test(cluster: VirtualCluster) -> None:
        def note(source: str, frame: bytes) -> None:
            if source in ("h1", "h2"):
                members = cluster.hosts[source].agent.agent.members
                if 1 in members:
                    levels.setdefault(members[1].round, set()).add(level_of_tos(frame[TOS_AT]))

        cluster.world.observers = (Departures(note),)
        await submit(cluster, "a", "h1,h2", rounds=40)
        await exact(cluster, "a")

    run(tmp_path, "star:3", test)
    assert set().union(*(levels[summed] for summed in range(10))) == {0}
    assert set().union(*(levels[summed] for summed in range(10, 40))) <= {1, 2}
