"""All-reduce on an arbitrary tree, level by level ([003][]; US 10,956,357).

Ranks are the leaves of a physical tree, symmetric or not; inner nodes only pass on. One that is a
rank as well ([003, figure 2][003]) is a leaf next to its children, at no distance from where they
meet (`ranks_as_leaves`). Under a parent with p children the sums of the children's branches are
combined: every element lies with one leaf of each branch, these p leaves exchange it, and one of
them keeps it. Each leaf keeps its branch's
target part of what it held: 1/p, so that it ends with the product of 1 / (number of children) over
the nodes above it (claims 1 and 4), or what the rates of links make best (`target_parts`). Branches
of different width exchange where their leaves' ranges overlap (claims 5 and 6). Which form suits a
network is for `level_wise_form` to say.

Levels overlap when the tensor is cut into pieces: while one is exchanged at a level, the next is at
the level below, on other links. Then the slowest level decides, not the sum of all. Two leaves meet
at one level only, so what one sends the other is a stream of that level, piece after piece; pieces
must share a chain, for streams of their own would all be in the same level at the same time.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise

from hopsum.collectives.algorithms.target_parts import Parts, equal_parts
from hopsum.collectives.choices import Collective
from hopsum.collectives.choices import Siblings as Siblings
from hopsum.collectives.schedule import (
    Ranges,
    Schedule,
    ScheduleError,
    Step,
    borders,
    check_counts,
    make_step,
)
from hopsum.collectives.tree import Tree

NAME = "level-wise"

PIECES_A_LEVEL = 32
"""Pieces per level above the lowest, so that filling and draining it takes 1 / 32 of the time at
most."""
LEAST_PIECES = 4
"""Minimum number of pieces, so that sums return while the rest is still being summed.

With one piece all ranks turn from summing to returning at once, and a late rank falls further
behind: results that others return share its link with the data that it still has to sum. More
pieces gain nothing (measured in Mininet), and each adds messages.
"""
LEAST_MESSAGE = 4096
"""Elements of the smallest message, on average: 16 KiB, about a link's bandwidth times delay."""
MOST_MESSAGES = 1024
"""Messages of a rank, approximately at most: a node's work grows with their square
(`execution`)."""

FEW_SPANS = 64
SPANS_A_LEAF = 4
"""Numbers of spans, in all and per leaf, beyond which the parts of a ring's groups may differ."""

Span = tuple[int, int]
Held = tuple[int, int, int]
"""Start, stop and the rank that holds the branch's sum of these elements."""


def level_wise_all_reduce(
    tree: Tree,
    ranks: Sequence[str],
    elements: int,
    siblings: Siblings = Siblings.RING,
    pieces: int = 1,
    parts: Parts | None = None,
) -> Schedule:
    """Return a reduce-scatter from the leaves up, then an all-gather in exactly the reverse order.

    `ranks` are nodes of the tree; branches without any are ignored. In a level of p children a leaf
    sends (p - 1) / p of its data, each way. `pieces` of the tensor are pipelined through the
    levels; 1: level after level. `parts`: shares that branches of `ranks_as_leaves` keep, None: 1/p
    each ([003][]), which is best for rings. Raises ScheduleError for ranks that are not in the
    tree, listed twice, or none, for less than one piece, and for parts that do not add up.
    """
    steps = _steps(_cut(tree, ranks, elements, siblings, pieces, parts))
    whole = Ranges.whole(range(len(ranks)), elements)
    return Schedule(
        NAME, Collective.ALL_REDUCE, len(ranks), elements, steps, whole, whole, names=tuple(ranks)
    )


def ranks_as_leaves(tree: Tree, ranks: Sequence[str]) -> Tree:
    """Return the tree without branches that hold no rank, and with all ranks as leaves.

    A rank that is an inner node becomes the first child of a node in its place, `inner_name`.
    Raises ScheduleError for ranks that are not in the tree, listed twice, or none.
    """
    tree.check_ranks(ranks)
    tree = tree.pruned(ranks)
    inner = {rank: inner_name(rank) for rank in ranks if tree.children[rank]}
    if not inner:
        return tree
    parents: dict[str, str] = {}
    for node in (tree.root, *tree.parents):
        if node in tree.parents:
            parents[inner.get(node, node)] = inner.get(tree.parents[node], tree.parents[node])
        if node in inner:
            parents[node] = inner[node]
    return Tree(inner.get(tree.root, tree.root), parents)


def inner_name(rank: str) -> str:
    """Return the name of the node that replaces a rank as parent of the rank and its children."""
    return f"branch of {rank}"


def pieces_for(
    tree: Tree, ranks: Sequence[str], elements: int, a_level: int = PIECES_A_LEVEL
) -> int:
    """Return the number of pieces of a tensor: a trade-off of latency and overlap.

    More pieces overlap more, and each costs every level's latency again. So `a_level` for every
    level above the lowest, or LEAST_PIECES, but no more than keep the smallest message,
    1 / len(ranks) of a piece, at LEAST_MESSAGE, and what a rank sends at MOST_MESSAGES; rounded
    down to a power of two, with which most pieces are equal. Raises ScheduleError for ranks that
    are not in the tree, listed twice, or none.
    """
    tree = ranks_as_leaves(tree, ranks)
    levels = dict.fromkeys(tree.nodes, 0)
    messages = dict.fromkeys(tree.nodes, 0)
    for node in reversed(tree.upwards):
        if node != tree.root:
            parent = tree.parents[node]
            count = len(tree.children[parent])
            levels[node] = levels[parent] + (count > 1)
            messages[node] = messages[parent] + 2 * (count - 1)
    pieces = min(
        max(LEAST_PIECES, a_level * (max(levels.values()) - 1)),
        elements // (len(ranks) * LEAST_MESSAGE),
        MOST_MESSAGES // max(1, *messages.values()),
    )
    return 1 << max(1, pieces).bit_length() - 1


def _cut(
    tree: Tree,
    ranks: Sequence[str],
    elements: int,
    siblings: Siblings,
    pieces: int,
    parts: Parts | None,
) -> list[_Levels]:
    """Return the exchanges of every piece; none is empty but that of an empty tensor."""
    tree = ranks_as_leaves(tree, ranks)
    check_counts(NAME, len(ranks), elements)
    if pieces < 1:
        raise ScheduleError(f"{NAME}: {pieces} pieces: expected at least one")
    numbers = {name: number for number, name in enumerate(ranks)}
    ends = borders(elements, min(pieces, max(1, elements))).tolist()
    if parts is None:
        parts = equal_parts(tree)
    shares = {node: _shares(node, below, parts) for node, below in tree.children.items() if below}
    return [_Levels(tree, numbers, piece, siblings, shares) for piece in pairwise(ends)]


def _shares(node: str, children: Sequence[str], parts: Parts) -> _Shares:
    """Return what the children keep of what `node` holds.

    ScheduleError unless these are its parts.
    """
    own = [parts.get(child, Fraction(-1)) for child in children]
    if min(own) < 0 or sum(own) != 1:
        raise ScheduleError(
            f"{NAME}: parts {[str(parts.get(child)) for child in children]} under {node}; expected "
            "one for every child, none below 0, that add up to 1"
        )
    return _Shares(own)


def _steps(cut: list[_Levels]) -> tuple[Step, ...]:
    """Return the steps, in each of which a piece is one level behind the one before.

    A piece goes down as soon as it is up, so that no level is idle while the last pieces are on
    their way to the top. Steps of one piece and level do not wait for each other.
    """
    heights = sorted(cut[0].exchanges)
    stages = [(height, False) for height in heights]
    stages += [(height, True) for height in reversed(heights)]
    steps: list[Step] = []
    waits: list[list[int]] = [[] for _ in cut]
    for turn in range(len(stages) + len(cut) - 1):
        for number, piece in enumerate(cut):
            if 0 <= turn - number < len(stages):
                # Waiting for the first piece takes no time, for ranges differ; it makes one
                # chain of all.
                after = waits[number] or [0] * bool(steps)
                made = piece.steps(*stages[turn - number], after)
                waits[number] = list(range(len(steps), len(steps) + len(made)))
                steps += made
    return tuple(steps)


@dataclass(slots=True)
class _Group:
    """Leaves, one of each of p branches, that hold the same elements; `parts`: who keeps which."""

    leaves: tuple[int, ...]
    parts: list[list[Span]]


class _Levels:
    """The exchanges of one piece at every inner node, by the height of the node.

    `exchanges`: height of a node -> its number of children -> groups of leaves. `held`: what each
    leaf holds between reduce-scatter and all-gather.
    """

    def __init__(
        self,
        tree: Tree,
        numbers: dict[str, int],
        piece: Span,
        siblings: Siblings,
        shares: Mapping[str, _Shares],
    ) -> None:
        self._siblings = siblings
        start, stop = piece
        self.exchanges: dict[int, dict[int, list[_Group]]] = {}
        held: dict[str, list[Held]] = {}
        for node in tree.upwards:
            below = [held.pop(child) for child in tree.children[node]]
            if node in numbers:
                held[node] = [(start, stop, numbers[node])]
            elif len(below) == 1 or start == stop:
                held[node] = below[0]
            else:
                held[node] = self._combine(tree.heights[node], below, shares[node])
        self.held = held[tree.root]

    def _combine(self, height: int, branches: list[list[Held]], shares: _Shares) -> list[Held]:
        """Add the exchanges between these branches; return what their parent's leaves hold."""
        groups = _groups(branches, self._siblings, shares)
        self.exchanges.setdefault(height, {}).setdefault(len(branches), []).extend(groups)
        kept = sorted(
            (start, stop, leaf)
            for group in groups
            for leaf, spans in zip(group.leaves, group.parts, strict=True)
            for start, stop in spans
        )
        joined: list[Held] = []
        for start, stop, leaf in kept:
            if joined and joined[-1][2] == leaf:
                joined[-1] = (joined[-1][0], stop, leaf)
            else:
                joined.append((start, stop, leaf))
        return joined

    def steps(self, height: int, gather: bool, after: list[int]) -> list[Step]:
        """Return the exchanges under nodes of one height."""
        make = _ring if self._siblings is Siblings.RING else _direct
        return [
            make(groups, children, gather, after)
            for children, groups in sorted(self.exchanges[height].items())
        ]


class _Shares:
    """Number of elements that each of p branches keeps, by their parts.

    Of the first x elements the first branch keeps its part, rounded down; of the others the second
    keeps its part of these, and so on. So every run of elements is divided without gaps, and about
    by the parts, however short it is.
    """

    def __init__(self, parts: Sequence[Fraction]) -> None:
        common = math.lcm(*(part.denominator for part in parts))
        self._weights = [int(part * common) for part in parts]

    def kept(self, start: int, stop: int) -> list[int]:
        """Return how many of the elements [start, stop) each branch keeps; all are kept once."""
        first, last = self._of_first(start), self._of_first(stop)
        return [after - before for before, after in zip(first, last, strict=True)]

    def _of_first(self, count: int) -> list[int]:
        found, left, weight_left = [], count, sum(self._weights)
        for weight in self._weights:
            found.append(left * weight // weight_left if weight else 0)
            left -= found[-1]
            weight_left -= weight
        return found


def _groups(branches: list[list[Held]], siblings: Siblings, shares: _Shares) -> list[_Group]:
    """Assign the elements that all p branches hold to branches, each element once.

    Each leaf keeps its branch's part of its data, in one of two ways. A ring is balanced in every
    turn only if the parts of each group are equal; this is given up where it would fragment the
    tensor too much.
    """
    exact, whole = _group_by_group(branches, shares), _first_to_end(branches, shares)
    most = _spans(whole)
    if siblings is Siblings.RING:
        leaves = {leaf for branch in branches for _, _, leaf in branch}
        most = max(most, FEW_SPANS + SPANS_A_LEAF * len(leaves))
    return exact if _spans(exact) <= most else whole


def _spans(groups: list[_Group]) -> int:
    return sum(len(spans) for group in groups for spans in group.parts)


def _overlaps(branches: list[list[Held]]) -> Iterator[tuple[int, int, list[Held]]]:
    """Yield ranges of elements with what each branch holds there, in order."""
    spans = [iter(branch) for branch in branches]
    current = [next(each) for each in spans]
    here, end = branches[0][0][0], branches[0][-1][1]
    while True:
        stop = min(held[1] for held in current)
        yield here, stop, current
        if stop == end:
            return
        current = [
            next(each) if held[1] == stop else held
            for each, held in zip(spans, current, strict=True)
        ]
        here = stop


def _first_to_end(branches: list[list[Held]], shares: _Shares) -> list[_Group]:
    """Let every span keep its branch's share of it.

    The branches' shares of any length add up to it. The span that ends first takes its elements
    first, so that each gets its share, in few pieces.
    """
    count = len(branches)
    groups: dict[tuple[int, ...], _Group] = {}
    left = [0] * count
    # Equal branches have equal spans.
    due: dict[Span, list[int]] = {}
    for here, stop, current in _overlaps(branches):
        for j, (start, end, _) in enumerate(current):
            if start == here:
                span = start, end
                left[j] = (due.get(span) or due.setdefault(span, shares.kept(*span)))[j]
        leaves = tuple(held[2] for held in current)
        group = groups.setdefault(leaves, _Group(leaves, [[] for _ in leaves]))
        start = here
        while start < stop:
            keeper = min((j for j in range(count) if left[j]), key=lambda j: current[j][1])
            taken = min(left[keeper], stop - start)
            group.parts[keeper].append((start, start + taken))
            left[keeper] -= taken
            start += taken
    return list(groups.values())


def _group_by_group(branches: list[list[Held]], shares: _Shares) -> list[_Group]:
    """Divide the elements that a group of leaves has in common into p parts, end to end."""
    common: dict[tuple[int, ...], list[Span]] = {}
    for here, stop, current in _overlaps(branches):
        common.setdefault(tuple(held[2] for held in current), []).append((here, stop))
    groups = []
    before = 0
    for leaves, spans in common.items():
        length = sum(stop - start for start, stop in spans)
        left = shares.kept(before, before + length)
        before += length
        group = _Group(leaves, [[] for _ in leaves])
        keeper = 0
        for start, stop in spans:
            while start < stop:
                while not left[keeper]:
                    keeper += 1
                taken = min(left[keeper], stop - start)
                group.parts[keeper].append((start, start + taken))
                left[keeper] -= taken
                start += taken
        groups.append(group)
    return groups


def _ring(
    groups: list[_Group],
    children: int,
    gather: bool,
    after: list[int],
) -> Step:
    """Return p - 1 turns: in turn k leaf i sends leaf i + 1 the target part of leaf i - 1 - k.

    `gather` runs backwards: rows in reverse order make ranges move the other way.
    """
    rows: list[tuple[int, int, int, int]] = []
    for group in groups:
        for layer in range(max(len(spans) for spans in group.parts)):
            parts = [spans[layer] if layer < len(spans) else (0, 0) for spans in group.parts]
            following = (*group.leaves[1:], group.leaves[0])
            ring = list(zip(group.leaves, following, range(children), strict=True))
            if gather:
                # In its last turn each row delivered the following leaf's own part.
                rows += [(v, u, *parts[(i + 1) % children]) for u, v, i in ring[::-1]]
            else:
                rows += [(u, v, *parts[i - 1]) for u, v, i in ring]
    sources, targets, starts, stops = zip(*rows, strict=True)
    return make_step(
        sources,
        targets,
        starts,
        stops,
        combine=not gather,
        after=after,
        repeat=children - 1,
        period=children,
    )


def _direct(
    groups: list[_Group],
    children: int,
    gather: bool,
    after: list[int],
) -> Step:
    """Return a step in which each leaf sends, or receives, all other leaves' target parts."""
    rows: list[tuple[int, int, int, int]] = []
    for group in groups:
        for keeper, spans in zip(group.leaves, group.parts, strict=True):
            for other in group.leaves:
                if other != keeper:
                    ends = (keeper, other) if gather else (other, keeper)
                    rows += [(*ends, start, stop) for start, stop in spans]
    sources, targets, starts, stops = zip(*rows, strict=True)
    return make_step(sources, targets, starts, stops, combine=not gather, after=after)
