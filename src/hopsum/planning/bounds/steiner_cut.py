"""The Steiner cut: links that separate workers bound every all-reduce.

Wherever data are summed, those of the workers on one side of a cut cross it at least once, and the
result crosses it once the other way: the rate is at most the capacity of the cut in one direction.
Even where every node sums and copies, trees do not always reach it: `bidirected_cut` is tighter.
"""

from __future__ import annotations

from collections.abc import Iterable

from hopsum.collectives.plan import PlanError
from hopsum.network.model import shorten
from hopsum.network.units import format_si
from hopsum.planning.bounds.minimum_cut import FlowNetwork, integer_capacities
from hopsum.planning.model.forest import Certificate
from hopsum.planning.model.graph import PlanningGraph


def steiner_cut(graph: PlanningGraph, root: str | None = None) -> Certificate:
    """Return the least capacity that separates a worker from the root (without one: two workers).

    In units of the graph's capacities; exact. The first part is the side without the root. At most
    one maximum flow per worker: workers that no smaller cut separates are merged.

    PlanError for an unknown root, or if there are no two nodes to separate.
    """
    start, *others = terminals(graph, root)
    whole, unit = integer_capacities(graph)
    network = FlowNetwork(len(graph.nodes))
    adjacent: list[dict[int, int]] = [{} for _ in graph.nodes]
    for (u, v), capacity in whole.items():
        a, b = graph.index[u], graph.index[v]
        network.add(a, b, capacity, capacity)
        adjacent[a][b] = adjacent[b][a] = capacity
    merged = {start}
    best = 1 + min(sum(adjacent[node].values()) for node in (start, *others))
    side: frozenset[int] = frozenset()
    for sink in others:
        if sum(c for peer, c in adjacent[sink].items() if peer in merged) < best:
            cut = network.minimum_cut(merged, sink, best)
            if cut.value < best:
                best, side = cut.value, cut.near
        merged.add(sink)
    parts = _split(graph, side)
    bound = best * unit
    return Certificate(
        kind="cut",
        bound=bound,
        parts=parts,
        text=(
            f"the links between {shorten(parts[0])} and {shorten(parts[1])} carry "
            f"{format_si(bound)} in each direction, and all the data cross them: at most "
            f"{format_si(bound)}"
        ),
    )


def terminals(graph: PlanningGraph, root: str | None) -> list[int]:
    """Return the nodes to join, by number.

    The root (or else the first worker), then the workers.
    """
    if root is not None and root not in graph.index:
        raise PlanError(
            f"root {root!r}: there is no such node in {graph.name}; nodes: {shorten(graph.nodes)}"
        )
    workers = sorted(graph.index[name] for name in graph.workers)
    start = workers[0] if root is None else graph.index[root]
    others = [node for node in workers if node != start]
    if not others:
        raise PlanError(f"{graph.name}: {graph.nodes[start]} has no other node to sum with")
    return [start, *others]


def _split(graph: PlanningGraph, side: Iterable[int]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    inside = frozenset(side)
    return (
        tuple(name for i, name in enumerate(graph.nodes) if i in inside),
        tuple(name for i, name in enumerate(graph.nodes) if i not in inside),
    )
