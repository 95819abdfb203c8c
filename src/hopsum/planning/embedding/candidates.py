"""The candidates of one job: initial ones, and those that are cheap at given resource prices."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from hopsum.collectives.plan import PlanError
from hopsum.planning.embedding.capacities import Capacities, Vector
from hopsum.planning.embedding.elastic_tree import (
    Prices,
    all_trees,
    cheapest_tree,
    count_trees,
    rotated_trees,
)
from hopsum.planning.embedding.logical_topologies import (
    LogicalTopology,
    Paths,
    aggregation_tree,
    in_network_tree,
    parameter_server,
    physical_order,
    ring,
)
from hopsum.planning.embedding.regions import Region, find_regions
from hopsum.planning.embedding.switch_trees import SwitchTrees
from hopsum.planning.model.demand import JobDemand, Model, Resources, lightly_loaded

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

VARIATIONS = 16
"""Number of random prices under which to look for candidates where not all topologies are."""
TREES = 4
"""Trees of switches that are examined in detail each time."""


class Candidates:
    """Logical topologies of a job, in `found`; `price` adds the cheapest ones.

    Any parameter server or elastic tree over hosts may be found, and the cheapest always is;
    rings are the physical order, either way around; trees of switches are those of `switch_trees`.
    PlanError if hosts cannot reach each other, or no topology is usable.
    """

    def __init__(self, capacities: Capacities, demand: JobDemand, paths: Paths) -> None:
        self.demand = demand
        self.found: list[LogicalTopology] = []
        self.times: list[Vector] = []
        """Seconds (rows,) of each topology in `found` if it carried all of the job's data."""
        self._capacities = capacities
        self._paths = paths
        self._known: set[object] = set()
        # Plain packets take the routes of the whole network; all else concerns this part of it.
        self._reach = capacities.resources.network.around(demand.workers)
        auxiliary = demand.auxiliary
        if auxiliary is None:
            auxiliary = lightly_loaded(capacities.resources, demand)
        auxiliary = tuple(host for host in auxiliary if host in self._reach.hosts)
        relays = auxiliary if demand.relays else ()
        self._hosts = (*demand.workers, *relays)
        self._whole = Region(demand.workers, self._hosts, ())
        if Model.AGGREGATION_TREE in demand.models:
            self._whole = find_regions(capacities.resources, paths, demand.workers, relays)
        self._switch_trees = SwitchTrees(self._reach, demand.workers, auxiliary)
        self._links_in_reach = frozenset(self._reach.directed_links())
        self._pairs = self._pair_rows()
        self._start()
        self._check_found()

    @property
    def resources(self) -> Resources:
        """Free resources."""
        return self._capacities.resources

    @property
    def regions(self) -> Region:
        """The job's workers by oversubscribed region."""
        return self._whole

    def add(self, topology: LogicalTopology | None) -> bool:
        """Add a topology if it is new, usable and of one of the job's models."""
        if (
            topology is None
            or topology.model not in self.demand.models
            or topology.key in self._known
            or not self._capacities.usable(topology)
        ):
            return False
        self._known.add(topology.key)
        self.found.append(topology)
        self.times.append(self._capacities.times(self.demand, topology))
        return True

    def price(self, prices: Vector) -> dict[Model, float]:
        """Add the cheapest of every model, at `prices` (rows,) of a second of each row.

        Returns the price for each model for which it is proved minimal: a bound.
        """
        units = self.demand.bits * prices * np.where(prices > 0, self._capacities.seconds, 0.0)
        distance = self._distances(units)
        cheapest: dict[Model, float] = {}
        models = self.demand.models
        if Model.PARAMETER_SERVER in models:
            totals = distance[: len(self.demand.workers)].sum(axis=0)
            server = int(np.argmin(totals))
            if np.isfinite(totals[server]):
                self._add_server(self._hosts[server])
            cheapest[Model.PARAMETER_SERVER] = float(totals[server])
        if Model.AGGREGATION_TREE in models and self._whole.parts:
            total, (root, parents) = cheapest_tree(self._whole, distance)
            if np.isfinite(total):
                self.add(aggregation_tree(self._paths, root, parents))
            cheapest[Model.AGGREGATION_TREE] = total
        if Model.IN_NETWORK in models:
            for tree in self._trees_of_switches(units, TREES):
                self.add(tree)
        for model in (Model.RING, Model.IN_NETWORK):
            costs = [
                float(times @ prices)
                for topology, times in zip(self.found, self.times, strict=True)
                if topology.model is model
            ]
            if costs:
                cheapest[model] = min(costs)
        return cheapest

    def complete(self, most: int) -> bool:
        """Make all topologies of the job's models candidates if there are at most `most`.

        Returns whether all are candidates now. Never with trees of switches, whose number has no
        such limit; rings are the physical order by definition.
        """
        models = self.demand.models
        count = len(self._hosts) if Model.PARAMETER_SERVER in models else 0
        trees = Model.AGGREGATION_TREE in models and bool(self._whole.parts)
        if trees:
            count += count_trees(self._whole)
        if count > most:
            return False
        if Model.PARAMETER_SERVER in models:
            for host in self._hosts:
                self._add_server(host)
        for root, parents in all_trees(self._whole) if trees else ():
            self.add(aggregation_tree(self._paths, root, parents))
        return Model.IN_NETWORK not in models

    def vary(self, prices: Vector, seed: int) -> None:
        """Add the cheapest topologies at random prices close to the given ones."""
        draw = np.random.default_rng(seed)
        for _ in range(VARIATIONS):
            self.price(prices * draw.exponential(size=len(prices)))

    def _start(self) -> None:
        models, workers = self.demand.models, self.demand.workers
        if Model.RING in models:
            order = physical_order(self._capacities.resources.network, workers)
            self.add(ring(self._paths, order))
            if len(order) > 2:
                self.add(ring(self._paths, (order[0], *order[:0:-1])))
        if Model.AGGREGATION_TREE in models and self._whole.parts:
            for root, parents in rotated_trees(self._whole):
                self.add(aggregation_tree(self._paths, root, parents))
        even = np.ones(len(self._capacities))
        self.price(even)
        if Model.IN_NETWORK in models:
            units = self.demand.bits * even * self._capacities.seconds
            for tree in self._trees_of_switches(units, None):
                self.add(tree)

    def _check_found(self) -> None:
        missing = [
            model
            for model, share in (self.demand.shares or {}).items()
            if share and all(topology.model is not model for topology in self.found)
        ]
        if not self.found or missing:
            what = missing[0] if missing else " or ".join(sorted(self.demand.models))
            raise PlanError(
                f"job {self.demand.job}: no {what} is possible on the free resources: each would "
                "use a link or node without bandwidth, or lacks a region or (in-network) a host "
                "that does not work for the job and a switch with free slots; allow other models "
                "or add auxiliary nodes"
            )

    def _add_server(self, server: str) -> None:
        self.add(parameter_server(self._paths, self.demand.workers, server))

    def _trees_of_switches(self, units: Vector, most: int | None) -> Iterator[LogicalTopology]:
        """Yield the cheapest trees of switches, at most `most` (None: one a meeting point)."""
        capacities, demand = self._capacities, self.demand
        slots = capacities.resources.slots
        prices = {
            link: float(units[capacities.rows_of(link)].sum())
            for link, free in capacities.resources.links.items()
            if free > 0 and link in self._links_in_reach
        }
        trees = sorted(self._switch_trees.under(prices), key=lambda tree: tree[0])
        for _, server, links in trees[:most]:
            tree = in_network_tree(
                self._reach,
                demand.workers,
                server,
                self._switch_trees.parents(server, links),
                lambda switch: slots.get(switch, 0) >= demand.window,
                demand.max_hops,
            )
            if tree is not None:
                yield tree

    def _pair_rows(self) -> csr_matrix:
        """Return the rows that a unit uses, for each ordered pair of hosts (n * n)."""
        from scipy.sparse import csr_matrix

        columns: list[int] = []
        starts = [0]
        rows = {link: self._capacities.rows_of(link) for link in self._capacities.of_link}
        for source in self._hosts:
            for target in self._hosts:
                if source != target:
                    for link in self._paths.links(source, target):
                        columns += rows[link]
                starts.append(len(columns))
        shape = (len(self._hosts) ** 2, len(self._capacities))
        return csr_matrix((np.ones(len(columns)), columns, starts), shape=shape)

    def _distances(self, units: Vector) -> Prices:
        """Return the price (n, n) of a unit from one host to another and back."""
        count = len(self._hosts)
        # Nodes without bandwidth are unreachable at any price.
        closed = np.where(np.isinf(self._capacities.seconds), np.inf, units)
        one_way: Prices = np.asarray(self._pairs @ closed).reshape(count, count)
        distance: Prices = one_way + one_way.T
        return distance
