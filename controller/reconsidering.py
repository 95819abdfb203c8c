"""Plans that follow the network's state: a job's tree is looked at again as its links fill (002).

When to look and what is worth an epoch is `replanning`'s matter; here the plans are made and timed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace

from collectives.network import Network
from collectives.plan import DataType, JobPlan, PlanError
from collectives.prediction import predict
from controller.embedding.demand import DirectedLink
from controller.manager import Manager
from controller.replanning import Cause, Replanner, ReplanningPolicy
from controller.state import NetworkState

LEAST_SHARE = 0.01
"""Of a link's bandwidth: a link that is full still carries something."""


def free_network(network: Network, shares: Mapping[DirectedLink, float]) -> Network:
    """The network with what is free of its links, of the two directions the lesser."""
    links = []
    for link in network.links:
        share = min(shares.get((link.a, link.b), 1.0), shares.get((link.b, link.a), 1.0))
        if link.bandwidth is not None:
            link = replace(link, bandwidth=link.bandwidth * max(LEAST_SHARE, share))
        links.append(link)
    return replace(network, links=tuple(links))


def own_rates(
    network: Network, plan: JobPlan, elements: int, rounds_a_second: float
) -> dict[DirectedLink, float]:
    """What a job uses itself, bit/s on every directed link."""
    links = predict(network, plan, [(elements, DataType.INT32)]).links
    return {link: 8 * count * rounds_a_second for link, count in links.items()}


@dataclass
class Reconsidered:
    """One job's plan over time. Ask `look` now and then; times in seconds."""

    manager: Manager
    state: NetworkState
    job: int
    replanner: Replanner
    round: int
    at: float
    rate: float = 0.0
    """Rounds a second, since the look before."""

    @classmethod
    def begin(
        cls, manager: Manager, state: NetworkState, job: int, policy: ReplanningPolicy, now: float
    ) -> Reconsidered:
        """For a job that has just been planned."""
        return cls(manager, state, job, Replanner(policy, 0, state.shares(now), now), 0, now)

    async def look(self, round_: int, elements: int, now: float) -> Cause | None:
        """Give the job a new epoch if the state calls for it; why it got one, or None.

        `elements`: of its tensors. Raises DriverError, TimeoutError where switches do not take it.
        """
        if now > self.at:
            self.rate = (round_ - self.round) / (now - self.at)
        self.round, self.at = round_, now
        plan = self.manager.plan_of(self.job)
        network = self.manager.working()
        own = own_rates(network, plan, elements, self.rate) if elements else {}
        shares = self.state.shares(now, own)
        regained = self.manager.regained(self.job)
        cause = self.replanner.due(round_, shares, now, bool(regained))
        if cause is None or not elements:
            return None
        view = free_network(network, shares)
        self.replanner.looked(round_, shares, now)
        try:
            # Planning takes tenths of a second, in which others are served.
            candidate = await asyncio.to_thread(self.manager.candidate, self.job, view, regained)
        except PlanError:
            return None
        if self.replanner.worth(_cost(view, plan, elements), _cost(view, candidate, elements)):
            await self.manager.replan(self.job, on=view, regain=regained)
            return cause
        return None


def _cost(network: Network, plan: JobPlan, elements: int) -> float:
    """Seconds of a round; where links have no bandwidth the bytes of it stand for them."""
    predicted = predict(network, plan, [(elements, DataType.INT32)])
    limited = any(link.bandwidth is not None for link in network.links)
    return predicted.seconds if limited else predicted.total_bytes
