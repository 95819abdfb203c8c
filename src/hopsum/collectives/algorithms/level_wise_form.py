"""Choice of the form of level-wise all-reduce for a network: levels, parts, pieces, exchange.

Four things are chosen, by closed forms alone, unless `FormOptions` say:

- target parts by the rates of the links (`target_parts`); those of [003][] where links are equal;
- siblings by ring, which needs the fewest connections; hierarchically where three or more keep
  unequal parts, and where messages are so short that latency decides: a ring's turns add it up;
- pieces: many where a level above the lowest is the slowest, which waits for the first of them,
  and some on one level, so that no rank has to wait for all others before sums go back;
- levels: where no link between switches binds, levels only cost time, and all ranks are siblings:
  one ring in the order of the tree, which crosses every link once each way. `Form.describe` says
  which it is.

Hosts that forward may be inner nodes of the tree and ranks as well ([003, figure 2][003]).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from hopsum.collectives.algorithms.level_wise import (
    PIECES_A_LEVEL,
    Siblings,
    inner_name,
    level_wise_all_reduce,
    pieces_for,
    ranks_as_leaves,
)
from hopsum.collectives.algorithms.rooted import network_tree
from hopsum.collectives.algorithms.target_parts import (
    Parts,
    Rates,
    equal_parts,
    link_loads,
    rated_parts,
    time_of,
)
from hopsum.collectives.choices import DEFAULT_FORM as DEFAULT
from hopsum.collectives.choices import FormOptions as FormOptions
from hopsum.collectives.choices import Shape as Shape
from hopsum.collectives.schedule import Schedule, check_counts
from hopsum.collectives.tree import Tree
from hopsum.network.model import Network

NAME = "level-wise"

ELEMENT_BITS = 32
PIECES_BELOW = 8
"""Pieces per level above the lowest where the ranks' links are the slowest: they never wait."""
MOST_PEERS = 64
"""Maximum peers of a rank in a hierarchical exchange: each is a connection."""
UNEVEN = Fraction(1, 10)
"""Part of the time that each level of branches of different width adds, approximately: flows of
different size share links evenly, so that some pieces come late (in the flow simulator)."""


NOT_BOUND = "no link between levels binds; --level-wise-form levels goes level by level"


@dataclass(frozen=True, slots=True)
class Form:
    """How to exchange: `tree` has the ranks as its leaves.

    `flat`: they hang right under its root, although the network's tree has more levels or another
    form was possible; `why`: the reason, where that was chosen and not asked for.
    """

    tree: Tree
    siblings: Siblings
    pieces: int
    parts: Parts
    flat: bool = False
    why: str = ""

    def describe(self) -> str:
        """Return a line of text: flat or number of levels, siblings, target parts, pieces."""
        how = "around a ring" if self.siblings is Siblings.RING else "hierarchically"
        pieces = f"{self.pieces} piece{'s' * (self.pieces != 1)}"
        if self.flat:
            why = f" ({self.why})" if self.why else ""
            return (
                f"flat{why}: all ranks, in the order of the tree, exchange {how} on one level, "
                f"{pieces}"
            )
        levels = len({self.tree.heights[n] for n, c in self.tree.children.items() if len(c) > 1})
        parts = "equal" if self.parts == equal_parts(self.tree) else "unequal"
        return (
            f"{levels} level{'s' * (levels != 1)}: siblings exchange {how}, {parts} target parts, "
            f"{pieces}"
        )

    def all_reduce(self, ranks: Sequence[str], elements: int) -> Schedule:
        """Return the schedule of this form."""
        return level_wise_all_reduce(
            self.tree, ranks, elements, self.siblings, self.pieces, self.parts
        )


def form_for(
    network: Network, ranks: Sequence[str], elements: int, options: FormOptions = DEFAULT
) -> Form:
    """Choose the form for ranks of a network and a tensor of `elements` elements.

    Where hosts forward, ranks may be inner nodes of their tree. Raises NetworkError where there is
    no path between ranks; ScheduleError for ranks that are none, unknown, listed twice or not
    connected, and for less than 0 elements.
    """
    check_counts(NAME, len(ranks), elements)
    tree = network_tree(network, ranks)
    rates: dict[str, Fraction | None] = {}
    for node, above in tree.parents.items():
        rate = network.link(node, above).bandwidth
        rates[node] = None if rate is None else Fraction(rate)
    for rank in ranks:
        if tree.children[rank]:
            # There is no link from an inner node to the node where its children meet.
            rates[inner_name(rank)] = rates.get(rank)
            rates[rank] = None
    latency = dict.fromkeys(tree.nodes, 0.0)
    for node in reversed(tree.upwards):
        for child in tree.children[node]:
            latency[child] = latency[node] + network.link(child, node).latency
    leaves = ranks_as_leaves(tree, ranks)
    rates = {node: rates[node] for node in leaves.parents}
    return choose_form(leaves, rates, ranks, elements, 2 * max(latency.values()), options)


def forms_of(
    network: Network, ranks: Sequence[str], sizes: Iterable[int], options: FormOptions = DEFAULT
) -> tuple[str, ...]:
    """Describe the forms in which tensors of these lengths are summed, each once."""
    described = (form_for(network, ranks, size, options).describe() for size in sizes)
    return tuple(dict.fromkeys(described))


def choose_form(
    tree: Tree,
    rates: Rates,
    ranks: Sequence[str],
    elements: int,
    delay: float = 0.0,
    options: FormOptions = DEFAULT,
) -> Form:
    """Choose the form on a tree whose leaves are the ranks.

    `rates`: of the links above nodes, bits/s. `delay`: from one rank to another, s, at most.
    """
    if options.shape is Shape.FLAT:
        return _one_level(tree, ranks, elements, options.siblings or Siblings.RING)
    wanted = options.siblings
    equal = equal_parts(tree)
    few_peers = wanted is Siblings.HIERARCHICAL or most_peers(tree) <= MOST_PEERS
    parts = rated_parts(tree, rates) if few_peers else equal
    slowest = min((rate for rank in ranks if (rate := rates.get(rank))), default=None)
    message = ELEMENT_BITS * elements / len(ranks)
    short = (message / slowest if slowest else 0.0) < delay
    if short and few_peers and wanted is not Siblings.RING:
        return Form(tree, Siblings.HIERARCHICAL, 1, parts)
    by_ring = all(
        len(children) <= 2 or len({parts[child] for child in children}) == 1
        for children in tree.children.values()
    )
    if wanted is Siblings.RING and not by_ring:
        parts, by_ring = equal, True
    loads = link_loads(tree, parts)
    least = time_of(loads, rates)
    at_ranks = time_of({rank: loads[rank] for rank in ranks if rank in loads}, rates)
    waiting = least > at_ranks or not by_ring
    pieces = pieces_for(tree, ranks, elements, PIECES_A_LEVEL if waiting else PIECES_BELOW)
    flat = options.shape is Shape.AUTO and wanted is not Siblings.HIERARCHICAL and not short
    if flat and _ring_time(rates, len(ranks)) < least * (1 + UNEVEN * uneven_levels(tree)):
        return replace(_one_level(tree, ranks, elements, Siblings.RING), why=NOT_BOUND)
    siblings = wanted or (Siblings.RING if by_ring else Siblings.HIERARCHICAL)
    return Form(tree, siblings, pieces, parts)


def flattened(tree: Tree, ranks: Sequence[str]) -> Tree:
    """Return the ranks right under the root, in the order of a walk through the tree."""
    wanted = set(ranks)
    ordered: list[str] = []
    waiting = [tree.root]
    while waiting:
        node = waiting.pop()
        if node in wanted and node != tree.root:
            ordered.append(node)
        waiting += reversed(tree.children[node])
    return Tree(tree.root, dict.fromkeys(ordered, tree.root))


def _one_level(tree: Tree, ranks: Sequence[str], elements: int, siblings: Siblings) -> Form:
    level = flattened(tree, ranks)
    pieces = pieces_for(level, ranks, elements)
    return Form(level, siblings, pieces, equal_parts(level), flat=True)


def most_peers(tree: Tree) -> int:
    """Return the most peers of a leaf in a hierarchical exchange, for equal branches."""
    peers = dict.fromkeys(tree.nodes, 0)
    for node in reversed(tree.upwards):
        for child in tree.children[node]:
            peers[child] = peers[node] + len(tree.children[node]) - 1
    return max(peers.values())


def uneven_levels(tree: Tree) -> int:
    """Return the number of heights at which siblings' branches differ in width."""
    width = dict.fromkeys(tree.nodes, 0)
    heights = set()
    for node in tree.upwards:
        widths = [width[child] for child in tree.children[node]]
        width[node] = sum(widths) or 1
        if len(set(widths)) > 1:
            heights.add(tree.heights[node])
    return len(heights)


def _ring_time(rates: Rates, ranks: int) -> Fraction:
    """Return the time when every link of the tree has carried its 2 (n - 1) / n tensors."""
    slowest = min((rate for rate in rates.values() if rate is not None), default=None)
    return Fraction(0) if slowest is None else Fraction(2 * (ranks - 1), ranks) / slowest
