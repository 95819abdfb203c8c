"""The elastic aggregation tree ([002][]; Wan et al., Resilient AllReduce Tree, APNet 2020).

Leaves are the workers. Every oversubscribed region has an aggregating host, which sums the data of
its part of the network before they cross the narrow layer; in the root's region that is the root.
Any host may aggregate: `rotated_trees` takes the workers in turn, which spreads the load evenly,
and `cheapest_tree` finds the best tree under prices of links.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product

import numpy as np
from numpy.typing import NDArray

from hopsum.planning.embedding.regions import Region

Prices = NDArray[np.float64]
Tree = tuple[str, dict[str, str]]
"""A root, and the parents of all others."""


def rotated_trees(whole: Region) -> Iterator[Tree]:
    """Yield a tree for each worker as root, with rotating aggregators in the other regions.

    On R racks of p workers, at the weight 1 / (R p) each, every host sends 2 (R p - 1) / (R p) and
    every rack 2 (R - 1) / R of the data, which is the least that any embedding can.
    """
    places: dict[str, int] = {}

    def number(region: Region) -> None:
        for place, worker in enumerate(region.workers):
            places[worker] = place
        for part in region.parts:
            number(part)

    number(whole)
    for root, turn in places.items():
        parents: dict[str, str] = {}
        _attach(whole, root, turn, parents)
        yield root, parents


def _attach(region: Region, aggregator: str, turn: int, parents: dict[str, str]) -> None:
    for worker in region.workers:
        if worker != aggregator:
            parents[worker] = aggregator
    for part in region.parts:
        chosen = aggregator
        if aggregator not in part.hosts:
            workers = list(part.all_workers())
            chosen = workers[turn % len(workers)]
            parents[chosen] = aggregator
        _attach(part, chosen, turn, parents)


def cheapest_tree(whole: Region, distance: Prices) -> tuple[float, Tree]:
    """Return the tree of least total distance between children and parents, and that total.

    `distance` (n, n): the price of exchanging a unit both ways between two of the hosts of `whole`,
    in their order; 0 from a host to itself, infinite where there is no way. By dynamic programming
    over the regions: O(n^2) a region.
    """
    choice = _Choice(tuple(whole.hosts), distance)
    totals = choice.collect(whole)
    best = int(np.argmin(totals))
    parents: dict[str, str] = {}
    choice.expand(whole, best, parents)
    return float(totals[best]), (whole.hosts[best], parents)


def count_trees(whole: Region) -> int:
    """Return the number of trees: one for each root and each choice of the regions' aggregators."""
    return sum(_count(whole, root) for root in whole.hosts)


def _count(region: Region, aggregator: str) -> int:
    count = 1
    for part in region.parts:
        inside = (aggregator,) if aggregator in part.hosts else part.hosts
        count *= sum(_count(part, chosen) for chosen in inside)
    return count


def all_trees(whole: Region) -> Iterator[Tree]:
    """Yield every tree once."""
    for root in whole.hosts:
        for parents in _attachments(whole, root):
            yield root, parents


def _attachments(region: Region, aggregator: str) -> Iterator[dict[str, str]]:
    """Yield all ways to attach a region's workers, and those of its parts, to an aggregator."""
    own = {worker: aggregator for worker in region.workers if worker != aggregator}
    below: list[list[dict[str, str]]] = []
    for part in region.parts:
        if aggregator in part.hosts:
            below.append(list(_attachments(part, aggregator)))
        else:
            below.append(
                [
                    {chosen: aggregator} | parents
                    for chosen in part.hosts
                    for parents in _attachments(part, chosen)
                ]
            )
    for chosen_ways in product(*below):
        parents = dict(own)
        for way in chosen_ways:
            parents |= way
        yield parents


@dataclass
class _Choice:
    names: Sequence[str]
    distance: Prices
    _best: dict[int, NDArray[np.int64]] = field(default_factory=dict)
    """For every region, by id, the best aggregator for each position of the next one above.
"""

    def __post_init__(self) -> None:
        self.number = {name: i for i, name in enumerate(self.names)}

    def collect(self, region: Region) -> Prices:
        """Return the price (n,) of collecting a region's data at each host.

        Infinite outside the region.
        """
        workers = [self.number[worker] for worker in region.workers]
        total = self.distance[workers].sum(axis=0)
        for part in region.parts:
            inner = self.collect(part)
            inside = [self.number[host] for host in part.hosts]
            over = self.distance[inside] + inner[inside][:, None]
            self._best[id(part)] = np.array(inside)[np.argmin(over, axis=0)]
            outside = over.min(axis=0)
            outside[inside] = inner[inside]
            total = total + outside
        reach = np.full(len(self.names), np.inf)
        here = [self.number[host] for host in region.hosts]
        reach[here] = total[here]
        return reach

    def expand(self, region: Region, aggregator: int, parents: dict[str, str]) -> None:
        """Add the tree under an aggregator to `parents`."""
        name = self.names[aggregator]
        for worker in region.workers:
            if worker != name:
                parents[worker] = name
        for part in region.parts:
            if name in part.hosts:
                self.expand(part, aggregator, parents)
            else:
                chosen = int(self._best[id(part)][aggregator])
                parents[self.names[chosen]] = name
                self.expand(part, chosen, parents)
