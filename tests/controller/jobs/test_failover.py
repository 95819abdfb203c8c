"""Jobs go on without switches and links that stay away, and over those that are back."""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import pytest

from hopsum.collectives.plan import JobPlan, PlanError
from hopsum.controller.dataplane.driver import DriverError
from hopsum.controller.dataplane.rules import Loss, SwitchRules
from hopsum.controller.jobs.cluster import Cluster
from hopsum.controller.jobs.procedures import Compute, Procedure
from hopsum.controller.jobs.replanning import ReplanningPolicy
from hopsum.controller.jobs.settings import ClusterSettings
from hopsum.controller.telemetry.health import DampingPolicy, Health, link_element
from hopsum.network.builder import NetworkBuilder
from hopsum.network.loaders import load_network
from hopsum.network.model import Network
from hopsum.planning.model.placement import place
from hopsum.planning.model.request import PlanRequest
from hopsum.simulation.loop import run_virtual
from tests.support.jobs import job_of
from tests.support.manager import Manager, manage

STEPS = 100_000
"""Turns of the event loop to wait for something; each is a tenth of a second of virtual time."""


@dataclass
class World:
    """A manager over switches that a test takes away; rules arrive only where a switch answers."""

    network: Network
    installed: list[Mapping[str, SwitchRules]] = field(default_factory=list)
    refuses: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._reachable = dict.fromkeys(self.network.switches, True)
        self.installing = asyncio.Event()
        settings = ClusterSettings(replanning=ReplanningPolicy(live=False))
        self.cluster = Cluster(self.network, self.install, settings)
        self.manager = manage(self.cluster)
        self.start(*self.network.switches)
        links = [link_element(link.a, link.b) for link in self.network.links]
        self.cluster.links_changed(dict.fromkeys(links, True))

    def cut(self, *link: str) -> None:
        self.cluster.links_changed({link_element(*link): False})

    def restore(self, *link: str) -> None:
        self.cluster.links_changed({link_element(*link): True})

    def kill(self, *names: str) -> None:
        for name in names:
            self._reachable[name] = False
            self.cluster.switch_changed(name, False, {})

    def start(self, *names: str) -> None:
        for name in names:
            self._reachable[name] = True
            self.cluster.switch_changed(name, True, {})

    async def install(self, rules: Mapping[str, SwitchRules]) -> None:
        self.installing.set()
        await asyncio.sleep(0.05)
        for name in self.refuses & set(rules):
            raise DriverError(name, "it will not")
        while not all(self._reachable[name] for name in rules):
            await asyncio.sleep(0.05)
        self.installed.append(rules)

    async def submit(self, job: int = 1, *workers: str, server: str = "ps") -> JobPlan:
        placement = place(self.network, workers or None, [server])
        request = PlanRequest(job, 1, placement.workers, placement.servers)
        return await self.manager.submit(job_of(request))

    async def until(self, true: Callable[[], object], what: str) -> None:
        for _ in range(STEPS):
            if true():
                return
            await asyncio.sleep(0.1)
        raise AssertionError(f"waited for {what}")

    async def epoch(self, number: int, job: int = 1) -> JobPlan:
        """The plan that the agents have once they have this epoch."""
        tracker = self.manager.tracker(job)
        await self.until(lambda: tracker.plan.epoch >= number, f"epoch {number}")
        return tracker.plan


def run(topology: str | Network, test: Callable[[World], Awaitable[None]]) -> None:
    async def main() -> None:
        network = topology if isinstance(topology, Network) else load_network(topology)
        world = World(network)
        try:
            await test(world)
        finally:
            await world.cluster.close()

    run_virtual(main())


def spines(plan: JobPlan) -> set[str]:
    return {name for tree in plan.trees for name in tree.parts if name.startswith("s")}


def test_a_job_goes_on_without_its_spine() -> None:
    async def test(world: World) -> None:
        (spine,) = spines(await world.submit())
        world.kill(spine)
        plan = await world.epoch(2)
        assert spines(plan) == {"s1", "s2"} - {spine}
        assert spine not in world.installed[-1]

    run("leaf-spine:2x2x2", test)


@pytest.mark.slow
def test_a_job_goes_on_without_a_link() -> None:
    async def test(world: World) -> None:
        (spine,) = spines(await world.submit())
        world.cut("l2", spine)
        plan = await world.epoch(2)
        assert spines(plan) == {"s1", "s2"} - {spine}
        world.restore("l2", spine)
        await world.until(lambda: not world.manager.store.failed, "the link's return")
        assert world.manager.store.working() == world.network

    run("leaf-spine:2x2x2", test)


def test_a_switch_lost_while_another_is_planned_around() -> None:
    async def test(world: World) -> None:
        (first,) = spines(await world.submit())
        others = {"s1", "s2", "s3"} - {first}
        world.kill(first)
        # Its plan is being installed, at the next spine, when that one is lost as well.
        await world.until(lambda: world.manager.store.plans()[0].epoch == 2, "the next plan")
        (second,) = spines(world.manager.store.plans()[0])
        world.kill(second)
        plan = await world.epoch(3)
        assert spines(plan) == others - {second}

    run("leaf-spine:2x2x3", test)


def test_a_switch_lost_while_a_job_is_installed() -> None:
    """The submission does not wait for it, and the job is planned around it."""

    async def test(world: World) -> None:
        world.kill("s1", "s2")
        submitting = asyncio.create_task(world.submit())
        await asyncio.sleep(1.0)
        world.start("s2")
        plan = await submitting
        if spines(plan) == {"s1"}:
            plan = await world.epoch(2)
        assert spines(plan) == {"s2"}

    run("leaf-spine:2x2x2", test)


def test_a_job_that_waits_for_a_recovery_is_planned_after_it() -> None:
    """It would not be tried again after that."""

    async def main() -> None:
        world = World(load_network("leaf-spine:2x2x2"))
        manager = world.manager
        manager.mark_failed(["l1"])
        other = asyncio.create_task(world.submit(2, "h3", server="h4"))
        await world.installing.wait()
        recovering = asyncio.create_task(manager.recover(["l1"]))
        await asyncio.sleep(0.0)
        submitting = asyncio.create_task(world.submit())
        await asyncio.sleep(0.0)
        assert manager.store.failed == {"l1"}
        await asyncio.gather(other, recovering)
        plan = await submitting
        assert "l1" in plan.trees[0].parts

    run_virtual(main())


@pytest.mark.slow
def test_a_job_waits_for_a_switch_it_cannot_do_without() -> None:
    """All other jobs continue, and new ones start; it continues when the switch is back."""

    async def test(world: World) -> None:
        plan = await world.submit()
        other = await world.submit(2, "h3", server="h4")
        world.kill("l1")
        await world.until(lambda: "l1" in world.manager.store.failed, "the failure")
        await world.submit(3, "h3", server="h4")
        await world.manager.remove(3)
        assert world.manager.store.plans() == [plan, other]
        assert world.manager.store.lost_to(1) == {"l1"}
        assert "switch l1 unreachable for" in world.manager.why_waiting(1)
        assert world.manager.why_waiting(2) == ""
        with pytest.raises(PlanError, match="h1 cut off: switch l1 unreachable for"):
            await world.submit(4, "h1", "h3", server="h4")
        # Its server was restarted meanwhile.
        again = await world.manager.replan(1)
        assert again.epoch == 2
        assert "l1" in again.trees[0].parts
        world.start("l1")
        await world.until(lambda: "l1" in world.installed[-1], "its return")
        assert world.manager.why_waiting(1) == ""
        await world.submit(4, "h1", "h3", server="h4")

    run("leaf-spine:2x2x2", test)


def test_a_waiting_job_takes_another_path_that_is_back() -> None:
    """It does not wait for the switches of its plan while others would do."""

    async def test(world: World) -> None:
        (used,) = spines(await world.submit())
        (other,) = {"s1", "s2"} - {used}
        near = await world.submit(2, "h1", server="h2")
        world.kill(used, other)
        await world.until(lambda: world.manager.store.failed == {"s1", "s2"}, "both failures")
        world.start(other)
        assert spines(await world.epoch(2)) == {other}
        assert not world.manager.store.waits(1)
        assert world.manager.store.plan_of(2) is near

    run("leaf-spine:2x2x2", test)


def test_a_job_that_no_path_back_serves_goes_on_waiting() -> None:
    async def test(world: World) -> None:
        plan = await world.submit()
        near = await world.submit(2, "h3", server="h4")
        world.kill("l1", "s2")
        await world.until(lambda: world.manager.store.failed == {"l1", "s2"}, "both failures")
        world.start("s2")
        await world.until(lambda: world.manager.store.failed == {"l1"}, "the return of s2")
        await asyncio.sleep(5.0)
        assert world.manager.store.plans() == [plan, near]
        assert world.manager.store.lost_to(1) == {"l1"}
        assert world.manager.engine.failover.deadline == math.inf

    run("leaf-spine:2x2x2", test)


def test_a_switch_that_was_away_while_unused_is_used_again() -> None:
    async def test(world: World) -> None:
        world.kill("l1")
        await world.until(lambda: world.manager.store.failed, "the failure")
        world.start("l1")
        await world.until(lambda: not world.manager.store.failed, "its return")
        plan = await world.submit()
        assert {"l1", "l2"} <= set(plan.trees[0].parts)

    run("leaf-spine:2x2x2", test)


def detour() -> Network:
    """Two ways between the leaves: over s1, or, one link longer, over s2 and s3."""
    builder = NetworkBuilder("detour")
    for switch in ("l1", "l2", "s1", "s2", "s3"):
        builder.add_switch(switch)
    for host, leaf in (("h1", "l1"), ("h2", "l1"), ("ps", "l2")):
        builder.add_host(host)
        builder.link(host, leaf)
    for pair in (("l1", "s1"), ("s1", "l2"), ("l1", "s2"), ("s2", "s3"), ("s3", "l2")):
        builder.link(*pair)
    return builder.build()


def test_a_job_goes_back_where_that_is_faster() -> None:
    async def test(world: World) -> None:
        plan = await world.submit()
        assert spines(plan) == {"s1"}
        world.kill("s1")
        assert spines(await world.epoch(2)) == {"s2", "s3"}
        world.start("s1")
        assert spines(await world.epoch(3)) == {"s1"}
        # What would be slower is not taken.
        world.kill("s3")
        await world.until(lambda: world.manager.store.failed, "the failure")
        world.start("s3")
        await world.until(lambda: not world.manager.store.failed, "its return")
        await asyncio.sleep(5.0)
        assert world.manager.store.plan_of(1).epoch == 3

    run(detour(), test)


def flap(world: World, name: str, times: int) -> Iterator[None]:
    for _ in range(times):
        world.kill(name)
        yield
        world.start(name)
        yield


@pytest.mark.slow
def test_a_switch_that_flaps_causes_few_epochs() -> None:
    async def test(world: World) -> None:
        await world.submit()
        for _ in flap(world, "s1", 60):
            await asyncio.sleep(5.0)
        assert world.manager.store.plan_of(1).epoch <= 9
        assert world.manager.store.failed == {"s1"}
        await asyncio.sleep(61.0)
        assert not world.manager.store.failed
        assert spines(world.manager.store.plan_of(1)) == {"s1"}

    run(detour(), test)


def test_a_leaf_that_flaps_is_not_held_down() -> None:
    """Its hosts have no other way, so that there is nothing to gain."""

    async def test(world: World) -> None:
        for _ in flap(world, "l1", 8):
            await asyncio.sleep(5.0)
        assert not world.manager.store.failed

    run("leaf-spine:2x2x2", test)


def test_a_held_down_switch_is_shown() -> None:
    async def test(world: World) -> None:
        for _ in flap(world, "s1", 4):
            await asyncio.sleep(5.0)
        assert world.manager.store.failed == {"s1"}
        now = asyncio.get_running_loop().time()
        assert 0 < world.manager.engine.failover.health.held_for("s1", now) < 60
        await world.until(lambda: not world.manager.store.failed, "the end of its hold-down")

    run("leaf-spine:2x2x2", test)


@pytest.mark.slow
def test_switches_that_refuse_are_asked_again() -> None:
    """An error during a failover ends neither it nor the return of a switch."""

    async def test(world: World) -> None:
        (spine,) = spines(await world.submit())
        (other,) = {"s1", "s2"} - {spine}
        world.refuses = {other}
        world.kill(spine)
        # The agents have the plan all the same, as the other switches have it.
        await world.epoch(2)
        await asyncio.sleep(20.0)
        assert world.manager.store.failed == {spine}
        world.start(spine)
        await asyncio.sleep(20.0)
        assert world.manager.store.failed == {spine}
        world.refuses = set()
        await world.until(lambda: not world.manager.store.failed, "its return")
        assert spine in world.installed[-1]

    run("leaf-spine:2x2x2", test)


def test_switches_that_are_missing_at_the_start() -> None:
    async def main() -> None:
        world = World(load_network("leaf-spine:2x2x2"))
        world.kill("s1")
        await world.manager.refresh()
        assert set(world.installed[-1]) == {"l1", "l2", "s2"}
        await world.cluster.close()

    run_virtual(main())


def test_losses_at_links_that_failed_are_left_out() -> None:
    async def main() -> None:
        world = World(load_network("leaf-spine:2x2x2"))
        manager = Manager(
            world.network, world.install, losses=[Loss("l1", "s1", 0.1), Loss("l1", "s2", 0.1)]
        )
        await manager.fail(["s1"])
        losses = [
            entry
            for rules in world.installed[-1].values()
            for entry in rules.entries
            if entry.table.endswith("loss")
        ]
        assert len(losses) == 1

    asyncio.run(main())


def test_a_defect_in_one_plan_does_not_end_failover(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> Procedure[list[JobPlan]]:
        monkeypatch.undo()
        yield Compute(lambda: None)
        raise ValueError("max() arg is an empty sequence")

    async def test(world: World) -> None:
        (spine,) = spines(await world.submit())
        monkeypatch.setattr(world.manager.epochs, "fail", broken)
        world.kill(spine)
        plan = await world.epoch(2)
        assert spines(plan) == {"s1", "s2"} - {spine}

    run("leaf-spine:2x2x2", test)


def test_a_job_among_hosts_may_be_removed_during_a_recovery() -> None:
    """Its removal needs no rules, so it does not wait for the switches."""

    async def main() -> None:
        world = World(load_network("leaf-spine:2x2x2"))
        job = job_of(PlanRequest(1, 1, ("h1", "h2"), ()))
        job.spec = replace(job.spec, algorithm="ring")
        await world.manager.submit(job)
        await world.manager.fail(["l1"])
        assert world.manager.store.waits(1)
        world.installing.clear()
        recovering = asyncio.create_task(world.manager.recover(["l1"]))
        await world.installing.wait()
        await world.manager.remove(1)
        await recovering
        assert not world.manager.store.failed

    run_virtual(main())


@pytest.mark.slow
def test_a_soak_of_failures_leaves_no_job_behind() -> None:
    """For any failures in any order: when all is back, every job has a plan that holds."""

    async def test(world: World) -> None:
        await world.submit(1)
        await world.submit(2, "h3", server="h4")
        world.manager.engine.failover.health = Health(DampingPolicy(half_life=5.0))
        names = ["s1", "l1", "s2", "l2"]
        for order in itertools.permutations(names, 2):
            for name in order:
                world.kill(name)
                await asyncio.sleep(2.0)
            await asyncio.sleep(5.0)
            for name in order:
                world.start(name)
            await asyncio.sleep(20.0)
            await world.until(lambda: not world.manager.store.failed, "the return of all")
            await world.manager.replan(1)
            assert world.manager.store.lost_to(1) == world.manager.store.lost_to(2) == frozenset()
        await world.manager.remove(1)
        await world.manager.remove(2)
        assert not any(world.manager.store.slots_held(name) for name in names)

    run("leaf-spine:2x2x2", test)
