"""Admission: who may speak for a job, and for which child."""

from __future__ import annotations

from dataclasses import replace

import pytest

from protocol.outcomes import Outcome
from protocol.wire import Flag, Hop
from tests.packet.hopsum.packets import LAST_HOP, add
from tests.packet.hopsum.star import SERVER_PORT, contribution, result, send, star, up
from tests.packet.hopsum.switches import CPU_PORT, Switch


@pytest.mark.slow
@pytest.mark.parametrize("other", [{"job": 2}, {"tree": 1}], ids=str)
@pytest.mark.parametrize("flags", [0, Flag.STALE, Flag.BYPASS])
def test_packets_of_unknown_jobs_are_dropped(
    switch: Switch, other: dict[str, int], flags: int
) -> None:
    star(switch)
    assert up(switch, replace(contribution(switch, 0, flags=flags), **other)) == []  # type: ignore[arg-type]
    assert switch.counted() == {Outcome.NOT_ADMITTED: 1}


@pytest.mark.parametrize("port", [2, 3, SERVER_PORT])
def test_a_child_comes_in_at_its_own_port(switch: Switch, port: int) -> None:
    """H29: another child's port, a port of no job, the server's."""
    star(switch)
    forged = contribution(switch, 0)
    assert send(switch, port, forged) == []
    assert switch.counted() == {Outcome.NOT_ADMITTED: 1}
    parts = [contribution(switch, child) for child in (0, 1)]
    total = add(*(part.values for part in parts))
    assert up(switch, *parts) == [parts[1].popped(values=total, weight=2)]


@pytest.mark.parametrize("child", [1, 31, 32, 63])
def test_a_host_cannot_speak_for_another_child(switch: Switch, child: int) -> None:
    """H29: six bits name a child, of which half are never admitted."""
    star(switch)
    word = 1 << 31 | child << 24 | 2 << 16 | SERVER_PORT
    frame = bytearray(contribution(switch, 0).frame())
    frame[62:66] = word.to_bytes(4, "big")
    assert switch.send(1, bytes(frame)) == []
    assert switch.counted() == {Outcome.NOT_ADMITTED: 1}


def test_several_children_behind_one_port(switch: Switch) -> None:
    """Below a switch that does not aggregate."""
    switch.admit_children(1, 0b1011, fan_in=3)
    parts = [
        contribution(
            switch, hops=(Hop(aggregate=True, child=child, fan_in=3, port=SERVER_PORT), LAST_HOP)
        )
        for child in (0, 1, 3)
    ]
    out = send(switch, 1, *parts)
    assert out == [(SERVER_PORT, parts[2].popped(values=add(*(p.values for p in parts)), weight=3))]


def test_a_switch_that_does_not_aggregate_only_forwards(switch: Switch) -> None:
    """fan-in 0, no children: independently of what the packet requests."""
    switch.admit_children(1, 0, fan_in=0)
    part = contribution(switch, hops=(Hop(port=4), LAST_HOP))
    assert send(switch, 1, part) == [(4, part.popped())]
    assert send(switch, 1, contribution(switch, 0)) == []
    assert switch.counted() == {Outcome.FORWARDED: 1, Outcome.NOT_ADMITTED: 1}


def test_thirty_two_children(switch: Switch) -> None:
    """The largest fan-in: every bit of the bitmap."""
    switch.admit_children(1, 2**32 - 1, fan_in=32)
    parts = [
        contribution(
            switch, hops=(Hop(aggregate=True, child=child, fan_in=32, port=SERVER_PORT), LAST_HOP)
        )
        for child in range(32)
    ]
    out = send(switch, 1, *reversed(parts))
    total = add(*(part.values for part in parts))
    assert out == [(SERVER_PORT, parts[0].popped(values=total, weight=32))]
    assert switch.counted() == {Outcome.AGGREGATED: 31, Outcome.COMPLETED: 1}


def test_a_slot_beyond_the_registers_wraps_into_them(switch: Switch) -> None:
    """An index stays inside for any entry of the controller: 64 slots, base 2^32 - 1."""
    switch.admit_children(1, 0b11, base=2**32 - 1, mask=2**32 - 1)
    parts = [
        contribution(
            switch,
            fragment=2**31 + 7,
            values=tuple(range(switch.build.lanes)),
            hops=(Hop(aggregate=True, child=child, fan_in=2, port=SERVER_PORT), LAST_HOP),
        )
        for child in (0, 1)
    ]
    total = add(*(part.values for part in parts))
    assert send(switch, 1, *parts) == [(SERVER_PORT, parts[1].popped(values=total, weight=2))]


@pytest.mark.parametrize("port", [CPU_PORT, 511, 512, 513, 0xFFFF])
@pytest.mark.parametrize("down", [False, True])
def test_no_stack_leads_to_the_controller_or_out_of_range(
    switch: Switch, port: int, down: bool
) -> None:
    star(switch)
    packet = result(switch) if down else contribution(switch, 0)
    frame = bytearray(packet.frame())
    frame[64:66] = port.to_bytes(2, "big")
    assert switch.send(SERVER_PORT if down else 1, bytes(frame)) == []
    assert switch.counted() == {Outcome.MALFORMED: 1}


def test_packets_of_a_finished_job_are_unadmitted(switch: Switch) -> None:
    """H24: the entry goes, and with it the job's way to its slots; others are not touched."""
    star(switch)
    star(switch, job=2, base=4)
    up(switch, contribution(switch, 0), contribution(switch, 0, job=2))
    for port in (1, 2, SERVER_PORT):
        switch.delete("admission", {"job": 1, "tree": 0, "ingress_port": port})
    assert up(switch, contribution(switch, 1)) == []
    assert len(up(switch, contribution(switch, 1, job=2))) == 1
    assert switch.counted()[Outcome.NOT_ADMITTED] == 1
