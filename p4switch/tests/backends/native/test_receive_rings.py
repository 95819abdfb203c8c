"""Receive rings of the packet loop (as root): frames of any length in order, full rings."""

from __future__ import annotations

import select
import socket
import struct
import subprocess
from collections.abc import Iterator
from contextlib import suppress

import pytest

from p4switch.backends.native.engine import NativeEngine
from p4switch.backends.native.loop import PacketLoop
from p4switch.device import native_plane
from p4switch.device.native_plane import NativePlane
from p4switch.device.offloads import completed
from p4switch.frontend.program import compile_program
from p4switch.frontend.syntax.parser import parse_text
from p4switch.packet_io.receive_ring import (
    SLOT_BYTES,
    SOL_PACKET,
    ReceiveRing,
    default_frames,
    open_rings,
)
from p4switch.packet_io.sockets import open_packet_socket
from p4switch.targets.v1model.engine import EngineOptions
from tests.support.machine import PATIENCE, until, wait_until_up
from tests.support.veth import skip_without_veths, veth_pairs

FRAMES = 32
"""In a ring: the fewest that are possible."""
MTU, LONGEST = 9000, 9014
PACKET_VNET_HDR = 15
VNET_HEADER = struct.Struct("<BBHHHH")
"""`struct virtio_net_hdr`: flags, kind of segments, length of headers, of a segment, checksum."""
NEEDS_CHECKSUM, TCP_SEGMENTS = 1, 1
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
    apply { s.egress_spec = h.h.number == 255 ? 9w500 : s.ingress_port; }
}
control E(inout headers_t h, inout metadata_t m, inout standard_metadata_t s) { apply { } }
control D(packet_out p, in headers_t h) { apply { p.emit(h); } }
V1Switch(P(), N(), I(), E(), N(), D()) main;
"""


def frame(number: int, length: int = 60) -> bytes:
    """Bytes 12 and 13 are an experimental EtherType, which no host answers."""
    return bytes([number % 255]) + bytes(11) + b"\x88\xb5" + bytes([number % 251]) * (length - 14)


@pytest.fixture
def engine() -> Iterator[NativeEngine]:
    """An engine whose program sends frames back to where they came from, number 255 to the CPU."""
    options = EngineOptions(cpu_port=500)
    made = NativeEngine(compile_program(parse_text(TEXT, "program.p4")), options)
    yield made
    made.close()


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    """The switch's end of a veth pair, and the far end, for frames of 9,000 bytes."""
    skip_without_veths()
    with (
        veth_pairs(1, mtu=MTU) as [(near, far)],
        open_packet_socket(near) as here,
        open_packet_socket(far) as there,
    ):
        there.settimeout(PATIENCE)
        yield here, there


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


def test_where_one_ring_is_refused_sockets_receive(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    here, there = ends
    with socket.socket() as other, pytest.raises(OSError, match=r"not supported|not available"):
        open_rings({1: here, 2: other}, FRAMES)
    there.send(frame(1))
    here.settimeout(PATIENCE)
    assert here.recv(100) == frame(1)


def test_frames_that_wait_while_the_link_goes_down_are_all_answered(
    engine: NativeEngine, ends: tuple[socket.socket, socket.socket], ring: ReceiveRing
) -> None:
    here, there = ends
    for number in range(20):
        there.send(frame(number))
    near, far = here.getsockname()[0], there.getsockname()[0]
    for state in ("down", "up"):
        subprocess.run(["ip", "link", "set", near, state], check=True)
    wait_until_up(near, far)
    loop = PacketLoop(engine)
    loop.add_port(1, here, ring)
    loop.start()
    with suppress(OSError):  # The far end's socket has noticed, too.
        there.recv(0)
    assert [there.recv(100)[0] for _ in range(20)] == list(range(20))
    counts = loop.counts(1)
    loop.close()
    assert (counts.rx_errors, counts.tx_errors) == (1, 0)


def arrived(loop: PacketLoop, count: int) -> list[bytes]:
    """The next frames that the program sends to the CPU."""
    frames: list[bytes] = []
    while len(frames) < count:
        assert select.select([loop.cpu_event()], [], [], PATIENCE)[0], "no frame for the CPU came"
        frames += loop.take_cpu_frames()
    return frames


@pytest.fixture(params=[0, FRAMES], ids=["sockets", "rings"])
def loop(
    request: pytest.FixtureRequest, engine: NativeEngine, ends: tuple[socket.socket, socket.socket]
) -> Iterator[PacketLoop]:
    """A loop that runs, with port 1 at the near end."""
    made = PacketLoop(engine)
    rings = open_rings({1: ends[0]}, request.param)
    made.add_port(1, ends[0], rings.get(1))
    made.start()
    yield made
    made.close()
    for each in rings.values():
        each.close()


@pytest.mark.parametrize("tag", ["81000007", "88a80007", "8100e123", "88a8000781000008"])
def test_vlan_tags_stay_in_frames_of_any_length(
    tag: str, loop: PacketLoop, ends: tuple[socket.socket, socket.socket]
) -> None:
    for length in (60, 1514, *range(SLOT_BYTES - 100, SLOT_BYTES - 50), 4000):
        plain = b"\xff" + frame(0, length)[1:]
        tagged = plain[:12] + bytes.fromhex(tag) + plain[12:]
        ends[1].send(tagged)
        assert arrived(loop, 1) == [tagged]


@pytest.mark.parametrize("payload", [100, 1960, 3000, 60_000])
def test_offloaded_frames_arrive_as_a_network_card_would_send_them(
    payload: int, loop: PacketLoop, ends: tuple[socket.socket, socket.socket]
) -> None:
    ip = struct.pack(">BBHIBBHII", 0x45, 0, 40 + payload, 0, 64, 6, 0, 0x0A000001, 0x0A000002)
    tcp = struct.pack(">HHIIHHHH", 1, 2, 0, 0, 0x5010, 8192, 0xBEEF, 0)
    segment = b"\xff" + bytes(11) + b"\x08\x00" + ip + tcp + bytes(payload)
    ends[1].setsockopt(SOL_PACKET, PACKET_VNET_HDR, 1)
    kind, size = (TCP_SEGMENTS, 1000) if payload > 1000 else (0, 0)
    ends[1].send(VNET_HEADER.pack(NEEDS_CHECKSUM, kind, 54, size, 34, 16) + segment)
    expected = completed(segment, MTU)
    assert len(expected) == max(1, -(-payload // (MTU - 40)))
    assert arrived(loop, len(expected)) == expected


@pytest.mark.parametrize(("ports", "frames"), [(1, 1024), (4, 1024), (8, 512), (64, 64), (200, 64)])
def test_rings_share_what_memory_a_switch_may_take(ports: int, frames: int) -> None:
    assert default_frames(ports) == frames
