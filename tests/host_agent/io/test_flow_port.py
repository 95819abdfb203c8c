"""A port that processes frames of flows by itself, over a pair of sockets instead of interfaces."""

from __future__ import annotations

import ctypes
import os
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from math import inf

import numpy as np
import pytest

from hopsum.host_agent.codec import JOB_START
from hopsum.host_agent.datapath.library import ROOM, Flow, OutputRows
from hopsum.host_agent.io import port as port_module
from hopsum.host_agent.io.port import RING_FRAMES, FlowPort, Frames, PacketPort, RunOutcome
from hopsum.simulation.flows import CALL, RECEIVE, TICK
from tests.support.machine import PATIENCE

KEY = 0x000107
LENGTH = 100


def frame(number: int, key: int = KEY, length: int = LENGTH) -> bytes:
    """A frame of a flow, which ends with its number."""
    return (
        bytes(JOB_START) + key.to_bytes(3, "big") + bytes(length - JOB_START - 4) + bytes([number])
    )


class Echo:
    """A flow that sends back what it takes."""

    def __init__(self, *, last: int = -1, most_output: int = 1) -> None:
        """`last`: the number of the frame that finishes something."""
        self.last = last
        self.taken: list[int] = []
        self.expired: list[float] = []
        self.postpone: Callable[[float], float] | None = None
        self._receive = RECEIVE(self.receive)
        self._tick = TICK(self.tick)
        self.flow = Flow(
            receive=ctypes.cast(self._receive, ctypes.c_void_p).value,
            tick=ctypes.cast(self._tick, ctypes.c_void_p).value,
            key=KEY,
            most_output=most_output,
            due=inf,
        )
        self.address = ctypes.addressof(self.flow)

    def receive(
        self, address: int, frames: int, count: int, length: int, stride: int, now: float, to: int
    ) -> int:
        assert address == self.address
        output = OutputRows.from_address(to)
        for row in range(count):
            if output.room - output.made < self.flow.most_output:
                return row
            made = ctypes.string_at(frames + row * stride, length)
            self.taken.append(made[-1])
            send(output, made)
            self.flow.finished |= made[-1] == self.last
        return count

    def tick(self, address: int, now: float, to: int) -> None:
        self.expired.append(now)
        self.flow.due = inf if self.postpone is None else self.postpone(now)
        self.flow.finished |= self.flow.due == inf


def send(output: OutputRows, made: bytes) -> None:
    """Add a frame to an output."""
    ctypes.memmove(output.frames + output.made * output.stride, made, len(made))
    ctypes.c_uint32.from_address(output.lengths + 4 * output.made).value = len(made)
    output.made += 1


@pytest.fixture
def pair(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[PacketPort, socket.socket]]:
    """A port, and the other end of its link."""
    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    far.settimeout(PATIENCE)
    monkeypatch.setattr(port_module, "open_packet_socket", lambda *_: near)
    port = PacketPort("any")
    yield port, far
    port.close()
    far.close()


@pytest.fixture
def others() -> Iterator[tuple[int, int]]:
    """A pipe, as the other descriptors of a loop."""
    reading, writing = os.pipe()
    yield reading, writing
    os.close(reading)
    os.close(writing)


def numbers(frames: list[Frames]) -> list[int]:
    return [int(each[-1]) for batch in frames for each in batch]


def run(port: PacketPort, *flows: Echo, until: float | None = None, others: int = -1) -> RunOutcome:
    until = time.monotonic() + PATIENCE if until is None else until
    return port.run([each.address for each in flows], until, others, 0.0)


def test_frames_of_a_flow_are_answered_until_something_is_finished(
    pair: tuple[PacketPort, socket.socket],
) -> None:
    port, far = pair
    flow = Echo(last=3)
    for number in range(1, 4):
        far.send(frame(number))
    ran = run(port, flow)
    assert (ran.received, ran.unsent, ran.others) == ([], [], False)
    assert [far.recv(2048) for _ in range(3)] == [frame(number) for number in range(1, 4)]
    assert flow.taken == [1, 2, 3]
    assert flow.flow.sent_bytes == 3 * LENGTH
    assert isinstance(port, FlowPort)


def test_what_no_flow_takes_is_left_with_all_that_came_after_it(
    pair: tuple[PacketPort, socket.socket],
) -> None:
    port, far = pair
    flow = Echo()
    sent = [frame(1), frame(2), frame(3, key=KEY + 1), frame(4, length=LENGTH + 8), frame(5)]
    for each in sent:
        far.send(each)
    ran = run(port, flow)
    assert flow.taken == [1, 2]
    assert [row.tobytes() for batch in ran.received for row in batch] == sent[2:]
    assert [far.recv(2048)[-1] for _ in range(2)] == [1, 2]


@pytest.mark.parametrize("stranger", [frame(1, key=0x000207), frame(1, key=0x000108), b"short"])
def test_frames_of_other_jobs_and_trees_are_left(
    pair: tuple[PacketPort, socket.socket], stranger: bytes
) -> None:
    port, far = pair
    flow = Echo()
    far.send(stranger)
    ran = run(port, flow)
    assert [row.tobytes() for batch in ran.received for row in batch] == [stranger]
    assert not flow.taken


def test_it_returns_in_time(pair: tuple[PacketPort, socket.socket]) -> None:
    port, _ = pair
    flow = Echo()
    run(port, flow, until=time.monotonic() + 0.01)
    assert not flow.expired, "nothing of the flow was due"
    flow.flow.due = due = time.monotonic() + 0.01
    run(port, flow)
    assert len(flow.expired) == 1
    assert flow.expired[0] >= due


def test_a_flow_may_put_its_timer_off(pair: tuple[PacketPort, socket.socket]) -> None:
    port, _ = pair
    flow = Echo()
    end = time.monotonic() + 0.03
    flow.flow.due = 0.0
    flow.postpone = lambda now: min(now + 0.01, end) if now < end else inf
    run(port, flow)
    assert len(flow.expired) > 1
    assert time.monotonic() >= end


def test_another_descriptor_ends_it(
    pair: tuple[PacketPort, socket.socket], others: tuple[int, int]
) -> None:
    port, far = pair
    flow = Echo()
    os.write(others[1], b"!")
    far.send(frame(1))
    ran = run(port, flow, others=others[0])
    assert ran.others
    assert flow.taken == [1], "frames that are there are taken first"


class Caller(Echo):
    """A flow that takes bytes from a pipe, and sends a frame for each, of the byte's number."""

    def __init__(self, pipe: int, *, last: int = -1) -> None:
        super().__init__(last=last)
        os.set_blocking(pipe, False)
        self._pipe = pipe
        self.refused = False
        self._call = CALL(self.call)
        self.flow.call = ctypes.cast(self._call, ctypes.c_void_p).value

    def call(self, address: int, now: float, to: int) -> int:
        assert address == self.address
        number = b"" if self.refused else os.read(self._pipe, 1)
        if not number:
            return 0
        send(OutputRows.from_address(to), frame(number[0]))
        self.flow.finished = number[0] == self.last
        return 1


def test_a_call_that_a_flow_takes_does_not_end_it(
    pair: tuple[PacketPort, socket.socket], others: tuple[int, int]
) -> None:
    port, far = pair
    flow = Caller(others[0], last=3)
    os.write(others[1], bytes([1, 2, 3]))
    ran = run(port, flow, others=others[0])
    assert (ran.received, ran.unsent, ran.others) == ([], [], False)
    assert [far.recv(2048)[-1] for _ in range(3)] == [1, 2, 3]
    assert flow.flow.sent_bytes == 3 * LENGTH


def test_a_call_that_no_flow_takes_ends_it(
    pair: tuple[PacketPort, socket.socket], others: tuple[int, int]
) -> None:
    port, _ = pair
    flow = Caller(others[0])
    flow.refused = True
    os.write(others[1], b"!")
    assert run(port, Echo(), flow, others=others[0]).others
    assert not flow.flow.sent_bytes


def test_frames_for_whose_answers_there_is_no_room_wait_for_the_others_to_leave(
    pair: tuple[PacketPort, socket.socket],
) -> None:
    port, far = pair
    flow = Echo(last=9, most_output=ROOM - 2)
    for number in range(10):
        far.send(frame(number))
    assert not run(port, flow).received
    assert [far.recv(2048)[-1] for _ in range(10)] == flow.taken == [*range(10)]


def test_frames_that_a_full_queue_rejects_are_handed_back_in_order(
    pair: tuple[PacketPort, socket.socket],
) -> None:
    port, far = pair
    with socket.socket(fileno=os.dup(port.fileno())) as own:
        own.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    flow, sent = Echo(), 0
    ran = RunOutcome([], [], False)
    while not ran.unsent:
        try:
            far.send(frame(sent % 256), socket.MSG_DONTWAIT)
            sent += 1
        except BlockingIOError:
            pass
        ran = run(port, flow, until=0.0)
    assert not ran.received
    arrived = []
    far.setblocking(False)
    while len(arrived) + len(numbers(ran.unsent)) < len(flow.taken):
        arrived.append(far.recv(2048)[-1])
    assert arrived + numbers(ran.unsent) == flow.taken == list(range(sent))


def test_an_error_of_the_socket_is_raised(pair: tuple[PacketPort, socket.socket]) -> None:
    port, far = pair
    far.send(frame(1))
    far.close()
    with pytest.raises(OSError, match="moving frames"):
        run(port, Echo())


@pytest.mark.parametrize("of_flow", [False, True])
@pytest.mark.parametrize(
    ("interval", "frames", "deferrable", "milliseconds"),
    [
        # Of a steady stream: as many as may wait, at the rate of the last interval.
        (0.002, 4, 0, 1),
        (0.002, 4, 1, 1),
        (0.002, 4, 10, 5),
        (0.002, 4, 100, 10),
        # Slower than STEADY_FRAMES a millisecond.
        (0.008, 4, 0, 0),
        (0.008, 4, 3, 6),
        # One frame at a time, or after a pause: nothing says that more will come.
        (0.002, 1, 10, 0),
        (0.001, 2, 0, 0),
        (0.05, 40, 10, 0),
    ],
)
def test_frames_of_a_stream_are_taken_in_together(
    pair: tuple[PacketPort, socket.socket],
    of_flow: bool,
    interval: float,
    frames: int,
    deferrable: int,
    milliseconds: int,
) -> None:
    port, _ = pair
    flow = Echo()
    flow.flow.deferrable = deferrable if of_flow else 1000
    port.run([flow.address], 0.0, -1, 1000.0 if of_flow else deferrable)
    state = port._run  # noqa: SLF001
    assert state is not None and port._library is not None  # noqa: SLF001
    addresses = (ctypes.c_void_p * 1)(flow.address)
    state.flows, state.taken_at, state.received = ctypes.addressof(addresses), 0.0, frames
    port._library.packet_moderate(ctypes.addressof(state), interval)  # noqa: SLF001
    assert state.taken_at == interval
    assert 1000 * state.pause == pytest.approx(milliseconds)


def test_flows_do_not_change_what_others_receive(pair: tuple[PacketPort, socket.socket]) -> None:
    """The rows of `run` are those of `receive`: what it returned before stays as it was."""
    port, far = pair
    far.send(frame(1))
    [before] = port.receive()
    far.send(frame(2))
    run(port, Echo(last=2))
    np.testing.assert_array_equal(before[0], np.frombuffer(frame(1), np.uint8))


@pytest.fixture
def link(veth: tuple[str, str]) -> Iterator[tuple[PacketPort, socket.socket]]:
    """A port with a receive ring, and the other end of its link."""
    near, far = veth
    port = PacketPort(near)
    assert port._ring is not None  # noqa: SLF001
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3)) as other:
        other.bind((far, 3))
        other.settimeout(PATIENCE)
        yield port, other
    port.close()


def test_frames_go_round_in_a_ring(link: tuple[PacketPort, socket.socket]) -> None:
    """A batch ends where the ring does; what is left of one is copied before its slots are."""
    port, far = link
    stranger = frame(255, key=KEY + 1)
    sent = expected = 0
    for burst in range(3 * RING_FRAMES // 100):
        flow = Echo(last=99)
        for number in range(100):
            far.send(frame(number))
            if number == 50 and burst % 3 == 0:
                far.send(stranger)
        while not flow.flow.finished:
            ran = run(port, flow)
            for row in (row for batch in ran.received for row in batch):
                if row[-1] == 255:
                    assert row.tobytes() == stranger
                    sent += 1
                else:
                    flow.taken.append(int(row[-1]))
                    flow.flow.finished |= row[-1] == 99
            assert not ran.unsent
        assert flow.taken == list(range(100))
        expected += burst % 3 == 0
    assert sent == expected


def test_a_frame_too_long_for_a_slot_is_nobodys(
    link: tuple[PacketPort, socket.socket], veth: tuple[str, str]
) -> None:
    port, far = link
    for name in veth:
        subprocess.run(["ip", "link", "set", name, "mtu", "6000"], check=True)
    flow = Echo(last=2)
    for each in (frame(1), frame(7, length=5000), frame(2)):
        far.send(each)
    ran = run(port, flow)
    [empty, second] = ran.received
    assert empty.shape == (1, 0)
    assert numbers([second]) == [2]
    assert flow.taken == [1]
    far.send(frame(2))
    assert run(port, flow).received == []
    assert flow.taken == [1, 2]


def test_a_link_that_is_down_is_no_error(
    link: tuple[PacketPort, socket.socket], veth: tuple[str, str]
) -> None:
    """The socket is readable, for the error, until that is taken."""
    port, _ = link
    subprocess.run(["ip", "link", "set", veth[0], "down"], check=True)
    assert run(port, Echo(), until=time.monotonic() + 0.01).received == []
    assert not port._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)  # noqa: SLF001
