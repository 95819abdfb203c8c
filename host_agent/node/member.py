"""One host in one job: workers and servers that never block, so that a host can have many.

A member's life is written as a generator that yields whenever there is nothing to do until frames,
the controller's news or a completed operation come; `advance` goes on where it stopped.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

import numpy as np

from hopsum.collectives.algorithms.catalogue import LEVEL_WISE
from hopsum.collectives.algorithms.level_wise_form import forms_of
from hopsum.collectives.plan import JobPlan
from hopsum.host_agent.io.loop import Machine
from hopsum.host_agent.node.environment import Environment, NamedTensor, Source, Stream, Then
from hopsum.host_agent.node.exchange import Exchange, TreeExchange, like
from hopsum.host_agent.node.operation_pool import TaskResult
from hopsum.host_agent.node.parts import Parts
from hopsum.host_agent.node.process_source import ProcessSource
from hopsum.host_agent.node.roots import roots_of
from hopsum.host_agent.node.source import AgreedOrder, LockStep
from hopsum.host_agent.node.vectors import SwitchedVectors, VectorQueues
from hopsum.host_agent.node.work import Work
from hopsum.host_agent.operator_training import OperatorTraining
from hopsum.host_agent.segment import Tensor
from hopsum.host_agent.session import AgentLost, AllDone, Assignment, JobWaits, PlanChanged
from hopsum.host_agent.task import TaskError
from hopsum.host_agent.timeout import earliest
from hopsum.host_agent.workload import PROCESS, VECTORS, verdict_message
from hopsum.network.model import Network, shorten
from hopsum.protocol import hopsum_pb2 as pb
from hopsum.protocol.channel import ControllerError
from hopsum.protocol.errors import OperationError
from hopsum.protocol.tos import tos_of_level

Script = Generator[None, None, None]

PROGRESS_SECONDS = 0.25
"""Seconds between two progress messages to the controller."""
MOST_INTERVALS = 500_000
"""Tensors whose times a report has, the first ones: 8 MB, which the controller takes
(`hopsum.controller.jobs.tracker`, MOST_REPORT_BYTES)."""


class PeerGone(OperationError):
    """Another agent of the job failed or is gone, and why; names its host and what is missing.

    `for_controller`: the same for the controller, which knows why.
    """

    def __init__(self, job: int, host: str, why: str, missing: str = "") -> None:
        super().__init__(f"job {job}: agent on {host} is lost: {why}{missing}")
        self.for_controller = f"agent on {host} is lost{missing}"


@dataclass(eq=False, slots=True)
class _Call:
    """A tensor that is being summed: number `place` of the job's, and its pending parts."""

    name: str
    place: int
    result: Tensor
    parts: list[tuple[Exchange, int]]

    def done(self) -> bool:
        """Return whether the sum is in place; raises the job's error."""
        self.parts = [(exchange, call) for exchange, call in self.parts if not exchange.done(call)]
        return not self.parts


class Member:
    """This host in the job of `stream`.

    `install` is called with the machine that takes the job's frames. `vectors`: of all jobs of this
    host. `assign_level`: called with the level of the job's frames and operations.
    """

    def __init__(
        self,
        stream: Stream,
        environment: Environment,
        install: Callable[[Machine], None],
        vectors: VectorQueues,
        frame_bytes: Callable[[], int] = lambda: 0,
        assign_level: Callable[[int], None] = lambda level: None,
    ) -> None:
        """`frame_bytes`: the bytes of the job's frames here so far."""
        self._frame_bytes = frame_bytes
        self.stream = stream
        self.job = stream.job
        self.over = False
        self.round = 0
        """Tensors summed."""
        self.elements = 0
        """Number of the tensor whose sum started last."""
        self.summed_bytes = 0
        """Bytes of tensors summed."""
        self._environment = environment
        self._install = install
        self._vectors = vectors
        self._now = 0.0
        self._plan: JobPlan | None = None
        self._parts = Parts(self.job, stream.host, environment, install)
        self._source: Source | None = None
        self._under_way: list[_Call] = []
        self._intervals = pb.Intervals()
        self._begun = 0
        """Number of tensors whose sums have begun."""
        self._reported = 0
        """Number of tensors summed that the controller knows of."""
        self._reported_at = -inf
        self._released = False
        self._finished = False
        """Whether its report has been sent."""
        self._assign_level = assign_level
        self._early_tensors = 0
        self._level: int | None = None
        """The level after these, None before the controller's command."""
        self._then: dict[int, Then] = {}
        self._script = self._live()

    def advance(self, now: float) -> None:
        """Advance as far as possible. Raises errors that end the job here; `over` at the end."""
        if self.over:
            return
        self._now = now
        self._take_news()
        ended = next(self._script, self) is self
        # Released before the start, it is not needed, and no start follows.
        self.over = ended or (self._released and not self.stream.started)

    def completed(self, done: TaskResult, now: float) -> None:
        """Process an operation of this job; raises its error."""
        if done.error is not None:
            raise done.error
        self._then.pop(done.number)(done.value, now)

    def tick(self, now: float) -> None:
        """Run due timers; `advance` follows."""
        source = self._source
        if source is not None and source.deadline is not None and source.deadline <= now:
            source.tick(now)
        self._tell_progress(now)

    @property
    def stirred(self) -> bool:
        """Whether received frames may have given `advance` something to do."""
        return self._parts.stirred

    @property
    def deadline(self) -> float | None:
        """Latest time to call `tick` and `advance`."""
        source = None if self._source is None else self._source.deadline
        progress = None if self._reported == self.round else self._reported_at + PROGRESS_SECONDS
        return earliest(source, progress)

    def close(self, why: str = "") -> None:
        """Release the member's resources in any state; the stream stays open.

        `why`: what ended it, if it is not done.
        """
        self.over = True
        self._parts.close()
        if self._source is not None:
            self._source.close(why)

    def set_level(self, level: int, early_tensors: int = 0) -> None:
        """Mark frames with a level; servers follow their workers' (`hopsum.protocol.tos`).

        While fewer than `early_tensors` are summed, they have level 0. LevelError for a level that
        packets cannot carry.
        """
        tos_of_level(level)
        self._level, self._early_tensors = level, early_tensors
        self._mark(0 if self._early else level)

    @property
    def _early(self) -> bool:
        return self.round < self._early_tensors

    def _mark(self, level: int) -> None:
        self._assign_level(level)
        self._parts.mark(tos_of_level(level))

    @property
    def sent_bytes(self) -> int:
        """Bytes of frames, and of payload by TCP, that it has sent."""
        return self._frame_bytes() + self._parts.sent_bytes

    @property
    def retransmissions(self) -> int:
        """Retransmitted fragments and segments."""
        return self._parts.retransmissions

    # -- the controller's news

    def _take_news(self) -> None:
        for event in self.stream.events():
            if isinstance(event, PlanChanged):
                self._adopt(event.plan)
            elif isinstance(event, AllDone):
                self._released = True
                self._fail_with(event.lost)
            elif isinstance(event, AgentLost):
                self._lost(event)
            elif isinstance(event, JobWaits):
                self._parts.postpone(self._now)
                if event.over and self._parts.worker is not None:
                    self._parts.worker.resume(self._now)

    @property
    def replaceable(self) -> bool:
        """Whether another member may take its place, as that of a server, or has no part yet."""
        plan, host = self._plan, self.stream.host
        return plan is None or (host in plan.servers and host not in (*plan.workers, *plan.relays))

    def _fail_with(self, lost: Mapping[str, str]) -> None:
        """Raise PeerGone if the job has lost workers before this one finished its part."""
        if self._plan is None or self._finished or self.stream.host not in self._plan.workers:
            return
        for host, why in lost.items():
            if host in self._plan.workers:
                raise PeerGone(self.job, host, why)

    def _adopt(self, plan: JobPlan) -> None:
        assignment = self.stream.assignment
        assert assignment is not None
        self._follow(assignment.network, plan)
        self._parts.adopt(assignment.network, plan, assignment.task.key or None, self._now)

    def _follow(self, network: Network, plan: JobPlan) -> None:
        """Send from now on over the links that a plan's trees use at this host."""
        self._plan = plan
        host = self.stream.host
        self._environment.use_links(
            self.job,
            {
                tree.tree: network.port(host, tree.access(host))
                for tree in plan.trees
                if host == tree.server or host in plan.workers
            },
            network.ports(host),
        )

    def _lost(self, event: AgentLost) -> None:
        """Process the loss of an agent: fatal for a worker; a server may be restarted or replaced.

        A fragment that no server answers ends the job at its deadline (`WorkerOptions`).
        """
        plan = self._plan
        if plan is not None and event.host not in plan.workers:
            return
        waits = [
            f"; fragment {missing.fragment} lacks {', '.join(missing.workers)}"
            for server in self._parts.servers
            if (missing := server.missing()) is not None
        ]
        raise PeerGone(self.job, event.host, event.reason, "".join(waits))

    # -- the member's life

    def _live(self) -> Script:
        yield from self._until(lambda: self.stream.assignment is not None)
        assignment = self.stream.assignment
        assert assignment is not None
        self._follow(assignment.network, assignment.plan)
        if self.stream.host in assignment.plan.workers:
            yield from self._work(assignment, assignment.plan)
        else:
            yield from self._serve(assignment, assignment.plan)

    def _until(self, true: Callable[[], bool]) -> Script:
        while not true():
            yield

    def _operate(self, work: Callable[[], Any], then: Then) -> None:
        self._then[self._environment.put(self.job, work)] = then

    def _operation(self, work: Callable[[], Any]) -> Generator[None, None, Any]:
        """Wait for an operation; return its value."""
        values: list[Any] = []
        self._operate(work, lambda value, now: values.append(value))
        while not values:
            yield
        return values[0]

    def _serve(self, assignment: Assignment, plan: JobPlan) -> Script:
        """Serve as an auxiliary host: at the root of trees, as a relay among hosts, or both."""
        self._parts.adopt(assignment.network, plan, assignment.task.key or None, self._now)
        self._install(self._parts.servers)
        work = None
        relays = any(self.stream.host in part.hosts for part in plan.host_parts)
        if relays or plan.period:
            work = self._work_of(assignment, plan)
            if work.task.coordination is None:
                self._parts.divide(assignment.network, plan, work)
            elif relays:
                raise TaskError(
                    f"job {self.job}: its workers agree on an order of tensors, and relay "
                    f"{self.stream.host} takes no part in that; expected parts of workers alone"
                )
            else:
                work = None
        self.stream.ready()
        yield from self._until(lambda: self.stream.started)
        if work is not None:
            yield from self._unless_released(self._parts.connect())
            yield from self._unless_released(self._relay(assignment, work, plan))
        while not self._released:
            yield

    def _unless_released(self, script: Iterator[None]) -> Script:
        """Run a script to its end, or until the job no longer needs this host.

        The last tensors may be complete while this host waits for a boundary: the message that it
        reached the boundary, or the answer, was lost.
        """
        for _ in script:
            if self._released:
                return
            yield

    def _cross(
        self, number: int, assignment: Assignment, plan: JobPlan, work: Work
    ) -> Generator[None, None, tuple[int, JobPlan]]:
        """Return, before tensor `number`, the boundary and the plan that partitions it.

        Partitions change at boundaries only (`JobPlan.period`), which are requested from the
        controller half a period earlier. All hosts wait there for the answer, which is the same for
        all, so that they partition every tensor alike, even in different epochs. A relay that had
        nothing to sum may learn of a later boundary first, and continues from there; the end
        follows the last tensor.
        """
        period = plan.period
        if not period:
            return number, plan
        boundary, inside = divmod(number, period)
        if boundary and not inside:
            while (decided := self.stream.cut(boundary)) is None:
                yield
            at, cut = decided
            if at != boundary and self.stream.host in plan.workers:
                raise ControllerError(
                    f"job {self.job}, host {self.stream.host}: waits at boundary {boundary} and "
                    f"received boundary {at}; expected that of tensor {number}"
                )
            number = at * period
            if number >= len(work.task.workload.tensor_sizes()):
                return number, plan
            if cut.cut != plan.cut:
                self._parts.divide(assignment.network, cut, work, at)
                if self._source is not None:
                    self._source.workload.cut_as(cut)
                yield from self._parts.connect()
            plan = cut
        if number % period == period // 2:
            self.stream.ask_boundary(number // period + 1)
        return number, plan

    def _relay(self, assignment: Assignment, work: Work, plan: JobPlan) -> Script:
        """Take part in the sums of every tensor as a relay, which contributes nothing."""
        sizes = work.task.workload.tensor_sizes()
        number = 0
        while number < len(sizes):
            number, plan = yield from self._cross(number, assignment, plan, work)
            if number >= len(sizes):
                return
            if self._parts.takes_part:
                zeros = np.zeros(sizes[number], work.task.workload.dtype.value)
                self._begin(plan, NamedTensor("", zeros))
                while not self._complete():
                    yield
                number += 1
                self.round = self._reported = number
            elif plan.period:
                boundary = number // plan.period + 1
                self.stream.ask_boundary(boundary)
                number = boundary * plan.period
            else:
                return

    def _work_of(self, assignment: Assignment, plan: JobPlan) -> Work:
        """Return the job's work.

        Raises TaskError where it does not fit the plan, or this machine.
        """
        work = self._environment.work(assignment)
        task, workload, host = work.task, work.task.workload, self.stream.host
        if workload.workers != len(plan.workers):
            raise TaskError(
                f"job {self.job}: its task is for {workload.workers} workers, its plan for "
                f"{len(plan.workers)}; expected the same number"
            )
        if workload.ranks and set(workload.ranks) != set(plan.workers):
            raise TaskError(
                f"job {self.job}: its ranks are on {shorten(sorted(set(workload.ranks)))}; "
                f"expected one or more on each of the plan's workers, {shorten(plan.workers)}"
            )
        tree = task.coordination
        if tree is not None and tuple(tree.names) != plan.workers:
            raise TaskError(
                f"job {self.job}: the coordination in its task is of {shorten(tree.names)}; "
                f"expected the plan's workers, {shorten(plan.workers)}"
            )
        needed = workload.worker_bytes if host in plan.workers else workload.relay_bytes
        why = self._environment.too_much(
            needed, f"its part of {workload.elements} elements, {workload.rounds} rounds"
        )
        if why is not None:
            raise TaskError(
                f"job {self.job}, host {host}: {why}; use fewer elements, rounds or workers"
            )
        return work

    def _work(self, assignment: Assignment, plan: JobPlan) -> Script:
        work = self._work_of(assignment, plan)
        self._parts.divide(assignment.network, plan, work)
        source = self._source = yield from self._make_source(assignment, plan, work)
        source.prepare()
        while not source.prepared:
            yield
        self.stream.ready()
        yield from self._until(lambda: self.stream.started)
        yield from self._parts.connect()
        source.start(self._now)
        plan = yield from self._sum(assignment, plan, work, source)
        if self._reported != self.round:
            self._reported = self.round
            self.stream.progress(self.round)
        verdict = yield from self._operation(source.workload.verdict)
        outcome = yield from self._operation(source.workload.outcome)
        self._finished = True
        self.stream.finished(
            pb.Report(
                verdict=verdict_message(verdict),
                intervals=self._intervals,
                retransmissions=self.retransmissions,
                forms=_forms(assignment.network, plan, work),
                outcome=outcome,
                sent_bytes=self.sent_bytes,
            )
        )
        # Others may still need this worker: a restarted server asks for its last window.
        while not self._released:
            yield

    def _sum(
        self, assignment: Assignment, plan: JobPlan, work: Work, source: Source
    ) -> Generator[None, None, JobPlan]:
        """Sum all tensors, as many at once as allowed; return the last tensor's plan."""
        trees, direct = self._parts.trees, None
        if isinstance(source, ProcessSource) and trees is not None:
            direct = source, trees
        while True:
            if direct is not None:
                self._take_over(*direct)
            self._finish(source)
            room = not self._under_way or self._parts.several
            following = source.next(self._now) if room else None
            if following is not None:
                number = self._begun
                if plan.period and number % plan.period == 0:
                    # Nothing may be in flight where partitions change.
                    while self._under_way:
                        if not self._finish(source):
                            yield
                _, plan = yield from self._cross(number, assignment, plan, work)
                self._begin(plan, following)
            elif source.over and not self._under_way:
                return plan
            else:
                if direct is not None:
                    self._expect(*direct, plan)
                yield

    def _expect(self, source: ProcessSource, trees: TreeExchange, plan: JobPlan) -> None:
        """Let flows take the calls that are expected next, if this waits for them.

        They take many at once, and would keep the level of the first iterations for all.
        """
        idle = not self._under_way and not plan.period and not self._early
        trees.expect(source.expect(plan.reduction, trees.only_tree) if idle else None)

    def _take_over(self, source: ProcessSource, trees: TreeExchange) -> None:
        """Count the calls that flows have taken, and go on with one that they have begun."""
        done, open_ = trees.taken()
        number, begun = (-1, None) if open_ is None else open_
        named = source.took(len(done), begun)
        # Flows take float32 and int32.
        self._count(len(done), 4 * sum(each.elements for each in done))
        for each in done:
            self.elements = each.elements
            self._note_times(each.began, each.ended)
        if named is not None and begun is not None:
            self.elements = len(named.tensor)
            place = self._note_times(begun.at, begun.at)
            self._under_way.append(_Call(named.name, place, named.tensor, [(trees, number)]))

    def _begin(self, plan: JobPlan, named: NamedTensor) -> None:
        """Start summing a tensor."""
        name, tensor, options = named
        in_place = self._source is not None and self._source.in_place
        if in_place:
            result = tensor
        else:
            # What is not in a range of this host's stays as it was.
            result = like(tensor) if options.ranges is None else np.array(tensor)
        self.elements = len(tensor)
        parts = self._parts.begin(plan, tensor, result, options, self._now)
        place = self._note_times(self._now, self._now)
        self._under_way.append(_Call(name, place, result, parts))

    def _note_times(self, began: float, ended: float) -> int:
        """Return the number of a tensor; note its times if it is one of the first."""
        place, self._begun = self._begun, self._begun + 1
        if place < MOST_INTERVALS:
            self._intervals.starts.append(began)
            self._intervals.finishes.append(ended)
        return place

    def _complete(self) -> list[_Call]:
        """Remove completed calls."""
        complete = [call for call in self._under_way if call.done()]
        for call in complete:
            self._under_way.remove(call)
            if call.place < len(self._intervals.finishes):
                self._intervals.finishes[call.place] = self._now
        return complete

    def _finish(self, source: Source) -> bool:
        """Deliver the sums of completed calls; return whether there were any."""
        complete = self._complete()
        self._count(len(complete), sum(call.result.nbytes for call in complete))
        for call in complete:
            source.finish(call.name, call.result, self._now)
        self._tell_progress(self._now)
        return bool(complete)

    def _count(self, tensors: int, size: int) -> None:
        """Count summed tensors and their bytes; later iterations' frames have another level."""
        early = self._early
        self.round += tensors
        self.summed_bytes += size
        if early and not self._early and self._level is not None:
            self._mark(self._level)

    def _tell_progress(self, now: float) -> None:
        """Report progress to the controller, not for every tensor if there are many."""
        if self._reported != self.round and self._reported_at + PROGRESS_SECONDS <= now:
            self._reported, self._reported_at = self.round, now
            self.stream.progress(self.round)

    def _make_source(
        self, assignment: Assignment, plan: JobPlan, work: Work
    ) -> Generator[None, None, Source]:
        task, index = work.task, plan.workers.index(self.stream.host)
        if task.workload.kind == VECTORS:
            return SwitchedVectors(self._vectors.of(self.job))
        if task.workload.kind == PROCESS:
            return self._of_process(plan, task.workload.ranks, task.attend_seconds)
        workload = yield from self._operation(lambda: work.workload(index, plan))
        if not isinstance(workload, OperatorTraining):
            return LockStep(workload, self._operate, plan)
        assert task.coordination is not None
        vectors = None if task.vectors is None else self._vectors.of(task.vectors)
        coordination = self._environment.coordination(
            assignment.network,
            task.coordination,
            index,
            self.job,
            None if vectors is None else vectors.reduction,
        )
        spacing = self._environment.gradient_seconds
        return AgreedOrder(workload, coordination, self._operate, spacing, vectors)

    def _of_process(
        self, plan: JobPlan, ranks: Sequence[str], attend_seconds: float
    ) -> ProcessSource:
        if not plan.trees or plan.host_parts:
            raise TaskError(
                f"job {self.job}: tensors of processes are summed in the switches or by a server; "
                "expected algorithm in-network or server"
            )
        attendance = self._environment.process_tensors(self.job)
        ranks = ranks or plan.workers
        return ProcessSource(
            attendance,
            self.stream.host,
            ranks,
            lanes=plan.values,
            window=plan.in_flight,
            sums_only=plan.integrity,
            roots=roots_of(plan, ranks),
            attend_seconds=attend_seconds,
        )


def _forms(network: Network, plan: JobPlan, work: Work) -> list[str]:
    """Describe how level-wise exchanges the job's tensors; empty for other algorithms."""
    if work.task.schedule != LEVEL_WISE:
        return []
    sizes = sorted(set(work.task.workload.tensor_sizes()))
    return list(forms_of(network, plan.workers, sizes, work.task.form))
