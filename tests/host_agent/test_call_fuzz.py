"""No packet of a process raises in an agent or reaches outside shared memory, nor does memory that
changes meanwhile.

`make fuzz FRAMES=10000000` runs it for long, also under sanitizers; `make test` sends a few.
"""

from __future__ import annotations

import json
import logging
import os
import socket
from collections.abc import Iterator, Sequence
from random import Random
from typing import Any

import numpy as np
import pytest

from hopsum.host_agent.io.attendance import Attendance
from hopsum.host_agent.io.process_connection import Request
from hopsum.host_agent.process_calls import (
    ALL,
    BARRIER,
    CALL,
    COPY,
    FAULTS,
    PARTS,
    REDUCTIONS,
    ROOT,
    SUM,
    TYPES,
    CallPacket,
    Mailbox,
)
from hopsum.host_agent.server import Server
from hopsum.host_agent.sure_calls import ExpectedCall, SureCalls
from hopsum.host_agent.worker import Worker
from hopsum.protocol.wire import EXPONENT_BIAS
from hopsum.simulation import flows
from hopsum.simulation.processes import Process, ProcessDoor
from tests.support.protocol_world import LANES, at_server, at_worker, star_plan

DEFAULT_PACKETS = 4_000
BATCH = 32
JOB = 7
HOSTS = ("h1", "h1", "h2")
BYTES = 1 << 12
"""Of each shared memory."""
NUMBERS = (0, 1, 2, 3, 4, 5, 0x7F, 0xFF, 1023, 1024, 1025, 1 << 16, (1 << 31) - 1, (1 << 32) - 1)
WORDS = ("submit", "attend", "memory", "leave", "kind", "job", "rank", "bytes", "", "sum")
VALUES: tuple[Any, ...] = (None, True, -1, 0, 1, 7, 1 << 70, 0.5, "h1", "\ud800", [], ["h1"], {})


@pytest.fixture(autouse=True)
def unlogged(caplog: pytest.LogCaptureFixture) -> None:
    """Keep no record of each refusal: with its traceback it holds the process's memory."""
    caplog.set_level(logging.ERROR, "hopsum-agent")


@pytest.fixture
def count(request: pytest.FixtureRequest) -> int:
    """Packets for each of the tests of this file."""
    chosen: int | None = request.config.getoption("--fuzz-frames")
    return DEFAULT_PACKETS if chosen is None else chosen


def possible(random: Random) -> CallPacket:
    """A call that the agent takes."""
    kind = random.choice((SUM, SUM, COPY, BARRIER))
    if kind == BARRIER:
        return CallPacket(kind, *[0] * 9)
    name = random.choice((*TYPES,)) if kind == SUM else "int32"
    elements = 3 * random.randrange(BYTES // 3 // TYPES[name].itemsize + 1)
    reduction = random.choice(REDUCTIONS[name]) if kind == SUM else "sum"
    return CallPacket(
        kind,
        (*TYPES,).index(name),
        REDUCTIONS["int32"].index(reduction),
        random.choice((0, 0, 0, 1)) if kind == SUM and elements else 0,
        random.choice((ALL, PARTS, ROOT, ROOT + 2) if kind == SUM else (PARTS, ROOT + 1)),
        random.randrange(1 << 64),
        random.randrange(2),
        elements,
        random.choice((0, 1, 200, 1 << 31)),
        random.randrange(elements) if kind == SUM and elements else 0,
    )


def mutated(random: Random, packet: bytes) -> bytes:
    """A packet with one or two wild bytes or words, now and then of another length."""
    changed = bytearray(packet)
    for _ in range(random.choice((1, 1, 2))):
        if random.random() < 0.5:
            changed[random.randrange(len(changed))] = random.randrange(256)
        else:
            at = 4 * random.randrange(len(changed) // 4)
            changed[at : at + 4] = random.choice(NUMBERS).to_bytes(4, "little")
    if random.random() < 0.05:
        return bytes(changed[: random.randrange(1, 32)]) + os.urandom(random.randrange(3))
    return bytes(changed)


def wild_message(random: Random) -> bytes:
    """A message that is JSON, or nearly."""
    if random.random() < 0.2:
        return random.randbytes(random.randrange(1, 60))
    fields = random.choices(WORDS, k=random.randrange(4))
    message: dict[str, Any] = {name: random.choice(VALUES) for name in fields}
    message["kind"] = random.choice((*WORDS, *VALUES))
    if random.random() < 0.5:
        message |= {"memory": random.choice(VALUES), "rank": random.choice(VALUES), "job": JOB}
    return json.dumps(message).encode()


class Meeting:
    """Processes of a job of three ranks that come to the socket of h1, which has two of them."""

    def __init__(self) -> None:
        self.door = ProcessDoor("h1")
        self.attendance: Attendance
        self.process: Process

    def begin(self, rank: int) -> None:
        """Let a rank attend the job anew, and share two memories."""
        self.door.socket.end(JOB)
        self.attendance = self.door.socket.attendance(JOB)
        self.process = Process(self.door.connect(lambda: None))
        self.process.say({"kind": "attend", "job": JOB, "rank": rank})
        for _ in range(2):
            self.process.share(BYTES)
        self.door.turn()
        self.attendance.start(HOSTS, rooted=True)
        assert [each["kind"] for each in self.process.hear()] == ["hello", "started"]

    def end(self) -> None:
        """Close the process's end."""
        self.door.disconnect(self.process.socket)
        self.door.turn()


@pytest.fixture
def meeting() -> Iterator[Meeting]:
    made = Meeting()
    yield made
    made.end()
    made.door.socket.close()


def check(request: Request) -> None:
    """A request that is taken can be carried out."""
    assert request.kind in ("sum", "copy", "barrier", "leave")
    if request.kind in ("barrier", "leave"):
        return
    tensor = request.tensor
    assert tensor is not None
    assert tensor.nbytes <= BYTES
    assert int(tensor.view(np.uint8).sum()) >= 0, "every byte can be read"
    assert request.target < ROOT + len(HOSTS)
    assert request.target != PARTS or not len(tensor) % len(HOSTS)
    if request.kind == "sum":
        assert request.reduction in REDUCTIONS[request.named_type]
        assert 0 <= request.magnitude <= 1 << 31
        assert request.fault is None or request.fault[0] in FAULTS
        assert request.fault is None or request.fault[1] < len(tensor)


@pytest.mark.slow
def test_sockets_survive_any_packets_and_go_on(meeting: Meeting, count: int) -> None:
    random = Random(count)
    meeting.begin(0)
    taken = refused = 0
    while count > 0:
        for _ in range(BATCH):
            packet = CALL.pack(*possible(random))
            if random.random() < 0.1:
                wild = random.random() < 0.2
                packet = wild_message(random) if wild else mutated(random, packet)
            try:
                meeting.process.socket.send(packet)
            except BlockingIOError:
                break
            count -= 1
        meeting.door.turn()
        heard = meeting.process.hear()
        if heard and heard[-1]["kind"] == "closed":
            # Whoever is refused hears why, and what came before is left with the job.
            assert heard[-2]["kind"] == "ended"
            assert len(heard[-2]["why"]) > 10
            refused += 1
            meeting.end()
            meeting.begin(random.randrange(2))
            continue
        requests = meeting.attendance.take()
        for _, request in requests:
            check(request)
        taken += len(requests)
        if any(request.kind == "leave" for _, request in requests):
            meeting.end()
            meeting.begin(0)
    assert taken > refused > 0


EXPECTED = (
    ExpectedCall(elements=5, scaled=True, code=EXPONENT_BIAS + 1),
    ExpectedCall(type="int32", elements=2 * LANES + 1),
    ExpectedCall(kind=BARRIER),
)
"""Calls of a script, each again and again."""


class Script:
    """A worker whose flow takes expected calls from a socket; its sums come back at once."""

    def __init__(self) -> None:
        plan, network = star_plan(1)
        self.process, self._agent = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.process.setblocking(False)
        self._agent.setblocking(False)
        self.memory = np.zeros(BYTES, np.uint8)
        self._mailbox = Mailbox(self._agent.fileno())
        self._mailbox.add(0, self.memory)
        self._server = Server(plan, 0, network)
        self._worker = Worker(plan, 0, network)
        self._sure: SureCalls
        self._flow = 0

    def expect(self, calls: Sequence[ExpectedCall]) -> None:
        """Let the flow take these calls next."""
        self._sure = SureCalls(self._mailbox, 1, calls, 0)
        self._worker.expect(self._sure)
        [self._flow] = self._worker.enter()

    @property
    def left(self) -> int:
        """Calls that the flow has not answered."""
        return self._sure.left

    def turn(self, now: float) -> bool:
        """Let the flow take a call and its results; return whether it took one."""
        called, output = flows.call(self._flow, now)
        for sent in output:
            for row in range(len(sent)):
                self._server.receive(at_server(sent[row : row + 1]), now)
        for results in self._server.take_output():
            for row in range(len(results)):
                flows.receive(self._flow, at_worker(results[row : row + 1]), now)
        return called

    def waiting(self) -> bytes:
        """Take the packet that the flow has left."""
        return self._agent.recv(1 << 10)

    def leave(self, now: float) -> tuple[int, bool]:
        """End the flow; return how many calls it has answered, and whether one is left over."""
        self._worker.leave(now)
        self._worker.expect(None)
        done, begun = self._worker.taken()
        if begun is not None:
            # Its result has come, with another exponent than expected.
            self._worker.result(begun[0])
        return len(done), begun is not None

    def close(self) -> None:
        """Close both ends."""
        self.process.close()
        self._agent.close()


@pytest.mark.slow
def test_flows_survive_any_packets_and_memory(count: int) -> None:
    """A packet that is not as expected is left whole, and what is expected is still taken."""
    random, generator = Random(count), np.random.default_rng(count)
    script = Script()
    taken = left = answered = over = 0
    now = 0.0
    while count > 0:
        script.expect(calls := random.choices(EXPECTED, k=16))
        goes_on = True
        while goes_on and (before := script.left):
            count -= 1
            now += 1e-6
            script.memory[:20].view(np.float32)[:] = 1
            packet = CALL.pack(*packet_of(calls[len(calls) - before], random))
            chance = random.random()
            if chance < 0.3:
                packet = mutated(random, packet)
            if chance > 0.7:
                # What a process has said of its values need not be true.
                script.memory[:64] = generator.integers(0, 256, 64, dtype=np.uint8)
            script.process.send(packet)
            if script.turn(now):
                expected = calls[len(calls) - before]
                assert is_as_expected(CallPacket(*CALL.unpack(packet)), expected)
                taken += 1
                goes_on = script.left < before
            else:
                left += 1
                assert script.waiting() == packet
                assert chance < 0.3 or chance > 0.7
        by_flow, is_over = script.leave(now)
        answered += by_flow
        over += is_over
        drain(script.process)
    assert taken == answered + over
    assert min(answered, over, left) > 0
    script.close()


def is_as_expected(packet: CallPacket, expected: ExpectedCall) -> bool:
    """Whether a packet is of the expected call: in what it says, and with memory for its values."""
    like = packet_of(expected, Random())
    same = packet._replace(number=0, magnitude=0, element=0, memory=0)
    usable = not packet.memory or packet.kind == BARRIER
    return usable and same == like._replace(number=0, magnitude=0)


def packet_of(expected: ExpectedCall, random: Random) -> CallPacket:
    """A packet that is as expected."""
    kind = [*TYPES].index(expected.type)
    values = (
        0,
        0,
        ALL,
        random.randrange(1 << 64),
        0,
        expected.elements,
        random.choice((0, 1, 99)),
        0,
    )
    return CallPacket(expected.kind, kind, *values)


def drain(process: socket.socket) -> None:
    """Take what the agent has said: ends of calls."""
    while True:
        try:
            assert len(process.recv(1 << 10)) == 16
        except BlockingIOError:
            return
