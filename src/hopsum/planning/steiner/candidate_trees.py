"""Candidate trees that join access switches to a root, so that flows meet early.

Nodes are switches, numbered in the network's order: every process iterates over sets of small
integers in the same order, so all trees here are deterministic. A tree is a mapping from a node to
the next one towards the root.

Directed Steiner trees are NP-hard; these are heuristics of a few shortest-path runs each:
*layered* (a shortest-path tree whose every layer takes the parents that cover most, best where
depth matters), *nearest* (Takahashi and Matsuyama 1980: attach the nearest terminal, at most
2 - 2/k times the optimum), and networkx's Mehlhorn and Kou (same bound).
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import networkx as nx

Parents = dict[int, int]
_CLOSE = 1e-9


@dataclass(frozen=True)
class SwitchGraph:
    """Switches 0..n-1: `neighbours[v]` maps each neighbour to the cost of a frame on that link."""

    neighbours: Sequence[dict[int, float]]
    aggregates: Sequence[bool]

    def distances(self, starts: dict[int, float], fixed: set[int]) -> tuple[list[float], Parents]:
        """Return distances from starting nodes, and predecessors; nodes in `fixed` keep theirs."""
        distance = [float("inf")] * len(self.neighbours)
        back: Parents = {}
        heap = []
        for node, cost in starts.items():
            distance[node] = cost
            heap.append((cost, node))
        heapq.heapify(heap)
        while heap:
            cost, node = heapq.heappop(heap)
            if cost > distance[node]:
                continue
            for neighbour, step in self.neighbours[node].items():
                reached = cost + step
                if neighbour not in fixed and reached < distance[neighbour] - _CLOSE:
                    distance[neighbour] = reached
                    back[neighbour] = node
                    heapq.heappush(heap, (reached, neighbour))
        return distance, back


def layered(
    graph: SwitchGraph, root: int, terminals: Sequence[int], aggregating_first: bool
) -> Parents:
    """Grow a shortest-path tree, from the farthest layer to the root, by greedy cover."""
    distance, _ = graph.distances({root: 0.0}, set())
    needy = {node for node in terminals if node != root}
    tree: Parents = {}
    while needy:
        farthest = max(distance[node] for node in needy)
        layer = {node for node in needy if distance[node] > farthest - _CLOSE}
        needy -= layer
        covers: dict[int, list[int]] = {}
        for node in sorted(layer):
            for parent, step in graph.neighbours[node].items():
                if abs(distance[parent] + step - distance[node]) < _CLOSE:
                    covers.setdefault(parent, []).append(node)
        uncovered = set(layer)
        while uncovered:
            gains = {
                parent: sum(node in uncovered for node in nodes) for parent, nodes in covers.items()
            }
            parent = max(
                (parent for parent, gain in gains.items() if gain),
                key=lambda p: (
                    p in needy or p in tree or p == root,
                    graph.aggregates[p] if aggregating_first else gains[p],
                    gains[p] if aggregating_first else graph.aggregates[p],
                    -p,
                ),
            )
            for node in covers[parent]:
                if node in uncovered:
                    uncovered.discard(node)
                    tree[node] = parent
            if parent != root:
                needy.add(parent)
    return tree


def nearest(graph: SwitchGraph, root: int, terminals: Sequence[int]) -> Parents:
    """Repeatedly attach the terminal nearest to the tree.

    Joining at a switch that does not aggregate also costs the path to the next one that does.
    """
    tree: Parents = {}
    join = {root: 0.0}
    missing = {node for node in terminals if node != root}
    while missing:
        distance, back = graph.distances(join, set(join))
        chosen = min(missing, key=lambda node: (distance[node], node))
        path = [chosen]
        while path[-1] not in join:
            tree[path[-1]] = back[path[-1]]
            path.append(back[path[-1]])
        for node in reversed(path[:-1]):
            parent = tree[node]
            cost = graph.neighbours[node][parent] + join[parent]
            join[node] = 0.0 if graph.aggregates[node] else cost
        missing -= set(path)
    return tree


def from_networkx(graph: SwitchGraph, root: int, terminals: Sequence[int], method: str) -> Parents:
    """Return networkx's approximate Steiner tree (`mehlhorn` or `kou`), rooted at the root."""
    undirected: nx.Graph[int] = nx.Graph()
    distance, _ = graph.distances({root: 0.0}, set())
    # networkx needs connected graphs; tasks in several components share `graph`.
    joined = [node for node, far in enumerate(distance) if far < math.inf]
    undirected.add_nodes_from(joined)
    for node in joined:
        for neighbour, cost in graph.neighbours[node].items():
            undirected.add_edge(node, neighbour, weight=cost)
    wanted = sorted({root, *terminals})
    if len(wanted) < 2:
        return {}
    steiner = nx.algorithms.approximation.steiner_tree(undirected, wanted, method=method)
    return {node: parent for parent, node in nx.bfs_edges(steiner, root)}


def candidates(
    graph: SwitchGraph, root: int, terminals: Sequence[int], *, quick: bool = False
) -> Iterator[Parents]:
    """Return all candidate trees, the simplest first; `quick`: without the slow methods."""
    makers: list[Callable[[], Parents]] = [
        lambda: layered(graph, root, terminals, aggregating_first=False),
        lambda: layered(graph, root, terminals, aggregating_first=True),
        lambda: from_networkx(graph, root, terminals, "mehlhorn"),
    ]
    if not quick:
        makers.insert(2, lambda: nearest(graph, root, terminals))
        makers.append(lambda: from_networkx(graph, root, terminals, "kou"))
    seen: list[Parents] = []
    for make in makers:
        tree = make()
        if tree not in seen:
            seen.append(tree)
            yield tree
