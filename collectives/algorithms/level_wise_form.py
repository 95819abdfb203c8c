"""Which form of level-wise all-reduce suits a network: levels, target parts, pieces, exchange.

Four things are chosen, by closed forms alone:

- target parts by the rates of the links (`target_parts`); 003's own where links are alike;
- siblings by ring, which needs the fewest connections; hierarchically where three or more keep
  unequal parts, and where messages are so short that latency decides: a ring's turns add it up;
- pieces: many where a level above the lowest is the slowest, which waits for the first of them;
- levels: where no link between switches binds, levels only cost time, and all ranks are siblings:
  one ring in the order of the tree, which crosses every link once each way. Its all-gather goes
  around as its reduce-scatter did: back the other way, as between levels, one would take bandwidth
  from the other that is late (a star in Mininet took a third longer).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np

from collectives.algorithms.level_wise import (
    PIECES_A_LEVEL,
    Siblings,
    level_wise_all_reduce,
    pieces_for,
)
from collectives.algorithms.ring import ring_all_reduce
from collectives.algorithms.rooted import RootedTree, network_tree
from collectives.algorithms.target_parts import (
    Parts,
    Rates,
    equal_parts,
    link_loads,
    rated_parts,
    time_of,
)
from collectives.network import Network, NetworkError
from collectives.schedule import Schedule, check_counts

NAME = "level-wise"

ELEMENT_BITS = 32
PIECES_BELOW = 8
"""A level above the lowest, where the links of ranks are the slowest: these never wait."""
MOST_PEERS = 64
"""That a rank exchanges with hierarchically: each is a connection."""
UNEVEN = Fraction(1, 10)
"""That each level of branches of different width adds to the time, about: flows of different size
share links evenly, so that some pieces come late (in the flow simulator)."""


@dataclass(frozen=True, slots=True)
class Form:
    """How to exchange: `tree` has the ranks as its leaves."""

    tree: RootedTree
    siblings: Siblings
    pieces: int
    parts: Parts

    def all_reduce(self, ranks: Sequence[str], elements: int) -> Schedule:
        """The schedule of this form."""
        if self == _one_level(self.tree) and self.tree.heights[self.tree.root] == 1:
            return _ring_in_order(self.tree, ranks, elements)
        return level_wise_all_reduce(
            self.tree, ranks, elements, self.siblings, self.pieces, self.parts
        )


def form_for(network: Network, ranks: Sequence[str], elements: int) -> Form:
    """Choose the form for ranks of a network and a tensor of so many elements.

    Raises NetworkError where hosts forward, so that ranks cannot be leaves; ScheduleError for ranks
    that are none, unknown, listed twice or not connected, and for less than 0 elements.
    """
    check_counts(NAME, len(ranks), elements)
    if not network.switches:
        raise NetworkError(
            f"{NAME} on {network.name}: its hosts forward, and ranks must be leaves of a tree; "
            "use a network with switches, or another algorithm"
        )
    tree = network_tree(network, ranks)
    rates = {
        node: None if (rate := network.link(node, above).bandwidth) is None else Fraction(rate)
        for node, above in tree.parents.items()
    }
    latency = dict.fromkeys(tree.nodes, 0.0)
    for node in reversed(tree.upwards):
        for child in tree.children[node]:
            latency[child] = latency[node] + network.link(child, node).latency
    return choose_form(tree, rates, ranks, elements, 2 * max(latency.values()))


def choose_form(
    tree: RootedTree, rates: Rates, ranks: Sequence[str], elements: int, delay: float = 0.0
) -> Form:
    """The same on a tree whose leaves are the ranks.

    `rates`: of the links above nodes, bits/s. `delay`: from one rank to another, s, at most.
    """
    equal = equal_parts(tree)
    few_peers = most_peers(tree) <= MOST_PEERS
    parts = rated_parts(tree, rates) if few_peers else equal
    slowest = min((rate for rank in ranks if (rate := rates.get(rank))), default=None)
    message = ELEMENT_BITS * elements / len(ranks)
    short = (message / slowest if slowest else 0.0) < delay
    if short and few_peers:
        return Form(tree, Siblings.HIERARCHICAL, 1, parts)
    loads = link_loads(tree, parts)
    least = time_of(loads, rates)
    at_ranks = time_of({rank: loads[rank] for rank in ranks if rank in loads}, rates)
    by_ring = all(
        len(children) <= 2 or len({parts[child] for child in children}) == 1
        for children in tree.children.values()
    )
    waiting = least > at_ranks or not by_ring
    pieces = pieces_for(tree, ranks, elements, PIECES_A_LEVEL if waiting else PIECES_BELOW)
    if not short and _ring_time(rates, len(ranks)) < least * (1 + UNEVEN * uneven_levels(tree)):
        return _one_level(flattened(tree, ranks))
    return Form(tree, Siblings.RING if by_ring else Siblings.HIERARCHICAL, pieces, parts)


def flattened(tree: RootedTree, ranks: Sequence[str]) -> RootedTree:
    """The ranks right under the root, in the order of a walk through the tree."""
    wanted = set(ranks)
    ordered: list[str] = []
    waiting = [tree.root]
    while waiting:
        node = waiting.pop()
        if node in wanted and node != tree.root:
            ordered.append(node)
        waiting += reversed(tree.children[node])
    return RootedTree(tree.root, dict.fromkeys(ordered, tree.root))


def _one_level(tree: RootedTree) -> Form:
    return Form(tree, Siblings.RING, 1, equal_parts(tree))


def _ring_in_order(tree: RootedTree, ranks: Sequence[str], elements: int) -> Schedule:
    """Around the children of the root, twice in the same direction."""
    numbers = {name: number for number, name in enumerate(ranks)}
    order = np.array([numbers[name] for name in tree.children[tree.root]])
    ring = ring_all_reduce(len(ranks), elements)
    steps = tuple(
        replace(step, sources=order[step.sources], targets=order[step.targets])
        for step in ring.steps
    )
    return replace(ring, algorithm=NAME, steps=steps)


def most_peers(tree: RootedTree) -> int:
    """With how many others a leaf exchanges hierarchically, at most, where branches are alike."""
    peers = dict.fromkeys(tree.nodes, 0)
    for node in reversed(tree.upwards):
        for child in tree.children[node]:
            peers[child] = peers[node] + len(tree.children[node]) - 1
    return max(peers.values())


def uneven_levels(tree: RootedTree) -> int:
    """On how many heights there are siblings' branches of different width."""
    width = dict.fromkeys(tree.nodes, 0)
    heights = set()
    for node in tree.upwards:
        widths = [width[child] for child in tree.children[node]]
        width[node] = sum(widths) or 1
        if len(set(widths)) > 1:
            heights.add(tree.heights[node])
    return len(heights)


def _ring_time(rates: Rates, ranks: int) -> Fraction:
    """When every link of the tree has carried its 2 (n - 1) / n tensors."""
    slowest = min((rate for rate in rates.values() if rate is not None), default=None)
    return Fraction(0) if slowest is None else Fraction(2 * (ranks - 1), ranks) / slowest
