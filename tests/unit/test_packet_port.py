from __future__ import annotations

import select

import numpy as np
import pytest

from packet_io import Frames, InterfaceError, MemoryPort, PacketPort
from packet_io import port as port_module
from packet_io.port import FramePort, group_by_length, udp_filter
from protocol.wire import (
    UDP_PORT,
    Address,
    Header,
    Kind,
    frame_template,
)

HERE = Address(bytes.fromhex("020000000001"), bytes([10, 0, 0, 1]))
THERE = Address(bytes.fromhex("020000000002"), bytes([10, 0, 0, 2]))


def hopsum_frames(count: int, lanes: int = 32) -> Frames:
    header = Header(Kind.REPLICATED, job=1, tree=0, epoch=1, fragment=0)
    frames = np.tile(frame_template(HERE, THERE, header, (), lanes), (count, 1))
    frames[:, -1] = np.arange(count) % 256
    return frames


def receive_all(port: FramePort, expected: int) -> list[Frames]:
    received: list[Frames] = []
    while sum(map(len, received)) < expected:
        assert select.select([port], [], [], 5)[0], "frames did not arrive"
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


def test_plain_sockets_do_the_same_without_a_compiler(
    veth: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(port_module, "_native", lambda: None)
    send_and_receive(*veth)


def test_an_unknown_interface_is_named(veth: tuple[str, str]) -> None:
    with pytest.raises(InterfaceError, match=r"'nosuch0'.*ip link"):
        PacketPort("nosuch0")


def test_memory_ports_are_a_link() -> None:
    a, b = MemoryPort.pair()
    try:
        assert a.receive() == []
        a.send(hopsum_frames(10))
        a.send(hopsum_frames(3))
        assert select.select([b], [], [], 0)[0]
        assert [len(group) for group in b.receive(12)] == [10, 2]
        assert select.select([b], [], [], 0)[0]
        assert [len(group) for group in b.receive()] == [1]
        assert not select.select([b], [], [], 0)[0]
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
