"""Admission: who may speak for a job, and for which child."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hopsum.protocol.outcomes import Outcome
from hopsum.protocol.wire import MAX_CHILDREN, Flag, Hop
from tests.packet.hopsum.packets import LAST_HOP, Packet, add
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


@pytest.mark.parametrize("child", [1, 31, 32, 255, 256, 511])
def test_a_host_cannot_speak_for_another_child(switch: Switch, child: int) -> None:
    """H29: whatever the index, only the port's own children are admitted."""
    star(switch)
    hop = Hop(aggregate=True, child=child, fan_in=2, port=SERVER_PORT)
    assert send(switch, 1, contribution(switch, hops=(hop, LAST_HOP))) == []
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


@pytest.mark.parametrize("fan_in", [32, 33, 64, 65, 128, 129, 256, 257, MAX_CHILDREN])
def test_each_of_many_children_counts_once(switch: Switch, fan_in: int) -> None:
    """On both sides of every word of an engine's numbers, up to the largest fan-in."""
    switch.admit_children(1, (1 << fan_in) - 1, fan_in=fan_in)
    parts = [
        contribution(
            switch,
            values=(child + 1,) * switch.build.lanes,
            hops=(Hop(aggregate=True, child=child, fan_in=fan_in, port=SERVER_PORT), LAST_HOP),
        )
        for child in range(fan_in)
    ]
    last, *others = parts
    for batch in batches(others):
        assert send(switch, 1, *batch) == []
        assert send(switch, 1, *batch[-2:]) == []
    total = last.popped(values=add(*(part.values for part in parts)), weight=fan_in)
    assert send(switch, 1, last) == [(SERVER_PORT, total)]
    assert send(switch, 1, parts[-1]) == [(SERVER_PORT, total)]
    repeated = sum(len(batch[-2:]) for batch in batches(others))
    assert switch.counted() == {
        Outcome.AGGREGATED: fan_in - 1,
        Outcome.DUPLICATE: repeated,
        Outcome.COMPLETED: 1,
        Outcome.RE_EMITTED: 1,
    }


def batches(packets: list[Packet]) -> list[list[Packet]]:
    """Few packets at a time, as BMv2's queues take."""
    return [packets[at : at + 32] for at in range(0, len(packets), 32)]


def test_siblings_far_apart_have_ports_of_their_own(switch: Switch) -> None:
    """Neighbouring bits of the bitmap, and bits a word or half of it apart."""
    children = (0, 32, 64, 127, 255, 256, 511)
    for port, child in enumerate(children, 1):
        switch.admit_children(port, 1 << child, fan_in=len(children))
    parts = [
        contribution(
            switch,
            hops=(Hop(aggregate=True, child=c, fan_in=len(children), port=SERVER_PORT), LAST_HOP),
        )
        for c in children
    ]
    for port in range(1, len(children) + 1):
        for other, part in enumerate(parts, 1):
            if other != port:
                assert send(switch, port, part) == []
    refused = len(children) * (len(children) - 1)
    assert switch.counted() == {Outcome.NOT_ADMITTED: refused}
    total = add(*(part.values for part in parts))
    out = [out for port, part in enumerate(parts, 1) for out in send(switch, port, part)]
    assert out == [(SERVER_PORT, parts[-1].popped(values=total, weight=len(children)))]


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
