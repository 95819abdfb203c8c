"""All-reduce on an arbitrary tree, level by level (003; US 10,956,357).

Ranks are the leaves of a physical tree, symmetric or not; inner nodes only pass on. Under a parent
with p children the sums of the children's branches are combined: every element lies with one leaf
of each branch, these p leaves exchange it, and one of them keeps it. What a group of p leaves has
in common is cut into p equal target parts, one for each, so that a leaf ends with the product of
1 / (number of children) over the nodes above it (claims 1 and 4). Branches of different width
exchange where their leaves' ranges overlap (claims 5 and 6).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from collectives.algorithms.rooted import RootedTree
from collectives.schedule import (
    Collective,
    Ranges,
    Schedule,
    ScheduleError,
    Step,
    check_counts,
    make_step,
    part,
)

NAME = "level-wise"

Span = tuple[int, int]
Held = tuple[int, int, int]
"""Start, stop and the rank that holds the branch's sum of these elements."""


class Siblings(StrEnum):
    """How the leaves of one group exchange."""

    RING = "ring"
    """In p - 1 turns around a ring, combining on the way (claim 2)."""
    HIERARCHICAL = "hierarchical"
    """In one step: each hands every other one that one's target part (claims 3 and 4)."""


def level_wise_all_reduce(
    tree: RootedTree,
    ranks: Sequence[str],
    elements: int,
    siblings: Siblings = Siblings.RING,
) -> Schedule:
    """Reduce-scatter from the leaves up, then all-gather in exactly the reverse order.

    `ranks` are leaves of the tree; branches without any do not count. In a level of p children a
    leaf sends (p - 1) / p of what it holds, each way. Raises ScheduleError for ranks that are not
    leaves of the tree, listed twice, or none.
    """
    levels = _Levels(tree, ranks, elements)
    steps = levels.reduce_scatter(siblings)
    steps += levels.all_gather(siblings, len(steps))
    whole = Ranges.whole(range(len(ranks)), elements)
    return _schedule(Collective.ALL_REDUCE, ranks, elements, steps, whole, whole)


def level_wise_reduce_scatter(
    tree: RootedTree,
    ranks: Sequence[str],
    elements: int,
    siblings: Siblings = Siblings.RING,
) -> Schedule:
    """The first half: every leaf ends with the sum of its target part."""
    levels = _Levels(tree, ranks, elements)
    whole = Ranges.whole(range(len(ranks)), elements)
    steps = levels.reduce_scatter(siblings)
    return _schedule(
        Collective.REDUCE_SCATTER, ranks, elements, steps, whole, levels.target_parts()
    )


def level_wise_all_gather(
    tree: RootedTree,
    ranks: Sequence[str],
    elements: int,
    siblings: Siblings = Siblings.RING,
) -> Schedule:
    """The second half: from every leaf's target part to everything everywhere."""
    levels = _Levels(tree, ranks, elements)
    whole = Ranges.whole(range(len(ranks)), elements)
    steps = levels.all_gather(siblings, 0)
    return _schedule(Collective.ALL_GATHER, ranks, elements, steps, levels.target_parts(), whole)


def _schedule(
    collective: Collective,
    ranks: Sequence[str],
    elements: int,
    steps: list[Step],
    given: Ranges,
    wanted: Ranges,
) -> Schedule:
    return Schedule(
        NAME, collective, len(ranks), elements, tuple(steps), given, wanted, names=tuple(ranks)
    )


@dataclass(slots=True)
class _Group:
    """Leaves, one of each of p branches, that hold the same elements: each gets a target part."""

    leaves: tuple[int, ...]
    spans: list[Span] = field(default_factory=list)

    def target_parts(self, shift: int) -> list[list[Span]]:
        """The spans of each leaf's target part; the first leaf's part comes `shift` places later.

        Equal up to one element; who gets one more goes around with `shift`.
        """
        count = len(self.leaves)
        length = sum(stop - start for start, stop in self.spans)
        shift = shift % count if length % count else 0
        parts: list[list[Span]] = [[] for _ in range(count)]
        spans = iter(self.spans)
        here, end = next(spans)
        for place in range(count):
            first, last = part(0, length, count, place)
            need = last - first
            while need:
                if here == end:
                    here, end = next(spans)
                taken = min(need, end - here)
                parts[(place - shift) % count].append((here, here + taken))
                here += taken
                need -= taken
        return parts


class _Levels:
    """The exchanges at every inner node, by the height of the node."""

    def __init__(self, tree: RootedTree, ranks: Sequence[str], elements: int) -> None:
        tree.check_ranks(ranks)
        check_counts(NAME, len(ranks), elements)
        numbers = {name: number for number, name in enumerate(ranks)}
        tree = tree.pruned(ranks)
        for node in numbers:
            if tree.children[node]:
                raise ScheduleError(
                    f"level-wise: rank {node} is an inner node of the tree, above "
                    f"{tree.children[node][0]}; expected ranks to be leaves"
                )
        # height -> number of children -> (leaves, target part of each)
        self._exchanges: dict[int, dict[int, list[tuple[tuple[int, ...], list[list[Span]]]]]] = {}
        held: dict[str, list[Held]] = {}
        for node in tree.upwards:
            below = [held.pop(child) for child in tree.children[node]]
            if node in numbers:
                held[node] = [(0, elements, numbers[node])]
            elif len(below) == 1:
                held[node] = below[0]
            else:
                held[node] = self._combine(tree.heights[node], below) if elements else below[0]
        self._held = held[tree.root]

    def _combine(self, height: int, branches: list[list[Held]]) -> list[Held]:
        """Note the exchanges between these branches; returns what their parent's leaves hold."""
        here = self._exchanges.setdefault(height, {}).setdefault(len(branches), [])
        after: list[Held] = []
        for shift, group in enumerate(_groups(branches)):
            parts = group.target_parts(shift)
            here.append((group.leaves, parts))
            for leaf, spans in zip(group.leaves, parts, strict=True):
                after += [(start, stop, leaf) for start, stop in spans]
        return sorted(after)

    def target_parts(self) -> Ranges:
        """What each leaf holds between reduce-scatter and all-gather."""
        return Ranges.of((leaf, start, stop) for start, stop, leaf in self._held)

    def reduce_scatter(self, siblings: Siblings) -> list[Step]:
        """From the lowest level up; steps of one level do not wait for each other."""
        return self._steps(sorted(self._exchanges), siblings, gather=False, first=0)

    def all_gather(self, siblings: Siblings, first: int) -> list[Step]:
        """From the root down; `first` steps come before, of which the last level is waited for."""
        return self._steps(sorted(self._exchanges)[::-1], siblings, gather=True, first=first)

    def _steps(
        self, heights: list[int], siblings: Siblings, *, gather: bool, first: int
    ) -> list[Step]:
        steps: list[Step] = []
        waits: list[int] = []
        if first and heights:
            waits = list(range(first - len(self._exchanges[heights[0]]), first))
        make = _ring if siblings is Siblings.RING else _direct
        for height in heights:
            before = len(steps)
            for children, groups in sorted(self._exchanges[height].items()):
                steps.append(make(groups, children, gather, waits))
            waits = list(range(first + before, first + len(steps)))
        return steps


def _groups(branches: list[list[Held]]) -> list[_Group]:
    """The elements by who holds them in each branch; branches hold every element once."""
    places = [0] * len(branches)
    groups: dict[tuple[int, ...], _Group] = {}
    start, end = 0, branches[0][-1][1]
    while start < end:
        current = [branch[place] for branch, place in zip(branches, places, strict=True)]
        stop = min(held[1] for held in current)
        leaves = tuple(held[2] for held in current)
        groups.setdefault(leaves, _Group(leaves)).spans.append((start, stop))
        start = stop
        for number, held in enumerate(current):
            places[number] += held[1] == stop
    return list(groups.values())


def _ring(
    groups: list[tuple[tuple[int, ...], list[list[Span]]]],
    children: int,
    gather: bool,
    after: list[int],
) -> Step:
    """p - 1 turns: in turn k leaf i sends leaf i + 1 the target part of leaf i - 1 - k.

    Gathering runs backwards: rows in reverse order make ranges move the other way.
    """
    rows: list[tuple[int, int, int, int]] = []
    for leaves, parts in groups:
        for layer in range(max(len(spans) for spans in parts)):
            group = []
            for i, leaf in enumerate(leaves):
                spans = parts[i - 1]
                start, stop = spans[layer] if layer < len(spans) else (0, 0)
                following = leaves[(i + 1) % children]
                group.append((leaf, following, start, stop))
            rows += _reversed(group, parts, layer) if gather else group
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


def _reversed(
    group: list[tuple[int, int, int, int]], parts: list[list[Span]], layer: int
) -> list[tuple[int, int, int, int]]:
    """The rows of a ring that undoes a group's: the last turn first, from target to source."""
    count = len(group)
    rows = []
    for i in reversed(range(count)):
        source, target, _, _ = group[i]
        # In the last turn, number count - 2, row i brought leaf i + 1 its own target part.
        spans = parts[(i + 1) % count]
        start, stop = spans[layer] if layer < len(spans) else (0, 0)
        rows.append((target, source, start, stop))
    return rows


def _direct(
    groups: list[tuple[tuple[int, ...], list[list[Span]]]],
    children: int,
    gather: bool,
    after: list[int],
) -> Step:
    """One step: every leaf of a group hands every other one that one's target part, or gets it."""
    rows: list[tuple[int, int, int, int]] = []
    for leaves, parts in groups:
        for owner, spans in zip(leaves, parts, strict=True):
            for other in leaves:
                if other != owner:
                    ends = (owner, other) if gather else (other, owner)
                    rows += [(*ends, start, stop) for start, stop in spans]
    sources, targets, starts, stops = zip(*rows, strict=True)
    return make_step(sources, targets, starts, stops, combine=not gather, after=after)
