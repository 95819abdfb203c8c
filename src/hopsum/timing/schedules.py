"""Schedules as flows: every transfer is a flow, or three where data is passed on in blocks.

A node passes on what it received when the transfer is complete (block 0), or block by block: then
a transfer's first block starts when the first block of what it needs is there, its last block when
the last one is, and in between it goes no faster than what it needs comes in. Transfers of a chain
between the same two nodes follow each other, as in one TCP connection; all others share links.

A step that is repeated too often to be written out becomes three turns: the first, the last, and
those between as one flow a row, no faster than data can go round: a repetition takes at least
the longest transfer of it, and on average over the cycle of rows one hop.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from hopsum.collectives.schedule import Numbers, Schedule, Step
from hopsum.timing.flows import Routes
from hopsum.timing.max_min import Floats, Integers, Usage, max_min_rates
from hopsum.timing.routes import TCP, Framing, plain_routes
from hopsum.timing.scenario import Scenario
from hopsum.timing.tcp_segments import SEGMENT_BYTES

WRITTEN_OUT = 4096
"""Maximum transfers of a step that become flows each; a larger step has its repetitions merged."""
STREAMED = 2048
"""Maximum transfers of a schedule that `agents_transport` forwards segment by segment: more take
long to simulate, and in large schedules blocks change little or are small anyway."""
_WIDE = 4
"""Maximum equal deliveries to a node; more are merged by flows without size."""
_PAIRS = 1 << 22
"""Pairs of transfers that are compared at once, a limit of memory."""
_NONE = -1


@dataclass(frozen=True, slots=True)
class Transport:
    """Parameters of how transfers are sent.

    `element_bytes`: of an element. `block`: elements that are passed on at once, 0: whole
    transfers, None: as the schedule says. `overhead`: s, before the receiver has a transfer, beyond
    the network's latency. `rate`: of one transfer at most, bytes of data/s.
    """

    element_bytes: int = 4
    framing: Framing = TCP
    block: int | None = None
    overhead: float = 0.0
    rate: float = np.inf
    written_out: int = WRITTEN_OUT


def agents_transport(
    schedule: Schedule, element_bytes: int = 4, *, block: int | None = None, overhead: float = 0.0
) -> Transport:
    """Return how agents send a schedule: they forward data segment by segment (`execution`).

    Schedules of more than STREAMED transfers keep their own block. `block`: elements to forward at
    a time instead, 0: whole transfers. Predictions and comparisons both use this rule.
    """
    if block is None and _written_out(schedule) <= STREAMED:
        block = SEGMENT_BYTES // element_bytes
    return Transport(element_bytes=element_bytes, block=block, overhead=overhead)


def _written_out(schedule: Schedule, most: int = WRITTEN_OUT) -> int:
    """Return the number of transfers that become flows; see WRITTEN_OUT."""
    return sum(
        len(step) * (step.repeat if step.repeat * len(step) <= most else min(step.repeat, 3))
        for step in schedule.steps
    )


@dataclass(frozen=True, slots=True)
class _Transfers:
    """Transfers (n,) in order of step and turn.

    `routes`: rows of the pair of nodes. `merged`: stands for many repetitions of its step. `head`,
    `body`, `tail`: its flows; where it is one flow, head and tail are the same and body is _NONE.
    """

    steps: Integers
    turns: Integers
    sources: Numbers
    targets: Numbers
    starts: Numbers
    stops: Numbers
    routes: Integers
    merged: NDArray[np.bool_]
    head: Integers
    body: Integers
    tail: Integers

    def take(self, rows: Integers) -> _Transfers:
        """Return these transfers."""
        return _Transfers(*(getattr(self, part.name)[rows] for part in fields(self)))


def add_schedule(
    scenario: Scenario, schedule: Schedule, hosts: Sequence[str], transport: Transport | None = None
) -> None:
    """Add a schedule to a scenario. `hosts[n]`: the network's node for node n of the schedule.

    Raises NetworkError where a transfer has no way.
    """
    transport = transport or Transport()
    nodes = schedule.nodes
    numbers = scenario.links.numbers(list(hosts))
    ends = [step.sources * nodes + step.targets for step in schedule.steps]
    if not ends:
        return
    pairs, row = np.unique(np.concatenate(ends), return_inverse=True)
    routes = plain_routes(
        scenario.links,
        numbers[pairs // nodes],
        numbers[pairs % nodes],
        transport.framing,
        overhead=transport.overhead,
        limits=np.full(len(pairs), transport.rate),
    )
    first = scenario.add_routes(routes)
    rows = np.split(row, np.cumsum([len(end) for end in ends])[:-1])
    block = schedule.block if transport.block is None else transport.block
    builder = _Builder(scenario, schedule, transport, routes, first, block)
    parts = [builder.add_step(number, rows[number]) for number in range(len(ends))]
    transfers = _Transfers(
        *(
            np.concatenate([getattr(turn, part.name) for turns in parts for turn in turns])
            for part in fields(_Transfers)
        )
    )
    _follow_on_connections(scenario, schedule, transfers)
    _wait_for_data(scenario, schedule, transfers, transport.element_bytes)


@dataclass
class _Builder:
    """Makes the flows of steps."""

    scenario: Scenario
    schedule: Schedule
    transport: Transport
    routes: Routes
    first_route: int
    block: int

    def add_step(self, number: int, routes: Integers) -> list[_Transfers]:
        """Return the flows of all turns of a step; turns are numbered by repetition."""
        step = self.schedule.steps[number]
        if step.repeat <= 3 or step.repeat * len(step) <= self.transport.written_out:
            return [self._turn(number, k, routes) for k in range(step.repeat)]
        return [
            self._turn(number, 0, routes),
            self._middle(number, routes),
            self._turn(number, step.repeat - 1, routes),
        ]

    def _turn(self, number: int, repetition: int, routes: Integers) -> _Transfers:
        step = self.schedule.steps[number]
        starts, stops = step.ranges(repetition)
        kept = np.flatnonzero(starts < stops)
        starts, stops = starts[kept], stops[kept]
        length = stops - starts
        block = self.block or max(1, self.schedule.elements)
        first = np.minimum(block, length)
        last = np.minimum(block, length - first)
        head = self._flows(routes[kept], first)
        body = self._flows(routes[kept], length - first - last)
        tail = self._flows(routes[kept], last)
        flows = self.scenario.flows
        for earlier, later in ((head, body), (body, tail), (head[body < 0], tail[body < 0])):
            both = (earlier >= 0) & (later >= 0)
            flows.sent.add(earlier[both], later[both])
        return _Transfers(
            np.full(len(kept), number),
            np.full(len(kept), repetition),
            step.sources[kept],
            step.targets[kept],
            starts,
            stops,
            routes[kept],
            np.zeros(len(kept), dtype=np.bool_),
            head,
            body,
            np.where(tail < 0, head, tail),
        )

    def _flows(self, routes: Integers, elements: Numbers) -> Integers:
        """Return flows of the given numbers of elements; none where that is 0."""
        some = np.flatnonzero(elements > 0)
        numbers = np.full(len(routes), _NONE, dtype=np.int64)
        numbers[some] = self.scenario.flows.extend(
            self.first_route + routes[some], elements[some] * self.transport.element_bytes
        )
        return numbers

    def _middle(self, number: int, routes: Integers) -> _Transfers:
        """Return all repetitions but the first and the last, as one flow a row."""
        step = self.schedule.steps[number]
        volumes = step.volumes()
        for repetition in (0, step.repeat - 1):
            starts, stops = step.ranges(repetition)
            volumes = volumes - (stops - starts)
        sizes = volumes * float(self.transport.element_bytes)
        seconds, extra = self._repetition(step, routes, sizes / (step.repeat - 2))
        row = self.scenario.add_routes(
            Routes(
                self.routes.usage.take(routes),
                extra,
                np.minimum(
                    self.routes.limits[routes],
                    np.divide(
                        sizes,
                        seconds * (step.repeat - 2),
                        out=np.full(len(sizes), np.inf),
                        where=seconds > 0,
                    ),
                ),
            )
        )
        numbers = self.scenario.flows.extend(row + np.arange(len(step)), sizes)
        shape = (-1, step.period)
        least = step.starts.reshape(shape).min(axis=1)
        most = step.stops.reshape(shape).max(axis=1)
        return _Transfers(
            np.full(len(step), number),
            np.ones(len(step), dtype=np.int64),
            step.sources,
            step.targets,
            np.repeat(least, step.period),
            np.repeat(most, step.period),
            routes,
            np.ones(len(step), dtype=np.bool_),
            numbers,
            np.full(len(step), _NONE),
            numbers,
        )

    def _repetition(self, step: Step, routes: Integers, sizes: Floats) -> tuple[Floats, Floats]:
        """Return the seconds between two repetitions of each row, and those idle, (n,) each."""
        usage = self.routes.usage.take(routes)
        limits = self.routes.limits[routes]
        rates = max_min_rates(usage, self.scenario.links.capacities, limits=limits)
        sending = sizes / rates
        passed_on = np.minimum(sizes, self.block * self.transport.element_bytes or np.inf) / rates
        shape = (-1, step.period)
        hop = (self.routes.delays[routes] + passed_on).reshape(shape).mean(axis=1)
        seconds = np.maximum(sending.reshape(shape).max(axis=1), hop)
        every = np.repeat(seconds, step.period)
        return every, every - sending


def _follow_on_connections(scenario: Scenario, schedule: Schedule, transfers: _Transfers) -> None:
    """Let a transfer between two nodes start when the one before on that connection is sent."""
    nodes = schedule.nodes
    chains = np.array(schedule.chains, dtype=np.int64)
    pair = (chains[transfers.steps] * nodes + transfers.sources) * nodes + transfers.targets
    order = np.argsort(pair, kind="stable")
    earlier, later = order[:-1], order[1:]
    same = pair[earlier] == pair[later]
    earlier, later = earlier[same], later[same]
    # The idle time of a merged turn counts: it delays the next repetition.
    gap = transfers.merged[earlier]
    scenario.flows.sent.add(transfers.tail[earlier[~gap]], transfers.head[later[~gap]])
    scenario.flows.delivered.add(transfers.tail[earlier[gap]], transfers.head[later[gap]])


def _wait_for_data(
    scenario: Scenario, schedule: Schedule, transfers: _Transfers, element_bytes: int
) -> None:
    """Let transfers wait for those that deliver their data."""
    brought = _gather(scenario, transfers)
    ancestors = _ancestors(schedule)
    order = np.argsort(brought.targets, kind="stable")
    brought = brought.take(order)
    first = np.searchsorted(brought.targets, transfers.sources)
    lengths = np.searchsorted(brought.targets, transfers.sources, side="right") - first
    merged = np.zeros(len(schedule.steps), dtype=np.bool_)
    merged[transfers.steps[transfers.merged]] = True
    found: list[tuple[Integers, Integers]] = []
    for rows in np.split(
        np.arange(len(lengths)), np.flatnonzero(np.diff(np.cumsum(lengths) // _PAIRS)) + 1
    ):
        later = np.repeat(rows, lengths[rows])
        ends = np.cumsum(lengths[rows])
        earlier = np.arange(len(later)) + np.repeat(
            first[rows] - ends + lengths[rows], lengths[rows]
        )
        steps, step = brought.steps[earlier], transfers.steps[later]
        before = (ancestors[step, steps >> 3] >> (steps & 7)) & 1 > 0
        turns_before = brought.turns[earlier] < transfers.turns[later]
        before |= (steps == step) & turns_before & ~merged[step]
        before &= brought.starts[earlier] < transfers.stops[later]
        before &= transfers.starts[later] < brought.stops[earlier]
        found.append((earlier[before], later[before]))
    earlier, later = (np.concatenate(part) for part in zip(*found, strict=True))
    one, other = brought.take(earlier), transfers.take(later)
    flows = scenario.flows
    _, sizes, _ = flows.arrays()
    # Data that ends before the last block of its source follows the middle of the source.
    early = (one.body >= 0) & (
        other.stops * element_bytes <= one.stops * element_bytes - sizes[one.tail]
    )
    flows.delivered.add(one.head, other.head)
    flows.delivered.add(one.tail[~early], other.tail[~early])
    ends = one.stops * element_bytes - sizes[one.tail]
    inside = (one.body >= 0) & (one.starts <= other.starts)
    for some, part, end in (
        (inside & (other.body >= 0) & (one.stops >= other.stops), other.body, sizes[other.tail]),
        (early, other.tail, np.zeros(len(early))),
    ):
        offsets = ends - (other.stops * element_bytes - end)
        flows.follows.add(one.body[some], part[some], offsets[some])


def _gather(scenario: Scenario, transfers: _Transfers) -> _Transfers:
    """Return transfers, gathered by node where many bring one the same range in one turn."""
    keys = np.stack(
        [
            transfers.targets,
            transfers.steps,
            transfers.turns,
            transfers.starts,
            transfers.stops,
        ]
    )
    _, group, counts = np.unique(keys, axis=1, return_inverse=True, return_counts=True)
    wide = counts[group] > _WIDE
    if not wide.any():
        return transfers
    empty = Usage(np.zeros(2, dtype=np.int64), np.zeros(0, dtype=np.int64), np.zeros(0))
    row = scenario.add_routes(Routes(empty, np.zeros(1), np.array([np.inf])))
    number = np.cumsum(counts > _WIDE) - 1
    gates = number[group[wide]]
    _, first = np.unique(gates, return_index=True)
    heads = scenario.flows.extend(np.full(len(first), row), 0.0)
    tails = scenario.flows.extend(np.full(len(first), row), 0.0)
    scenario.flows.delivered.add(transfers.head[wide], heads[gates])
    scenario.flows.delivered.add(transfers.tail[wide], tails[gates])
    gate = transfers.take(np.flatnonzero(wide)[first])
    alone = transfers.take(np.flatnonzero(~wide))
    none = np.full(len(first), _NONE)
    flows = {"head": heads, "body": none, "tail": tails}
    return _Transfers(
        *(
            np.concatenate(
                (getattr(alone, part.name), flows.get(part.name, getattr(gate, part.name)))
            )
            for part in fields(_Transfers)
        )
    )


def _ancestors(schedule: Schedule) -> NDArray[np.uint8]:
    """Return bits: bit a of row s if step s waits for step a, directly or not. (steps, bytes)."""
    count = len(schedule.steps)
    table = np.zeros((count, count // 8 + 1), dtype=np.uint8)
    for number, step in enumerate(schedule.steps):
        for other in step.after:
            table[number] |= table[other]
            table[number, other >> 3] |= np.uint8(1 << (other & 7))
    return table
