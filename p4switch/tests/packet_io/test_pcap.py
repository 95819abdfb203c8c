from __future__ import annotations

import contextlib
import resource
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from p4switch.packet_io.pcap import (
    CaptureState,
    PcapError,
    PcapWriter,
    read_pcap,
    read_state,
    state_file,
)


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


@pytest.mark.parametrize("cut", range(1, 21))
def test_a_record_that_is_cut_off_is_left_out(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "x.pcap"
    with PcapWriter(path) as writer:
        writer.write(0, b"whole")
        writer.write(0, b"frame")
    path.write_bytes(path.read_bytes()[:-cut])
    assert [frame for _, frame in read_pcap(path)] == [b"whole"]


def test_frames_are_in_the_file_at_once(tmp_path: Path) -> None:
    path = tmp_path / "x.pcap"
    with PcapWriter(path) as writer:
        assert list(read_pcap(path)) == []
        writer.write(0, b"frame")
        assert [frame for _, frame in read_pcap(path)] == [b"frame"]


def test_on_a_full_disk_only_whole_records_stay(tmp_path: Path) -> None:
    path = tmp_path / "x.pcap"
    with PcapWriter(path) as writer:
        writer.write(0, bytes(100))
        with limited_file_size(path.stat().st_size + 150), pytest.raises(OSError) as caught:
            writer.write_records([(1, bytes(100)), (2, bytes(100))])
        assert caught.value.filename == str(path)
        assert len(list(read_pcap(path))) == 1
        writer.write(3, b"room again")
    assert len(list(read_pcap(path))) == 2


@contextlib.contextmanager
def limited_file_size(size: int) -> Iterator[None]:
    """No file of this process can grow beyond a size."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)


def test_the_state_of_a_capture_has_a_fixed_size(tmp_path: Path) -> None:
    assert read_state(tmp_path, "s1-eth1") == (0, False)
    state = CaptureState(tmp_path, "s1-eth1")
    sizes = set()
    for lost in (0, 1, 10**12):
        state.write(lost=lost)
        assert read_state(tmp_path, "s1-eth1") == (lost, False)
        sizes.add(state_file(tmp_path, "s1-eth1").stat().st_size)
    state.write(ended=True)
    state.close()
    assert read_state(tmp_path, "s1-eth1") == (10**12, True)
    assert sizes == {CaptureState.BYTES}
    state_file(tmp_path, "s1-eth1").write_text("{}")
    with pytest.raises(PcapError, match="not the state of a capture"):
        read_state(tmp_path, "s1-eth1")
