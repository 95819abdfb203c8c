"""Tensors in parts, over trees of switches and topologies of hosts at once, in virtual time."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from functools import partial

import pytest

from hopsum.collectives.choices import Algorithm, Engine
from hopsum.collectives.plan import DataType, HostPart, JobPlan, PlanError, TreePlan
from hopsum.controller.jobs.settings import ClusterSettings
from hopsum.experiment.description import Experiment
from hopsum.experiment.pipelines import pipeline_for
from hopsum.experiment.prepare import prepare, task_of
from hopsum.experiment.result import Report
from hopsum.experiment.runner import run_experiment
from hopsum.experiment.simulated import loader
from hopsum.host_agent.plan_checks import check_same_job
from hopsum.host_agent.workload import Verdict, WorkloadSpec, make_workload
from hopsum.network.topologies import TopologyOptions, make_topology
from hopsum.planning.model.allocation import Allocator
from hopsum.planning.model.request import PlanRequest
from hopsum.planning.registry import EMBEDDING, plan_job
from hopsum.simulation.faults import Faults
from tests.support.data_types import OF_HOSTS
from tests.support.simulated_jobs import Replan, SimulatedRun, simulate_plan

pytestmark = pytest.mark.usefixtures("time_to_plan")

LANES = 64
WORKERS = ("h1", "h2", "h5", "h6")
NETWORK = make_topology("leaf-spine:2x4x2", TopologyOptions(25e6, 25e6, slots=256))
PARTS = (
    HostPart(Fraction(1, 8), order=("h2", "h1", "h6", "h5")),
    HostPart(Fraction(1, 8), root="h4", parents=dict.fromkeys(WORKERS, "h4")),
    HostPart(Fraction(1, 4), root="h1", parents={"h2": "h1", "h8": "h1", "h5": "h8", "h6": "h8"}),
)
"""A ring, a parameter server on a host of its own, and a tree with a relay in the other rack."""


def mixed(servers: tuple[str, ...] = ("ps", "h4"), epoch: int = 1) -> JobPlan:
    """Two trees with half of the data, three parts of hosts with the rest."""
    request = PlanRequest(1, epoch, WORKERS, servers, lanes=LANES, window=8)
    return replace(plan_job(NETWORK, request, Allocator(NETWORK)), host_parts=PARTS)


SETTINGS = ClusterSettings(lanes=LANES)
MAKE_ENGINE = partial(loader(), pipeline_for(NETWORK, Engine.EMBEDDED, SETTINGS).config)


def run(
    plan: JobPlan,
    dtype: DataType,
    elements: int,
    rounds: int = 2,
    faults: Faults | None = None,
    replans: tuple[Replan, ...] = (),
    cuts: dict[int, JobPlan] | None = None,
) -> SimulatedRun:
    spec = WorkloadSpec("random", len(WORKERS), elements, rounds, dtype, seed=5)
    return simulate_plan(
        NETWORK,
        plan,
        MAKE_ENGINE,
        lambda worker: make_workload(spec, worker, plan),
        faults=faults,
        seed=3,
        replans=replans,
        cuts=cuts,
        tensors=[(size, dtype) for size in spec.tensor_sizes()],
    )


def exact(run: SimulatedRun, checked: int) -> None:
    total = Verdict()
    for workload in run.workloads:
        total.merge(workload.verdict())
    assert total.checked == checked
    assert total.wrong == 0


@pytest.mark.slow
@pytest.mark.parametrize("dtype", OF_HOSTS)
@pytest.mark.parametrize("elements", [1, LANES, 5000])
def test_trees_and_hosts_sum_parts_of_a_tensor(dtype: DataType, elements: int) -> None:
    exact(run(mixed(), dtype, elements), 4 * 2 * elements)


@pytest.mark.parametrize("dtype", OF_HOSTS)
def test_parts_of_hosts_alone(dtype: DataType) -> None:
    parts = tuple(replace(part, weight=2 * part.weight) for part in PARTS)
    plan = replace(mixed(), trees=(), host_parts=parts)
    done = run(plan, dtype, 3000)
    exact(done, 4 * 2 * 3000)
    assert all(not counts.get("aggregated") for counts in done.switches.values())


@pytest.mark.slow
@pytest.mark.parametrize("dtype", OF_HOSTS)
def test_sums_of_parts_are_exact_under_loss(dtype: DataType) -> None:
    done = run(mixed(), dtype, 4000, faults=Faults(loss=0.02, duplicate=0.01, reorder=0.01))
    exact(done, 4 * 2 * 4000)
    assert done.retransmissions > 0


@pytest.mark.slow
def test_trees_change_under_way_and_parts_stay() -> None:
    """Server h4, which is a parameter server too, gives its tree to h3; and a switch is left."""
    plan = mixed()
    moved = mixed(("ps", "h3"), epoch=2)
    replans = tuple(
        Replan(time, replace(moved, epoch=epoch), 0.003)
        for epoch, time in enumerate((0.01, 0.03, 0.07), start=2)
    )
    exact(run(plan, DataType.INT32, 8000, rounds=3, replans=replans), 4 * 3 * 8000)


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "loss"), [(OF_HOSTS[0], 0.0), (OF_HOSTS[1], 0.02)])
def test_cuts_change_at_boundaries_while_epochs_change_anywhere(
    dtype: DataType, loss: float
) -> None:
    """Trees get more, less and nothing; relays come and go; new epochs come in between."""
    plan = replace(mixed(), period=1)

    def shared(plan: JobPlan, *shares: float) -> tuple[TreePlan, ...]:
        return tuple(replace(t, share=each) for t, each in zip(plan.trees, shares, strict=True))

    alone = tuple(replace(part, weight=2 * part.weight) for part in PARTS)
    cuts = {
        1: replace(plan, trees=shared(plan, 0.9, 0.1), host_parts=PARTS[:1]),
        2: replace(plan, host_parts=alone),
        4: replace(plan, host_parts=PARTS[1:]),
        5: plan,
    }
    moved = mixed(("ps", "h3"), epoch=2)
    # An epoch's own shares and parts say nothing of how tensors are cut.
    moved = replace(moved, period=1, trees=shared(moved, 0.2, 0.8), host_parts=())
    replans = tuple(
        Replan(time, replace(moved, epoch=epoch), 0.003)
        for epoch, time in enumerate((0.01, 0.03, 0.05, 0.09), start=2)
    )
    faults = Faults(loss=loss)
    exact(run(plan, dtype, 3000, 7, faults, replans, cuts), 4 * 7 * 3000)


def test_without_boundaries_a_cut_is_for_life() -> None:
    plan = mixed()
    with pytest.raises(PlanError, match="shares and parts"):
        check_same_job(plan, replace(plan, epoch=2, host_parts=PARTS[:1]))
    check_same_job(replace(plan, period=5), replace(plan, period=5, epoch=2, host_parts=()))


def embedded(**choices: object) -> Report:
    base = {
        "topology": "leaf-spine:2x4x1",
        "workers": 8,
        "elements": 20_000,
        "rounds": 2,
        "lanes": LANES,
        "window": 32,
        "uplink_rate": 25e6,
        "algorithm": Algorithm.EMBEDDING,
    }
    return run_experiment(Experiment(**{**base, **choices}))  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.parametrize("dtype", OF_HOSTS)
def test_an_experiment_with_an_embedding(dtype: DataType) -> None:
    report = embedded(dtype=dtype)
    assert report.problems == []
    assert report.measured is not None
    assert report.measured.verdict.checked == 8 * 2 * 20_000
    assert report.experiment.planner == EMBEDDING


def test_the_planner_is_the_algorithm() -> None:
    by_planner = prepare(Experiment("leaf-spine:2x2", workers=4, planner=EMBEDDING))
    by_algorithm = prepare(Experiment("leaf-spine:2x2", workers=4, algorithm=Algorithm.EMBEDDING))
    assert by_planner.experiment == by_algorithm.experiment
    assert by_planner.plan == by_algorithm.plan


def test_a_training_with_an_agreed_order_has_no_relays() -> None:
    prepared = prepare(
        Experiment("leaf-spine:2x4x1", workers=4, train="digits", algorithm=Algorithm.EMBEDDING)
    )
    assert task_of(prepared.job).coordination is not None and prepared.plan is not None
    assert set(prepared.plan.auxiliary) == set(prepared.plan.servers)


@pytest.mark.slow
def test_predictions_of_hosts_come_near() -> None:
    """On a network of hosts all is summed by TCP: bytes are estimated, not exact."""
    report = embedded(topology="torus:3x3", workers=9, elements=40_000, uplink_rate=None)
    assert report.problems == [] and not report.predicted.exact
    assert report.measured is not None
    total = sum(report.predicted.links.values())
    assert sum(report.measured.links.values()) == pytest.approx(total, rel=0.1)
