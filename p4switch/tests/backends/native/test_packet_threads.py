"""Several packet threads (as root): nothing is lost or counted twice, flows stay in order."""

from __future__ import annotations

import socket
import threading

import pytest

from p4switch.backends.native.engine import NativeEngine
from p4switch.backends.native.loop import PacketLoop
from p4switch.frontend.program import compile_program
from p4switch.frontend.syntax.parser import parse_text
from p4switch.targets.v1model.engine import EngineOptions
from tests.fuzz import wires
from tests.support.machine import PATIENCE
from tests.support.veth import skip_without_veths

FRAMES = 3000
"""From each port: as many as wait in a packet socket or its ring."""
PORTS = 4
TEXT = """
#include <core.p4>
#include <v1model.p4>
header h_t { bit<16> to; bit<16> from; bit<32> number; bit<32> seen; bit<16> kind; bit<32> all; }
struct headers_t { h_t h; }
struct metadata_t { }
parser P(packet_in p, out headers_t h, inout metadata_t m, inout standard_metadata_t s) {
    state start { p.extract(h.h); transition accept; }
}
control N(inout headers_t h, inout metadata_t m) { apply { } }
control I(inout headers_t h, inout metadata_t m, inout standard_metadata_t s) {
    register<bit<32>>(1) total;
    register<bit<32>>(8) flows;
    counter(8, CounterType.packets) arrived;
    apply {
        total.read(h.h.all, 0);
        h.h.all = h.h.all + 1;
        total.write(0, h.h.all);
        flows.read(h.h.seen, (bit<32>)h.h.from);
        h.h.seen = h.h.seen + 1;
        flows.write((bit<32>)h.h.from, h.h.seen);
        arrived.count((bit<32>)s.ingress_port);
        s.egress_spec = h.h.to[8:0];
    }
}
control E(inout headers_t h, inout metadata_t m, inout standard_metadata_t s) {
    register<bit<32>>(1) left;
    bit<32> count;
    apply { left.read(count, 0); left.write(0, count + 1); }
}
control D(packet_out p, in headers_t h) { apply { p.emit(h.h); } }
V1Switch(P(), N(), I(), E(), N(), D()) main;
"""


def frame(to: int, source: int, number: int) -> bytes:
    """Bytes 12 and 13 are an experimental EtherType, which no host answers."""
    fields = [(to, 2), (source, 2), (number, 4), (0, 4), (0x88B5, 2), (0, 4)]
    return b"".join(value.to_bytes(size, "big") for value, size in fields) + bytes(60)


def number_at(data: bytes, start: int) -> int:
    """Return a field of 32 bits."""
    return int.from_bytes(data[start : start + 4], "big")


def send(far: socket.socket, source: int) -> None:
    """Send the frames of a port, to each of the ports in turn."""
    far.settimeout(PATIENCE)
    for number in range(FRAMES):
        far.send(frame(number % PORTS, source, number))


@pytest.mark.slow
@pytest.mark.network
@pytest.mark.parametrize("frames", [0, FRAMES], ids=["sockets", "rings"])
@pytest.mark.parametrize("threads", [1, 2, 4])
def test_ports_in_parallel(threads: int, frames: int) -> None:
    skip_without_veths()
    options = EngineOptions(queue_depth=1 << 20, packet_threads=threads)
    engine = NativeEngine(compile_program(parse_text(TEXT, "program.p4")), options)
    loop = PacketLoop(engine)
    with wires.wires(frames) as links:
        for port, (near, far, ring) in enumerate(links):
            assert port < PORTS
            loop.add_port(port, near, ring)
            far.settimeout(PATIENCE)
        assert len(links) == PORTS
        loop.start()
        senders = [
            threading.Thread(target=send, args=(far, port))
            for port, (_, far, _) in enumerate(links)
        ]
        for sender in senders:
            sender.start()
        got = [[far.recv(2048) for _ in range(FRAMES)] for _, far, _ in links]
        for sender in senders:
            sender.join()
        loop.stop()
    totals = sorted(number_at(data, 14) for received in got for data in received)
    assert totals == list(range(1, PORTS * FRAMES + 1)), "each frame is counted once"
    for port, received in enumerate(got):
        for source in range(PORTS):
            flow = [data for data in received if data[3] == source]
            numbers = list(range(port, FRAMES, PORTS))
            assert [number_at(data, 4) for data in flow] == numbers, "in order, none lost"
            assert [number_at(data, 8) for data in flow] == [number + 1 for number in numbers]
    assert engine.read_register("I.total", 0) == PORTS * FRAMES
    assert engine.read_register("E.left", 0) == PORTS * FRAMES
    for port in range(PORTS):
        assert engine.read_register("I.flows", port) == FRAMES
        assert engine.read_counter("I.arrived", port).packets == FRAMES
        assert loop.counts(port).rx_packets == loop.counts(port).tx_packets == FRAMES
    loop.close()
    engine.close()
