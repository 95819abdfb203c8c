"""A plan: what each switch sums on the way up, and how results travel down ([001 S1][001]).

A planner makes it, the controller installs the switches' part, the agents execute the hosts' part.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction

from hopsum.collectives.choices import DataType as DataType
from hopsum.collectives.choices import Results as Results
from hopsum.protocol.errors import InputError
from hopsum.protocol.wire import CHECK_LANES, Hop, Reduction, Width

WINDOW_EMBEDDED = 256
WINDOW_BMV2 = 32
MOST_NARROW_WORKERS = 16
"""Most workers whose floats travel in 16 bits: their sums are at least as exact as those of a ring
in bfloat16 (`hopsum.host_agent.numbers`)."""
EXPONENT_FRAGMENTS = 4
"""Fragments of values of 16 bits in a tensor's first window that share an exponent."""


class PlanError(InputError):
    """No plan meets the request; the message gives the reason."""


@dataclass(frozen=True, slots=True)
class SwitchPart:
    """The role of one switch in one tree.

    `children` maps a child index to the ingress port it comes in on; empty where the switch only
    forwards. `ports_up`: ingress ports from which contributions of this tree may come (also where
    the switch does not aggregate). `port_server`: the port towards the server: results come in
    there. `ports_down`: ports that a replicated result is copied to. `slot_base`..+window are its
    slots; `group`: the multicast group for this epoch.
    """

    switch: str
    aggregate: bool
    children: Mapping[int, int]
    ports_up: tuple[int, ...]
    port_server: int
    ports_down: tuple[int, ...]
    slot_base: int
    group: int

    @property
    def fan_in(self) -> int:
        """Number of children."""
        return len(self.children)


@dataclass(frozen=True, slots=True)
class TreePlan:
    """One aggregation tree: the server at its root, the workers at its leaves.

    `parents`: every node but the server -> next node towards it. `up[w]`, `down[w]`: the stacks of
    worker number w, from the worker's side and from the server's; `up[w]` ends with the server's
    entry, `down[w]` has one entry a switch. `server_children[c]`: the workers whose contributions
    an unflagged packet of child c of the server sums. `share`: its part of the tensor, 0..1.

    The server may be a worker: it has no parent, and its contributions reach the server on its host
    with that one's entry alone.

    More flows than MAX_CHILDREN can only reach the server when no switch sums; then the server's
    entry in every `up[w]` has fan_in 0, every worker flags all its contributions bypass, and the
    server knows them by the header's worker number (`singles` is True).
    """

    tree: int
    server: str
    parents: Mapping[str, str]
    parts: Mapping[str, SwitchPart]
    up: tuple[tuple[Hop, ...], ...]
    down: tuple[tuple[Hop, ...], ...]
    server_children: tuple[tuple[int, ...], ...]
    share: float = 1.0

    @property
    def root(self) -> str:
        """The switch next to the server; PlanError unless there is exactly one."""
        roots = [name for name in self.parts if self.parents.get(name) == self.server]
        if len(roots) != 1:
            raise PlanError(
                f"tree {self.tree}: {len(roots)} switches lead to server {self.server}; expected 1"
            )
        return roots[0]

    def access(self, host: str) -> str:
        """Return the neighbour of a worker, or of the server, on this tree.

        A host with several links may have another one on each tree.
        """
        return self.root if host == self.server else self.parents[host]

    @property
    def singles(self) -> bool:
        """Whether workers flag every contribution bypass."""
        return bool(self.up) and self.up[0][-1].fan_in == 0

    def direct(self, worker: int) -> bool:
        """Whether no switch sums what a worker sends: the server is its neighbour."""
        return not any(hop.aggregate for hop in self.up[worker][:-1])

    def repaired(self, results: Results) -> bool:
        """Whether neighbours repair all losses.

        They do on each link where every switch on the workers' paths sums. Where results are
        unicast, so do a worker and the server at the ends of a path on which none does.
        """
        summing = [{hop.aggregate for hop in stack[:-1]} for stack in self.up]
        if results is Results.REPLICATED:
            return not self.singles and all(False not in each for each in summing)
        return all(len(each) < 2 for each in summing)


@dataclass(frozen=True, slots=True)
class HostPart:
    """A logical topology of hosts and the part of every tensor summed on it, by TCP ([002][]).

    A ring is its `order` of workers. The others are trees: `parents` leads every host but `root`
    towards it; a host in it that is no worker is a relay, which only sums what others send.
    `weight`: above 0 to 1, of the whole tensor.
    """

    weight: Fraction
    order: tuple[str, ...] = ()
    root: str = ""
    parents: Mapping[str, str] = field(default_factory=dict)

    @property
    def hosts(self) -> tuple[str, ...]:
        """All participating hosts."""
        return self.order or tuple(
            dict.fromkeys((*self.parents, *self.parents.values(), self.root))
        )

    def relays(self, workers: tuple[str, ...]) -> tuple[str, ...]:
        """Return the participating hosts that are not workers of the job."""
        return tuple(host for host in self.hosts if host not in workers)


@dataclass(frozen=True, slots=True)
class JobPlan:
    """The whole plan of a job in one epoch. Worker number w is host `workers[w]`.

    Job and epoch start at 1; a pair of them is never used twice. `window` (slots of a tree at a
    switch, a power of two) is fixed for the job's life. `host_parts`: parts of every tensor that
    hosts sum among themselves, with trees or without. These and the trees' shares are the partition
    of tensors, which is fixed too, except at boundaries after every `period` tensors (2 or more; 0:
    none), where the agents ask the controller (`hopsum.controller.jobs.reoptimization`).
    `integrity`: `CHECK_LANES` of the lanes verify sums (`host_agent/datapath/check_lanes.h`).
    """

    job: int
    epoch: int
    workers: tuple[str, ...]
    trees: tuple[TreePlan, ...]
    lanes: int
    window: int
    results: Results = Results.REPLICATED
    reduction: Reduction = Reduction.SUM
    host_parts: tuple[HostPart, ...] = ()
    period: int = 0
    integrity: bool = False

    @property
    def values(self) -> int:
        """Values of a tensor that a fragment holds."""
        return self.lanes - (CHECK_LANES if self.integrity else 0)

    @property
    def in_flight(self) -> int:
        """Fragments in flight on a tree: half of its slots.

        So a slot is reused only when all workers have its result, and until then answers those that
        missed it (the two pools of SwitchML, NSDI 2021). With one slot it is 1.
        """
        return max(1, self.window // 2)

    @property
    def cut(self) -> tuple[tuple[float, ...], tuple[HostPart, ...]]:
        """Key of the partition of tensors; equal for plans with the same partition."""
        return tuple(tree.share for tree in self.trees), self.host_parts

    @property
    def tree_weight(self) -> Fraction:
        """The part of every tensor that the trees sum."""
        return 1 - sum((part.weight for part in self.host_parts), Fraction(0))

    @property
    def rooted(self) -> bool:
        """Whether there is a tree for each worker, tree w with its root at `workers[w]`, or two.

        Of two the second ones are for broadcasts, which so use the links in one direction while
        sums use them in the other; they have no share of all-reduces.
        """
        roots = tuple(tree.server for tree in self.trees)
        return roots in (self.workers, 2 * self.workers)

    @property
    def servers(self) -> tuple[str, ...]:
        """The hosts at the trees' roots."""
        return tuple(dict.fromkeys(tree.server for tree in self.trees))

    @property
    def auxiliary(self) -> tuple[str, ...]:
        """The participating hosts that are not workers: servers and relays."""
        servers = (host for host in self.servers if host not in self.workers)
        return tuple(dict.fromkeys((*servers, *self.relays)))

    @property
    def relays(self) -> tuple[str, ...]:
        """The hosts that sum parts over TCP and are not workers; some may be servers, too."""
        relays = (host for part in self.host_parts for host in part.relays(self.workers))
        return tuple(dict.fromkeys(relays))


def tensor_ranges(
    plan: JobPlan, length: int, width: Width = Width.WIDTH_32
) -> tuple[tuple[int, int], ...]:
    """Return the elements (start, stop) that each tree of the plan sums, in tree order.

    `length`: of what all trees sum together, in values of a `width`. Whole fragments, in proportion
    to the trees' shares; the last tree gets the broken fragment.
    Raises PlanError if a share is negative, or all are 0.
    """
    total = sum(tree.share for tree in plan.trees)
    if not total > 0 or any(tree.share < 0 for tree in plan.trees):
        raise PlanError(
            f"job {plan.job}: shares {[tree.share for tree in plan.trees]} of its trees: "
            f"expected none below 0 and a sum above 0"
        )
    values = plan.values * width.per_lane
    fragments = -(-length // values)
    ranges = []
    start = 0
    taken = 0.0
    for tree in plan.trees:
        taken += tree.share
        stop = length
        if tree is not plan.trees[-1]:
            stop = min(length, round(fragments * taken / total) * values)
        ranges.append((start, stop))
        start = stop
    return tuple(ranges)


def wire_width(wanted: Width, workers: int, *, scaled: bool, integrity: bool) -> Width:
    """Return the width in packets of values that are to have a width: that, or 32 bits.

    Check values are sums of words; and floats, which are `scaled` to integers, of too many workers
    would be less exact. `workers`: for which the scale is made.
    """
    too_many = scaled and workers > MOST_NARROW_WORKERS
    return Width.WIDTH_32 if integrity or too_many else wanted


def exponent_group(in_flight: int, width: Width) -> int:
    """Return how many data fragments of a tensor's first window share an exponent, at most."""
    return in_flight if width is Width.WIDTH_32 else min(in_flight, EXPONENT_FRAGMENTS)


def prologue_count(fragments: int, in_flight: int, width: Width) -> int:
    """Return how many prologues precede a number of data fragments of floats on one tree.

    Each carries the exponent of a group of fragments of the first window.
    """
    return -(-min(fragments, in_flight) // exponent_group(in_flight, width))


def prologue_lanes(plan: JobPlan) -> int:
    """Return the lanes of a prologue on the wire: none, except with check lanes."""
    return plan.lanes if plan.integrity else 0
