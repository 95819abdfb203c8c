"""The mark of packets that leave behind a long queue."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from protocol.outcomes import Outcome
from protocol.wire import Flag, Kind
from tests.packet.hopsum import bmv2
from tests.packet.hopsum.packets import raw_ipv4
from tests.packet.hopsum.star import SERVER_PORT, contribution, result, send, send_all, star, up
from tests.packet.hopsum.switches import EngineSwitch, Switch
from tests.support.paths import HOPSUM_P4

SOURCE = (HOPSUM_P4.parent / "include" / "congestion.p4").read_text()
DEPTH = int(re.findall(r"CONGESTED_DEPTH = (\d+);", SOURCE)[0])
MANY = 60
"""Packets that a queue of BMv2 holds, with room for the marker."""
HOST_MAC = 0x02000A000002


@contextmanager
def slow_port(switch: Switch, port: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let packets pile up at a port: in executors a batch does so by itself."""
    if not isinstance(switch, bmv2.Bmv2Switch):
        yield
        return
    command = shutil.which("simple_switch_CLI")
    if command is None:
        pytest.skip("simple_switch_CLI is not on PATH")
    monkeypatch.setattr(bmv2, "BURST", MANY)

    def rate(packets_per_second: int) -> None:
        subprocess.run(
            [command, "--thrift-port", str(switch.process.thrift_port)],
            input=f"set_queue_rate {packets_per_second} {port}\n".encode(),
            stdout=subprocess.DEVNULL,
            check=True,
        )

    rate(50)
    try:
        yield
    finally:
        rate(0)


def test_packets_behind_a_long_queue_are_marked(
    switch: Switch, monkeypatch: pytest.MonkeyPatch
) -> None:
    star(switch)
    packets = [contribution(switch, 0, f, flags=Flag.BYPASS) for f in range(MANY)]
    with slow_port(switch, SERVER_PORT, monkeypatch):
        out = [packet for _, packet in send(switch, 1, *packets)]
    marked = [packet.flags == Flag.BYPASS | Flag.ECN for packet in out]
    # BMv2 sends some of them while the rest come in, and its clock runs.
    assert not any(marked[:DEPTH])
    assert any(marked)
    if isinstance(switch, EngineSwitch):
        assert all(marked[DEPTH:])
    unmarked = [replace(packet, flags=Flag.BYPASS) for packet in out]
    assert unmarked == [packet.popped() for packet in packets]
    assert switch.counted() == {Outcome.BYPASSED: MANY, Outcome.CONGESTED: sum(marked)}


@pytest.mark.parametrize("clock", [1, 40, 63, 64, 1000])
def test_how_long_is_long_depends_on_the_clock(switch: Switch, clock: int) -> None:
    if not isinstance(switch, EngineSwitch):
        pytest.skip("the clock of BMv2 is its own")
    star(switch)
    packets = [contribution(switch, 0, f, flags=Flag.BYPASS) for f in range(100)]
    out = switch.engine.process([(1, packet.frame()) for packet in packets], clock)
    marked = [bool(frame[43] & Flag.ECN) for _, frame in out]
    depth = DEPTH + clock % 64
    assert marked == [False] * depth + [True] * (100 - depth)


def test_queues_of_other_ports_do_not_count(switch: Switch) -> None:
    star(switch, fan_in=4)
    results = [result(switch, child, f) for child in range(3) for f in range(DEPTH // 2)]
    assert len(results) > DEPTH
    out = send_all(switch, ((SERVER_PORT, packet) for packet in results))
    assert [packet.flags for _, packet in out] == [0] * len(results)


def test_each_copy_of_a_result_has_a_queue_of_its_own(
    switch: Switch, monkeypatch: pytest.MonkeyPatch
) -> None:
    star(switch)
    switch.multicast(7, (1, 2))
    switch.insert("replication", {"job": 1, "tree": 0, "epoch": 1}, "replicate", group=7, clear=1)
    answers = [result(switch, 0, f, kind=Kind.REPLICATED, hops=()) for f in range(MANY)]
    with slow_port(switch, 2, monkeypatch):
        # Port 2 has been fed by its neighbour's results before.
        alone = [replace(result(switch, 1, f), fragment=f) for f in range(DEPTH)]
        out = send(switch, SERVER_PORT, *alone, *answers[:DEPTH])
    flags = {port: [p.flags for at, p in out if at == port] for port in (1, 2)}
    assert flags[1] == [0] * DEPTH
    assert flags[2][:DEPTH] == [0] * DEPTH
    if isinstance(switch, EngineSwitch):
        assert flags[2][DEPTH:] == [Flag.ECN] * DEPTH


def test_a_mark_made_below_stays_with_the_sum(switch: Switch) -> None:
    star(switch)
    (total,) = up(switch, contribution(switch, 0, flags=Flag.ECN), contribution(switch, 1))
    assert total.flags == Flag.ECN
    assert Outcome.CONGESTED not in switch.counted()


def low_checksum(tos: int) -> bytes:
    """The address for which a packet's checksum is so low that the mark makes it wrap around."""
    for low in range(1 << 16):
        address = bytes([10, 0]) + low.to_bytes(2, "big")
        if raw_ipv4(bytes(20), tos=tos, dst=address)[24:26] == bytes(2):
            return address
    raise AssertionError


@pytest.mark.parametrize("ecn", [1, 2, 3])
def test_plain_packets_that_understand_marks_are_marked(switch: Switch, ecn: int) -> None:
    switch.insert("l2_forward", {"dst_mac": HOST_MAC}, "forward", port=5)
    targets = [bytes([10, 0, number, 2]) for number in range(DEPTH)]
    targets += [low_checksum(0xE0 | ecn), bytes([10, 0, 0, 9])]
    out = switch.send(1, *(raw_ipv4(bytes(20), tos=0xE0 | ecn, dst=each) for each in targets))
    if isinstance(switch, EngineSwitch):
        tos = [0xE0 | ecn] * DEPTH + [0xE3] * 2
        expected = [raw_ipv4(bytes(20), tos=t, dst=d) for t, d in zip(tos, targets, strict=True)]
        assert [frame for _, frame in out] == expected
        marked = {} if ecn == 3 else {Outcome.CONGESTED: 2}
        assert switch.counted() == {Outcome.PLAIN: len(targets), **marked}


def test_plain_packets_are_left_alone(switch: Switch) -> None:
    switch.insert("l2_forward", {"dst_mac": HOST_MAC}, "forward", port=5)
    frame = raw_ipv4(bytes(20))
    assert switch.send(1, *[frame] * MANY) == [(5, frame)] * MANY
    assert switch.counted() == {Outcome.PLAIN: MANY}
