"""AND all-reduce of bit vectors: on the tree, the virtual ring, or elsewhere ([004 claim 10][004]).

One vector a process and cycle; cycles are numbered from 0, and a process contributes to the next
one only when it has the result of the last.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from hopsum.coordination.failure import CoordinationError
from hopsum.coordination.messages import Message, Result, Vector
from hopsum.coordination.operators import BitVector
from hopsum.coordination.tree import CoordinationTree

Outgoing = list[tuple[int, Message]]
"""Messages and the ranks they go to."""


class AndAllReduce(Protocol):
    """One process's end of the all-reduce."""

    @property
    def successors(self) -> Sequence[int]:
        """Ranks that it sends to in addition to the tree's."""

    @property
    def predecessors(self) -> Sequence[int]:
        """Ranks that it receives from in addition to the tree's."""

    def contribute(self, cycle: int, vector: BitVector) -> Outgoing:
        """Contribute this process's vector to a cycle; return the messages to send."""

    def receive(self, peer: int, message: Vector | Result) -> Outgoing:
        """Process a neighbour's vector; CoordinationError if it does not fit."""

    def take_result(self) -> BitVector | None:
        """Return the combined vector of the cycle contributed to last, once it is known."""


class TreeAnd:
    """Combines up the tree, distributes down: one message each way over every edge."""

    successors: Sequence[int] = ()
    predecessors: Sequence[int] = ()

    def __init__(self, tree: CoordinationTree, rank: int) -> None:
        self._parent = tree.parents[rank]
        self._children = tree.children[rank]
        self._cycles: dict[int, tuple[set[int], BitVector]] = {}
        self._rank = rank
        self._result: BitVector | None = None

    def contribute(self, cycle: int, vector: BitVector) -> Outgoing:
        """Contribute this process's vector to a cycle; return the messages to send."""
        return self._add(self._rank, cycle, vector)

    def receive(self, peer: int, message: Vector | Result) -> Outgoing:
        """Process a child's vector, or the parent's result."""
        if isinstance(message, Result):
            return self._finish(message)
        return self._add(peer, message.cycle, message.vector)

    def _add(self, member: int, cycle: int, vector: BitVector) -> Outgoing:
        members, combined = self._cycles.get(cycle, (set(), vector))
        members.add(member)
        combined = _combined(combined, vector, cycle, member)
        if len(members) <= len(self._children):
            self._cycles[cycle] = members, combined
            return []
        self._cycles.pop(cycle, None)
        if self._parent >= 0:
            return [(self._parent, Vector(cycle, combined))]
        return self._finish(Result(cycle, combined))

    def _finish(self, result: Result) -> Outgoing:
        self._result = result.vector
        return [(child, result) for child in self._children]

    def take_result(self) -> BitVector | None:
        """Return the combined vector, once."""
        result, self._result = self._result, None
        return result


class RingAnd:
    """Combines once around the ring, then distributes the result once around.

    Every process sends at most two messages a cycle, over 2 (n - 1) hops in all. A ring all-reduce
    in n parts (reduce-scatter, all-gather) would send 2 (n - 1) messages each over as many hops:
    vectors have a few words, so the messages and not their length are what counts.
    """

    def __init__(self, ring: Sequence[int], rank: int) -> None:
        place = ring.index(rank)
        self._rank = rank
        self._next = ring[(place + 1) % len(ring)]
        self._before = ring[place - 1]
        self._first = place == 0
        self._last = place == len(ring) - 1
        # The process before the last is the last to hear the result.
        self._passes_on = len(ring) > 1 and place != len(ring) - 2
        self._own: tuple[int, BitVector] | None = None
        self._arrived: dict[int, BitVector] = {}
        self._result: BitVector | None = None

    @property
    def successors(self) -> Sequence[int]:
        """The next process of the ring."""
        return [self._next] if self._next != self._rank else []

    @property
    def predecessors(self) -> Sequence[int]:
        """The process before this one on the ring."""
        return [self._before] if self._before != self._rank else []

    def contribute(self, cycle: int, vector: BitVector) -> Outgoing:
        """Contribute this process's vector to a cycle; return the messages to send."""
        self._own = cycle, vector
        return self._pass()

    def receive(self, peer: int, message: Vector | Result) -> Outgoing:
        """Process the vectors of the processes before this one, or the result."""
        if isinstance(message, Result):
            return self._finish(message)
        self._arrived[message.cycle] = message.vector
        return self._pass()

    def _pass(self) -> Outgoing:
        if self._own is None:
            return []
        cycle, vector = self._own
        if not self._first:
            arrived = self._arrived.pop(cycle, None)
            if arrived is None:
                return []
            vector = _combined(arrived, vector, cycle, self._before)
        self._own = None
        if self._last:
            return self._finish(Result(cycle, vector))
        return [(self._next, Vector(cycle, vector))]

    def _finish(self, result: Result) -> Outgoing:
        self._result = result.vector
        return [(self._next, result)] if self._passes_on else []

    def take_result(self) -> BitVector | None:
        """Return the combined vector, once."""
        result, self._result = self._result, None
        return result


class ExternalAnd:
    """The all-reduce is the caller's, such as a job with the bitwise-and reduction in the switches.

    `submit(words)` starts it over ceil(operators / 32) + 2 words of 32 bits (the last two say the
    iteration, see `BitVector.tagged_words`); the caller gives the words that come out to
    `completed`, and calls `Participant.advance` then. Calls are made in the same order and with the
    same number of words by all processes.
    """

    successors: Sequence[int] = ()
    predecessors: Sequence[int] = ()

    def __init__(self, submit: Callable[[tuple[int, ...]], None]) -> None:
        self._submit = submit
        self._length = 0
        self._result: BitVector | None = None

    def contribute(self, cycle: int, vector: BitVector) -> Outgoing:
        """Contribute this process's vector to a cycle; return the messages to send."""
        self._length = vector.length
        self._submit(vector.tagged_words)
        return []

    def completed(self, words: Sequence[int]) -> None:
        """Process the combined words of the last call, signed or unsigned."""
        self._result = BitVector.from_tagged_words(self._length, words)

    def receive(self, peer: int, message: Vector | Result) -> Outgoing:
        """Raise CoordinationError: no process sends vectors."""
        raise CoordinationError(
            f"rank {peer} sends a vector of cycle {message.cycle} to a process whose vectors are "
            f"combined elsewhere; start all processes with the same kind of all-reduce"
        )

    def take_result(self) -> BitVector | None:
        """Return the combined vector, once."""
        result, self._result = self._result, None
        return result


def _combined(one: BitVector, other: BitVector, cycle: int, peer: int) -> BitVector:
    if one.length != other.length:
        raise CoordinationError(
            f"cycle {cycle}: the vector of rank {peer} has {other.length} bits; expected "
            f"{one.length}: the order tables differ, which is a defect of hopsum"
        )
    return one & other
