from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopsum.collectives.decomposition import decompose
from hopsum.collectives.messages import plan_from, plan_message
from hopsum.collectives.plan import DataType, HostPart, JobPlan, PlanError, Results
from hopsum.collectives.plan_checker import check_plans, plan_faults
from hopsum.controller.jobs.plan_costs import free_network
from hopsum.network.model import Network
from hopsum.network.topologies import TopologyOptions, make_topology
from hopsum.planning.model.allocation import Allocator
from hopsum.planning.model.demand import Model
from hopsum.planning.model.forest import ForestOptions
from hopsum.planning.model.request import EmbeddingOptions, PlanRequest, SwitchRole, WeightSteps
from hopsum.planning.registry import EMBEDDING, plan_job
from hopsum.timing.estimate import Fidelity, estimate
from hopsum.timing.flow_simulator import TimingError
from hopsum.timing.work import PlanWork
from tests.support.search import examples

pytestmark = pytest.mark.usefixtures("time_to_plan")

RACKS = make_topology("leaf-spine:2x4x2", TopologyOptions(1e9, 1e9, slots=256))
"""Two racks of four and a server's host, 4:2 oversubscribed."""
WORKERS = ("h1", "h2", "h3", "h5", "h6", "h7")
REQUEST = PlanRequest(1, 1, WORKERS, (), window=64)


def embedded(network: Network, request: PlanRequest, allocator: Allocator | None = None) -> JobPlan:
    plan = plan_job(network, request, allocator, EMBEDDING)
    check_plans(network, [plan])
    return plan


def only(*models: Model, **fields: object) -> PlanRequest:
    wanted = EmbeddingOptions(frozenset(models), **fields)  # type: ignore[arg-type]
    return replace(REQUEST, embedding=wanted)


def test_where_switches_have_slots_they_sum() -> None:
    plan = embedded(RACKS, REQUEST)
    assert plan.trees and plan.tree_weight > Fraction(1, 2)
    assert not set(plan.servers) & set(WORKERS)
    assert any(part.aggregate for tree in plan.trees for part in tree.parts.values())


@pytest.mark.slow
def test_without_free_slots_hosts_sum() -> None:
    allocator = Allocator(RACKS)
    full = PlanRequest(9, 1, ("h1", "h2", "h5"), ("ps",), window=256)
    plan_job(RACKS, full, allocator)
    taken = [name for name in RACKS.switches if allocator.in_use(name)]
    plan = embedded(RACKS, REQUEST, allocator)
    assert taken and not any(
        part.aggregate for tree in plan.trees for name, part in tree.parts.items() if name in taken
    )
    assert sum(weight for weight in [plan.tree_weight, *(p.weight for p in plan.host_parts)]) == 1


@pytest.mark.slow
def test_trees_keep_to_the_jobs_quota() -> None:
    for most in (0, 1, 2):
        request = replace(REQUEST, forest=ForestOptions(max_trees=most))
        allocator = Allocator(RACKS)
        embedded(RACKS, request, allocator)
        for name in RACKS.switches:
            held = sum(size for _, size in allocator.in_use(name).values())
            assert held <= most * request.window


def test_a_loaded_link_is_left_out() -> None:
    busy = {("h4", "l1"): 0.1, ("l1", "h4"): 0.1}
    view = free_network(RACKS, busy)
    plan = embedded(view, REQUEST)
    assert "h4" not in plan.auxiliary
    assert plan_job(RACKS, only(Model.PARAMETER_SERVER, auxiliary=("h4",)), None, EMBEDDING)


def test_auxiliary_hosts_relay_only_where_they_may() -> None:
    models = (Model.PARAMETER_SERVER, Model.AGGREGATION_TREE)
    # The workers' links are mostly full, those of the idle hosts are not.
    busy = {link: 0.2 for link in RACKS.directed_links() if set(link) & set(WORKERS)}
    view = free_network(RACKS, busy)
    plan = embedded(view, only(*models, auxiliary=("h4", "h8")))
    assert set(plan.auxiliary) & {"h4", "h8"} and not plan.trees
    alone = embedded(view, only(*models, auxiliary=("h4", "h8"), relays=False))
    assert alone.auxiliary == ()
    served = embedded(view, only(Model.IN_NETWORK, auxiliary=("h4",), relays=False))
    assert served.auxiliary == served.servers == ("h4",)


def test_the_next_epoch_keeps_what_is_fixed_for_a_jobs_life() -> None:
    allocator = Allocator(RACKS)
    request = only(*Model, auxiliary=("h4", "h8"))
    first = embedded(RACKS, request, allocator)
    # The spine that the first tree goes over has little left.
    spine = next(name for name in first.trees[0].parts if name.startswith("s"))
    busy = {link: 0.05 for link in RACKS.directed_links() if spine in link}
    again = replace(request, epoch=2, before=first)
    second = embedded(free_network(RACKS, busy), again, allocator)
    assert second.epoch == 2 and second.host_parts == first.host_parts
    assert [tree.server for tree in second.trees] == [tree.server for tree in first.trees]
    assert [tree.share for tree in second.trees] == [tree.share for tree in first.trees]
    assert spine not in second.trees[0].parts
    moved = embedded(RACKS, replace(again, servers=("ps",)), allocator)
    assert moved.servers == ("ps",)


def weights_of(plan: JobPlan) -> list[Fraction]:
    trees = [
        plan.tree_weight * Fraction(tree.share).limit_denominator(1024)
        for tree in plan.trees
        if tree.share
    ]
    return [*trees, *(part.weight for part in plan.host_parts)]


@pytest.mark.slow
@settings(max_examples=examples(10, of=15))
@given(st.integers(1, 64), st.integers(1, 8), st.data())
def test_weights_are_multiples_of_penalty_by_steps(
    steps: int, penalty: int, data: st.DataObject
) -> None:
    """In the first plan, in the next epoch, and where the weights are chosen anew."""
    weights = WeightSteps(max(steps, penalty), penalty)
    request = only(*Model, auxiliary=("h4", "ps"), period=2, weights=weights)
    free = [
        {
            link: data.draw(st.sampled_from([0.1, 0.5, 1.0]), label=f"{link}")
            for link in sorted(RACKS.directed_links())
        }
        for _ in range(2)
    ]
    allocator = Allocator(RACKS)
    first = embedded(free_network(RACKS, free[0]), request, allocator)
    plans = [first]
    later = replace(request, epoch=2, before=first)
    plans.append(embedded(free_network(RACKS, free[1]), later, allocator.copy()))
    try:
        plans.append(
            embedded(free_network(RACKS, free[1]), replace(later, recut=True), allocator.copy())
        )
    except PlanError as error:
        assert "for its life" in str(error)
    for plan in plans:
        found = weights_of(plan)
        # Later epochs may keep a topology without any of the data.
        assert sum(weight > 0 for weight in found) <= weights.units
        assert all((weight * weights.units).denominator == 1 for weight in found)
        assert sum(found) == 1
    assert weights_of(plans[1]) == weights_of(first)


def test_a_penalty_leaves_a_job_fewer_topologies() -> None:
    even = make_topology("leaf-spine:2x2", TopologyOptions(1e9, 4e8))
    request = replace(REQUEST, workers=tuple(host for host in even.hosts if host != "ps"))
    counts = []
    for penalty in (1, 8, 64):
        wanted = EmbeddingOptions(weights=WeightSteps(64, penalty))
        plan = embedded(even, replace(request, embedding=wanted))
        counts.append(len(weights_of(plan)))
    assert counts[0] >= 2 and counts == sorted(counts, reverse=True) and counts[-1] == 1


@pytest.mark.parametrize(
    ("steps", "penalty", "words"),
    [
        (0, 1, "weight-steps 0: expected 1 to 1024"),
        (1025, 1, "weight-steps 1025: expected 1 to 1024"),
        (64, 0, "penalty 0: expected 1 to the number of weight steps, 64"),
        (8, 9, "penalty 9: expected 1 to the number of weight steps, 8"),
    ],
)
def test_steps_of_weights_that_cannot_be(steps: int, penalty: int, words: str) -> None:
    with pytest.raises(PlanError, match=words):
        WeightSteps(steps, penalty)


def test_an_embedding_of_hosts_keeps_its_plan() -> None:
    request = only(Model.RING)
    first = embedded(RACKS, request)
    assert not first.trees and first.host_parts == (HostPart(Fraction(1), WORKERS),)
    second = embedded(RACKS, replace(request, epoch=2, before=first))
    assert second == replace(first, epoch=2)


def test_a_recut_chooses_weights_anew_among_those_who_attend() -> None:
    slow = {link: 0.3 for link in RACKS.directed_links() if set(link) & {"ps", "h4", "h8"}}
    allocator = Allocator(RACKS)
    request = only(*Model, auxiliary=("ps", "h4"), period=10)
    first = embedded(free_network(RACKS, slow), request, allocator)
    assert first.period == 10 and len(first.trees) > 1 and first.host_parts
    again = replace(request, epoch=2, before=first, recut=True)
    # Now one of the servers is as fast as the workers: it takes what hosts had to sum.
    fast = {link: free for link, free in slow.items() if first.trees[0].server not in link}
    second = embedded(free_network(RACKS, fast), again, allocator)
    assert second.period == 10 and second.epoch == 2
    assert second.tree_weight > first.tree_weight
    assert len(second.trees) == len(first.trees)
    assert second.trees[0].server == first.trees[0].server
    assert second.trees[0].share > first.trees[0].share
    assert set(second.auxiliary) <= set(first.auxiliary)
    # And now both of them are as good as gone: hosts sum all, and the trees wait.
    gone = dict.fromkeys(slow, 0.001)
    third = embedded(
        free_network(RACKS, gone), replace(again, epoch=3, before=second), allocator.copy()
    )
    assert third.tree_weight < Fraction(1, 8) and third.host_parts
    allocator.release_epochs(1, before=3)
    check_plans(RACKS, [third])


def test_a_recut_of_hosts_alone_has_no_trees() -> None:
    first = embedded(RACKS, only(Model.RING, period=5))
    request = replace(only(*Model, period=5), epoch=2, before=first, recut=True)
    second = embedded(RACKS, request)
    assert not second.trees and second.auxiliary == () and second.period == 5
    helped = replace(HOSTS, host_parts=(replace(STAR, weight=Fraction(1)),), period=5)
    third = embedded(RACKS, replace(request, before=helped))
    assert not third.trees and set(third.auxiliary) <= {"ps"}


def test_a_recut_has_no_more_trees_than_the_job() -> None:
    first = embedded(RACKS, only(Model.IN_NETWORK, auxiliary=("ps",), period=5))
    two = replace(first, host_parts=(HostPart(Fraction(1, 2), root="h4", parents={}),))
    slow = {link: 0.3 for link in RACKS.directed_links() if set(link) & {"ps", "h4"}}
    wanted = only(Model.IN_NETWORK, period=5)
    with pytest.raises(PlanError, match="has 2 trees of switches, and the job 1 for its life"):
        embedded(free_network(RACKS, slow), replace(wanted, epoch=2, before=two, recut=True), None)


def test_networks_of_hosts_have_embeddings_too() -> None:
    torus = make_topology("torus:3x3", TopologyOptions(1e9))
    plan = embedded(torus, replace(REQUEST, workers=tuple(torus.hosts)))
    assert plan.host_parts and not plan.trees


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (replace(REQUEST, algorithm=SwitchRole.SERVER), "planner multi-hop"),
        (replace(REQUEST, results=Results.UNICAST), "planner multi-hop"),
        (only(Model.RING, period=1), "boundaries every 1 tensors"),
        (only(Model.IN_NETWORK, auxiliary=()), "no in-network is possible"),
        (only(Model.RING, auxiliary=("h99",)), "auxiliary node 'h99'"),
        (replace(REQUEST, workers=("h1", "h99")), "worker 'h99'"),
    ],
)
def test_impossible_embeddings_are_refused(request_: PlanRequest, words: str) -> None:
    with pytest.raises(PlanError, match=words):
        plan_job(RACKS, request_, None, EMBEDDING)


def test_links_without_bandwidth() -> None:
    with pytest.raises(PlanError, match="has no bandwidth"):
        plan_job(make_topology("star:4", TopologyOptions()), REQUEST, None, EMBEDDING)


RING = HostPart(Fraction(1, 2), WORKERS)
STAR = HostPart(Fraction(1, 2), root="ps", parents=dict.fromkeys(WORKERS, "ps"))
HOSTS = JobPlan(1, 1, WORKERS, (), 256, 64, host_parts=(RING, STAR))


@pytest.mark.parametrize(
    ("parts", "fault"),
    [
        ((RING,), "weights 1/2 of parts of hosts"),
        ((RING, replace(STAR, weight=Fraction(1, 3))), "weights 1/2, 1/3 of parts of hosts"),
        ((replace(RING, weight=Fraction(2)), replace(STAR, weight=Fraction(-1))), "above 0 each"),
        ((RING, replace(RING, order=WORKERS[1:])), "a ring of other hosts than the workers"),
        ((RING, replace(STAR, root="ps9")), "there is no host 'ps9'"),
        ((RING, replace(STAR, parents={"h1": "ps"})), "part 1 of hosts"),
    ],
)
def test_the_checker_judges_parts_of_hosts(parts: tuple[HostPart, ...], fault: str) -> None:
    assert plan_faults(RACKS, HOSTS) == []
    assert fault in "; ".join(plan_faults(RACKS, replace(HOSTS, host_parts=parts)))


def test_trees_sum_what_hosts_leave() -> None:
    plan = plan_job(RACKS, replace(REQUEST, servers=("ps",)))
    assert plan_faults(RACKS, replace(plan, host_parts=(RING,))) == []
    # At a boundary trees may get nothing.
    assert plan_faults(RACKS, replace(plan, host_parts=(RING, STAR))) == []
    faults = plan_faults(RACKS, replace(plan, host_parts=(RING, STAR, RING)))
    assert "together at most 1" in faults[0]


def test_plans_cross_as_messages() -> None:
    for plan in (HOSTS, embedded(RACKS, REQUEST)):
        assert plan_from(plan_message(plan)) == plan


def test_a_prediction_of_parts_is_that_of_trees_and_hosts() -> None:
    trees = plan_job(RACKS, replace(REQUEST, servers=("ps",)))
    elements = 64 * 256
    tensors = [(elements, DataType.INT32)]
    with pytest.raises(TimingError, match="no closed form"):
        estimate(RACKS, PlanWork(replace(trees, host_parts=(RING,)), tensors), Fidelity.CLOSED_FORM)
    whole = replace(RING, weight=Fraction(1))
    ring = estimate(RACKS, PlanWork(replace(HOSTS, host_parts=(whole,)), tensors))
    mixed = replace(trees, host_parts=(RING,))
    both = estimate(RACKS, PlanWork(mixed, tensors))
    half = estimate(RACKS, PlanWork(trees, [(elements // 2, DataType.INT32)]))
    link = ("h1", "l1")
    assert both.links[link] == pytest.approx(half.links[link] + ring.links[link] / 2, rel=0.01)
    # Half of the data each way, at once: the host's link carries both.
    assert both.seconds < half.seconds + ring.seconds / 2 * 1.2
    assert both.seconds > both.links[link] * 8 / 1e9 * 0.9


@pytest.mark.slow
@settings(max_examples=examples(10, of=20))
@given(st.integers(0, 5000), st.sets(st.sampled_from(sorted(RACKS.hosts)), min_size=2), st.data())
def test_every_element_is_summed_once(length: int, chosen: set[str], data: st.DataObject) -> None:
    full = {
        link: data.draw(st.sampled_from([0.05, 0.3, 1.0]), label=f"{link}")
        for link in sorted(RACKS.directed_links())
    }
    request = replace(REQUEST, workers=tuple(sorted(chosen)))
    plan = embedded(free_network(RACKS, full), request)
    ranges = [(start, stop) for _, start, stop in decompose(plan, length)]
    assert [start for start, _ in ranges] == [0, *(stop for _, stop in ranges[:-1])]
    assert ranges[-1][1] == length
