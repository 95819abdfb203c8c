"""Generated programs between packet sockets: the packet loop of native code, on veth pairs."""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from p4switch.backends.native.engine import NativeEngine
from p4switch.backends.native.loop import PacketLoop
from p4switch.backends.reference.interpreter import Interpreter
from p4switch.device.plane import AUXDATA_ROOM, PACKET_AUXDATA, SOL_PACKET, frame_with_tag
from p4switch.ir import Program
from p4switch.packet_io.receive_ring import ReceiveRing
from p4switch.packet_io.sockets import open_packet_socket
from p4switch.targets.v1model.engine import EngineOptions
from tests.fuzz.programs import PORTS
from tests.support.veth import veth_pairs

SHORTEST = 14
"""Bytes of a frame that a veth takes."""
LARGEST = 2048
MOST_IN_FLIGHT = 40
"""Frames sent at once: fewer than wait in a queue."""
SECONDS = 60
"""Without a frame until the loop counts as stuck."""

Wires = list[tuple[socket.socket, socket.socket, ReceiveRing | None]]
"""The switch's end and the far end of each port, and the ring of the switch's end, if any."""


@contextmanager
def wires(frames: int = MOST_IN_FLIGHT) -> Iterator[Wires]:
    """Connect each port, through rings of as many frames if not 0; gone afterwards."""
    made: Wires = []
    with veth_pairs(PORTS) as pairs:
        try:
            for a, b in pairs:
                far = open_packet_socket(b)
                far.setsockopt(SOL_PACKET, PACKET_AUXDATA, 1)
                near = open_packet_socket(a)
                made.append((near, far, ReceiveRing(near, frames) if frames else None))
            yield made
        finally:
            for near, far, ring in made:
                if ring is not None:
                    ring.close()
                near.close()
                far.close()


def difference(
    program: Program,
    flags: Sequence[str],
    frames: Sequence[bytes],
    links: Wires,
    threads: int = 1,
) -> str | None:
    """Send frames in bursts through the packet loop; what it sends differently, or None.

    Programs keep state at ingress alone, so bursts come out as single frames do, port by port.
    """
    engine = NativeEngine(program, EngineOptions(packet_threads=threads), extra_flags=flags)
    reference = Interpreter(program)
    loop = PacketLoop(engine)
    try:
        for port, (near, _, ring) in enumerate(links):
            loop.add_port(port, near, ring)
        loop.start()
        done = step = sent = 0
        while done < len(frames):
            size = 1 + step * 7 % MOST_IN_FLIGHT
            burst = frames[done : done + size]
            found = _burst(reference, burst, [far for _, far, _ in links])
            if found is not None:
                return f"packet loop, frames {done} to {done + len(burst) - 1}: {found}"
            done, step = done + size, step + 1
            # Frames that the program drops fill the ring, too; the last ones would reach the next
            # program.
            sent += sum(_passes(frame) for frame in burst)
            if not _received(loop, sent):
                return f"packet loop: {loop.counts(0).rx_packets} of {sent} frames received"
        left = [
            port for port, (_, far, _) in enumerate(links) if select.select([far], [], [], 0)[0]
        ]
        return f"packet loop: more frames than expected at ports {left}" if left else None
    finally:
        loop.close()
        engine.close()


def _received(loop: PacketLoop, frames: int) -> bool:
    """Wait until a loop has received `frames` at port 0; return False after `SECONDS`."""
    deadline = time.monotonic() + SECONDS
    while loop.counts(0).rx_packets < frames and time.monotonic() < deadline:
        time.sleep(0.001)
    return loop.counts(0).rx_packets == frames


def _burst(
    reference: Interpreter, frames: Sequence[bytes], far: Sequence[socket.socket]
) -> str | None:
    frames = [frame for frame in frames if _passes(frame)]
    expected: list[list[bytes]] = [[] for _ in far]
    for frame in frames:
        for port, sent in reference.process([(0, frame)]):
            if port < len(far) and _passes(sent):
                expected[port].append(sent)
    for frame in frames:
        far[0].send(frame)
    for port, wanted in enumerate(expected):
        for number, want in enumerate(wanted):
            have = _receive(far[port])
            if have != want:
                shown = "nothing" if have is None else have.hex()
                return f"port {port}, frame {number}: {shown}, interpreter {want.hex()}"
    return None


def _passes(frame: bytes) -> bool:
    """Whether a veth takes a frame: the kernel drops one that ends in its VLAN tag."""
    tagged = frame[12:14] in (b"\x81\x00", b"\x88\xa8")
    return len(frame) >= (SHORTEST + 6 if tagged else SHORTEST)


def _receive(far: socket.socket) -> bytes | None:
    if not select.select([far], [], [], SECONDS)[0]:
        return None
    frame, ancillary, _, _ = far.recvmsg(LARGEST, AUXDATA_ROOM)
    return frame_with_tag(frame, ancillary)
