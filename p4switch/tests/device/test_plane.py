"""Both packet planes: packet-out to packet-in, digests, log messages, changing the engine."""

from __future__ import annotations

import logging
import os
import queue
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import Any

import pytest

from p4switch.backends.reference.interpreter import Interpreter
from p4switch.device.device import log_drops
from p4switch.device.plane import Plane, PythonPlane
from p4switch.frontend.program import compile_program
from p4switch.frontend.syntax.parser import parse_text
from p4switch.ir import Program
from p4switch.packet_io.sockets import open_packet_socket
from p4switch.targets.v1model.engine import ControlError, Digest, Engine, EngineOptions
from tests.support.machine import PATIENCE, until

CPU_PORT = 510

# A frame for the CPU comes back to it with its first byte changed.
TEXT = """
#include <core.p4>
#include <v1model.p4>
header h_t { bit<8> a; bit<8> b; }
struct headers_t { h_t h; }
struct metadata_t { bit<8> rounds; }
struct seen_t { bit<8> b; bit<9> port; }
parser P(packet_in p, out headers_t h, inout metadata_t m, inout standard_metadata_t s) {
    state start { p.extract(h.h); transition accept; }
}
control N(inout headers_t h, inout metadata_t m) { apply {} }
control I(inout headers_t h, inout metadata_t m, inout standard_metadata_t s) {
    apply {
        digest<seen_t>(1, {h.h.b, s.ingress_port});
        log_msg("b is {}", {h.h.b});
        for (bit<8> i = 0; i < h.h.a; i = i + 1) { m.rounds = m.rounds + 1; }
        h.h.a = ANSWER;
        s.egress_spec = CPU_PORT;
    }
}
control E(inout headers_t h, inout metadata_t m, inout standard_metadata_t s) { apply {} }
control D(packet_out p, in headers_t h) { apply { p.emit(h); } }
V1Switch(P(), N(), I(), E(), N(), D()) main;
"""


def program(answer: int) -> str:
    return TEXT.replace("ANSWER", str(answer)).replace("CPU_PORT", str(CPU_PORT))


class Rig:
    """A plane without ports, and its output."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.frames: queue.Queue[bytes] = queue.Queue()
        self.digested: queue.Queue[Digest] = queue.Queue()
        self.plane: Plane = self.plane_kind()({}, CPU_PORT, self.on_frames, self.on_digests)

    def plane_kind(self) -> Callable[..., Plane]:
        if self.kind == "interpreter":
            return PythonPlane
        from p4switch.device.native_plane import NativePlane

        return NativePlane

    def on_frames(self, frames: Sequence[bytes]) -> None:
        for frame in frames:
            self.frames.put(frame)

    def on_digests(self, digests: Sequence[Digest]) -> None:
        for digest in digests:
            self.digested.put(digest)

    def engine(self, answer: int) -> Engine:
        checked = compile_program(parse_text(program(answer)))
        return self.run(checked, EngineOptions(cpu_port=CPU_PORT, packet_budget=100))

    def run(self, checked: Program, options: EngineOptions | None = None) -> Engine:
        options = options or EngineOptions(cpu_port=CPU_PORT)
        if self.kind == "interpreter":
            return Interpreter(checked, options)
        from p4switch.backends.native.engine import NativeEngine

        return NativeEngine(checked, options)


@pytest.fixture(params=["interpreter", "native"])
def rig(request: pytest.FixtureRequest) -> Iterator[Rig]:
    if request.param == "native" and shutil.which("cc") is None:
        pytest.skip("needs a C compiler")
    made = Rig(request.param)
    yield made
    made.plane.close()


def test_a_frame_to_the_cpu_comes_back(rig: Rig) -> None:
    rig.plane.use(rig.engine(7))
    rig.plane.inject(b"\1\2rest")
    assert rig.frames.get(timeout=PATIENCE) == b"\7\2rest"


def test_many_frames_come_back_in_order(rig: Rig) -> None:
    rig.plane.use(rig.engine(7))
    payloads = [number.to_bytes(2, "big") for number in range(200)]
    for payload in payloads:
        rig.plane.inject(b"\1\2" + payload)
    received = [rig.frames.get(timeout=PATIENCE) for _ in payloads]
    assert received == [b"\7\2" + payload for payload in payloads]


def test_digests_come_out(rig: Rig) -> None:
    rig.plane.use(rig.engine(7))
    rig.plane.inject(b"\1\x42")
    digest = rig.digested.get(timeout=PATIENCE)
    assert (digest.name, digest.values) == ("seen_t", (0x42, CPU_PORT))


def test_messages_of_the_program_are_logged(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "p4switch")
    messages: queue.Queue[str] = queue.Queue()

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            messages.put(record.getMessage())

    listener = Listener()
    logging.getLogger("p4switch").addHandler(listener)
    try:
        rig.plane.use(rig.engine(7))
        rig.plane.inject(b"\1\x42")
        assert messages.get(timeout=PATIENCE) == "b is 66"
    finally:
        logging.getLogger("p4switch").removeHandler(listener)


def test_packets_over_budget_are_counted_and_logged(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    assert rig.plane.statistics().extra == {}
    rig.plane.use(rig.engine(7))
    for rounds in (99, 98, 200):  # and a pass of ingress, and one of egress
        rig.plane.inject(bytes([rounds, 2]))
    rig.plane.inject(b"\1\3")
    assert rig.frames.get(timeout=PATIENCE) == b"\7\2"
    assert rig.frames.get(timeout=PATIENCE) == b"\7\3"
    assert rig.plane.statistics().extra == {"over_budget": 2}
    log_drops(rig.plane.statistics())
    assert "over_budget: 2 packets dropped" in caplog.text
    assert "--packet-budget" in caplog.text


def test_an_interrupted_plane_takes_in_nothing(rig: Rig) -> None:
    rig.plane.interrupt()
    rig.plane.use(rig.engine(7))
    rig.plane.inject(b"\1\2")
    assert rig.frames.get(timeout=PATIENCE) == b"\7\2", "there was no engine to interrupt"
    rig.plane.interrupt()
    rig.plane.inject(b"\1\2")
    rig.plane.use(rig.engine(8))
    rig.plane.inject(b"\1\3")
    assert rig.frames.get(timeout=PATIENCE) == b"\x08\3"


@pytest.mark.slow
def test_another_engine_takes_over(rig: Rig) -> None:
    for answer in (7, 8, 9):
        rig.plane.use(rig.engine(answer))
        rig.plane.inject(b"\1\2")
        assert rig.frames.get(timeout=PATIENCE) == bytes([answer, 2])


def test_the_clock_runs(rig: Rig) -> None:
    rig.plane.use(rig.engine(7))
    first = rig.plane.now_us()
    rig.plane.inject(b"\1\2")
    rig.frames.get(timeout=PATIENCE)
    assert rig.plane.now_us() > first


@pytest.mark.parametrize("tag", ["81000007", "81000000", "88a8e123"])
def test_a_vlan_tag_reaches_the_program(rig: Rig, veth: tuple[str, str], tag: str) -> None:
    """The kernel takes the outer tag out of a frame; the plane puts it back.

    Sent until both have come: a busy kernel may drop frames between two interfaces.
    """
    ours, theirs = open_packet_socket(veth[0]), open_packet_socket(veth[1])
    plane = rig.plane_kind()({1: ours}, CPU_PORT, rig.on_frames, rig.on_digests)
    tagged = bytes(12) + bytes.fromhex(tag) + b"\x88\xb5" + bytes(range(50))
    untagged = tagged[:12] + tagged[16:]
    seen: set[bytes] = set()

    def both_came() -> bool:
        theirs.send(tagged)
        theirs.send(untagged)
        with suppress(queue.Empty):
            while len(seen) < 2:
                seen.add(rig.frames.get(timeout=1.0))
        return len(seen) == 2

    try:
        plane.use(rig.engine(7))
        until(both_came, "both frames")
        assert seen == {b"\7" + tagged[1:], b"\7" + untagged[1:]}
    finally:
        plane.close()
        ours.close()
        theirs.close()


def test_without_an_engine_nothing_can_be_injected(rig: Rig) -> None:
    with pytest.raises(ControlError, match="no program runs"):
        rig.plane.inject(b"\1\2")


def test_without_a_cpu_port_nothing_can_be_injected(rig: Rig) -> None:
    nothing: Any = lambda _: None  # noqa: E731
    plane = rig.plane_kind()({}, None, nothing, nothing)
    checked = rig.engine(7)
    checked.options.cpu_port = None
    try:
        plane.use(checked)
        with pytest.raises(ControlError, match="no CPU port"):
            plane.inject(b"\1\2")
    finally:
        plane.close()


def test_a_loop_that_has_seen_the_end_before_it_is_woken_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The loop may be awake for another reason when `close` begins."""
    nothing: Any = lambda _: None  # noqa: E731
    others = set(threading.enumerate())
    plane = PythonPlane({}, None, nothing, nothing)
    [loop] = set(threading.enumerate()) - others

    def ends_first(descriptor: int, value: int) -> None:
        os.eventfd_write(descriptor, value)
        loop.join()
        os.eventfd_write(descriptor, value)

    monkeypatch.setattr("p4switch.device.plane.eventfd_write", ends_first)
    plane.close()
    plane.close()


PORTS_P4 = """
#include <core.p4>
#include <v1model.p4>
header h_t { bit<8> port; bit<8> number; }
struct headers_t { h_t h; }
struct metadata_t { }
parser P(packet_in p, out headers_t h, inout metadata_t m, inout standard_metadata_t s) {
    state start { p.extract(h.h); transition accept; }
}
control N(inout headers_t h, inout metadata_t m) { apply {} }
control I(inout headers_t h, inout metadata_t m, inout standard_metadata_t s) {
    apply { s.egress_spec = h.h.port == 0 ? 9w510 : (bit<9>)h.h.port; }
}
control E(inout headers_t h, inout metadata_t m, inout standard_metadata_t s) {
    register<bit<32>>(256) depths;
    apply { depths.write((bit<32>)h.h.number, (bit<32>)s.enq_qdepth + 1); }
}
control D(packet_out p, in headers_t h) { apply { p.emit(h); } }
V1Switch(P(), N(), I(), E(), N(), D()) main;
"""


def ports_engine(rig: Rig) -> Engine:
    """Frames go to the port that their first byte names, 0 is the CPU's."""
    return rig.run(compile_program(parse_text(PORTS_P4)))


def test_a_switch_outlives_its_interfaces(rig: Rig, veth: tuple[str, str]) -> None:
    """Mininet deletes them when it stops, while packets still come."""
    with open_packet_socket(veth[0]) as ours:
        plane = rig.plane_kind()({1: ours}, CPU_PORT, rig.on_frames, rig.on_digests)
        plane.use(ports_engine(rig))
        subprocess.run(["ip", "link", "delete", veth[0]], check=True)
        for _ in range(3):
            plane.inject(b"\1" + bytes(60))
            plane.inject(b"\0" + bytes(60))
            assert rig.frames.get(timeout=PATIENCE)[0] == 0
        plane.close()


def test_the_depth_of_a_queue_counts_what_waits_in_the_interface(
    rig: Rig, veth: tuple[str, str]
) -> None:
    shaped = "root tbf rate 8kbit burst 1600 limit 1000000"
    done = subprocess.run(
        ["tc", "qdisc", "add", "dev", veth[0], *shaped.split()], capture_output=True
    )
    if done.returncode:
        pytest.skip(f"tc has no tbf: {done.stderr.decode().strip()}")
    with open_packet_socket(veth[0]) as ours:
        plane = rig.plane_kind()({1: ours}, CPU_PORT, rig.on_frames, rig.on_digests)
        engine = ports_engine(rig)
        plane.use(engine)
        for number in range(1, 12):  # One by one: none waits in the switch's own queue.
            plane.inject(bytes([1, number]) + bytes(1400))
            until(lambda n=number: engine.read_register("E.depths", n) > 0, "egress")  # type: ignore[misc]
        assert engine.read_register("E.depths", 11) > 3
        plane.close()


COUNTED_P4 = """
#include <core.p4>
#include <v1model.p4>
header h_t { bit<8> answer; bit<8> number; }
struct headers_t { h_t h; }
struct metadata_t { bit<32> rounds; }
parser P(packet_in p, out headers_t h, inout metadata_t m, inout standard_metadata_t s) {
    state start { p.extract(h.h); transition accept; }
}
control N(inout headers_t h, inout metadata_t m) { apply {} }
control I(inout headers_t h, inout metadata_t m, inout standard_metadata_t s) {
    register<bit<32>>(1) total;
    apply {
        for (bit<32> i = 0; i < ROUNDS; i = i + 1) { m.rounds = m.rounds + i; }
        bit<32> before;
        total.read(before, 0);
        total.write(0, before + 1);
        h.h.answer = ANSWER;
        s.egress_spec = 1;
    }
}
control E(inout headers_t h, inout metadata_t m, inout standard_metadata_t s) { apply {} }
control D(packet_out p, in headers_t h) { apply { p.emit(h); } }
V1Switch(P(), N(), I(), E(), N(), D()) main;
"""


def test_a_handover_loses_no_frame_and_no_count(rig: Rig, veth: tuple[str, str]) -> None:
    """Engines change while frames are in process, which takes each of them a while."""
    rounds = 300 if rig.kind == "interpreter" else 50_000
    programs = [
        compile_program(
            parse_text(COUNTED_P4.replace("ROUNDS", str(rounds)).replace("ANSWER", answer))
        )
        for answer in "78"
    ]
    engines = [rig.run(programs[number % 2]) for number in range(8)]
    ours, theirs = open_packet_socket(veth[0]), open_packet_socket(veth[1])
    plane = rig.plane_kind()({1: ours}, CPU_PORT, rig.on_frames, rig.on_digests)
    theirs.settimeout(PATIENCE)
    answers: set[int] = set()
    try:
        plane.use(engines[0])
        for old, new in pairwise(engines):
            for number in range(40):
                theirs.send(bytes([0, number]) + b"handover" + bytes(50))
            plane.use(
                new,
                lambda old=old, new=new: new.write_register(  # type: ignore[misc]
                    "I.total", 0, old.read_register("I.total", 0)
                ),
            )
            came: set[int] = set()
            while len(came) < 40:
                frame = theirs.recv(200)
                if frame[2:10] == b"handover":
                    came.add(frame[1])
                    answers.add(frame[0])
        own = engines[-1].read_register("I.total", 0)
        assert own >= 40 * (len(engines) - 1)  # The kernel sends frames of its own.
        assert answers <= {7, 8}
    finally:
        plane.close()
        ours.close()
        theirs.close()
