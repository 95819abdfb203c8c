from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import cast

import pytest

from hopsum.collectives.algorithms.catalogue import MULTI_TREE, SCHEDULES
from hopsum.collectives.algorithms.rooted import heap_tree
from hopsum.collectives.algorithms.trees import SharedTree
from hopsum.collectives.plan import DataType, HostPart, JobPlan
from hopsum.coordination.tree import CoordinationTree
from hopsum.host_agent.io.controller_client import AgentStream
from hopsum.host_agent.io.tcp_transport import TcpTransport
from hopsum.host_agent.io.wakeup import Wakeup
from hopsum.host_agent.session import AllDone, Assignment, Event, JobWaits
from hopsum.host_agent.task import Task, TaskError, task_from, task_message
from hopsum.host_agent.workload import WorkloadSpec
from hopsum.network.loaders import load_network
from hopsum.network.model import Network
from hopsum.protocol import hopsum_pb2 as pb
from tests.support.attending import attend
from tests.support.data_types import OF_HOSTS
from tests.support.machine import PATIENCE, on_loopback
from tests.support.memory_port import MemoryPort

RANKS = 5


class Controller:
    """Starts all agents together, and keeps what they report."""

    def __init__(self, network: Network, task: Task, parts: tuple[HostPart, ...] = ()) -> None:
        workers = tuple(network.hosts)[:RANKS]
        plan = JobPlan(1, 1, workers, (), lanes=256, window=1, host_parts=parts)
        self.assignment = Assignment(network, plan, task_message(task))
        self.hosts = (*workers, *plan.auxiliary)
        self.barrier = threading.Barrier(len(self.hosts), timeout=PATIENCE)
        self.working = threading.Barrier(RANKS, self._release, timeout=PATIENCE)
        self.clients: list[Client] = []
        self.reports: dict[str, pb.Report] = {}
        self.failures: dict[str, str] = {}
        self.cut: Callable[[str, int], tuple[int, JobPlan] | None] | None = None

    def _release(self) -> None:
        for client in self.clients:
            client.released()


class Client:
    """An agent's requests to its controller, without a network between them."""

    def __init__(self, controller: Controller, host: str) -> None:
        self.host = host
        self.job = 1
        self.address = "here"
        self.assignment = controller.assignment
        self.started = False
        self._controller = controller
        self.pending: list[Event] = []
        self._wakeup = Wakeup()
        controller.clients.append(self)

    def open(self) -> None:
        self._wakeup.set()

    def fileno(self) -> int:
        return self._wakeup.fileno()

    def events(self) -> list[Event]:
        taken, self.pending = self.pending, []
        return taken

    def ready(self) -> None:
        self._controller.barrier.wait()
        self.started = True

    def close(self) -> None:
        self._wakeup.close()

    def progress(self, round_: int) -> None:
        pass

    def ask_boundary(self, number: int) -> None:
        self._wakeup.set()

    def cut(self, number: int) -> tuple[int, JobPlan] | None:
        return None if self._controller.cut is None else self._controller.cut(self.host, number)

    def finished(self, report: pb.Report) -> None:
        self._controller.reports[self.host] = report
        self._controller.working.wait()

    def released(self) -> None:
        self.pending.append(AllDone({}))
        self._wakeup.set()

    def failed(self, reason: str) -> None:
        self._controller.failures[self.host] = reason


def local_network() -> Network:
    """Hosts that are reached on this machine, and by this test alone."""
    return on_loopback(load_network("leaf-spine:2x4"))


def run_agents(controller: Controller) -> None:
    """Let every host of a job play its part, to the end."""

    def agent(host: str) -> None:
        ports = MemoryPort.pair()
        try:
            attend(cast(AgentStream, Client(controller, host)), ports[0])
        except Exception:  # noqa: BLE001 - the agent has reported the reason to the controller
            controller.barrier.abort()
            controller.working.abort()
        finally:
            for port in ports:
                port.close()

    threads = [threading.Thread(target=agent, args=(host,)) for host in controller.hosts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
        assert not thread.is_alive()


def check_reports(controller: Controller, checked: int, calls: int = 2) -> None:
    assert not controller.failures
    assert len(controller.reports) == RANKS
    for report in controller.reports.values():
        assert report.verdict.wrong == 0
        assert report.verdict.checked == checked
        assert len(report.intervals.starts) == calls


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", [*SCHEDULES, MULTI_TREE])
def test_agents_sum_among_themselves(algorithm: str) -> None:
    network = local_network()
    workload = WorkloadSpec("random", RANKS, 20_003, 2, DataType.INT32, seed=1)
    ranks = tuple(network.hosts)[:RANKS]
    trees = (SharedTree(heap_tree(ranks), Fraction(2)), SharedTree(heap_tree(ranks[::-1])))
    controller = Controller(network, Task(workload, algorithm, trees=trees))
    run_agents(controller)
    check_reports(controller, 2 * 20_003)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", OF_HOSTS)
@pytest.mark.parametrize("elements", [0, 100, 20_003])
def test_agents_sum_parts_of_a_tensor_over_several_topologies(
    dtype: DataType, elements: int
) -> None:
    """A ring, a parameter server on a host of its own, and a tree with a relay."""
    network = local_network()
    ranks, (ps, relay, *_) = tuple(network.hosts)[:RANKS], tuple(network.hosts)[RANKS:]
    tree = {**dict.fromkeys(ranks[:3], relay), ranks[3]: ranks[4], relay: ranks[4]}
    parts = (
        HostPart(Fraction(1, 4), order=(*ranks[2:], *ranks[:2])),
        HostPart(Fraction(1, 4), root=ps, parents=dict.fromkeys(ranks, ps)),
        HostPart(Fraction(1, 2), root=ranks[4], parents=tree),
    )
    task = Task(WorkloadSpec("random", RANKS, elements, 2, dtype, seed=1))
    controller = Controller(network, task, parts)
    assert controller.hosts == (*ranks, ps, relay)
    run_agents(controller)
    check_reports(controller, 2 * elements)


@pytest.mark.slow
@pytest.mark.parametrize("heard", [1, 2, 7, None])
def test_an_idle_relay_goes_on_from_the_boundary_it_hears_of(heard: int | None) -> None:
    """Workers have a boundary after the second of four tensors, and one at the end.

    None: the relay receives none before the job is over.
    """
    network = local_network()
    ranks, relay = tuple(network.hosts)[:RANKS], tuple(network.hosts)[RANKS]
    ring = HostPart(Fraction(1), order=ranks)
    star = HostPart(Fraction(1), root=relay, parents=dict.fromkeys(ranks, relay))
    task = Task(WorkloadSpec("random", RANKS, 1000, 4, DataType.INT32, seed=1))
    controller = Controller(network, task, (ring,))
    plan = replace(controller.assignment.plan, period=2)
    controller.assignment = replace(controller.assignment, plan=plan)
    controller.hosts = (*ranks, relay)
    controller.barrier = threading.Barrier(RANKS + 1, timeout=PATIENCE)

    def cut(host: str, number: int) -> tuple[int, JobPlan] | None:
        if host == relay:
            return None if heard is None else (heard, replace(plan, host_parts=(star,)))
        # Whoever tells the relay of a later boundary has had no use for it at the first one.
        return number, replace(plan, host_parts=(star if heard == 1 else ring,))

    controller.cut = cut
    run_agents(controller)
    check_reports(controller, 4 * 1000, calls=4)


@pytest.mark.slow
def test_a_worker_cannot_skip_a_boundary() -> None:
    network = local_network()
    ring = HostPart(Fraction(1), order=tuple(network.hosts)[:RANKS])
    task = Task(WorkloadSpec("random", RANKS, 1000, 4, DataType.INT32, seed=1))
    controller = Controller(network, task, (ring,))
    plan = replace(controller.assignment.plan, period=2)
    controller.assignment = replace(controller.assignment, plan=plan)
    controller.cut = lambda host, number: (number + 1, plan)
    run_agents(controller)
    assert "waits at boundary 1 and received boundary 2" in controller.failures["h1"]


def test_relays_do_not_hear_of_an_agreed_order() -> None:
    network = local_network()
    ranks, relay = tuple(network.hosts)[:RANKS], tuple(network.hosts)[RANKS]
    tree = HostPart(Fraction(1), root=relay, parents=dict.fromkeys(ranks, relay))
    workload = WorkloadSpec("random", RANKS, 10, 1, DataType.INT32, seed=1)
    order = CoordinationTree(ranks, (-1, *[0] * (RANKS - 1)), ())
    controller = Controller(network, Task(workload, coordination=order), (tree,))
    controller.hosts = (relay,)
    run_agents(controller)
    assert "agree on an order of tensors" in controller.failures[relay]


def test_a_plan_and_a_task_that_do_not_say_how_to_sum() -> None:
    workload = WorkloadSpec("random", RANKS, 10, 1, DataType.INT32, seed=1)
    controller = Controller(local_network(), Task(workload))
    run_agents(controller)
    assert "says how to sum" in controller.failures["h1"]


def test_a_task_crosses_as_a_message() -> None:
    names = ["h1", "h2", "h3"]
    trees = (SharedTree(heap_tree(names), Fraction(1, 3)), SharedTree(heap_tree(names[::-1])))
    workload = WorkloadSpec("random", 3, 10, 1, DataType.INT32, seed=1)
    task = Task(workload, MULTI_TREE, trees=trees)
    message = task_message(task)
    assert task_from(message) == task
    message.trees[0].parents["h2"] = "h9"
    with pytest.raises(TaskError, match=r"h2 is below h9"):
        task_from(message)


@pytest.mark.parametrize("share", ["", "half", "1/0", "1e9999999", "9" * 5000, "1/2/3", "0x1"])
def test_a_share_is_a_fraction(share: str) -> None:
    task = task_message(Task(WorkloadSpec("random", 2, 10, 1, DataType.INT32, seed=1)))
    task.trees.add(root="h1", parents={"h2": "h1"}, share=share)
    with pytest.raises(TaskError, match=r"share .*: expected a fraction, such as 3/8"):
        task_from(task)


@pytest.mark.slow
def test_a_job_that_waits_for_the_network_does_not_time_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The controller's messages reach the connections of operations in progress."""
    postponed: list[TcpTransport] = []
    monkeypatch.setattr(TcpTransport, "postpone", lambda transport: postponed.append(transport))
    ready = Client.ready

    def ready_and_waiting(client: Client) -> None:
        ready(client)
        client.pending.append(JobWaits())

    monkeypatch.setattr(Client, "ready", ready_and_waiting)
    workload = WorkloadSpec("random", RANKS, 2_003, 2, DataType.INT32, seed=1)
    controller = Controller(local_network(), Task(workload, schedule="ring"))
    run_agents(controller)
    check_reports(controller, 2 * 2_003)
    assert len(set(postponed)) == RANKS
