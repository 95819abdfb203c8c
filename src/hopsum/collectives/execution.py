"""One node's part of a schedule, without I/O: bytes in, bytes out, in the order of the schedule.

On a channel, between two nodes and for one chain of steps, runs one byte stream each way: the
elements of their transfers, in order of turn and start, little-endian, with nothing in between.
Both sides know the schedule, so nothing else is needed. Chains have streams of their own because
they do not wait for each other: a tree must not queue behind a slower one.

Where several transfers of a turn deliver the same elements, as the children of a tree do, data of
none is accepted far ahead of the slowest: it could not be forwarded yet, and would take bandwidth
from the transfers that are waited for. (TCP alone does not ensure that: a link's queue serves its
flows in proportion to what they send into it.)

It cannot deadlock, although the received data that waits to be applied is bounded (`wanted`): of
all unfinished transfers the first by turn, then by element, waits for no other, and is the current
one of its channel at both ends.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hopsum.collectives.schedule import Schedule, Transfer

WAITING_BYTES = 1 << 20
"""Maximum bytes of a channel that are received before they can be applied."""
LEAD_BYTES = 1 << 16
"""Maximum lead of a transfer over another of its turn that delivers the same elements."""
LEAD_PART = 16
"""A lead of 1 / 16 of the transfer is allowed too: larger ones take longer to even out."""


class Channel(NamedTuple):
    """The stream to or from a node, for one chain of a schedule."""

    peer: int
    chain: int


@dataclass(slots=True)
class _Progress:
    """A transfer in progress: elements [start, position) are done; it waits for `blockers`.

    `siblings`: others of its turn that deliver some of the same elements.
    """

    transfer: Transfer
    position: int
    blockers: list[_Progress] = field(default_factory=list)
    siblings: list[_Progress] = field(default_factory=list)

    @property
    def limit(self) -> int:
        """The element up to which it may proceed now."""
        limit = self.transfer.stop
        for other in self.blockers:
            # Elements of the other transfer that are not done yet are off limits.
            if not other.done and other.position < limit:
                limit = max(other.position, self.transfer.start)
        return limit

    @property
    def lead(self) -> int:
        """Its lead over the slowest of its siblings, in elements."""
        slowest = min((s.position for s in self.siblings if not s.done), default=self.position)
        return max(0, self.position - slowest)

    @property
    def done(self) -> bool:
        """Whether all its elements are done."""
        return self.position >= self.transfer.stop


@dataclass(slots=True)
class _TransferQueue:
    """Transfers on one channel in one direction, and their progress."""

    parts: list[_Progress]
    missing: int = 0
    """Bytes still to be received."""
    index: int = 0
    waiting: bytearray = field(default_factory=bytearray)

    @property
    def current(self) -> _Progress | None:
        """The current transfer; None at the end."""
        while self.index < len(self.parts):
            part = self.parts[self.index]
            if not part.done:
                return part
            self.index += 1
        return None


class _Table:
    """Transfers as arrays, to find those that overlap."""

    def __init__(self, parts: list[_Progress]) -> None:
        self._parts = parts
        transfers = [part.transfer for part in parts]
        self._turns = np.array([t.turn for t in transfers], dtype=np.int64).reshape(-1, 2)
        self._starts = np.array([t.start for t in transfers], dtype=np.int64)
        self._stops = np.array([t.stop for t in transfers], dtype=np.int64)
        self._copies = np.array([not t.combine for t in transfers], dtype=np.bool_)

    def before(self, transfer: Transfer, *, same: bool = False, ordered: bool = False) -> Any:
        """Return those of earlier turns (`same`: or its own) that share elements with a transfer.

        `ordered`: only those whose order matters where both write: one of the two copies.
        """
        step, repetition = transfer.turn
        turns = self._turns
        last = turns[:, 1] <= repetition if same else turns[:, 1] < repetition
        found = (turns[:, 0] < step) | ((turns[:, 0] == step) & last)
        found &= (self._starts < transfer.stop) & (self._stops > transfer.start)
        if ordered and transfer.combine:
            found &= self._copies
        return [self._parts[i] for i in np.flatnonzero(found)]


def channels(schedule: Schedule, node: int) -> tuple[tuple[Channel, ...], tuple[Channel, ...]]:
    """Return the channels on which a node sends, and those on which it receives."""
    chains = schedule.chains
    sends: dict[Channel, None] = {}
    receives: dict[Channel, None] = {}
    for number, step in enumerate(schedule.steps):
        for found, ours, peers in (
            (sends, step.sources, step.targets),
            (receives, step.targets, step.sources),
        ):
            for peer in np.unique(peers[ours == node]).tolist():
                found[Channel(peer, chains[number])] = None
    return tuple(sends), tuple(receives)


class Execution:
    """Execution of a schedule at node `node` on `values`, which it changes in place.

    `values`: one-dimensional, int32 (sums wrap around) or float32; zeros at a relay, and for
    elements to which the node contributes nothing.
    """

    def __init__(self, schedule: Schedule, node: int, values: NDArray[Any]) -> None:
        if values.shape != (schedule.elements,):
            raise ValueError(
                f"values of shape {values.shape}: the schedule is for ({schedule.elements},)"
            )
        self.values = values
        self._wire_type = values.dtype.newbyteorder("<")
        chains = schedule.chains
        sends = [_Progress(t, t.start) for t in schedule.sends(node)]
        receives = [_Progress(t, t.start) for t in schedule.receives(node)]
        sent, received = _Table(sends), _Table(receives)
        for send in sends:
            send.blockers = received.before(send.transfer)
        for receive in receives:
            receive.blockers = sent.before(receive.transfer, same=True)
            receive.blockers += received.before(receive.transfer, ordered=True)
            receive.siblings = [
                other
                for other in received.before(receive.transfer, same=True)
                if other.transfer.turn == receive.transfer.turn and other is not receive
            ]
        self._out = _transfer_queues((p.transfer.target, chains[p.transfer.step], p) for p in sends)
        self._in = _transfer_queues(
            (p.transfer.source, chains[p.transfer.step], p) for p in receives
        )
        for queue in self._in.values():
            queue.missing = values.itemsize * sum(
                part.transfer.stop - part.transfer.start for part in queue.parts
            )
        self._stuck: dict[Channel, None] = {}

    @property
    def targets(self) -> tuple[Channel, ...]:
        """Channels to send on."""
        return tuple(self._out)

    @property
    def sources(self) -> tuple[Channel, ...]:
        """Channels to receive from."""
        return tuple(self._in)

    @property
    def done(self) -> bool:
        """Whether everything is sent and received."""
        return all(queue.current is None for queue in (*self._out.values(), *self._in.values()))

    def wanted(self, channel: Channel) -> int:
        """Return how many more bytes of a channel should be passed in now.

        So memory stays bounded, and no sibling runs far ahead.
        """
        queue = self._in.get(channel)
        if queue is None:
            return 0
        room = WAITING_BYTES
        if (part := queue.current) is not None and part.siblings:
            item = self.values.itemsize
            length = part.transfer.stop - part.transfer.start
            room = max(LEAD_BYTES, item * length // LEAD_PART) - item * part.lead
        return max(0, min(queue.missing, min(room, WAITING_BYTES) - len(queue.waiting)))

    def outgoing(self, channel: Channel, limit: int) -> bytes:
        """Return the next bytes for a channel, at most `limit`; empty while there are none."""
        item = self.values.itemsize
        taken: list[bytes] = []
        queue = self._out[channel]
        while limit >= item and (part := queue.current) is not None:
            stop = min(part.limit, part.position + limit // item)
            if stop <= part.position:
                break
            taken.append(
                self.values[part.position : stop].astype(self._wire_type, copy=False).tobytes()
            )
            limit -= len(taken[-1])
            part.position = stop
        if taken:
            self._apply(list(self._stuck))
        return b"".join(taken)

    def incoming(self, channel: Channel, data: bytes) -> bytes:
        """Process the next bytes of a channel; return those that belong to a later schedule."""
        queue = self._in[channel]
        kept = min(len(data), queue.missing)
        queue.waiting += data[:kept]
        queue.missing -= kept
        self._apply([channel, *self._stuck])
        return data[kept:]

    def _apply(self, channels: list[Channel]) -> None:
        """Apply data received on these channels; applying one may unblock another."""
        moved = True
        while moved:
            moved = False
            for channel in channels:
                if self._take_in(self._in[channel]):
                    moved = True
        for channel in channels:
            if len(self._in[channel].waiting) >= self.values.itemsize:
                self._stuck[channel] = None
            else:
                self._stuck.pop(channel, None)

    def _take_in(self, queue: _TransferQueue) -> bool:
        """Apply all data that can be applied; return whether there was any."""
        item = self.values.itemsize
        moved = False
        while len(queue.waiting) >= item and (part := queue.current) is not None:
            count = min(part.limit - part.position, len(queue.waiting) // item)
            if count <= 0:
                break
            where = slice(part.position, part.position + count)
            elements = np.frombuffer(queue.waiting, self._wire_type, count)
            if part.transfer.combine:
                self.values[where] += elements
            else:
                self.values[where] = elements
            # A bytearray cannot shrink while an array looks into it.
            del elements
            del queue.waiting[: count * item]
            part.position += count
            moved = True
        return moved


def _transfer_queues(parts: Iterable[tuple[int, int, _Progress]]) -> dict[Channel, _TransferQueue]:
    """Return a queue per channel, with its transfers in order of turn and start."""
    queues: dict[Channel, _TransferQueue] = {}
    for peer, chain, part in parts:
        queues.setdefault(Channel(peer, chain), _TransferQueue([])).parts.append(part)
    for queue in queues.values():
        queue.parts.sort(key=lambda part: (part.transfer.turn, part.transfer.start))
    return queues
