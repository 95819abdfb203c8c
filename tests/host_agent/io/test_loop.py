"""The loop around agents, over in-process links and over real interfaces, fast and by Scapy."""

from __future__ import annotations

import os
import select
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import replace

import numpy as np
import pytest

from hopsum.collectives.plan import JobPlan
from hopsum.host_agent.failure import JobFailed
from hopsum.host_agent.io.loop import Loop, Machine
from hopsum.host_agent.io.port import FramePort, Frames, PacketPort
from hopsum.host_agent.io.scapy_io import ScapyPort
from hopsum.host_agent.segment import Tensor
from hopsum.host_agent.server import Server
from hopsum.host_agent.stream import WorkerOptions
from hopsum.host_agent.worker import Worker
from hopsum.network.model import Network
from hopsum.protocol.wire import Hop
from p4switch.packet_io.sockets import InterfaceError
from tests.support.machine import PATIENCE
from tests.support.memory_port import MemoryPort
from tests.support.protocol_world import star_plan


def direct_plan() -> tuple[JobPlan, Network]:
    """One worker whose link ends at the server: no switch between them, so no hops but one."""
    plan, network = star_plan(1)
    tree = replace(plan.trees[0], up=((Hop(),),), down=((),))
    return replace(plan, trees=(tree,)), network


def run_worker(
    worker: Worker,
    port: FramePort,
    tensors: Iterable[Tensor],
    *,
    clock: Callable[[], float] = time.monotonic,
) -> list[Tensor]:
    """Sum tensors one after the other; raises JobFailed when the worker gives up."""
    loop = Loop(port, [worker], clock=clock)
    sums = []
    for tensor in tensors:
        call = worker.submit(tensor, clock())
        while (total := worker.result(call)) is None:
            loop.turn()
        sums.append(total)
    loop.flush()
    return sums


def run_server(server: Machine, port: FramePort, stop: int) -> None:
    """Serve until the descriptor `stop` becomes readable (or is closed at its other end)."""
    loop = Loop(port, [server], watch=[stop])
    while stop not in loop.turn():
        pass
    loop.flush()


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


def test_timers_wake_the_loop() -> None:
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
def test_a_missing_interface_is_named(open_port: Callable[[str], FramePort]) -> None:
    with pytest.raises(InterfaceError, match="nowhere7"):
        open_port("nowhere7")


@pytest.mark.slow
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
