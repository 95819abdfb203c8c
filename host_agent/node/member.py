"""One host's part in one job: workers and servers that never wait, so that a host can have many.

A member's life is written as a generator that yields whenever there is nothing to do until frames,
the controller's news or a completed operation come; `advance` goes on where it stopped.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from dataclasses import asdict
from functools import partial
from typing import Any

import numpy as np

from collectives.algorithms.catalogue import LEVEL_WISE, make_schedule
from collectives.algorithms.host_part import host_part_all_reduce
from collectives.algorithms.level_wise_form import forms_of
from collectives.decomposition import decompose
from collectives.plan import HostPart, JobPlan
from collectives.schedule import Schedule
from host_agent.io.controller_client import ControllerClient
from host_agent.io.loop import Machine
from host_agent.memory import too_much
from host_agent.node.exchange import (
    Exchange,
    ScheduleExchange,
    TreeExchange,
    like,
    port_of,
)
from host_agent.node.operation_pool import Completed, OperationPool
from host_agent.node.process import ProcessTensors
from host_agent.node.source import AgreedOrder, Following, LockStep, Source, coordinator_of
from host_agent.node.timing import suitable_options
from host_agent.node.vectors import SwitchedVectors, VectorQueues
from host_agent.operator_training import OperatorTraining
from host_agent.segment import Tensor
from host_agent.server_set import ServerSet
from host_agent.session import AgentLost, AllDone, Assignment, PlanChanged
from host_agent.task import Task, TaskError
from host_agent.worker import Worker
from host_agent.workload import PROCESS, VECTORS, Interval, make_workload
from network.model import Network, shorten
from protocol.channel import ControllerError
from protocol.wire import tos_of_level

Script = Generator[None, None, None]

PARTS = 64
"""Parts of a tensor have ports of their own, and those after a border others than those before."""


class PeerGone(RuntimeError):
    """Another agent of the job failed or is gone; names its host and what is missing."""


class Member:
    """This host in the job that `client` attends.

    `install` is told the machine that takes the job's frames. `patience`: seconds to wait for an
    assignment, and then for the start; None: as long as the controller lets it wait. `vectors`: of
    all jobs of this host.
    """

    def __init__(
        self,
        client: ControllerClient,
        pool: OperationPool,
        install: Callable[[Machine], None],
        patience: float | None = None,
        vectors: VectorQueues | None = None,
    ) -> None:
        self.client = client
        self.job = client.job
        self.over = False
        self.round = 0
        """Tensors summed."""
        self.elements = 0
        """Of the tensor that is being summed."""
        self._pool = pool
        self._install = install
        self._patience = patience
        self._vectors = vectors or VectorQueues()
        self._plan: JobPlan | None = None
        self._worker: Worker | None = None
        self._servers = ServerSet()
        self._exchanges: dict[int, Exchange] = {}
        """By the number of the part of a tensor, see `decompose`."""
        self._source: Source | None = None
        self._sent_before = self._sent_again = 0
        """Bytes, and segments sent again, over connections that are closed."""
        self._released = False
        self._tos = 0
        self._completed: dict[int, Completed] = {}
        self._script = self._live()

    def advance(self) -> None:
        """Do what can be done now. Raises what ends the job here; `over` when all is done."""
        if self.over:
            return
        self._take_news()
        if next(self._script, self) is self:
            self.over = True

    def completed(self, done: Completed) -> None:
        """Take in an operation of this job; raises what it raised."""
        if done.error is not None:
            raise done.error
        self._completed[done.number] = done
        for exchange in self._schedules():
            exchange.completed(done.number)

    def close(self) -> None:
        """Give back what the member holds, whatever its state; the client stays open."""
        self.over = True
        for exchange in self._exchanges.values():
            exchange.close()
        if self._source is not None:
            self._source.close()

    def set_level(self, level: int) -> None:
        """Mark frames with a level; servers follow their workers' (`protocol.wire`)."""
        self._tos = tos_of_level(level)
        if self._worker is not None:
            self._worker.mark(self._tos)
        for exchange in self._schedules():
            exchange.mark(self._tos)

    @property
    def sent_bytes(self) -> int:
        """Bytes that its schedules have sent; frames are counted by the send queues."""
        return self._sent_before + sum(exchange.sent_bytes for exchange in self._schedules())

    def _schedules(self) -> list[ScheduleExchange]:
        return [each for each in self._exchanges.values() if isinstance(each, ScheduleExchange)]

    # -- the controller's news

    def _take_news(self) -> None:
        for event in self.client.events():
            if isinstance(event, PlanChanged):
                self._adopt(event.plan)
            elif isinstance(event, AllDone):
                self._released = True
            elif isinstance(event, AgentLost):
                self._lost(event)

    def _adopt(self, plan: JobPlan) -> None:
        assignment = self.client.assignment
        # Before the job has begun here, it begins under the newest plan.
        if assignment is not None and self._plan is not None:
            self._plan = plan
            if self._worker is not None:
                self._worker.adopt(plan, time.monotonic())
            self._servers.adopt(plan, self.client.host, assignment.network)

    def _lost(self, event: AgentLost) -> None:
        """Without a worker there is no sum; a server may be restarted, or another take its place.

        A fragment that no server answers ends the job at its deadline (`WorkerOptions`).
        """
        plan = self._plan
        if plan is not None and event.host not in plan.workers and self._patience is None:
            return
        waits = [
            f"; fragment {missing.fragment} lacks {', '.join(missing.workers)}"
            for server in self._servers
            if (missing := server.missing()) is not None
        ]
        raise PeerGone(
            f"job {self.job}: agent on {event.host} is lost: {event.reason}{''.join(waits)}"
        )

    # -- the member's life

    def _live(self) -> Script:
        yield from self._until(lambda: self.client.assignment is not None, "an assignment")
        assignment = self.client.assignment
        assert assignment is not None
        self._plan = assignment.plan
        if self.client.host in assignment.plan.workers:
            yield from self._work(assignment, assignment.plan)
        else:
            yield from self._serve(assignment, assignment.plan)

    def _until(self, true: Callable[[], bool], what: str) -> Script:
        end = None if self._patience is None else time.monotonic() + self._patience
        while not true():
            if end is not None and time.monotonic() > end:
                raise ControllerError(
                    f"job {self.job}, host {self.client.host}: waited {self._patience} s for "
                    f"{what} from the controller at {self.client.address}"
                )
            yield

    def _operation(
        self, work: Callable[[], Any], *, apart: bool = False
    ) -> Generator[None, None, Any]:
        """Let the pool do it, `apart` if it waits for other hosts; its value."""
        number = (self._pool.put_apart if apart else self._pool.put)(self.job, work)
        while number not in self._completed:
            yield
        return self._completed.pop(number).value

    def _serve(self, assignment: Assignment, plan: JobPlan) -> Script:
        """An auxiliary host: at the root of trees, or a relay in topologies of hosts, or both."""
        self._servers.adopt(plan, self.client.host, assignment.network)
        self._install(self._servers)
        task = None
        relays = any(self.client.host in part.hosts for part in plan.host_parts)
        if relays or plan.period:
            task = self._task_of(assignment, plan)
            if task.coordination is None:
                self._make_exchanges(assignment, plan, task)
            elif relays:
                raise TaskError(
                    f"job {self.job}: its workers agree on an order of tensors, which relay "
                    f"{self.client.host} does not hear of; expected parts of workers alone"
                )
            else:
                task = None
        self.client.ready()
        yield from self._until(lambda: self.client.started, "the start")
        if task is not None:
            yield from self._connect()
            yield from self._relay(assignment, task, plan)
        while not self._released:
            yield

    def _cross(
        self, number: int, assignment: Assignment, plan: JobPlan, task: Task
    ) -> Generator[None, None, tuple[int, JobPlan]]:
        """Before tensor `number`: that number, and the plan by which it is cut.

        Cuts change at borders only (`JobPlan.period`), for which the controller is asked half a
        period before. Whoever sums waits there for the answer, which is the same for all, so that
        all cut every tensor alike, whatever epoch each has. A relay that has had nothing to sum may
        learn of a later border first, and goes on from there; one after the last tensor is the end.
        """
        period = plan.period
        if not period:
            return number, plan
        border, inside = divmod(number, period)
        if border and not inside:
            while (decided := self.client.cut(border)) is None:
                yield
            at, cut = decided
            if at != border and self.client.host in plan.workers:
                raise ControllerError(
                    f"job {self.job}, host {self.client.host}: waits at border {border} and is "
                    f"told of border {at}; expected that of tensor {number}"
                )
            number = at * period
            if number >= len(task.workload.tensor_sizes()):
                return number, plan
            if cut.cut != plan.cut:
                self._recut(assignment, cut, task, at)
                yield from self._connect()
            plan = cut
        if number % period == period // 2:
            self.client.ask_border(number // period + 1)
        return number, plan

    def _recut(self, assignment: Assignment, plan: JobPlan, task: Task, border: int) -> None:
        """Other ways for what follows: nothing is under way, here or towards this host."""
        for exchange in self._schedules():
            self._sent_before += exchange.sent_bytes
            self._sent_again += exchange.retransmissions
            exchange.close()
        self._exchanges.clear()
        self._make_exchanges(assignment, plan, task, border)
        if self._worker is not None:
            self._worker.cut_as(plan)
        if self._source is not None:
            self._source.workload.cut_as(plan)

    def _relay(self, assignment: Assignment, task: Task, plan: JobPlan) -> Script:
        """Sum what the workers send of every tensor; this host has nothing to add."""
        sizes = task.workload.tensor_sizes()
        number = 0
        while number < len(sizes):
            number, plan = yield from self._cross(number, assignment, plan, task)
            if number >= len(sizes):
                return
            if self._exchanges:
                nothing = np.zeros(sizes[number], task.workload.dtype.value)
                self._begin(plan, nothing, like(nothing), time.monotonic())
                yield from self._exchanged()
                number += 1
                self.round = number
            elif plan.period:
                border = number // plan.period + 1
                self.client.ask_border(border)
                number = border * plan.period
            else:
                return

    def _task_of(self, assignment: Assignment, plan: JobPlan) -> Task:
        """The job's task. Raises TaskError where it does not fit the plan, or this machine."""
        task = Task.from_mapping(assignment.task)
        workload, host = task.workload, self.client.host
        if workload.workers != len(plan.workers):
            raise TaskError(
                f"job {self.job}: its task is for {workload.workers} workers, its plan for "
                f"{len(plan.workers)}; expected the same number"
            )
        tree = task.coordination
        if tree is not None and tuple(tree.names) != plan.workers:
            raise TaskError(
                f"job {self.job}: the coordination in its task is of {shorten(tree.names)}; "
                f"expected the plan's workers, {shorten(plan.workers)}"
            )
        needed = workload.worker_bytes if host in plan.workers else workload.relay_bytes
        why = too_much(
            needed, f"its part of {workload.elements} elements, {workload.rounds} rounds"
        )
        if why is not None:
            raise TaskError(
                f"job {self.job}, host {host}: {why}; use fewer elements, rounds or workers"
            )
        return task

    def _work(self, assignment: Assignment, plan: JobPlan) -> Script:
        task = self._task_of(assignment, plan)
        index = plan.workers.index(self.client.host)
        self._make_exchanges(assignment, plan, task)
        source: Source = yield from self._operation(
            lambda: self._make_source(assignment, plan, task, index)
        )
        yield from self._operation(source.prepare)
        self.client.ready()
        yield from self._until(lambda: self.client.started, "the start")
        yield from self._connect()
        intervals: list[Interval] = []
        following: Following = yield from self._operation(source.first, apart=source.waits)
        while following is not None:
            _, plan = yield from self._cross(len(intervals), assignment, plan, task)
            name, tensor = following
            started = time.monotonic()
            result = like(tensor)
            self.elements = len(tensor)
            self._begin(plan, tensor, result, started)
            yield from self._exchanged()
            intervals.append((started, time.monotonic()))
            following = yield from self._operation(
                partial(source.after, name, result), apart=source.waits
            )
            self.round = len(intervals)
            self.client.progress(self.round)
        verdict = yield from self._operation(source.workload.verdict)
        self.client.finished(
            {
                "verdict": asdict(verdict),
                "intervals": intervals,
                "retransmissions": self._sent_again
                + sum(e.retransmissions for e in self._exchanges.values()),
                "outcome": source.workload.outcome(),
                "forms": _forms(assignment.network, plan, task),
            }
        )
        # Others may still need this worker: a restarted server asks for its last window.
        while not self._released:
            yield

    def _make_source(self, assignment: Assignment, plan: JobPlan, task: Task, index: int) -> Source:
        tree = task.coordination
        if task.workload.kind == VECTORS:
            self._source = SwitchedVectors(self._vectors.of(self.job))
        elif task.workload.kind == PROCESS:
            self._source = self._of_process(plan)
        elif tree is None:
            self._source = LockStep(make_workload(task.workload, index, plan))
        else:
            training = OperatorTraining(task.workload, index, plan)
            vectors = None if task.vectors is None else self._vectors.of(task.vectors)
            coordinator = coordinator_of(assignment.network, tree, index, self.job, vectors)
            self._source = AgreedOrder(training, coordinator, vectors)
        return self._source

    def _of_process(self, plan: JobPlan) -> ProcessTensors:
        if not plan.trees or plan.host_parts:
            raise TaskError(
                f"job {self.job}: tensors of processes are summed in the switches or by a server; "
                "expected algorithm in-network or server"
            )
        return ProcessTensors(self.client.host, self.job, len(plan.workers))

    def _make_exchanges(
        self, assignment: Assignment, plan: JobPlan, task: Task, border: int = 0
    ) -> None:
        """The ways by which this host sums its parts of tensors from a border on."""
        network, host = assignment.network, self.client.host
        tensors = [decompose(plan, size) for size in sorted(set(task.workload.tensor_sizes()))]
        for place, (part, _, _) in enumerate(decompose(plan, 0)):
            if part is None and plan.trees:
                if host in plan.workers:
                    self._exchanges[place] = self._tree_exchange(network, plan, task)
            elif part is None or host in part.hosts:
                self._exchanges[place] = ScheduleExchange(
                    _schedule_maker(network, plan, task, part),
                    network,
                    host,
                    [stop - start for _, start, stop in (parts[place] for parts in tensors)],
                    lambda work: self._pool.put_apart(self.job, work),
                    port_of(self.job, place + PARTS * border),
                    self._tos,
                    whose=self.job << 48 | (place + PARTS * border),
                )

    def _tree_exchange(self, network: Network, plan: JobPlan, task: Task) -> TreeExchange:
        if self._worker is not None:
            return TreeExchange(self._worker)
        options = task.options or suitable_options(network, plan)
        index = plan.workers.index(self.client.host)
        self._worker = Worker(plan, index, network, options)
        self._worker.mark(self._tos)
        self._install(self._worker)
        return TreeExchange(self._worker)

    def _connect(self) -> Script:
        """Meet the hosts with which schedules run."""
        for exchange in self._schedules():
            exchange.connect()
        yield from self._exchanged()

    def _begin(self, plan: JobPlan, tensor: Tensor, result: Tensor, now: float) -> None:
        """Hand every part of a tensor to its exchange (002, decomposition); all are under way."""
        for place, (_, start, stop) in enumerate(decompose(plan, len(tensor))):
            if place in self._exchanges:
                self._exchanges[place].begin(tensor[start:stop], result[start:stop], now)

    def _exchanged(self) -> Script:
        """Wait until nothing is under way."""
        while not all(exchange.done() for exchange in self._exchanges.values()):
            yield


def _forms(network: Network, plan: JobPlan, task: Task) -> list[str]:
    """Describe how level-wise exchanges the job's tensors; empty for other algorithms."""
    if task.schedule != LEVEL_WISE:
        return []
    sizes = sorted(set(task.workload.tensor_sizes()))
    return list(forms_of(network, plan.workers, sizes, task.form))


def _schedule_maker(
    network: Network, plan: JobPlan, task: Task, part: HostPart | None
) -> Callable[[int], Schedule]:
    """For so many elements the schedule of a part, or (None) of the task's algorithm."""
    if part is not None:
        return partial(host_part_all_reduce, part, plan.workers)
    algorithm = task.schedule
    if algorithm is None:
        raise TaskError(
            f"job {plan.job}: neither its plan nor its task says how to sum; expected trees or "
            'parts of hosts in the plan, or "schedule" in the task'
        )
    return lambda elements: make_schedule(
        algorithm, network, plan.workers, elements, task.trees, task.form
    )
