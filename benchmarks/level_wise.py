"""Level-wise all-reduce against the flat ring on trees, and a bound on any schedule of hosts.

At flow level with exact events and TCP's framing. The ring follows the order of the tree, so that
it crosses every link once each way, or a shuffled order. Level-wise uses the form that
`level_wise_form` chooses, and that of [003][]: equal parts, rings, level after level.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from random import Random
from typing import Any

from benchmarks.report import Rows
from hopsum.collectives.algorithms.level_wise import level_wise_all_reduce
from hopsum.collectives.algorithms.level_wise_form import Form, form_for
from hopsum.collectives.algorithms.ring import ring_all_reduce
from hopsum.collectives.algorithms.rooted import network_tree
from hopsum.collectives.algorithms.target_parts import equal_parts
from hopsum.collectives.schedule import Schedule
from hopsum.collectives.tree import Tree
from hopsum.network.builder import NetworkBuilder
from hopsum.network.model import Network
from hopsum.timing.estimate import estimate
from hopsum.timing.routes import TCP
from hopsum.timing.work import ScheduleWork

HOST_RATE = 10e9
LATENCY = 5e-6
SIZE = 100_000_000
SMALL_SIZES = (1024, 16 * 1024, 64 * 1024)
SEED = 1
AT_BOUND = 0.98


@dataclass(frozen=True, slots=True)
class Behind:
    """A branch behind a link of `rate` bit/s."""

    rate: float
    branch: Branch


Branch = tuple["int | Branch | Behind", ...]
"""A switch: an int is a number of hosts on it, a tuple a switch below."""


@dataclass(frozen=True, slots=True)
class SwitchTree:
    """A tree of switches. `rates`: bit/s of links between switches, by depth from the root."""

    name: str
    shape: Branch
    rates: tuple[float, ...] = ()

    def network(self) -> Network:
        """Return the network, with links of HOST_RATE to the hosts."""
        builder = NetworkBuilder(self.name, latency=LATENCY)

        def grow(branch: Branch, depth: int) -> str:
            switch = builder.add_switch(f"s{len(builder.switches) + 1}")
            for child in branch:
                if isinstance(child, int):
                    for _ in range(child):
                        builder.link(switch, builder.add_host(), bandwidth=HOST_RATE)
                elif isinstance(child, Behind):
                    builder.link(switch, grow(child.branch, depth + 1), bandwidth=child.rate)
                else:
                    below = grow(child, depth + 1)
                    rate = self.rates[min(depth, len(self.rates) - 1)]
                    builder.link(switch, below, bandwidth=rate)
            return switch

        grow(self.shape, 0)
        return builder.build()


def skewed(degree: float) -> Branch:
    """Return racks of 8, 4, 2 and 1 hosts with an oversubscription of `degree`."""
    return tuple(Behind(hosts * HOST_RATE / degree, (hosts,)) for hosts in (8, 4, 2, 1))


TREES = (
    SwitchTree("4 racks of 8, 1:1", ((8,),) * 4, (80e9,)),
    SwitchTree("4 racks of 8, 2:1", ((8,),) * 4, (40e9,)),
    SwitchTree("4 racks of 8, 4:1", ((8,),) * 4, (20e9,)),
    SwitchTree("4 racks of 8, 16:1", ((8,),) * 4, (5e9,)),
    SwitchTree("8 racks of 8, 32:1", ((8,),) * 8, (2.5e9,)),
    SwitchTree("4 racks of 2, 4:1", ((2,),) * 4, (5e9,)),
    SwitchTree("4 pods of 2 racks of 2, 2:1 and 2:1", (((2,), (2,)),) * 4, (10e9, 10e9)),
    SwitchTree("4 pods of 2 racks of 2, 2:1 and 4:1", (((2,), (2,)),) * 4, (5e9, 10e9)),
    SwitchTree("fat tree of 4 pods, core 8:1", (((2,), (2,)),) * 4, (5e9, 20e9)),
    SwitchTree("3 pods of 2 racks of 4, 2:1 and 8:1", (((4,), (4,)),) * 3, (5e9, 20e9)),
    SwitchTree("racks of 8, 4, 2 and 1, 2:1", skewed(2)),
    SwitchTree("racks of 8, 4, 2 and 1, 4:1", skewed(4)),
    SwitchTree("racks of 8, 4, 2 and 1, uplinks 10G", ((8,), (4,), (2,), (1,)), (10e9,)),
    SwitchTree("racks of 8, 4, 2 and 1, uplinks 5G", ((8,), (4,), (2,), (1,)), (5e9,)),
    SwitchTree("4 racks of 8, 4:1, one with 2.5G", (*((8,),) * 3, Behind(2.5e9, (8,))), (20e9,)),
    SwitchTree("pods of racks of 8 and 4, of 2 and 1", (((8,), (4,)), ((2,), (1,))), (5e9, 10e9)),
    SwitchTree("6 switches in a row, 2 hosts on each", (2, (2, (2,)), (2, (2, (2,)))), (5e9, 10e9)),
)
"""Oversubscription of hosts to uplink, lowest level first. An ordered ring loads an uplink no more
than of a host's link, so it suffers only where an uplink is slower than that."""
SMALL_TREES = ("4 racks of 8, 4:1", "racks of 8, 4, 2 and 1, 2:1", "4 racks of 2, 4:1")
"""Trees on which small tensors are measured too, which are bound by latency."""


def measure() -> Rows:
    """Return all rows: large tensors on all trees, small ones on some."""
    rows = [row(tree, SIZE) for tree in TREES]
    small = [tree for tree in TREES if tree.name in SMALL_TREES]
    return rows + [row(tree, size) for tree in small for size in SMALL_SIZES]


def row(tree: SwitchTree, size: int) -> dict[str, Any]:
    """Return milliseconds of each algorithm and of the bound on a tree, and their ratios."""
    network = tree.network()
    ranks = list(network.hosts)
    shuffled = Random(SEED).sample(ranks, len(ranks))
    rooted = network_tree(network, ranks)
    elements = size // 4
    ring = ring_all_reduce(len(ranks), elements)
    form = form_for(network, ranks, elements)
    level_wise = seconds(network, form.all_reduce(ranks, elements), ranks)
    in_order = seconds(network, ring, ranks)
    limit = bound(rooted, network, ranks, size)
    document = level_wise_all_reduce(rooted, ranks, elements)
    return {
        "tree": tree.name,
        "ranks": len(ranks),
        "bytes": size,
        "form": described(form),
        "bound_ms": _ms(limit),
        "level_wise_ms": _ms(level_wise),
        "as_in_003_ms": _ms(seconds(network, document, ranks)),
        "ring_ms": _ms(in_order),
        "shuffled_ring_ms": _ms(seconds(network, ring, shuffled)),
        "of_bound": round(limit / level_wise, 3),
        "times_ring": round(in_order / level_wise, 3),
        "both_at_bound": limit > AT_BOUND * max(level_wise, in_order),
    }


def described(form: Form) -> str:
    """Return a form in a few words."""
    if form.tree.heights[form.tree.root] == 1:
        return "one level"
    parts = "equal" if form.parts == equal_parts(form.tree) else "rated"
    return f"{form.siblings}, {parts}, {form.pieces} piece{'s' * (form.pieces > 1)}"


def _ms(duration: float) -> float:
    return round(1000 * duration, 3)


def seconds(network: Network, schedule: Schedule, hosts: Sequence[str]) -> float:
    """Return a schedule's time at flow level; hosts[n] is its node n."""
    named = replace(schedule, names=tuple(hosts))
    return estimate(network, ScheduleWork([named], block=schedule.block), resolution=0.0).seconds


def bound(tree: Tree, network: Network, ranks: Sequence[str], size: int) -> float:
    """Return the least seconds of an all-reduce of `size` bytes where only hosts sum.

    If the tree is cut into k parts with ranks, an element crosses between them k - 1 times before
    one part can know the sum, and k - 1 times after. So the bound is the maximum over all cuts of 2
    (k - 1) size / (what the parts can send). Patarasuk and Yuan (JPDC 2009) prove it for parts of
    one host each.
    """
    capacities = {
        node: None if (rate := network.link(node, parent).bandwidth) is None else Fraction(rate) / 8
        for node, parent in tree.parents.items()
    }
    on_wire = TCP.packet / TCP.payload + TCP.answer
    return 2 * size * on_wire * float(worst_cut(tree, capacities, frozenset(ranks)))


@dataclass(frozen=True, slots=True)
class _Cut:
    """Complete parts with ranks, and what these and the open one can send."""

    parts: int = 0
    sending: Fraction = Fraction(0)

    def __add__(self, other: _Cut) -> _Cut:
        return _Cut(self.parts + other.parts, self.sending + other.sending)


@dataclass(frozen=True, slots=True)
class _Open:
    """The best cuts below a node, by the state of the node's part; None: none exists.

    `bare`: it will have no rank, so what it sends is only forwarded and does not count.
    `promised`: it counts but has no rank yet. `ranked`: it has one.
    """

    bare: _Cut | None
    promised: _Cut | None
    ranked: _Cut | None


def worst_cut(
    tree: Tree, capacities: Mapping[str, Fraction | None], ranks: frozenset[str]
) -> Fraction:
    """Return the maximum of (k - 1) / (what k parts with ranks can send) over all cuts.

    `capacities`: of the edge above a node, each way; None: unlimited. 0 where every cut has one
    part or unlimited edges. Dinkelbach's method: each round finds the cut that exceeds the best so
    far by most, by dynamic programming over the tree.
    """
    best = Fraction(0)
    while True:
        found = _best_cut(tree, capacities, ranks, best)
        if found.parts - 1 - best * found.sending <= 0:
            return best
        best = (found.parts - 1) / found.sending


def _best_cut(
    tree: Tree,
    capacities: Mapping[str, Fraction | None],
    ranks: frozenset[str],
    price: Fraction,
) -> _Cut:
    """Return the cut that maximises its parts minus `price` times what they can send."""

    def better(*cuts: _Cut | None) -> _Cut | None:
        there = [cut for cut in cuts if cut is not None]
        return max(there, key=lambda cut: cut.parts - price * cut.sending, default=None)

    def both(one: _Cut | None, other: _Cut | None) -> _Cut | None:
        return None if one is None or other is None else one + other

    opened: dict[str, _Open] = {}
    for node in tree.upwards:
        here = _Open(None, None, _Cut()) if node in ranks else _Open(_Cut(), _Cut(), None)
        for child in tree.children[node]:
            below, capacity = opened.pop(child), capacities[child]
            closed: _Cut | None = None
            charge = _Cut()
            if capacity is not None:
                charge = _Cut(0, capacity)
                closed = better(below.bare, both(below.ranked, _Cut(1, capacity)))
            charged = both(closed, charge)
            here = _Open(
                better(both(here.bare, below.bare), both(here.bare, closed)),
                better(both(here.promised, below.promised), both(here.promised, charged)),
                better(
                    both(here.promised, below.ranked),
                    both(here.ranked, below.promised),
                    both(here.ranked, below.ranked),
                    both(here.ranked, charged),
                ),
            )
        opened[node] = here
    top = opened[tree.root]
    return better(top.bare, both(top.ranked, _Cut(1))) or _Cut()
