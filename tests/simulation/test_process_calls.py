"""Calls of processes, through the real P4 program and agents, in virtual time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pytest

from hopsum.collectives.plan import DataType, JobPlan
from hopsum.host_agent.io.process_connection import Request
from hopsum.host_agent.node import guesses
from hopsum.host_agent.node.calls import COPY, CallSpec
from hopsum.host_agent.node.process_source import OTHER, ProcessSource
from hopsum.host_agent.node.work import Work
from hopsum.host_agent.process_calls import ALL, PARTS, PASSED, ROOT, CallPacket
from hopsum.host_agent.segment import Tensor
from hopsum.host_agent.stream import WorkerOptions
from hopsum.host_agent.task import Task
from hopsum.host_agent.workload import PROCESS, WorkloadSpec
from hopsum.network.loaders import load_network
from hopsum.network.model import Network
from hopsum.planning.model.placement import place
from hopsum.planning.model.request import PlanRequest
from hopsum.planning.registry import plan_job
from hopsum.protocol.wire import EXPONENT_BIAS, LANES_DEFAULT
from hopsum.simulation.faults import Faults, Reboot
from hopsum.simulation.host import VirtualHost
from tests.support.engines import engine_maker
from tests.support.paths import HOPSUM_P4
from tests.support.simulated_jobs import Simulation

LANES = 32
TIMES = 4
TARGETS = (ALL, PARTS, ROOT + 1)
SETTLE: Any = ProcessSource._settle  # noqa: SLF001
SPECIAL = (np.inf, -np.inf, np.nan)
REDUCED_BY = {
    ("int32", "sum"): np.add,
    ("int32", "max"): np.maximum,
    ("int32", "min"): np.minimum,
    ("int32", "and"): np.bitwise_and,
    ("int32", "or"): np.bitwise_or,
    ("int32", "xor"): np.bitwise_xor,
    ("float32", "sum"): np.add,
    ("float32", "max"): np.maximum,
    ("float32", "min"): np.minimum,
}


Called = tuple[str, str, int, int]
"""Type, reduction or `copy`, elements and target of a call."""


class Handed:
    """The process of a host, which makes calls, at once or one after the other, and leaves."""

    def __init__(self, seed: int, calls: Sequence[Called], *, one_by_one: bool = False) -> None:
        self._one_by_one = one_by_one
        generator = np.random.default_rng(seed)
        self.given: list[Tensor] = []
        self.tensors: list[Tensor] = []
        self.done_with: list[int] = []
        self._asked: list[Request] = []
        for number, (dtype, reduction, elements, target) in enumerate(calls):
            # One rank alone has greater values towards the end.
            limit = 4000 if seed == 1 and number > len(calls) // 2 else 1000
            values = generator.integers(-limit, limit, elements).astype(dtype)
            self.given.append(values.copy())
            self.tensors.append(values)
            # 2^12, of float32 as an exponent byte; sums of whole numbers so small are exact.
            most = 12 + EXPONENT_BIAS if dtype == "float32" else 4000
            magnitude = most if reduction == "sum" else 0
            kind = "copy" if reduction == "copy" else "sum"
            self._asked.append(Request(kind, number, values, magnitude, None, reduction, target))
        self._asked.append(Request("leave"))

    def pass_on(self, number: int, generator: np.random.Generator) -> None:
        """Let values that are not finite into a call, if it is of float32."""
        values = self.tensors[number]
        if values.dtype != np.float32:
            return
        values[generator.random(len(values)) < 0.1] = generator.choice(SPECIAL)
        self.given[number] = values.copy()
        if not np.isfinite(values).all():
            self._asked[number] = replace(self._asked[number], fault=(PASSED, 0))

    def take(self) -> list[Request]:
        count = len(self._asked)
        if self._one_by_one:
            count = int(len(self.done_with) + count > len(self.given))
        taken, self._asked = self._asked[:count], self._asked[count:]
        return taken


class Hand:
    """The agent's end of the processes of a host, by rank."""

    def __init__(self, processes: Mapping[int, Handed]) -> None:
        self._processes = processes

    def start(self, ranks: Sequence[str], *, rooted: bool) -> None:
        """The job has begun."""

    def take(self) -> list[tuple[int, Request]]:
        return [
            (rank, each) for rank, process in self._processes.items() for each in process.take()
        ]

    def done(self, rank: int, call: int) -> None:
        self._processes[rank].done_with.append(call)

    def absent(self) -> list[int]:
        """All are here from the beginning."""
        return []

    def mailbox(self, rank: int) -> None:
        """Flows take nothing here."""

    def request(self, rank: int, packet: CallPacket) -> Request:
        raise AssertionError("no flow takes packets here")

    def failed(self, rank: int, call: int, why: str, whose: Mapping[int, str]) -> None:
        raise AssertionError(f"rank {rank}, call {call}: {why} {whose}")

    def close(self, why: str) -> None:
        assert why in ("", "the job is over")


def hand_over(
    ranks: Sequence[str],
    calls: Sequence[Called],
    monkeypatch: pytest.MonkeyPatch,
    *,
    one_by_one: bool = False,
) -> list[Handed]:
    """The processes that make calls, by rank, on these hosts."""
    processes = [Handed(rank, calls, one_by_one=one_by_one) for rank in range(len(ranks))]

    def of_host(host: VirtualHost, job: int) -> Hand:
        return Hand({rank: each for rank, each in enumerate(processes) if ranks[rank] == host.name})

    monkeypatch.setattr(VirtualHost, "process_tensors", of_host)
    return processes


def expected(calls: Sequence[Called], number: int, processes: Sequence[Handed], rank: int) -> Any:
    """What a call leaves at a rank: the elements (start, stop), and their values."""
    dtype, reduction, elements, target = calls[number]
    given = [process.given[number] for process in processes]
    share = CallSpec(COPY, elements, target).share
    if reduction != "copy":
        start, stop = share(rank, len(given))
        return start, stop, REDUCED_BY[dtype, reduction].reduce(given)[start:stop]
    whole = np.zeros_like(given[0])
    for owner, values in enumerate(given):
        start, stop = share(owner, len(given))
        whole[start:stop] = values[start:stop]
    return 0, elements, whole


def plan_of(
    network: Network, workers: int, *, rooted: bool, window: int, lanes: int = LANES
) -> JobPlan:
    """A plan for some workers: they have a server, or are the roots of two trees each."""
    placed = place(network, workers, 0 if rooted else 1)
    servers = 2 * placed.servers if rooted else placed.servers
    return plan_job(network, PlanRequest(1, 1, placed.workers, servers, lanes=lanes, window=window))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("loss", "reboots", "places"),
    [(0.0, (), (0, 1, 2, 3)), (0.05, (0.002, 0.01), (0, 0, 1, 2, 3, 3, 3))],
    ids=["a rank each", "several, under loss"],
)
@pytest.mark.parametrize(("rooted", "one_by_one"), [(False, True), (True, False)])
def test_each_call_is_reduced_in_its_own_way(
    loss: float,
    reboots: tuple[float, ...],
    places: tuple[int, ...],
    one_by_one: bool,
    rooted: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`places`: of each rank, which worker's host it is on.

    `one_by_one`: from the second time on the order is known, and nothing is checked.
    """
    monkeypatch.setattr(guesses, "SURE", 1)
    remarks: set[int] = set()

    def settle(source: Any, call: Any, *rest: Any) -> None:
        remarks.add(call.remark.maximum)
        SETTLE(source, call, *rest)

    monkeypatch.setattr(ProcessSource, "_settle", settle)
    network = load_network(
        "leaf-spine:2x2", link_rate=1e8, latency=1e-5, servers=1, workers=4, slots=1024
    )
    plan = plan_of(network, 4, rooted=rooted, window=8)
    calls = [
        *((*call, 700, TARGETS[place % 3]) for place, call in enumerate(REDUCED_BY)),
        ("float32", "sum", 100, ALL),
        ("float32", "sum", 700, PARTS),
        ("int32", "copy", 700, PARTS),
        ("int32", "copy", 700, ROOT + 2),
    ] * TIMES
    ranks = tuple(plan.workers[place] for place in places)
    processes = hand_over(ranks, calls, monkeypatch, one_by_one=one_by_one)
    switch = next(iter(network.switches))
    faults = Faults(loss=loss, reboots=tuple(Reboot(switch, time) for time in reboots))
    simulation = Simulation(
        network,
        engine_maker(HOPSUM_P4, defines={"LANES": str(LANES), "SLOTS": "1024"}),
        faults=faults,
        seed=1,
    )
    spec = WorkloadSpec(PROCESS, 4, 0, 0, DataType.INT32, 0, ranks=ranks)
    options = replace(WorkerOptions(), deadline=500.0, max_timeout=0.3)
    simulation.add(plan, Work(Task(spec, options=asdict(options))))
    simulation.run(400.0)
    for number in range(len(calls)):
        for rank, process in enumerate(processes):
            start, stop, values = expected(calls, number, processes, rank)
            np.testing.assert_array_equal(process.tensors[number][start:stop], values)
    for process in processes:
        assert sorted(process.done_with) == [*range(len(calls))]
    if one_by_one:
        # Of integers; of small float32 as expected, and then of one rank; and of goodbyes.
        assert remarks == {0, 10 + EXPONENT_BIAS, 12 + EXPONENT_BIAS, OTHER}


@pytest.mark.slow
@pytest.mark.parametrize(("rooted", "one_by_one"), [(False, True), (True, False)])
@pytest.mark.parametrize(
    "places", [(0, 1, 2, 3), (0, 0, 1, 2, 3, 3, 3)], ids=["a rank each", "several"]
)
def test_values_that_are_not_finite_pass(
    places: tuple[int, ...], rooted: bool, one_by_one: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each rank gets NaN and infinity as addition gives them, under loss and among other calls."""
    monkeypatch.setattr(guesses, "SURE", 1)
    network = load_network(
        "leaf-spine:2x2", link_rate=1e8, latency=1e-5, servers=1, workers=4, slots=1024
    )
    plan = plan_of(network, 4, rooted=rooted, window=8)
    calls = [
        *(("float32", "sum", elements, target) for elements in (84, 700) for target in TARGETS),
        ("int32", "sum", 700, ALL),
    ] * TIMES
    ranks = tuple(plan.workers[place] for place in places)
    processes = hand_over(ranks, calls, monkeypatch, one_by_one=one_by_one)
    generator = np.random.default_rng(7)
    for process in processes:
        for number in generator.permutation(len(calls))[: len(calls) // 4]:
            process.pass_on(int(number), generator)
    simulation = Simulation(
        network,
        engine_maker(HOPSUM_P4, defines={"LANES": str(LANES), "SLOTS": "1024"}),
        faults=Faults(loss=0.03),
        seed=1,
    )
    spec = WorkloadSpec(PROCESS, 4, 0, 0, DataType.INT32, 0, ranks=ranks)
    options = replace(WorkerOptions(), deadline=500.0, max_timeout=0.3)
    simulation.add(plan, Work(Task(spec, options=asdict(options))))
    simulation.run(400.0)
    for number in range(len(calls)):
        for rank, process in enumerate(processes):
            with np.errstate(invalid="ignore"):
                start, stop, values = expected(calls, number, processes, rank)
            np.testing.assert_array_equal(process.tensors[number][start:stop], values)
    for process in processes:
        assert sorted(process.done_with) == [*range(len(calls))]


def measured(
    ranks: Sequence[str],
    calls: Sequence[Called],
    monkeypatch: pytest.MonkeyPatch,
    *,
    rooted: bool = False,
) -> tuple[float, Mapping[tuple[str, str], int]]:
    """The cost of some hosts' calls, made at once; `ranks`: their hosts.

    Seconds, and bytes by link and direction.
    """
    workers = len(set(ranks))
    network = load_network(
        f"star:{workers}", link_rate=5e7, latency=1e-5, servers=not rooted, workers=workers
    )
    plan = plan_of(
        network, workers, rooted=rooted, window=32 if rooted else 64, lanes=LANES_DEFAULT
    )
    processes = hand_over(ranks, calls, monkeypatch)
    simulation = Simulation(network, engine_maker(HOPSUM_P4), seed=1)
    spec = WorkloadSpec(PROCESS, workers, 0, 0, DataType.INT32, 0, ranks=tuple(ranks))
    simulation.add(plan, Work(Task(spec)))
    simulation.run(100.0)
    assert [len(process.done_with) for process in processes] == [len(calls)] * len(ranks)
    result = simulation.result(plan.job)
    return result.seconds, result.links


def sums(*sizes: int) -> list[Called]:
    """Sums of float32 for all."""
    return [("float32", "sum", size, ALL) for size in sizes]


@pytest.mark.slow
def test_small_tensors_handed_in_together_take_as_long_as_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They share checks and fragments, where each took two round trips of its own."""
    ranks = ["h1", "h2"]
    calls = sums(*[500] * 16), sums(8000)
    together, one = (measured(ranks, each, monkeypatch)[0] for each in calls)
    assert together <= 1.05 * one


@pytest.mark.slow
def test_several_ranks_cost_a_host_as_many_bytes_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """One tensor a host, however many processes have parts in it."""
    calls = sums(500, 30_000, 500)
    alone = measured(["h1", "h2"], calls, monkeypatch)
    for ranks in (["h1", "h1", "h2", "h2"], ["h1", "h2", "h2", "h1", "h2", "h1"]):
        assert measured(ranks, calls, monkeypatch) == alone


@pytest.mark.slow
def test_a_gather_takes_the_directions_that_a_scatter_leaves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of each link, so both at once take hardly longer than one; and a part crosses a link once."""
    ranks = ["h1", "h2", "h3", "h4"]
    scatter, gather = ("float32", "sum", 80_000, PARTS), ("int32", "copy", 80_000, PARTS)
    costs = {
        calls: measured(ranks, calls, monkeypatch, rooted=True)
        for calls in ((scatter,), (gather,), (scatter, gather), (gather, scatter))
    }
    alone = max(costs[scatter,][0], costs[gather,][0])
    assert max(costs[scatter, gather][0], costs[gather, scatter][0]) < 1.5 * alone
    tensor = 4 * 80_000
    for host in ranks:
        up, down = (costs[scatter,][1][link] for link in ((host, "s1"), ("s1", host)))
        assert up == pytest.approx(0.82 * tensor, rel=0.05)
        assert down == pytest.approx(0.32 * tensor, rel=0.05)
        up, down = (costs[gather,][1][link] for link in ((host, "s1"), ("s1", host)))
        assert up == pytest.approx(0.32 * tensor, rel=0.05)
        assert down == pytest.approx(0.82 * tensor, rel=0.05)
