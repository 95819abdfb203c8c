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
    # BMv2 sends some of them while the rest come in.
    assert not any(marked[:DEPTH])
    assert marked[-1]
    if isinstance(switch, EngineSwitch):
        assert all(marked[DEPTH:])
    unmarked = [replace(packet, flags=Flag.BYPASS) for packet in out]
    assert unmarked == [packet.popped() for packet in packets]
    assert switch.counted() == {Outcome.BYPASSED: MANY, Outcome.CONGESTED: sum(marked)}


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
        out = send(switch, SERVER_PORT, *alone, *answers[: MANY - DEPTH])
    flags = {port: [p.flags for at, p in out if at == port] for port in (1, 2)}
    assert flags[1] == [0] * (MANY - DEPTH)
    assert flags[2][:DEPTH] == [0] * DEPTH
    assert flags[2][-1] == Flag.ECN


def test_a_mark_made_below_stays_with_the_sum(switch: Switch) -> None:
    star(switch)
    (total,) = up(switch, contribution(switch, 0, flags=Flag.ECN), contribution(switch, 1))
    assert total.flags == Flag.ECN
    assert Outcome.CONGESTED not in switch.counted()


def test_plain_packets_are_left_alone(switch: Switch) -> None:
    switch.insert("l2_forward", {"dst_mac": HOST_MAC}, "forward", port=5)
    frame = raw_ipv4(bytes(20))
    assert switch.send(1, *[frame] * MANY) == [(5, frame)] * MANY
    assert switch.counted() == {Outcome.PLAIN: MANY}
