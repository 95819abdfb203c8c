"""mtree: trees grown one after another from the largest residual bandwidth ([000][]).

Steps 1 to 3 are literal, S1 to S9 as numbered there. The text breaks off at S10; the rest follows
the authors' paper: S. Luo, R. Wang and H. Xing, Efficient Inter-Datacenter AllReduce With Multiple
Trees, IEEE Transactions on Network Science and Engineering 11(5), 2024, algorithms 1 (GBST) and 3
(ITH). Where the document disagrees with itself: an edge may be used if its residual bandwidth is r
or more (condition 1; S4 says more than r) and above 0; ties go to the lower edge number (S7; step 1
says at random); edges are numbered in the order of their ends.

The document leaves open how much bandwidth b a finished tree takes of its edges. The paper takes
the smallest residual in the network, so where all edges are alike the first tree fills its edges
and disconnects the network; with a smaller b trees share edges. `tree_bandwidths` lists the b to
try.

The limit is on the diameter, at most 2H. In edges that implies a height of at most H; in seconds it
does not: a tree of diameter 2H may have no node in its middle. `multi_tree` limits the height
itself.

Nodes that combine but are not workers may be inner nodes of a tree: a tree grows until it holds all
workers, then loses the branches without any. Nodes that only forward are left out.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from time import monotonic, perf_counter

import numpy as np
from numpy.typing import NDArray

from hopsum.collectives.plan import PlanError
from hopsum.planning.bounds.bidirected_cut import bidirected_cut
from hopsum.planning.bounds.few_trees import bound_of_few
from hopsum.planning.bounds.strength import strength
from hopsum.planning.model.forest import Certificate, Forest, ForestOptions, Verdict
from hopsum.planning.model.graph import PlanningGraph, without_forwarders
from hopsum.planning.spanning.spanning_trees import (
    NumberedGraph,
    Tree,
    check_possible,
    limits_of,
)
from hopsum.planning.spanning.tree_choice import Choice, choose_trees, exact_rates

STEPS = 1000
"""Maximum number of steps to which bandwidths are quantised, as in the document.

In the paper's rule each tree gets the smallest bandwidth left *anywhere*: unquantised, one slow
edge would make their number endless. Step 3 sets the rates by the true bandwidths.
"""
TREES = (64,)
"""Approximate number of trees grown if any number may be used."""
TREES_FOR_ONE = (Fraction(3, 2), Fraction(3))
"""Approximate number of trees grown for each of K."""
Whole = NDArray[np.int64]


def plan_mtree(graph: PlanningGraph, options: ForestOptions) -> Forest:
    """Return the trees and rates of [000, steps 1 to 3][000].

    The same seed gives the same trees, unless the verdict is TIME_LIMIT. PlanError if no tree can
    meet the options, or the method finds none.
    """
    started, deadline = perf_counter(), monotonic() + options.time_limit
    graph = without_forwarders(graph)
    numbered = NumberedGraph(graph, helpers=True)
    check_possible(numbered, options)
    certificate = _certificate(graph, options)
    enough = certificate.bound * (1 - Fraction(options.gap))
    choice = mtree_choice(numbered, options, deadline, enough=enough)
    weights = _measure(numbered, options)[0]
    trees = []
    for tree, rate in sorted(choice.rates.items(), key=lambda item: (-item[1], item[0])):
        heights = numbered.eccentricities(tree, weights)
        root = min(numbered.nodes_of(tree), key=heights.__getitem__)
        trees.append(numbered.rated(tree, root, rate))
    verdict = Verdict.FEASIBLE if choice.in_time else Verdict.TIME_LIMIT
    if choice.throughput >= enough:
        verdict = Verdict.OPTIMAL
    return Forest("mtree", tuple(trees), certificate, verdict, perf_counter() - started)


def _certificate(graph: PlanningGraph, options: ForestOptions) -> Certificate:
    """Return the bound: the strength, or where not all nodes work the bidirected cut."""
    if not graph.every_node_works:
        return bidirected_cut(graph, time_limit=options.time_limit)
    certificate = strength(graph)
    if options.max_trees is not None:
        certificate = bound_of_few(graph, options.max_trees, certificate)
    return certificate


def tree_bandwidths(numbered: NumberedGraph, options: ForestOptions) -> list[Fraction | None]:
    """Return the b to try, in the units of the capacities; None is the paper's rule.

    The one given in the options; otherwise the paper's, and values at which certain numbers of
    trees (a few for each of K) use up the network, at most half of the widest edge and at least
    r. PlanError if the options give one below r, or one that would make too many trees.
    """
    if options.tree_bandwidth is not None:
        _check_bandwidth(numbered, options.tree_bandwidth, options.min_rate)
        return [options.tree_bandwidth]
    whole = sum(numbered.capacity, Fraction(0)) / (len(numbered.terminals) - 1)
    most = options.max_trees
    counts: Sequence[Fraction | int] = TREES
    if most is not None:
        counts = [most * each for each in TREES_FOR_ONE]
    half = max(numbered.capacity) / 2
    shares = [max(options.min_rate, min(half, whole / count)) for count in counts]
    return [None, *dict.fromkeys(shares)]


def _check_bandwidth(numbered: NumberedGraph, bandwidth: Fraction, min_rate: Fraction) -> None:
    least = max(min_rate, max(numbered.capacity) / STEPS)
    if bandwidth < least:
        raise PlanError(
            f"tree_bandwidth {float(bandwidth):g}: expected at least {float(least):g}, which is "
            + ("min_rate" if least == min_rate else f"1/{STEPS} of the fastest link")
        )


def mtree_choice(
    numbered: NumberedGraph,
    options: ForestOptions,
    deadline: float,
    bandwidths: Sequence[Fraction | None] | None = None,
    enough: Fraction | None = None,
) -> Choice:
    """Return the trees and rates of steps 1 to 3; PlanError if not even one tree is found.

    `deadline`: as of `time.monotonic`. A choice cut short by it is not `in_time`. `bandwidths`: the
    b to try, None: `tree_bandwidths`; returns the fastest outcome, or the first that reaches
    `enough`.
    """
    if bandwidths is None:
        bandwidths = tree_bandwidths(numbered, options)
    weights, limit = _measure(numbered, options)
    best: Choice | None = None
    for bandwidth in bandwidths:
        growth = _Growth(numbered, weights, options, deadline, bandwidth)
        grown = _lowered(growth, limit, options.keep)
        in_time = monotonic() < deadline
        if grown:
            choice = _chosen(numbered, options, grown, deadline)
            in_time = in_time and choice.in_time
            if best is None or choice.throughput > best.throughput:
                best = choice
            best = replace(best, in_time=in_time)
        if not in_time or (best and enough is not None and best.throughput >= enough):
            break
    if best is not None:
        return best
    name = numbered.graph.name
    if monotonic() >= deadline:
        raise PlanError(
            f"{name}: mtree found no tree in {options.time_limit:g} s; give it more time"
        )
    raise PlanError(
        f"{name}: mtree found no tree within the limits (random start, seed {options.seed}), "
        "although there are some; another seed may find one, and multi-tree will"
    )


def _chosen(
    numbered: NumberedGraph, options: ForestOptions, grown: Sequence[GrownTree], deadline: float
) -> Choice:
    """Return at most K of the trees, with rates by the true bandwidths (step 3)."""
    taken: dict[Tree, int] = {}
    for each in grown:
        taken[each.tree] = taken.get(each.tree, 0) + each.rate
    pool = list(taken)
    if options.max_trees is None or options.max_trees >= len(pool):
        rates = exact_rates(numbered, pool, options.min_rate)
        if rates is not None:
            return Choice(rates)
    widest = sorted(pool, key=lambda tree: -taken[tree])
    start: dict[Tree, Fraction] | None = None
    for count in range(min(options.max_trees or len(pool), len(pool)), 0, -1):
        start = exact_rates(numbered, widest[:count], options.min_rate)
        if start is not None:
            break
    return choose_trees(
        numbered,
        pool,
        max_trees=options.max_trees,
        min_rate=options.min_rate,
        gap=options.gap,
        seed=options.seed,
        deadline=deadline,
        start=start,
    )


def _measure(numbered: NumberedGraph, options: ForestOptions) -> tuple[list[int], int]:
    """Return what an edge adds to a distance, and the limit H.

    Picoseconds if limited so, else edges.
    """
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


@dataclass(frozen=True, slots=True)
class GrownTree:
    """A tree of step 1, the steps of bandwidth it took of its edges, and its diameter."""

    tree: Tree
    rate: int
    diameter: int


class _Growth:
    """Step 1 under any limit. `bandwidth`: b in the units of the capacities, None: the paper's."""

    def __init__(
        self,
        numbered: NumberedGraph,
        weights: list[int],
        options: ForestOptions,
        deadline: float,
        bandwidth: Fraction | None = None,
    ) -> None:
        self.numbered = numbered
        self.weights: Whole = np.array(weights, dtype=np.int64)
        self.seed = options.seed
        self.deadline = deadline
        step = max(numbered.unit, max(numbered.capacity) / STEPS)
        self.share: int | None = None
        if bandwidth is not None:
            # A whole number of steps, so that trees use up edges that b divides.
            self.share = math.ceil(bandwidth / step)
            step = bandwidth / self.share
        self.bandwidth: Whole = np.array(
            [
                max(1, int(capacity / step)) if capacity >= options.min_rate else 0
                for capacity in numbered.capacity
            ],
            dtype=np.int64,
        )
        self.least = max(1, int(options.min_rate / step))

    def trees(self, limit: int) -> list[GrownTree]:
        """Return TL and RL under a height limit: trees until no further one fits."""
        choose = random.Random(self.seed)
        residual = self.bandwidth.copy()
        found: list[GrownTree] = []  # S1
        while monotonic() < self.deadline:
            grown = self._grow(choose.choice(self.numbered.terminals), residual, 2 * limit)
            if grown is None:
                break
            edges, diameter = grown
            tree = self.numbered.joining(edges)
            rate = self._rate(tree, residual)
            residual[list(tree)] -= rate
            found.append(GrownTree(tree, rate, diameter))
        return found

    def _rate(self, tree: Tree, residual: Whole) -> int:
        """Return what a finished tree takes: b if its edges have it, else the smallest residual."""
        if self.share is None:
            return int(residual[residual >= self.least].min())
        return min(self.share, int(residual[list(tree)].min()))

    def _grow(self, start: int, residual: Whole, diameter: int) -> tuple[list[int], int] | None:
        """Grow a tree from a starting node (S2 to S11); None if it cannot be finished.

        Returns it with its diameter. It is finished when it holds the last worker.
        """
        numbered = self.numbered
        inside = np.zeros(numbered.size, dtype=bool)
        inside[start] = True  # S3
        distance = np.zeros((numbered.size, numbered.size), dtype=np.int64)
        farthest = np.zeros(numbered.size, dtype=np.int64)
        edges: list[int] = []
        usable = residual >= self.least
        missing = set(numbered.terminals) - {start}
        while missing:
            from_tail, from_head = inside[numbered.tails], inside[numbered.heads]
            candidates = np.flatnonzero((from_tail != from_head) & usable)  # S4
            near = np.where(from_tail, numbered.tails, numbered.heads)[candidates]
            # S9: a leaf lengthens only paths to itself.
            across = np.maximum(farthest.max(), farthest[near] + self.weights[candidates])
            allowed = across <= diameter  # S5, S10
            if not allowed.any():
                return None  # S11
            # S7, S8: among the widest; S10: the first that keeps the tree lowest.
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
            missing.discard(v)
            edges.append(edge)
        return edges, int(farthest.max())


def _lowered(growth: _Growth, limit: int, keep: Fraction) -> list[GrownTree]:
    """Return the trees for the smallest height that keeps this fraction of the throughput (step 2).

    The bisection ends when its interval is below a thousandth of the height.
    """
    best = growth.trees(limit)
    enough = keep * sum(each.rate for each in best)
    low, high = 0, _limit_of(best, limit)
    while low < high and high - low > high // 1000 and monotonic() < growth.deadline:
        middle = (low + high) // 2
        trees = growth.trees(middle)
        if trees and sum(each.rate for each in trees) >= enough:
            best, high = trees, _limit_of(trees, middle)
        else:
            low = middle + 1
    return best


def _limit_of(trees: Sequence[GrownTree], limit: int) -> int:
    """Return the lowest limit on the height with which the same trees would have grown.

    A lower limit that all diameters meet removes candidates, but none that was chosen.
    """
    return min(limit, max((-(-each.diameter // 2) for each in trees), default=limit))
