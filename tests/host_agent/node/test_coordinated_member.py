"""Agents that train in an agreed order, over the loopback; `test_schedule_member` has the stage."""

from __future__ import annotations

import threading
from typing import cast

import pytest

from hopsum.collectives.plan import DataType
from hopsum.coordination.failure import ProcessLost
from hopsum.coordination.physical import plan_coordination
from hopsum.coordination.tree import TreeLimits
from hopsum.host_agent.io.controller_client import AgentStream
from hopsum.host_agent.node.real import RealCoordination
from hopsum.host_agent.node.source import AgreedOrder
from hopsum.host_agent.operator_training import NAMES, OperatorTraining
from hopsum.host_agent.task import Task, task_from, task_message
from hopsum.host_agent.workload import WorkloadSpec
from hopsum.network.loaders import load_network
from hopsum.network.model import Network
from tests.host_agent.node.test_schedule_member import RANKS, Client, Controller
from tests.support.attending import attend
from tests.support.machine import PATIENCE, on_loopback, until
from tests.support.memory_port import MemoryPort

pytestmark = pytest.mark.usefixtures("short_epochs")

SPEC = WorkloadSpec("digits", RANKS, 0, 1, DataType.FLOAT32, seed=1, coordinate=True)


def local_network() -> Network:
    """Five workers, each with an address of the loopback."""
    return on_loopback(load_network("leaf-spine:2x3"))


def task_of(network: Network) -> Task:
    names = list(network.hosts)[:RANKS]
    tree = plan_coordination(network, [(name, name) for name in names], TreeLimits(2))
    return Task(SPEC, "ring", coordination=tree)


@pytest.mark.slow
def test_agents_train_in_an_agreed_order() -> None:
    network = local_network()
    controller = Controller(network, task_of(network))

    def agent(host: str) -> None:
        try:
            attend(cast(AgentStream, Client(controller, host)), MemoryPort.pair()[0])
        except Exception:  # noqa: BLE001 - the agent has reported the reason to the controller
            controller.barrier.abort()

    threads = [
        threading.Thread(target=agent, args=(host,)) for host in controller.assignment.plan.workers
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert not controller.failures
    assert len(controller.reports) == RANKS
    orders = {tuple(r.outcome.operator_order) for r in controller.reports.values()}
    assert len(orders) == 1
    assert sorted(orders.pop()) == sorted(NAMES)
    for report in controller.reports.values():
        assert report.verdict.wrong == 0
        assert len(report.intervals.starts) == SPEC.steps * len(NAMES)


@pytest.mark.slow
def test_a_dead_host_is_named() -> None:
    network = local_network()
    tree = task_of(network).coordination
    assert tree is not None
    sources = [
        AgreedOrder(
            OperatorTraining(SPEC, rank, None),
            RealCoordination(network, tree, rank, 1),
            lambda work, then: then(work(), 0.0),
        )
        for rank in range(RANKS)
    ]
    for source in sources:
        source.prepare()
        source.start(0.0)
    for source in sources:
        until(lambda source=source: source.next(0.0) is not None, "the first operator")
    dead = (tree.root + 1) % RANKS
    sources[dead].close("")
    for source in sources:
        if source is not sources[dead]:
            with pytest.raises(ProcessLost, match=f"process {tree.names[dead]} is lost"):
                until(lambda source=source: not source.next(0.0) and False, "the loss")
            source.close("")


def test_the_tree_crosses_as_a_message() -> None:
    task = task_of(local_network())
    assert task.coordination is not None
    assert task_from(task_message(task)) == task
