"""Linear programs over cuts: the least load of the links such that no cut is starved.

The program of `cut_proof`, with only the cuts that matter: solved with those found so far, then
separated for cuts with less than 1 into them (minimum cuts under y), until there are none. Its
duals are the weights. Stopping at any time gives a bound; the last solution proves the optimum, up
to rounding.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from random import Random

import numpy as np
from numpy.typing import NDArray

from hopsum.planning.bounds.cut_proof import CutDirections, CutWeights
from hopsum.planning.bounds.cut_rounding import rounded_weights
from hopsum.planning.bounds.minimum_cut import FlowNetwork
from hopsum.planning.bounds.steiner_cut import steiner_cut
from hopsum.planning.model.graph import PlanningGraph
from hopsum.planning.model.linear_program import INFINITY, LinearProgram, SolverError, Status

_WHOLE = 1 << 40
"""Loads are rounded to integer multiples of 1/_WHOLE for minimum cuts."""
_ENOUGH = _WHOLE - (_WHOLE >> 23)
"""A cut with this much flow into it is not starved: the solver's tolerance is 1e-7."""
_STEP = 0.75
"""Where to separate, from an interior point (0) to the solver's (1); measured: 1 takes ten times
longer on 256 nodes with 64 workers."""
_GAP = 1e-7
"""Relative gap at which the search ends: feasible value over proved value, minus 1."""
_PRICE = 1e-4
"""Initial price of a load relative to the greatest's (measured: fastest from 1e-5 to 1e-3)."""

_Point = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class CutProblem:
    """A problem over weighted cuts.

    `root`: of all trees; None: any node that combines. `forwarding`: nodes that forward exactly
    what they get. `by_capacity`: minimise the greatest load / capacity, or else the sum of the
    loads. `time_limit`: seconds, after which the weights found so far are the answer.
    """

    graph: PlanningGraph
    root: str | None
    forwarding: frozenset[str]
    by_capacity: bool = True
    ways: CutDirections = CutDirections.BOTH
    time_limit: float = INFINITY

    @property
    def roots(self) -> tuple[str, ...]:
        """Return the nodes at which a tree may have its root.

        Where a link's directions are counted together, any one worker suffices: reversing the
        data's path from a root to it gives that worker all, and leaves every link's load unchanged.
        """
        if self.root is not None:
            return (self.root,)
        able = tuple(name for name in self.graph.nodes if name in self.graph.combines)
        if self.ways is CutDirections.BOTH:
            return next((name,) for name in able if name in self.graph.workers)
        return able

    @property
    def terminals(self) -> tuple[str, ...]:
        """Return the workers that trees must reach."""
        workers = self.graph.workers - set(self.roots if len(self.roots) == 1 else ())
        return tuple(name for name in self.graph.nodes if name in workers)


def heaviest_cuts(problem: CutProblem) -> CutWeights:
    """Return the weights with the strongest proof, exact and as simple as possible.

    PlanError for an unknown root, or if there are no two nodes to join.
    """
    cut = steiner_cut(problem.graph, problem.root)
    # With several roots, the data may start on either side.
    sides = cut.parts[:1] if len(problem.roots) == 1 else cut.parts
    ones = (Fraction(1),) * len(sides)
    narrowest = CutWeights(sides, ones, {}, problem.roots, problem.ways)
    if not cut.bound:
        return narrowest
    return _CutProgram(problem, narrowest, cut.bound).solve()


def _hubs(graph: PlanningGraph, terminals: tuple[str, ...]) -> dict[int, list[int]]:
    """Return nodes, such as access switches, with the terminals that have no other neighbour."""
    behind: dict[int, list[int]] = {}
    for name in terminals:
        if len(graph.neighbours[name]) == 1:
            behind.setdefault(graph.index[graph.neighbours[name][0]], []).append(graph.index[name])
    return behind


class _CutProgram:
    def __init__(self, problem: CutProblem, narrowest: CutWeights, width: Fraction) -> None:
        self._deadline = time.monotonic() + problem.time_limit
        self._problem = problem
        self._narrowest = narrowest
        self._graph = graph = problem.graph
        self._index = graph.index
        self._terminals = [graph.index[name] for name in problem.terminals]
        self._hubs = _hubs(graph, problem.terminals)
        self._leaves = frozenset(leaf for leaves in self._hubs.values() for leaf in leaves)
        self._program = LinearProgram(maximise=False, time_limit=problem.time_limit)
        self._arcs: dict[tuple[int, int], int] = {}
        self._into: list[list[tuple[int, int]]] = [[] for _ in graph.nodes]
        self._roots: dict[int, int] = {}
        self._balance: dict[str, int] = {}
        self._cuts: dict[frozenset[int], int] = {}
        self._add_loads()
        self._add_roots()
        self._add_balance()
        self._add_cuts(self._likely())
        self._inside = self._full_links(width)
        self._costs = np.zeros(self._program.columns)
        if self._problem.by_capacity:
            self._costs[self._busiest] = 1.0
        else:
            self._costs[list(self._arcs.values())] = 1.0
        self._duals: _Point | None = None
        self._least = _WHOLE

    def solve(self) -> CutWeights:
        """Add starved cuts until there are none; first with a price on every load.

        Where only the greatest load counts, the others are arbitrary: the solver then cycles, and
        cuts are shallow.
        """
        if self._problem.by_capacity:
            random = Random(0)
            for column in self._arcs.values():
                self._set_cost(column, _PRICE * (1 + random.random()))
            self._generate()
            for column in self._arcs.values():
                self._set_cost(column, 0.0)
        self._generate()
        return self._heaviest()

    def _set_cost(self, column: int, cost: float) -> None:
        self._costs[column] = cost
        self._program.set_cost(column, cost)

    def _generate(self) -> None:
        """Solve and add starved cuts until there are none, the time is up or the solver fails."""
        while time.monotonic() <= self._deadline or self._duals is None:
            try:
                solution = self._program.solve()
            except SolverError:
                # HiGHS sometimes fails on degenerate programs: any weights prove a bound.
                if self._duals is None:
                    raise
                break
            if solution.status not in (Status.OPTIMAL, Status.TIME_LIMIT):
                raise SolverError(
                    f"bounds of {self._graph.name}: the program of {len(self._cuts)} cuts ended "
                    f"with {solution.status}: expected optimal"
                )
            if solution.status is Status.TIME_LIMIT:
                break
            assert solution.values is not None and solution.duals is not None
            self._duals = solution.duals
            if not self._add_starved(solution.values):
                break

    def _add_starved(self, values: _Point) -> bool:
        """Separate between an interior point and the solver's, where cuts are deeper.

        Ben-Ameur and Neto, Networks 2007. Returns whether a new cut was found.
        """
        between = _STEP * values + (1 - _STEP) * self._inside
        if self._add_cuts(self._starved(between)):
            if len(self._roots) == 1 and self._least > 0:
                # With this much more on every link, no cut is starved.
                scaled = between * (_WHOLE / self._least)
                if self._load(scaled) < self._load(self._inside):
                    self._inside = scaled
            return True
        self._inside = between
        if self._load(between) - self._load(values) <= _GAP * self._load(values):
            return False
        return self._add_cuts(self._starved(values))

    def _load(self, values: _Point) -> float:
        """Return the objective."""
        return float(self._costs @ values)

    def _full_links(self, width: Fraction) -> _Point:
        """Return all links fully loaded in both directions: no cut is narrower than `width`."""
        values = np.zeros(self._program.columns)
        nodes = self._graph.nodes
        for (u, v), column in self._arcs.items():
            values[column] = self._graph.capacity[self._graph.edge(nodes[u], nodes[v])] / width
        starts = [n for n in self._terminals if n in self._roots] or list(self._roots)
        for node in starts:
            values[self._roots[node]] = 1 / len(starts)
        if self._problem.by_capacity:
            largest = max(self._graph.capacity.values())
            both = 2 if self._problem.ways is CutDirections.BOTH else 1
            values[self._busiest] = both * largest / width
        return values

    def _add_loads(self) -> None:
        """Add a variable for each arc; minimize the largest load / capacity, or the sum."""
        for u, v in self._graph.capacity:
            for a, b in ((u, v), (v, u)):
                arc = (self._index[a], self._index[b])
                self._arcs[arc] = self._program.add_variable(
                    0.0 if self._problem.by_capacity else 1.0
                )
                self._into[arc[1]].append((arc[0], self._arcs[arc]))
        if not self._problem.by_capacity:
            return
        self._busiest = self._program.add_variable(1.0)
        largest = max(self._graph.capacity.values())
        for (u, v), capacity in self._graph.capacity.items():
            there = self._arcs[self._index[u], self._index[v]]
            back = self._arcs[self._index[v], self._index[u]]
            joint = self._problem.ways is CutDirections.BOTH
            for columns in ((there, back),) if joint else ((there,), (back,)):
                terms = dict.fromkeys(columns, 1.0) | {self._busiest: -float(capacity / largest)}
                self._program.add_constraint(terms, upper=0.0)

    def _add_roots(self) -> None:
        """Add a variable for the share of each root; they add up to 1."""
        for name in self._problem.roots:
            self._roots[self._index[name]] = self._program.add_variable()
        self._program.add_constraint(dict.fromkeys(self._roots.values(), 1.0), upper=1.0)

    def _add_balance(self) -> None:
        for name in sorted(self._problem.forwarding, key=self._index.__getitem__):
            node = self._index[name]
            terms = {}
            for peer, column in self._into[node]:
                terms[column] = 1.0
                terms[self._arcs[node, peer]] = -1.0
            self._balance[name] = self._program.add_constraint(terms, lower=0.0, upper=0.0)

    def _add_cut(self, inside: frozenset[int]) -> None:
        if inside in self._cuts:
            return
        terms = {
            column: 1.0
            for node in inside
            for peer, column in self._into[node]
            if peer not in inside
        }
        terms |= {self._roots[node]: 1.0 for node in inside & self._roots.keys()}
        self._cuts[inside] = self._program.add_constraint(terms, lower=1.0)

    def _likely(self) -> Iterator[frozenset[int]]:
        """Yield cuts around the bottleneck, around each terminal and around all terminals at a hub.

        Also their complements, if these must receive data too.
        """
        everyone = frozenset(range(len(self._into)))
        near = [frozenset(self._index[name] for name in self._narrowest.parts[0])]
        near += [frozenset({node}) for node in self._terminals]
        near += [frozenset({hub, *leaves}) for hub, leaves in self._hubs.items()]
        for cut in near:
            for side in (cut, everyone - cut):
                if not side >= self._roots.keys() and not side.isdisjoint(self._terminals):
                    yield side

    def _add_cuts(self, cuts: Iterator[frozenset[int]]) -> bool:
        """Add a cut; return whether it is new."""
        before = len(self._cuts)
        for cut in cuts:
            self._add_cut(cut)
        return len(self._cuts) > before

    def _starved(self, values: _Point) -> Iterator[frozenset[int]]:
        """Return cuts with less than 1 into them, two for each terminal that has one.

        A terminal without one joins the sources, with all nodes that get 1 from there: no starved
        cut separates them.
        """
        start = len(self._into)
        network = FlowNetwork(start + 1)
        amounts = np.rint(np.maximum(values, 0.0) * _WHOLE).astype(np.int64).tolist()
        onwards: list[dict[int, int]] = [{} for _ in range(start + 1)]
        for (u, v), column in self._arcs.items():
            onwards[u][v] = amounts[column]
            if u < v:
                network.add(u, v, amounts[column], amounts[self._arcs[v, u]])
        for node, column in self._roots.items():
            onwards[start][node] = amounts[column]
            network.add(start, node, amounts[column])
        sources: set[int] = set()
        given = [0] * start
        _join(start, sources, given, onwards)
        self._least = _WHOLE
        for hub in self._hubs:
            if hub not in sources and not network.minimum_cut(sources, hub, _ENOUGH).near:
                _join(hub, sources, given, onwards)
        starved: set[int] = set()
        for sink in self._terminals:
            if sink in sources or sink in starved:
                continue
            full = True
            for cut in network.nested_cuts(sources, sink, _ENOUGH):
                full = False
                self._least = min(self._least, cut.value)
                # Terminals of one cut rarely have others; cuts of other terminals save rounds.
                starved |= cut.near & self._leaves
                yield cut.near
                yield cut.far
            if full:
                _join(sink, sources, given, onwards)

    def _heaviest(self) -> CutWeights:
        if self._duals is None:
            return self._narrowest
        duals = self._duals.tolist()
        rounded = rounded_weights(
            self._graph,
            {cut: duals[row] for cut, row in self._cuts.items() if row < len(duals)},
            {name: -duals[row] for name, row in self._balance.items()},
            self._problem.roots,
            self._problem.ways,
        )
        return max(rounded, key=self._proved)

    def _proved(self, weights: CutWeights) -> Fraction:
        if weights.least <= 0:
            return Fraction(0)
        if self._problem.by_capacity:
            return 1 / weights.rate(self._graph)
        return weights.total(self._graph)


def _join(
    node: int, sources: set[int], given: list[int], onwards: Sequence[Mapping[int, int]]
) -> None:
    """Add a node to the sources, with all nodes that then receive enough from them."""
    sources.add(node)
    queue = [node]
    for giver in queue:
        for peer, amount in onwards[giver].items():
            given[peer] += amount
            if given[peer] >= _ENOUGH and peer not in sources:
                sources.add(peer)
                queue.append(peer)
