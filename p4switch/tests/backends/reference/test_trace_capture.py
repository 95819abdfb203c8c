"""Traces as a capture: the reason why a packet was dropped is its comment."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from p4switch.backends.reference.interpreter import Interpreter
from p4switch.backends.reference.trace import Tracer
from p4switch.backends.reference.trace_capture import TraceCapture
from tests.backends.reference.test_tracing import ENTRY, PROGRAM, line_of
from tests.packet_io.test_pcap import limited_file_size
from tests.packet_io.test_pcapng import shown

FORWARDED, DENIED, SHORT = bytes([0xE1]) + bytes(59), bytes([0x11]) + bytes(59), b""


def process(sink: TraceCapture, frames: list[bytes]) -> None:
    engine = Interpreter(PROGRAM, None, Tracer(sink))
    engine.insert_entry("I.kinds", ENTRY)
    engine.process([(1, frame) for frame in frames], 2_000_000)


def test_packets_in_and_out_with_the_reasons_of_drops(tmp_path: Path) -> None:
    path = tmp_path / "a.pcapng"
    process(TraceCapture(path, {1: "veth1"}, 0), [FORWARDED, DENIED, SHORT])
    clone, drop = (
        "the clone: there is no session 5",
        "after ingress egress_spec is the drop port 511",
    )
    forwarded = f"dropped: {clone} [{line_of('s.egress_spec = port;')}]"
    at = line_of("mark_to_drop(s);")
    denied = f"dropped: {clone} [{at}],dropped: {drop} [{at}]"
    assert shown(path) == [
        ("veth1", "0x00000001", "2.000000000", "60", forwarded),
        ("port3", "0x00000002", "2.000000000", "60", ""),
        ("veth1", "0x00000001", "2.000000000", "60", denied),
        ("veth1", "0x00000001", "2.000000000", "0", f"parser error: PacketTooShort,{denied}"),
    ]


def test_on_a_full_disk_the_trace_ends_with_one_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "a.pcapng"
    sink = TraceCapture(path, {1: "veth1"})
    with limited_file_size(path.stat().st_size + 300):
        process(sink, [DENIED] * 10)
    (record,) = [each for each in caplog.records if each.levelno == logging.ERROR]
    assert "the trace ends" in record.message
    assert str(path) in record.message
