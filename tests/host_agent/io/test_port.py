from __future__ import annotations

import errno
import select
import socket
import subprocess
from collections.abc import Callable, Mapping
from functools import partial

import numpy as np
import pytest

from hopsum.host_agent.c_structures import c_fields
from hopsum.host_agent.codec import TREE_AT, group_by_length
from hopsum.host_agent.io import port as port_module
from hopsum.host_agent.io.port import (
    FramePort,
    Frames,
    LinksPort,
    PacketPort,
    udp_filter,
)
from hopsum.host_agent.io.scapy_io import ScapyPort
from hopsum.protocol.wire import (
    UDP_PORT,
    Address,
    Header,
    Kind,
    frame_template,
)
from p4switch.packet_io import sockets
from p4switch.packet_io.receive_ring import RingState
from p4switch.packet_io.sockets import InterfaceError
from tests.support.machine import PATIENCE, wait_until_up
from tests.support.memory_port import MemoryPort

HERE = Address(bytes.fromhex("020000000001"), bytes([10, 0, 0, 1]))
THERE = Address(bytes.fromhex("020000000002"), bytes([10, 0, 0, 2]))


def hopsum_frames(count: int, lanes: int = 32, tree: int = 0) -> Frames:
    header = Header(Kind.REPLICATED, job=1, tree=tree, epoch=1, fragment=0)
    frames = np.tile(frame_template(HERE, THERE, header, (), lanes), (count, 1))
    frames[:, -1] = np.arange(count) % 256
    return frames


def readable(port: FramePort, seconds: float = 0.0) -> bool:
    """Whether frames wait; not by select(), which knows 1,024 descriptors."""
    poll = select.poll()
    poll.register(port, select.POLLIN)
    return bool(poll.poll(1000 * seconds))


def receive_all(port: FramePort, expected: int) -> list[Frames]:
    received: list[Frames] = []
    while sum(map(len, received)) < expected:
        assert readable(port, PATIENCE), "frames did not arrive"
        received += port.receive()
    return received


def send_and_receive(a: str, b: str) -> None:
    sender, receiver = PacketPort(a), PacketPort(b, udp_port=UDP_PORT)
    try:
        # The kernel's queue between the ends is shared with all of the machine: small bursts.
        frames = hopsum_frames(300)
        noise = np.zeros((3, 60), dtype=np.uint8)
        short = np.ascontiguousarray(hopsum_frames(5)[:, :100])
        assert sender.send(noise) == 3
        assert sender.send(frames[:260]) == 260
        received = receive_all(receiver, 260)
        assert sender.send(short) == 5
        assert sender.send(frames[260:]) == 40
        received += receive_all(receiver, 45)
        assert [row.tobytes() for group in received for row in group] == [
            row.tobytes() for row in (*frames[:260], *short, *frames[260:])
        ]
        assert sender.receive() == []
    finally:
        sender.close()
        receiver.close()


def test_frames_cross_a_veth_and_noise_is_filtered(veth: tuple[str, str]) -> None:
    send_and_receive(*veth)


def test_p4switch_makes_rings_as_they_are_read() -> None:
    assert c_fields("io/mmsg.c", "receive_ring") == [*RingState._fields_]


def test_without_a_ring_frames_are_received_by_system_calls(
    veth: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object, **__: object) -> None:
        raise OSError(errno.ENOPROTOOPT, "Protocol not available")

    monkeypatch.setattr(port_module, "ReceiveRing", refused)
    send_and_receive(*veth)


def look_alike(offset: int, value: int, size: int = 2) -> Frames:
    """A hopsum frame with other bytes at one place."""
    frames = hopsum_frames(1)
    frames[0, offset : offset + size] = np.frombuffer(value.to_bytes(size, "big"), np.uint8)
    return frames


def tagged(*tags: int) -> Frames:
    """A hopsum frame behind tags, each an EtherType (upper 16 bits) and its tag (lower)."""
    frame = hopsum_frames(1)[0].tobytes()
    between = b"".join(tag.to_bytes(4, "big") for tag in tags)
    return np.frombuffer(frame[:12] + between + frame[12:], np.uint8)[None, :]


NOT_ADMITTED = {
    "a later fragment": look_alike(20, 0x0001),
    "a first fragment": look_alike(20, 0x2000),
    "fragmentation allowed": look_alike(20, 0x0000),
    "the reserved flag": look_alike(20, 0xC000),
    "a later fragment, Don't Fragment": look_alike(20, 0x4001),
    "IPv4 options": look_alike(14, 0x46, 1),
    "UDP-Lite": look_alike(23, 136, 1),
    "TCP": look_alike(23, 6, 1),
    "another port": look_alike(36, UDP_PORT + 1),
    "IPv6": look_alike(12, 0x86DD),
    "802.1Q": tagged(0x81000005),
    "802.1Q, priority only": tagged(0x81000000),
    "802.1ad": tagged(0x88A80005),
    "802.1ad and 802.1Q": tagged(0x88A80005, 0x81000005),
    "802.1Q twice": tagged(0x81000005, 0x81000005),
}


def inside(outer: bytes, ether_type: int) -> Frames:
    """A hopsum frame's IPv4 packet, or UDP datagram, behind another header."""
    frame = hopsum_frames(1)[0].tobytes()
    packet = frame[14:] if outer[:1] in (b"\x45", b"") else frame[34:]
    made = frame[:12] + ether_type.to_bytes(2, "big") + outer + packet
    return np.frombuffer(made, np.uint8)[None, :]


ADDRESSES = bytes([10, 0, 0, 1, 10, 0, 0, 2])
WRAPPED = {
    "IP in IP": inside(bytes.fromhex("450000cc00004000400400000000")[:12] + ADDRESSES, 0x0800),
    "IPv6": inside(bytes.fromhex("600000000094") + b"\x11\x40" + bytes(32), 0x86DD),
    "QinQ of old": inside(bytes.fromhex("00050800"), 0x9100),
    "MPLS": inside(bytes.fromhex("00001140"), 0x8847),
    "a length in place of a type": inside(bytes.fromhex("aaaa030000000800"), 0x00D0),
}
"""Frames that switches take for plain traffic, and forward."""


@pytest.mark.parametrize("others", [NOT_ADMITTED, WRAPPED], ids=["not admitted", "wrapped"])
def test_frames_that_switches_refuse_are_filtered(
    others: dict[str, Frames], veth: tuple[str, str]
) -> None:
    sender, receiver = PacketPort(veth[0]), PacketPort(veth[1], udp_port=UDP_PORT)
    try:
        for frames in others.values():
            assert sender.send(frames) == 1
        good = hopsum_frames(1)
        sender.send(good)
        received = receive_all(receiver, 1)
        assert [row.tobytes() for group in received for row in group] == [good[0].tobytes()]
    finally:
        sender.close()
        receiver.close()


def several_in_python(interfaces: Mapping[int, str]) -> LinksPort:
    with pytest.MonkeyPatch.context() as here:
        here.setattr(port_module, "_native", lambda: None)
        return PacketPort(interfaces, udp_port=UDP_PORT)


@pytest.mark.parametrize(
    "open_port", [partial(PacketPort, udp_port=UDP_PORT), several_in_python, ScapyPort]
)
def test_frames_of_a_tree_leave_by_its_link(
    veth: tuple[str, str],
    other_veth: tuple[str, str],
    open_port: Callable[[Mapping[int, str]], LinksPort],
) -> None:
    """Frames of trees by the interfaces that a plan names, all others by the first."""
    opened: list[FramePort] = []
    try:
        port = open_port({3: veth[0], 1: other_veth[0]})
        first = PacketPort(veth[1], udp_port=UDP_PORT)
        second = PacketPort(other_veth[1], udp_port=UDP_PORT)
        opened += [port, first, second]
        frames = np.concatenate([hopsum_frames(1, tree=tree) for tree in range(4)])
        port.use_links(1, {1: 1, 2: 3, 3: 1})
        port.use_links(2, {0: 1})
        assert port.send(frames) == 4
        assert trees_of(receive_all(first, 2)) == [0, 2]
        assert trees_of(receive_all(second, 2)) == [1, 3]
        port.use_links(1, {0: 1})
        assert port.send(frames) == 4
        assert trees_of(receive_all(first, 3)) == [1, 2, 3]
        assert trees_of(receive_all(second, 1)) == [0]
        # One link that is down loses its own frames only.
        subprocess.run(["ip", "link", "set", other_veth[0], "down"], check=True)
        assert port.send(frames) == 4
        assert trees_of(receive_all(first, 3)) == [1, 2, 3]
        subprocess.run(["ip", "link", "set", other_veth[0], "up"], check=True)
        wait_until_up(*other_veth)
        for number, end in enumerate((first, second), 1):
            assert end.send(hopsum_frames(number)) == number
            assert sum(map(len, receive_all(port, number))) == number
        # So does one that is removed.
        subprocess.run(["ip", "link", "delete", other_veth[0]], check=True)
        assert port.send(frames) == 4
        assert trees_of(receive_all(first, 3)) == [1, 2, 3]
    finally:
        for each in opened:
            each.close()


def trees_of(received: list[Frames]) -> list[int]:
    return [int(row[TREE_AT]) for group in received for row in group]


@pytest.mark.parametrize("open_port", [partial(PacketPort, udp_port=UDP_PORT), ScapyPort])
def test_interfaces_of_several_links_must_be_there(
    veth: tuple[str, str], open_port: Callable[[Mapping[int, str]], LinksPort]
) -> None:
    with pytest.raises(InterfaceError, match="'nosuch0'"):
        open_port({0: veth[0], 1: "nosuch0"})


def test_no_other_process_sends_from_the_port(veth: tuple[str, str]) -> None:
    """Else any user of a worker's host could send its contributions by an ordinary socket."""
    port = PacketPort(veth[0], udp_port=UDP_PORT)
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as another:
            another.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with pytest.raises(OSError, match="Address already in use"):
                another.bind(("", UDP_PORT))
    finally:
        port.close()


def test_the_filter_is_there_before_frames_are(
    veth: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    attach = sockets.attach_filter
    bound: list[tuple[str, int]] = []

    def watched(sock: socket.socket, program: bytes) -> None:
        if sock.family == socket.AF_PACKET:
            bound.append(sock.getsockname()[:2])
        attach(sock, program)

    monkeypatch.setattr(sockets, "attach_filter", watched)
    PacketPort(veth[0], udp_port=UDP_PORT).close()
    assert bound == [("", 0)], "neither an interface nor a protocol yet"


def test_plain_sockets_do_the_same_without_a_compiler(
    veth: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(port_module, "_native", lambda: None)
    send_and_receive(*veth)


@pytest.mark.parametrize("native", [True, False])
def test_an_interface_that_is_down_loses_what_is_sent_until_it_is_up(
    veth: tuple[str, str], monkeypatch: pytest.MonkeyPatch, native: bool
) -> None:
    if not native:
        monkeypatch.setattr(port_module, "_native", lambda: None)
    port = PacketPort(veth[0], udp_port=UDP_PORT)
    for state in ("down", "up"):
        subprocess.run(["ip", "link", "set", veth[0], state], check=True)
        assert port.receive() == []
        assert port.send(np.zeros((3, 64), np.uint8)) == 3
        assert port.receive() == []
    port.close()


def test_an_unknown_interface_is_named(veth: tuple[str, str]) -> None:
    with pytest.raises(InterfaceError, match=r"'nosuch0'.*ip link"):
        PacketPort("nosuch0")


def test_memory_ports_are_a_link() -> None:
    a, b = MemoryPort.pair()
    try:
        assert a.receive() == []
        a.send(hopsum_frames(10))
        a.send(hopsum_frames(3))
        assert readable(b)
        assert [len(group) for group in b.receive(12)] == [10, 2]
        assert readable(b)
        assert [len(group) for group in b.receive()] == [1]
        assert not readable(b)
    finally:
        a.close()
        b.close()


def test_runs_of_equal_length_are_grouped() -> None:
    rows = np.arange(40, dtype=np.uint8).reshape(5, 8)
    groups = group_by_length(rows, np.array([4, 4, 8, 4, 4], dtype=np.uint32))
    assert [group.shape for group in groups] == [(2, 4), (1, 8), (2, 4)]
    assert group_by_length(rows[:0], np.array([], dtype=np.uint32)) == []


def test_the_filter_is_a_list_of_instructions() -> None:
    assert len(udp_filter(UDP_PORT)) % 8 == 0
