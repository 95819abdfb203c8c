from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from hopsum.collectives.plan import DataType, JobPlan
from hopsum.controller.dataplane.rules import SwitchRules
from hopsum.controller.jobs.plan_costs import LEAST_SHARE, free_network, link_rates, trees_alone
from hopsum.controller.jobs.plan_store import PlanStore
from hopsum.controller.jobs.reoptimization import Reoptimization
from hopsum.controller.jobs.replanning import Cause, ReplanningPolicy
from hopsum.controller.telemetry.state import InterfaceUse, NetworkState
from hopsum.network.loaders import load_network
from hopsum.network.model import Network
from hopsum.planning.model.request import EmbeddingOptions, PlanRequest
from hopsum.timing.estimate import Estimate, estimate
from hopsum.timing.work import PlanWork
from tests.support.jobs import job_of
from tests.support.machine import PATIENCE
from tests.support.manager import Manager

pytestmark = pytest.mark.usefixtures("time_to_plan")

POLICY = ReplanningPolicy(every=0, hold=2.0, pause=4.0)
RATE = 1e8


async def install(rules: Mapping[str, SwitchRules]) -> None:
    """There are no switches to install rules on."""


class Looking:
    """A job that follows the state of the network."""

    def __init__(
        self,
        manager: Manager,
        state: NetworkState,
        job: int,
        reoptimization: Reoptimization | None = None,
    ) -> None:
        self.reoptimization = reoptimization or Reoptimization(
            manager.store, manager.epochs, manager.engine.procedures, state, POLICY
        )
        self._manager = manager
        self._active = manager.active(job)
        self.replanner = self.reoptimization.replanner(self._active, 0.0)

    async def look(self, round_: int, elements: int, sent: int, now: float) -> Cause | None:
        steps = self.reoptimization.look(self._active, round_, elements, sent, now)
        return await self._manager.perform(steps)

    async def recut(self, elements: int, now: float) -> JobPlan:
        await self._manager.perform(self.reoptimization.recut(self._active, elements, now))
        return self._manager.store.plan_of(self._active.job.number)


def spines() -> Network:
    return load_network("leaf-spine:2x2x2", link_rate=RATE)


async def submitted(network: Network) -> tuple[Manager, str, str]:
    """A job between two leaves: its manager, the spine it uses, and the other one."""
    manager = Manager(network, install)
    plan = await manager.submit(job_of(PlanRequest(1, 1, ("h1", "h3"), ("ps",))))
    (used,) = {"s1", "s2"} & set(plan.trees[0].parents)
    (other,) = {"s1", "s2"} - {used}
    return manager, used, other


def load(state: NetworkState, spine: str, share: float, now: float) -> None:
    uses = [InterfaceUse(leaf, share * RATE, share * RATE) for leaf in ("l1", "l2")]
    state.report(spine, uses, now)


def test_a_busy_spine_is_left_once_and_not_for_a_burst() -> None:
    async def main() -> None:
        network = spines()
        manager, used, other = await submitted(network)
        state = NetworkState(network)
        looking = Looking(manager, state, 1)
        causes = []
        for second in range(1, 21):
            # Other traffic: a burst at 5 s, and a lasting load from 10 s on.
            load(state, used, 0.95 if second == 5 or second >= 10 else 0.0, float(second))
            causes.append(await looking.look(0, 100_000, 0, float(second)))
        assert [cause for cause in causes if cause] == [Cause.CHANGE]
        assert causes.index(Cause.CHANGE) >= 11
        plan = manager.store.plan_of(1)
        assert plan.epoch == 2
        assert other in plan.trees[0].parents
        assert used not in plan.trees[0].parents

    asyncio.run(main())


@pytest.mark.parametrize("rate", [RATE, None])
def test_slots_come_back_to_who_gave_them_up_and_not_at_once(rate: float | None) -> None:
    async def main() -> None:
        network = load_network("leaf-spine:2x2x1", link_rate=rate, slots=256)
        manager = Manager(network, install)
        request = PlanRequest(1, 1, ("h1", "h2", "h3"), ("ps",))
        levels = {1: 3, 2: 0}
        plan = await manager.submit(job_of(request))
        newer = replace(request, job=2, workers=("h1", "h2"))
        await manager.submit(job_of(newer), levels=lambda: levels)
        given_up = manager.store.bypassed(1)
        assert given_up == {"l1"}
        state = NetworkState(network)
        looking = Looking(manager, state, 1)
        for second in range(1, 10):
            assert await looking.look(0, 100_000, 0, float(second)) is None
        await manager.remove(2)
        assert manager.store.regained(1) == given_up
        assert await looking.look(0, 100_000, 0, 10.0) is Cause.SLOTS
        again = manager.store.plan_of(1)
        assert (again.epoch, manager.store.bypassed(1)) == (3, frozenset())
        assert again.trees[0].parts.keys() == plan.trees[0].parts.keys()
        assert again.trees[0].parts["l1"].aggregate
        for second in range(11, 20):
            assert await looking.look(0, 100_000, 0, float(second)) is None

    asyncio.run(main())


@pytest.mark.slow
def test_changing_slots_cause_one_evaluation_per_pause() -> None:
    async def main() -> None:
        network = load_network("leaf-spine:2x2x1", link_rate=RATE, slots=256)
        manager = Manager(network, install)
        request = PlanRequest(1, 1, ("h1", "h2", "h3"), ("ps",))
        levels = {1: 3, 2: 0}
        await manager.submit(job_of(request))
        looking = Looking(manager, NetworkState(network), 1)
        for second in range(1, 41):
            if second % 2:
                newer = replace(request, job=2, workers=("h1", "h2"))
                await manager.submit(job_of(newer), levels=lambda: levels)
            else:
                await manager.remove(2)
            await looking.look(0, 100_000, 0, float(second))
        # Each pause one return, and one leave after it.
        assert manager.store.plan_of(1).epoch <= 2 * (40 / POLICY.pause) + 2

    asyncio.run(main())


def own_rates(
    network: Network, plan: JobPlan, elements: int, rounds_a_second: float
) -> dict[tuple[str, str], float]:
    """Return what a job sends over directed links, bit/s."""
    return link_rates(estimate(network, trees_alone(plan, elements)), rounds_a_second)


def round_bytes(manager: Manager, job: int, elements: int) -> float:
    """Return what the hosts of a job send in a round."""
    tensors = [(elements, DataType.INT32)]
    links = estimate(manager.network, PlanWork(manager.store.plan_of(job), tensors)).links
    return sum(count for (node, _), count in links.items() if node in manager.network.hosts)


@pytest.mark.parametrize("completes", [True, False])
def test_a_jobs_own_traffic_does_not_move_it(completes: bool) -> None:
    async def main() -> None:
        network = spines()
        manager, used, _ = await submitted(network)
        state = NetworkState(network)
        elements, rounds_a_second = 100_000, 20
        own = own_rates(network, manager.store.plan_of(1), elements, rounds_a_second)
        looking = Looking(manager, state, 1)
        for second in range(1, 21):
            state.report(
                used,
                [
                    InterfaceUse(leaf, own.get((used, leaf), 0.0), own.get((leaf, used), 0.0))
                    for leaf in ("l1", "l2")
                ],
                float(second),
            )
            # Tensors of any size: it need not have completed one.
            sent = int(second * rounds_a_second * round_bytes(manager, 1, elements))
            done = second * rounds_a_second if completes else 0
            assert await looking.look(done, elements, sent, float(second)) is None
        assert looking.replanner.rate == pytest.approx(rounds_a_second, 0.01)
        assert max(own.values()) > 0.5 * RATE

    asyncio.run(main())


def test_rounds_are_estimated_again_only_for_another_plan_or_tensor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    estimated: list[JobPlan] = []

    def note(network: Network, work: PlanWork) -> Estimate:
        estimated.append(work.plan)
        return estimate(network, work)

    async def main() -> None:
        manager, _, other = await submitted(spines())
        monkeypatch.setattr("hopsum.controller.jobs.plan_costs.estimate", note)
        looking = Looking(manager, NetworkState(manager.network), 1)
        for second in range(1, 10):
            await looking.look(0, 100_000, 1000 * second, float(second))
        # The whole, and the trees alone.
        assert len(estimated) == 2
        await looking.look(0, 200_000, 10_000, 10.0)
        assert len(estimated) == 4
        newer = await manager.replan(1)
        for second in range(11, 20):
            await looking.look(0, 200_000, 10_000, float(second))
        assert [plan.epoch for plan in estimated[4:]] == [newer.epoch] * 2
        # What has failed may be on the way of trees.
        await manager.fail([other])
        await looking.look(0, 200_000, 10_000, 20.0)
        assert len(estimated) == 7

    asyncio.run(main())


@pytest.mark.slow
def test_of_two_jobs_that_look_at_the_same_moment_one_moves() -> None:
    async def main() -> None:
        network = spines()
        manager, used, _ = await submitted(network)
        await manager.submit(job_of(PlanRequest(2, 1, ("h2", "h4"), ("ps",))))
        assert used in manager.store.plan_of(2).trees[0].parents
        state = NetworkState(network)
        elements, rounds_a_second = 100_000, 14
        first = Looking(manager, state, 1)
        looking = [first, Looking(manager, state, 2, first.reoptimization)]
        for second in range(1, 41):
            report_jobs(manager, state, elements, rounds_a_second, float(second))
            done = second * rounds_a_second
            sent = [int(done * round_bytes(manager, job, elements)) for job in (1, 2)]
            await asyncio.gather(
                *(
                    each.look(done, elements, count, float(second))
                    for each, count in zip(looking, sent, strict=True)
                )
            )
        assert sorted(manager.store.plan_of(job).epoch for job in (1, 2)) == [1, 2]
        spine_of = {
            job: {"s1", "s2"} & set(manager.store.plan_of(job).trees[0].parents) for job in (1, 2)
        }
        assert spine_of[1] != spine_of[2]

    asyncio.run(main())


def test_a_job_with_nothing_due_waits_for_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    planning, planned = threading.Event(), threading.Event()
    candidate = PlanStore.candidate

    def slow(self: PlanStore, *arguments: Any, **options: Any) -> JobPlan:
        planning.set()
        assert planned.wait(PATIENCE)
        return candidate(self, *arguments, **options)

    monkeypatch.setattr(PlanStore, "candidate", slow)

    async def main() -> None:
        network = spines()
        manager, used, _ = await submitted(network)
        await manager.submit(job_of(PlanRequest(2, 1, ("h2", "h4"), ("ps",))))
        state = NetworkState(network)
        first = Looking(manager, state, 1)
        second = Looking(manager, state, 2, first.reoptimization)
        load(state, used, 0.95, 1.0)
        assert await first.look(0, 100_000, 0, 1.0) is None
        load(state, used, 0.95, 5.0)
        looking = asyncio.create_task(first.look(0, 100_000, 0, 5.0))
        assert await asyncio.to_thread(planning.wait, PATIENCE)
        assert await second.look(0, 100_000, 0, 1.0) is None
        assert not looking.done()
        planned.set()
        assert await looking is Cause.CHANGE

    asyncio.run(main())


def report_jobs(
    manager: Manager, state: NetworkState, elements: int, rounds_a_second: float, now: float
) -> None:
    """Let the spines report what jobs 1 and 2 send under their present plans."""
    rates = [
        own_rates(state.network, manager.store.plan_of(job), elements, rounds_a_second)
        for job in (1, 2)
    ]

    def rate(u: str, v: str) -> float:
        return sum(of_job.get((u, v), 0.0) for of_job in rates)

    for spine in ("s1", "s2"):
        uses = [InterfaceUse(leaf, rate(spine, leaf), rate(leaf, spine)) for leaf in ("l1", "l2")]
        state.report(spine, uses, now)


def test_the_lesser_direction_counts_and_a_full_link_is_not_gone() -> None:
    network = spines()
    view = free_network(network, {("l1", "s1"): 0.25, ("s1", "l1"): 0.5, ("l2", "s1"): 0.0})
    assert view.link("l1", "s1").bandwidth == 0.25 * RATE
    assert view.link("l2", "s1").bandwidth == pytest.approx(LEAST_SHARE * RATE)
    assert view.link("l1", "s2").bandwidth == RATE
    unlimited = load_network("star:2")
    assert free_network(unlimited, {}) == unlimited


async def embedded(manager: Manager) -> JobPlan:
    """A job of four hosts of a star whose two helpers have links a quarter as fast."""
    wanted = EmbeddingOptions(auxiliary=("h5", "ps"), period=10)
    request = PlanRequest(1, 1, ("h1", "h2", "h3", "h4"), (), window=64, embedding=wanted)
    return await manager.submit(job_of(request, planner="embedding"))


def slow_helpers() -> Network:
    network = load_network("star:5", link_rate=RATE)
    links = [
        replace(link, bandwidth=RATE / 4) if {link.a, link.b} & {"h5", "ps"} else link
        for link in network.links
    ]
    return replace(network, links=tuple(links))


@pytest.mark.slow
def test_weights_follow_the_state_where_that_is_worth_it() -> None:
    async def main() -> None:
        network = slow_helpers()
        manager, state = Manager(network, install), NetworkState(network)
        plan = await embedded(manager)
        assert plan.trees and plan.host_parts
        looking = Looking(manager, state, 1)
        assert not looking.replanner.recut_due(POLICY.pause - 0.1) and looking.replanner.recut_due(
            POLICY.pause
        )
        # Nothing has changed, or too little.
        assert await looking.recut(100_000, 5.0) is plan
        assert not looking.replanner.recut_due(5.0)
        state.report(plan.servers[0], [InterfaceUse("s1", 0.02 * RATE, 0.0)], 6.0)
        assert await looking.recut(100_000, 6.0) is plan
        # No agent has said how large tensors are: what is the load of this job is not known.
        assert await looking.recut(0, 6.5) is plan
        # Both helpers' links are full: hosts sum what the switches did.
        for helper in ("h5", "ps"):
            state.report(helper, [InterfaceUse("s1", RATE / 4, RATE / 4)], 20.0)
        newer = await looking.recut(100_000, 20.0)
        assert newer is manager.store.plan_of(1)
        assert newer.epoch == 2 and newer.tree_weight < plan.tree_weight / 2
        assert len(newer.trees) == len(plan.trees)
        # Empty again: back to what it was.
        again = await looking.recut(100_000, 60.0)
        assert again.epoch == 3 and again.tree_weight == plan.tree_weight

    asyncio.run(main())


@pytest.mark.slow
def test_a_jobs_own_load_is_no_reason_for_other_weights() -> None:
    async def main() -> None:
        network = slow_helpers()
        manager, state = Manager(network, install), NetworkState(network)
        plan = await embedded(manager)
        looking = Looking(manager, state, 1)
        looking.replanner.rate = 20.0
        sent = estimate(network, PlanWork(plan, [(100_000, DataType.INT32)])).links
        for host in plan.auxiliary:
            rates = [min(looking.replanner.rate * 8 * sent[link], RATE / 4) for link in _both(host)]
            state.report(host, [InterfaceUse("s1", *rates)], 10.0)
        assert min(state.shares(10.0).values()) < 0.3
        assert await looking.recut(100_000, 10.0) is plan
        # The same load, and none of it the job's.
        looking.replanner.rate = 0.0
        assert await looking.recut(100_000, 10.0) is not plan

    asyncio.run(main())


def test_hosts_without_paths_keep_their_weights() -> None:
    """No tree needs what has failed: all parts are among the hosts."""

    async def main() -> None:
        manager = Manager(load_network("star:3", link_rate=RATE), install)
        request = PlanRequest(1, 1, ("h1", "h2"), (), embedding=EmbeddingOptions(period=10))
        plan = await manager.submit(job_of(request, planner="embedding"))
        looking = Looking(manager, NetworkState(manager.network), 1)
        await manager.fail(["s1"])
        assert plan.host_parts and not manager.store.lost_to(1)
        assert await looking.recut(100_000, 10.0) is manager.store.plan_of(1)

    asyncio.run(main())


def _both(host: str) -> tuple[tuple[str, str], tuple[str, str]]:
    return (host, "s1"), ("s1", host)


def test_returned_elements_are_used_if_that_is_faster() -> None:
    """A job that waits for what failed is left alone."""

    async def main() -> None:
        manager, used, other = await submitted(spines())
        state = NetworkState(manager.network)
        looking = Looking(manager, state, 1)
        await manager.fail([used])
        assert manager.store.plan_of(1).epoch == 2
        # The spine it went to has been busy all the time, so that no change calls for a look.
        for second in range(1, 11):
            load(state, other, 0.5, float(second))
        looking.replanner.looked(0, state.shares(10.0), 10.0)
        await manager.fail(["l1"])
        assert manager.store.lost_to(1) == {"l1"}
        assert await looking.look(0, 100_000, 0, 20.0) is None
        await manager.recover(["l1"])
        assert await looking.look(0, 100_000, 0, 21.0) is None
        await manager.recover([used])
        load(state, other, 0.5, 21.5)
        assert await looking.look(0, 100_000, 0, 22.0) is Cause.RECOVERY
        plan = manager.store.plan_of(1)
        assert used in plan.trees[0].parts
        assert plan.epoch == 3
        assert not manager.store.avoided(1)
        assert await looking.look(0, 100_000, 0, 40.0) is None

    asyncio.run(main())


def test_counts_that_jump_are_no_faster_than_the_links() -> None:
    """After a restart of the controller hosts report what they have sent since long before."""

    async def main() -> None:
        manager, _, _ = await submitted(spines())
        looking = Looking(manager, NetworkState(manager.network), 1)
        await looking.look(0, 100_000, 10**12, 1.0)
        tensors = [(100_000, DataType.INT32)]
        fastest = 1 / estimate(manager.network, PlanWork(manager.store.plan_of(1), tensors)).seconds
        assert looking.replanner.rate == pytest.approx(fastest)
        # A host that has been replaced takes its count along.
        await looking.look(0, 100_000, 0, 2.0)
        assert 0 < looking.replanner.rate < fastest

    asyncio.run(main())
