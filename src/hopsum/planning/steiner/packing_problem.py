"""The problem of packing aggregation trees: workers, roots, edges, and the nodes that add."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property

import numpy as np

from hopsum.collectives.plan import PlanError
from hopsum.planning.model.forest import RatedTree
from hopsum.planning.model.graph import Edge, PlanningGraph
from hopsum.planning.steiner.steiner_tree import Arcs, Terminal


@dataclass(frozen=True)
class PackingProblem:
    """Trees that collect all workers' data at one of `roots`.

    `passes`: the nodes that packets may cross; at those in `graph.combines` up to `fan_in` flows
    that meet become one. No root forwards for another. `limits`: number of trees that may sum at a
    node.
    """

    graph: PlanningGraph
    roots: tuple[str, ...]
    passes: frozenset[str]
    fan_in: int
    limits: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for root in self.roots:
            if root in self.graph.workers:
                raise PlanError(f"host {root!r} cannot be worker and server of one job")

    @cached_property
    def index(self) -> Mapping[str, int]:
        """Return the number of each node."""
        return self.graph.index

    @cached_property
    def edges(self) -> tuple[Edge, ...]:
        """Return all edges, in order."""
        return tuple(self.graph.capacity)

    @cached_property
    def position(self) -> Mapping[Edge, int]:
        """Return the number of each edge."""
        return {edge: i for i, edge in enumerate(self.edges)}

    @cached_property
    def crossing(self) -> frozenset[str]:
        """Return the nodes that packets may cross."""
        return self.passes.difference(self.roots)

    @cached_property
    def merging(self) -> frozenset[str]:
        """Return the nodes that add the flows that meet."""
        return self.crossing & self.graph.combines

    @cached_property
    def leaves(self) -> Mapping[str, str]:
        """Return workers whose only link leads to a node that adds -> that node, their parent."""
        found = {}
        for worker in sorted(self.graph.workers, key=self.index.__getitem__):
            near = self.graph.neighbours[worker]
            if worker not in self.crossing and len(near) == 1 and near[0] in self.merging:
                found[worker] = near[0]
        return found

    @cached_property
    def terminals(self) -> tuple[Terminal, ...]:
        """Return what the rest of a tree must join: nodes with leaves, and the other workers."""
        under = dict.fromkeys(self.leaves.values(), 1)
        others = {w: 0 for w in self.graph.workers if w not in self.leaves and w not in under}
        return tuple(
            Terminal(self.index[name], height)
            for name, height in sorted(
                {**under, **others}.items(), key=lambda item: self.index[item[0]]
            )
        )

    @cached_property
    def arcs(self) -> tuple[Arcs, Arcs, tuple[int, ...]]:
        """Return the arcs without the leaves' links, upwards and downwards, and each arc's edge."""
        tails, heads, numbers = [], [], []
        for number, (u, v) in enumerate(self.edges):
            for tail, head in ((u, v), (v, u)):
                leads_on = tail in self.crossing or tail in self.graph.workers
                leads_in = head in self.crossing or head in self.roots
                if leads_on and leads_in and tail not in self.leaves:
                    tails.append(self.index[tail])
                    heads.append(self.index[head])
                    numbers.append(number)
        nodes = self.graph.nodes
        frm, to = np.array(tails, dtype=np.intp), np.array(heads, dtype=np.intp)
        adds = np.array([name in self.merging or name in self.roots for name in nodes])
        copies = np.array([name in self.crossing or name in self.roots for name in nodes])
        added = Arcs(len(nodes), frm, to, adds)
        return added, replace(added, merges=copies), tuple(numbers)

    @property
    def merges_everywhere(self) -> bool:
        """Return whether packets cross only nodes that add."""
        return self.crossing == self.merging

    def tree(self, union: set[Edge], root: str) -> RatedTree | None:
        """Return the tree, of rate 0, that joins the workers to `root` over the given edges.

        It is as low as the edges allow; None if they do not join all workers to the root.
        """
        near: dict[str, list[str]] = {}
        for u, v in sorted(union, key=self.position.__getitem__):
            near.setdefault(u, []).append(v)
            near.setdefault(v, []).append(u)
        parents: dict[str, str] = {}
        order = [root]
        for node in order:
            if node != root and node not in self.crossing:
                continue
            for peer in near.get(node, ()):
                if peer != root and peer not in parents:
                    parents[peer] = node
                    order.append(peer)
        if not self.graph.workers <= parents.keys():
            return None
        below = Counter(parents.values())
        for node in reversed(order[1:]):
            if not below[node] and node not in self.graph.workers:
                below[parents.pop(node)] -= 1
        return RatedTree(root, parents, Fraction(0), self.flows(root, parents))

    def flows(self, root: str, parents: Mapping[str, str]) -> dict[str, int]:
        """Return the number of flows that leave each node upwards, where it is not one."""
        order = [root]
        children: dict[str, list[str]] = {}
        for node, parent in parents.items():
            children.setdefault(parent, []).append(node)
        for node in order:
            order += children.get(node, ())
        leaving: dict[str, int] = {}
        for node in reversed(order[1:]):
            flows = sum(leaving[child] for child in children.get(node, ()))
            flows += node in self.graph.workers
            if node in self.merging and flows > 1:
                flows = 1 + max(0, flows - self.fan_in)
            leaving[node] = flows
        return {node: flows for node, flows in leaving.items() if flows != 1}
