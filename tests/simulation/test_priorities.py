"""Jobs that share links and slots: who goes first, who gives way, and that all sums are exact."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache

import numpy as np
import pytest
from numpy.typing import NDArray

from hopsum.collectives.plan import JobPlan
from hopsum.collectives.plan_checker import check_plans
from hopsum.controller.dataplane.rules import SwitchRules, rules_for
from hopsum.controller.jobs.sharing import bypassing, preempt
from hopsum.host_agent.node.traffic_priority import TrafficPriority
from hopsum.host_agent.server import Server
from hopsum.host_agent.server_set import ServerSet
from hopsum.host_agent.stream import WorkerOptions
from hopsum.host_agent.worker import Worker
from hopsum.network.loaders import load_network
from hopsum.network.model import Host, Link, Network
from hopsum.planning.model.allocation import Allocator
from hopsum.planning.model.request import PlanRequest
from hopsum.planning.registry import plan_job
from hopsum.protocol.tos import LEVELS, URGENT, tos_of_level
from hopsum.protocol.wire import Address, Header, Kind, frame_template
from hopsum.simulation.compiled.library import QUEUE_FRAMES
from hopsum.simulation.faults import Faults
from hopsum.simulation.world import Frames, World
from tests.simulation.test_all_reduce import LANES, make_engine
from tests.support.departures import Departures
from tests.support.installed_rules import install, read_outcomes, update
from tests.support.simulated_jobs import drain

RATE = 1e8
OPTIONS = WorkerOptions(deadline=100.0, min_timeout=0.05, max_timeout=0.3)


# -- A link


class Sender:
    """Sends frames of given levels, all at once, and notes those that come."""

    def __init__(self, levels: list[int] | None = None) -> None:
        self.deadline: float | None = None
        self.came: list[tuple[float, int]] = []
        here = Address(bytes(6), bytes(4))
        self._frames = [
            frame_template(
                here, here, Header(Kind.RESULT, 1, 0, 1, n), (), LANES, tos_of_level(level)
            )[None, :]
            for n, level in enumerate(levels or [])
        ]

    def receive(self, frames: Frames, now: float) -> None:
        self.came += [(now, int.from_bytes(row[58:62].tobytes(), "big")) for row in frames]

    def tick(self, now: float) -> None:
        raise AssertionError("nothing is due")

    def take_output(self) -> list[Frames]:
        taken, self._frames = self._frames, []
        return taken


def pair(levels: list[int], rate: float | None = 8e6) -> tuple[World, Sender]:
    hosts = {n: Host(n, f"10.0.0.{n[1]}", f"02:00:00:00:00:0{n[1]}") for n in ("h1", "h2")}
    network = Network("pair", hosts, {}, (Link("h1", "h2", 0, 0, rate, 0.001),))
    receiver = Sender()
    agents = {"h1": Sender(levels), "h2": receiver}
    return World(network, {}, agents), receiver


def exchange(levels: list[int], rate: float | None = 8e6) -> Sender:
    world, receiver = pair(levels, rate)
    world.run(lambda: len(receiver.came) == len(levels), 10.0)
    return receiver


def test_the_highest_level_leaves_first_and_each_in_its_order() -> None:
    levels = [7, 7, 3, 0, 3, 0]
    assert [n for _, n in exchange([7] * 6).came] == [0, 1, 2, 3, 4, 5]
    # The first is under way when the others come.
    assert [n for _, n in exchange(levels).came] == [0, 3, 5, 2, 4, 1]


def test_priorities_change_the_order_of_arrivals_only() -> None:
    levels = [n * 5 % LEVELS for n in range(40)]
    plain, ordered = (exchange(given).came for given in ([7] * 40, levels))
    assert [time for time, _ in ordered] == pytest.approx([time for time, _ in plain])
    unlimited = exchange(levels, None).came
    assert unlimited == [(0.001, n) for n in range(40)]


def test_a_full_queue_drops_of_its_own_level_only() -> None:
    world, receiver = pair([7] * (QUEUE_FRAMES + 3) + [0, 0])
    world.run(lambda: len(receiver.came) == QUEUE_FRAMES + 3, 10.0)
    # One was under way already.
    assert world.channels["h1", "h2"].queue_drops == 2
    assert {QUEUE_FRAMES + 3, QUEUE_FRAMES + 4} <= {n for _, n in receiver.came}


def test_waiting_frames_are_counted_at_the_end() -> None:
    world, _ = pair([7, 5, 6])
    world.run(lambda: True, 10.0)
    drain(world)
    channel = world.channels["h1", "h2"]
    assert (channel.frames, channel.bytes) == (3, 3 * (62 + 4 * LANES))


# -- Jobs


@dataclass
class Cluster:
    """Several jobs on one network: their plans, rules, and the agents of every host."""

    network: Network
    faults: Faults | None = None
    plans: dict[int, JobPlan] = field(default_factory=dict)
    finished: dict[int, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.hosts = {host: TrafficPriority() for host in self.network.hosts}
        self._rules: dict[str, SwitchRules] = rules_for(self.network)
        engines = {}
        for name in self.network.switches:
            engines[name] = make_engine()
            install(engines[name], self._rules[name])
        self.world = World(
            self.network,
            engines,
            self.hosts,
            faults=self.faults,
            seed=5,
        )
        self._workers: dict[int, list[Worker]] = {}
        self._servers: dict[int, ServerSet] = {}
        self._expected: dict[int, NDArray[np.int32]] = {}

    def _refresh(self) -> None:
        newer = rules_for(self.network, list(self.plans.values()))
        for name, engine in self.world.engines.items():
            assert engine is not None
            update(engine, self._rules[name], newer[name])
        self._rules = newer

    def start(self, plan: JobPlan, fragments: int, level: int | None = None) -> None:
        """Begin a job now: every worker submits one tensor."""
        job = plan.job
        self.plans[job] = plan
        check_plans(self.network, self.plans.values())
        self._refresh()
        self._servers[job] = ServerSet(Server(plan, t.tree, self.network) for t in plan.trees)
        self._workers[job] = [
            Worker(plan, n, self.network, OPTIONS) for n in range(len(plan.workers))
        ]
        [server] = {tree.server for tree in plan.trees}
        self.hosts[server].add(job, self._servers[job])
        most = 2**31 // (2 * len(plan.workers))
        shape = len(plan.workers), fragments * LANES
        tensors = np.random.default_rng(job).integers(-most, most, shape, dtype=np.int32)
        self._expected[job] = tensors.sum(axis=0, dtype=np.int32)
        now = self.world.queue.now
        for host, worker, tensor in zip(plan.workers, self._workers[job], tensors, strict=True):
            self.hosts[host].add(job, worker)
            if level is not None:
                self.hosts[host].set_level(job, level)
            worker.submit(tensor, now)
            self.world.flush(host)

    def adopt(self, plan: JobPlan) -> None:
        """A job's next epoch: rules first, then its agents."""
        self.plans[plan.job] = plan
        check_plans(self.network, self.plans.values())
        self._refresh()
        [server] = {tree.server for tree in plan.trees}
        self._servers[plan.job].adopt(plan, server, self.network)
        for host, worker in zip(plan.workers, self._workers[plan.job], strict=True):
            worker.adopt(plan, self.world.queue.now)
            self.world.flush(host)

    def done(self, job: int) -> bool:
        """Whether every worker has the sum."""
        return all(worker.done(0) for worker in self._workers[job])

    def run(self, *jobs: int) -> None:
        """Run until these jobs have finished; compare every sum with numpy's."""

        def over() -> bool:
            for job in self._workers.keys() - self.finished.keys():
                if self.done(job):
                    self.finished[job] = self.world.queue.now
                    for worker in self._workers[job]:
                        result = worker.result(0)
                        assert result is not None
                        assert np.array_equal(result, self._expected[job])
            return set(jobs) <= self.finished.keys()

        self.world.run(over, 100.0)


def requests(network: Network, count: int, window: int) -> Mapping[int, PlanRequest]:
    """Jobs of the same workers and server."""
    hosts = list(network.hosts)
    return {
        job: PlanRequest(job, 1, tuple(hosts[:-1]), (hosts[-1],), lanes=LANES, window=window)
        for job in range(1, count + 1)
    }


LONG, SHORT = 1600, 400
"""Fragments of the jobs of `both`; the fluid model is compared with them."""


@cache
def both(levels: tuple[int | None, int | None]) -> dict[int, float]:
    """A long job and, while it runs, a short one; when each has finished."""
    network = load_network("star:4", link_rate=RATE, latency=1e-5, slots=1024)
    allocator = Allocator(network)
    plans = [plan_job(network, r, allocator) for r in requests(network, 2, 64).values()]
    cluster = Cluster(network)
    cluster.start(plans[0], LONG, levels[0])
    begin = 0.005
    cluster.world.queue.at(begin, lambda: cluster.start(plans[1], SHORT, levels[1]))
    cluster.run(1, 2)
    return {1: cluster.finished[1], 2: cluster.finished[2] - begin}


@pytest.mark.slow
def test_a_job_of_high_priority_hardly_sees_the_other() -> None:
    network = load_network("star:4", link_rate=RATE, latency=1e-5, slots=1024)
    alone = Cluster(network)
    alone.start(plan_job(network, requests(network, 1, 64)[1]), SHORT)
    alone.run(1)
    free = alone.finished[1]
    shared = both((None, None))
    first = both((5, 1))
    assert shared[2] > 1.7 * free
    assert first[2] < 1.2 * free
    # What one job gains the other does not lose: the links are as busy.
    assert first[1] == pytest.approx(shared[1], rel=0.03)


@pytest.mark.slow
def test_results_have_priority_on_their_way_down() -> None:
    """Results of both jobs share the server's own link."""
    slow_down = both((1, 5))
    assert slow_down[2] > 2 * both((5, 1))[2]


@pytest.mark.slow
@pytest.mark.parametrize("loss", [0.0, 0.02])
@pytest.mark.parametrize("time", [0.0005, 0.001, 0.003])
def test_preemption_costs_time_and_no_sum(time: float, loss: float) -> None:
    """A job takes the slots of a lower one while its packets fill them, and both are exact."""
    window = 16
    network = load_network("leaf-spine:2x3x1", link_rate=RATE, latency=1e-5, slots=window)
    allocator = Allocator(network)
    low, high = requests(network, 2, window).values()
    cluster = Cluster(network, faults=Faults(loss=loss))
    cluster.start(plan_job(network, low, allocator), 200, level=6)
    sums = {s for tree in cluster.plans[1].trees for s, p in tree.parts.items() if p.aggregate}
    assert sums

    def take() -> None:
        assert not cluster.done(1)
        victims = preempt(network, high, allocator, {1: 6, 2: 0}).victims
        assert victims == {1: sums}
        newer = plan_job(bypassing(network, victims[1]), replace(low, epoch=2), allocator)
        cluster.adopt(newer)
        allocator.release_at(1, victims[1])
        cluster.start(plan_job(network, high, allocator), 200, level=0)

    cluster.world.queue.at(time, take)
    cluster.world.run(lambda: 2 in cluster.plans, 1.0)
    cluster.run(1, 2)
    assert cluster.finished[2] < cluster.finished[1]
    engine = cluster.world.engines["l1"]
    assert engine is not None
    outcomes = read_outcomes(engine)
    assert outcomes["completed"] >= 200
    assert outcomes.get("forwarded", 0) > 0


def test_the_urgent_bit_counts_for_hopsum_packets_only() -> None:
    """In plain traffic it is a part of the class selector: AF12 and EF have it."""
    here = Address(bytes(6), bytes(4))
    ours = frame_template(here, here, Header(Kind.REQUEST, 1, 0, 1, 0), (), LANES, URGENT)
    plain = bytearray(ours.tobytes())
    plain[36:38] = (53).to_bytes(2, "big")
    world, receiver = pair([])
    departures: list[bytes] = []
    world.observers = (Departures(lambda source, frame: departures.append(frame)),)
    for frame in (ours.tobytes(), bytes(plain), ours.tobytes()):
        world.channels["h1", "h2"].transmit(frame)
    world.run(lambda: len(receiver.came) == 3, 10.0)
    # The first was under way when the others came.
    assert departures == [ours.tobytes(), ours.tobytes(), bytes(plain)]
