"""Checks trees with rates against the network, independently of the planner's reasoning."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from fractions import Fraction

from hopsum.collectives.plan import PlanError
from hopsum.network.model import shorten
from hopsum.planning.model.forest import Forest, ForestOptions, RatedTree, Verdict
from hopsum.planning.model.graph import PlanningGraph

BY_DIAMETER = frozenset({"mtree"})
"""Planners that limit the diameter to 2H, as [000][] does, instead of the delay."""
_ROUNDING = 1e-12
"""Tolerance of a sum of latencies in seconds: slightly more than half of the planners' quantum."""


def check_forest(
    graph: PlanningGraph,
    forest: Forest,
    options: ForestOptions,
    slots: Mapping[str, int] | None = None,
) -> None:
    """Raise PlanError with every fault of a forest; `slots` as for `forest_faults`."""
    faults = forest_faults(graph, forest, options, slots)
    if faults:
        listed = "\n  ".join(faults)
        raise PlanError(f"the trees of planner {forest.planner} are not valid:\n  {listed}")


def forest_faults(
    graph: PlanningGraph,
    forest: Forest,
    options: ForestOptions,
    slots: Mapping[str, int] | None = None,
) -> list[str]:
    """Return the faults of a forest, one line each; empty if it is correct.

    Every tree must reach all workers over edges of the network, meet the limits of the options, sum
    only where nodes combine, and have an exact rate; together they must fit every edge in both
    directions, be no faster than the bound, and as near to it as the verdict says. `slots`: node
    that combines -> number of trees it has slots for (not listed: any number).
    """
    faults = []
    sound = []
    for number, tree in enumerate(forest.trees):
        found = list(_shape_faults(graph, tree))
        if not found:
            sound.append(tree)
            found += _flow_faults(graph, tree)
            found += _limit_faults(graph, forest, tree, options)
        faults += [f"tree {number}, root {tree.root}: {fault}" for fault in found]
    if not forest.trees:
        faults.append("no trees: expected at least one")
    if options.max_trees is not None and len(forest.trees) > options.max_trees:
        faults.append(f"{len(forest.trees)} trees: expected at most {options.max_trees}")
    faults += _capacity_faults(graph, sound)
    faults += _slot_faults(graph, sound, slots or {})
    faults += _verdict_faults(forest, options)
    return faults


def _shape_faults(graph: PlanningGraph, tree: RatedTree) -> Iterator[str]:
    unknown = sorted({*tree.nodes, *tree.parents.values()} - set(graph.nodes))
    if unknown:
        yield f"there is no node {shorten(unknown)} in {graph.name}"
        return
    if tree.root in tree.parents:
        yield f"the root has a parent, {tree.parents[tree.root]}"
        return
    for node, parent in tree.parents.items():
        if node == parent or graph.edge(node, parent) not in graph.capacity:
            yield f"{node} hangs below {parent}, but there is no edge {node}-{parent}"
    above = _above(tree)
    loose = [node for node in tree.parents if node not in above]
    if loose:
        yield f"no path to the root from {shorten(loose)}"
    missing = sorted(graph.workers - set(tree.nodes), key=graph.index.__getitem__)
    if missing:
        yield f"does not reach the workers {shorten(missing)}"


def _above(tree: RatedTree) -> dict[str, int]:
    """Return the number of edges to the root, for nodes with a path."""
    depth = {tree.root: 0}
    for start in tree.parents:
        path: list[str] = []
        node = start
        while node in tree.parents and node not in depth and len(path) <= len(tree.parents):
            path.append(node)
            node = tree.parents[node]
        if node in depth:
            for distance, step in enumerate(reversed(path), depth[node] + 1):
                depth[step] = distance
    return depth


def _flow_faults(graph: PlanningGraph, tree: RatedTree) -> Iterator[str]:
    """Yield faults of flows: plain nodes forward all that arrive; others may sum any of them."""
    if tree.root not in graph.combines:
        yield "the root cannot combine"
    strange = sorted(set(tree.flows) - set(tree.parents))
    if strange:
        yield f"flows are given for {shorten(strange)}, which hang below nothing"
    arriving: dict[str, int] = {}
    depth = _above(tree)
    for node in sorted(tree.parents, key=lambda node: -depth[node]):
        parts = arriving.get(node, 0) + (node in graph.workers)
        flows = tree.flows.get(node, 1)
        # A branch without a worker sends nothing up, but still uses the results' rate down.
        if parts and node not in graph.combines and flows != parts:
            yield f"{node} only forwards: {parts} flows arrive, {flows} leave"
        elif parts and not 1 <= flows <= parts:
            yield f"{node}: {parts} flows to sum, {flows} leave; expected 1 to {parts}"
        parent = tree.parents[node]
        arriving[parent] = arriving.get(parent, 0) + (flows if parts else 0)


def _limit_faults(
    graph: PlanningGraph, forest: Forest, tree: RatedTree, options: ForestOptions
) -> Iterator[str]:
    if not isinstance(tree.rate, Fraction) or tree.rate <= 0:
        yield f"rate {tree.rate!r}: expected a fraction above 0"
    elif tree.rate < options.min_rate:
        yield f"rate {tree.rate}: expected {options.min_rate} or more"
    height = tree.height
    if options.max_height is not None and height > options.max_height:
        yield f"height {height}: expected at most {options.max_height}"
    if options.max_delay is None:
        return
    allowed = _ROUNDING * (len(tree.parents) + 1)
    if forest.planner in BY_DIAMETER:
        diameter, most = _diameter(graph, tree), 2 * options.max_delay
        if diameter > most + allowed:
            yield f"diameter {diameter:g} s: expected at most 2H = {most:g} s"
    elif tree.delay(graph) > options.max_delay + allowed:
        yield f"delay {tree.delay(graph):g} s: expected at most {options.max_delay:g} s"


def _diameter(graph: PlanningGraph, tree: RatedTree) -> float:
    """Return the diameter of a tree, in seconds."""
    below = dict.fromkeys(tree.nodes, 0.0)
    depth = _above(tree)
    widest = 0.0
    for node in sorted(tree.parents, key=lambda node: -depth[node]):
        parent = tree.parents[node]
        reach = below[node] + graph.latency[graph.edge(node, parent)]
        widest = max(widest, below[parent] + reach)
        below[parent] = max(below[parent], reach)
    return widest


def _capacity_faults(graph: PlanningGraph, trees: Iterable[RatedTree]) -> Iterator[str]:
    """Yield overloaded edges: sums go up flow by flow, results down once per edge."""
    carried: dict[tuple[str, str], Fraction] = {}
    for tree in trees:
        for node, parent in tree.parents.items():
            up = tree.rate * tree.flows.get(node, 1)
            carried[node, parent] = carried.get((node, parent), Fraction(0)) + up
            carried[parent, node] = carried.get((parent, node), Fraction(0)) + tree.rate
    for (node, peer), load in carried.items():
        capacity = graph.capacity[graph.edge(node, peer)]
        if load > capacity:
            yield f"{node} to {peer}: the trees need {load}, the edge has {capacity}"


def _slot_faults(
    graph: PlanningGraph, trees: Iterable[RatedTree], slots: Mapping[str, int]
) -> Iterator[str]:
    sums: dict[str, int] = {}
    for tree in trees:
        children: dict[str, int] = {}
        for node, parent in tree.parents.items():
            children[parent] = children.get(parent, 0) + tree.flows.get(node, 1)
        for node in tree.parents:
            if children.get(node, 0) > tree.flows.get(node, 1):
                sums[node] = sums.get(node, 0) + 1
    for node in sorted(slots):
        if sums.get(node, 0) > slots[node]:
            yield f"{node} sums for {sums[node]} trees: it has slots for {slots[node]}"


def _verdict_faults(forest: Forest, options: ForestOptions) -> Iterator[str]:
    throughput, bound = forest.throughput, forest.bound
    if throughput > bound:
        yield f"the trees carry {throughput}, more than the bound {bound}: one of them is wrong"
    near = throughput >= bound * (1 - Fraction(options.gap))
    if forest.verdict is Verdict.OPTIMAL and not near:
        yield f"called optimal with {throughput} of {bound}: a gap above {options.gap:g}"
