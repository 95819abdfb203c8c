"""Target parts of level-wise all-reduce: the share of a branch that each child's leaves keep.

[003][] divides a branch's part by its number of children (claims 1 and 4), which is best for equal
links. Otherwise branches behind faster links should keep more: an element that a branch keeps
arrives from its p - 1 siblings and is sent back to them; any other is sent once and received once.
So with w_v the part of v among its siblings, the link above v carries, in tensors,

    L_v = 1 + (p - 2) w_v + w_v L_parent,        0 above the root,

where the last term is what its leaves exchange at the levels above. For any parts L_v >= 1,
and the children of a node carry 2 (p - 1) + L_parent together; all loads of that kind come from the
parts w_v = (L_v - 1) / (p - 2 + L_parent). So the best parts follow from the best loads, and these
from passes up and down the tree.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import NamedTuple

from hopsum.collectives.tree import Tree

Parts = Mapping[str, Fraction]
"""Every node but the root -> its part of its parent branch's elements; siblings' add up to 1."""
Rates = Mapping[str, Fraction | None]
"""Every node but the root -> the rate of the link above it, each way; None: unlimited."""


class _Line(NamedTuple):
    """slope * time - offset: the most that a link can carry in a time, in tensors."""

    slope: Fraction
    offset: Fraction

    def at(self, time: Fraction) -> Fraction:
        return self.slope * time - self.offset


def equal_parts(tree: Tree) -> Parts:
    """Return the parts of [003][]: 1 / (number of children) at every node."""
    return {node: Fraction(1, len(tree.children[above])) for node, above in tree.parents.items()}


def link_loads(tree: Tree, parts: Parts) -> dict[str, Fraction]:
    """Return, for every node but the root, the load of the link above it, each way, in tensors.

    Of an all-reduce in which siblings exchange hierarchically, or by ring with equal parts.
    """
    loads = {tree.root: Fraction(0)}
    for node in reversed(tree.upwards):
        above, children = loads[node], tree.children[node]
        for child in children:
            kept = len(children) - 2 + above
            loads[child] = 1 + kept * parts[child] if len(children) > 1 else above
    del loads[tree.root]
    return loads


def time_of(loads: Mapping[str, Fraction], rates: Rates) -> Fraction:
    """Return when the slowest link has carried its load, in tensors over the rates' unit."""
    times = [load / rate for node, load in loads.items() if (rate := rates[node]) is not None]
    return max(times, default=Fraction(0))


def rated_parts(tree: Tree, rates: Rates) -> Parts:
    """Return the parts that minimize the time of the slowest link: [003][]'s if links are equal.

    (If these are as good.) Elsewhere leaves keep as much as each other, within what links can carry
    in the least time: so the flows between them are of one size, which share links evenly, and
    branches of one width and rate keep as much as each other too. O(nodes * links that bind).
    """
    tree = _without_stem(tree)
    stem = {node: Fraction(1) for node in rates if node not in tree.parents}
    equal = equal_parts(tree)
    least, lines = _least_time(tree, rates)
    alike = len({rates[node] for node in tree.parents}) <= 1
    if alike and time_of(link_loads(tree, equal), rates) <= least:
        return stem | dict(equal)
    leaves = dict.fromkeys(tree.nodes, 0)
    for node in tree.upwards:
        leaves[node] = sum(leaves[child] for child in tree.children[node]) or 1
    loads = {tree.root: Fraction(0)}
    parts: dict[str, Fraction] = {}
    for node in reversed(tree.upwards):
        children, above = tree.children[node], loads[node]
        free = len(children) - 2 + above
        if len(children) == 1 or not free:
            parts |= {child: Fraction(1, len(children)) for child in children}
            loads |= {child: max(Fraction(1), above) for child in children}
            continue
        room = {}
        for child in children:
            line = lines[child]
            room[child] = free if line is None else min(free, line.at(least) - 1)
        for child, load in _filled(room, leaves, free).items():
            parts[child] = load / free
            loads[child] = 1 + load
    return stem | parts


def _filled(
    room: Mapping[str, Fraction], weights: Mapping[str, int], amount: Fraction
) -> dict[str, Fraction]:
    """Divide the amount in proportion to the weights, up to the room of each.

    There is enough.
    """
    filled: dict[str, Fraction] = {}
    weight = sum(weights[name] for name in room)
    for name in sorted(room, key=lambda name: room[name] / weights[name]):
        filled[name] = min(room[name], amount * weights[name] / weight)
        amount -= filled[name]
        weight -= weights[name]
    return filled


def _without_stem(tree: Tree) -> Tree:
    """Return the tree from the first node with several children: nothing is exchanged above it."""
    root, parents = tree.root, dict(tree.parents)
    while len(tree.children[root]) == 1:
        root = tree.children[root][0]
        del parents[root]
    return Tree(root, parents)


def _least_time(tree: Tree, rates: Rates) -> tuple[Fraction, dict[str, _Line | None]]:
    """Return the least time, and the limit of the load above every node then (None: no limit).

    Every link carries a tensor or more; what it can carry is concave in the time, so that Newton's
    method from below ends exactly at the first time at which all can.
    """
    time = Fraction(0)
    while True:
        lines: dict[str, _Line | None] = {}
        later = time
        for node in tree.upwards:
            line = _limit(node, tree, rates, lines, time)
            lines[node] = line
            # Nothing is exchanged above the root.
            needed = Fraction(node != tree.root)
            if line is not None and line.at(time) < needed:
                later = max(later, (needed + line.offset) / line.slope)
        if later == time:
            return time, lines
        time = later


def _limit(
    node: str,
    tree: Tree,
    rates: Rates,
    lines: Mapping[str, _Line | None],
    time: Fraction,
) -> _Line | None:
    """Return the maximum load above a node.

    By its own rate, or by what its children can carry.
    """
    limits = []
    rate = rates.get(node)
    if rate is not None:
        limits.append(_Line(rate, Fraction(0)))
    children = [lines[child] for child in tree.children[node]]
    bound = [line for line in children if line is not None]
    if children and len(bound) == len(children):
        slope = sum((line.slope for line in bound), Fraction(0))
        offset = sum((line.offset for line in bound), Fraction(0))
        limits.append(_Line(slope, offset + 2 * (len(children) - 1)))
    return min(limits, key=lambda line: line.at(time), default=None)
