"""Costs of plans: seconds of a round, and what jobs use of links, as predicted."""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Mapping
from dataclasses import replace

from hopsum.collectives.decomposition import tree_elements
from hopsum.collectives.plan import DataType, JobPlan
from hopsum.network.model import Network
from hopsum.planning.model.demand import DirectedLink
from hopsum.timing.estimate import Estimate, estimate
from hopsum.timing.work import PlanWork

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


def whole_rounds(plan: JobPlan, elements: int) -> PlanWork:
    """Return the work of a plan on one tensor."""
    return PlanWork(plan, [(elements, DataType.INT32)])


def trees_alone(plan: JobPlan, elements: int) -> PlanWork:
    """Return the work of a plan's trees on one tensor, without the hosts' parts."""
    tensor = tree_elements(plan, elements), DataType.INT32
    return PlanWork(replace(plan, host_parts=()), [tensor])


class KeptEstimate:
    """The estimate of one job's rounds, made again only if plan, network or tensor is another.

    A job is measured every second, and seldom has a new plan.
    """

    def __init__(self, work: Callable[[JobPlan, int], PlanWork]) -> None:
        self._work = work
        self._of: tuple[Network, JobPlan, int] | None = None
        self._estimate: Estimate | None = None

    def __call__(self, network: Network, plan: JobPlan, elements: int) -> Estimate:
        """Return the estimate of a round; see `estimate` for the errors."""
        kept = self._of
        same = kept and kept[0] is network and kept[1] is plan and kept[2] == elements
        if self._estimate is None or not same:
            self._estimate = estimate(network, self._work(plan, elements))
            self._of = network, plan, elements
        return self._estimate


def link_rates(predicted: Estimate, rounds_a_second: float) -> dict[DirectedLink, float]:
    """Return what a job uses of links, bit/s on every directed link."""
    return {link: 8 * count * rounds_a_second for link, count in predicted.links.items()}


def sending_rate(hosts: Container[str], predicted: Estimate, sent: float) -> float:
    """Return the rounds a second of a job whose hosts send `sent` bytes a second, all together.

    At most what its links allow: a count may jump when its host reports again.
    """
    a_round = sum(count for (node, _), count in predicted.links.items() if node in hosts)
    fastest = 1 / predicted.seconds if predicted.seconds else math.inf
    return min(sent / a_round, fastest) if a_round else 0.0


def round_cost(network: Network, plan: JobPlan, elements: int) -> float:
    """Return the seconds of a round of the trees; where links have no bandwidth, its bytes."""
    predicted = estimate(network, trees_alone(plan, elements))
    limited = any(link.bandwidth is not None for link in network.links)
    return predicted.seconds if limited else predicted.total_bytes
