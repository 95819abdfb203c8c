from __future__ import annotations

from pathlib import Path

import pytest

from p4switch.packet_io.pcap import PcapError, PcapWriter, read_pcap


def test_written_files_are_read_back(tmp_path: Path) -> None:
    path = tmp_path / "pcaps" / "a.pcap"
    frames = [(0.0, b"first"), (1.25, b""), (2.000000001, bytes(1500))]
    with PcapWriter(path) as writer:
        for seconds, frame in frames:
            writer.write(seconds, frame)
    read = list(read_pcap(path))
    assert [frame for _, frame in read] == [frame for _, frame in frames]
    assert [seconds for seconds, _ in read] == pytest.approx([seconds for seconds, _ in frames])


@pytest.mark.parametrize("data", [b"", b"not a capture, but long enough to be one"])
def test_other_files_are_refused(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "x.pcap"
    path.write_bytes(data)
    with pytest.raises(PcapError, match="not a pcap file"):
        list(read_pcap(path))


def test_a_cut_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.pcap"
    with PcapWriter(path) as writer:
        writer.write(0, b"frame")
    path.write_bytes(path.read_bytes()[:-2])
    with pytest.raises(PcapError, match="cut off in a frame at byte 40"):
        list(read_pcap(path))
