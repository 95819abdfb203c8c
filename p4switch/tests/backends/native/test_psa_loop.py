"""The packet loop with a PSA program: recirculation, clones, and the CPU's port."""

from __future__ import annotations

import select
import socket
from collections.abc import Iterator

import pytest

from p4switch.backends.native.engine import NativeEngine
from p4switch.backends.native.loop import PacketLoop
from p4switch.frontend.program import compile_file
from p4switch.targets.v1model.engine import CloneSession, EngineOptions, Replica
from tests.support.machine import PATIENCE
from tests.support.paths import PROGRAMS
from tests.support.veth import skip_without_veths, veth_pairs

CPU_PORT = 200


@pytest.fixture(params=[1, 2], ids=["one-thread", "two-threads"])
def loop(request: pytest.FixtureRequest) -> Iterator[PacketLoop]:
    options = EngineOptions(cpu_port=CPU_PORT, packet_threads=request.param)
    engine = NativeEngine(compile_file(PROGRAMS / "psa_paths.p4"), options)
    engine.set_clone_session(6, CloneSession((Replica(2, 9),)))
    made = PacketLoop(engine)
    yield made
    made.close()
    engine.close()


def step(kind: int, port: int, told: int = 0, path: int = 0, replica: int = 0) -> bytes:
    """A frame of the program, with an EtherType that no host answers."""
    return bytes([kind, port, told, path, replica, 0]) + bytes(6) + b"\x88\xb5" + bytes(46)


def frames_for_the_cpu(loop: PacketLoop) -> list[bytes]:
    assert select.select([loop.cpu_event()], [], [], PATIENCE)[0], "no frame for the CPU came"
    return loop.take_cpu_frames()


def test_the_cpu_sends_what_is_recirculated_to_it(loop: PacketLoop) -> None:
    loop.start()
    loop.inject(step(6, CPU_PORT))
    # Recirculated: told is 0xac + 0x40.
    assert frames_for_the_cpu(loop) == [step(0x86, CPU_PORT, 0xEC, 1)]
    loop.inject(step(10, 0))
    # Out of the CPU: 0xcc + 0x40.
    assert frames_for_the_cpu(loop) == [step(0x8A, 0, 0x0C, 1)]


def test_ports_and_clones(loop: PacketLoop) -> None:
    skip_without_veths()
    with veth_pairs(3) as pairs:
        near, far = ([_open(pair[side]) for pair in pairs] for side in range(2))
        for port, made in enumerate(near):
            loop.add_port(port, made)
        loop.start()
        for sent in (step(7, 1), step(6, 1), step(5, 1)):
            far[0].send(sent)
        received = [far[1].recv(2048) for _ in range(3)]
        assert sorted(received) == [
            step(0x85, 1, 0x9B, 1),  # Resubmitted.
            step(0x86, 1, 0xEC, 1),  # Recirculated.
            step(0x87, 1, 0x40, 1),
        ]
        assert far[2].recv(2048) == step(0x87, 1, 0xEC, 4, 9)  # Its clone.
        loop.close()
        for made in (*near, *far):
            made.close()


def _open(interface: str) -> socket.socket:
    made = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
    made.setsockopt(263, 23, 1)  # SOL_PACKET, PACKET_IGNORE_OUTGOING
    made.bind((interface, 3))
    made.settimeout(PATIENCE)
    return made
