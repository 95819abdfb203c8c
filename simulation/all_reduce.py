"""A whole all-reduce job in virtual time: plan, switches, agents, links, faults."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial

from collectives.plan import DataType, JobPlan
from collectives.schedule import Schedule
from controller.dataplane.rules import SwitchRules, rules_for
from coordination.messages import Frame
from coordination.participant import Participant
from coordination.reduction import AndAllReduce
from coordination.tree import CoordinationTree
from host_agent.operator_training import OperatorTraining
from host_agent.server import Server
from host_agent.server_set import ServerSet
from host_agent.stream import WorkerOptions
from host_agent.worker import Worker
from host_agent.workload import Interval, Judged, Workload, reduce_seconds
from network.model import Network
from p4switch.v1model.engine import Engine
from protocol.wire import Address
from simulation.coordination import AgreedOrder, FrameTimes, LockStep, Source
from simulation.events import SimulationError
from simulation.faults import Faults
from simulation.install import install, read_outcomes, update
from simulation.members import (
    CoordinatedMember,
    InNetworkMember,
    ScheduleMember,
    SwitchedVectors,
)
from simulation.parts import AuxiliaryHost, MixedMember
from simulation.stream import receive_buffer
from simulation.world import Agent, World

MakeEngine = Callable[[], Engine]


@dataclass(frozen=True, slots=True)
class Replan:
    """At `time` the switches get the rules of `plan`, a newer epoch, all at once.

    The servers and then the workers hear of it one after the other, `delay` seconds apart.
    """

    time: float
    plan: JobPlan
    delay: float = 0.0


MakeWorkload = Callable[[int], Workload | OperatorTraining]


@dataclass
class SimulatedRun:
    """What a simulated job gave. `links`: bytes by direction; times in virtual seconds."""

    seconds: float
    links: dict[tuple[str, str], int]
    switches: dict[str, dict[str, int]]
    retransmissions: int
    workloads: Sequence[Judged]
    packet_hops: int
    finished_at: float
    intervals: list[list[Interval]] = field(default_factory=list)


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
    """Run a job's workload through the switches, under new plans as they come.

    Of a plan with parts of hosts, these sum theirs beside; `tensors`: length and type of all
    tensors in order, for relays. `cuts`: by the number of a tensor the plan by which it and those
    after it are cut, whatever its trees.
    `tree`: over the workers by index, where the workload's operators need an agreed order.
    `vectors`: plan of a job of the same workers, in the same order, that combines their bit vectors
    (its reduction is the bitwise and); None: on the tree or its ring. Raises JobFailed if an agent
    gives up, SimulationError past `limit` virtual seconds.
    """
    plans = {each.job: each for each in (plan, vectors) if each is not None}
    rules = rules_for(network, plans.values())
    members = [
        _member(network, plan, vectors, index, options, tree, make_workload, cuts)
        for index in range(len(plan.workers))
    ]
    agents: dict[str, Agent] = dict(zip(plan.workers, members, strict=True))
    if plan.host_parts or cuts:
        relays = [host for each in (plan, *(cuts or {}).values()) for host in each.auxiliary]
        for host in dict.fromkeys(relays):
            agents[host] = AuxiliaryHost(plan, network, host, tensors, cuts)
    for each in plans.values():
        for root in each.trees:
            servers = agents.setdefault(root.server, ServerSet())
            assert isinstance(servers, ServerSet)
            servers.add(Server(each, root.tree, network))

    def schedule(world: World) -> None:
        for replan in replans:
            plans[replan.plan.job] = replan.plan
            newer = rules_for(network, plans.values())
            world.queue.at(replan.time, partial(_switch_over, world, rules, newer))
            _tell(world, network, replan)

    return _run(
        network, rules, make_engine, agents, plan.workers, members, faults, seed, limit, schedule
    )


def _member(
    network: Network,
    plan: JobPlan,
    vectors: JobPlan | None,
    index: int,
    options: WorkerOptions | None,
    tree: CoordinationTree | None,
    make_workload: MakeWorkload,
    cuts: Mapping[int, JobPlan] | None,
) -> InNetworkMember | MixedMember:
    worker = Worker(plan, index, network, options) if plan.trees else None
    if worker is None or plan.host_parts or cuts:
        if vectors is not None:
            raise ValueError("bit vectors in the switches, tensors in parts: expected one of both")
        source = _source(tree, index, make_workload)
        return MixedMember(plan, network, plan.workers[index], worker, source, cuts)
    if vectors is None:
        return InNetworkMember(worker, _source(tree, index, make_workload))
    switched = SwitchedVectors(Worker(vectors, index, network, options))
    source = _source(tree, index, make_workload, switched.external)
    if not isinstance(source, AgreedOrder):
        raise ValueError("a workload in lock step has no bit vectors: expected operators")
    return CoordinatedMember(worker, source, switched)


def _source(
    tree: CoordinationTree | None,
    rank: int,
    make_workload: MakeWorkload,
    reduction: AndAllReduce | None = None,
) -> Source:
    """The tensors of a worker's workload; `reduction` of the bit vectors, None: over `tree`."""
    workload = make_workload(rank)
    if isinstance(workload, Workload):
        return LockStep(workload)
    if tree is None:
        raise ValueError("the workload's operators need an agreed order: expected a tree")
    return AgreedOrder(workload, Participant(tree, rank, rank + 1, 0.0, reduction=reduction))


def _switch_over(
    world: World, rules: dict[str, SwitchRules], newer: dict[str, SwitchRules]
) -> None:
    """New rules on every switch; one that is down gets them when it is back."""
    for name, engine in world.engines.items():
        if engine is not None:
            update(engine, rules[name], newer[name])
    rules.update(newer)


def _tell(world: World, network: Network, replan: Replan) -> None:
    """Let the agents hear of a plan one after the other, servers first."""
    servers = [tree.server for tree in replan.plan.trees]
    for number, host in enumerate(dict.fromkeys((*servers, *replan.plan.workers))):
        agent = world.agents.setdefault(host, ServerSet())

        def adopt(host: str = host, agent: Agent = agent) -> None:
            if isinstance(agent, ServerSet):
                agent.adopt(replan.plan, host, network)
            elif isinstance(agent, InNetworkMember | MixedMember):
                agent.adopt(replan.plan, world.queue.now)
            world.flush(host)

        world.queue.at(replan.time + number * replan.delay, adopt)


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

    `schedule`: the one for so many elements; its ranks are the workers, and it has no relays.
    `tree`: as `simulate_plan`.
    """
    schedule = cache(schedule)
    addresses = {
        rank: Address(network.hosts[name].mac_bytes, network.hosts[name].ip_bytes)
        for rank, name in enumerate(workers)
    }
    members = [
        ScheduleMember(
            rank,
            addresses,
            _source(tree, rank, make_workload),
            schedule,
            receive_buffer(network, worker),
        )
        for rank, worker in enumerate(workers)
    ]
    agents: dict[str, Agent] = dict(zip(workers, members, strict=True))
    rules = rules_for(network)
    return _run(
        network, rules, make_engine, agents, workers, members, faults, seed, limit, fair=True
    )


def _run(
    network: Network,
    rules: dict[str, SwitchRules],
    make_engine: MakeEngine,
    agents: dict[str, Agent],
    workers: Sequence[str],
    members: Sequence[InNetworkMember | MixedMember | ScheduleMember],
    faults: Faults | None,
    seed: int,
    limit: float,
    schedule: Callable[[World], None] | None = None,
    fair: bool = False,
) -> SimulatedRun:
    outcomes = {name: dict[str, int]() for name in network.switches}

    def switch(name: str) -> Engine:
        engine = make_engine()
        install(engine, rules[name])
        return engine

    def keep_outcomes(name: str, engine: Engine) -> None:
        for outcome, count in read_outcomes(engine).items():
            outcomes[name][outcome] = outcomes[name].get(outcome, 0) + count

    world = World(
        network,
        {name: switch(name) for name in network.switches},
        agents,
        faults=faults,
        seed=seed,
        reinstall=switch,
        on_reboot=keep_outcomes,
        fair=fair,
    )
    if schedule is not None:
        schedule(world)
    _let_speak(world, workers, members)
    try:
        finished_at = world.run(lambda: all(member.done for member in members), limit)
    except SimulationError as error:
        waiting = [host for host, agent in agents.items() if not getattr(agent, "done", True)]
        raise SimulationError(f"{error}; workers not done: {', '.join(waiting)}") from error
    world.drain()
    for name, engine in world.engines.items():
        if engine is not None:
            keep_outcomes(name, engine)
    intervals = [member.intervals for member in members]
    return SimulatedRun(
        seconds=reduce_seconds(intervals),
        links={link: channel.bytes for link, channel in world.channels.items()},
        switches=outcomes,
        retransmissions=sum(member.retransmissions for member in members),
        workloads=[member.source.workload for member in members],
        packet_hops=world.packet_hops,
        finished_at=finished_at,
        intervals=intervals,
    )


def _let_speak(
    world: World,
    workers: Sequence[str],
    members: Sequence[InNetworkMember | MixedMember | ScheduleMember],
) -> None:
    """Carry the frames by which the workers agree on an order."""
    times = FrameTimes(world.network, workers)

    def say(frame: Frame) -> None:
        arrival = times.arrival(frame, world.queue.now)
        world.queue.at(arrival, partial(hear, frame))

    def hear(frame: Frame) -> None:
        member = members[frame.target]
        assert isinstance(member.source, AgreedOrder)
        member.source.receive(frame, world.queue.now)
        member.advance(world.queue.now)
        world.flush(workers[frame.target])

    for member in members:
        if isinstance(member.source, AgreedOrder):
            member.source.connect(say)
