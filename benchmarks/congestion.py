"""How concurrent jobs and TCP connections share a link: the throughput of each.

In virtual time, and in Mininet with real switches, agents and sockets.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

import numpy as np

from benchmarks.faults import Processes, processes, wait
from benchmarks.report import Rows
from hopsum.cli.job_commands import make_submission
from hopsum.collectives.choices import Collective
from hopsum.collectives.execution import Execution
from hopsum.collectives.plan import DataType
from hopsum.collectives.schedule import Ranges, Schedule, make_step
from hopsum.collectives.workload import RANDOM
from hopsum.experiment.pipelines import PROGRAM
from hopsum.host_agent.congestion import SEGMENT_FRAME_BYTES
from hopsum.host_agent.node.work import Work
from hopsum.host_agent.options import WorkerOptions
from hopsum.host_agent.task import Task
from hopsum.host_agent.workload import WorkloadSpec
from hopsum.network.builder import NetworkBuilder
from hopsum.network.loaders import save_network
from hopsum.network.model import Network
from hopsum.planning.model.allocation import Allocator
from hopsum.planning.model.request import PlanRequest
from hopsum.planning.registry import plan_job
from hopsum.protocol.wire import Address, frame_bytes, is_hopsum
from hopsum.simulation.tcp import ECN_CAPABLE, StreamMember, receive_buffer
from hopsum.simulation.world import Agent, Frames
from hopsum.timing.tcp_segments import SEGMENT_BYTES
from p4switch.targets.v1model.engine import Engine
from tests.support.engines import engine_maker
from tests.support.simulated_jobs import Simulation

RATE = 25e6
"""Rate of the shared link, bit/s."""
FASTER = 4.0
"""Rate of hosts' links as a multiple of that, where a link between switches is shared."""
LATENCY = 1e-4
LANES = 256
WINDOW = 256
START, STOP = 1.0, 4.0
"""Bytes count from the first to the second of these times, in seconds."""
FIRST_PORT = 0x5000
EMULATED_RATE = 4e6
"""Rate of the shared link in Mininet: low enough that two cores are not saturated."""
ELEMENTS, ROUNDS = 30_000, 100_000
"""Tensors of a job in Mininet; more than it has time for."""
SECONDS = 30.0
SETTLE = 3.0
"""Seconds after the first sums and bytes in Mininet, before bytes count."""
_JOB = slice(46, 48)


@dataclass(frozen=True)
class Case:
    """`jobs`: workers and server of each; `connections`: source and sink of each.

    `link`: the direction that they share.
    """

    name: str
    network: Network
    jobs: tuple[tuple[tuple[str, ...], str], ...]
    connections: tuple[tuple[str, str], ...]
    link: tuple[str, str]


def between_switches(jobs: int, connections: int, rate: float = RATE) -> Case:
    """Return jobs and connections of different hosts over the link between two switches."""
    builder = NetworkBuilder("two switches", FASTER * rate, LATENCY)
    for switch in ("left", "right"):
        builder.add_switch(switch)
    builder.link("left", "right", rate)

    def host(name: str, switch: str) -> str:
        builder.link(builder.add_host(name), switch)
        return name

    plans = tuple(
        ((host(f"a{j}", "left"), host(f"b{j}", "left")), host(f"s{j}", "right"))
        for j in range(jobs)
    )
    pairs = tuple((host(f"c{i}", "left"), host(f"d{i}", "right")) for i in range(connections))
    return Case("between switches", builder.build(), plans, pairs, ("left", "right"))


def of_a_host(jobs: int, connections: int) -> Case:
    """Return jobs of the same workers, and connections from one of them over its link."""
    builder = NetworkBuilder("star", RATE, LATENCY)
    builder.add_switch("middle")
    servers = [f"s{j}" for j in range(jobs)]
    for name in ("a", "b", *servers, "d"):
        builder.link(builder.add_host(name), "middle")
    plans = tuple((("a", "b"), server) for server in servers)
    return Case("of a host", builder.build(), plans, (("a", "d"),) * connections, ("a", "middle"))


CASES: tuple[tuple[Callable[[int, int], Case], int, int], ...] = (
    (between_switches, 2, 0),
    (between_switches, 1, 1),
    (between_switches, 2, 1),
    (of_a_host, 2, 0),
    (of_a_host, 2, 1),
)

EMULATED_CASES = ((2, 0), (1, 1), (2, 1))
"""Jobs and connections between switches."""

_SINK = """
import pathlib, socket, sys
listening = socket.create_server(("", int(sys.argv[1])))
partial = pathlib.Path(sys.argv[2] + ".partial")

def note(count):
    partial.write_text(str(count))
    partial.rename(sys.argv[2])

count = 0
note(count)
taken = listening.accept()[0]
while data := taken.recv(1 << 16):
    count += len(data)
    note(count)
"""
"""Accepts one connection, and keeps in a file how many bytes came; the file is there first."""
_SOURCE = """
import socket, sys
made = socket.create_connection((sys.argv[1], int(sys.argv[2])))
while True:
    made.sendall(bytes(1 << 14))
"""


@cache
def _make_engine() -> Callable[[], Engine]:
    return engine_maker(PROGRAM, defines={"LANES": str(LANES)})


class Together:
    """Agents of one host."""

    def __init__(self, *agents: Agent) -> None:
        self._agents = agents

    def receive(self, frames: Frames, now: float) -> None:
        """See `Agent`."""
        for agent in self._agents:
            agent.receive(frames, now)

    def tick(self, now: float) -> None:
        """See `Agent`."""
        for agent in self._agents:
            agent.tick(now)

    def take_output(self) -> list[Frames]:
        """See `Agent`."""
        return [frames for agent in self._agents for frames in agent.take_output()]

    @property
    def deadline(self) -> float | None:
        """See `Agent`."""
        times = [each for agent in self._agents if (each := agent.deadline) is not None]
        return min(times, default=None)


class Meter:
    """An `Observer` of bytes in one direction of a link from `START` to `stop`, by flow."""

    def __init__(self, ends: tuple[str, str], stop: float) -> None:
        self.bytes: Counter[str] = Counter()
        self._ends = ends
        self._stop = stop

    def left(self, time: float, source: str, target: str, frame: bytes, lost: bool) -> None:
        """See `Observer`."""
        if (source, target) == self._ends and START <= time < self._stop:
            ours = bool(is_hopsum(np.frombuffer(frame, np.uint8)[None, :])[0])
            name = f"job {int.from_bytes(frame[_JOB], 'big')}" if ours else "TCP"
            self.bytes[name] += len(frame)

    def entered(
        self, time: float, node: str, port: int, frame: bytes, engine: Engine | None
    ) -> None:
        """See `Observer`."""

    def handled(self, time: float, switch: str, frame: bytes, engine: Engine) -> None:
        """See `Observer`."""


def connect(simulation: Simulation, network: Network, number: int, ends: Sequence[str]) -> None:
    """Let the first of two hosts send to the second over TCP from now on, without a limit."""
    elements = int(RATE * STOP / 32)
    schedule = Schedule(
        "copy",
        Collective.BROADCAST,
        2,
        elements,
        (make_step(0, 1, 0, elements, combine=False),),
        Ranges.of([(0, 0, elements)]),
        Ranges.of([(1, 0, elements)]),
    )
    hosts = [network.hosts[name] for name in ends]
    addresses = {rank: Address(h.mac_bytes, h.ip_bytes) for rank, h in enumerate(hosts)}
    agents = simulation.world.agents
    for rank, host in enumerate(ends):
        buffer = receive_buffer(network, host)
        member = StreamMember(rank, addresses, 0.0, FIRST_PORT + 2 * number, buffer)
        member.tos = ECN_CAPABLE
        member.start(Execution(schedule, rank, np.zeros(elements, dtype=np.int32)), 0.0)
        agents[host] = Together(agents[host], member) if host in agents else member


def shares(case: Case, stop: float) -> dict[str, float]:
    """Return the fraction of a link's rate that each flow gets, in virtual time."""
    network, allocator = case.network, Allocator(case.network)
    simulation = Simulation(network, _make_engine(), fair=True)
    for number, (workers, server) in enumerate(case.jobs, start=1):
        request = PlanRequest(number, 1, workers, (server,), lanes=LANES, window=WINDOW)
        elements = int(RATE * STOP / 32)
        spec = WorkloadSpec(RANDOM, len(workers), elements, 1, DataType.INT32, number)
        work = Work(Task(spec, options=asdict(WorkerOptions())))
        simulation.add(plan_job(network, request, allocator), work)
    simulation.start()
    for number, ends in enumerate(case.connections):
        connect(simulation, network, number, ends)
    meter = Meter(case.link, stop)
    simulation.world.observers = (meter,)
    simulation.world.run_until(stop)
    capacity = RATE * (stop - START) / 8
    return {name: count / capacity for name, count in sorted(meter.bytes.items())}


def emulated_shares(case: Case, up: Processes, received: Path) -> dict[str, float]:
    """Return the fraction of a link's rate that each flow gets, in a running network."""
    names = [f"job-{number}" for number in range(1, 1 + len(case.jobs))]
    for name, (workers, server) in zip(names, case.jobs, strict=True):
        wanted = make_submission(name, ",".join(workers), server, elements=ELEMENTS, rounds=ROUNDS)
        up.client.submit(wanted)
    port = str(FIRST_PORT)
    for source, sink in case.connections:
        heed_marks = up.emulation.command(["sysctl", "-qw", "net.ipv4.tcp_ecn=1"], source)
        subprocess.run(heed_marks, check=True)
        up.emulation.popen(sink, [sys.executable, "-c", _SINK, port, str(received)])
        wait(received.exists, "the receiver")
        address = case.network.hosts[sink].ip
        up.emulation.popen(source, [sys.executable, "-c", _SOURCE, address, port])

    def carried() -> dict[str, float]:
        fragments = -(-ELEMENTS // LANES)
        sent = {
            name: up.client.job(name).round * fragments * frame_bytes(LANES, 1) for name in names
        }
        if case.connections:
            text = received.read_text() if received.exists() else ""
            sent["TCP"] = int(text or 0) * SEGMENT_FRAME_BYTES // SEGMENT_BYTES
        return {name: float(count) for name, count in sent.items()}

    wait(lambda: all(carried().values()), "a sum of each job, and bytes")
    time.sleep(SETTLE)
    before, start = carried(), time.monotonic()
    time.sleep(SECONDS)
    after, seconds = carried(), time.monotonic() - start
    for name in names:
        up.client.cancel(name)
    return {name: 8 * (after[name] - before[name]) / (EMULATED_RATE * seconds) for name in after}


def measure() -> Rows:
    """Return a row for each flow of all cases in virtual time."""
    return [row for make, *flows in CASES for row in rows(make(*flows))]


def rows(case: Case, stop: float = STOP) -> Rows:
    """Return a row for each flow of a case in virtual time, of the bytes until `stop`."""
    return _rows("virtual time", case, shares(case, stop))


def measure_emulated() -> Rows:
    """Return a row for each flow of all cases in Mininet."""
    found: list[dict[str, object]] = []
    for jobs, connections in EMULATED_CASES:
        case = between_switches(jobs, connections, EMULATED_RATE)
        with tempfile.TemporaryDirectory() as name:
            file = Path(name, "network.json")
            save_network(case.network, file)
            with processes(case.network, str(file), "--no-priorities") as up:
                measured = emulated_shares(case, up, Path(name, "received"))
        found += _rows("Mininet", case, measured)
    return found


def _rows(world: str, case: Case, measured: Mapping[str, float]) -> Rows:
    fair = 1 / (len(case.jobs) + len(case.connections))
    return [
        {
            "world": world,
            "link": case.name,
            "jobs": len(case.jobs),
            "connections": len(case.connections),
            "flow": flow,
            "share": round(share, 3),
            "of_fair_share": round(share / fair, 3),
        }
        for flow, share in measured.items()
    ]
