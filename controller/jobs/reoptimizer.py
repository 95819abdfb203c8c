"""Reoptimization: plans follow the network's state as links fill ([002][]).

`replanning` decides when to look and what is worth an epoch; here plans are made and timed. Jobs
decide one by one, each knowing the expected load of those before: otherwise two jobs on a busy link
would leave it together, and meet again.

The partition of an embedding's tensors must change at the same tensor on all hosts, or the job
stalls or sums wrongly. A new epoch cannot do that, since every agent adopts it when it receives it.
So all agents request every boundary, after each `period` tensors (`JobPlan`), and wait there for
the answer; the tracker's first decision is final. They request the next boundary at least one
tensor after the last: then all hosts have passed it, and only one boundary is open. The decision is
the job's plan at that time, which is recorded before any agent receives it: after a restart the
first requested boundary gets that plan again, whether it had been answered or not.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from hopsum.collectives.decomposition import tree_elements
from hopsum.collectives.plan import DataType, JobPlan, PlanError
from hopsum.controller.jobs.manager import Manager
from hopsum.controller.jobs.replanning import Cause, Replanner, ReplanningPolicy
from hopsum.controller.telemetry.state import NetworkState
from hopsum.network.model import Network
from hopsum.planning.model.demand import DirectedLink
from hopsum.timing.estimate import estimate
from hopsum.timing.work import PlanWork

LOGGER = logging.getLogger("hopsum.cluster")

LEAST_SHARE = 0.01
"""Minimum free fraction of a link's bandwidth: a full link still carries something."""


def free_network(network: Network, shares: Mapping[DirectedLink, float]) -> Network:
    """Return the network with free bandwidth on its links, the lesser of both directions."""
    links = []
    for link in network.links:
        share = min(shares.get((link.a, link.b), 1.0), shares.get((link.b, link.a), 1.0))
        if link.bandwidth is not None:
            link = replace(link, bandwidth=link.bandwidth * max(LEAST_SHARE, share))
        links.append(link)
    return replace(network, links=tuple(links))


def trees_alone(plan: JobPlan, elements: int) -> PlanWork:
    """Return the work of a plan's trees on one tensor, without the hosts' parts."""
    tensor = tree_elements(plan, elements), DataType.INT32
    return PlanWork(replace(plan, host_parts=()), [tensor])


def own_rates(
    network: Network, plan: JobPlan, elements: int, rounds_a_second: float
) -> dict[DirectedLink, float]:
    """Return what a job's trees use themselves, bit/s on every directed link."""
    return _rates(network, trees_alone(plan, elements), rounds_a_second)


def _rates(network: Network, work: PlanWork, rounds_a_second: float) -> dict[DirectedLink, float]:
    links = estimate(network, work).links
    return {link: 8 * count * rounds_a_second for link, count in links.items()}


def sending_rate(network: Network, plan: JobPlan, elements: int, sent: float) -> float:
    """Return the rounds a second of a job whose hosts send `sent` bytes a second, all together.

    At most what its links allow: a count may jump when its host reports again.
    """
    predicted = estimate(network, PlanWork(plan, [(elements, DataType.INT32)]))
    a_round = sum(count for (node, _), count in predicted.links.items() if node in network.hosts)
    fastest = 1 / predicted.seconds if predicted.seconds else math.inf
    return min(sent / a_round, fastest) if a_round else 0.0


@dataclass(frozen=True, slots=True)
class _Due:
    """The reason to evaluate a job's plan, and the state at that time."""

    cause: Cause
    own: Mapping[DirectedLink, float]
    """Bit/s that the job sends itself."""
    shares: Mapping[DirectedLink, float]
    """Free part of each link, and what the job would give up."""
    regained: Collection[str]
    """Switches where it may sum again."""


@dataclass
class Reoptimizer:
    """Reoptimizer of one job. Call `look` periodically; times in seconds."""

    manager: Manager
    state: NetworkState
    job: int
    replanner: Replanner
    at: float
    sent: int = 0
    """Bytes that the job's hosts had sent at the previous look."""
    rate: float = 0.0
    """Rounds per second by what they send, smoothed as the load of links is."""
    recut_at: float = 0.0

    @classmethod
    def begin(
        cls, manager: Manager, state: NetworkState, job: int, policy: ReplanningPolicy, now: float
    ) -> Reoptimizer:
        """For a job that has just been planned."""
        replanner = Replanner(policy, 0, state.shares(now), now)
        return cls(manager, state, job, replanner, now, recut_at=now)

    async def look(self, round_: int, elements: int, sent: int, now: float) -> Cause | None:
        """Start a new epoch if the state calls for it; return the reason, or None.

        `elements`: of its tensors. `sent`: bytes that its hosts have sent so far. Rounds would not
        do: a long one, or a window that is sent again in a new epoch, would pass for the load of
        others. Raises DriverError, TimeoutError where switches do not take it.
        """
        self._measure(elements, sent, now)
        if self._due(round_, elements, now) is None:
            # Others that decide at present need not be waited for.
            return None
        async with self.manager.reoptimizing:
            due = self._due(round_, elements, now)
            return None if due is None else await self._look(due, round_, elements, now)

    def _measure(self, elements: int, sent: int, now: float) -> None:
        if now > self.at and elements:
            seconds = now - self.at
            plan = self.manager.plan_of(self.job)
            a_second = max(0, sent - self.sent) / seconds
            rate = sending_rate(self.manager.network, plan, elements, a_second)
            weight = -math.expm1(-seconds / self.state.options.smoothing) if self.rate else 1.0
            self.rate += weight * (rate - self.rate)
        self.sent, self.at = sent, now

    def _due(self, round_: int, elements: int, now: float) -> _Due | None:
        """Return the reason to evaluate the plan in the present state; None: there is none."""
        plan = self.manager.plan_of(self.job)
        if self.manager.lost_to(self.job) or not plan.trees:
            # It waits for what failed (`failover`), or has nothing to move.
            return None
        network = self.manager.working()
        own = own_rates(network, plan, elements, self.rate) if elements else {}
        shares = self.state.shares(now, own)
        regained = self.manager.regained(self.job)
        recovered = self.manager.avoided(self.job)
        cause = self.replanner.due(round_, shares, now, bool(regained), recovered)
        if cause is None or not elements:
            return None
        return _Due(cause, own, shares, regained)

    async def _look(self, due: _Due, round_: int, elements: int, now: float) -> Cause | None:
        plan, network = self.manager.plan_of(self.job), self.manager.working()
        shares, regained = due.shares, due.regained
        view = free_network(network, shares)
        self.replanner.looked(round_, shares, now)
        try:
            # Planning takes tenths of a second, in which others are served.
            candidate = await asyncio.to_thread(self.manager.candidate, self.job, view, regained)
        except PlanError:
            self.manager.keep_plan(self.job)
            return None
        if self.replanner.worth(
            round_cost(view, plan, elements), round_cost(view, candidate, elements)
        ):
            why = f"{due.cause}"
            self.replanner.replaced(round_)
            newer = await self.manager.replan(self.job, on=view, regain=regained, why=why)
            # Jobs that decide next must not go where this one does.
            after = own_rates(network, newer, elements, self.rate)
            self.state.expect(self.job, due.own, after, now)
            return due.cause
        self.manager.keep_plan(self.job)
        return None

    def recut_due(self, now: float) -> bool:
        """Whether the next boundary should be considered: the pause since the last one is over."""
        return now - self.recut_at >= self.replanner.policy.pause

    async def recut(self, elements: int, now: float) -> JobPlan:
        """Return the plan that partitions tensors of this size from the next boundary on.

        Another one than before if other weights are faster by a margin, in the present state.
        Raises DriverError, TimeoutError where switches do not take its trees.
        """
        self.recut_at = now
        async with self.manager.reoptimizing:
            return await self._recut(elements, now)

    async def _recut(self, elements: int, now: float) -> JobPlan:
        plan = self.manager.plan_of(self.job)
        network = self.manager.working()
        if not elements or self.manager.lost_to(self.job):
            return plan
        tensors = [(elements, DataType.INT32)]
        own = _rates(network, PlanWork(plan, tensors), self.rate)
        view = free_network(network, self.state.shares(now, own))

        def faster() -> bool:
            newer = self.manager.candidate(self.job, view, recut=True)
            kept, new = (estimate(view, PlanWork(each, tensors)).seconds for each in (plan, newer))
            return newer.cut != plan.cut and self.replanner.worth(kept, new)

        try:
            if await asyncio.to_thread(faster):
                plan = await self.manager.replan(
                    self.job, on=view, recut=True, why="other weights are faster"
                )
                after = _rates(network, PlanWork(plan, tensors), self.rate)
                self.state.expect(self.job, own, after, now)
        except PlanError as error:
            LOGGER.info("job %d keeps its weights: %s", self.job, error)
        return plan


def round_cost(network: Network, plan: JobPlan, elements: int) -> float:
    """Return the seconds of a round of the trees; where links have no bandwidth, its bytes."""
    predicted = estimate(network, trees_alone(plan, elements))
    limited = any(link.bandwidth is not None for link in network.links)
    return predicted.seconds if limited else predicted.total_bytes
