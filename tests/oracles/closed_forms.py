"""Bytes of every all-reduce on a star, a leaf-spine and a fat-tree, in closed form.

The table with its derivation is in `docs/collectives.md`; a test holds these formulas against what
`schedule_bytes` and `prediction` count. All are exact, for tensors of any size: parts and halves
that do not divide differ by one element. Totals do not depend on how flows are spread over equal
paths, for these are equally long. Where the hottest link does, the function says so.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from hopsum.collectives.schedule import borders


class Load(NamedTuple):
    """All links together, and the directed link with most. Elements; of `in_network` bytes."""

    total: int
    hottest: int


@dataclass(frozen=True, slots=True)
class Fabric:
    """Switches in levels, ranks below. `groups`: ranks below a switch, lowest level first.

    The last of them are all ranks, numbered in the order of the fabric. Two ranks whose lowest
    common group is that of level i are 2 i links apart.
    """

    groups: tuple[int, ...]

    @property
    def ranks(self) -> int:
        """How many ranks there are."""
        return self.groups[-1]

    @property
    def below_top(self) -> tuple[int, ...]:
        """The sizes of groups that are not alone at their level."""
        return tuple(group for group in self.groups if group < self.ranks)


def star(ranks: int) -> Fabric:
    """`star:N`."""
    return Fabric((ranks,))


def leaf_spine(leaves: int, hosts: int) -> Fabric:
    """`leaf-spine:LxH`, with any number of spines."""
    return Fabric((hosts, leaves * hosts))


def fat_tree(k: int) -> Fabric:
    """`fat-tree:K`, every host a rank."""
    return Fabric((k // 2, k * k // 4, k**3 // 4))


def ring(fabric: Fabric, elements: int) -> Load:
    """Into rank r go all parts but r and the next, in each half of the ring one of them stays out.

    Every group is entered once; so the hottest link is a rank's, however flows are spread.
    """
    ranks = fabric.ranks
    if ranks == 1:
        return Load(0, 0)
    parts = _sizes(elements, ranks)
    into = [2 * elements - parts[r] - parts[(r + 1) % ranks] for r in range(ranks)]
    entered = sum(sum(into[::group]) for group in fabric.below_top)
    return Load(2 * (sum(into) + entered), max(into))


def halving_doubling(fabric: Fabric, elements: int) -> Load:
    """Partners 1, 2, 4, ... apart exchange halves, quarters, ... of the tensor, and back.

    On a star any number of ranks; else powers of two, also in groups (ValueError). The hottest link
    is a rank's, however flows are spread, for a group of g sends about 2 (1 - g / n) tensors: but
    not where there are more ranks than elements.
    """
    ranks = fabric.ranks
    core = 1 << (ranks.bit_length() - 1)
    if fabric.below_top:
        _expect_powers_of_two("halving-doubling", fabric)
    extra = ranks - core
    edges = borders(elements, core).tolist()
    hottest = 0
    for member in range(core):
        place = _reversed_bits(member, core)
        # Halves, quarters, ... around the member's own piece: it gets them, then gives them away.
        kept = 0
        size = core // 2
        while size:
            low = place // size * size
            kept += edges[low + size] - edges[low]
            size //= 2
        own = edges[place + 1] - edges[place]
        folded = elements if member < extra else 0
        hottest = max(hottest, elements - own + kept + folded)
    crossings = sum(ranks // group - 1 for group in fabric.below_top)
    return Load(4 * elements * (ranks - 1 + crossings), hottest)


def server(fabric: Fabric, elements: int, *, among: bool = False) -> Load:
    """All ranks send all they have to a server under the first switch, and get as much back.

    It is a host of its own, or `among` the hosts of the fabric, which are then one rank less: so a
    fat-tree, which has no room for another.
    """
    near = [group - among for group in fabric.groups]
    links = sum(
        2 * level * (here - inside) for level, (inside, here) in enumerate(pairwise([0, *near]), 1)
    )
    return Load(2 * elements * links, near[-1] * elements)


def tree(fabric: Fabric, elements: int) -> Load:
    """A binary tree of ranks, r under (r - 1) // 2: all but the first group hang on other groups.

    Hottest with one way up from every group, where all flows that leave it share a link. With more
    ways it is between that over their number and that.
    """
    ranks = fabric.ranks
    edges = ranks - 1 + sum(ranks - group for group in fabric.below_top)
    inner = {1: 0, 2: 1, 3: 2, 4: 2}.get(ranks, 3)
    # Out of the second group go its own sums, and the results of the ranks that hang on it.
    second = [g + max(0, min(2 * g, ranks - 1 - 2 * g)) for g in fabric.below_top]
    return Load(4 * elements * edges, max(inner, *second, 0) * elements)


def double_tree(fabric: Fabric, elements: int) -> Load:
    """Two binary trees with half of the tensor each; an inner rank of one is a leaf of the other.

    On a star any number of ranks; else powers of two, also in groups (ValueError). Hottest with one
    way up from every group, as in `tree`.
    """
    ranks = fabric.ranks
    half = -(-elements // 2)
    hottest = {1: 0, 2: elements, 3: elements + half}.get(ranks, elements + 2 * half)
    edges = ranks - 1
    if fabric.below_top:
        _expect_powers_of_two("double-tree", fabric)
    for group in fabric.below_top:
        # A multiple of the group hangs on another one; odd multiples of its half do by halves.
        edges += ranks - 1 if group == 1 else 3 * ranks // (2 * group) - 1
        if group > 1:
            hottest = max(hottest, 2 * elements + (2 * half if ranks >= 4 * group else 0))
    return Load(4 * elements * edges, hottest)


def multi_tree(fabric: Fabric, elements: int) -> Load:
    """Trees of network links, each from a switch of the top level, that share the tensor.

    Switches sum, so every element crosses every link of its tree once each way, for any number
    of trees and their shares. Two ranks or more.
    """
    links = fabric.ranks + sum(fabric.ranks // group for group in fabric.below_top)
    return Load(2 * elements * links, elements)


def level_wise(fabric: Fabric, elements: int) -> Load:
    """Under a node of p branches every element crosses between them p - 1 times, and back.

    Hottest where the tensor divides by the ranks; elsewhere more by some elements a level. A group
    of g sends 2 (1 - g / n) tensors, so it is a rank's link, however flows are spread.
    """
    ranks = fabric.ranks
    crossings = sum(ranks // group - 1 for group in fabric.below_top)
    return Load(4 * elements * (ranks - 1 + crossings), 2 * elements * (ranks - 1) // ranks)


def in_network(
    fabric: Fabric, fragments: int, frame_bytes: Callable[[int], int], *, among: bool = False
) -> Load:
    """Bytes of a plan whose switches all sum, on one tree, with replicated results.

    `frame_bytes`: of a frame with so many hop entries. The server is placed as for `server`.
    One frame a fragment crosses every link of the tree each way; from a rank that is 2 i links away
    it starts with 2 i entries, and loses one at every switch. Results have none.
    """
    groups = fabric.groups
    near = [group - among for group in groups]
    up = 0
    links = 0

    def add(count: int, hops: int) -> None:
        nonlocal up, links
        up += count * frame_bytes(hops)
        links += count

    for level in range(1, len(groups) + 1):
        # From the server's switch of this level on towards the server.
        add(1, level)
        add(near[level - 1] - (near[level - 2] if level > 1 else 0), 2 * level)
        for lower in range(1, level):
            # The other branches under that switch; from each switch in them, one sum.
            branches = groups[level - 1] // groups[level - 2] - 1
            add(branches * groups[level - 2] // groups[lower - 1], 2 * level - lower)
    farthest = max(level for level, (a, b) in enumerate(pairwise([0, *near]), 1) if b > a)
    return Load(fragments * (up + links * frame_bytes(0)), fragments * frame_bytes(2 * farthest))


def _sizes(elements: int, parts: int) -> list[int]:
    return [stop - start for start, stop in pairwise(borders(elements, parts).tolist())]


def _reversed_bits(number: int, count: int) -> int:
    width = count.bit_length() - 1
    return int(f"{number:0{width}b}"[::-1], 2) if width else 0


def _expect_powers_of_two(algorithm: str, fabric: Fabric) -> None:
    odd = [group for group in fabric.groups if group & (group - 1)]
    if odd:
        raise ValueError(
            f"{algorithm} on groups of {', '.join(map(str, fabric.groups))} ranks: {odd[0]} is no "
            "power of two; count with schedule_bytes"
        )
