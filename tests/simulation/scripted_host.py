"""A host's agent reduced to what the controller sees of it, and to the sums in the switches.

It speaks the real sessions and runs the real worker, servers and send queues. Every worker of job j
sums tensor number n of the values `tensor(j, worker, n)`, and says in its report how many sums were
wrong.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from collectives.plan import JobPlan
from host_agent.node.bandwidth import Counted, used_between
from host_agent.node.timing import suitable_options
from host_agent.node.traffic_priority import TrafficPriority
from host_agent.server_set import ServerSet
from host_agent.session import AgentLost, AgentSession, AllDone, NodeSession, PlanChanged
from host_agent.worker import Worker
from host_agent.workload import WorkloadSpec
from network.model import Network
from protocol import hopsum_pb2 as pb
from protocol.channel import ControllerError
from protocol.wire import tos_of_level
from simulation.cluster import Sessions
from simulation.world import Frames, World


def tensor(job: int, worker: int, number: int, elements: int) -> np.ndarray:
    """Any values, which no two of these arguments have in common."""
    rng = np.random.default_rng((job, worker, number))
    return rng.integers(-(2**26), 2**26, elements, dtype=np.int32)


@dataclass
class Part:
    """A host's part in one job."""

    session: AgentSession
    worker: Worker | None = None
    servers: ServerSet | None = None
    rounds: int = 0
    elements: int = 0
    done: int = 0
    wrong: int = 0
    call: int | None = None
    asked: int = 0
    tos: int = 0


class ScriptedHost:
    """Host `host`; see `simulation.cluster.HostProcess`."""

    def __init__(self, host: str, address: str, sessions: Sessions, world: World) -> None:
        self.host = host
        self.world = world
        self.sessions = sessions
        self.traffic = TrafficPriority()
        self.parts: dict[int, Part] = {}
        self.node = NodeSession(address, host)
        self.report_at: float | None = None
        self.report_seconds = 1.0
        self.links: dict[str, float] = {}
        self.counted: Counted | None = None
        sessions.open(self.node)

    # -- frames

    def receive(self, frames: Frames, now: float) -> None:
        self.traffic.receive(frames, now)
        self.advance(now)

    def tick(self, now: float) -> None:
        self.traffic.tick(now)
        self.advance(now)

    def take_output(self) -> list[Frames]:
        return self.traffic.take_output()

    @property
    def deadline(self) -> float | None:
        dues = (self.traffic.deadline, self.report_at)
        return min((due for due in dues if due is not None), default=None)

    # -- what the controller says

    def advance(self, now: float) -> None:
        for command in self.node.commands():
            match command.WhichOneof("message"):
                case "welcome":
                    self.report_seconds = command.welcome.report_seconds
                    self.report_at = now
                    self.links = {link.peer: link.rate for link in command.welcome.links}
                case "attend" if command.attend.job not in self.parts:
                    session = AgentSession(self.node.address, command.attend.job, self.host)
                    self.parts[session.job] = Part(session)
                    self.sessions.open(session)
                case "leave":
                    self.leave(command.leave.job)
                case "priority" if command.priority.job in self.parts:
                    self.parts[command.priority.job].tos = tos_of_level(command.priority.level)
                    self.traffic.set_level(command.priority.job, command.priority.level)
        for job, part in list(self.parts.items()):
            try:
                self.go_on(part, now)
            except (ControllerError, RuntimeError) as error:
                part.session.failed(str(error))
                self.leave(job)
        if self.report_at is not None and now >= self.report_at:
            self.report(now)

    def leave(self, job: int) -> None:
        part = self.parts.pop(job, None)
        if part is not None:
            self.traffic.remove(job)
            self.sessions.close(part.session)

    def go_on(self, part: Part, now: float) -> None:
        session = part.session
        for event in session.events():
            match event:
                case PlanChanged():
                    if part.worker is not None:
                        part.worker.adopt(event.plan, now)
                    if part.servers is not None:
                        assert session.assignment is not None
                        part.servers.adopt(event.plan, self.host, session.assignment.network)
                case AgentLost():
                    assert session.assignment is None or event.host
                    if part.worker is not None and event.host in part.worker.plan.workers:
                        raise RuntimeError(f"{event.host} is lost: {event.reason}")
                case AllDone():
                    self.leave(session.job)
                    return
        assignment = session.assignment
        if assignment is None:
            return
        if part.worker is None and part.servers is None:
            self.begin(part, assignment.plan, assignment.network)
            workload = WorkloadSpec.from_json(assignment.task["workload"])
            part.rounds, part.elements = workload.rounds, workload.elements
            session.ready()
        if session.started and part.worker is not None:
            self.work(part, part.worker, now)

    def begin(self, part: Part, plan: JobPlan, network: Network) -> None:
        if self.host in plan.workers:
            options = suitable_options(network, plan)
            part.worker = Worker(plan, plan.workers.index(self.host), network, options)
            part.worker.mark(part.tos)
            self.traffic.add(plan.job, part.worker)
        else:
            part.servers = ServerSet()
            part.servers.adopt(plan, self.host, network)
            self.traffic.add(plan.job, part.servers)

    def work(self, part: Part, worker: Worker, now: float) -> None:
        plan, job = worker.plan, worker.plan.job
        while True:
            if part.call is not None:
                result = worker.result(part.call)
                if result is None:
                    return
                expected = sum(
                    tensor(job, index, part.done, part.elements)
                    for index in range(len(plan.workers))
                )
                part.wrong += int(np.count_nonzero(result != expected))
                part.call = None
                part.done += 1
                part.session.progress(part.done)
                if part.done == part.rounds:
                    verdict = {"checked": part.done * part.elements, "wrong": part.wrong}
                    part.session.finished({"verdict": verdict})
            if part.done >= part.rounds:
                return
            index = plan.workers.index(self.host)
            part.call = worker.submit(tensor(job, index, part.done, part.elements), now)

    # -- what it says

    def report(self, now: float) -> None:
        self.report_at = now + self.report_seconds
        report = pb.NodeReport()
        switch = next(iter(self.links))
        sent = self.world.channels[self.host, switch].bytes
        received = self.world.channels[switch, self.host].bytes
        counted = Counted(sent, received, now)
        if self.counted is not None:
            for peer, rate in self.links.items():
                used = used_between(self.counted, counted, rate)
                report.interfaces.add(
                    peer=peer,
                    sent=used.sent,
                    received=used.received,
                    free_sent=used.free_sent,
                    free_received=used.free_received,
                )
        self.counted = counted
        for job, part in self.parts.items():
            report.jobs.add(
                job=job,
                round=part.done,
                elements=part.elements,
                sent_bytes=self.traffic.sent_bytes(job),
            )
        self.node.report(report)
