"""Captures of interfaces (as root): times, tags, losses, full disks."""

from __future__ import annotations

import logging
import select
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from p4switch.device import capture as capture_module
from p4switch.device.capture import Capture
from p4switch.packet_io.pcap import read_pcap, read_state
from p4switch.packet_io.sockets import open_packet_socket
from tests.packet_io.test_pcap import limited_file_size
from tests.packet_io.test_pcapng import shown
from tests.support.machine import until
from tests.support.veth import skip_without_veths, veth_pairs

TAG = bytes.fromhex("8100e123")


@pytest.fixture
def ends() -> Iterator[tuple[str, socket.socket, socket.socket]]:
    """A captured interface, a socket there, and one at the far end."""
    skip_without_veths()
    with (
        veth_pairs(1) as [(near, far)],
        open_packet_socket(near) as here,
        open_packet_socket(far) as there,
    ):
        yield near, here, there


def frame(number: int, tag: bytes = b"") -> bytes:
    """Bytes 12 and 13 are an experimental EtherType, which no host answers."""
    return bytes(12) + tag + b"\x88\xb5" + number.to_bytes(4, "big") + bytes(100)


def captured(folder: Path, interface: str, way: str) -> list[tuple[float, bytes]]:
    return list(read_pcap(folder / f"{interface}_{way}.pcap"))


def test_frames_are_written_at_once_with_tags_and_the_kernel_s_times(
    ends: tuple[str, socket.socket, socket.socket], tmp_path: Path
) -> None:
    near, here, there = ends
    capture = Capture([near], tmp_path)
    begin = time.time()
    for number in range(10):
        there.send(frame(number, TAG))
        here.send(frame(number, TAG))
    end = time.time()
    until(lambda: len(captured(tmp_path, near, "out")) == 10, "frames in the files")
    until(lambda: len(captured(tmp_path, near, "in")) == 10, "frames in the files")
    for way in ("in", "out"):
        times = [seconds for seconds, _ in captured(tmp_path, near, way)]
        assert times == sorted(times)
        assert begin - 1e-3 <= times[0] <= times[-1] <= end + 1e-3
        frames = [each for _, each in captured(tmp_path, near, way)]
        assert frames == [frame(number, TAG) for number in range(10)]
    capture.close()
    assert read_state(tmp_path, near) == (0, False)


def test_lost_frames_are_counted_and_reported(
    ends: tuple[str, socket.socket, socket.socket],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    near, _, there = ends
    monkeypatch.setattr(capture_module, "BUFFER_BYTES", 1)  # The kernel makes a minimum of it.
    sent = threading.Event()
    make_poll = select.poll

    class LatePoll:
        """Sees nothing until all is sent."""

        def __init__(self) -> None:
            self.poller = make_poll()
            self.register = self.poller.register

        def poll(self, milliseconds: int) -> list[tuple[int, int]]:
            sent.wait()
            return self.poller.poll(milliseconds)

    monkeypatch.setattr(select, "poll", LatePoll)
    capture = Capture([near], tmp_path)
    for number in range(200):
        there.send(frame(number))
    sent.set()
    capture.close()
    lost, ended = read_state(tmp_path, near)
    assert lost > 0
    assert not ended
    assert lost + len(captured(tmp_path, near, "in")) == 200
    assert f"the capture of {near} has holes: {lost} frames lost" in caplog.text


def test_on_a_full_disk_the_capture_ends_with_one_line(
    ends: tuple[str, socket.socket, socket.socket],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    near, here, there = ends
    capture = Capture([near], tmp_path)
    with limited_file_size(400):
        for number in range(20):
            there.send(frame(number))
            here.send(frame(number))
        until(lambda: "the capture ends" in caplog.text, "the capture's end")
    capture.close()
    errors = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert len(errors) == 1
    assert f"{near}_" in errors[0].message
    assert "File too large" in errors[0].message
    assert read_state(tmp_path, near) == (0, True)
    for way in ("in", "out"):
        frames = [each for _, each in captured(tmp_path, near, way)]
        assert frames == [frame(number) for number in range(len(frames))]


def test_one_file_has_both_directions_of_all_interfaces(tmp_path: Path) -> None:
    skip_without_veths()
    path = tmp_path / "all.pcapng"
    with veth_pairs(2) as pairs, ExitStack() as stack:
        nears = [near for near, _ in pairs]
        here = [stack.enter_context(open_packet_socket(near)) for near in nears]
        there = [stack.enter_context(open_packet_socket(far)) for _, far in pairs]
        capture = Capture(nears, path)
        for number in range(5):
            for ends in (here, there):
                for end in ends:
                    end.send(frame(number, TAG))
        until(lambda: path.read_bytes().count(TAG) == 20, "frames in the file")
        capture.close()
    found = shown(path)
    assert sorted(each[:2] for each in found) == sorted(
        (near, way) for near in nears for way in ("0x00000001", "0x00000002") for _ in range(5)
    )
    for near in nears:
        times = [each[2] for each in found if each[0] == near]
        assert times == sorted(times)
