"""Hosts whose processes call for sums at real sockets, with members and a server, in virtual time.

Frames go from worker to server and back, some get lost. With `as_flow` the hosts do what a port
does with flows (`hopsum.simulation.flows`).
"""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Callable
from random import Random
from types import SimpleNamespace
from typing import Any

from hopsum.collectives.choices import DataType
from hopsum.collectives.messages import network_message, plan_message
from hopsum.collectives.plan import Results
from hopsum.collectives.task_messages import workload_message
from hopsum.collectives.workload import PROCESS, WorkloadSpec
from hopsum.host_agent.codec import Frames
from hopsum.host_agent.datapath.library import Flow
from hopsum.host_agent.io.process_socket import ProcessSocket
from hopsum.host_agent.node.member import Member
from hopsum.host_agent.node.work import Work
from hopsum.host_agent.server import Server
from hopsum.host_agent.session import AgentSession
from hopsum.host_agent.task import task_from
from hopsum.protocol import hopsum_pb2 as pb
from hopsum.simulation import flows
from hopsum.simulation.processes import Process
from tests.support.machine import unique
from tests.support.protocol_world import SERVER, at_server, at_worker, star_plan

MEMORY_BYTES = 1 << 14
WAIT_SECONDS = 0.001
"""Longest wait for processes: timers of the protocol are looked at as often."""
PAUSE_SECONDS = 0.05
"""Between two looks whether processes that begin have ended."""
_DESTINATION = slice(30, 34)
"""IPv4 destination of a frame."""


def connected(name: str) -> Process:
    """A process that is connected to an agent's socket."""
    end = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    end.connect(f"\0{name[1:]}")
    return Process(end)


class ProcessHosts:
    """A job of a rank on each of two hosts, and its server; `window` and `loss` are of the job's
    tree. `rooted`: the server is at the first of these hosts. `elsewhere`: the ranks are others'
    processes, which attend the plan's job (`serve`)."""

    def __init__(
        self,
        seed: int = 0,
        *,
        as_flow: bool,
        loss: float = 0.0,
        window: int = 4,
        rooted: bool = False,
        elsewhere: bool = False,
    ) -> None:
        self.as_flow = as_flow
        self.by_flow = 0
        """Calls that flows have taken."""
        self.steadiness = 0.8
        """Probability that a port goes on that has moved something."""
        self.now = 0.0
        self._loss, self._random = loss, Random(seed)
        server, results = ("w0", Results.REPLICATED) if rooted else (SERVER, Results.UNICAST)
        self.plan, network = star_plan(2, window=window, server=server, results=results)
        self._server = None if rooted else Server(self.plan, 0, network)
        workload = WorkloadSpec(PROCESS, 2, 1, 1, DataType.INT32, 1)
        task = pb.Task(workload=workload_message(workload))
        self._welcome = pb.Welcome(
            network=network_message(network), plan=plan_message(self.plan), task=task
        )
        self._way: dict[str, list[Frames]] = {host: [] for host in self.plan.workers}
        self._addresses = {
            socket.inet_aton(network.hosts[host].ip): host for host in self.plan.workers
        }
        self.machines: dict[str, Any] = {}
        self._entered: dict[str, list[int]] = {}
        """Hosts whose port runs, and its flows."""
        self.members: dict[str, Member] = {}
        self._watched: dict[str, set[int]] = {host: set() for host in self.plan.workers}
        self.sockets = {host: self._listen(host) for host in self.plan.workers}
        names = [] if elsewhere else [each.name for each in self.sockets.values()]
        self.processes = [connected(name) for name in names]
        for rank, process in enumerate(self.processes):
            process.say({"kind": "attend", "job": self.plan.job, "rank": rank})
            process.share(MEMORY_BYTES)
        for host in self.plan.workers:
            self._start(host)

    def _listen(self, host: str) -> ProcessSocket:
        watched = self._watched[host]
        unused: Any = None
        return ProcessSocket(host, f"@{unique(host)}", unused, watched.add, watched.discard)

    def _start(self, host: str) -> None:
        session = AgentSession("controller", self.plan.job, host)
        session.connected()
        session.receive(pb.ControllerMessage(welcome=self._welcome))
        environment: Any = SimpleNamespace(
            work=lambda assignment: Work(task_from(assignment.task)),
            too_much=lambda needed, what: None,
            use_links=lambda job, ports, links: None,
            process_tensors=self.sockets[host].attendance,
            # What a member does once all ranks have left stays undone.
            put=lambda job, work: 1,
        )
        install: Callable[[Any], None] = lambda machine: self.machines.update({host: machine})  # noqa: E731
        unused: Any = None
        self.members[host] = Member(session, environment, install, unused)
        self.members[host].advance(self.now)
        session.receive(pb.ControllerMessage(start=pb.Start()))

    def close(self) -> None:
        for process in self.processes:
            process.socket.close()
        for each in self.sockets.values():
            each.close()

    def run(self, turns: int = 400) -> None:
        """Go on until all calls have ended."""
        for _ in range(turns):
            self._go_on()
            if all(process.all_ended for process in self.processes):
                return
        raise AssertionError("the calls have not ended")

    def serve(self, over: Callable[[], bool]) -> None:
        """Go on, by this machine's clock, from the first call until something is over."""
        listening = set().union(*self._watched.values())
        while not over() and not select.select(listening, [], [], PAUSE_SECONDS)[0]:
            pass
        while not over():
            self.now = time.monotonic()
            moved = [self.turn(host) for host in self.plan.workers]
            if not any(moved):
                select.select(set().union(*self._watched.values()), [], [], WAIT_SECONDS)

    def settle(self) -> None:
        """Let hosts take over what their flows have done, and end what is in flight."""
        for _ in range(50):
            self._go_on()

    def _go_on(self) -> None:
        self.now += 0.0005
        moved = [self.turn(host) for host in self.plan.workers]
        for process in self.processes:
            process.hear()
        waiting = [machine.deadline for machine in self.machines.values()]
        if not any(moved) and (due := [each for each in waiting if each is not None]):
            self.now = max(self.now, min(due))

    def turn(self, host: str) -> bool:
        """What a host's loop does in a turn; return whether anything came."""
        machine, frames = self.machines[host], self._way[host]
        self._way[host] = []
        came = bool(frames)
        if self.as_flow:
            frames, goes_on = self._run_flows(host, frames)
            if goes_on:
                return True
        for each in frames:
            machine.receive(each, self.now)
        machine.tick(self.now)
        ready, _, _ = select.select(self._watched[host], [], [], 0)
        self.sockets[host].turn(set(ready))
        self.members[host].advance(self.now)
        output = machine.take_output()
        self._send(output)
        return came or bool(output)

    def _run_flows(self, host: str, frames: list[Frames]) -> tuple[list[Frames], bool]:
        """What a port does: return the frames that it leaves, and whether it goes on."""
        machine = self.machines[host]
        if host not in self._entered:
            self._entered[host] = machine.enter()
        output: list[Frames] = []
        taken = 0
        for address in self._entered[host]:
            flow = Flow.from_address(address)
            for each in frames:
                output += flows.receive(address, each, self.now)
                taken += 1
            called, made = flows.call(address, self.now) if flow.call else (False, [])
            self.by_flow += called
            output += made
            self._send(output)
            # A port may go on, or anything else may end its run.
            more = not flow.finished and flow.due > self.now
            if more and (called or taken) and self._random.random() < self.steadiness:
                return [], True
        machine.leave(self.now)
        del self._entered[host]
        return frames[taken:], False

    def _send(self, batches: list[Frames]) -> None:
        """Frames to the server, and its answers on their way."""
        for row in self._arriving(batches):
            host = self._addresses.get(row[0, _DESTINATION].tobytes())
            if self._server is None:
                # Results are for all.
                to, passed_on = ("w0", at_server) if host == "w0" else ("w1", at_worker)
                self._way[to].append(passed_on(row))
            else:
                assert host is None
                self._server.receive(at_server(row), self.now)
        if self._server is not None:
            for row in self._arriving(self._server.take_output()):
                self._way[self._addresses[row[0, _DESTINATION].tobytes()]].append(at_worker(row))

    def _arriving(self, batches: list[Frames]) -> list[Frames]:
        """Return the frames that are not lost, one by one."""
        rows = [batch[row : row + 1] for batch in batches for row in range(len(batch))]
        return [row for row in rows if self._random.random() >= self._loss]
