"""Switches that die, flap, reboot and come back, in virtual time."""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace
from pathlib import Path

import grpc
import pytest

from hopsum.cli.job_commands import make_submission
from hopsum.controller.jobs.job_state import JobState
from hopsum.controller.jobs.replanning import ReplanningPolicy
from hopsum.controller.telemetry.health import DampingPolicy
from hopsum.protocol import hopsum_pb2 as pb
from hopsum.simulation.cluster import VirtualCluster
from hopsum.simulation.faults import Faults
from tests.support.manager import manage
from tests.support.virtual_cluster import (
    attached,
    details,
    exact,
    network_of,
    progress,
    run,
    running,
    spines,
    state,
    submit,
)


@pytest.mark.slow
def test_a_job_goes_on_around_a_switch_that_dies_and_uses_it_again(tmp_path: Path) -> None:
    async def test(cluster: VirtualCluster) -> None:
        await submit(cluster, "a", "h1,h3", rounds=50)
        await running(cluster, "a")
        (spine,) = spines(cluster, "a")
        cluster.switches[spine].crash()
        died = cluster.queue.now
        await cluster.until(lambda: spines(cluster, "a") == {"s1", "s2"} - {spine}, "failover")
        # It is planned around only after this time.
        assert DampingPolicy().away <= cluster.queue.now - died < DampingPolicy().away + 1.5
        assert cluster.controller is not None
        manager = manage(cluster.controller)
        assert manager.store.failed == {spine}
        cluster.switches[spine].start()
        await cluster.until(lambda: not manager.store.failed, "its return")
        job = await exact(cluster, "a")
        assert job.epoch >= 2

    run(tmp_path, "leaf-spine:2x2x2", test)


@pytest.mark.slow
def test_a_switch_that_flaps_is_held_down(tmp_path: Path) -> None:
    async def test(cluster: VirtualCluster) -> None:
        await cluster.until(lambda: attached(cluster), "the agents")
        assert cluster.controller is not None
        manager = manage(cluster.controller)
        unreachable = manager.engine.failover.health.unreachable
        for _ in range(4):
            cluster.switches["s1"].crash()
            await cluster.until(lambda: "s1" in unreachable() & manager.store.failed, "its loss")
            cluster.switches["s1"].start()
            await cluster.until(lambda: "s1" not in unreachable(), "its return")
        back = cluster.queue.now
        assert manager.engine.failover.health.held() == {"s1"}
        await cluster.until(lambda: "s1" not in manager.store.failed, "the end of the hold-down")
        assert cluster.queue.now - back > 10 * DampingPolicy().stable

    run(tmp_path, "leaf-spine:2x2x2", test)


@pytest.mark.slow
def test_a_job_goes_on_around_a_switch_that_hangs_within_three_seconds(tmp_path: Path) -> None:
    """Its connections stay open: it alone is late with an answer."""

    async def test(cluster: VirtualCluster) -> None:
        await submit(cluster, "a", "h1,h3", rounds=100)
        await running(cluster, "a", 2)
        [spine] = spines(cluster, "a")
        cluster.switches[spine].hang()
        hung_at = cluster.queue.now
        at = progress(cluster, "a")
        await cluster.until(lambda: progress(cluster, "a") > at + 1, "rounds around it", 3.0)
        assert spines(cluster, "a") == {"s1", "s2"} - {spine}
        assert cluster.queue.now - hung_at > 1.0
        cluster.switches[spine].resume()
        assert cluster.controller is not None
        manager = manage(cluster.controller)
        await cluster.until(lambda: not manager.store.failed, "its return", 2.0)
        await exact(cluster, "a")

    run(tmp_path, "leaf-spine:2x2x2", test)


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [2.0, 7.0, 30.0])
def test_a_job_goes_on_at_once_when_what_it_waits_for_is_back(
    tmp_path: Path, seconds: float
) -> None:
    async def test(cluster: VirtualCluster) -> None:
        await submit(cluster, "a", "h1,h2", rounds=100)
        await running(cluster, "a", 2)
        cluster.switches["s1"].crash()
        await asyncio.sleep(seconds)
        at = progress(cluster, "a")
        cluster.switches["s1"].start()
        await cluster.until(lambda: progress(cluster, "a") > at + 1, "rounds again", 1.5)
        job = await exact(cluster, "a")
        assert job.epoch == 1

    run(tmp_path, "star:4", test)


@pytest.mark.slow
def test_switches_report_a_cut_link_and_jobs_avoid_it(tmp_path: Path) -> None:
    async def test(cluster: VirtualCluster) -> None:
        await submit(cluster, "a", "h1,h2", "h4", rounds=300)
        await running(cluster, "a", 2)
        [spine] = spines(cluster, "a")
        cut_at = cluster.queue.now
        cut = await cluster.people.SetLink(pb.LinkChange(link=f"{spine}-l1"))
        assert {cut.a, cut.b} == {"l1", spine}
        with pytest.raises(grpc.RpcError, match="has no link 'l1-l2'; expected one of"):
            await cluster.people.SetLink(pb.LinkChange(link="l1-l2"))
        await cluster.until(lambda: spine not in spines(cluster, "a"), "a way around", 10.0)
        assert cluster.queue.now - cut_at < 2.0
        await cluster.people.SetLink(pb.LinkChange(link=f"l1-{spine}", up=True))
        assert cluster.controller is not None
        manager = manage(cluster.controller)
        await cluster.until(lambda: not manager.store.failed, "its return", 10.0)
        job = await exact(cluster, "a")
        assert job.epoch == 2

    run(tmp_path, "leaf-spine:2x2x2", test)


@pytest.mark.slow
def test_agents_report_links_where_switches_do_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As BMv2, which serves no gNMI: of links between switches nothing is known then."""
    monkeypatch.setattr("hopsum.simulation.switches.gnmi_grpc.add_gNMIServicer_to_server", nothing)

    async def test(cluster: VirtualCluster) -> None:
        await submit(cluster, "a", "h1,h2", "h4", rounds=100)
        await running(cluster, "a", 2)
        [spine] = spines(cluster, "a")
        cluster.set_link("l1", spine, up=False)
        cluster.set_link("h1", "l1", up=False)
        assert cluster.controller is not None and cluster.driver is not None
        manager = manage(cluster.controller)
        await cluster.until(lambda: manager.store.failed, "the loss of a link", 20.0)
        assert manager.store.failed == {("h1", "l1")}
        assert not any(cluster.driver.ports(name) for name in cluster.network.switches)
        [job] = (await cluster.people.Status(pb.StatusRequest())).jobs
        assert "link h1-l1 unreachable" in job.waits_for
        cluster.set_link("h1", "l1", up=True)
        cluster.set_link("l1", spine, up=True)
        await exact(cluster, "a")

    run(tmp_path, "leaf-spine:2x2x2", test)


def nothing(*_: object) -> None:
    pass


@pytest.mark.slow
def test_a_reboot_costs_rules_and_registers_which_come_back(tmp_path: Path) -> None:
    """The job goes on in its epoch: the switch is back before it would be planned around."""

    async def test(cluster: VirtualCluster) -> None:
        await submit(cluster, "a", "h1,h2,h3", rounds=25)
        await running(cluster, "a")
        before = cluster.world.engines["s1"]
        cluster.switches["s1"].crash()
        assert cluster.world.engines["s1"] is None
        await asyncio.sleep(1.0)
        cluster.switches["s1"].start()
        assert cluster.world.engines["s1"] is None
        job = await exact(cluster, "a")
        after = cluster.world.engines["s1"]
        assert after is not None
        assert after is not before
        assert job.epoch == 1

    run(tmp_path, "star:4", test)


@pytest.mark.slow
def test_a_job_goes_over_to_a_spine_that_is_back_where_that_is_faster(tmp_path: Path) -> None:
    """Both share the one spine that there is, whose links are slow, until the other is back."""
    network = network_of("leaf-spine:2x2x2")
    slow = [
        replace(link, bandwidth=7.5e4) if {link.a, link.b} & {"s1", "s2"} else link
        for link in network.links
    ]

    async def test(cluster: VirtualCluster) -> None:
        await cluster.until(lambda: attached(cluster), "the agents")
        cluster.switches["s2"].crash()
        assert cluster.controller is not None
        manager = manage(cluster.controller)
        await cluster.until(lambda: "s2" in manager.store.failed, "its loss")
        for name, server in (("a", "h3"), ("b", "h4")):
            await submit(cluster, name, "h1,h2", server, rounds=3000)
        await running(cluster, "a", 2)
        assert spines(cluster, "a") == spines(cluster, "b") == {"s1"}
        cluster.switches["s2"].start()
        await cluster.until(
            lambda: spines(cluster, "a") | spines(cluster, "b") == {"s1", "s2"}, "a move", 60.0
        )
        # Two that look at the network at once may both move, and one then moves back.
        await asyncio.sleep(15.0)
        epochs = sorted(plan.epoch for plan in manager.store.plans())
        assert spines(cluster, "a") | spines(cluster, "b") == {"s1", "s2"}
        await asyncio.sleep(10.0)
        assert epochs == sorted(plan.epoch for plan in manager.store.plans())
        assert sum(epochs) <= 5

    policy = ReplanningPolicy(every=0, hold=1.0, pause=2.0)
    run(tmp_path, replace(network, links=tuple(slow)), test, policies={"replanning": policy})


@pytest.mark.slow
def test_a_switch_that_dies_as_it_is_connected_to_is_connected_to_again(tmp_path: Path) -> None:
    """While finsy asks over gNMI for its interfaces, too."""

    async def test(cluster: VirtualCluster) -> None:
        await cluster.until(lambda: attached(cluster), "the agents")
        switch = cluster.switches["s1"]
        switch.crash()
        switch.start()

        def asked() -> bool:
            return "switch s1 /gnmi" in cluster.trace[-1]

        before = len(cluster.trace)
        while not (len(cluster.trace) > before and asked()):
            await asyncio.sleep(0.0001)
        switch.crash()
        await asyncio.sleep(1.0)
        switch.start()
        await submit(cluster, "a", "h1,h2")
        await exact(cluster, "a")

    run(tmp_path, "star:3", test)


@pytest.mark.slow
def test_a_job_that_waits_for_a_switch_outlasts_the_deadline_of_its_fragments(
    tmp_path: Path,
) -> None:
    async def test(cluster: VirtualCluster) -> None:
        await cluster.until(lambda: attached(cluster), "the agents")
        await cluster.people.Submit(with_deadline("patient", 8.0))
        await running(cluster, "patient")
        cluster.switches["s1"].crash()
        await asyncio.sleep(30.0)
        assert state(cluster, "patient") == JobState.RUNNING
        [job] = (await cluster.people.Status(pb.StatusRequest())).jobs
        assert "s1" in job.waits_for
        cluster.switches["s1"].start()
        await exact(cluster, "patient")

        # Where no switch is to blame the deadline counts.
        cluster.world.channels["h1", "s1"].faults = Faults(loss=1.0)
        await cluster.people.Submit(with_deadline("unheard", 8.0))
        await cluster.until(lambda: state(cluster, "unheard") == JobState.FAILED, "the deadline")
        reason = (await details(cluster, "unheard")).reason
        assert "no result for 8" in reason
        # Both workers give up at once; the server names the one of which it heard first.
        assert re.search(r"; ps: PeerGone: agent on h[12] is lost; fragment 4 lacks h1$", reason)

    run(tmp_path, "star:3", test)


def with_deadline(name: str, seconds: float) -> pb.Submission:
    submission = make_submission(name, "h1,h2", "ps", rounds=50, elements=256)
    submission.task.options.deadline = seconds
    return submission
