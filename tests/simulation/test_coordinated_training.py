"""Training whose gradients are ready in another order on every worker, in virtual time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache

import pytest

from hopsum.collectives.algorithms.catalogue import make_schedule
from hopsum.collectives.plan import DataType, JobPlan
from hopsum.collectives.plan_checker import check_plans
from hopsum.coordination.failure import IterationMismatch
from hopsum.coordination.operators import Operator
from hopsum.coordination.physical import plan_coordination
from hopsum.coordination.tree import TreeLimits
from hopsum.host_agent.digits import train_alone
from hopsum.host_agent.operator_training import NAMES, OperatorTraining
from hopsum.host_agent.workload import WorkloadSpec, make_workload
from hopsum.network.loaders import load_network
from hopsum.network.model import Network
from hopsum.planning.model.allocation import Allocator
from hopsum.planning.model.placement import place
from hopsum.planning.model.request import PlanRequest
from hopsum.planning.registry import plan_job
from hopsum.protocol.wire import Reduction
from hopsum.simulation.faults import Faults
from hopsum.timing.estimate import estimate
from hopsum.timing.work import PlanWork
from p4switch.targets.v1model.engine import Engine, EngineOptions
from tests.support.engines import engine_maker
from tests.support.paths import HOPSUM_P4
from tests.support.simulated_jobs import Replan, SimulatedRun, simulate_plan, simulate_schedule

pytestmark = pytest.mark.usefixtures("short_epochs")

WORKERS = 4
LANES = 352
SEED = 3
VECTOR_WINDOW = 4


@cache
def maker() -> Callable[[], Engine]:
    defines = {"LANES": str(LANES), "SLOTS": "256"}
    return engine_maker(HOPSUM_P4, defines=defines, options=EngineOptions(queue_depth=1 << 16))


@cache
def case(workers: int = WORKERS) -> tuple[Network, JobPlan]:
    network = load_network(
        "leaf-spine:2x3", link_rate=1e9, latency=1e-5, workers=workers, slots=256
    )
    placement = place(network, workers, 1)
    request = PlanRequest(1, 1, placement.workers, placement.servers, lanes=LANES, window=64)
    return network, plan_job(network, request)


@cache
def vectors_case(workers: int = WORKERS) -> tuple[JobPlan, JobPlan]:
    """The plan of a job, and that of its bit vectors' job, which share the switches."""
    network, plan = case(workers)
    allocator = Allocator(network)
    servers = (plan.trees[0].server,)
    request = PlanRequest(1, 1, plan.workers, servers, lanes=LANES, window=64)
    vectors = replace(request, job=2, window=VECTOR_WINDOW, reduction=Reduction.AND)
    plans = [plan_job(network, each, allocator) for each in (request, vectors)]
    check_plans(network, plans)
    return plans[0], plans[1]


def train(
    workers: int = WORKERS,
    faults: Faults | None = None,
    *,
    switches: bool = False,
    replans: Sequence[Replan] = (),
) -> SimulatedRun:
    network, plan = case(workers)
    vectors = None
    if switches:
        plan, vectors = vectors_case(workers)
    spec = WorkloadSpec("digits", workers, 0, 1, DataType.FLOAT32, SEED, coordinate=True)
    tree = plan_coordination(network, [(host, host) for host in plan.workers], TreeLimits(2))
    return simulate_plan(
        network,
        plan,
        maker(),
        lambda worker: OperatorTraining(spec, worker, plan),
        faults=faults,
        tree=tree,
        vectors=vectors,
        replans=replans,
    )


def check(run: SimulatedRun) -> None:
    orders = set()
    for training in run.workloads:
        assert isinstance(training, OperatorTraining)
        assert training.verdict().wrong == 0
        orders.add(tuple(training.order))
        losses = list(training.outcome().losses)
        assert losses == pytest.approx(train_alone(SEED, 1).losses, rel=1e-3)
    assert len(orders) == 1
    assert sorted(orders.pop()) == sorted(NAMES)


@pytest.mark.slow
def test_all_workers_sum_in_one_order_and_every_byte_is_predicted() -> None:
    network, plan = case()
    run = train()
    check(run)
    spec = WorkloadSpec("digits", WORKERS, 0, 1, DataType.FLOAT32, SEED, coordinate=True)
    tensors = [(size, DataType.FLOAT32) for size in spec.step_sizes()]
    expected = estimate(network, PlanWork(plan, tensors, spec.steps))
    assert {link: size for link, size in run.links.items() if size} == expected.links
    assert run.retransmissions == 0


@pytest.mark.slow
def test_a_run_repeats_exactly() -> None:
    faults = Faults(loss=0.01, reorder=0.01)
    one, other = train(2, faults), train(2, faults)
    check(one)
    assert one.retransmissions > 0
    assert (one.links, one.intervals, one.finished_at) == (
        other.links,
        other.intervals,
        other.finished_at,
    )


@pytest.mark.slow
def test_a_ring_sums_in_the_agreed_order_too() -> None:
    network, plan = case()
    spec = WorkloadSpec("digits", WORKERS, 0, 1, DataType.FLOAT32, SEED, coordinate=True)
    run = simulate_schedule(
        network,
        plan.workers,
        lambda elements: make_schedule("ring", network, plan.workers, elements),
        maker(),
        lambda worker: OperatorTraining(spec, worker, None),
        tree=plan_coordination(network, [(host, host) for host in plan.workers]),
    )
    check(run)


@pytest.mark.slow
def test_vectors_through_the_switches_cost_a_packet_a_cycle_on_every_link() -> None:
    """Four operators and the iteration are three words: one fragment up every link, one down."""
    network, _ = case()
    plan, vectors = vectors_case()
    run = train(switches=True)
    check(run)
    assert run.retransmissions == 0
    spec = WorkloadSpec("digits", WORKERS, 0, 1, DataType.FLOAT32, SEED, coordinate=True)
    tensors = [(size, DataType.FLOAT32) for size in spec.step_sizes()]
    sums = estimate(network, PlanWork(plan, tensors, spec.steps)).links
    cycle = estimate(network, PlanWork(vectors, [(3, DataType.INT32)])).links
    assert set(cycle) == set(sums)
    cycles = {(run.links[link] - sums[link]) / size for link, size in cycle.items()}
    (number,) = cycles
    # The first step is negotiated; each later one takes a cycle at least.
    assert number.is_integer()
    assert number >= spec.steps - 1


@pytest.mark.slow
def test_vectors_through_the_switches_outlive_loss_and_new_plans() -> None:
    network, _ = case()
    faults = Faults(loss=0.02, duplicate=0.01, reorder=0.02)
    request = PlanRequest(
        *(2, 2, vectors_case()[1].workers, (vectors_case()[1].trees[0].server,)),
        lanes=LANES,
        window=VECTOR_WINDOW,
        reduction=Reduction.AND,
    )
    allocator = Allocator(network)
    plan_job(network, replace(request, job=1, window=64, reduction=Reduction.SUM), allocator)
    again = plan_job(network, request, allocator)
    run = train(faults=faults, switches=True, replans=[Replan(0.008, again, 0.001)])
    check(run)
    assert run.finished_at > 0.008


class Forgetful(OperatorTraining):
    """Leaves an operator out in one step."""

    def begin_step(self) -> list[Operator] | None:
        operators = super().begin_step()
        if self.step != 2 or operators is None:
            return operators
        self._missing.discard(NAMES[1])
        return [operator for operator in operators if operator.name != NAMES[1]]


@pytest.mark.slow
@pytest.mark.parametrize("manner", ["tree", "ring", "switches", "schedule"])
def test_a_worker_that_leaves_an_operator_out_is_named(manner: str) -> None:
    """And nothing of two steps is summed: the workers' sums would not be what they check."""
    network, plan = case()
    vectors = None
    if manner == "switches":
        plan, vectors = vectors_case()
    spec = WorkloadSpec("digits", WORKERS, 0, 1, DataType.FLOAT32, SEED, coordinate=True)
    tree = plan_coordination(network, [(host, host) for host in plan.workers], TreeLimits(2))
    if manner == "ring":
        tree = replace(tree, ring=(2, 0, 3, 1))
    trainings = []

    def make(worker: int) -> OperatorTraining:
        kind = Forgetful if worker == 3 else OperatorTraining
        trainings.append(kind(spec, worker, plan if manner != "schedule" else None))
        return trainings[-1]

    name = tree.names[3]
    with pytest.raises(IterationMismatch, match=f"{NAMES[1]}, iteration 2: {name} ended it with"):
        if manner == "schedule":
            simulate_schedule(
                network,
                plan.workers,
                lambda elements: make_schedule("ring", network, plan.workers, elements),
                maker(),
                make,
                tree=tree,
            )
        else:
            simulate_plan(network, plan, maker(), make, tree=tree, vectors=vectors)
    assert all(training.verdict().wrong == 0 for training in trainings)


def test_tensors_in_lock_step_have_no_vectors() -> None:
    network, _ = case()
    plan, vectors = vectors_case()
    spec = WorkloadSpec("random", WORKERS, 10, 1, DataType.INT32, SEED)
    with pytest.raises(ValueError, match="in lock step has no bit vectors"):
        simulate_plan(
            *(network, plan, maker(), lambda w: make_workload(spec, w, plan)), vectors=vectors
        )


def test_without_a_tree_there_is_no_agreed_order() -> None:
    network, plan = case()
    spec = WorkloadSpec("digits", WORKERS, 0, 1, DataType.FLOAT32, SEED, coordinate=True)
    with pytest.raises(ValueError, match="expected a tree"):
        simulate_plan(network, plan, maker(), lambda w: OperatorTraining(spec, w, plan))
