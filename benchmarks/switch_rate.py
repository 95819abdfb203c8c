"""Packets per second of one switch that runs hopsum.p4 on one core, over veth pairs.

Eight children on eight ports send the fragments of one job in lock step, 256 in flight; a ninth
port receives the sums. Senders and receiver share the other core. A packet counts when its
fragment's sum has been received, so lost packets do not count.
"""

from __future__ import annotations

import os
import select
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.veth import veth_pairs
from hopsum.collectives.choices import Engine
from hopsum.collectives.plan import JobPlan
from hopsum.controller.dataplane.driver import Driver, SwitchTarget
from hopsum.controller.dataplane.rules import rules_for
from hopsum.experiment.event_loop import run_async
from hopsum.experiment.pipelines import compile_pipeline, slots_of
from hopsum.host_agent.io.port import Frames, PacketPort
from hopsum.network.loaders import load_network
from hopsum.network.model import Network
from hopsum.planning.model.placement import place
from hopsum.planning.model.request import PlanRequest
from hopsum.planning.registry import plan_job
from hopsum.protocol.wire import Address, Header, Kind, Width, frame_template, frame_view

CHILDREN = 8
WINDOW = 256
BATCH = 64
CPU_SWITCH = 0
CPU_HOSTS = 1


@dataclass(frozen=True)
class RunningSwitch:
    """A switch's process and its P4Runtime address."""

    pid: int
    address: str


def free_ports(count: int) -> list[int]:
    """Return unused TCP ports of this machine."""
    with ExitStack() as stack:
        sockets = [
            stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)
        ]
        return [sock.getsockname()[1] for sock in sockets]


@contextmanager
def switch_process(
    engine: Engine, interfaces: list[str], log: Path, threads: int = 1, ring: int | None = None
) -> Iterator[RunningSwitch]:
    """Provide a switch with ports 1, 2, ... on the interfaces, on one core if it has one thread.

    `ring`: frames in a port's receive ring of p4switch, 0 for system calls; default: as it chooses.
    """
    ports = [f"-i{n}@{name}" for n, name in enumerate(interfaces, start=1)]
    grpc_port, thrift_port = free_ports(2)
    address = f"127.0.0.1:{grpc_port}"
    if engine is Engine.EMBEDDED:
        command = [str(Path(sys.executable).with_name("p4switch")), "run", "--no-p4", *ports]
        command += ["--device-id", "1", "--grpc-server-addr", address, "--cpu-port", "510"]
        command += [
            "--packet-threads",
            str(threads),
            *([] if ring is None else ["--receive-ring", str(ring)]),
        ]
    else:
        command = ["simple_switch_grpc", "--no-p4", "--device-id", "1"]
        command += ["--thrift-port", str(thrift_port)]
        command += [*ports, "--", "--grpc-server-addr", address, "--cpu-port", "510"]
    if shutil.which("taskset") and engine is Engine.EMBEDDED and threads == 1:
        command = ["taskset", "-c", str(CPU_SWITCH), *command]
    with log.open("w") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output)
    try:
        yield RunningSwitch(process.pid, address)
    finally:
        process.terminate()
        process.wait()


@dataclass(frozen=True)
class Load:
    """A switch that sums a job, and what its hosts send."""

    switch: RunningSwitch
    plan: JobPlan
    ports: dict[int, PacketPort]
    frames: dict[int, Frames]
    """A window of contributions for each child's port; senders set the fragments' numbers."""
    sink: PacketPort
    """Receives the sums."""
    hops: int


@contextmanager
def aggregating_switch(
    engine: Engine,
    lanes: int,
    folder: Path,
    window: int,
    threads: int = 1,
    ring: int | None = None,
    stem: str = "hsb",
    width: Width = Width.WIDTH_32,
) -> Iterator[Load]:
    """Provide a switch that runs hopsum.p4, with its rules and the sockets of its hosts.

    `threads` and `ring`: see `switch_process`. `width`: of the values in contributions.
    """
    network = load_network(f"star:{CHILDREN}")
    placement = place(network, CHILDREN)
    plan = plan_job(
        network,
        PlanRequest(1, 1, placement.workers, placement.servers, lanes=lanes, window=window),
    )
    pipeline = compile_pipeline(engine, lanes, max(slots_of(network), window))
    with (
        veth_pairs(stem, CHILDREN + 1) as pairs,
        switch_process(
            engine, [pair[0] for pair in pairs], folder / f"{stem}-{engine}.log", threads, ring
        ) as switch,
    ):

        async def program() -> None:
            target = SwitchTarget("s1", switch.address, 1)
            async with Driver([target], pipeline) as driver:
                await driver.apply(rules_for(network, [plan]), 60)

        run_async(program())
        ports = {n: PacketPort(pair[1]) for n, pair in enumerate(pairs, start=1)}
        sink = ports[network.port("s1", plan.trees[0].server)]
        hops = len(plan.trees[0].up[0])
        yield Load(switch, plan, ports, contributions(network, plan, width), sink, hops)
        for port in ports.values():
            port.close()


def measure(
    engine: Engine, lanes: int, width: Width, seconds: float, folder: Path
) -> dict[str, Any]:
    """Measure packets per second, of packets with values of a width in `lanes`."""
    window = WINDOW if engine is Engine.EMBEDDED else 32
    with aggregating_switch(engine, lanes, folder, window, width=width) as load:
        if engine is Engine.EMBEDDED:
            os.sched_setaffinity(0, {CPU_HOSTS})
        try:
            before = cpu_seconds(load.switch.pid)
            rate, elapsed = blast(load, seconds)
            busy = (cpu_seconds(load.switch.pid) - before) / elapsed
        finally:
            os.sched_setaffinity(0, range(os.cpu_count() or 1))
    return {
        "engine": engine.value,
        "lanes": lanes,
        "wire_bits": width.bits,
        "fan_in": CHILDREN,
        "packets_per_second": round(rate),
        "switch_cpu": round(busy, 2),
        "build": build_of(engine),
    }


def build_of(engine: Engine) -> str:
    """Return BMv2's version, and how it was built, as $BMV2_BUILD says; nothing of p4switch.

    With logging macros it takes four times as long, and nothing but its builder knows.
    """
    if engine is not Engine.BMV2:
        return ""
    printed = subprocess.run(
        ["simple_switch_grpc", "--version"], capture_output=True, text=True, check=True
    ).stdout
    return f"{printed.strip()}, {os.environ.get('BMV2_BUILD', 'flags unknown (BMV2_BUILD)')}"


def cpu_seconds(pid: int) -> float:
    """Return the CPU seconds of a process so far, of ended threads too, in nanoseconds' steps."""
    # The id of its CPU clock (clock_getcpuclockid(3), which Python lacks).
    return time.clock_gettime(~pid << 3 | 2)


def contributions(network: Network, plan: JobPlan, width: Width) -> dict[int, Frames]:
    """Return a window of frames of each worker, by the switch's port."""
    tree = plan.trees[0]
    server = network.hosts[tree.server]
    there = Address(server.mac_bytes, server.ip_bytes)
    frames: dict[int, Frames] = {}
    for worker, name in enumerate(plan.workers):
        host = network.hosts[name]
        header = Header(Kind.CONTRIBUTION, plan.job, 0, plan.epoch, 0, worker=worker, width=width)
        template = frame_template(
            Address(host.mac_bytes, host.ip_bytes), there, header, tree.up[worker], plan.lanes
        )
        rows = np.tile(template, (plan.window, 1))
        frame_view(rows, plan.lanes, len(tree.up[worker]))["lanes"] = worker + 1
        frames[network.port("s1", name)] = rows
    return frames


def send_fragments(load: Load, first: int, count: int) -> None:
    """Send each child's contributions to fragments from `first` on, within the window."""
    slot = first % load.plan.window
    numbers = np.arange(first, first + count, dtype=np.uint32)
    for port, rows in load.frames.items():
        batch = rows[slot : slot + count]
        frame_view(batch, load.plan.lanes, load.hops)["fragment"] = numbers
        load.ports[port].send(batch)


def blast(load: Load, seconds: float) -> tuple[float, float]:
    """Keep a window of fragments in flight; return contributions per second and the time."""
    window, sink = load.plan.window, load.sink
    batch_size = min(BATCH, window // 2)
    sent = summed = 0
    started = time.perf_counter()
    stop = started + seconds
    stalled = started
    while True:
        now = time.perf_counter()
        if now > stop:
            break
        if sent - summed + batch_size <= window:
            send_fragments(load, sent, batch_size)
            sent += batch_size
        received = sum(len(group) for group in sink.receive())
        summed += received
        if received:
            stalled = now
        elif now - stalled > 0.2:
            # Packets were lost: their fragments never complete. Continue with new ones.
            sent += window
            summed = sent
            stalled = now
        elif sent - summed + batch_size > window:
            select.select([sink], [], [], 0.05)
    elapsed = time.perf_counter() - started
    return CHILDREN * summed / elapsed, elapsed
