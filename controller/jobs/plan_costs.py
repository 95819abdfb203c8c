"""Costs of plans: seconds of a round, and what jobs use of links, as predicted."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from hopsum.collectives.decomposition import tree_elements
from hopsum.collectives.plan import DataType, JobPlan
from hopsum.network.model import Network
from hopsum.planning.model.demand import DirectedLink
from hopsum.timing.estimate import estimate
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


def trees_alone(plan: JobPlan, elements: int) -> PlanWork:
    """Return the work of a plan's trees on one tensor, without the hosts' parts."""
    tensor = tree_elements(plan, elements), DataType.INT32
    return PlanWork(replace(plan, host_parts=()), [tensor])


def own_rates(
    network: Network, plan: JobPlan, elements: int, rounds_a_second: float
) -> dict[DirectedLink, float]:
    """Return what a job's trees use themselves, bit/s on every directed link."""
    return rates(network, trees_alone(plan, elements), rounds_a_second)


def rates(network: Network, work: PlanWork, rounds_a_second: float) -> dict[DirectedLink, float]:
    """Return what a job's work uses of links, bit/s on every directed link."""
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


def round_cost(network: Network, plan: JobPlan, elements: int) -> float:
    """Return the seconds of a round of the trees; where links have no bandwidth, its bytes."""
    predicted = estimate(network, trees_alone(plan, elements))
    limited = any(link.bandwidth is not None for link in network.links)
    return predicted.seconds if limited else predicted.total_bytes
