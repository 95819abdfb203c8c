"""Whole jobs on the real P4 program and the real agents, in virtual time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import pytest

from hopsum.collectives.algorithms.ring import ring_all_reduce
from hopsum.collectives.choices import Collective
from hopsum.collectives.plan import DataType, JobPlan, Results
from hopsum.host_agent.stream import WorkerOptions
from hopsum.host_agent.workload import WorkloadSpec, make_workload
from hopsum.network.loaders import load_network
from hopsum.network.model import Network
from hopsum.planning.model.placement import place
from hopsum.planning.model.request import PlanRequest, SwitchRole
from hopsum.planning.registry import plan_job
from hopsum.simulation.events import SimulationError
from hopsum.simulation.faults import Faults, LinkCut, Reboot
from hopsum.timing.estimate import estimate
from hopsum.timing.work import PlanWork, ScheduleWork
from p4switch.targets.v1model.engine import Engine
from tests.support.engines import engine_maker
from tests.support.paths import HOPSUM_P4
from tests.support.simulated_jobs import Replan, SimulatedRun, simulate_plan, simulate_schedule

LANES = 32
OPTIONS = WorkerOptions(deadline=500.0, max_timeout=0.3)


@cache
def maker(executor: str | None = None) -> object:
    defines = {"LANES": str(LANES), "SLOTS": "1024"}
    return engine_maker(HOPSUM_P4, defines=defines, executor=executor)


def make_engine() -> Engine:
    return maker()()  # type: ignore[operator, no-any-return]


def job(
    topology: str, workers: int, *, servers: int = 1, window: int = 16, **choices: object
) -> tuple[Network, JobPlan]:
    network = load_network(
        topology, link_rate=1e8, latency=1e-5, servers=servers, workers=workers, slots=1024
    )
    placement = place(network, workers, servers)
    request = PlanRequest(
        1, 1, placement.workers, placement.servers, lanes=LANES, window=window, **choices
    )
    return network, plan_job(network, request)


ELEMENTS = 2000
"""Of a tensor, unless a test says: more than a window's."""


def run(
    network: Network,
    plan: JobPlan,
    *,
    elements: int = ELEMENTS,
    rounds: int = 2,
    dtype: DataType = DataType.INT32,
    faults: Faults | None = None,
    seed: int = 1,
    limit: float = 400.0,
    replans: Sequence[Replan] = (),
    collective: Collective = Collective.ALL_REDUCE,
) -> SimulatedRun:
    spec = WorkloadSpec(
        "random", len(plan.workers), elements, rounds, dtype, seed, collective=collective
    )
    return simulate_plan(
        network,
        plan,
        make_engine,
        lambda worker: make_workload(spec, worker, plan),
        faults=faults,
        seed=seed,
        limit=limit,
        options=OPTIONS,
        replans=replans,
    )


def check(done: SimulatedRun, elements: int = ELEMENTS, rounds: int = 2) -> None:
    for workload in done.workloads:
        verdict = workload.verdict()
        assert verdict.wrong == 0
        assert verdict.checked == elements * rounds


TOPOLOGIES = [("star:4", 4), ("line:3x2", 6), ("leaf-spine:2x3", 6), ("fat-tree:4", 8)]


@pytest.mark.slow
@pytest.mark.parametrize("loss", [0.0, 0.01, 0.05, 0.1])
@pytest.mark.parametrize(("topology", "workers"), TOPOLOGIES)
def test_int32_sums_are_exact_under_loss(topology: str, workers: int, loss: float) -> None:
    network, plan = job(topology, workers)
    done = run(network, plan, elements=1500, faults=Faults(loss=loss))
    check(done, elements=1500)
    assert (done.retransmissions > 0) == (loss > 0)


@pytest.mark.slow
@pytest.mark.parametrize("results", list(Results))
@pytest.mark.parametrize("algorithm", list(SwitchRole))
@pytest.mark.parametrize("dtype", list(DataType))
def test_every_mode_is_exact_under_every_fault(
    results: Results, algorithm: SwitchRole, dtype: DataType
) -> None:
    network, plan = job("leaf-spine:2x2", 4, results=results, algorithm=algorithm)
    faults = Faults(loss=0.03, corrupt=0.01, duplicate=0.03, reorder=0.1, hold=0.01)
    check(run(network, plan, dtype=dtype, faults=faults))


def test_a_bit_that_flips_unseen_is_a_wrong_sum_that_agents_find() -> None:
    """Nothing on the way checks lanes (docs/security.md); of random tensors agents know the sum."""
    network, plan = job("star:3", 3)
    done = run(network, plan, faults=Faults(flip=0.05))
    assert sum(workload.verdict().wrong for workload in done.workloads) > 0
    assert all(workload.verdict().checked == 2 * ELEMENTS for workload in done.workloads)


@pytest.mark.slow
@pytest.mark.parametrize("results", list(Results))
@pytest.mark.parametrize("dtype", list(DataType))
@pytest.mark.parametrize(("topology", "workers"), [("star:3", 3), ("line:3x1", 1), ("line:3x2", 6)])
def test_bits_that_flip_unseen_change_no_sum_of_a_job_with_integrity(
    topology: str, workers: int, dtype: DataType, results: Results
) -> None:
    network, plan = job(topology, workers, integrity=True, results=results)
    done = run(network, plan, dtype=dtype, faults=Faults(flip=0.02, loss=0.005))
    check(done)
    assert done.flipped > 10


@pytest.mark.parametrize("elements", [0, 1, LANES - 1, LANES, LANES + 1, 16 * LANES + 5])
@pytest.mark.parametrize("dtype", list(DataType))
def test_any_tensor_length(elements: int, dtype: DataType) -> None:
    network, plan = job("star:3", 3)
    check(run(network, plan, elements=elements, rounds=3, dtype=dtype), elements, 3)


def test_a_single_worker_is_its_own_sum() -> None:
    network, plan = job("line:3x1", 1)
    check(run(network, plan, faults=Faults(loss=0.05)))


def test_fragments_are_sharded_over_servers() -> None:
    network, plan = job("star:4", 4, servers=3)
    assert len({tree.server for tree in plan.trees}) == 3
    done = run(network, plan, faults=Faults(loss=0.02))
    check(done)
    for tree in plan.trees:
        access = network.access_switch(tree.server)
        assert done.links[access, tree.server] > 0


@pytest.mark.slow
def test_switches_that_reboot_cost_time_only() -> None:
    network, plan = job("leaf-spine:2x3", 6)
    quiet = run(network, plan, rounds=4)
    reboots = tuple(
        Reboot(switch, quiet.finished_at * share, 0.01)
        for switch, share in (("l1", 0.2), ("s1", 0.4), ("l2", 0.6), ("l1", 0.61))
        if switch in network.switches
    )
    assert len(reboots) >= 3
    done = run(network, plan, rounds=4, faults=Faults(reboots=reboots))
    check(done, rounds=4)
    assert done.finished_at > quiet.finished_at


def test_a_cut_link_is_survived_when_it_heals() -> None:
    network, plan = job("star:3", 3)
    check(run(network, plan, faults=Faults(cuts=(LinkCut("h1", "s1", 0.0002, 0.4),))))


def test_a_link_that_stays_cut_ends_the_job_with_a_name() -> None:
    network, plan = job("star:3", 3)
    spec = WorkloadSpec("random", 3, 100, 1, DataType.INT32, 1)
    with pytest.raises((SimulationError, RuntimeError), match=r"job 1|workers not done"):
        simulate_plan(
            network,
            plan,
            make_engine,
            lambda worker: make_workload(spec, worker, plan),
            faults=Faults(cuts=(LinkCut("h1", "s1", 0.0, 1e9),)),
            limit=50.0,
            options=replace(OPTIONS, deadline=2.0),
        )


@pytest.mark.slow
def test_a_run_repeats_from_its_seed() -> None:
    network, plan = job("leaf-spine:2x2", 4)
    faults = Faults(loss=0.05, duplicate=0.02, reorder=0.05)
    first, again = (run(network, plan, faults=faults, seed=7) for _ in range(2))
    assert (first.links, first.switches, first.intervals) == (
        again.links,
        again.switches,
        again.intervals,
    )
    other = run(network, plan, faults=faults, seed=8)
    assert other.intervals != first.intervals


@pytest.mark.slow
def test_both_executors_give_the_same_run() -> None:
    network, plan = job("star:3", 3)
    spec = WorkloadSpec("random", 3, 700, 2, DataType.FLOAT32, 2)
    runs = [
        simulate_plan(
            network,
            plan,
            maker(executor),  # type: ignore[arg-type]
            lambda worker: make_workload(spec, worker, plan),
            faults=Faults(loss=0.05),
            seed=3,
            options=OPTIONS,
        )
        for executor in (None, "interpreter")
    ]
    assert runs[0].links == runs[1].links
    assert runs[0].switches == runs[1].switches
    assert runs[0].intervals == runs[1].intervals


def test_a_ring_through_the_switches_is_exact() -> None:
    network, plan = job("fat-tree:4", 6)
    spec = WorkloadSpec("random", 6, 2000, 2, DataType.INT32, 2)
    done = simulate_schedule(
        network,
        plan.workers,
        lambda elements: ring_all_reduce(len(plan.workers), elements),
        make_engine,
        lambda worker: make_workload(spec, worker, None),
        faults=Faults(loss=0.01),
        seed=3,
    )
    check(done, 2000, 2)


@pytest.mark.slow
def test_packets_take_the_estimated_time_and_the_estimated_bytes() -> None:
    network, plan = job("leaf-spine:2x2", 4, algorithm=SwitchRole.IN_NETWORK)
    done = run(network, plan, elements=20_000)
    expected = estimate(network, PlanWork(plan, [(20_000, DataType.INT32)], rounds=2))
    assert {link: size for link, size in done.links.items() if size} == expected.links
    assert done.seconds == pytest.approx(expected.seconds, rel=0.05)

    ring = replace(ring_all_reduce(4, 100_000), names=plan.workers)
    spec = WorkloadSpec("random", 4, 100_000, 1, DataType.INT32, 0)
    done = simulate_schedule(
        network,
        plan.workers,
        lambda elements: ring_all_reduce(4, elements),
        make_engine,
        lambda worker: make_workload(spec, worker, None),
    )
    assert done.seconds == pytest.approx(estimate(network, ScheduleWork([ring])).seconds, rel=0.05)
