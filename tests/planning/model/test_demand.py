from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest

from hopsum.collectives.plan import PlanError
from hopsum.network.topologies import TopologyOptions, make_topology
from hopsum.planning.embedding.choice import PlanOptions
from hopsum.planning.embedding.planner import plan_embedding
from hopsum.planning.model.demand import (
    JobDemand,
    Model,
    Resources,
    all_resources,
    check_demands,
    lightly_loaded,
)

NETWORK = make_topology("leaf-spine:2x3", TopologyOptions(link_rate=1e9, slots=1024))
FREE = all_resources(NETWORK)
GOOD = JobDemand(1, ("h1", "h2", "h4"), (1000, 24))
TREES = frozenset({Model.IN_NETWORK})


@pytest.mark.parametrize(
    ("demand", "message"),
    [
        (replace(GOOD, workers=()), "no workers"),
        (replace(GOOD, workers=("h1", "h9")), "worker 'h9': there is no such host"),
        (replace(GOOD, workers=("h1", "s1")), "worker 's1': there is no such host"),
        (replace(GOOD, workers=("h1", "h2", "h1")), "worker 'h1' is named twice"),
        (replace(GOOD, auxiliary=("h9",)), "auxiliary node 'h9'"),
        (replace(GOOD, auxiliary=("h3", "h3")), "auxiliary node 'h3' is named twice"),
        (replace(GOOD, auxiliary=("h1",)), "'h1' is a worker"),
        (replace(GOOD, tensors=()), "tensors of"),
        (replace(GOOD, tensors=(5, 0)), "at least 1 byte"),
        (replace(GOOD, iteration=-1), "iteration -1"),
        (replace(GOOD, models=frozenset()), "no communication model"),
        (replace(GOOD, window=3), "window 3: expected a power of two"),
        (replace(GOOD, window=2048, models=TREES), "2048 slots at a switch, and no switch has"),
        (replace(GOOD, shares={Model.RING: Fraction(1, 2)}), "together 1"),
        (
            replace(GOOD, shares={Model.RING: Fraction(3, 2), Model.IN_NETWORK: Fraction(-1, 2)}),
            "0 or more each",
        ),
        (
            replace(GOOD, shares={Model.RING: Fraction(1, 3), Model.IN_NETWORK: Fraction(2, 3)}),
            "multiple of the step, 1/64",
        ),
        (replace(GOOD, models=TREES, shares={Model.RING: Fraction(1)}), "not in its models"),
    ],
)
def test_impossible_demands_are_refused(demand: JobDemand, message: str) -> None:
    with pytest.raises(PlanError, match="job 1") as error:
        check_demands(FREE, [demand], 64)
    assert message in str(error.value)


def test_good_demands_pass_and_numbers_are_unique() -> None:
    check_demands(FREE, [GOOD, replace(GOOD, job=2)], 64)
    assert GOOD.bits == 8 * 1024
    with pytest.raises(PlanError, match="job 1 is asked for 2 times"):
        check_demands(FREE, [GOOD, GOOD], 64)
    with pytest.raises(PlanError, match="asked for 0 times"):
        check_demands(FREE, [], 64)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"links": {("h1", "l1"): Fraction(1)}}, "expected one for each directed link"),
        ({"links": {**FREE.links, ("h1", "l1"): Fraction(-1)}}, "link h1->l1: free bandwidth -1"),
        ({"nodes": {"s1": Fraction(1)}}, "no such host"),
        ({"nodes": {"h1": Fraction(-1)}}, "host h1: free bandwidth -1"),
        ({"slots": {"l1": 1025}}, "expected 0 to 1024"),
        ({"slots": {"h1": 1}}, "expected a switch's name"),
    ],
)
def test_resources_that_do_not_fit_their_network(change: dict[str, object], message: str) -> None:
    with pytest.raises(PlanError) as error:
        replace(FREE, **change)  # type: ignore[arg-type]
    assert message in str(error.value)


def test_a_link_without_bandwidth_cannot_be_planned_for() -> None:
    with pytest.raises(PlanError, match="has no bandwidth"):
        all_resources(make_topology("star:2"))


def test_switches_that_only_forward_have_no_slots() -> None:
    network = make_topology("star:2", TopologyOptions(link_rate=1.0, plain=("all",)))
    assert not all_resources(network).slots


def test_the_rate_of_a_host_is_its_narrowest_way() -> None:
    free = replace(FREE, links={**FREE.links, ("h1", "l1"): Fraction(5)})
    assert free.host_rate("h1") == 5
    assert replace(free, nodes={"h1": Fraction(3)}).host_rate("h1") == 3
    assert free.host_rate("h2") == 10**9


def test_auxiliary_nodes_are_the_lightly_loaded() -> None:
    links = {**FREE.links, ("h3", "l1"): Fraction(400_000_000), ("l2", "h5"): Fraction(6 * 10**8)}
    free = Resources(NETWORK, links, FREE.slots)
    # h3 has less than half of its bandwidth left, h5 60 %.
    assert lightly_loaded(free, GOOD) == ("h6", "ps", "h5")
    assert lightly_loaded(free, GOOD, least=Fraction(1, 4)) == ("h6", "ps", "h5", "h3")
    assert lightly_loaded(free, GOOD, least=Fraction(1)) == ("h6", "ps")
    assert len(lightly_loaded(FREE, GOOD, most=2)) == 2
    torus = all_resources(make_topology("torus:3x3", TopologyOptions(link_rate=1.0)))
    assert lightly_loaded(torus, JobDemand(1, ("h1", "h2"), (8,))) == ()


@pytest.mark.parametrize(
    "options",
    [
        {"max_topologies": 0},
        {"least_gain": -1.0},
        {"gap": float("nan")},
        {"time_limit": 0.0},
    ],
)
def test_options_out_of_range(options: dict[str, float]) -> None:
    with pytest.raises(PlanError, match="expected"):
        PlanOptions(**options)  # type: ignore[arg-type]


def test_topologies_without_bandwidth_are_named() -> None:
    links = {**FREE.links, ("h1", "l1"): Fraction(0)}
    with pytest.raises(PlanError, match=r"job 1: no .*ring.* is possible"):
        plan_embedding(Resources(NETWORK, links, FREE.slots), [GOOD])
    alone = replace(GOOD, models=TREES, auxiliary=())
    with pytest.raises(PlanError, match="add auxiliary nodes"):
        plan_embedding(FREE, [alone])


def test_weights_beyond_the_free_slots_are_refused() -> None:
    network = make_topology("leaf-spine:2x3", TopologyOptions(link_rate=1e9, slots=256))
    jobs = [JobDemand(job, GOOD.workers, (8,), models=TREES) for job in (1, 2)]
    with pytest.raises(PlanError, match="free slots, the weights asked for"):
        plan_embedding(all_resources(network), jobs)
