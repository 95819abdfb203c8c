"""Packets from capture files: order, times, and the command that runs them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from p4switch.backends.reference.interpreter import Interpreter
from p4switch.device.file_plane import FilePlane
from p4switch.frontend.program import compile_file, compile_program
from p4switch.frontend.syntax.parser import parse_text
from p4switch.packet_io.pcap import PcapError, PcapWriter, read_pcap
from p4switch.stf import prepare
from p4switch.targets.v1model.engine import Packet
from tests.packet_io.test_pcapng import shown
from tests.support.machine import PATIENCE
from tests.support.paths import PROGRAMS

ROUTER = PROGRAMS / "router.p4"

COUNTING = """#include <core.p4>
#include <v1model.p4>
header n_t { bit<32> seen; bit<48> time; }
struct headers_t { n_t n; }
struct metadata_t { }
parser P(packet_in p, out headers_t h, inout metadata_t m, inout standard_metadata_t s) {
    state start { p.extract(h.n); transition accept; }
}
control N(inout headers_t h, inout metadata_t m) { apply { } }
control I(inout headers_t h, inout metadata_t m, inout standard_metadata_t s) {
    register<bit<32>>(1) seen;
    apply {
        seen.read(h.n.seen, 0);
        h.n.seen = h.n.seen + 1;
        seen.write(0, h.n.seen);
        h.n.time = s.ingress_global_timestamp;
        s.egress_spec = 2;
    }
}
control E(inout headers_t h, inout metadata_t m, inout standard_metadata_t s) { apply { } }
control D(packet_out p, in headers_t h) { apply { p.emit(h); } }
V1Switch(P(), N(), I(), E(), N(), D()) main;
"""


def write(path: Path, frames: list[tuple[float, bytes]]) -> None:
    with PcapWriter(path) as writer:
        for seconds, frame in frames:
            writer.write(seconds, frame)


def test_frames_go_in_order_of_time_then_port(tmp_path: Path) -> None:
    write(tmp_path / "b_in.pcap", [(5.0, bytes(10) + b"b0"), (5.5, bytes(10) + b"b1")])
    write(tmp_path / "a_in.pcap", [(5.5, bytes(10) + b"a0"), (5.25, bytes(10) + b"a1")])
    names = {1: str(tmp_path / "a"), 2: str(tmp_path / "b")}
    plane = FilePlane(names, 0, None, lambda _: None, lambda _: None)
    plane.use(Interpreter(compile_program(parse_text(COUNTING))))
    assert plane.done.wait(PATIENCE)
    plane.close()
    sent = list(read_pcap(tmp_path / "b_out.pcap"))
    assert [(seconds, frame[10:]) for seconds, frame in sent] == [
        (5.0, b"b0"),
        (5.25, b"a1"),
        (5.5, b"a0"),
        (5.5, b"b1"),
    ]
    assert [int.from_bytes(frame[:4], "big") for _, frame in sent] == [1, 2, 3, 4]
    times = [int.from_bytes(frame[4:10], "big") for _, frame in sent]
    assert times == [0, 250_000, 500_000, 500_000]
    assert list(read_pcap(tmp_path / "a_out.pcap")) == []


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(PcapError, match=r"a_in\.pcap: no such file; with --use-files, -i 1@"):
        FilePlane({1: str(tmp_path / "a")}, 0, None, lambda _: None, lambda _: None)


def routed() -> tuple[list[Packet], list[Packet]]:
    """The packets of router.stf, and what the interpreter sends for them."""
    engine = Interpreter(compile_file(ROUTER))
    packets = prepare(engine, ROUTER.with_suffix(".stf"))
    return packets, [out for packet in packets for out in engine.process([packet])]


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["interpreter", "native"])
def test_the_command(tmp_path: Path, executor: str) -> None:
    packets, expected = routed()
    ports = sorted({port for port, _ in (*packets, *expected)})
    for port in ports:
        frames = [(n * 0.001, f) for n, (p, f) in enumerate(packets) if p == port]
        write(tmp_path / f"p{port}_in.pcap", frames)
    command = [sys.executable, "-m", "p4switch.cli.main", "run", str(ROUTER), "--use-files", "0"]
    command += ["--executor", executor, "--entries", str(ROUTER.with_suffix(".stf"))]
    for port in ports:
        command += ["-i", f"{port}@p{port}"]
    for _ in range(2):  # the same again
        subprocess.run(command, cwd=tmp_path, check=True, timeout=PATIENCE, capture_output=True)
        for port in ports:
            sent = [frame for _, frame in read_pcap(tmp_path / f"p{port}_out.pcap")]
            assert sent == [frame for out, frame in expected if out == port]
    assert expected


def test_a_capture_says_why_packets_were_dropped(tmp_path: Path) -> None:
    write(tmp_path / "a_in.pcap", [(5.5, bytes(60))])
    program = tmp_path / "counting.p4"
    program.write_text(COUNTING.replace("s.egress_spec = 2", "mark_to_drop(s)"))
    command = [sys.executable, "-m", "p4switch.cli.main", "run", str(program), "-i", "1@a"]
    command += ["--use-files", "0", "--trace", "pcapng"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE)
    assert "--trace pcapng needs --trace-file FILE.pcapng" in done.stderr
    command += ["--trace-file", "b.pcapng"]
    subprocess.run(command, cwd=tmp_path, check=True, timeout=PATIENCE, capture_output=True)
    reason = f"dropped: after ingress egress_spec is the drop port 511 [{program}:17]"
    assert shown(tmp_path / "b.pcapng") == [("a", "0x00000001", "0.000000000", "60", reason)]
