"""pcapng files, as tshark reads them."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from p4switch.packet_io.pcapng import CapturedPacket, Direction, PcapngWriter
from tests.packet_io.test_pcap import limited_file_size

FIELDS = (
    "frame.interface_name",
    "frame.packet_flags_direction",
    "frame.time_epoch",
    "frame.len",
    "frame.comment",
)
NANOSECONDS = 1_700_000_000_123_456_789
IN, OUT = Direction.INBOUND, Direction.OUTBOUND


def shown(path: Path) -> list[tuple[str, ...]]:
    """Interface, direction, time, length and comments of each packet."""
    if shutil.which("tshark") is None:
        pytest.skip("needs tshark (make test-tools)")
    command = ["tshark", "-r", str(path), "-T", "fields", "-E", "separator=|"]
    for field in FIELDS:
        command += ["-e", field]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return [tuple(line.split("|")) for line in done.stdout.splitlines()]


def test_tshark_reads_interfaces_directions_times_and_comments(tmp_path: Path) -> None:
    path = tmp_path / "new" / "a.pcapng"
    with PcapngWriter(path) as writer:
        assert writer.interface("veth1") == 0
        writer.write([CapturedPacket(0, IN, NANOSECONDS, bytes(61), ["dropped: é", "again"])])
        assert writer.interface("s1-eth2") == 1
        writer.write([CapturedPacket(1, OUT, NANOSECONDS + 1, bytes(size)) for size in (62, 63)])
        writer.lost(1, NANOSECONDS, 7)
        writer.write([CapturedPacket(0, OUT, 5, bytes(64))])
    assert shown(path) == [
        ("veth1", "0x00000001", "1700000000.123456789", "61", "dropped: é,again"),
        ("s1-eth2", "0x00000002", "1700000000.123456790", "62", ""),
        ("s1-eth2", "0x00000002", "1700000000.123456790", "63", ""),
        ("veth1", "0x00000002", "0.000000005", "64", ""),
    ]


def test_scapy_reads_it_too(tmp_path: Path) -> None:
    scapy = pytest.importorskip("scapy.utils")
    path = tmp_path / "a.pcapng"
    with PcapngWriter(path) as writer:
        writer.interface("veth1")
        packet = CapturedPacket(0, IN, NANOSECONDS, b"\x01" * 60, ["dropped: no route"])
        writer.write([packet, packet._replace(direction=OUT, comments=())])
    found = list(scapy.RawPcapNgReader(str(path)))
    assert [frame for frame, _ in found] == [b"\x01" * 60] * 2
    first, second = (data for _, data in found)
    assert (first.tshigh << 32 | first.tslow, first.tsresol) == (NANOSECONDS, 10**9)
    assert (first.direction, first.comments) == (1, [b"dropped: no route"])
    assert (second.direction, second.comments) == (2, None)


def test_on_a_full_disk_only_whole_packets_stay(tmp_path: Path) -> None:
    path = tmp_path / "a.pcapng"
    packet = CapturedPacket(0, IN, 0, bytes(100))
    with PcapngWriter(path) as writer:
        writer.interface("veth1")
        writer.write([packet])
        before = path.read_bytes()
        with limited_file_size(len(before) + 150), pytest.raises(OSError, match=r"a\.pcapng"):
            writer.write([packet, packet])
        assert path.read_bytes() == before
