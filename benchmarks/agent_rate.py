"""Fragments per second that one core encodes, sends, receives and decodes.

An unmodified worker sums a long tensor. Its contributions leave through one end of a veth pair and
arrive at the other, where each is converted into its result in place (other kind, no hop entry) and
returned: so every fragment is encoded, sent, received and decoded once, by the worker's own state
machine and sockets, in one process on one core.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.veth import veth_pairs
from hopsum.collectives.plan import DataType, JobPlan, Results, TreePlan
from hopsum.host_agent.io.port import FramePort, Frames, PacketPort
from hopsum.host_agent.stream import WorkerOptions
from hopsum.host_agent.worker import Worker
from hopsum.host_agent.workload import WorkloadSpec, random_tensor
from hopsum.network.model import Host, Link, Network
from hopsum.protocol.wire import (
    HOP_BYTES,
    UDP_PORT,
    Address,
    Header,
    Hop,
    Kind,
    Reduction,
    frame_bytes,
    frame_template,
)

LANES = 256
WINDOW = 256
STACK_END = frame_bytes(0, 1)


def wire_network() -> Network:
    """Return a network of two hosts on one wire."""
    hosts = {
        name: Host(name, f"10.0.0.{n}", f"02:00:00:00:00:0{n}")
        for n, name in enumerate(("h1", "ps"), start=1)
    }
    return Network("wire", hosts, {}, (Link("h1", "ps", 0, 0),))


def lone_plan() -> JobPlan:
    """Return a job of one worker, on the link of its server."""
    tree = TreePlan(0, "ps", {"h1": "ps"}, {}, ((Hop(),),), ((),), ((0,),))
    return JobPlan(1, 1, ("h1",), (tree,), LANES, WINDOW, Results.UNICAST)


def result_headers(network: Network, plan: JobPlan) -> dict[int, Frames]:
    """Return the bytes before the lanes of results to the worker, by the length of the frame.

    A prologue's result has no lanes.
    """
    server, worker = (
        Address(network.hosts[n].mac_bytes, network.hosts[n].ip_bytes) for n in ("ps", "h1")
    )
    headers = {}
    for lanes, reduction in ((0, Reduction.NONE), (plan.lanes, plan.reduction)):
        header = Header(Kind.RESULT, plan.job, 0, plan.epoch, 0, weight=1, reduction=reduction)
        frame = frame_template(server, worker, header, (), lanes)
        headers[frame_bytes(lanes, 0)] = frame[: STACK_END - HOP_BYTES]
    return headers


def measure(
    dtype: DataType, seconds: float, open_port: Callable[..., FramePort], label: str
) -> dict[str, Any]:
    """Measure a worker's fragments per second with one kind of ports."""
    network, plan = wire_network(), lone_plan()
    headers = result_headers(network, plan)
    worker = Worker(plan, 0, network, WorkerOptions(deadline=1e6, initial_timeout=60.0))
    elements = 64 * WINDOW * LANES * 32 // dtype.bits
    tensor = random_tensor(WorkloadSpec("random", 1, elements, 1, dtype, 1), 0, 0)
    out = np.empty_like(tensor)
    with veth_pairs("hsa", 1) as [(a, b)]:
        sender, receiver = open_port(a), open_port(b)
        os.sched_setaffinity(0, {0})
        try:
            started = time.perf_counter()
            fragments = 0
            while time.perf_counter() - started < seconds:
                fragments += sum_through(
                    worker, tensor, out, sender, receiver, headers, started + seconds
                )
            elapsed = time.perf_counter() - started
        finally:
            os.sched_setaffinity(0, range(os.cpu_count() or 1))
            sender.close()
            receiver.close()
    return {
        "path": label,
        "dtype": dtype.value,
        "lanes": LANES,
        "fragments_per_second": round(fragments / elapsed),
    }


def sum_through(
    worker: Worker,
    tensor: Any,
    out: Any,
    sender: FramePort,
    receiver: FramePort,
    headers: dict[int, Frames],
    stop: float,
) -> int:
    """Sum the tensor (of one worker: a copy) over the wire; return the fragments done by `stop`."""
    before = worker.statistics.accepted
    call = worker.submit(tensor, 0.0, out=out)
    combined_at, fragment_at = slice(44, 46), slice(58, 62)
    while not worker.done(call) and time.perf_counter() < stop:
        for frames in worker.take_output():
            sent = 0
            while sent < len(frames):
                sent += sender.send(frames[sent:])
        for frames in receiver.receive():
            results = frames if frames.flags.writeable else frames.copy()
            results = results[:, HOP_BYTES:]
            kept = frames[:, combined_at].copy(), frames[:, fragment_at].copy()
            start = headers[results.shape[1]]
            results[:, : len(start)] = start
            results[:, combined_at], results[:, fragment_at] = kept
            worker.receive(results, 0.0)
    if worker.done(call):
        worker.result(call)
        if tensor.dtype in (np.int32, np.int8) and not np.array_equal(tensor, out):
            raise RuntimeError("the result differs from the tensor that was sent")
    return worker.statistics.accepted - before


def fast_port(interface: str) -> FramePort:
    """Return the fast path's port."""
    return PacketPort(interface, udp_port=UDP_PORT)


def scapy_port(interface: str) -> FramePort:
    """Return the Scapy path's port."""
    from hopsum.host_agent.io.scapy_io import ScapyPort

    return ScapyPort(interface)
