"""Whole jobs of the agent in virtual time, with the code that runs in real time."""

from __future__ import annotations

from dataclasses import asdict, replace
from fractions import Fraction
from itertools import pairwise

import pytest

from hopsum.collectives.plan import DataType, HostPart, JobPlan
from hopsum.collectives.workload import DIGITS, RANDOM, VECTORS
from hopsum.coordination.failure import ProcessLost
from hopsum.coordination.physical import plan_coordination
from hopsum.coordination.tree import TreeLimits
from hopsum.host_agent.node.work import Work
from hopsum.host_agent.operator_training import NAMES
from hopsum.host_agent.options import WorkerOptions
from hopsum.host_agent.session import NodeSession
from hopsum.host_agent.task import Task
from hopsum.host_agent.workload import WorkloadSpec
from hopsum.network.builder import NetworkBuilder
from hopsum.planning.model.allocation import Allocator
from hopsum.planning.model.request import PlanRequest
from hopsum.planning.registry import plan_job
from hopsum.protocol import hopsum_pb2 as pb
from hopsum.protocol.tos import level_of_tos
from hopsum.simulation.faults import Faults
from hopsum.simulation.host import VirtualHost, VirtualHosts
from hopsum.simulation.world import World
from tests.simulation import test_coordinated_training as training
from tests.simulation.test_all_reduce import OPTIONS, job, make_engine
from tests.simulation.test_parts import MAKE_ENGINE, NETWORK, WORKERS, mixed
from tests.support.departures import Departures
from tests.support.scripted_controller import ScriptedStream
from tests.support.simulated_jobs import Replan, SimulatedRun, Simulation, roster

pytestmark = pytest.mark.usefixtures("short_epochs")

LOSS = Faults(loss=0.02, duplicate=0.01, reorder=0.02)
TOS_AT = 15


def exact(run: SimulatedRun, checked: int) -> None:
    """All reports say that so many elements were checked, and none was wrong."""
    assert [report.verdict.wrong for report in run.reports] == [0] * len(run.reports)
    assert {report.verdict.checked for report in run.reports} == {checked}


# -- Boundaries


@pytest.mark.slow
@pytest.mark.parametrize("faults", [Faults(), LOSS])
def test_a_relay_comes_in_at_a_boundary_and_goes_at_another(
    faults: Faults, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Six tensors, a boundary after every second; h8 adds only to the third and the fourth."""
    asked: list[tuple[str, int]] = []
    ask = ScriptedStream.ask_boundary
    monkeypatch.setattr(
        ScriptedStream,
        "ask_boundary",
        lambda stream, number: (asked.append((stream.host, number)), ask(stream, number)),
    )
    ring = HostPart(Fraction(1, 2), order=WORKERS)
    star = HostPart(Fraction(1, 2), root="h8", parents=dict.fromkeys(WORKERS, "h8"))
    plan = replace(mixed(), host_parts=(ring,), period=2)
    simulation = Simulation(NETWORK, MAKE_ENGINE, faults=faults, seed=4)
    spec = WorkloadSpec(RANDOM, len(WORKERS), 3000, 6, DataType.FLOAT32, 7)
    work = Work(Task(spec, options=asdict(WorkerOptions())))
    simulation.add(plan, work, {2: replace(plan, host_parts=(star,)), 4: plan})
    simulation.run()
    relay, worker = (simulation.script.hosts[host].agent.members[1] for host in ("h8", "h1"))
    parts = [part.sent_bytes > 0 for part in relay._parts._schedules]  # noqa: SLF001
    assert parts == [True]
    assert [part.sent_bytes > 0 for part in worker._parts._schedules] == [True] * 3  # noqa: SLF001
    exact(simulation.result(1), 6 * 3000)
    assert set(asked) == {(h, b) for h in ("h1", "h2", "h5", "h6") for b in (1, 2, 3)} | {
        *(("ps", b) for b in (1, 2, 3)),
        *(("h4", b) for b in (1, 2, 3)),
        *(("h8", b) for b in (1, 2, 3)),
    }


def test_a_cut_needs_a_boundary() -> None:
    plan = replace(mixed(), period=2)
    simulation = Simulation(NETWORK, MAKE_ENGINE)
    spec = WorkloadSpec(RANDOM, len(WORKERS), 30, 6, DataType.INT32, 7)
    with pytest.raises(ValueError, match="a cut at tensor 3; expected a boundary"):
        simulation.add(plan, Work(Task(spec)), {3: plan})


# -- Operators


def coordinated(manner: str, faults: Faults) -> Simulation:
    """A training whose workers agree on an order in a manner, or sum by a schedule then."""
    network, plan = training.case()
    vectors = None
    if manner == "switches":
        plan, vectors = training.vectors_case()
    elif manner == "schedule":
        plan = roster(plan.workers)
    tree = plan_coordination(network, [(host, host) for host in plan.workers], TreeLimits(2))
    tree = replace(tree, ring=(2, 0, 3, 1) if manner == "ring" else ())
    simulation = Simulation(
        network, training.maker(), faults=faults, seed=2, fair=manner == "schedule"
    )
    workers, options = len(plan.workers), WorkerOptions()
    if vectors is not None:
        spec = WorkloadSpec(VECTORS, workers, 0, 0, DataType.INT32, 0)
        simulation.add(vectors, Work(Task(spec, options=asdict(options))))
    task = Task(
        WorkloadSpec(DIGITS, workers, 0, 1, DataType.FLOAT32, training.SEED, coordinate=True),
        "ring" if manner == "schedule" else None,
        asdict(options),
        coordination=tree,
        vectors=None if vectors is None else vectors.job,
    )
    simulation.add(plan, Work(task))
    return simulation


@pytest.mark.slow
@pytest.mark.parametrize("manner", ["tree", "ring", "switches", "schedule"])
def test_workers_agree_on_an_order_under_loss(manner: str) -> None:
    simulation = coordinated(manner, LOSS)
    simulation.run()
    hosts = simulation.script.hosts.values()
    if manner == "switches":
        reports = simulation.script.jobs[2].reports.values()
        assert {report.outcome.cycles for report in reports} != {0}
    run = simulation.result(1)
    (order,) = {tuple(report.outcome.operator_order) for report in run.reports}
    assert sorted(order) == sorted(NAMES)
    assert all(report.verdict.wrong == 0 for report in run.reports)
    assert run.retransmissions > 0
    assert not any(1 in host.agent.members for host in hosts), "all were released"


@pytest.mark.slow
def test_operators_overlap_in_the_switches_and_follow_each_other_over_tcp() -> None:
    def overlaps(manner: str) -> bool:
        simulation = coordinated(manner, Faults())
        simulation.run()
        intervals = simulation.result(1).intervals[0]
        return any(after[0] < before[1] for before, after in pairwise(intervals))

    assert overlaps("tree")
    assert not overlaps("schedule")


@pytest.mark.slow
def test_a_host_that_leaves_is_named_to_the_other_workers() -> None:
    simulation = coordinated("tree", Faults())
    script = simulation.script
    name = training.case()[1].workers[2]
    simulation.world.queue.at(0.005, lambda: script.hosts[name].agent.leave(1))
    with pytest.raises(ProcessLost, match=f"process {name} is lost: it closed its connection"):
        simulation.run()


# -- Levels


def two_jobs(levels: tuple[int, int]) -> tuple[list[float], list[tuple[int, int]]]:
    """When each of two jobs on the same hosts was done, and (job, level) of what h1 sent."""
    network, plan = job("star:3", 3, window=64)
    allocator = Allocator(network)
    servers = (plan.trees[0].server,)
    plans: list[JobPlan] = [
        plan_job(network, PlanRequest(n, 1, plan.workers, servers, lanes=32, window=64), allocator)
        for n in (1, 2)
    ]
    simulation = Simulation(network, make_engine)
    spec = WorkloadSpec(RANDOM, 3, 6_000, 1, DataType.INT32, 3)
    for each in plans:
        simulation.add(each, Work(Task(spec, options=asdict(OPTIONS))))

    def set_levels() -> None:
        for host in simulation.script.hosts.values():
            for number, level in zip((1, 2), levels, strict=True):
                host.agent.set_level(number, level)

    simulation.world.queue.at(0.0, set_levels)
    sent: list[tuple[int, int]] = []

    def note(source: str, frame: bytes) -> None:
        if source == plan.workers[0]:
            sent.append((int.from_bytes(frame[46:48], "big"), level_of_tos(frame[TOS_AT])))

    simulation.world.observers = (Departures(note),)
    simulation.run()
    intervals = [simulation.result(number).intervals for number in (1, 2)]
    ends = [max(end for calls in each for _, end in calls) for each in intervals]
    return ends, sent


@pytest.mark.slow
@pytest.mark.parametrize("first", [1, 2])
def test_frames_of_the_lower_level_leave_first(first: int) -> None:
    levels = (0, 2) if first == 1 else (2, 0)
    ends, sent = two_jobs(levels)
    assert {level for number, level in sent if number == first} == {0}
    assert {level for number, level in sent if number != first} == {2}
    window = [number for number, _ in sent[:32]]
    assert window == [first] * len(window)
    assert ends[first - 1] < 0.75 * ends[2 - first]


@pytest.mark.slow
def test_jobs_of_one_level_end_together() -> None:
    ends, sent = two_jobs((1, 1))
    assert ends[0] == pytest.approx(ends[1], rel=0.1)
    assert {number for number, _ in sent[:16]} == {1, 2}


def test_segments_carry_the_level_of_their_job() -> None:
    network, plan = job("star:3", 3)
    simulation = Simulation(network, make_engine, fair=True)
    spec = WorkloadSpec(RANDOM, 3, 5000, 2, DataType.INT32, 3)
    simulation.add(roster(plan.workers), Work(Task(spec, "ring")))

    def set_level() -> None:
        simulation.script.hosts[plan.workers[0]].agent.set_level(1, 4)

    # While connections are open.
    simulation.world.queue.at(0.001, set_level)
    levels: dict[str, set[int]] = {}

    def note(source: str, frame: bytes) -> None:
        levels.setdefault(source, set()).add(level_of_tos(frame[TOS_AT]))

    simulation.world.observers = (Departures(note),)
    simulation.run()
    exact(simulation.result(1), 2 * 5000)
    assert levels[plan.workers[0]] == {level_of_tos(0), 4}
    assert 4 not in levels[plan.workers[1]]


@pytest.mark.parametrize("schedule", ["", "ring"])
def test_the_first_iterations_have_the_first_level_until_exactly_then(schedule: str) -> None:
    network, plan = job("star:3", 3)
    simulation = Simulation(network, make_engine, fair=True)
    spec = WorkloadSpec(RANDOM, 3, 2000, 6, DataType.INT32, 3)
    simulation.add(roster(plan.workers) if schedule else plan, Work(Task(spec, schedule)))
    hosts = simulation.script.hosts
    worker = plan.workers[0]

    def set_level() -> None:
        hosts[worker].agent.set_level(1, 4, early_tensors=3)

    simulation.world.queue.at(0.0, set_level)
    levels: dict[int, set[int]] = {}

    def note(source: str, frame: bytes) -> None:
        if source == worker and hosts[worker].agent.members:
            summed = hosts[worker].agent.members[1].round
            levels.setdefault(summed, set()).add(level_of_tos(frame[TOS_AT]))

    simulation.world.observers = (Departures(note),)
    simulation.run()
    exact(simulation.result(1), 6 * 2000)
    # A connection may still have segments of the third tensor.
    last = {0, 4} if schedule else {4}
    found = [levels[summed] for summed in range(6)]
    assert found == [{0}, {0}, {0}, last, {4}, {4}]


# -- Restarts


@pytest.mark.slow
@pytest.mark.parametrize("faults", [Faults(), LOSS])
def test_a_server_that_is_restarted_gets_the_last_window(faults: Faults) -> None:
    network, plan = job("leaf-spine:2x2", 4)
    server = plan.trees[0].server
    simulation = Simulation(network, make_engine, faults=faults, seed=6)
    spec = WorkloadSpec(RANDOM, 4, 3000, 6, DataType.INT32, 3)
    simulation.add(plan, Work(Task(spec, options=asdict(OPTIONS))))
    alone = simulation.script
    before: list[object] = []
    for epoch, time in enumerate((0.003, 0.009), start=2):
        simulation.world.queue.at(time - 1e-6, lambda: before.append(alone.hosts[server]))
        simulation.replan(Replan(time, replace(plan, epoch=epoch), 1e-4, restarted=(server,)))
    simulation.run()
    assert len({id(host) for host in (*before, alone.hosts[server])}) == 3
    workers = [alone.hosts[worker].agent.members[1]._parts.worker for worker in plan.workers]  # noqa: SLF001
    assert all(worker is not None and worker.statistics.handed_over > 0 for worker in workers)
    exact(simulation.result(1), 6 * 3000)


# -- The host's own stream


def test_a_host_reports_each_of_its_links() -> None:
    builder = NetworkBuilder("planes", 1e8)
    builder.add_host("h1")
    for switch in ("s1", "s2"):
        builder.add_switch(switch)
        builder.link("h1", switch)
    world = World(builder.build(), {}, {})
    session = NodeSession("here", "h1")
    host = VirtualHost("h1", VirtualHosts(world), session)
    world.agents["h1"] = host
    session.news = host.go_on
    session.connected()
    links = [pb.LinkRate(peer=f"s{port + 1}", rate=1e8, port=port) for port in range(2)]
    session.receive(
        pb.NodeCommand(welcome=pb.NodeWelcome(report_seconds=0.5, links=reversed(links)))
    )
    world.channels["h1", "s1"].bytes += 1000
    world.channels["s2", "h1"].bytes += 500
    world.channels["h1", "s2"].cut = True
    world.queue.at(0.7, lambda: None)
    world.run_until(0.7)
    reports = [
        message.report
        for message in session.take_output()
        if message.WhichOneof("message") == "report"
    ]
    assert len(reports[0].interfaces) == 0
    found = {
        use.peer: (use.sent > 0, use.received > 0, use.no_carrier) for use in reports[1].interfaces
    }
    assert found == {"s1": (True, False, False), "s2": (False, True, True)}


def test_a_host_reports_and_obeys_in_virtual_time() -> None:
    network, plan = job("star:3", 3)
    world = World(network, {}, {})
    session = NodeSession("here", "h1")
    attended: list[int] = []

    def attend(number: int) -> ScriptedStream:
        attended.append(number)
        simulation = Simulation(network, make_engine)
        simulation.add(plan, Work(Task(WorkloadSpec(RANDOM, 3, 10, 1, DataType.INT32, 3))))
        (scripted,) = simulation.jobs
        return ScriptedStream(scripted, "h1", scripted.assignment)

    hosts = VirtualHosts(
        world,
        work=lambda given: Work(Task(WorkloadSpec(RANDOM, 3, 10, 1, DataType.INT32, 3))),
    )
    host = VirtualHost("h1", hosts, session, attend)
    world.agents["h1"] = host
    session.news = host.go_on
    session.connected()
    assert [message.WhichOneof("message") for message in session.take_output()] == ["hello"]
    welcome = pb.NodeWelcome(report_seconds=0.5, links=[pb.LinkRate(peer="s1", rate=1e8)])
    session.receive(pb.NodeCommand(welcome=welcome))
    session.receive(pb.NodeCommand(attend=pb.AttendJob(job=1)))
    session.receive(pb.NodeCommand(attend=pb.AttendJob(job=1)))
    session.receive(pb.NodeCommand(priority=pb.Priority(job=1, level=3)))
    assert attended == [1] and set(host.agent.members) == {1}
    world.queue.at(1.2, lambda: None)
    world.run_until(1.2)
    reports = [message.report for message in session.take_output()]
    assert [len(report.interfaces) for report in reports] == [0, 1, 1]
    assert [job_.job for job_ in reports[-1].jobs] == [1]
    session.receive(pb.NodeCommand(leave=pb.LeaveJob(job=1, reason="enough")))
    assert not host.agent.members
