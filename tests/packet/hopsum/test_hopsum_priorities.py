"""Which packets leave first: by the class selector of their IP ToS byte."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hopsum.protocol.tos import LEVELS, tos_of_level
from hopsum.protocol.wire import Flag, Hop, Kind
from tests.packet.hopsum.packets import raw_ipv4
from tests.packet.hopsum.star import SERVER_PORT, contribution, result, send, send_all, star
from tests.packet.hopsum.switches import EngineSwitch, Switch
from tests.packet.hopsum.test_hopsum_congestion import slow_port

HOST_MAC = 0x02000A000002
FIRST, LAST = tos_of_level(0), tos_of_level(LEVELS - 1)


def test_a_packet_of_high_priority_overtakes(
    switch: Switch, monkeypatch: pytest.MonkeyPatch
) -> None:
    star(switch)
    low = [contribution(switch, 0, f, flags=Flag.BYPASS, tos=LAST) for f in range(20)]
    high = contribution(switch, 0, 20, flags=Flag.BYPASS, tos=FIRST)
    with slow_port(switch, SERVER_PORT, monkeypatch):
        out = [packet.fragment for _, packet in send(switch, 1, *low, high)]
    # How many BMv2 sends while the rest come in is the machine's speed; some always wait.
    assert out.index(20) < len(low)
    assert [fragment for fragment in out if fragment != 20] == list(range(20))


def test_levels_leave_in_their_order_and_each_in_its_own(switch: Switch) -> None:
    if not isinstance(switch, EngineSwitch):
        pytest.skip("BMv2 can be slowed down queue by queue only, not a port as a whole")
    star(switch)
    levels = [5, 0, 7, 2, 1, 6, 3, 4] * 2
    packets = [
        contribution(switch, 0, f, flags=Flag.BYPASS, tos=tos_of_level(level))
        for f, level in enumerate(levels)
    ]
    out = [packet.fragment for _, packet in send(switch, 1, *packets)]
    assert out == sorted(range(len(levels)), key=levels.__getitem__)


def test_the_lower_bits_of_tos_say_nothing(switch: Switch) -> None:
    star(switch)
    packets = [contribution(switch, 0, f, flags=Flag.BYPASS, tos=0xE0 | f) for f in range(32)]
    # No queue is so long that packets are marked.
    for some in (packets[:16], packets[16:]):
        out = [packet for _, packet in send(switch, 1, *some)]
        assert out == [packet.popped() for packet in some]


def test_a_sum_leaves_as_the_packet_that_completed_it(switch: Switch) -> None:
    star(switch)
    first = contribution(switch, 0, tos=LAST)
    second = contribution(switch, 1, tos=FIRST)
    sent = send_all(switch, [(1, first), (2, second)])
    assert [packet.tos for _, packet in sent] == [FIRST]


def test_each_copy_of_a_result_has_its_priority(
    switch: Switch, monkeypatch: pytest.MonkeyPatch
) -> None:
    star(switch)
    switch.multicast(7, (1, 2))
    switch.insert("replication", {"job": 1, "tree": 0, "epoch": 1}, "replicate", group=7, clear=1)
    low = [result(switch, 1, f, tos=LAST) for f in range(20)]
    high = replace(result(switch, 0, 20, kind=Kind.REPLICATED, hops=()), tos=FIRST)
    with slow_port(switch, 2, monkeypatch):
        out = send(switch, SERVER_PORT, *low, high)
    assert [packet.fragment for port, packet in out if port == 1] == [20]
    # How many have left before it came is the machine's speed; some have always been waiting.
    assert [packet.fragment for port, packet in out if port == 2].index(20) < len(low)


def test_plain_packets_have_priorities_too(switch: Switch) -> None:
    """And those that ask for none wait behind jobs that do."""
    switch.insert("l2_forward", {"dst_mac": HOST_MAC}, "forward", port=5)
    star(switch)
    plain = raw_ipv4(bytes(20))
    marked = raw_ipv4(bytes(20), tos=FIRST)
    packet = contribution(switch, 0, flags=Flag.BYPASS, tos=tos_of_level(3))
    packet = replace(packet, hops=(Hop(port=5), *packet.hops[1:]))
    out = switch.send(1, plain, packet.frame(), marked)
    expected = [(5, marked), (5, packet.popped().frame()), (5, plain)]
    assert out == expected if isinstance(switch, EngineSwitch) else sorted(out) == sorted(expected)
