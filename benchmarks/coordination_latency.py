"""Time and messages that processes need to agree: tree, central coordinator, ring.

Each message costs a process `overhead`, one after the other, and takes `latency` on the way. Lower
bounds for any scheme: 2 (n - 1) messages in total (gossip), and ceil(log2 n) rounds.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from hopsum.coordination.events import CoordinationOptions, Start
from hopsum.coordination.link import LinkOptions
from hopsum.coordination.operators import Operator
from hopsum.coordination.participant import Participant
from hopsum.coordination.tree import CoordinationTree, balanced_tree, least_height
from tests.support.virtual_group import Costs, VirtualGroup

_NEVER = float("inf")
_OPTIONS = CoordinationOptions(
    LinkOptions(heartbeat=_NEVER, silence=_NEVER, join=_NEVER, resend=_NEVER),
    cycle=_NEVER,
    stall=_NEVER,
)


def central_time(processes: int, costs: Costs) -> float:
    """Return the time of a central coordinator's negotiation: 2 (n - 1) overhead + 2 latency."""
    return 2 * (processes - 1) * costs.overhead + 2 * costs.latency


def tree_time(processes: int, fan_out: int, costs: Costs) -> float:
    """Return the same for a full tree of least height d: 2 d (fan-out * overhead + latency)."""
    height = least_height(processes, fan_out)
    return 2 * height * (fan_out * costs.overhead + costs.latency)


@dataclass(frozen=True, slots=True)
class Agreement:
    """The cost until all processes start an operator for which all became ready at once.

    `time`: from ready to the last start. `busiest`: messages, in and out, at the busiest process.
    `messages`: total sent. `vectors`: contributed by each process; `words`: of 32 bits in each, 0
    while there is no order table.
    """

    time: float
    busiest: int
    messages: int
    vectors: int
    words: int


def star(processes: int) -> CoordinationTree:
    """Return a tree with all processes below one, the central coordinator."""
    names = [f"p{rank}" for rank in range(processes)]
    return CoordinationTree(tuple(names), (-1, *[0] * (processes - 1)))


def ring(processes: int, fan_out: int) -> CoordinationTree:
    """Return a balanced tree whose vectors run on a ring in the order of ranks."""
    tree = balanced_tree([f"p{rank}" for rank in range(processes)], fan_out=fan_out)
    return replace(tree, ring=tuple(range(processes)))


def negotiation(tree: CoordinationTree, costs: Costs) -> Agreement:
    """Measure an operator of the first iteration, all ready at once, by real state machines."""
    group = VirtualGroup(tree, costs=costs, options=_OPTIONS)
    group.settle()
    return _agree(group, 1, 1)


def steady_state(tree: CoordinationTree, operators: int, costs: Costs) -> Agreement:
    """Measure one cycle of bit vectors over a table of some operators, all ready at once."""
    group = VirtualGroup(tree, costs=costs, options=_OPTIONS)
    group.settle()
    _agree(group, 1, operators)
    _agree(group, 2, operators)
    return _agree(group, 3, operators)


def _agree(group: VirtualGroup, iteration: int, operators: int) -> Agreement:
    for rank in range(len(group.participants)):
        group.call(group.now, rank, lambda p: p.begin_iteration(iteration, group.now))
    # The reports of the last iteration's end travel while the processes compute.
    began = group.settle()
    before = [(p.statistics.sent, p.statistics.received, p.vectors) for p in group.participants]
    events = [len(seen) for seen in group.events]

    wanted = [Operator(f"gradient {number}", (1024,), "float32") for number in range(operators)]

    def step(participant: Participant) -> None:
        participant.ready_together(wanted, began)

    for rank in range(len(group.participants)):
        group.call(began, rank, step)
    group.settle()
    last = began
    for rank, seen in enumerate(group.events):
        starts = [time for time, event in seen[events[rank] :] if isinstance(event, Start)]
        assert len(starts) == operators
        last = max(last, *starts)
    totals = [
        (p.statistics.sent - sent, p.statistics.received - received)
        for p, (sent, received, _) in zip(group.participants, before, strict=True)
    ]
    vectors = {p.vectors - before[rank][2] for rank, p in enumerate(group.participants)}
    assert len(vectors) == 1
    return Agreement(
        time=last - began,
        busiest=max(sent + received for sent, received in totals),
        messages=sum(sent for sent, _ in totals),
        vectors=vectors.pop(),
        words=len(group.participants[0].table.vector((), iteration).words),
    )
