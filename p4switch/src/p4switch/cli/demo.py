"""`p4switch demo`: a router, a few packets and their traces."""

from __future__ import annotations

import os
import queue
import secrets
import select
import shutil
import socket
import struct
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from p4switch.backends.reference.interpreter import Interpreter
from p4switch.backends.reference.trace import PacketTrace, Tracer
from p4switch.device.bundle import make_bundle
from p4switch.device.device import Device, PortName
from p4switch.device.loading import Loader
from p4switch.frontend.program import compile_file
from p4switch.packet_io.sockets import open_packet_socket
from p4switch.targets.v1model.engine import EngineOptions, Packet

ROUTER = Path(__file__).parents[1] / "examples" / "router.p4"
PORTS = (1, 2, 3)
PATIENCE = 10.0
"""Timeout in seconds for a frame to pass the veth pairs."""


class DemoError(RuntimeError):
    """The demo cannot continue; the message gives the reason."""


@dataclass(frozen=True, slots=True)
class Step:
    """A packet of the demo and its purpose."""

    title: str
    packet: Packet


def ipv4_frame(source: str, destination: str, ttl: int, *, checksum_offset: int = 0) -> bytes:
    """Return an Ethernet frame with an IPv4 header; its checksum is off by `checksum_offset`."""
    payload = b"hello"
    fields = (0x45, 0, 20 + len(payload), 1, 0, ttl, 253)
    addresses = socket.inet_aton(source) + socket.inet_aton(destination)
    words = struct.unpack(">10H", struct.pack(">BBHHHBBH", *fields, 0) + addresses)
    total = sum(words)
    total = (total & 0xFFFF) + (total >> 16)
    total = (total & 0xFFFF) + (total >> 16)
    checksum = (~total + checksum_offset) & 0xFFFF
    ethernet = bytes.fromhex("0800000000fe 080000000101 0800")
    return ethernet + struct.pack(">BBHHHBBH", *fields, checksum) + addresses + payload


def steps() -> list[Step]:
    """Return the packets of the demo, in order."""
    local, far = "10.0.1.1", "10.0.2.2"
    return [
        Step(f"to {far}: the longer of two prefixes", (1, ipv4_frame(local, far, 64))),
        Step("to 10.9.9.9: only 10.0.0.0/8 matches", (1, ipv4_frame(local, "10.9.9.9", 64))),
        Step("to 192.0.2.1: no route", (2, ipv4_frame(far, "192.0.2.1", 64))),
        Step("TTL 1: it ends here", (2, ipv4_frame(far, local, 1))),
        Step("a wrong checksum", (3, ipv4_frame("10.9.9.9", local, 64, checksum_offset=1))),
    ]


def why_in_process() -> str | None:
    """Return why veth pairs are impossible; None if they are possible."""
    if os.geteuid() != 0:
        return "not root"
    if shutil.which("ip") is None:
        return "iproute2's `ip` is not installed"
    return None


def run_in_process(show: Callable[[Step, PacketTrace], None]) -> None:
    """Process each packet by a switch in this process; pass its trace to `show`."""
    traces: list[PacketTrace] = []
    engine = Interpreter(compile_file(ROUTER), None, Tracer(traces.append))
    for step in steps():
        engine.process([step.packet])
        show(step, traces.pop())


def run_on_veth(show: Callable[[Step, PacketTrace], None]) -> None:
    """Send each packet over a veth pair to a switch; pass its trace to `show`.

    What the switch sends must come out of the other pair. Raises DemoError, PortError.
    """
    traces: queue.Queue[PacketTrace] = queue.Queue()
    with ExitStack() as stack:
        outer: dict[int, socket.socket] = {}
        ports = []
        for port in PORTS:
            inner_name, outer_name = stack.enter_context(_veth_pair(port))
            outer[port] = stack.enter_context(open_packet_socket(outer_name))
            ports.append(PortName(port, inner_name))
        loader = Loader("interpreter", EngineOptions(), Tracer(traces.put))
        stack.enter_context(Device(ports, loader, device_config=make_bundle(ROUTER)))
        for step in steps():
            port, frame = step.packet
            outer[port].send(frame)
            trace = _trace_of(frame, traces)
            for out, sent in trace.out:
                _await(outer[out], sent, f"port {out}")
            show(step, trace)


def _trace_of(frame: bytes, traces: queue.Queue[PacketTrace]) -> PacketTrace:
    """Return the trace of a frame; skip frames sent by the kernel."""
    while True:
        try:
            trace = traces.get(timeout=PATIENCE)
        except queue.Empty:
            raise DemoError(f"no packet came through the switch in {PATIENCE:g} s") from None
        if trace.frame == frame:
            return trace


def _await(sock: socket.socket, frame: bytes, where: str) -> None:
    """Wait until a frame has come out; skip others."""
    while select.select([sock], [], [], PATIENCE)[0]:
        if sock.recv(1 << 16) == frame:
            return
    raise DemoError(f"the switch sent a frame that did not come out of {where}")


@contextmanager
def _veth_pair(port: int) -> Iterator[tuple[str, str]]:
    """Yield a veth pair for a port: the switch's end and the other one; removed afterwards."""
    name = f"p4d{secrets.token_hex(3)}{port}"
    names = (f"{name}s", f"{name}h")
    _ip("link", "add", names[0], "type", "veth", "peer", "name", names[1])
    try:
        for end in names:
            # The kernel's neighbour discovery packets would be traced too.
            Path(f"/proc/sys/net/ipv6/conf/{end}/disable_ipv6").write_text("1")
            _ip("link", "set", end, "up")
        yield names
    finally:
        _ip("link", "delete", names[0])


def _ip(*arguments: str) -> None:
    command: Sequence[str] = ("ip", *arguments)
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise DemoError(f"{' '.join(command)}: {done.stderr.strip()}")
