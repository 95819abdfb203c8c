"""Alpha-beta costs of collectives in closed form (Hockney's model; Thakur et al., IJHPCA 2005).

Sending m bytes between two nodes takes alpha + m beta; every node sends and receives at full rate
at the same time, and nothing else is shared. Adding is free. Sizes in bytes, results in seconds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class AlphaBeta:
    """`alpha`: s until the first byte of a message is there. `beta`: s a byte."""

    alpha: float
    beta: float

    def message(self, size: float) -> float:
        """One message of `size` bytes."""
        return self.alpha + size * self.beta


def ring(model: AlphaBeta, ranks: int, size: float) -> float:
    """Ring all-reduce: 2 (n - 1) messages of 1/n one after the other."""
    return 2 * (ranks - 1) * model.message(size / ranks)


def halving_doubling(model: AlphaBeta, ranks: int, size: float) -> float:
    """Recursive halving and doubling; ranks beyond a power of two fold in first and out last."""
    doublings = ranks.bit_length() - 1
    core = 1 << doublings
    cost = 2 * doublings * model.alpha + 2 * (core - 1) / core * size * model.beta
    return cost + (2 * model.message(size) if ranks > core else 0.0)


def level_wise(levels: Sequence[tuple[AlphaBeta, int]], size: float) -> float:
    """All-reduce on a symmetric tree by rings, lowest level first.

    `levels`: between siblings' branches, and the children p of an inner node. The sum over levels
    of 2 (p - 1) messages of 1/p of what a rank still holds (BlueConnect, Cho et al., MLSys 2019).
    """
    cost, held = 0.0, size
    for model, count in levels:
        cost += 2 * (count - 1) * model.message(held / count)
        held /= count
    return cost


def server(model: AlphaBeta, ranks: int, size: float, block: float | None = None) -> float:
    """A parameter server on a host of its own: all blocks of all ranks in, as many out.

    `block` None: results go out when everything is in.
    """
    block = size if block is None else min(block, size)
    return 2 * model.alpha + ranks * (size + block) * model.beta


def tree(
    model: AlphaBeta, height: int, children: int, size: float, block: float | None = None
) -> float:
    """A pipelined tree: sums up, results down, in blocks; an inner node has `children` children.

    An inner node takes in its children's blocks and its parent's results, so each flow has
    1 / (children + 1) of its link.
    """
    block = size if block is None else min(block, size)
    fill = 2 * height * model.message(children * block)
    return fill + (children + 1) * (size - block) * model.beta


def double_tree(model: AlphaBeta, ranks: int, size: float, block: float | None = None) -> float:
    """Two binary trees with half of the tensor each (Sanders, Speck and Träff 2009).

    A rank is inner in one and a leaf in the other: four flows of half of the tensor, each way. The
    roots have one child, other inner nodes two.
    """
    height = max(1, math.ceil(math.log2(ranks)))
    half = size / 2
    block = half if block is None else min(block, half)
    fill = 2 * (height - 1) * model.message(2 * block) + 2 * model.message(block)
    return fill + min(ranks, 4) * (half - block) * model.beta


def in_network(model: AlphaBeta, size: float) -> float:
    """Summed in the switches: the tensor once up and once down, at the same time.

    `model.alpha`: up to the server; a window no smaller than the round trip is assumed.
    """
    return 2 * model.alpha + size * model.beta
