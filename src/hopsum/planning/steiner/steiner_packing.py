"""Fractional Steiner packing of aggregation trees, by column generation.

A master program shares the capacities among the trees found so far; its prices become lengths,
and a shortest tree under them either enters the program or proves optimality. The proof is the
dual one: if no tree is shorter than L, and a tree of rate 1 uses its length of the capacities
weighted by length, all rates together are at most sum(length * capacity) / L. It is exact: lengths
are integers and, up to MAX_TERMINALS terminals, the shortest tree is exact as well
(`steiner_tree`). Beyond that, trees are heuristic (`candidate_trees`), and cuts bound their length
(`dual_ascent`).
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from hopsum.collectives.plan import PlanError
from hopsum.network.model import shorten
from hopsum.planning.model.column_generation import Packing, PackingSolution, generate_columns
from hopsum.planning.model.forest import Certificate, Forest, ForestOptions, RatedTree, Verdict
from hopsum.planning.model.linear_program import INFINITY
from hopsum.planning.steiner.candidate_trees import SwitchGraph, layered, nearest
from hopsum.planning.steiner.dual_ascent import dual_ascent_bound
from hopsum.planning.steiner.packing_bounds import (
    Lengths,
    cut_bound,
    few_trees_bound,
    lengths_bound,
    most_trees,
    simple_lengths,
    whole_lengths,
)
from hopsum.planning.steiner.packing_problem import PackingProblem
from hopsum.planning.steiner.steiner_tree import MAX_TERMINALS, SteinerTables
from hopsum.planning.steiner.tree_rates import choose_rates, edge_loads, exact_rates, meets_limits

WARM_UP_ROUNDS = 40
WARM_UP_STEP = 0.7
"""Each round makes the tightest edge of its tree exp(0.7) times as long."""
STEINER_UNIT = 1 << 20
"""The heuristics compare floats within 1e-9: lengths become 1e-6 to 1000."""
SOLVE_EVERY = 8
"""Rounds of the warm-up between two checks of whether the trees already suffice."""
_ROUNDING = 1e-12
"""Seconds by which two sums of the same latencies may differ."""
BETTER = 1e-7
"""A tree enters the program if its length is below 1 by at least this."""


@dataclass(frozen=True, slots=True)
class PricingResult:
    """Short trees under some lengths, one per root; twice a lower bound on any tree's length."""

    trees: tuple[RatedTree, ...]
    twice_shortest: int | None


class Pricing:
    """Shortest trees of a problem. `max_height`: edges from any worker to the root.

    `max_delay`: seconds; slower trees are not returned, but the bound covers those as well.
    """

    def __init__(
        self, problem: PackingProblem, max_height: int | None, max_delay: float | None = None
    ) -> None:
        self.problem = problem
        self._max_delay = INFINITY if max_delay is None else max_delay + _ROUNDING
        self._max_height = max_height
        index, position, graph = problem.index, problem.position, problem.graph
        self._roots = {name: index[name] for name in problem.roots}
        self._leaf_edges = {graph.edge(worker, parent) for worker, parent in problem.leaves.items()}
        self.leaf_numbers = np.array([position[edge] for edge in self._leaf_edges], dtype=np.intp)
        self._exact = len(problem.terminals) <= MAX_TERMINALS

    @property
    def exact(self) -> bool:
        """Return whether the trees are shortest ones."""
        return self._exact

    def price(self, lengths: Lengths) -> PricingResult:
        """Return trees that are short under these lengths (above 0) of the edges."""
        return self._price_exactly(lengths) if self._exact else self._price_roughly(lengths)

    def _price_exactly(self, lengths: Lengths) -> PricingResult:
        problem = self.problem
        adding, copying, numbers = problem.arcs
        over = lengths[list(numbers)]
        up = SteinerTables(adding, over, problem.terminals, self._max_height)
        down = up
        if not problem.merges_everywhere:
            down = SteinerTables(copying, over, problem.terminals, self._max_height)
        leaves = int(lengths[self.leaf_numbers].sum())
        trees, shortest = [], []
        for root, number in self._roots.items():
            up_length, down_length = up.length(number), down.length(number)
            if up_length is None or down_length is None:
                continue
            shortest.append(up_length + down_length + 2 * leaves)
            for tables in (up,) if down is up else (up, down):
                tree = self._tree(tables.arcs(number), root)
                if tree is not None:
                    trees.append(tree)
        return PricingResult(tuple(trees), min(shortest, default=None))

    def twice_at_least(self, lengths: Lengths) -> int | None:
        """Return twice a lower bound on the length of any tree, for lengths of 0 or more."""
        if self._exact:
            return self._price_exactly(lengths).twice_shortest
        problem = self.problem
        adding, _, numbers = problem.arcs
        terminals = [terminal.node for terminal in problem.terminals]
        roots = set(self._roots.values())
        bound = dual_ascent_bound(adding, lengths[list(numbers)], terminals, roots)
        return 2 * (bound + int(lengths[self.leaf_numbers].sum()))

    def _tree(self, arcs: set[tuple[int, int]], root: str) -> RatedTree | None:
        graph = self.problem.graph
        union = {graph.edge(graph.nodes[u], graph.nodes[v]) for u, v in arcs}
        tree = self.problem.tree(union | self._leaf_edges, root)
        if tree is None or (self._max_height is not None and tree.height > self._max_height):
            return None
        if tree.delay(graph) > self._max_delay:
            return None
        return tree

    def _price_roughly(self, lengths: Lengths) -> PricingResult:
        problem = self.problem
        adding, _, numbers = problem.arcs
        trees = []
        for root, number in self._roots.items():
            neighbours: list[dict[int, float]] = [{} for _ in problem.graph.nodes]
            for tail, head, edge in zip(
                adding.tails.tolist(), adding.heads.tolist(), numbers, strict=True
            ):
                if problem.graph.nodes[head] in problem.crossing or head == number:
                    # The search for paths starts at the root, so against the arcs.
                    cost = float(lengths[edge]) / STEINER_UNIT
                    neighbours[head][tail] = neighbours[tail][head] = cost
            graph = SwitchGraph(neighbours, adding.merges.tolist())
            terminals = [terminal.node for terminal in problem.terminals]
            for found in (
                nearest(graph, number, terminals),
                layered(graph, number, terminals, aggregating_first=True),
            ):
                tree = self._tree(set(found.items()), root)
                if tree is not None:
                    trees.append(tree)
        return PricingResult(tuple(trees), None)


@dataclass
class _Pool:
    """The trees found so far and the program that shares the capacities among them."""

    problem: PackingProblem
    trees: list[RatedTree] = field(default_factory=list)

    def __post_init__(self) -> None:
        capacity = self.problem.graph.capacity
        self.unit = max(capacity.values())
        self.shares = np.array([float(capacity[e] / self.unit) for e in self.problem.edges])
        self._known: set[tuple[str, tuple[tuple[str, str], ...]]] = set()
        self._packing = Packing(self.shares)

    def add(self, tree: RatedTree) -> bool:
        """Add a tree; False if it is already in the pool."""
        key = tree.root, tuple(sorted(tree.parents.items()))
        if key in self._known:
            return False
        self._known.add(key)
        self.trees.append(tree)
        self._packing.add(edge_loads(self.problem, tree))
        return True

    def solve(self) -> PackingSolution:
        """Return the rates of the trees, in units of `unit`, and the edges' prices."""
        packed = self._packing.solve()
        assert packed is not None
        return packed


def pack_trees(problem: PackingProblem, options: ForestOptions) -> Forest:
    """Return trees with rates whose sum is within `options.gap` of the bound, if time allows.

    The bound accounts for the height fully; for K only through the rate of a single tree; for r and
    the delay only by excluding links that are too slow; for slots and the fan-in only at nodes with
    leaves. PlanError, with the reason, if no tree meets the options.
    """
    start = time.monotonic()
    _check_slots(problem)
    usable = _within_delay(_of_min_rate(problem, options), options.max_delay)
    shallow = _shallowest(usable, options)
    pool = _Pool(usable)
    pricing = Pricing(usable, options.max_height, options.max_delay)
    for tree in shallow:
        pool.add(tree)
    end = start + options.time_limit
    proofs = [cut_bound(usable)]
    _warm_up(pool, pricing, proofs, options, end)
    packed = _generate(pool, pricing, proofs, options, end)
    rates = packed.rates.tolist()
    if pricing.exact or not _near(packed, pool, proofs, options):
        for lengths in _final_lengths(pool, packed.prices, pricing):
            proofs += lengths_bound(usable, lengths, pricing.twice_at_least(lengths))
    proofs += few_trees_bound(usable, options.max_trees)
    certificate = min(proofs, key=lambda proof: proof.bound)
    if not meets_limits(usable, pool.trees, rates, options):
        left = max(0.1, end - time.monotonic())
        rates, _ = choose_rates(usable, pool.trees, options, left)
    trees = exact_rates(usable, pool.trees, rates, options.min_rate)
    if not trees:
        raise PlanError(
            f"{problem.graph.name}: no choice of trees meets {_asked(options)}, and the slots "
            f"of {shorten(problem.limits) or 'its switches'}"
        )
    forest = Forest("multi-tree", trees, certificate, Verdict.FEASIBLE, 0.0)
    verdict = Verdict.FEASIBLE
    if forest.gap <= options.gap:
        verdict = Verdict.OPTIMAL
    elif time.monotonic() >= end:
        verdict = Verdict.TIME_LIMIT
    return replace(forest, verdict=verdict, seconds=time.monotonic() - start)


def _check_slots(problem: PackingProblem) -> None:
    most, scarce = most_trees(problem, None)
    if most == 0:
        raise PlanError(
            f"{problem.graph.name}: every tree sums at {scarce}, which has no free slots for one: "
            "use a smaller window, or a switch with more slots"
        )


def _of_min_rate(problem: PackingProblem, options: ForestOptions) -> PackingProblem:
    """Return the problem without the edges that no tree of the minimum rate can use."""
    graph = problem.graph
    thin = [edge for edge, capacity in graph.capacity.items() if capacity < options.min_rate]
    if not thin:
        return problem
    kept = {edge: capacity for edge, capacity in graph.capacity.items() if edge not in set(thin)}
    usable = replace(problem, graph=replace(graph, capacity=kept))
    if not any(usable.tree(set(kept), root) for root in problem.roots):
        raise PlanError(
            f"{graph.name}: no tree of rate {options.min_rate} joins all workers: "
            f"{shorten(f'{u}-{v}' for u, v in thin)} carry less"
        )
    return usable


def _within_delay(problem: PackingProblem, max_delay: float | None) -> PackingProblem:
    """Return the problem without the edges that no worker can use within a delay, in seconds."""
    if max_delay is None:
        return problem
    graph = problem.graph
    to_root = _delays(problem, problem.roots)
    most = max_delay + _ROUNDING
    late = [worker for worker in graph.workers if to_root.get(worker, INFINITY) > most]
    if late:
        worker = min(late, key=graph.index.__getitem__)
        raise PlanError(
            f"{graph.name}: no tree has a delay of {max_delay:g} s or less: {worker} is "
            f"{to_root.get(worker, INFINITY):g} s away from the nearest of "
            f"{shorten(problem.roots)}"
        )
    from_worker = _delays(problem, graph.workers)
    near = {
        (u, v): capacity
        for (u, v), capacity in graph.capacity.items()
        if min(
            from_worker.get(a, INFINITY) + graph.latency[u, v] + to_root.get(b, INFINITY)
            for a, b in ((u, v), (v, u))
        )
        <= most
    }
    return replace(problem, graph=replace(graph, capacity=near))


def _delays(problem: PackingProblem, starts: Iterable[str]) -> dict[str, float]:
    """Return the seconds from the nearest of some nodes, over nodes that packets may cross."""
    return {node: delay for node, (delay, _) in _quickest(problem, starts).items()}


def _quickest(
    problem: PackingProblem, starts: Iterable[str]
) -> dict[str, tuple[float, str | None]]:
    """Return node -> seconds from the nearest of some nodes, and predecessor (Dijkstra 1959)."""
    graph = problem.graph
    found: dict[str, tuple[float, str | None]] = {}
    heap: list[tuple[float, int, str, str | None]] = [
        (0.0, graph.index[node], node, None) for node in starts
    ]
    heapq.heapify(heap)
    while heap:
        delay, _, node, before = heapq.heappop(heap)
        if node in found:
            continue
        found[node] = delay, before
        if before is not None and node not in problem.crossing:
            continue
        for peer in graph.neighbours[node]:
            if peer not in found:
                further = delay + graph.latency[graph.edge(node, peer)]
                heapq.heappush(heap, (further, graph.index[peer], peer, node))
    return found


def _quickest_tree(problem: PackingProblem, root: str) -> RatedTree | None:
    """Return the tree in which every worker has the least latency to the root."""
    union = {
        problem.graph.edge(node, before)
        for node, (_, before) in _quickest(problem, (root,)).items()
        if before is not None
    }
    return problem.tree(union, root)


def _shallowest(problem: PackingProblem, options: ForestOptions) -> list[RatedTree]:
    """Return the lowest tree for each root that reaches the workers within `max_height`.

    With `max_delay`, also the fastest one; only trees within both limits.
    """
    name = problem.graph.name
    trees = [problem.tree(set(problem.edges), root) for root in problem.roots]
    found = [tree for tree in trees if tree is not None]
    if not found:
        raise PlanError(
            f"{name}: no root of {shorten(problem.roots)} is reached by all workers over nodes "
            "that forward"
        )
    height = min(tree.height for tree in found)
    if options.max_height is not None and height > options.max_height:
        raise PlanError(
            f"{name}: no tree is of height {options.max_height} or less: some worker is at least "
            f"{height} links away from every one of {shorten(problem.roots)}"
        )
    if options.max_height is not None:
        found = [tree for tree in found if tree.height <= options.max_height]
    if options.max_delay is None:
        return found
    quick = [_quickest_tree(problem, tree.root) for tree in found]
    highest = INFINITY if options.max_height is None else options.max_height
    within = [
        tree
        for tree in (*found, *quick)
        if tree is not None
        and tree.height <= highest
        and tree.delay(problem.graph) <= options.max_delay + _ROUNDING
    ]
    if not within:
        raise PlanError(
            f"{name}: no tree within both limits was found, of height {options.max_height} and "
            f"delay {options.max_delay:g} s; ask for more of one"
        )
    return within


def _asked(options: ForestOptions) -> str:
    parts = {
        "trees at most": options.max_trees,
        "height at most": options.max_height,
        "seconds of delay at most": options.max_delay,
        "rate at least": options.min_rate or None,
    }
    return ", ".join(f"{what} {value}" for what, value in parts.items() if value is not None)


def _warm_up(
    pool: _Pool,
    pricing: Pricing,
    proofs: list[Certificate],
    options: ForestOptions,
    end: float,
) -> None:
    """Fill the pool with diverse trees by multiplicative weights (Garg and Koenemann 2007)."""
    exponents = np.zeros(len(pool.shares))
    for number in range(WARM_UP_ROUNDS):
        if time.monotonic() > end:
            return
        if number % SOLVE_EVERY == 0 and _near(pool.solve(), pool, proofs, options):
            return
        lengths = whole_lengths(np.exp(exponents - exponents.max()) / pool.shares)
        priced = pricing.price(lengths)
        proofs += lengths_bound(pool.problem, lengths, priced.twice_shortest)
        if not priced.trees:
            return
        for tree in priced.trees:
            pool.add(tree)
        loads = edge_loads(pool.problem, priced.trees[0])
        most = min(pool.shares[edge] / flows for edge, flows in loads.items())
        for edge, flows in loads.items():
            exponents[edge] += WARM_UP_STEP * most * flows / pool.shares[edge]


def _generate(
    pool: _Pool,
    pricing: Pricing,
    proofs: list[Certificate],
    options: ForestOptions,
    end: float,
) -> PackingSolution:
    """Add trees until no more help, the gap is closed, or the time is up.

    Returns the rates, as fractions of the largest capacity, and the prices of the edges.
    """

    def price(packed: PackingSolution) -> bool:
        if _near(packed, pool, proofs, options) or time.monotonic() > end:
            return False
        lengths = whole_lengths(packed.prices)
        priced = pricing.price(lengths)
        proofs.extend(lengths_bound(pool.problem, lengths, priced.twice_shortest))
        added = [
            tree
            for tree in priced.trees
            if sum(packed.prices[e] * n for e, n in edge_loads(pool.problem, tree).items())
            < 1 - BETTER
            and pool.add(tree)
        ]
        return bool(added)

    return generate_columns(pool.solve, price)


def _near(
    packed: PackingSolution, pool: _Pool, proofs: Sequence[Certificate], options: ForestOptions
) -> bool:
    """Return whether rates are within the gap of the bound, with a margin for rounding."""
    bound = min(float(proof.bound / pool.unit) for proof in proofs)
    return float(sum(packed.rates.tolist())) >= bound * (1 - options.gap / 4)


def _final_lengths(pool: _Pool, prices: NDArray[np.float64], pricing: Pricing) -> Iterator[Lengths]:
    """Yield lengths for a final exact bound: prices; for many terminals, also equal inner links."""
    lengths = simple_lengths(prices)
    if lengths is not None:
        yield lengths
    if not pricing.exact:
        if lengths is None:
            yield whole_lengths(prices)
        inner = 1 / pool.shares
        inner[pricing.leaf_numbers] = 0
        if (lengths := simple_lengths(inner)) is not None:
            yield lengths
