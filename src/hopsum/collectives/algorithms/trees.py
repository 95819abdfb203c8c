"""Pipelined trees: sums go up to the root and results come down, block by block, on several trees.

One tree, the double binary tree (Sanders, Speck and Träff, Parallel Computing 2009) and multiple
spanning trees with rates ([000][]) are the same schedule: a chain of steps for each tree, on its
own range of the tensor. A node of a tree that is no rank (a switch, a server) is a relay.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from hopsum.collectives.algorithms.rooted import heap_tree
from hopsum.collectives.choices import Collective
from hopsum.collectives.schedule import (
    Ranges,
    Schedule,
    ScheduleError,
    Step,
    check_counts,
    make_step,
)
from hopsum.collectives.tree import Tree, check_ranks

DEFAULT_BLOCK = 16384
"""Elements after which a node forwards: 64 KiB of 4-byte elements."""


@dataclass(frozen=True, slots=True)
class SharedTree:
    """A tree and its share of the tensor, in proportion to the other trees' ([000 step 3][000])."""

    tree: Tree
    share: Fraction = Fraction(1)


def tree_all_reduce(
    ranks: Sequence[str],
    elements: int,
    tree: Tree | None = None,
    block: int = DEFAULT_BLOCK,
) -> Schedule:
    """Return an all-reduce over one pipelined tree, by default a balanced binary one.

    In that, node i is under node (i - 1) // 2. Every edge carries the tensor once each way. Raises
    ScheduleError for no ranks, ranks listed twice or not in the tree.
    """
    trees = [SharedTree(tree or heap_tree(ranks))]
    return _forest("tree", ranks, elements, trees, block)


def double_tree_all_reduce(
    ranks: Sequence[str], elements: int, block: int = DEFAULT_BLOCK
) -> Schedule:
    """Return an all-reduce over two binary trees; inner nodes of one are leaves of the other.

    Each takes half of the tensor. (With an odd number of ranks one rank is inner in both.) So every
    rank sends at most about the tensor once up and once down, at the height log2 of the number of
    ranks.
    """
    check_ranks(ranks)
    trees = [SharedTree(tree) for tree in double_binary_trees(ranks)]
    return _forest("double-tree", ranks, elements, trees, block)


def multi_tree_all_reduce(
    ranks: Sequence[str], elements: int, trees: Sequence[SharedTree], block: int = DEFAULT_BLOCK
) -> Schedule:
    """Return an all-reduce over trees with shares: each sums its part of the tensor ([000][]).

    Raises ScheduleError for trees without all ranks, a negative share, or shares that are all 0.
    """
    return _forest("multi-tree", ranks, elements, trees, block)


def server_all_reduce(
    ranks: Sequence[str], elements: int, servers: Sequence[str], block: int = DEFAULT_BLOCK
) -> Schedule:
    """Return an all-reduce by parameter servers, each of an equal part of the tensor.

    A server may be one of the ranks or a host of its own; its links carry its part once a rank.
    """
    check_ranks(ranks)
    check_ranks(servers)
    trees = [
        SharedTree(Tree(server, {rank: server for rank in ranks if rank != server}))
        for server in servers
    ]
    return _forest("server", ranks, elements, trees, block)


def double_binary_trees(names: Sequence[str]) -> tuple[Tree, Tree]:
    """Return a binary tree in which odd numbers are leaves, and its mirror image.

    The image is shifted for an odd number of nodes. Number 0 is the root with one child; the parent
    of a number has its lowest set bit moved up.
    """
    count = len(names)
    parents: dict[int, int] = {}
    for number in range(1, count):
        bit = number & -number
        above = (number ^ bit) | (bit << 1)
        parents[number] = above if above < count else number ^ bit

    def renamed(new: list[int]) -> Tree:
        return Tree(names[new[0]], {names[new[u]]: names[new[v]] for u, v in parents.items()})

    numbers = list(range(count))
    mirror = numbers[::-1] if count % 2 == 0 else [*numbers[1:], 0]
    return renamed(numbers), renamed(mirror)


def tree_ranges(shares: Sequence[Fraction], elements: int) -> list[tuple[int, int]]:
    """Return the range of the tensor of each tree, in proportion to the shares.

    Raises ScheduleError for a share below 0, or none above.
    """
    total = sum(shares, Fraction(0))
    if any(share < 0 for share in shares) or not total > 0:
        raise ScheduleError(
            f"shares {[str(share) for share in shares]}: expected none below 0 and a sum above 0"
        )
    ranges = []
    start = 0
    taken = Fraction(0)
    for share in shares:
        taken += share
        stop = int(elements * taken / total)
        ranges.append((start, stop))
        start = stop
    return ranges


def _forest(
    algorithm: str,
    ranks: Sequence[str],
    elements: int,
    trees: Sequence[SharedTree],
    block: int,
) -> Schedule:
    """Return a chain of steps for each tree, up and down."""
    check_counts(algorithm, len(ranks), elements)
    pruned = []
    for shared in trees:
        shared.tree.check_ranks(ranks)
        pruned.append(shared.tree.pruned(ranks))
    relays = dict.fromkeys(node for tree in pruned for node in tree.nodes)
    names = (*ranks, *(node for node in relays if node not in set(ranks)))
    numbers = {name: number for number, name in enumerate(names)}
    steps: list[Step] = []
    ranges = tree_ranges([shared.share for shared in trees], elements)
    for tree, (start, stop) in zip(pruned, ranges, strict=True):
        # A chain of a tree without elements keeps the numbers of the others.
        steps += _chain(tree, numbers, start, stop, len(steps))
    whole = Ranges.whole(range(len(ranks)), elements)
    return Schedule(
        algorithm,
        Collective.ALL_REDUCE,
        len(ranks),
        elements,
        tuple(steps),
        given=whole,
        wanted=whole,
        relays=len(names) - len(ranks),
        block=block,
        names=names,
    )


def _chain(
    tree: Tree,
    numbers: dict[str, int],
    start: int,
    stop: int,
    first: int,
) -> list[Step]:
    """Return a tree's steps up and down, level by level, each after the one before.

    The first is number `first`.
    """
    levels: list[list[tuple[int, int]]] = [[] for _ in range(max(tree.depths.values()))]
    for node, parent in tree.parents.items():
        levels[tree.depths[node] - 1].append((numbers[node], numbers[parent]))
    steps: list[Step] = []

    def add(pairs: list[tuple[int, int]], *, up: bool) -> None:
        below, above = zip(*pairs, strict=True)
        sources, targets = (below, above) if up else (above, below)
        number = first + len(steps)
        after = (number - 1,) if steps else ()
        steps.append(make_step(sources, targets, start, stop, combine=up, after=after))

    for pairs in reversed(levels):
        add(pairs, up=True)
    for pairs in levels:
        add(pairs, up=False)
    return steps
