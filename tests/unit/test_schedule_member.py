from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

import pytest

from collectives.algorithms.catalogue import SCHEDULES
from collectives.network import Network
from collectives.plan import DataType, JobPlan
from controller.loaders import load_network
from host_agent.agent import Task, attend
from host_agent.controller_client import Assignment, ControllerClient
from host_agent.stream import WorkerOptions
from host_agent.workload import WorkloadSpec
from packet_io import FramePort

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
        self._controller = controller

    def register(self) -> Assignment:
        return self._controller.assignment

    def ready(self) -> None:
        pass

    def wait_for_start(self, timeout: float) -> None:
        self._controller.barrier.wait(timeout)

    def progress(self, round_: int) -> None:
        pass

    def finished(self, report: Mapping[str, Any]) -> None:
        self._controller.reports[self.host] = report

    def failed(self, reason: str) -> None:
        self._controller.failures[self.host] = reason

    def wait_until_all_done(self) -> None:
        self._controller.barrier.wait(30)


@pytest.mark.parametrize("algorithm", SCHEDULES)
def test_agents_sum_among_themselves(algorithm: str) -> None:
    network = load_network("leaf-spine:2x3")
    hosts = {
        name: replace(host, ip=f"127.0.2.{number + 1}")
        for number, (name, host) in enumerate(network.hosts.items())
    }
    network = replace(network, hosts=hosts)
    workload = WorkloadSpec("random", RANKS, 20_003, 2, DataType.INT32, seed=1)
    controller = Controller(network, Task(workload, algorithm, WorkerOptions()))

    def agent(host: str) -> None:
        try:
            attend(cast(ControllerClient, Client(controller, host)), cast(FramePort, None))
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
