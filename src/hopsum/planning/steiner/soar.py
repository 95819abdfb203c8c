"""Choice of the k switches of a tree that should sum to minimise the links' total busy time.

The optimal dynamic program of SOAR (Segal, Avin and Scalosub, CoNEXT 2021, arXiv 2110.14224): a
subtree's messages cost their path up to the nearest switch above that sums, so the table of a
subtree has one entry for every distance to that switch and every number of switches. As published,
a switch that sums makes one message of any number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hopsum.planning.steiner.low_congestion import min_plus, split

Costs = NDArray[np.float64]
"""[l, j]: what a subtree costs if the nearest summing switch is l + 1 links above its root and j
switches in it may sum."""


@dataclass(frozen=True, slots=True)
class Placement:
    """The switches that sum, and the total time for which links are busy."""

    summing: frozenset[int]
    cost: float


def soar(
    parents: Sequence[int],
    local: Sequence[int],
    cost: Sequence[float],
    most: int,
    able: Sequence[bool] | None = None,
) -> Placement:
    """Choose at most `most` switches of a tree so that sum(cost * messages) is least.

    Switches are 0..n-1. `parents[v]`: next one towards the root, -1 at the root, whose link leads
    to the destination. `local[v]`: messages that begin at v. `cost[v]`: cost of one message over
    the link above v, such as 1 / bandwidth. `able`: switches that may be chosen, None: all.

    O(n h k^2) at most, with h the height. ValueError if the parents form no tree.
    """
    order, depth, children = _ordered(parents)
    root = order[0]
    above = _ways_up(parents, cost, order, depth)
    table: dict[int, Costs] = {}
    merged: dict[int, list[Costs]] = {}
    sums: dict[int, Costs] = {}
    messages = list(local)
    for v in reversed(order):
        if v != root:
            messages[parents[v]] += messages[v]
        merged[v] = [(local[v] * above[v])[:, None]]
        below = np.zeros((1, 1))
        for child in children[v]:
            # The rows of a child: one link farther than v's, or v itself sums.
            merged[v].append(min_plus(merged[v][-1], table[child][1:], most + 1))
            below = min_plus(below, table[child][:1], most)
        plain = merged[v][-1]
        if most < 1 or not (able is None or able[v]) or not messages[v]:
            table[v] = plain
            continue
        sums[v] = above[v][:, None] + below
        table[v] = _either(plain, sums[v], most + 1)
    summing = _trace(order, children, table, merged, sums, most)
    return Placement(frozenset(summing), float(table[root][0, -1]))


def _ordered(parents: Sequence[int]) -> tuple[list[int], list[int], list[list[int]]]:
    """Return the switches from the root downwards, their depths (root: 0) and their children."""
    children: list[list[int]] = [[] for _ in parents]
    order = []
    for v, parent in enumerate(parents):
        if parent < 0:
            order.append(v)
        else:
            children[parent].append(v)
    if len(order) != 1:
        raise ValueError(f"{len(order)} switches without a parent: expected one, the root")
    depth = [0] * len(parents)
    for v in order:
        for child in children[v]:
            depth[child] = depth[v] + 1
        order += children[v]
    if len(order) != len(parents):
        raise ValueError("the parents form a cycle: expected a tree")
    return order, depth, children


def _ways_up(
    parents: Sequence[int], cost: Sequence[float], order: Sequence[int], depth: Sequence[int]
) -> dict[int, Costs]:
    """Return [v][l]: the cost of one message over the first l + 1 links above v."""
    above: dict[int, Costs] = {}
    for v in order:
        above[v] = np.full(depth[v] + 1, float(cost[v]))
        if depth[v]:
            above[v][1:] += above[parents[v]]
    return above


def _either(plain: Costs, sums: Costs, length: int) -> Costs:
    """Return the better of not summing with j switches below, and summing with j - 1."""
    size = min(length, max(plain.shape[1], sums.shape[1] + 1))
    result = np.empty((plain.shape[0], size))
    result[:, : plain.shape[1]] = plain
    result[:, plain.shape[1] :] = plain[:, -1:]
    one_less = sums[:, : size - 1]
    part = result[:, 1 : 1 + one_less.shape[1]]
    np.minimum(part, one_less, out=part)
    return result


def _trace(
    order: Sequence[int],
    children: Sequence[Sequence[int]],
    table: dict[int, Costs],
    merged: dict[int, list[Costs]],
    sums: dict[int, Costs],
    most: int,
) -> list[int]:
    """Follow the tables from the root down; return the switches that sum."""
    root = order[0]
    given = {root: (0, table[root].shape[1] - 1)}
    summing = []
    for v in order:
        row, number = given[v]
        plain = merged[v][-1]
        child_row = row + 1
        if table[v][row, number] < plain[row, min(number, plain.shape[1] - 1)]:
            summing.append(v)
            number, child_row = number - 1, 0
            before = [np.zeros(1)]
            for child in children[v]:
                before.append(min_plus(before[-1], table[child][0], most))
        else:
            before = [part[row] for part in merged[v]]
        number = min(number, len(before[-1]) - 1)
        for child, rest in zip(reversed(children[v]), reversed(before[:-1]), strict=True):
            part, number = split(rest, table[child][child_row], number)
            given[child] = (child_row, part)
    return summing
