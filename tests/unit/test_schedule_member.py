from __future__ import annotations

import json
import os
import threading
from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from typing import Any, cast

import pytest

from collectives.algorithms.catalogue import MULTI_TREE, SCHEDULES
from collectives.algorithms.rooted import heap_tree
from collectives.algorithms.trees import SharedTree
from collectives.network import Network
from collectives.plan import DataType, JobPlan
from controller.loaders import load_network
from host_agent.agent import Task, attend
from host_agent.controller_client import AllDone, Assignment, ControllerClient, Event
from host_agent.stream import WorkerOptions
from host_agent.task import TaskError
from host_agent.workload import WorkloadSpec
from packet_io.port import MemoryPort

RANKS = 5


class Controller:
    """Starts all agents together, and keeps what they report."""

    def __init__(self, network: Network, task: Task) -> None:
        workers = tuple(network.hosts)[:RANKS]
        plan = JobPlan(1, 1, workers, (), lanes=256, window=1)
        self.assignment = Assignment(network, plan, json.loads(task.to_json()))
        self.barrier = threading.Barrier(RANKS, timeout=30)
        self.reports: dict[str, Mapping[str, Any]] = {}
        self.failures: dict[str, str] = {}


class Client:
    """What an agent asks of its controller, without a wire between them."""

    def __init__(self, controller: Controller, host: str) -> None:
        self.host = host
        self.job = 1
        self.address = "here"
        self.assignment = controller.assignment
        self.started = False
        self._controller = controller
        self._events: list[Event] = []
        self._wakeup = os.eventfd(0, os.EFD_NONBLOCK)

    def open(self) -> None:
        os.eventfd_write(self._wakeup, 1)

    def fileno(self) -> int:
        return self._wakeup

    def events(self) -> list[Event]:
        taken, self._events = self._events, []
        return taken

    def ready(self) -> None:
        self._controller.barrier.wait()
        self.started = True

    def close(self) -> None:
        pass

    def progress(self, round_: int) -> None:
        pass

    def finished(self, report: Mapping[str, Any]) -> None:
        self._controller.reports[self.host] = report
        self._controller.barrier.wait()
        self._events.append(AllDone({}))

    def failed(self, reason: str) -> None:
        self._controller.failures[self.host] = reason


@pytest.mark.parametrize("algorithm", [*SCHEDULES, MULTI_TREE])
def test_agents_sum_among_themselves(algorithm: str) -> None:
    network = load_network("leaf-spine:2x3")
    hosts = {
        name: replace(host, ip=f"127.0.2.{number + 1}")
        for number, (name, host) in enumerate(network.hosts.items())
    }
    network = replace(network, hosts=hosts)
    workload = WorkloadSpec("random", RANKS, 20_003, 2, DataType.INT32, seed=1)
    ranks = tuple(hosts)[:RANKS]
    trees = (SharedTree(heap_tree(ranks), Fraction(2)), SharedTree(heap_tree(ranks[::-1])))
    controller = Controller(network, Task(workload, algorithm, WorkerOptions(), trees=trees))

    def agent(host: str) -> None:
        try:
            attend(cast(ControllerClient, Client(controller, host)), MemoryPort.pair()[0])
        except Exception:  # noqa: BLE001 - the agent has told the controller why
            controller.barrier.abort()

    threads = [
        threading.Thread(target=agent, args=(host,)) for host in controller.assignment.plan.workers
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not controller.failures
    assert len(controller.reports) == RANKS
    for report in controller.reports.values():
        assert report["verdict"]["wrong"] == 0
        assert report["verdict"]["checked"] == 2 * 20_003
        assert len(report["intervals"]) == 2


def test_a_task_crosses_as_json() -> None:
    names = ["h1", "h2", "h3"]
    trees = (SharedTree(heap_tree(names), Fraction(1, 3)), SharedTree(heap_tree(names[::-1])))
    workload = WorkloadSpec("random", 3, 10, 1, DataType.INT32, seed=1)
    task = Task(workload, MULTI_TREE, trees=trees)
    assert Task.from_mapping(json.loads(task.to_json())) == task
    with pytest.raises(TaskError, match=r"h2 hangs on h9"):
        Task.from_mapping(json.loads(task.to_json().replace('"h2": "h1"', '"h2": "h9"')))
