"""Why a job does not get on, as lists of jobs show it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping

import pytest

from hopsum.collectives.plan import JobPlan
from hopsum.controller.dataplane.rules import SwitchRules
from hopsum.controller.jobs.cluster import Cluster
from hopsum.controller.jobs.job_spec import JobSpec
from hopsum.controller.jobs.job_state import JobState
from hopsum.controller.jobs.stall_diagnosis import Progress, why_stalled
from hopsum.controller.jobs.tracker import Tracker
from hopsum.controller.telemetry.diagnosis import (
    condition,
    cut_off,
    link_condition,
    outage,
    used_elements,
)
from hopsum.controller.telemetry.health import DampingPolicy, Health
from hopsum.controller.telemetry.nodes import Nodes
from hopsum.network.loaders import load_network
from hopsum.network.model import Network
from hopsum.planning.model.request import PlanRequest
from hopsum.planning.registry import plan_job
from hopsum.protocol import hopsum_pb2 as pb
from tests.support.jobs import reached
from tests.support.manager import join, manage

RACKS = load_network("leaf-spine:2x2x2")


def two_racks() -> JobPlan:
    return plan_job(RACKS, PlanRequest(1, 1, ("h1", "h3"), ("ps",)))


def test_elements_that_a_plan_uses() -> None:
    plan = two_racks()
    (spine,) = {"s1", "s2"} & set(plan.trees[0].parts)
    used = used_elements(plan)
    assert {"l1", "l2", spine, ("h1", "l1"), ("l1", spine), ("l2", spine), ("l1", "ps")} <= used
    assert ("h2", "l1") not in used


@pytest.mark.parametrize(
    ("failed", "apart"),
    [
        ([], ()),
        (["s1"], ()),
        (["l1"], ("h1", "h2", "ps")),
        (["s1", "s2"], ("h3", "h4")),
        (["l2"], ("h3", "h4")),
    ],
)
def test_hosts_that_are_cut_off(failed: list[str], apart: tuple[str, ...]) -> None:
    assert cut_off(RACKS.without(failed), RACKS.hosts) == apart
    assert cut_off(RACKS.without(failed), ["h1"]) == ()


def test_hosts_forward_where_there_are_no_switches() -> None:
    line = load_network("torus:3x3")
    assert cut_off(line, ["h1", "h9"]) == ()
    assert cut_off(line.without(["h2", "h4", "h3", "h7"]), ["h1", "h8", "h9"]) == ("h1",)


def test_outages_are_named_with_their_time() -> None:
    health = Health(DampingPolicy(stable=1.0))
    health.update({"s1": True, ("h1", "l1"): True, "s2": False}, 0.0)
    health.update({"s1": False, ("h1", "l1"): False}, 8.0)
    health.update({}, 12.0)
    assert outage(health, ["s1", ("h1", "l1")], 20.0) == (
        "link h1-l1 unreachable for 12 s, switch s1 unreachable for 12 s"
    )
    assert condition(health, "s1", 20.0) == "unreachable, planned around"
    assert condition(health, "s3", 20.0) == ""
    assert link_condition(health, "l1", "h1", 20.0) == "unreachable, planned around"
    assert link_condition(health, "l2", "s1", 20.0) == "switch s1 unreachable, planned around"
    assert link_condition(health, "l2", "s3", 20.0) == ""
    health.update({"s1": True}, 20.0)
    assert outage(health, ["s1"], 20.5) == "switch s1 is being reconnected"
    many = [f"s{number}" for number in range(9)]
    health.update(dict.fromkeys(many, False), 30.0)
    assert outage(health, many, 30.0).endswith(", and 6 more")


def attending(
    attached: tuple[str, ...], joined: tuple[str, ...], ready: tuple[str, ...] = ()
) -> tuple[Tracker, Nodes]:
    """A job on h1, h3 and ps that began at 10 s; agents attached at 12 s, joined at 14 s."""
    tracker = Tracker(RACKS, two_racks())
    nodes = Nodes(RACKS)
    for host in attached:
        nodes.attach(host, 12.0)
    for host in joined:
        tracker.register(host, 14.0)
    for host in ready:
        tracker.receive(host, pb.AgentMessage(ready=pb.Ready()), 15.0)
    return tracker, nodes


def why(tracker: Tracker, nodes: Nodes, now: float, outages: str = "", tensors: int = 0) -> str:
    known = {node.host: node for node in nodes}
    return why_stalled(tracker, known, Progress(10.0), outages, now, tensors)


HOSTS = ("h1", "h3", "ps")


def test_agents_that_are_missing_silent_or_not_ready() -> None:
    tracker, nodes = attending((), ())
    assert why(tracker, nodes, 15.0).startswith("no agent attached on h1 for 5 s, no agent")
    tracker, nodes = attending(HOSTS, ("h1", "ps"), ("h1", "ps"))
    assert why(tracker, nodes, 16.0) == ("agent on h3 attached but has not joined the job for 4 s")
    assert why(tracker, nodes, 12.9) == "agent on h3 joining the job"
    tracker, nodes = attending(HOSTS, HOSTS, ("h1", "ps"))
    assert why(tracker, nodes, 17.0) == "agent on h3 preparing for 3 s"
    tracker, nodes = attending(HOSTS, HOSTS, HOSTS)
    assert why(tracker, nodes, 17.0) == ""
    assert why(tracker, nodes, 22.0, "switch l1 unreachable for 9 s") == (
        "switch l1 unreachable for 9 s; agent on h1 silent for 7 s, agent on h3 silent for 7 s, "
        "agent on ps silent for 7 s"
    )
    for host in HOSTS:
        tracker.receive(host, pb.AgentMessage(heartbeat=pb.Heartbeat()), 40.0)
    assert why(tracker, nodes, 41.0) == "no tensor completed for 31 s"
    assert why(tracker, nodes, 41.0, tensors=1) == "no tensor completed for 31 s"
    summed = Progress(10.0)
    summed.note(3, 20.0)
    known = {node.host: node for node in nodes}
    assert why_stalled(tracker, known, summed, "", 41.0, tensors=3) == (
        "all tensors are summed; its workers have been checking them for 21 s"
    )


def test_a_server_that_is_lost_is_named() -> None:
    tracker, nodes = attending(HOSTS, HOSTS, HOSTS)
    tracker.leave("ps", 20.0)
    nodes.detach("ps", 20.0)
    assert why(tracker, nodes, 18.0 + 5.0).startswith("agent on h1 silent")
    for host in ("h1", "h3"):
        tracker.receive(host, pb.AgentMessage(heartbeat=pb.Heartbeat()), 23.0)
    assert why(tracker, nodes, 23.0) == "no agent attached on ps for 3 s"


def test_a_job_that_gets_on_waits_for_nothing() -> None:
    progress = Progress(10.0)
    progress.note(3, 25.0)
    progress.note(3, 30.0)
    assert progress.since == 25.0


# -- In a cluster


class Switches:
    """Those that take rules."""

    def __init__(self, network: Network) -> None:
        self.cluster = Cluster(network, self.install)

    async def install(self, rules: Mapping[str, SwitchRules]) -> None:
        pass

    async def fail(self, *names: str) -> None:
        health = self.cluster.health
        health.update(dict.fromkeys(self.cluster.network.switches, True), time.monotonic() - 20)
        health.update(dict.fromkeys(names, False), time.monotonic() - 12)
        health.update({}, time.monotonic())
        await manage(self.cluster).fail(names)


@pytest.mark.parametrize("algorithm", ["in-network", "ring"])
def test_a_job_whose_hosts_are_cut_off_is_queued_until_they_are_back(algorithm: str) -> None:
    async def main() -> None:
        switches = Switches(RACKS)
        cluster = switches.cluster
        await switches.fail("l2")
        job = await cluster.submit(JobSpec("a", ("h1", "h3"), ("h2",), algorithm=algorithm))
        assert job.state is JobState.QUEUED
        assert cluster.engine.why_waiting(job) == "h3 cut off: switch l2 unreachable for 12 s"
        near = await cluster.submit(JobSpec("b", ("h1",), ("h2",)))
        assert near.state is JobState.WAITING
        cluster.switch_changed("l2", True, {})
        await reached(job, JobState.WAITING)
        assert "no agent attached on h1" in cluster.engine.why_waiting(job)
        await cluster.close()

    asyncio.run(main())


def test_hosts_in_reach_are_chosen() -> None:
    async def main() -> None:
        switches = Switches(RACKS)
        cluster = switches.cluster
        for host in RACKS.hosts:
            cluster.nodes.attach(host, time.monotonic())
        first = await cluster.submit(JobSpec("a", 2))
        assert first.request.workers == ("h1", "h2")
        await switches.fail("l1")
        assert cluster.engine.hosts.in_reach() == ("h3", "h4")
        second = await cluster.submit(JobSpec("b", 1, ("h4",)))
        assert second.request.workers == ("h3",)
        await cluster.cancel(second)
        await manage(cluster).recover(["l1"])
        await switches.fail("l2")
        # They are the least busy, but unreachable.
        third = await cluster.submit(JobSpec("c", 2))
        assert third.request.workers == ("h1", "h2")
        await cluster.close()

    asyncio.run(main())


def test_a_running_job_says_which_switch_it_waits_for() -> None:
    async def main() -> None:
        switches = Switches(RACKS)
        cluster = switches.cluster
        job = await cluster.submit(JobSpec("a", ("h1", "h3"), ("h2",)))
        ring = await cluster.submit(JobSpec("b", ("h1", "h3"), algorithm="ring"))
        for each in (job, ring):
            for host in cluster.engine.tracker(each.number).agents:
                join(cluster, host, each.number)
            assert each.state is JobState.RUNNING
            assert cluster.engine.why_waiting(each) == ""
        await switches.fail("l2")
        assert cluster.engine.why_waiting(job) == "switch l2 unreachable for 12 s"
        assert cluster.engine.why_waiting(ring) == "h3 cut off: switch l2 unreachable for 12 s"
        assert all(cluster.plans.waits(each.number) for each in (job, ring)), "agents are notified"
        await manage(cluster).recover(["l2"])
        assert not any(cluster.plans.waits(each.number) for each in (job, ring))
        await switches.fail("l2")
        await cluster.cancel(job)
        assert cluster.engine.why_waiting(job) == "cancelled by its owner"
        await cluster.close()

    asyncio.run(main())
