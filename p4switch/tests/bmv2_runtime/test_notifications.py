"""Digests as a subscriber with nanomsg gets them: p4-learning's unpacking, our own socket."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from p4switch.bmv2_runtime.notifications import Notifications, NotificationsError
from p4switch.bmv2_runtime.runtime import Runtime
from p4switch.device.runtime_host import RuntimeHost
from p4switch.frontend.program import compile_program
from p4switch.frontend.syntax.parser import parse_text
from p4switch.ir import Program, Struct
from p4switch.p4runtime.names import digest_types
from p4switch.targets.v1model.engine import Digest
from tests.support.machine import PATIENCE
from tests.support.p4runtime_world import MemoryPlane
from tests.support.paths import EVERYTHING_P4


def types(program: Program) -> Iterator[Struct]:
    return (each.type for each in digest_types(program))


GREETING = struct.Struct(">4sHH")


@pytest.fixture(scope="module")
def program() -> Program:
    return compile_program(parse_text(EVERYTHING_P4.read_text(), EVERYTHING_P4.name))


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Notifications]:
    made = Notifications(f"ipc://{tmp_path}/n.ipc", 3, types)
    yield made
    made.close()


def connected(address: str, protocol: int) -> socket.socket:
    """Return a connection on which a client of one of nanomsg's protocols has greeted."""
    made = socket.socket(socket.AF_UNIX)
    made.settimeout(PATIENCE)
    made.connect(address.removeprefix("ipc://"))
    made.sendall(GREETING.pack(b"\0SP\0", protocol, 0))
    return made


class Subscriber:
    """A SUB socket of nanomsg over ipc, and the unpacking of p4-learning's L2 controller."""

    def __init__(self, address: str) -> None:
        self.socket = connected(address, 33)
        assert GREETING.unpack(self._read(8)) == (b"\0SP\0", 32, 0)

    def _read(self, size: int) -> bytes:
        return self.socket.recv(size, socket.MSG_WAITALL)

    def receive(self) -> tuple[tuple[int, ...], list[tuple[int, int]]]:
        """Return device, list and buffer of a message, and its samples."""
        kind, size = struct.unpack(">BQ", self._read(9))
        message = self._read(size)
        topic, device, context, number, buffer, samples = struct.unpack("<4sQiiQi", message[:32])
        assert (kind, topic, context) == (1, b"LEA|", 0)
        found = []
        for start in range(32, 32 + 8 * samples, 8):
            high, low, port = struct.unpack(">LHH", message[start : start + 8])
            found.append((high << 16 | low, port))
        return (device, number, buffer), found


def learn(*values: tuple[int, int]) -> list[Digest]:
    return [Digest("learn_t", each) for each in values]


def test_a_digest_is_sent_again_after_its_acknowledgement(
    served: Notifications, program: Program
) -> None:
    subscriber = Subscriber(served.address)
    one, two = (0x0A0000000001, 3), (0x0A0000000002, 256)
    served.publish(program, learn(one, two, one))
    assert subscriber.receive() == ((3, 1, 0), [one, two])
    served.publish(program, learn(one))
    runtime = Runtime(RuntimeHost(None, MemoryPlane(), {}), 3, notifications=served)  # type: ignore[arg-type]
    runtime.call("standard", "bm_learning_ack", [0, 1, 0, [1]])
    served.publish(program, learn(one, two))
    assert subscriber.receive() == ((3, 1, 1), [two])
    runtime.call("standard", "bm_learning_ack_buffer", [0, 1, 0])
    served.publish(program, learn(one))
    assert subscriber.receive() == ((3, 1, 2), [one])
    info = runtime.call("standard", "bm_mgmt_get_info", [])
    assert info.notifications_socket == served.address


def test_others_get_messages_when_a_subscriber_has_gone(
    served: Notifications, program: Program
) -> None:
    gone, stays = Subscriber(served.address), Subscriber(served.address)
    gone.socket.close()
    for port in range(4):
        served.publish(program, learn((1, port)))
        assert stays.receive()[1] == [(1, port)]


def test_a_client_that_is_no_subscriber(served: Notifications) -> None:
    assert connected(served.address, 16).recv(1) == b""


def test_the_socket_of_a_switch_that_was_killed_is_replaced(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(tmp_path / "n.ipc"))
    Notifications(f"ipc://{tmp_path}/n.ipc", 0, types).close()
    assert list(tmp_path.iterdir()) == []


def test_a_file_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "n.ipc").write_text("mine")
    with pytest.raises(NotificationsError, match="Address already in use; choose another"):
        Notifications(f"ipc://{tmp_path}/n.ipc", 0, types)
    assert (tmp_path / "n.ipc").read_text() == "mine"
    with pytest.raises(NotificationsError, match=r"tcp://x: .* at ipc://PATH only"):
        Notifications("tcp://x", 0, types)
