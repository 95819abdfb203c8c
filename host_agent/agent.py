"""One host of a job as a process: attends the controller, moves frames, runs its workload."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

import numpy as np

from collectives.algorithms.catalogue import make_schedule
from collectives.execution import Execution, channels
from collectives.schedule import Schedule
from host_agent.controller_client import (
    AgentLost,
    AllDone,
    Assignment,
    ControllerClient,
    PlanChanged,
)
from host_agent.runner import Loop, Machine
from host_agent.server_set import ServerSet
from host_agent.stream import WorkerOptions
from host_agent.tcp_collective import TcpCollective
from host_agent.worker import Worker
from host_agent.workload import Interval, Workload, WorkloadSpec, make_workload
from packet_io import FramePort

PATIENCE_SECONDS = 60.0


News = PlanChanged | AgentLost | AllDone


class PeerGone(RuntimeError):
    """Another agent of the job failed or is gone; names its host and what is missing."""


@dataclass(frozen=True, slots=True)
class Task:
    """What a job does, as its description crosses from the controller to the agents.

    `schedule`: the algorithm by which the plan's workers sum among themselves, without switches.
    """

    workload: WorkloadSpec
    schedule: str | None
    options: WorkerOptions

    def to_json(self) -> str:
        """As one line of JSON."""
        return json.dumps(
            {
                "workload": self.workload.to_json(),
                "schedule": self.schedule,
                "options": asdict(self.options),
            }
        )

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> Task:
        """From the decoded JSON."""
        return cls(
            WorkloadSpec.from_json(values["workload"]),
            values["schedule"],
            WorkerOptions(**values["options"]),
        )


class Attendance:
    """A loop that also watches for the controller's news."""

    def __init__(self, port: FramePort, machine: Machine, client: ControllerClient) -> None:
        self._client = client
        self._loop = Loop(port, [machine], watch=[client.fileno()])

    def turn(self) -> list[News]:
        """Send what waits, sleep until something is due, take frames in; returns the news."""
        ready = self._loop.turn()
        return self._client.events() if self._client.fileno() in ready else []

    def flush(self) -> None:
        """Send what waits."""
        self._loop.flush()


def attend(client: ControllerClient, port: FramePort) -> None:
    """Play this host's part in the job that the controller assigns, until it is released.

    Raises ControllerError; a job that fails is reported to the controller and raised.
    """
    assignment = client.register()
    task = Task.from_mapping(assignment.task)
    try:
        if task.schedule is not None:
            _schedule_member(client, assignment, task, task.schedule)
        elif client.host in assignment.plan.workers:
            _worker(client, assignment, task, port)
        else:
            _servers(client, assignment, port)
    except Exception as error:
        client.failed(f"{type(error).__name__}: {error}")
        raise


def _report(workload: Workload, intervals: list[Interval], retransmissions: int) -> dict[str, Any]:
    return {
        "verdict": asdict(workload.verdict()),
        "intervals": intervals,
        "retransmissions": retransmissions,
        "outcome": workload.outcome(),
    }


def _worker(client: ControllerClient, assignment: Assignment, task: Task, port: FramePort) -> None:
    plan = assignment.plan
    index = plan.workers.index(client.host)
    worker = Worker(plan, index, assignment.network, task.options)
    workload = make_workload(task.workload, index, plan)
    loop = Attendance(port, worker, client)
    intervals: list[Interval] = []
    tensor = workload.next_tensor()
    client.ready()
    client.wait_for_start(PATIENCE_SECONDS)
    while tensor is not None:
        started = time.monotonic()
        call = worker.submit(tensor, started)
        while not worker.done(call):
            _obey(loop.turn(), worker)
        result = worker.result(call)
        assert result is not None
        intervals.append((started, time.monotonic()))
        workload.take_result(result)
        tensor = workload.next_tensor()
        client.progress(len(intervals))
    loop.flush()
    client.finished(_report(workload, intervals, worker.statistics.retransmissions))
    # Others may still need this worker: a restarted server asks for its last window.
    while not any(isinstance(event, AllDone) for event in _obey(loop.turn(), worker)):
        pass


def _obey(events: list[News], worker: Worker) -> list[News]:
    """Adopt new plans; PeerGone when another agent is lost."""
    for event in events:
        if isinstance(event, PlanChanged):
            worker.adopt(event.plan, time.monotonic())
        elif isinstance(event, AgentLost):
            raise PeerGone(f"job {worker.plan.job}: agent on {event.host} is lost: {event.reason}")
    return events


def _servers(client: ControllerClient, assignment: Assignment, port: FramePort) -> None:
    plan = assignment.plan
    servers = ServerSet()

    servers.adopt(plan, client.host, assignment.network)
    loop = Attendance(port, servers, client)
    client.ready()
    client.wait_for_start(PATIENCE_SECONDS)
    while True:
        for event in loop.turn():
            if isinstance(event, AllDone):
                return
            if isinstance(event, PlanChanged):
                servers.adopt(event.plan, client.host, assignment.network)
            elif isinstance(event, AgentLost):
                waits = [
                    f"; fragment {missing.fragment} lacks {', '.join(missing.workers)}"
                    for server in servers
                    if (missing := server.missing()) is not None
                ]
                raise PeerGone(
                    f"job {plan.job}: agent on {event.host} is lost: {event.reason}{''.join(waits)}"
                )


def _schedule_member(
    client: ControllerClient, assignment: Assignment, task: Task, algorithm: str
) -> None:
    workers = assignment.plan.workers
    rank = workers.index(client.host)
    addresses = [assignment.network.hosts[name].ip for name in workers]

    @cache
    def schedule(elements: int) -> Schedule:
        return make_schedule(algorithm, assignment.network, workers, elements)

    workload = make_workload(task.workload, rank, None)
    intervals: list[Interval] = []
    tensor = workload.next_tensor()
    # Rounding may make other pairs exchange for another size.
    sizes = sorted(set(task.workload.tensor_sizes()))
    used = [channels(schedule(elements), rank) for elements in sizes]
    collective = TcpCollective(
        rank,
        addresses,
        targets=list(dict.fromkeys(channel for targets, _ in used for channel in targets)),
        sources=list(dict.fromkeys(channel for _, sources in used for channel in sources)),
    )
    client.ready()
    client.wait_for_start(PATIENCE_SECONDS)
    while tensor is not None:
        started = time.monotonic()
        execution = Execution(schedule(len(tensor)), rank, np.array(tensor))
        collective.run(execution)
        intervals.append((started, time.monotonic()))
        workload.take_result(execution.values)
        tensor = workload.next_tensor()
        client.progress(len(intervals))
    client.finished(_report(workload, intervals, collective.retransmissions))
    client.wait_until_all_done()
    collective.close()
