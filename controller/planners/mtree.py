"""mtree: trees grown one after another from the largest residual bandwidth (document 000).

Steps 1 to 3 are literal, S1 to S9 as numbered there. The text breaks off at S10; the rest follows
the authors' paper: S. Luo, R. Wang and H. Xing, Efficient Inter-Datacenter AllReduce With Multiple
Trees, IEEE Transactions on Network Science and Engineering 11(5), 2024, algorithms 1 (GBST) and 3
(ITH). Where the document disagrees with itself: an edge may be used if its residual bandwidth is r
or more (condition 1; S4 says more than r) and above 0; ties go to the lower edge number (S7; step 1
says at random), numbered in the order of their ends.

The limit is on the diameter, at most 2H. That is a height of at most H in edges, not in seconds: a
tree of diameter 2H may have no node in its middle. `multi_tree` limits the height itself.
"""

from __future__ import annotations

import random
from fractions import Fraction
from time import monotonic, perf_counter

import numpy as np
from numpy.typing import NDArray

from collectives.plan import PlanError
from controller.bounds.few_trees import bound_of_few
from controller.bounds.strength import strength
from controller.planners.forest import Forest, ForestOptions, Verdict
from controller.planners.graph import PlanningGraph
from controller.planners.spanning_trees import (
    NumberedGraph,
    Tree,
    check_possible,
    limits_of,
)
from controller.planners.tree_choice import Choice, choose_trees, exact_rates

KEPT = Fraction(95, 100)
"""Of the throughput, when step 2 lowers the trees (the paper's rho)."""
STEPS = 1000
"""Bandwidths are quantised, as the document wants, to so many steps of the largest or fewer.

Each tree gets the smallest bandwidth left *anywhere*: unquantised, one slow edge would make their
number endless. Step 3 sets the rates by the true bandwidths.
"""
Whole = NDArray[np.int64]


def plan_mtree(graph: PlanningGraph, options: ForestOptions) -> Forest:
    """The trees and rates of document 000, steps 1 to 3.

    The same for the same seed, unless the verdict says that the time was up. PlanError if no tree
    can meet the options, or the method finds none.
    """
    started, deadline = perf_counter(), monotonic() + options.time_limit
    numbered = NumberedGraph(graph)
    check_possible(numbered, options)
    choice = mtree_choice(numbered, options, deadline)
    certificate = strength(graph)
    if options.max_trees is not None:
        certificate = bound_of_few(graph, options.max_trees, certificate)
    weights = _measure(numbered, options)[0]
    trees = []
    for tree, rate in sorted(choice.rates.items(), key=lambda item: (-item[1], item[0])):
        heights = numbered.eccentricities(tree, weights)
        root = min(range(numbered.size), key=heights.__getitem__)
        trees.append(numbered.rated(tree, root, rate))
    verdict = Verdict.FEASIBLE if choice.in_time else Verdict.TIME_LIMIT
    if choice.throughput >= certificate.bound * (1 - Fraction(options.gap)):
        verdict = Verdict.OPTIMAL
    return Forest("mtree", tuple(trees), certificate, verdict, perf_counter() - started)


def mtree_choice(numbered: NumberedGraph, options: ForestOptions, deadline: float) -> Choice:
    """The trees and rates of steps 1 to 3; PlanError if not even one tree is found.

    `deadline`: of `time.monotonic`. A choice cut short by it is not `in_time`.
    """
    weights, limit = _measure(numbered, options)
    grown = _lowered(_Growth(numbered, weights, options, deadline), limit)
    if not grown:
        name = numbered.graph.name
        if monotonic() >= deadline:
            raise PlanError(
                f"{name}: mtree found no tree in {options.time_limit:g} s; give it more time"
            )
        raise PlanError(
            f"{name}: mtree found no tree within the limits (random start, seed {options.seed}), "
            "although there are some; another seed may find one, and multi-tree will"
        )
    pool = list(dict.fromkeys(tree for tree, _ in grown))
    in_time = monotonic() < deadline
    if options.max_trees is None or options.max_trees >= len(pool):
        rates = exact_rates(numbered, pool, options.min_rate)
        if rates is not None and (options.min_rate == 0 or in_time):
            return Choice(rates, in_time=in_time)
    widest = sorted(pool, key=lambda tree: -sum(rate for found, rate in grown if found == tree))
    start: dict[Tree, Fraction] | None = None
    for count in range(min(options.max_trees or len(pool), len(pool)), 0, -1):
        start = exact_rates(numbered, widest[:count], options.min_rate)
        if start is not None:
            break
    choice = choose_trees(
        numbered,
        pool,
        max_trees=options.max_trees,
        min_rate=options.min_rate,
        gap=options.gap,
        seed=options.seed,
        deadline=deadline,
        start=start,
    )
    return Choice(choice.rates, choice.bound, choice.in_time and in_time)


def _measure(numbered: NumberedGraph, options: ForestOptions) -> tuple[list[int], int]:
    """What an edge adds to a distance, and the limit H: picoseconds if limited so, else edges."""
    limits = limits_of(options)
    if limits.delay is None:
        height = limits.height
        return numbered.hops, numbered.size - 1 if height is None else height
    if limits.height is not None:
        raise PlanError(
            f"mtree knows one height (000 step 1): max_height {limits.height} or max_delay "
            f"{options.max_delay:g} s, not both; multi-tree takes both"
        )
    return numbered.delay, limits.delay


class _Growth:
    """Step 1, for any limit."""

    def __init__(
        self,
        numbered: NumberedGraph,
        weights: list[int],
        options: ForestOptions,
        deadline: float,
    ) -> None:
        self.numbered = numbered
        self.weights: Whole = np.array(weights, dtype=np.int64)
        self.seed = options.seed
        self.deadline = deadline
        step = max(numbered.unit, max(numbered.capacity) / STEPS)
        self.bandwidth: Whole = np.array(
            [
                max(1, int(capacity / step)) if capacity >= options.min_rate else 0
                for capacity in numbered.capacity
            ],
            dtype=np.int64,
        )
        self.least = max(1, int(options.min_rate / step))

    def trees(self, limit: int) -> list[tuple[Tree, int]]:
        """TL and RL for a height limit, in steps of bandwidth, until no more tree fits."""
        choose = random.Random(self.seed)
        residual = self.bandwidth.copy()
        found: list[tuple[Tree, int]] = []  # S1
        while monotonic() < self.deadline:
            tree = self._grow(choose.randrange(self.numbered.size), residual, 2 * limit)
            if tree is None:
                break
            rate = int(residual[residual >= self.least].min())
            residual[list(tree)] -= rate
            found.append((tree, rate))
        return found

    def _grow(self, start: int, residual: Whole, diameter: int) -> Tree | None:
        """S2 to S11: one tree from a starting node, None if it cannot be finished."""
        numbered = self.numbered
        inside = np.zeros(numbered.size, dtype=bool)
        inside[start] = True  # S3
        distance = np.zeros((numbered.size, numbered.size), dtype=np.int64)
        farthest = np.zeros(numbered.size, dtype=np.int64)
        edges: list[int] = []
        usable = residual >= self.least
        while len(edges) < numbered.size - 1:
            from_tail, from_head = inside[numbered.tails], inside[numbered.heads]
            candidates = np.flatnonzero((from_tail != from_head) & usable)  # S4
            near = np.where(from_tail, numbered.tails, numbered.heads)[candidates]
            # S9: a leaf lengthens no path but those to itself.
            across = np.maximum(farthest.max(), farthest[near] + self.weights[candidates])
            allowed = across <= diameter  # S5, S10
            if not allowed.any():
                return None  # S11
            # S7, S8: of the widest; S10: the first that keeps the tree lowest.
            candidates, across = candidates[allowed], across[allowed]
            widest = residual[candidates] == residual[candidates].max()
            edge = int(candidates[widest][np.argmin(across[widest])])
            u, v = numbered.ends[edge]
            if inside[v]:
                u, v = v, u
            reach = np.where(inside, distance[u] + self.weights[edge], 0)
            distance[v], distance[:, v] = reach, reach
            farthest = np.maximum(farthest, reach)
            farthest[v] = reach.max()
            inside[v] = True
            edges.append(edge)
        return tuple(sorted(edges))


def _lowered(growth: _Growth, limit: int) -> list[tuple[Tree, int]]:
    """Step 2: the trees for the smallest height that keeps most of the throughput.

    The search ends when what is left of it is below a thousandth of the height.
    """
    best = growth.trees(limit)
    enough = KEPT * sum(rate for _, rate in best)
    low, high = 0, limit
    while low < high and high - low > high // 1000 and monotonic() < growth.deadline:
        middle = (low + high) // 2
        trees = growth.trees(middle)
        if trees and sum(rate for _, rate in trees) >= enough:
            best, high = trees, middle
        else:
            low = middle + 1
    return best
