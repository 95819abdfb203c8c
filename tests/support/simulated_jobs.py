"""Whole jobs in virtual time: plans, switches, agents, links, faults."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache, partial

from hopsum.collectives.plan import DataType, HostPart, JobPlan
from hopsum.collectives.schedule import Schedule
from hopsum.collectives.workload import RANDOM, VECTORS, WorkloadSpec
from hopsum.controller.dataplane.rules import SwitchRules, rules_for
from hopsum.coordination.tree import CoordinationTree
from hopsum.host_agent.node.work import Work
from hopsum.host_agent.operator_training import OperatorTraining
from hopsum.host_agent.options import WorkerOptions
from hopsum.host_agent.plan_checks import KEY_BYTES
from hopsum.host_agent.session import Assignment
from hopsum.host_agent.task import Task
from hopsum.host_agent.workload import (
    CheckedWorkload,
    Interval,
    Workload,
    intervals_from,
    reduce_seconds,
)
from hopsum.network.model import Network
from hopsum.protocol import hopsum_pb2 as pb
from hopsum.simulation.events import SimulationError
from hopsum.simulation.faults import Faults
from hopsum.simulation.host import VirtualHosts
from hopsum.simulation.tcp import RECEIVE_BUFFER, receive_buffer
from hopsum.simulation.world import World
from p4switch.targets.v1model.engine import Engine
from tests.support.installed_rules import install, read_outcomes, update
from tests.support.scripted_controller import Script, ScriptedJob

MakeEngine = Callable[[], Engine]


def drain(world: World) -> None:
    """Let frames under way arrive, while hosts send no more."""
    for host in [*world.agents]:
        world.leave(host)
    while world.queue.step():
        pass


@dataclass(frozen=True, slots=True)
class Replan:
    """A new epoch: at `time` all switches get the rules of `plan` at once.

    The servers and then the workers receive it one after the other, `delay` seconds apart.
    `restarted`: hosts whose agents have lost all state just before.
    """

    time: float
    plan: JobPlan
    delay: float = 0.0
    restarted: tuple[str, ...] = ()


MakeWorkload = Callable[[int], Workload | OperatorTraining]


@dataclass
class SimulatedRun:
    """Result of a simulated job. `links`: bytes by direction; times in virtual seconds.

    `reports`: final report of each worker's agent, in the plan's order. `flipped`: frames in which
    a bit flipped undetected.
    """

    seconds: float
    links: dict[tuple[str, str], int]
    switches: dict[str, dict[str, int]]
    retransmissions: int
    workloads: Sequence[CheckedWorkload]
    packet_hops: int
    finished_at: float
    intervals: list[list[Interval]] = field(default_factory=list)
    reports: Sequence[pb.Report] = ()
    flipped: int = 0


def simulate_plan(
    network: Network,
    plan: JobPlan,
    make_engine: MakeEngine,
    make_workload: MakeWorkload,
    *,
    faults: Faults | None = None,
    seed: int = 0,
    limit: float = 600.0,
    options: WorkerOptions | None = None,
    replans: Sequence[Replan] = (),
    tree: CoordinationTree | None = None,
    vectors: JobPlan | None = None,
    tensors: Sequence[tuple[int, DataType]] = (),
    cuts: Mapping[int, JobPlan] | None = None,
) -> SimulatedRun:
    """Run a job's workload through the switches, with new plans at given times.

    Hosts sum their parts of the plan, if any, at the same time; `tensors`: length and type of all
    tensors in order, for relays. `cuts`: by tensor number, the plan that partitions it and later
    ones. `tree`: over the workers by index, if the workload's operators need an agreed order.
    `vectors`: plan of a job of the same workers, in the same order, that combines their bit vectors
    (its reduction is the bitwise AND); None: on the tree or its ring. Raises JobFailed if an agent
    gives up, SimulationError after `limit` virtual seconds.
    """
    options = options or WorkerOptions()
    task = Task(
        _GivenTensors.of(len(plan.workers), tensors),
        options=asdict(options),
        coordination=tree,
        vectors=None if vectors is None else vectors.job,
        key=random.Random(f"{seed}/key").randbytes(KEY_BYTES) if plan.integrity else None,
    )
    work = GivenWork(task, make_workload)
    simulation = Simulation(network, make_engine, faults=faults, seed=seed)
    if vectors is not None:
        spec = WorkloadSpec(VECTORS, len(plan.workers), 0, 0, DataType.INT32, 0)
        simulation.add(vectors, Work(Task(spec, options=asdict(options))))
    simulation.add(plan, work, cuts)
    for each in replans:
        simulation.replan(each)
    simulation.run(limit)
    return simulation.result(plan.job, work.made)


def simulate_schedule(
    network: Network,
    workers: Sequence[str],
    schedule: Callable[[int], Schedule],
    make_engine: MakeEngine,
    make_workload: MakeWorkload,
    *,
    faults: Faults | None = None,
    seed: int = 0,
    limit: float = 600.0,
    tree: CoordinationTree | None = None,
) -> SimulatedRun:
    """Run the workload as all-reduces of the workers among themselves, through plain forwarding.

    `schedule`: returns the schedule for a number of elements; its ranks are the workers, without
    relays. `tree`: as `simulate_plan`.
    """

    @cache
    def named(elements: int) -> Schedule:
        return replace(schedule(elements), names=tuple(workers))

    task = Task(
        _GivenTensors.of(len(workers), ()), options=asdict(WorkerOptions()), coordination=tree
    )
    work = GivenWork(task, make_workload, named)
    simulation = Simulation(network, make_engine, faults=faults, seed=seed, fair=True)
    simulation.add(roster(workers), work)
    simulation.run(limit)
    return simulation.result(1, work.made)


def roster(workers: Sequence[str], job: int = 1) -> JobPlan:
    """Return the plan of a job whose workers sum among themselves; it only names them."""
    return JobPlan(job, 1, tuple(workers), (), lanes=1, window=1)


@dataclass(frozen=True, slots=True)
class _GivenTensors(WorkloadSpec):
    """Tensors given by a caller."""

    sizes: tuple[int, ...] = ()

    @classmethod
    def of(cls, workers: int, tensors: Sequence[tuple[int, DataType]]) -> _GivenTensors:
        """Return a description of tensors of these lengths, all of one type."""
        dtype = tensors[0][1] if tensors else DataType.INT32
        return cls(RANDOM, workers, 0, 1, dtype, 0, sizes=tuple(size for size, _ in tensors))

    def tensor_sizes(self) -> list[int]:
        """Return their lengths."""
        return [*self.sizes]


class GivenWork(Work):
    """The caller's workloads and schedules, instead of the task's. `made`: by worker."""

    def __init__(
        self,
        task: Task,
        make: MakeWorkload,
        schedule: Callable[[int], Schedule] | None = None,
    ) -> None:
        super().__init__(task)
        self.made: dict[int, CheckedWorkload] = {}
        self._make = make
        self._schedule = schedule

    def workload(self, index: int, plan: JobPlan) -> Workload | OperatorTraining:
        """Return the caller's workload. ValueError for one that does not fit the task."""
        workload = self._make(index)
        if isinstance(workload, Workload):
            if self.task.vectors is not None:
                raise ValueError("a workload in lock step has no bit vectors: expected operators")
        elif self.task.coordination is None:
            raise ValueError("the workload's operators need an agreed order: expected a tree")
        self.made[index] = workload
        return workload

    def schedule(
        self, network: Network, plan: JobPlan, part: HostPart | None
    ) -> Callable[[int], Schedule]:
        """Return the caller's schedule where the plan has none."""
        if part is None and self._schedule is not None:
            return self._schedule
        return super().schedule(network, plan, part)


class Simulation:
    """A world with its switches and agents, and a controller that follows a script.

    `fair`: hosts serve their TCP connections in turn, with buffers of the same size as in Mininet.
    """

    def __init__(
        self,
        network: Network,
        make_engine: MakeEngine,
        *,
        faults: Faults | None = None,
        seed: int = 0,
        fair: bool = False,
    ) -> None:
        self._network = network
        self._make_engine = make_engine
        self._plans: dict[int, JobPlan] = {}
        self._works: dict[int, Work] = {}
        self.jobs: list[ScriptedJob] = []
        self._rules: dict[str, SwitchRules] = {}
        self._outcomes = {name: dict[str, int]() for name in network.switches}
        self._finished_at = 0.0
        self.world = World(
            network,
            dict[str, Engine | None].fromkeys(network.switches),
            {},
            faults=faults,
            seed=seed,
            reinstall=self._switch,
            on_reboot=self._keep_outcomes,
            fair=fair,
        )

        def buffer(host: str) -> int:
            return receive_buffer(network, host) if fair else RECEIVE_BUFFER

        hosts = VirtualHosts(self.world, buffer, lambda given: self._works[given.plan.job])
        self.script = Script(hosts)

    def _switch(self, name: str) -> Engine:
        engine = self._make_engine()
        install(engine, self._rules[name])
        return engine

    def _keep_outcomes(self, name: str, engine: Engine) -> None:
        for outcome, count in read_outcomes(engine).items():
            self._outcomes[name][outcome] = self._outcomes[name].get(outcome, 0) + count

    def add(
        self,
        plan: JobPlan,
        work: Work,
        cuts: Mapping[int, JobPlan] | None = None,
    ) -> None:
        """Add a job that begins with the run; `cuts` as of `ScriptedJob`."""
        self._plans[plan.job] = plan
        self._works[plan.job] = work
        assignment = Assignment(self._network, plan, pb.Task(key=work.task.key or b""))
        self.jobs.append(ScriptedJob(assignment, cuts))

    def replan(self, replan: Replan) -> None:
        """Schedule a newer plan."""

        def come() -> None:
            self._plans[replan.plan.job] = replan.plan
            self._switch_over(rules_for(self._network, self._plans.values()))
            for host in replan.restarted:
                self.script.restart(host)

        self.world.queue.at(replan.time, come)
        servers = [tree.server for tree in replan.plan.trees]
        for number, host in enumerate(dict.fromkeys((*servers, *replan.plan.workers))):
            time = replan.time + number * replan.delay
            self.world.queue.at(time, partial(self.script.send_plan, host, replan.plan))

    def _switch_over(self, newer: dict[str, SwitchRules]) -> None:
        """Install new rules on every switch; one that is down gets them when it is back."""
        for name, engine in self.world.engines.items():
            if engine is not None:
                update(engine, self._rules[name], newer[name])
        self._rules = newer

    def start(self) -> None:
        """Set up switches and agents; jobs start when the world runs."""
        self._rules = rules_for(self._network, self._plans.values())
        self.world.engines.update({name: self._switch(name) for name in self._network.switches})
        for job in self.jobs:
            self.script.add(job)
        self.world.queue.at(0.0, self.script.start)

    def run(self, limit: float = 600.0) -> None:
        """Run all jobs to completion. Raises as `simulate_plan`."""
        self.start()
        try:
            self._finished_at = self.world.run(self.script.check, limit)
        except SimulationError as error:
            waiting = ", ".join(host for job in self.jobs for host in job.missing)
            raise SimulationError(f"{error}; workers not done: {waiting}") from error
        drain(self.world)
        for name, engine in self.world.engines.items():
            if engine is not None:
                self._keep_outcomes(name, engine)

    def result(
        self, job: int, workloads: Mapping[int, CheckedWorkload] | None = None
    ) -> SimulatedRun:
        """Return the result of job number `job`, and release its agents."""
        plan, scripted = self._plans[job], self.script.jobs[job]
        reports = [scripted.reports[worker] for worker in plan.workers]
        intervals = [intervals_from(report.intervals) for report in reports]
        retransmissions = sum(
            self.script.hosts[worker].agent.members[job].retransmissions for worker in plan.workers
        )
        self.script.release(job)
        return SimulatedRun(
            seconds=reduce_seconds(intervals),
            links={link: channel.bytes for link, channel in self.world.channels.items()},
            switches=self._outcomes,
            retransmissions=retransmissions,
            workloads=[workload for _, workload in sorted((workloads or {}).items())],
            packet_hops=self.world.packet_hops,
            finished_at=self._finished_at,
            intervals=intervals,
            reports=reports,
            flipped=sum(channel.flipped for channel in self.world.channels.values()),
        )
