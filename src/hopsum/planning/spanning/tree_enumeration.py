"""All spanning trees of a small network."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from hopsum.planning.spanning.spanning_trees import NumberedEdges, Tree


def count_trees(numbered: NumberedEdges) -> float:
    """Return the number of spanning trees (Kirchhoff 1847), as a rounded float."""
    laplacian = np.zeros((numbered.size, numbered.size))
    for u, v in numbered.ends:
        laplacian[u, u] += 1
        laplacian[v, v] += 1
        laplacian[u, v] -= 1
        laplacian[v, u] -= 1
    _, logarithm = np.linalg.slogdet(laplacian[1:, 1:])
    return float(np.exp(min(logarithm, 700.0)))


def all_trees(numbered: NumberedEdges) -> Iterator[Tree]:
    """Yield every spanning tree once, in lexicographic order; O(m) for each node of the search."""
    last = len(numbered.ends)
    # (next edge, edges taken, component of each node)
    stack: list[tuple[int, Tree, tuple[int, ...]]] = [(0, (), tuple(range(numbered.size)))]
    while stack:
        edge, taken, component = stack.pop()
        if len(taken) == numbered.size - 1:
            yield taken
            continue
        if edge == last or not _connects(numbered, edge, component):
            continue
        stack.append((edge + 1, taken, component))
        u, v = (component[end] for end in numbered.ends[edge])
        if u != v:
            joined = tuple(u if found == v else found for found in component)
            stack.append((edge + 1, (*taken, edge), joined))


def _connects(numbered: NumberedEdges, first: int, component: tuple[int, ...]) -> bool:
    """Return whether the edges from `first` on connect the components."""
    above = list(range(numbered.size))

    def find(node: int) -> int:
        while above[node] != node:
            above[node] = above[above[node]]
            node = above[node]
        return node

    for u, v in numbered.ends[first:]:
        above[find(component[u])] = find(component[v])
    return len({find(found) for found in component}) == 1
