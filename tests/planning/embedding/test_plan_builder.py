from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

import pytest

from hopsum.collectives.algorithms.host_part import host_part_all_reduce
from hopsum.collectives.flows import tree_flows
from hopsum.collectives.link_volumes import link_volumes
from hopsum.collectives.plan import PlanError
from hopsum.collectives.plan_checker import check_plans
from hopsum.collectives.schedule_checker import check_schedule
from hopsum.network.paths import PlainRoutes
from hopsum.network.topologies import TopologyOptions, make_topology
from hopsum.planning.embedding.capacities import Capacities
from hopsum.planning.embedding.choice import PlanOptions
from hopsum.planning.embedding.embedding_plan import (
    JobEmbedding,
    Part,
    check_embedding,
    slots_taken,
)
from hopsum.planning.embedding.logical_topologies import Paths, ring
from hopsum.planning.embedding.plan_builder import host_part, realise
from hopsum.planning.embedding.planner import plan_embedding
from hopsum.planning.model.allocation import Allocator
from hopsum.planning.model.demand import DirectedLink, JobDemand, Model, all_resources
from hopsum.planning.model.request import PlanRequest, WeightSteps

NETWORK = make_topology("leaf-spine:3x3x2", TopologyOptions(1e9, 5e8, slots=1024))
WORKERS = tuple(host for host in NETWORK.hosts if host != "ps")
SHARES = {
    Model.IN_NETWORK: Fraction(1, 2),
    Model.RING: Fraction(1, 4),
    Model.AGGREGATION_TREE: Fraction(1, 8),
    Model.PARAMETER_SERVER: Fraction(1, 8),
}
DEMAND = JobDemand(1, WORKERS, (10**6,), shares=SHARES)
PLANNED = plan_embedding(all_resources(NETWORK), [DEMAND], PlanOptions(WeightSteps(64))).job(1)
ELEMENTS = 64 * 9 * 16


REQUEST = PlanRequest(1, 1, WORKERS, (), window=DEMAND.window)


def test_parts_of_hosts_become_parts_of_the_plan() -> None:
    plan = realise(NETWORK, REQUEST, PLANNED, Allocator(NETWORK))
    assert plan.tree_weight == Fraction(1, 2)
    parts = [part for part in PLANNED.parts if part.topology.model is not Model.IN_NETWORK]
    assert [part.weight for part in plan.host_parts] == [part.weight for part in parts]
    for made, part in zip(plan.host_parts, parts, strict=True):
        schedule = host_part_all_reduce(made, WORKERS, ELEMENTS)
        check_schedule(schedule)
        assert set(schedule.names) == {*WORKERS, *made.relays(WORKERS)} == set(made.hosts)
        assert made.root == part.topology.root and made.order == part.topology.order


def test_parts_of_switches_become_trees_of_the_plan() -> None:
    allocator = Allocator(NETWORK)
    plan = realise(NETWORK, REQUEST, PLANNED, allocator)
    check_plans(NETWORK, [plan])
    parts = [part for part in PLANNED.parts if part.topology.model is Model.IN_NETWORK]
    for tree, part in zip(plan.trees, parts, strict=True):
        assert tree.share == part.weight * 2
        assert tree.server == part.topology.root and tree.parents == part.topology.parents
    held = {
        switch: sum(length for _, length in allocator.in_use(switch).values())
        for switch in NETWORK.switches
    }
    assert {name: slots for name, slots in held.items() if slots} == slots_taken([PLANNED])
    with pytest.raises(ValueError, match="the switches sum it"):
        host_part(parts[0])


def test_the_busiest_link_is_what_runs() -> None:
    """Bytes of schedules and of the job plan's packets, link by link, against the answer's time."""
    plan = realise(NETWORK, REQUEST, PLANNED, Allocator(NETWORK))
    units: dict[DirectedLink, Fraction] = {}
    for part in plan.host_parts:
        schedule = host_part_all_reduce(part, WORKERS, ELEMENTS)
        for link, count in link_volumes(schedule, PlainRoutes(NETWORK).path).items():
            units[link] = units.get(link, Fraction(0)) + part.weight * Fraction(count, ELEMENTS)
    for tree in plan.trees:
        for flow in tree_flows(NETWORK, plan, tree).all():
            share = Fraction(tree.share) * plan.tree_weight
            units[flow.u, flow.v] = units.get((flow.u, flow.v), Fraction(0)) + share
    free = all_resources(NETWORK).links
    seconds = max(DEMAND.bits * load / free[link] for link, load in units.items())
    assert seconds == PLANNED.seconds(Capacities(all_resources(NETWORK)))


def test_no_trees_where_the_switches_sum_nothing() -> None:
    only = JobEmbedding(
        replace(DEMAND, shares=None), (Part(ring(Paths(NETWORK), WORKERS), Fraction(1)),)
    )
    allocator = Allocator(NETWORK)
    plan = realise(NETWORK, REQUEST, only, allocator)
    check_plans(NETWORK, [plan])
    assert plan.trees == () and plan.tree_weight == 0 and plan.auxiliary == ()
    assert not any(allocator.in_use(switch) for switch in NETWORK.switches)


def change(**fields: object) -> Callable[[JobEmbedding], JobEmbedding]:
    """Change the first part's topology that is a tree of switches."""

    def apply(job: JobEmbedding) -> JobEmbedding:
        parts = list(job.parts)
        place = next(i for i, p in enumerate(parts) if p.topology.model is Model.IN_NETWORK)
        old = parts[place].topology
        parts[place] = replace(parts[place], topology=replace(old, **fields))  # type: ignore[arg-type]
        return replace(job, parts=tuple(parts))

    return apply


def reweighted(weight: Fraction) -> Callable[[JobEmbedding], JobEmbedding]:
    return lambda job: replace(job, parts=(replace(job.parts[0], weight=weight), *job.parts[1:]))


def without_a_worker(job: JobEmbedding) -> JobEmbedding:
    part = next(p for p in job.parts if p.topology.model is Model.RING)
    short = replace(part.topology, order=part.topology.order[1:])
    return replace(
        job, parts=tuple(replace(p, topology=short) if p is part else p for p in job.parts)
    )


FIRST = next(p.topology for p in PLANNED.parts if p.topology.model is Model.IN_NETWORK)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda job: replace(job, parts=()), "weights none"),
        (reweighted(Fraction(0)), "expected each above 0, together 1"),
        (reweighted(Fraction(1)), "expected each above 0, together 1"),
        (lambda job: replace(job, parts=job.parts[1:]), "together 1"),
        (
            lambda job: replace(job, demand=replace(DEMAND, shares={Model.RING: Fraction(1)})),
            "expected",
        ),
        (
            lambda job: replace(
                job, demand=replace(DEMAND, shares=None, models=frozenset({Model.RING}))
            ),
            "is not among the job's models",
        ),
        (without_a_worker, "expected every worker once"),
        (change(parents={**FIRST.parents, "h1": "h2", "h2": "h1"}), "a cycle"),
        (change(parents={k: v for k, v in FIRST.parents.items() if k != "h1"}), "missing ['h1']"),
        (change(parents={**FIRST.parents, "h99": "l1"}), "unknown ['h99']"),
        (change(parents={**FIRST.parents, "h1": "l3"}), "no link between"),
        (change(traffic={("h1", "l1"): Fraction(1)}), "traffic or slots are not those"),
        (change(slots_at=frozenset()), "traffic or slots are not those"),
    ],
)
def test_the_checker_names_what_is_wrong(
    spoil: Callable[[JobEmbedding], JobEmbedding], message: str
) -> None:
    check_embedding(all_resources(NETWORK), [PLANNED], 64)
    with pytest.raises(PlanError, match="job 1") as error:
        check_embedding(all_resources(NETWORK), [spoil(PLANNED)], 64)
    assert message in str(error.value)


def test_the_checker_counts_slots_steps_and_bandwidth() -> None:
    resources = all_resources(NETWORK)
    scarce = replace(resources, slots=dict.fromkeys(NETWORK.switches, 255))
    with pytest.raises(PlanError, match="slots and 255 are free"):
        check_embedding(scarce, [PLANNED])
    with pytest.raises(PlanError, match="multiples of 1/3"):
        check_embedding(resources, [PLANNED], 3)
    closed = replace(resources, links={**resources.links, ("h1", "l1"): Fraction(0)})
    with pytest.raises(PlanError, match="link h1->l1 has no bandwidth"):
        check_embedding(closed, [PLANNED])
    with pytest.raises(PlanError, match="no embedding of job 7"):
        plan_embedding(resources, [replace(DEMAND, shares=None)]).job(7)
