"""Coordination at work: random groups, the latency model, and vectors through the P4 program."""

from __future__ import annotations

from functools import partial
from random import Random

import numpy as np
import pytest

from benchmarks.coordination_latency import (
    central_time,
    negotiation,
    ring,
    star,
    steady_state,
    tree_time,
)
from hopsum.collectives.plan import JobPlan
from hopsum.controller.dataplane.rules import rules_for
from hopsum.coordination.events import Rejection, Start
from hopsum.coordination.messages import Frame
from hopsum.coordination.operators import Operator
from hopsum.coordination.participant import Participant
from hopsum.coordination.physical import plan_coordination
from hopsum.coordination.reduction import ExternalAnd
from hopsum.coordination.tree import balanced_tree
from hopsum.host_agent.server import Server
from hopsum.host_agent.server_set import ServerSet
from hopsum.host_agent.stream import WorkerOptions
from hopsum.host_agent.worker import Worker
from hopsum.network.loaders import load_network
from hopsum.planning.model.placement import place
from hopsum.planning.model.request import PlanRequest
from hopsum.planning.registry import plan_job
from hopsum.protocol.wire import Reduction
from hopsum.simulation.world import Agent, Frames, World
from p4switch.targets.v1model.engine import Engine
from tests.support.coordination_world import (
    OPTIONS,
    Training,
    Work,
    costs,
    operator,
    random_tree,
    rough,
)
from tests.support.engines import engine_maker
from tests.support.installed_rules import install
from tests.support.paths import HOPSUM_P4
from tests.support.search import examples
from tests.support.virtual_group import Costs, VirtualGroup

LANES = 32
ITERATIONS = 10
PARTS = 4
GROUPS = examples(100, of=1_000)


def train(seed: int) -> None:
    """A group trains: operators come, go and change shape; processes stall; frames are lost."""
    random = Random(seed)
    tree = random_tree(random)
    deliver = random.choice([None, rough(random, 0.0, 0.0, 0.2), rough(random, 0.05, 0.1, 0.2)])
    group = VirtualGroup(tree, costs=costs(random), options=OPTIONS, deliver=deliver)
    shapes = {f"g{number}": 8 for number in range(random.randint(1, 8))}
    iterations: list[list[Operator]] = []
    for number in range(ITERATIONS):
        names = [name for name in shapes if random.random() < 0.85]
        if random.random() < 0.3:
            names.append(f"late{number}")
            shapes[names[-1]] = 3
        if names and random.random() < 0.2:
            shapes[random.choice(names)] = random.randint(1, 99)
        iterations.append([operator(name, shapes[name]) for name in names])
    works = []
    for rank in range(len(tree.names)):
        plan = []
        for operators in iterations:
            order = random.sample(operators, len(operators))
            stall = random.choice([0.0, 0.0, 0.0, 2 * random.random()])
            plan.append(
                [(random.random() * 0.1 + stall * (random.random() < 0.5), o) for o in order]
            )
        works.append(Work(rank, plan))
    training = Training(group, works)
    training.run(600.0)
    assert training.finished, f"seed {seed}"
    assert not any(work.given_up for work in works), f"seed {seed}"
    assert all(work.started == works[0].started for work in works), f"seed {seed}"
    assert sorted(map(str, works[0].started)) == sorted(
        str(o) for operators in iterations for o in operators
    ), f"seed {seed}"


@pytest.mark.slow
@pytest.mark.parametrize("part", range(examples(1, of=PARTS)))
def test_the_order_is_the_same_under_any_arrival_order(part: int) -> None:
    """Each iteration of a group is an arrival order at every process: all groups have 10,000."""
    for seed in range(part, GROUPS, PARTS):
        train(seed)


def test_a_late_process_delays_only_what_it_lacks() -> None:
    tree = balanced_tree([f"w{rank}" for rank in range(9)], fan_out=3)
    group = VirtualGroup(tree, options=OPTIONS, costs=Costs(0.0, 0.001))
    late = 7
    for iteration in (1, 2):
        began = group.now
        for rank in range(9):
            group.call(began, rank, lambda p, i=iteration: p.begin_iteration(i, group.now))  # type: ignore[misc]
            for name in ("a", "b", "c"):
                pause = 3.0 if rank == late and name == "b" else 0.1
                group.call(
                    began + pause,
                    rank,
                    lambda p, n=name: p.ready(operator(n), group.now),  # type: ignore[misc]
                )
        group.run(began + 4.0)
        for events in group.events:
            times = {
                e.operator.name: time - began
                for time, e in events
                if isinstance(e, Start) and time > began
            }
            assert times["a"] < 0.2
            assert times["c"] < 0.2
            assert times["b"] >= 3.0


COSTS = Costs(overhead=1_000, latency=5_000)
"""In nanoseconds, whole numbers: times are exact."""


@pytest.mark.slow
@pytest.mark.parametrize("processes", [2, 21, 64, 341])
def test_a_central_coordinator_takes_what_the_formula_says(processes: int) -> None:
    found = negotiation(star(processes), COSTS)
    assert found.time == central_time(processes, COSTS)
    assert found.busiest == found.messages == 2 * (processes - 1)


@pytest.mark.slow
@pytest.mark.parametrize("fan_out", [2, 4, 8])
def test_the_tree_takes_the_logarithm(fan_out: int) -> None:
    for processes in (5, 21, 64, 341):
        tree = balanced_tree([f"p{i}" for i in range(processes)], fan_out=fan_out)
        found = negotiation(tree, COSTS)
        limit = tree_time(processes, fan_out, COSTS)
        assert 2 * tree.height * (COSTS.overhead + COSTS.latency) <= found.time <= limit
        assert found.busiest <= 2 * (fan_out + 1)
        assert found.messages == 2 * (processes - 1)


def test_a_full_tree_takes_exactly_what_the_formula_says() -> None:
    for processes in (5, 21, 85):
        tree = balanced_tree([f"p{i}" for i in range(processes)], fan_out=4)
        assert negotiation(tree, COSTS).time == tree_time(processes, 4, COSTS)


@pytest.mark.slow
@pytest.mark.parametrize(("operators", "words"), [(1, 1), (32, 1), (33, 2), (161, 6)])
def test_the_steady_state_is_one_vector_a_process(operators: int, words: int) -> None:
    for tree in (balanced_tree([f"p{i}" for i in range(64)]), ring(64, 4)):
        found = steady_state(tree, operators, COSTS)
        assert found.vectors == 1
        assert found.words == words
        assert found.messages == 2 * 63


class Member:
    """A process whose vectors are summed up by the switches, as a job with the bitwise and."""

    def __init__(self, participant: Participant, worker: Worker, external: ExternalAnd) -> None:
        self.participant = participant
        self.worker = worker
        self.external = external
        self.calls: list[int] = []
        self.started: list[str] = []
        self.words = 0

    def submit(self, words: tuple[int, ...], now: float) -> None:
        self.words = max(self.words, len(words))
        tensor = np.array(words, dtype=np.uint32).view(np.int32)
        self.calls.append(self.worker.submit(tensor, now))

    def receive(self, frames: Frames, now: float) -> None:
        self.worker.receive(frames, now)
        while self.calls and (result := self.worker.result(self.calls[0])) is not None:
            self.calls.pop(0)
            self.external.completed([int(word) for word in result])
            self.participant.advance(now)

    def tick(self, now: float) -> None:
        self.worker.tick(now)
        self.participant.tick(now)

    def take_output(self) -> list[Frames]:
        return self.worker.take_output()

    @property
    def deadline(self) -> float | None:
        deadlines = [d for d in (self.worker.deadline, self.participant.deadline) if d is not None]
        return min(deadlines, default=None)


def members_of(plan: JobPlan, world: list[World]) -> list[Member]:
    network = load_network("leaf-spine:2x3", link_rate=1e8, latency=1e-5, workers=6, slots=256)
    tree = plan_coordination(network, [(f"trainer-{host}", host) for host in plan.workers])
    members: list[Member] = []
    for rank in range(len(plan.workers)):
        external = ExternalAnd(
            lambda words, rank=rank: members[rank].submit(words, world[0].queue.now)  # type: ignore[misc]
        )
        worker = Worker(plan, rank, network, WorkerOptions(deadline=500.0, max_timeout=0.3))
        participant = Participant(tree, rank, rank + 1, 0.0, OPTIONS, external)
        members.append(Member(participant, worker, external))
    return members


@pytest.mark.slow
def test_the_switches_combine_the_vectors() -> None:
    """Requests go from process to process, vectors through hopsum.p4 with the bitwise and."""
    network = load_network("leaf-spine:2x3", link_rate=1e8, latency=1e-5, workers=6, slots=256)
    placement = place(network, 6, 1)
    request = PlanRequest(
        1, 1, placement.workers, placement.servers, lanes=LANES, window=4, reduction=Reduction.AND
    )
    plan = plan_job(network, request)
    rules = rules_for(network, [plan])
    make_engine = engine_maker(HOPSUM_P4, defines={"LANES": str(LANES), "SLOTS": "256"})

    def switch(name: str) -> Engine:
        engine = make_engine()
        install(engine, rules[name])
        return engine

    worlds: list[World] = []
    members = members_of(plan, worlds)
    agents: dict[str, Agent] = dict(zip(plan.workers, members, strict=True))
    agents[plan.trees[0].server] = ServerSet([Server(plan, plan.trees[0].tree, network)])
    world = World(network, {name: switch(name) for name in network.switches}, agents)
    worlds.append(world)
    names = [f"gradient {number}" for number in range(70)]
    random = Random(5)
    iteration = [0] * len(members)

    def say(rank: int) -> None:
        """Carry what a process says to the others; go on when its iteration is over."""
        member = members[rank]
        for frame in member.participant.take_output():
            world.queue.at(world.queue.now + 1e-4, partial(hear, frame))
        for event in member.participant.take_events():
            assert not isinstance(event, Rejection)
            assert isinstance(event, Start)
            member.started.append(event.operator.name)
            if len(member.started) == len(names) * iteration[rank]:
                world.queue.at(world.queue.now, partial(step, rank))
        world.flush(plan.workers[rank])

    def hear(frame: Frame) -> None:
        members[frame.target].participant.receive(frame, world.queue.now)
        say(frame.target)

    def step(rank: int) -> None:
        iteration[rank] += 1
        if iteration[rank] > 3:
            return
        now = world.queue.now
        members[rank].participant.begin_iteration(iteration[rank], now)
        for name in random.sample(names, len(names)):
            world.queue.at(now + random.random() * 0.01, partial(become_ready, rank, name))
        say(rank)

    def become_ready(rank: int, name: str) -> None:
        members[rank].participant.ready(operator(name), world.queue.now)
        say(rank)

    def done() -> bool:
        for rank in range(len(members)):
            say(rank)
        return all(number > 3 for number in iteration)

    for rank in range(len(members)):
        world.queue.at(0.0, partial(step, rank))
    world.run(done, 30.0)
    assert all(member.started == members[0].started for member in members)
    assert sorted(members[0].started) == sorted(names * 3)
    # 70 bits, and the iteration.
    assert {member.words for member in members} == {3 + 2}
    assert all(member.participant.vectors > 1 for member in members)
