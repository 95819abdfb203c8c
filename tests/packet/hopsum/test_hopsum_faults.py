"""The drop injector, on the way in and on the way out."""

from __future__ import annotations

import pytest

from hopsum.protocol.outcomes import Outcome
from hopsum.protocol.wire import Kind
from tests.packet.hopsum.packets import Packet, raw_ipv4
from tests.packet.hopsum.star import SERVER_PORT, contribution, send, star
from tests.packet.hopsum.switches import CPU_PORT, Switch

HOST_MAC = 0x02000A000002
ALWAYS = 2**32 - 1
SIDES = {"ingress_loss": ("ingress_port", 1), "egress_loss": ("egress_port", 5)}
"""Table -> its key and the port at which packets pass it."""


def lose(switch: Switch, table: str, port: int, threshold: int) -> None:
    switch.insert(table, {SIDES[table][0]: port}, "lose", threshold=threshold)


@pytest.mark.parametrize("table", SIDES)
def test_always_and_never(switch: Switch, table: str) -> None:
    switch.insert("l2_forward", {"dst_mac": HOST_MAC}, "forward", port=5)
    frame = raw_ipv4(bytes(20))
    _, port = SIDES[table]
    lose(switch, table, port, ALWAYS)
    lose(switch, table, 6 if port == 5 else 2, 0)
    assert switch.send(1, *[frame] * 20) == []
    assert switch.counted()[Outcome.INJECTED_LOSS] == 20
    if table == "ingress_loss":
        assert len(switch.send(2, *[frame] * 20)) == 20
    else:
        switch.insert("l2_forward", {"dst_mac": HOST_MAC + 1}, "forward", port=6)
        other = raw_ipv4(bytes(20), dst_mac=(HOST_MAC + 1).to_bytes(6, "big"))
        assert len(switch.send(1, *[other] * 20)) == 20
    assert switch.counted()[Outcome.INJECTED_LOSS] == 20


@pytest.mark.parametrize("table", SIDES)
def test_about_half(switch: Switch, table: str) -> None:
    """400 throws: within 2 * 400^0.5 of 200, four standard deviations."""
    switch.insert("l2_forward", {"dst_mac": HOST_MAC}, "forward", port=5)
    lose(switch, table, SIDES[table][1], 2**31)
    through = len(switch.send(1, *[raw_ipv4(bytes(20))] * 400))
    assert 160 < through < 240
    assert switch.counted()[Outcome.INJECTED_LOSS] == 400 - through


def test_a_lost_contribution_touches_no_slot(switch: Switch) -> None:
    star(switch)
    lose(switch, "ingress_loss", 1, ALWAYS)
    assert send(switch, 1, contribution(switch, 0)) == []
    assert send(switch, 2, contribution(switch, 1)) == []
    assert switch.counted() == {Outcome.INJECTED_LOSS: 1, Outcome.AGGREGATED: 1}


def test_each_copy_is_dropped_independently(switch: Switch) -> None:
    """Half the copies to one port are lost, none of those to the other."""
    switch.multicast(9, (5, 6))
    switch.insert("l2_forward", {"dst_mac": HOST_MAC}, "flood", group=9)
    lose(switch, "egress_loss", 5, 2**31)
    ports = [port for port, _ in switch.send(1, *[raw_ipv4(bytes(20))] * 100)]
    assert ports.count(6) == 100
    assert 20 < ports.count(5) < 80


def test_a_sum_lost_on_the_way_up_comes_again(switch: Switch) -> None:
    star(switch)
    lose(switch, "egress_loss", SERVER_PORT, ALWAYS)
    parts = [contribution(switch, child) for child in (0, 1)]
    assert [send(switch, child + 1, part) for child, part in enumerate(parts)] == [[], []]
    switch.delete("egress_loss", {"egress_port": SERVER_PORT})
    ((port, packet),) = send(switch, 1, parts[0])
    assert (port, packet.weight) == (SERVER_PORT, 2)


def test_the_controllers_port_loses_nothing(switch: Switch) -> None:
    lose(switch, "ingress_loss", CPU_PORT, ALWAYS)
    lose(switch, "egress_loss", CPU_PORT, ALWAYS)
    frame = raw_ipv4(bytes(20))
    assert switch.send(CPU_PORT, b"\0" + (3).to_bytes(2, "big") + bytes(4) + frame) == [(3, frame)]
    question = Packet((0,) * switch.build.lanes, kind=Kind.INSPECT, job=0, epoch=0).frame()
    ((port, _),) = switch.send(CPU_PORT, b"\1" + bytes(6) + question)
    assert port == CPU_PORT
