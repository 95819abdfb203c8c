"""Schedules over TCP in virtual time."""

from __future__ import annotations

import numpy as np

from collectives.algorithms.ring import ring_all_reduce
from collectives.execution import Execution
from protocol.wire import Address
from simulation.stream import StreamMember

ADDRESSES = {
    rank: Address(bytes([2, 0, 0, 0, 0, rank]), bytes([10, 0, 0, rank])) for rank in (0, 1)
}


def started() -> StreamMember:
    """Return rank 0 of a ring of two whose neighbour is silent, at time 0."""
    member = StreamMember(0, ADDRESSES)
    member.start(Execution(ring_all_reduce(2, 8), 0, np.ones(8, np.int32)), 0.0)
    return member


def until(member: StreamMember, end: float) -> None:
    """Run the member's timers to a time."""
    while (due := member.deadline) is not None and due < end:
        member.tick(due)
    member.tick(end)


def test_a_schedule_without_progress_stalls_as_over_tcp() -> None:
    member = started()
    until(member, 29.0)
    assert not member.stalled(29.9)
    assert member.deadline is not None and member.deadline <= 30.0
    assert member.stalled(30.0)


def test_a_known_failure_of_the_network_postpones_the_timeout() -> None:
    member = started()
    until(member, 20.0)
    member.postpone(20.0)
    assert not member.stalled(30.0)
    assert member.stalled(50.0)
    member.abort()
    assert not member.stalled(50.0)
    # What was sent is still retransmitted.
    assert member.deadline is not None
