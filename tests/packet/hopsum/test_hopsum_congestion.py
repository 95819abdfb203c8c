"""The mark of packets that leave behind a long queue."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from hopsum.protocol.outcomes import Outcome
from hopsum.protocol.tos import LEVELS, tos_of_level
from hopsum.protocol.wire import Flag, Kind
from tests.packet.hopsum import bmv2
from tests.packet.hopsum.packets import Packet, raw_ipv4
from tests.packet.hopsum.star import SERVER_PORT, contribution, result, send, send_all, star, up
from tests.packet.hopsum.switches import EngineSwitch, Switch
from tests.support.paths import HOPSUM_P4

SOURCE = (HOPSUM_P4.parent / "include" / "congestion.p4").read_text()
DEPTH = int(re.findall(r"CONGESTED_DEPTH = (\d+);", SOURCE)[0])
STANDING = int(re.findall(r"STANDING_TIME = (\d+);", SOURCE)[0])
LONG = (STANDING + 63) // 64 * 64
"""A time (us) when a queue that has been long since 0 stands, and the threshold is lowest."""
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


def marks(switch: Switch, clock: int, *, waiting: int = 0, count: int = 100) -> list[bool]:
    """Return which of `count` packets to the server are marked at `clock` (us).

    They leave in the same instant, each behind `waiting` others and those before it.
    """
    if not isinstance(switch, EngineSwitch):
        pytest.skip("the clock of BMv2 is its own")
    switch.engine.set_waiting(SERVER_PORT, [0] * 7 + [waiting])
    packets = [contribution(switch, 0, f, flags=Flag.BYPASS) for f in range(count)]
    out = switch.engine.process([(1, packet.frame()) for packet in packets], clock)
    return [bool(frame[43] & Flag.ECN) for _, frame in out]


def stand(switch: Switch, now: int = 0) -> None:
    """Let the last short queue of the server's port be `STANDING_TIME` before `now` (us)."""
    assert marks(switch, now - STANDING) == [False] * 100


def test_a_burst_is_not_marked(switch: Switch, monkeypatch: pytest.MonkeyPatch) -> None:
    star(switch)
    packets = [contribution(switch, 0, f, flags=Flag.BYPASS) for f in range(MANY)]
    with slow_port(switch, SERVER_PORT, monkeypatch):
        out = [packet for _, packet in send(switch, 1, *packets)]
    # BMv2's clock is real time: on a slow machine the queue stands for long enough to be marked.
    if isinstance(switch, EngineSwitch):
        assert out == [packet.popped() for packet in packets]
        assert switch.counted() == {Outcome.BYPASSED: MANY}


def test_a_queue_of_bmv2_that_does_not_drain_is_marked(
    switch: Switch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """BMv2 has a clock of its own, and a queue that lets 50 packets a second go."""
    if not isinstance(switch, bmv2.Bmv2Switch):
        pytest.skip("executors' queues are set by the other tests")
    star(switch)
    packets = [contribution(switch, 0, f, flags=Flag.BYPASS) for f in range(MANY - 2)]
    early, late = [(1, each.frame()) for each in packets[:46]], packets[46:]
    with slow_port(switch, SERVER_PORT, monkeypatch):
        out = switch.stand_in_queue(early, 3)
        out += switch.forward([(1, each.frame()) for each in late])
    read = [Packet.read(frame) for _, frame in out]
    assert [each.fragment for each in read] == list(range(len(packets)))
    marked = [bool(each.flags & Flag.ECN) for each in read]
    assert not any(marked[:DEPTH])
    # Each is behind 43 others at least, and 8 to 71 are long: one run of 12,000 marks none.
    assert any(marked[len(early) :])


def test_packets_behind_a_queue_that_does_not_drain_are_marked(switch: Switch) -> None:
    star(switch)
    assert marks(switch, 0, count=1) == [False]
    for clock in (64, STANDING // 64 * 64 - 64):
        assert marks(switch, clock, waiting=DEPTH) == [False] * 100
    assert marks(switch, LONG, waiting=DEPTH) == [True] * 100
    assert switch.counted() == {Outcome.BYPASSED: 301, Outcome.CONGESTED: 100}
    # A single packet that meets a short queue shows that it drains.
    assert marks(switch, LONG + 64, waiting=DEPTH - 1) == [False] * 100
    assert marks(switch, LONG + STANDING, waiting=DEPTH + 64) == [False] * 100
    assert marks(switch, LONG + 64 + STANDING, waiting=DEPTH + 64) == [True] * 100


@pytest.mark.parametrize("clock", [1, 40, 63, 64, 1000])
def test_how_long_is_long_depends_on_the_clock(switch: Switch, clock: int) -> None:
    star(switch)
    now = clock + LONG
    stand(switch, now)
    depth = clock % 64
    marked = marks(switch, now, waiting=DEPTH)
    assert marked == [False] * depth + [True] * (100 - depth)


def test_the_clock_may_wrap_around(switch: Switch) -> None:
    star(switch)
    stand(switch, 1 << 32)
    assert all(marks(switch, 1 << 32, waiting=DEPTH))


def test_a_queue_of_another_priority_does_not_count(switch: Switch) -> None:
    """The first frame leaves a short queue, while others wait behind it for long."""
    star(switch)
    if not isinstance(switch, EngineSwitch):
        pytest.skip("the clock of BMv2 is its own")
    low = contribution(switch, 0, 1, flags=Flag.BYPASS, tos=tos_of_level(LEVELS - 1))
    high = contribution(switch, 0, 2, flags=Flag.BYPASS, tos=tos_of_level(0))
    found = []
    for clock in (0, STANDING):
        switch.engine.set_waiting(SERVER_PORT, [clock and 100] + [0] * 7)
        out = switch.engine.process([(1, high.frame()), (1, low.frame())], clock)
        found.append([bool(frame[43] & Flag.ECN) for _, frame in out])
    assert found == [[False, False], [False, True]]


def test_queues_of_other_ports_do_not_count(switch: Switch) -> None:
    star(switch, fan_in=4)
    results = [result(switch, child, f) for child in range(3) for f in range(DEPTH // 2)]
    assert len(results) > DEPTH
    out = send_all(switch, ((SERVER_PORT, packet) for packet in results))
    assert [packet.flags for _, packet in out] == [0] * len(results)


def test_each_copy_of_a_result_has_a_queue_of_its_own(switch: Switch) -> None:
    if not isinstance(switch, EngineSwitch):
        pytest.skip("the clock of BMv2 is its own")
    star(switch)
    switch.multicast(7, (1, 2))
    switch.insert("replication", {"job": 1, "tree": 0, "epoch": 1}, "replicate", group=7, clear=1)
    answers = [result(switch, 0, f, kind=Kind.REPLICATED, hops=()) for f in range(DEPTH)]
    frames = [(SERVER_PORT, packet.frame()) for packet in answers]
    found = []
    for clock in (0, LONG):
        # At port 2 others wait for long.
        switch.engine.set_waiting(2, [0] * 7 + [DEPTH if clock else 0])
        out = switch.engine.process(frames, clock)
        found += [bool(frame[43] & Flag.ECN) for at, frame in sorted(out) if at == 1]
    assert not any(found)
    marked = [bool(frame[43] & Flag.ECN) for at, frame in out if at == 2]
    assert marked and all(marked)


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
    if not isinstance(switch, EngineSwitch):
        pytest.skip("the clock of BMv2 is its own")
    switch.insert("l2_forward", {"dst_mac": HOST_MAC}, "forward", port=5)
    targets = [low_checksum(0xE0 | ecn), bytes([10, 0, 0, 9])]

    def frames(tos: int) -> list[tuple[int, bytes]]:
        return [(1, raw_ipv4(bytes(20), tos=tos, dst=each)) for each in targets]

    before = [(5, frame) for _, frame in frames(0xE0 | ecn)]
    assert switch.engine.process(frames(0xE0 | ecn), 0) == before
    switch.engine.set_waiting(5, [0] * 7 + [DEPTH])
    after = [(5, frame) for _, frame in frames(0xE3)]
    assert switch.engine.process(frames(0xE0 | ecn), LONG) == after
    marked = {} if ecn == 3 else {Outcome.CONGESTED: 2}
    assert switch.counted() == {Outcome.PLAIN: 4, **marked}


def test_plain_packets_are_left_alone(switch: Switch) -> None:
    switch.insert("l2_forward", {"dst_mac": HOST_MAC}, "forward", port=5)
    frame = raw_ipv4(bytes(20))
    assert switch.send(1, *[frame] * MANY) == [(5, frame)] * MANY
    assert switch.counted() == {Outcome.PLAIN: MANY}
