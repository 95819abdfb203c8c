"""The loop around agents, over in-process links and over real interfaces, fast and by Scapy."""

from __future__ import annotations

import os
import select
import threading
import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from collectives.plan import JobPlan
from host_agent.failure import JobFailed
from host_agent.io.loop import (
    DEEP_FRAMES,
    DEEP_SECONDS,
    STEADY_FRAMES,
    Loop,
    run_server,
    run_worker,
)
from host_agent.io.port import FramePort, Frames, MemoryPort, PacketPort
from host_agent.io.scapy_io import ScapyPort
from host_agent.server import Server
from host_agent.stream import WorkerOptions
from host_agent.worker import Worker
from network.model import Network
from p4switch.packet_io.sockets import InterfaceError
from protocol.wire import Hop
from tests.support.machine import PATIENCE
from tests.support.protocol_world import star_plan


def direct_plan() -> tuple[JobPlan, Network]:
    """One worker whose link ends at the server: no switch between them, so no hops but one."""
    plan, network = star_plan(1)
    tree = replace(plan.trees[0], up=((Hop(),),), down=((),))
    return replace(plan, trees=(tree,)), network


class FullPort(MemoryPort):
    """Takes three frames at a time."""

    def send(self, frames: Frames) -> int:
        return super().send(frames[:3]) if len(frames) else 0


@pytest.mark.parametrize("kind", [MemoryPort, FullPort])
def test_worker_and_server_meet_over_a_link(kind: type[MemoryPort]) -> None:
    plan, network = direct_plan()
    near, far = kind.pair()
    worker, server = Worker(plan, 0, network), Server(plan, 0, network)
    loops = [Loop(near, [worker]), Loop(far, [server])]
    tensor = np.arange(1000, dtype=np.int32)
    call = worker.submit(tensor, time.monotonic())
    for _ in range(200):
        for loop in loops:
            loop.turn(0.0)
    total = worker.result(call)
    assert total is not None
    np.testing.assert_array_equal(total, tensor)
    near.close()
    far.close()


def test_what_is_due_wakes_the_loop() -> None:
    plan, network = direct_plan()
    near, far = MemoryPort.pair()
    clock = iter(np.arange(0.0, 100.0, 0.004).tolist())
    worker = Worker(plan, 0, network, WorkerOptions(initial_timeout=0.01, deadline=0.1))
    with pytest.raises(JobFailed, match="no result for"):
        run_worker(worker, near, [np.ones(3, dtype=np.int32)], clock=lambda: next(clock))
    assert worker.statistics.retransmissions > 1
    assert len(far.receive()) == 1 + worker.statistics.retransmissions
    near.close()
    far.close()


class Streaming:
    """A machine with a steady stream of frames and a fixed number of answers outstanding."""

    deadline = None

    def __init__(self, in_flight: int) -> None:
        self.in_flight = in_flight

    def receive(self, frames: Frames, now: float) -> None:
        """Nothing comes of them."""

    def tick(self, now: float) -> None:
        """Nothing is due."""

    def take_output(self) -> list[Frames]:
        return []


@pytest.mark.parametrize(
    ("in_flight", "milliseconds"),
    [(0, 1), (DEEP_FRAMES - 1, 1), (DEEP_FRAMES, round(1000 * DEEP_SECONDS))],
)
def test_a_deep_stream_is_taken_in_more_rarely(in_flight: int, milliseconds: int) -> None:
    near, far = MemoryPort.pair()
    loop = Loop(near, [Streaming(in_flight)], clock=lambda: 0.0)
    waits: list[int] = []

    class Pause:
        def poll(self, wait: int) -> None:
            waits.append(wait)

    loop._pause = Pause()  # type: ignore[assignment]
    for _ in range(3):  # two batches, one soon after the other, make a steady stream
        far.send(np.zeros((STEADY_FRAMES, 100), dtype=np.uint8))
        loop.turn()
    assert waits == [milliseconds]
    near.close()
    far.close()


def test_a_readable_descriptor_ends_the_server() -> None:
    plan, network = direct_plan()
    near, far = MemoryPort.pair()
    read, write = os.pipe()
    os.close(write)
    run_server(Server(plan, 0, network), far, read)
    os.close(read)
    near.close()
    far.close()


@pytest.mark.slow
@pytest.mark.parametrize("open_near", [ScapyPort, PacketPort])
@pytest.mark.parametrize("open_far", [ScapyPort, PacketPort])
def test_an_all_reduce_over_interfaces(
    veth: tuple[str, str],
    open_near: Callable[[str], FramePort],
    open_far: Callable[[str], FramePort],
) -> None:
    plan, network = direct_plan()
    near, far = open_near(veth[0]), open_far(veth[1])
    read, write = os.pipe()
    server = Server(plan, 0, network)
    thread = threading.Thread(target=run_server, args=(server, far, read))
    thread.start()
    try:
        tensors = [np.arange(300, dtype=np.int32), np.linspace(-1, 1, 100, dtype=np.float32)]
        whole, real = run_worker(Worker(plan, 0, network), near, tensors)
    finally:
        os.close(write)
        thread.join()
        os.close(read)
        near.close()
        far.close()
    np.testing.assert_array_equal(whole, tensors[0])
    np.testing.assert_allclose(real, tensors[1], atol=1e-6)
    assert server.statistics.results == 10 + 1 + 4


@pytest.mark.parametrize("open_port", [ScapyPort, PacketPort])
def test_an_interface_that_is_not_there(open_port: Callable[[str], FramePort]) -> None:
    with pytest.raises(InterfaceError, match="nowhere7"):
        open_port("nowhere7")


def test_scapy_leaves_other_frames_out(veth: tuple[str, str]) -> None:
    plan, network = direct_plan()
    worker = Worker(plan, 0, network)
    worker.submit(np.ones(3, dtype=np.int32), 0.0)
    [ours] = worker.take_output()
    near, far = ScapyPort(veth[0]), PacketPort(veth[1])
    far.send(np.full((1, 60), 0xFF, dtype=np.uint8))
    far.send(ours)
    got: list[Frames] = []
    while not got:
        select.select([near], [], [], PATIENCE)
        got = near.receive()
    assert [frames.tobytes() for frames in got] == [ours.tobytes()]
    near.close()
    far.close()
