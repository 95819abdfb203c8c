"""Receive rings of the packet loop (as root): frames of any length in order, full rings."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import suppress

import pytest

from p4switch.backends.native.engine import NativeEngine
from p4switch.backends.native.loop import PacketLoop
from p4switch.device import native_plane
from p4switch.device.native_plane import NativePlane
from p4switch.frontend.program import compile_program
from p4switch.frontend.syntax.parser import parse_text
from p4switch.packet_io.receive_ring import SLOT_BYTES, ReceiveRing, open_rings
from p4switch.packet_io.sockets import open_packet_socket
from tests.support.machine import PATIENCE, interface_names, until, wait_until_up

FRAMES = 32
"""In a ring: the fewest that are possible."""
LONGEST = 9014
TEXT = """
#include <core.p4>
#include <v1model.p4>
header h_t { bit<8> number; }
struct headers_t { h_t h; }
struct metadata_t { }
parser P(packet_in p, out headers_t h, inout metadata_t m, inout standard_metadata_t s) {
    state start { p.extract(h.h); transition accept; }
}
control N(inout headers_t h, inout metadata_t m) { apply { } }
control I(inout headers_t h, inout metadata_t m, inout standard_metadata_t s) {
    apply { s.egress_spec = s.ingress_port; }
}
control E(inout headers_t h, inout metadata_t m, inout standard_metadata_t s) { apply { } }
control D(packet_out p, in headers_t h) { apply { p.emit(h); } }
V1Switch(P(), N(), I(), E(), N(), D()) main;
"""


def frame(number: int, length: int = 60) -> bytes:
    """Bytes 12 and 13 are an experimental EtherType, which no host answers."""
    return bytes([number % 256]) + bytes(11) + b"\x88\xb5" + bytes([number % 251]) * (length - 14)


@pytest.fixture
def engine() -> Iterator[NativeEngine]:
    """An engine whose program sends each frame back to where it came from."""
    made = NativeEngine(compile_program(parse_text(TEXT, "program.p4")))
    yield made
    made.close()


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    """The switch's end of a veth pair, and the far end, for frames of 9,000 bytes."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("needs root and iproute2 for veth pairs")
    near, far = interface_names("a", "b")
    subprocess.run(["ip", "link", "add", near, "type", "veth", "peer", "name", far], check=True)
    try:
        for name in (near, far):
            subprocess.run(["sysctl", "-qw", f"net.ipv6.conf.{name}.disable_ipv6=1"], check=True)
            subprocess.run(["ip", "link", "set", name, "mtu", "9000", "up"], check=True)
        wait_until_up(near, far)
        with open_packet_socket(near) as here, open_packet_socket(far) as there:
            there.settimeout(PATIENCE)
            yield here, there
    finally:
        subprocess.run(["ip", "link", "delete", near], check=True)


@pytest.fixture
def ring(ends: tuple[socket.socket, socket.socket]) -> Iterator[ReceiveRing]:
    made = ReceiveRing(ends[0], 1)
    assert made.state.count == FRAMES
    yield made
    made.close()


def test_frames_of_any_length_stay_in_order(
    engine: NativeEngine, ends: tuple[socket.socket, socket.socket], ring: ReceiveRing
) -> None:
    here, there = ends
    # Some are a few bytes shorter or longer than what a slot has room for.
    lengths = [60, 1514, *range(SLOT_BYTES - 100, SLOT_BYTES + 10), LONGEST, 60]
    frames = [frame(number, length) for number, length in enumerate(lengths * 3)]
    loop = PacketLoop(engine)
    loop.add_port(1, here, ring)
    loop.start()
    for start in range(0, len(frames), FRAMES // 2):
        burst = frames[start : start + FRAMES // 2]
        for sent in burst:
            there.send(sent)
        assert [there.recv(LONGEST + 1) for _ in burst] == burst
    counts = loop.counts(1)
    loop.close()
    assert counts.rx_errors == 0
    assert counts.rx_packets == len(frames)
    assert counts.rx_bytes == sum(map(len, frames))


@pytest.mark.parametrize("length", [60, LONGEST], ids=["short", "long"])
def test_a_full_ring_loses_frames_and_goes_on(
    length: int,
    engine: NativeEngine,
    ends: tuple[socket.socket, socket.socket],
    ring: ReceiveRing,
) -> None:
    here, there = ends
    for number in range(2 * FRAMES):
        there.send(frame(number, length))
    loop = PacketLoop(engine)
    loop.add_port(1, here, ring)
    loop.start()
    assert [there.recv(LONGEST + 1) for _ in range(FRAMES)] == [
        frame(number, length) for number in range(FRAMES)
    ]
    # The slots may be the kernel's only a moment after the last frame.
    there.setblocking(False)
    until(lambda: _returns(there, frame(200, length)), "a frame that is not lost")
    loop.close()


def _returns(there: socket.socket, sent: bytes) -> bool:
    there.send(sent)
    with suppress(BlockingIOError):
        return there.recv(LONGEST + 1) == sent
    return False


def test_the_next_loop_continues_where_a_loop_stopped(
    engine: NativeEngine, ends: tuple[socket.socket, socket.socket], ring: ReceiveRing
) -> None:
    here, there = ends
    for turn in range(3):
        # None receives when they arrive.
        for number in range(20):
            there.send(frame(20 * turn + number))
        loop = PacketLoop(engine)
        loop.add_port(1, here, ring)
        loop.start()
        assert [there.recv(100)[0] for _ in range(20)] == list(range(20 * turn, 20 * turn + 20))
        loop.close()


def test_a_port_is_removed_with_its_ring(
    engine: NativeEngine, ends: tuple[socket.socket, socket.socket], ring: ReceiveRing
) -> None:
    here, there = ends
    loop = PacketLoop(engine)
    loop.add_port(1, here, ring)
    loop.start()
    there.send(frame(1))
    assert there.recv(100) == frame(1)
    loop.remove_port(1)
    there.send(frame(2))
    loop.add_port(1, here, ring)
    assert there.recv(100) == frame(2)
    loop.close()


def test_without_rings_ports_receive_by_system_calls(
    engine: NativeEngine,
    ends: tuple[socket.socket, socket.socket],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(native_plane, "open_rings", refuse)
    here, there = ends
    plane = NativePlane({1: here}, None, lambda _: None, lambda _: None, FRAMES)
    plane.use(engine)
    there.send(frame(1))
    assert there.recv(100) == frame(1)
    plane.close()
    assert "without rings" in caplog.text
    assert "Cannot allocate memory" in caplog.text


def test_what_is_no_packet_socket_has_no_ring() -> None:
    with socket.socket() as other, pytest.raises(OSError, match=r"not supported|not available"):
        open_rings({1: other}, FRAMES)
