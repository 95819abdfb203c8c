"""The manager over switches in virtual time: jobs come, take slots from others, and end.

The rules reach one switch after the other and the plans one agent after the other, while packets of
all jobs are under way and some are lost. Every sum is exact.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine, Iterator, Mapping
from dataclasses import replace
from itertools import pairwise
from random import Random
from typing import TypeVar

import numpy as np
import pytest
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st

from hopsum.collectives.plan import JobPlan, PlanError
from hopsum.collectives.plan_checker import check_plans
from hopsum.controller.dataplane.rules import SwitchRules, rules_for
from hopsum.controller.jobs.job import Job
from hopsum.host_agent.node.traffic_priority import TrafficPriority
from hopsum.host_agent.server_set import ServerSet
from hopsum.host_agent.stream import WorkerOptions
from hopsum.host_agent.worker import Worker
from hopsum.network.loaders import load_network
from hopsum.network.model import Network
from hopsum.planning.model.request import PlanRequest
from hopsum.protocol.wire import MAX_CHILDREN
from hopsum.simulation.faults import Faults
from hopsum.simulation.world import World
from tests.simulation.test_all_reduce import LANES, make_engine
from tests.support.installed_rules import install, update
from tests.support.jobs import job_of
from tests.support.manager import Manager
from tests.support.search import examples

SLOTS = 16
OPTIONS = WorkerOptions(deadline=100.0, min_timeout=0.002, max_timeout=0.02)
LIMIT = 200.0

T = TypeVar("T")


class Live:
    """A manager, its switches, and the agents of its jobs."""

    def __init__(self, network: Network, loss: float, seed: int) -> None:
        self.network = network
        self.levels: dict[int, int] = {}
        self.pre_empted = 0
        self.exact = 0
        self._random = Random(seed)
        self._loop = asyncio.new_event_loop()
        self.manager = self._new_manager()
        self._jobs: dict[int, Job] = {}
        self._hosts = {host: TrafficPriority() for host in network.hosts}
        self._servers: dict[tuple[int, str], ServerSet] = {}
        self._workers: dict[int, list[Worker]] = {}
        self._expected: dict[int, np.ndarray] = {}
        self._sent: dict[int, int] = {}
        self._rules = rules_for(network)
        engines = {name: make_engine() for name in network.switches}
        for name, engine in engines.items():
            install(engine, self._rules[name])
        faults = Faults(loss=loss, reorder=loss)
        self.world = World(network, engines, self._hosts, faults=faults, seed=seed)

    def _new_manager(self) -> Manager:
        return Manager(self.network, self._install)

    def close(self) -> None:
        self._loop.close()

    # -- time

    @property
    def now(self) -> float:
        return self.world.queue.now

    def wait(self, seconds: float) -> None:
        """Let time pass."""
        self.world.run_until(self.now + seconds)

    def _do(self, work: Coroutine[object, object, T]) -> T:
        return self._loop.run_until_complete(work)

    async def _install(self, rules: Mapping[str, SwitchRules]) -> None:
        """One switch after the other, with packets moving in between."""
        check_plans(self.network, self.manager.store.plans())
        names = list(rules)
        self._random.shuffle(names)
        for name in names:
            engine = self.world.engines[name]
            assert engine is not None
            update(engine, self._rules[name], rules[name])
            self._rules[name] = rules[name]
            assert_apart(rules[name])
            self.wait(self._random.uniform(0, 3e-4))

    # -- jobs

    def submit(self, request: PlanRequest, level: int, fragments: int) -> bool:
        """Start a job if it finds room, or makes some."""
        self.levels[request.job] = level
        before = {
            plan.job: self.manager.store.bypassed(plan.job) for plan in self.manager.store.plans()
        }
        try:
            job = self._jobs[request.job] = job_of(request)
            plan = self._do(self.manager.submit(job, levels=lambda: self.levels))
        except PlanError:
            return False
        for job, bypassed in before.items():
            if self.manager.store.bypassed(job) != bypassed:
                assert self.levels[job] > level
                self.pre_empted += 1
        self._begin(plan, fragments)
        self._send_plans()
        return True

    def _begin(self, plan: JobPlan, fragments: int) -> None:
        job = plan.job
        self._sent[job] = plan.epoch
        self._serve(plan)
        rng = np.random.default_rng(job)
        most = 2**31 // (2 * len(plan.workers))
        shape = len(plan.workers), fragments * LANES
        tensors = rng.integers(-most, most, shape, dtype=np.int32)
        self._expected[job] = tensors.sum(axis=0, dtype=np.int32)
        self._workers[job] = [
            Worker(plan, n, self.network, OPTIONS) for n in range(len(plan.workers))
        ]
        for host, worker, tensor in zip(plan.workers, self._workers[job], tensors, strict=True):
            self._hosts[host].add(job, worker)
            worker.submit(tensor, self.now)
            self.world.flush(host)

    def _serve(self, plan: JobPlan) -> None:
        for host in plan.servers:
            servers = self._servers.get((plan.job, host))
            if servers is None:
                servers = self._servers[plan.job, host] = ServerSet()
                self._hosts[host].add(plan.job, servers)
            servers.adopt(plan, host, self.network)
            self.world.flush(host)

    def _send_plans(self) -> None:
        """Send agents their jobs' newer epochs, each after a different delay."""
        for plan in self.manager.store.plans():
            if plan.epoch == self._sent[plan.job]:
                continue
            self._sent[plan.job] = plan.epoch
            self._later(lambda plan=plan: self._serve(plan))  # type: ignore[misc]
            for worker in self._workers[plan.job]:
                self._later(lambda plan=plan, worker=worker: self._adopt(plan, worker))  # type: ignore[misc]

    def _later(self, do: object) -> None:
        self.world.queue.at(self.now + self._random.uniform(0, 2e-3), do)  # type: ignore[arg-type]

    def _adopt(self, plan: JobPlan, worker: Worker) -> None:
        worker.adopt(plan, self.now)
        self.world.flush(worker.host)

    def lose_server(self, job: int) -> None:
        """Its host is gone with all it knew; another one takes its place."""
        plan = self.manager.store.plan_of(job)
        [server] = plan.servers
        others = [h for h in self.network.hosts if h not in (*plan.workers, server)]
        self._hosts[server].remove(job)
        self._servers.pop((job, server), None)
        self._do(self.manager.replan(job, (self._random.choice(others),)))
        self._send_plans()

    def restart_controller(self, *, anew: bool = False) -> None:
        """Another one goes on from what was kept; the switches hold what they did.

        `anew`: with other plans, because something that they avoid may be back.
        """
        self.manager = self._new_manager()
        for number in self._workers:
            job = self._jobs[number]
            assert job.plan is not None
            if anew:
                job.avoided = frozenset({"s1"})
            self.manager.epochs.readopt(job)
        self._do(self.manager.refresh())
        self._send_plans()

    def end(self, job: int) -> None:
        """Let a job go, done or not."""
        plan = self.manager.store.plan_of(job)
        self._do(self.manager.remove(job))
        del self._workers[job], self.levels[job]
        for host in (*plan.workers, *plan.servers):
            self._hosts[host].remove(job)

    def end_those_that_are_done(self) -> None:
        """Hold their sums against numpy's, let them go, and give their slots back."""
        for job, workers in list(self._workers.items()):
            if all(worker.done(0) for worker in workers):
                for worker in workers:
                    assert np.array_equal(worker.result(0), self._expected[job])  # type: ignore[arg-type]
                self.exact += 1
                self.end(job)
        for plan in self.manager.store.plans():
            regained = self.manager.store.regained(plan.job)
            if regained:
                self._do(self.manager.replan(plan.job, regain=regained))
        self._send_plans()

    @property
    def running(self) -> list[int]:
        return list(self._workers)

    def _some_job_is_done(self) -> bool:
        return any(all(worker.done(0) for worker in ws) for ws in self._workers.values())

    def finish(self) -> None:
        """Until all jobs are over."""
        while self._workers:
            self.world.run(self._some_job_is_done, LIMIT)
            self.end_those_that_are_done()


def assert_apart(rules: SwitchRules) -> None:
    """No two trees may add in the same slots of a switch."""
    ranges = set()
    for entry in rules.entries:
        params, match = dict(entry.params), dict(entry.match)
        if entry.action == "admit_children" and params["fan_in"]:
            end = params["slot_base"] + params["window_mask"] + 1
            ranges.add((params["slot_base"], end, match["job"], match["tree"]))
    for (_, end, *one), (start, _, *other) in pairwise(sorted(ranges)):  # type: ignore[type-var]
        assert end <= start, f"slots of {one} and {other} overlap"


@contextlib.contextmanager
def live(slots: int, loss: float, seed: int) -> Iterator[Live]:
    network = load_network("leaf-spine:2x4x2", link_rate=1e8, latency=1e-5, slots=slots)
    made = Live(network, loss, seed)
    yield made
    made.close()


def request(job: int, window: int, workers: tuple[str, ...], server: str) -> PlanRequest:
    return PlanRequest(job, 1, workers, (server,), lanes=LANES, window=window)


JOBS = st.lists(
    st.tuples(
        st.sampled_from([4, 8, 16]),  # window
        st.integers(0, 3),  # level
        st.integers(2, 4),  # workers
        st.integers(1, 60),  # fragments
        st.sampled_from([0.0, 2e-4, 1e-3, 5e-3]),  # seconds until the next one comes
        st.sampled_from(["", "", "server lost", "controller restarted", "plans made anew"]),
    ),
    min_size=2,
    max_size=7,
)
SHORT_OF_SLOTS = [
    (8, 0, 3, 17, 0.0, ""),
    (4, 0, 2, 10, 0.005, ""),
    (4, 1, 4, 15, 0.0, ""),
    (16, 0, 2, 1, 0.0, ""),
    (4, 0, 2, 1, 0.0, ""),
    (4, 0, 2, 1, 0.0, "server lost"),
]
"""A job whose server moves finds no slots on its new way."""


@pytest.mark.slow
@settings(max_examples=examples(4, of=40), phases=(Phase.explicit, Phase.reuse, Phase.generate))
@example(SHORT_OF_SLOTS, 0.03, 861)
@given(JOBS, st.sampled_from([0.0, 0.03]), st.integers(0, 1000))
def test_sums_are_exact_while_jobs_come_and_go(
    jobs: list[tuple[int, int, int, int, float, str]], loss: float, seed: int
) -> None:
    rng = Random(seed)
    with live(SLOTS, loss, seed) as cluster:
        hosts = list(cluster.network.hosts)
        started = 0
        for number, (window, level, count, fragments, pause, event) in enumerate(jobs, start=1):
            *workers, server = rng.sample(hosts, count + 1)
            asked = request(number, window, tuple(workers), server)
            started += cluster.submit(asked, level, fragments)
            cluster.wait(pause)
            cluster.end_those_that_are_done()
            if event == "server lost" and cluster.running:
                cluster.lose_server(rng.choice(cluster.running))
            elif event in ("controller restarted", "plans made anew"):
                cluster.restart_controller(anew=event == "plans made anew")
        cluster.finish()
        assert cluster.exact == started
        assert all(not cluster.manager.store.slots_held(name) for name in cluster.network.switches)


@pytest.mark.slow
@pytest.mark.parametrize("pause", [3e-4, 1e-3, 2e-3, 4e-3])
@pytest.mark.parametrize("anew", [False, True])
def test_a_restart_of_the_controller_in_mid_run(pause: float, anew: bool) -> None:
    """The first job's end leaves a gap, so new plans have other slots than before."""
    with live(64, 0.03, 2) as cluster:
        for job in (1, 2, 3):
            asked = request(job, SLOTS, ("h1", "h2", "h5"), "h8")
            assert cluster.submit(asked, 1, 200)
        cluster.end(1)
        before = cluster.manager.store.plan_of(2).trees[0].parts["l1"].slot_base
        cluster.wait(pause)
        cluster.restart_controller(anew=anew)
        plan = cluster.manager.store.plan_of(2)
        assert (plan.trees[0].parts["l1"].slot_base != before) == anew
        assert plan.epoch == (2 if anew else 1)
        cluster.finish()
        assert cluster.exact == 2


@pytest.mark.slow
def test_slots_are_given_up_and_come_back_in_mid_run() -> None:
    """Three levels of jobs with the same workers, each of which wants all slots of a leaf."""
    with live(SLOTS, 0.02, 1) as cluster:
        asked = request(1, SLOTS, ("h1", "h2", "h3"), "h8")
        assert cluster.submit(asked, 5, 400)
        summing = {
            n for n, p in cluster.manager.store.plan_of(1).trees[0].parts.items() if p.aggregate
        }
        cluster.wait(2e-3)
        for job, level in ((2, 3), (3, 1)):
            assert cluster.submit(replace(asked, job=job), level, 100)
            cluster.wait(2e-3)
        assert cluster.pre_empted == 2
        assert summing <= cluster.manager.store.bypassed(1)
        assert set(cluster.manager.store.slots_held("l1")) == {3}
        cluster.finish()
        assert cluster.exact == 3


@pytest.mark.slow
def test_a_job_that_needs_its_switches_keeps_them() -> None:
    """More flows than a server takes: its job does not give way, so the new one finds no room."""
    network = load_network("leaf-spine:3x180x1", slots=SLOTS, plain=["l2", "l3", "s1"])
    workers = tuple(host for host in network.hosts if host != "ps")
    assert len(workers) > MAX_CHILDREN
    asked = request(1, SLOTS, workers, "ps")

    async def install_nothing(rules: Mapping[str, SwitchRules]) -> None:
        pass

    async def main() -> None:
        manager = Manager(network, install_nothing)
        await manager.submit(job_of(asked))
        newer = replace(asked, job=2, workers=asked.workers[:4])
        with pytest.raises(PlanError, match="16 of 16 are in use"):
            await manager.submit(job_of(newer), levels=lambda: {1: 7, 2: 0})
        assert manager.store.plan_of(1).epoch == 1
        assert not manager.store.bypassed(1)

    asyncio.run(main())
