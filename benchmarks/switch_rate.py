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
from cli.experiment.description import Engine
from cli.experiment.event_loop import run_async
from cli.experiment.pipelines import compile_pipeline, slots_of
from collectives.plan import JobPlan
from controller.dataplane.driver import Driver, SwitchTarget
from controller.dataplane.rules import rules_for
from host_agent.io.port import Frames, PacketPort
from network.loaders import load_network
from network.model import Network
from planning.model.placement import place
from planning.model.request import PlanRequest
from planning.registry import make_plan
from protocol.wire import Address, Header, Kind, frame_template, frame_view

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
def switch_process(engine: Engine, interfaces: list[str], log: Path) -> Iterator[RunningSwitch]:
    """Provide a switch on one core with ports 1, 2, ... on the interfaces."""
    ports = [f"-i{n}@{name}" for n, name in enumerate(interfaces, start=1)]
    grpc_port, thrift_port = free_ports(2)
    address = f"127.0.0.1:{grpc_port}"
    if engine is Engine.EMBEDDED:
        command = [str(Path(sys.executable).with_name("p4switch")), "run", "--no-p4", *ports]
        command += ["--device-id", "1", "--grpc-server-addr", address, "--cpu-port", "510"]
    else:
        command = ["simple_switch_grpc", "--no-p4", "--device-id", "1"]
        command += ["--thrift-port", str(thrift_port)]
        command += [*ports, "--", "--grpc-server-addr", address, "--cpu-port", "510"]
    if shutil.which("taskset") and engine is Engine.EMBEDDED:
        command = ["taskset", "-c", str(CPU_SWITCH), *command]
    with log.open("w") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output)
    try:
        yield RunningSwitch(process.pid, address)
    finally:
        process.terminate()
        process.wait()


def measure(engine: Engine, lanes: int, seconds: float, folder: Path) -> dict[str, Any]:
    """Measure packets per second, with `lanes` values per packet."""
    network = load_network(f"star:{CHILDREN}")
    placement = place(network, CHILDREN)
    window = WINDOW if engine is Engine.EMBEDDED else 32
    plan = make_plan(
        network,
        PlanRequest(1, 1, placement.workers, placement.servers, lanes=lanes, window=window),
    )
    pipeline = compile_pipeline(engine, lanes, slots_of(network))
    with (
        veth_pairs("hsb", CHILDREN + 1) as pairs,
        switch_process(engine, [pair[0] for pair in pairs], folder / f"{engine}.log") as switch,
    ):

        async def program() -> None:
            target = SwitchTarget("s1", switch.address, 1)
            async with Driver([target], pipeline) as driver:
                await driver.apply(rules_for(network, [plan]), 60)

        run_async(program())
        if engine is Engine.EMBEDDED:
            os.sched_setaffinity(0, {CPU_HOSTS})
        try:
            ports = {n: PacketPort(pair[1]) for n, pair in enumerate(pairs, start=1)}
            before = cpu_seconds(switch.pid)
            rate, elapsed = blast(network, plan, ports, seconds)
            busy = (cpu_seconds(switch.pid) - before) / elapsed
        finally:
            os.sched_setaffinity(0, range(os.cpu_count() or 1))
        for port in ports.values():
            port.close()
    return {
        "engine": engine.value,
        "lanes": lanes,
        "fan_in": CHILDREN,
        "packets_per_second": round(rate),
        "switch_cpu": round(busy, 2),
    }


def cpu_seconds(pid: int) -> float:
    """Return the CPU seconds of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def blast(
    network: Network, plan: JobPlan, ports: dict[int, PacketPort], seconds: float
) -> tuple[float, float]:
    """Keep a window of fragments in flight; return contributions per second and the time."""
    tree = plan.trees[0]
    server = network.hosts[tree.server]
    there = Address(server.mac_bytes, server.ip_bytes)
    window = plan.window
    frames: dict[int, Frames] = {}
    for worker, name in enumerate(plan.workers):
        host = network.hosts[name]
        header = Header(Kind.CONTRIBUTION, plan.job, 0, plan.epoch, 0, worker=worker)
        template = frame_template(
            Address(host.mac_bytes, host.ip_bytes), there, header, tree.up[worker], plan.lanes
        )
        rows = np.tile(template, (window, 1))
        frame_view(rows, plan.lanes, len(tree.up[worker]))["lanes"] = worker + 1
        frames[network.port("s1", name)] = rows
    sink = ports[network.port("s1", tree.server)]
    hops = len(tree.up[0])
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
            slot = sent % window
            numbers = np.arange(sent, sent + batch_size, dtype=np.uint32)
            for port, rows in frames.items():
                batch = rows[slot : slot + batch_size]
                frame_view(batch, plan.lanes, hops)["fragment"] = numbers
                ports[port].send(batch)
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
