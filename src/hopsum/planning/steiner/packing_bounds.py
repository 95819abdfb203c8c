"""Bounds on packings of trees: lengths under which all trees are long, and cuts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from fractions import Fraction

import networkx as nx
import numpy as np
from numpy.typing import NDArray

from hopsum.network.model import shorten
from hopsum.network.units import format_si
from hopsum.planning.bounds.proportion import whole_proportion
from hopsum.planning.model.forest import Certificate
from hopsum.planning.model.graph import Edge
from hopsum.planning.steiner.packing_problem import PackingProblem

LONGEST = 1 << 30
"""Largest integer length made from a price: sums over all edges and flows stay below 2^60."""
SIMPLEST = 1000
"""Largest denominator of prices as fractions of the largest price."""

Lengths = NDArray[np.int64]


def whole_lengths(prices: NDArray[np.float64]) -> Lengths:
    """Return integer lengths from 1 to LONGEST + 1 in proportion to the prices of edges."""
    largest = float(prices.max())
    scaled = prices * (LONGEST / largest) if largest > 0 else prices
    return np.rint(scaled).astype(np.int64) + 1


def simple_lengths(prices: NDArray[np.float64]) -> Lengths | None:
    """Return integer lengths from 0 in proportion to prices, up to rounding, if there are any."""
    largest = float(prices.max())
    if not largest > 0:
        return None
    whole = whole_proportion(prices.tolist(), largest, SIMPLEST)
    return np.array(whole, dtype=np.int64) if max(whole) <= LONGEST else None


def lengths_bound(
    problem: PackingProblem, lengths: Lengths, twice_shortest: int | None
) -> list[Certificate]:
    """Return the bound that lengths of the edges prove, if any.

    `twice_shortest`: twice a lower bound on the length of a tree, where an edge counts half for
    each flow upwards and half for its result. Trees use rate times length of sum(length *
    capacity).
    """
    if not twice_shortest:
        return []
    shortest = Fraction(twice_shortest, 2)
    counted = [
        (edge, length)
        for edge, length in zip(problem.edges, lengths.tolist(), strict=True)
        if length
    ]
    capacity = problem.graph.capacity
    volume = sum((length * capacity[edge] for edge, length in counted), Fraction(0))
    bound = volume / shortest
    longest = max(length for _, length in counted)
    heavy = [(edge, length) for edge, length in counted if length * LONGEST >= 2 * longest]
    parts = _parts(problem, [edge for edge, _ in heavy])
    if len({length for _, length in heavy}) == 1 and len(heavy) == len(counted):
        links = sum((capacity[edge] for edge, _ in heavy), Fraction(0))
        crossed = shortest / heavy[0][1]
        text = (
            f"every tree takes at least {format_si(crossed)} times its rate of the links "
            f"{shorten(f'{u}-{v}' for (u, v), _ in heavy)}, which carry {format_si(links)} together"
        )
    else:
        weighed = shorten(f"{length} x {u}-{v}" for (u, v), length in heavy)
        text = (
            f"every tree takes at least {format_si(shortest)} times its rate of the links weighed "
            f"{weighed}, which carry {format_si(volume)} together"
        )
    return [Certificate("lengths", bound, parts, text)]


def cut_bound(problem: PackingProblem) -> Certificate:
    """Return the least bound by the links around a worker, or around a node with its leaves.

    Flows that a node does not sum, or that exceed its fan-in, leave it one by one.
    """
    best: Certificate | None = None
    for inside in _neighbourhoods(problem):
        edges = [e for e in problem.edges if (e[0] in inside) != (e[1] in inside)]
        carried = sum((problem.graph.capacity[edge] for edge in edges), Fraction(0))
        flows = _least_flows(problem, inside)
        if best is None or carried / flows < best.bound:
            listed = shorten(inside)
            several = "" if flows == 1 else f" in {flows} flows"
            best = Certificate(
                "cut",
                carried / flows,
                (inside,),
                f"every tree leaves {{{listed}}}{several} by the links "
                f"{shorten(f'{u}-{v}' for u, v in edges)}, which carry {format_si(carried)} "
                "together",
            )
    assert best is not None
    return best


def few_trees_bound(problem: PackingProblem, max_trees: int | None) -> list[Certificate]:
    """Return the bound of K trees: K times the largest rate at which some tree joins all workers.

    K is at most `most_trees`.
    """
    most, scarce = most_trees(problem, max_trees)
    if most is None:
        return []
    reason = f"every tree sums at {scarce}, which has slots for {most}; " if scarce else ""
    capacity = problem.graph.capacity
    rates = sorted(set(capacity.values()))
    low, high = 0, len(rates)
    while high - low > 1:
        middle = (low + high) // 2
        thick = {edge for edge, rate in capacity.items() if rate >= rates[middle]}
        if any(problem.tree(thick, root) for root in problem.roots):
            low = middle
        else:
            high = middle
    rate = rates[low]
    thin = [edge for edge, carried in capacity.items() if carried <= rate]
    return [
        Certificate(
            "trees",
            most * rate,
            _parts(problem, thin),
            f"{reason}every tree needs some link of {format_si(rate)} or less, one of "
            f"{shorten(f'{u}-{v}' for u, v in thin)}; {most} of them carry at most "
            f"{format_si(most * rate)}",
        )
    ]


def most_trees(problem: PackingProblem, max_trees: int | None) -> tuple[int | None, str]:
    """Return how many trees may exist (None: any number), and the node whose slots limit them.

    All trees must sum at a node with several leaves.
    """
    leaves = Counter(problem.leaves.values())
    several = [node for node, count in leaves.items() if count > 1 and node in problem.limits]
    scarce = min(several, key=lambda node: problem.limits[node], default=None)
    if scarce is None or (max_trees is not None and max_trees <= problem.limits[scarce]):
        return max_trees, ""
    return problem.limits[scarce], scarce


def _least_flows(problem: PackingProblem, inside: tuple[str, ...]) -> int:
    """Return how many flows leave a node with its leaves (the first of `nodes`) in any tree."""
    node, *leaves = inside
    flows = len(leaves) + (node in problem.graph.workers)
    if node in problem.merging:
        flows = max(1, flows - problem.fan_in + 1)
    return flows


def _neighbourhoods(problem: PackingProblem) -> Iterator[tuple[str, ...]]:
    """Return sets with a worker and without a root."""
    graph = problem.graph
    for worker in sorted(graph.workers, key=graph.index.__getitem__):
        yield (worker,)
    under: dict[str, list[str]] = {}
    for worker in sorted(graph.workers, key=graph.index.__getitem__):
        near = graph.neighbours[worker]
        if len(near) == 1:
            under.setdefault(near[0], []).append(worker)
    for node, workers in under.items():
        if node not in problem.roots:
            yield (node, *workers)


def _parts(problem: PackingProblem, cut: list[Edge]) -> tuple[tuple[str, ...], ...]:
    """Return the components with workers or roots that removing edges leaves, if several."""
    index = problem.index
    left: nx.Graph[str] = nx.Graph()
    left.add_nodes_from(problem.graph.nodes)
    left.add_edges_from(set(problem.edges) - set(cut))
    ends = problem.graph.workers | set(problem.roots)
    pieces = [
        tuple(sorted(piece, key=index.__getitem__))
        for piece in nx.connected_components(left)
        if piece & ends
    ]
    return tuple(sorted(pieces, key=lambda piece: index[piece[0]])) if len(pieces) > 1 else ()
