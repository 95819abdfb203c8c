"""Schedules over TCP in virtual time."""

from __future__ import annotations

import numpy as np

from hopsum.collectives.algorithms.ring import ring_all_reduce
from hopsum.collectives.execution import Execution
from hopsum.protocol.wire import Address
from hopsum.simulation.tcp import HEADER_BYTES, StreamMember

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


def test_timeouts_of_one_segment_do_not_add_to_those_of_the_next() -> None:
    """Every segment of a ring of two is lost once; the timeout follows the measured round trip."""
    members = [StreamMember(rank, ADDRESSES) for rank in (0, 1)]
    now, sent = 0.0, [0, 0]
    for _ in range(8):
        for rank, member in enumerate(members):
            member.start(Execution(ring_all_reduce(2, 8), rank, np.ones(8, np.int32)), now)
        while any(not member.done for member in members) and now < 60:
            frames = [member.take_output() for member in members]
            if not any(frames):
                now = min(due for m in members if (due := m.deadline) is not None)
                for member in members:
                    member.tick(now)
                continue
            now += 0.001
            for rank, output in enumerate(frames):
                for frame in output:
                    sent[rank] += frame.shape[1] > HEADER_BYTES
                    if frame.shape[1] == HEADER_BYTES or sent[rank] % 2 == 0:
                        members[1 - rank].receive(frame, now)
    # 16 segments a rank, one after the other; the first waits for the initial timeout of 1 s.
    assert sent == [32, 32]
    assert now < 1.0 + 16 * 0.3
