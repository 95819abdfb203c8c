from __future__ import annotations

import time
from dataclasses import replace
from fractions import Fraction
from itertools import combinations_with_replacement, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopsum.network.model import Network
from hopsum.network.topologies import TopologyOptions, make_topology
from hopsum.planning.embedding import candidates, planner
from hopsum.planning.embedding.candidates import Candidates
from hopsum.planning.embedding.capacities import Capacities
from hopsum.planning.embedding.choice import Columns, Method, PlanOptions, groups_of
from hopsum.planning.embedding.elastic_tree import all_trees, count_trees
from hopsum.planning.embedding.embedding_plan import Embedding, JobEmbedding, slots_taken
from hopsum.planning.embedding.logical_topologies import Paths, aggregation_tree
from hopsum.planning.embedding.planner import plan_embedding
from hopsum.planning.embedding.program import relax, solve_integers
from hopsum.planning.embedding.regions import Region
from hopsum.planning.embedding.sparsify import sparsify
from hopsum.planning.model.demand import JobDemand, Model, Resources, all_resources
from hopsum.planning.model.forest import Verdict
from hopsum.planning.model.request import WeightSteps
from tests.support.search import examples

GIGABIT = (125_000_000,)
"""Bytes of a tensor that takes a second at 1 Gbit/s."""
TREES = frozenset({Model.AGGREGATION_TREE})
HOSTS = frozenset(Model) - {Model.IN_NETWORK}
IN_NETWORK = frozenset({Model.IN_NETWORK})


def racks(leaves: int, hosts: int, uplink: float = 1e9, spines: int = 1) -> Network:
    return make_topology(f"leaf-spine:{leaves}x{hosts}x{spines}", TopologyOptions(1e9, uplink))


def workers_of(network: Network) -> tuple[str, ...]:
    return tuple(host for host in network.hosts if host != "ps")


def with_rates(resources: Resources, seed: int) -> Resources:
    """Links with 3 to 10 tenths of their bandwidth free, at random."""
    random = np.random.default_rng(seed)
    links = {
        link: free * int(random.integers(3, 11)) / 10 for link, free in resources.links.items()
    }
    return replace(resources, links=links)


def models_of(embedding: JobEmbedding) -> set[Model]:
    return {part.topology.model for part in embedding.parts}


def check_answer(resources: Resources, answer: Embedding, options: PlanOptions) -> None:
    """Invariants of every answer."""
    capacities = Capacities(resources)
    for job in answer.jobs:
        assert sum(part.weight for part in job.parts) == 1
        assert all((part.weight * options.units).denominator == 1 for part in job.parts)
        assert job.seconds(capacities) <= answer.seconds
    times = capacities.exact_times(
        [(job.demand, part.topology, part.weight) for job in answer.jobs for part in job.parts]
    )
    assert max(times) == answer.seconds
    assert capacities.names[times.index(answer.seconds)] == answer.busiest
    assert answer.bound <= float(answer.seconds) * (1 + 1e-9)
    assert answer.program_bound <= answer.objective


@pytest.mark.parametrize(("leaves", "hosts", "uplink"), [(4, 4, 1e9), (2, 4, 2e9), (4, 2, 5e8)])
def test_rotated_trees_are_optimal_on_racks(leaves: int, hosts: int, uplink: float) -> None:
    network = racks(leaves, hosts, uplink)
    demand = JobDemand(1, workers_of(network), GIGABIT, models=TREES, auxiliary=())
    options = PlanOptions(WeightSteps(leaves * hosts), gap=1e-6)
    answer = plan_embedding(all_resources(network), [demand], options)
    check_answer(all_resources(network), answer, options)
    count, narrow = leaves * hosts, Fraction(uplink) / 10**9
    least = max(Fraction(2 * (count - 1), count), Fraction(2 * (leaves - 1), leaves) / narrow)
    assert answer.seconds == least
    assert answer.bound == pytest.approx(float(least), rel=1e-5)
    assert answer.verdict is Verdict.OPTIMAL


@pytest.mark.parametrize("method", [Method.EXACT, Method.HEURISTIC])
def test_two_interleaved_jobs_get_a_third_each(method: Method) -> None:
    network = racks(4, 4)
    hosts = workers_of(network)
    jobs = [JobDemand(i + 1, hosts[i::2], GIGABIT, models=HOSTS) for i in range(2)]
    options = PlanOptions(method=method)
    answer = plan_embedding(all_resources(network), jobs, options)
    check_answer(all_resources(network), answer, options)
    # Every rack sends 2 (R - 1) / R of both jobs over one link: 2 * 3 / 4 * 2.
    assert answer.seconds == 3
    assert answer.bound == pytest.approx(3.0, rel=1e-3)


def test_switches_that_sum_need_the_data_only_once() -> None:
    network = racks(4, 4)
    answer = plan_embedding(all_resources(network), [JobDemand(1, workers_of(network), GIGABIT)])
    assert answer.seconds == 1 and answer.gap <= 1e-9
    assert models_of(answer.jobs[0]) == IN_NETWORK
    assert len(answer.jobs[0].parts) == 1
    assert slots_taken(answer.jobs) == {"l1": 256, "l2": 256, "l3": 256, "l4": 256, "s1": 256}


def test_trees_over_all_spines_where_their_links_are_narrow() -> None:
    network = racks(3, 3, uplink=5e8, spines=2)
    demand = JobDemand(1, workers_of(network), GIGABIT)
    answer = plan_embedding(all_resources(network), [demand])
    assert answer.seconds == 1
    assert [part.weight for part in answer.jobs[0].parts] == [Fraction(1, 2)] * 2


def brute_force(resources: Resources, demands: list[JobDemand], options: PlanOptions) -> Fraction:
    """The least time over all choices of units on the candidates that there are at first."""
    capacities = Capacities(resources)
    jobs = [Candidates(capacities, demand, Paths(resources.network)) for demand in demands]
    choices = [
        list(combinations_with_replacement(range(len(job.found)), options.units)) for job in jobs
    ]
    best = None
    for choice in product(*choices):
        if any(len(set(places)) > (options.max_topologies or 99) for places in choice):
            continue
        held: dict[str, int] = {}
        for job, places in zip(jobs, choice, strict=True):
            for place in set(places):
                for switch in job.found[place].slots_at:
                    held[switch] = held.get(switch, 0) + job.demand.window
        if any(count > resources.slots[switch] for switch, count in held.items()):
            continue
        weight = Fraction(1, options.units)
        parts = [
            (job.demand, job.found[place], weight)
            for job, places in zip(jobs, choice, strict=True)
            for place in places
        ]
        seconds = max(capacities.exact_times(parts))
        best = seconds if best is None else min(best, seconds)
    assert best is not None
    return best


@pytest.mark.slow
@given(st.integers(0, 10_000), st.sampled_from([None, 1, 2]), st.sampled_from([256, 4096]))
@settings(max_examples=examples(5, of=12))
def test_the_program_is_no_worse_than_every_choice(seed: int, most: int | None, slots: int) -> None:
    network = make_topology("leaf-spine:2x3x2", TopologyOptions(1e9, 1e9, slots=slots))
    resources = with_rates(all_resources(network), seed)
    demands = [
        JobDemand(1, ("h1", "h2", "h4"), GIGABIT, auxiliary=("ps",)),
        JobDemand(2, ("h3", "h5"), GIGABIT, auxiliary=("ps",), models=IN_NETWORK | {Model.RING}),
    ]
    options = PlanOptions(WeightSteps(3), max_topologies=most, gap=0.0)
    answer = plan_embedding(resources, demands, options)
    check_answer(resources, answer, options)
    least = brute_force(resources, demands, options)
    # Candidates that are priced in later may only help.
    assert answer.seconds <= least
    assert answer.program_bound <= float(least) * (1 + 1e-6)
    assert all(len(job.parts) <= (most or 3) for job in answer.jobs)


@pytest.mark.slow
@pytest.mark.parametrize(("most", "slots"), [(None, 4096), (1, 4096), (None, 256), (2, 256)])
def test_integers_without_a_start_keep_within_the_limits(most: int | None, slots: int) -> None:
    network = make_topology("leaf-spine:2x3x2", TopologyOptions(1e9, 5e8, slots=slots))
    demands = [
        JobDemand(1, ("h1", "h2", "h4"), GIGABIT, auxiliary=("ps",)),
        JobDemand(2, ("h3", "h5"), GIGABIT, auxiliary=("ps",), models=IN_NETWORK | {Model.RING}),
    ]
    options = PlanOptions(WeightSteps(3), max_topologies=most, gap=0.0)
    resources = all_resources(network)
    capacities = Capacities(resources)
    jobs = [Candidates(capacities, demand, Paths(network)) for demand in demands]
    groups = groups_of(demands, options.units)
    least = brute_force(resources, demands, options)
    columns, relaxed = relax(jobs, groups, options, 1.0, time.monotonic() + 10)
    chosen = solve_integers(columns, relaxed, None, 1.0, 10.0)
    assert chosen.units is not None and columns.holds(chosen.units)
    assert columns.loads(chosen.units).max() <= float(least) * (1 + 1e-6)
    assert relaxed.bound <= chosen.bound * (1 + 1e-6) <= float(least) * (1 + 1e-5)


@pytest.mark.slow
def test_the_heuristic_is_within_a_twentieth_of_the_program() -> None:
    for seed in range(examples(1, of=2)):
        for models in (HOSTS, frozenset(Model)):
            network = make_topology("fat-tree:4", TopologyOptions(1e9))
            resources = with_rates(all_resources(network), seed)
            jobs = [
                JobDemand(job + 1, tuple(list(network.hosts)[job::2]), GIGABIT, models=models)
                for job in range(2)
            ]
            exact = plan_embedding(resources, jobs, PlanOptions(method=Method.EXACT))
            found = plan_embedding(resources, jobs, PlanOptions(method=Method.HEURISTIC))
            assert found.method == "heuristic" and exact.method == "program"
            assert exact.gap <= 0.01
            assert float(found.seconds) <= 1.05 * exact.program_bound


def test_a_penalty_leaves_fewer_topologies() -> None:
    network = racks(4, 4)
    demand = JobDemand(1, workers_of(network), GIGABIT, models=TREES, auxiliary=())
    counts, times = [], []
    for penalty in (1, 4, 16):
        options = PlanOptions(WeightSteps(16, penalty))
        answer = plan_embedding(all_resources(network), [demand], options)
        check_answer(all_resources(network), answer, options)
        counts.append(len(answer.jobs[0].parts))
        times.append(answer.seconds)
    assert counts[0] == 16 and counts[1] <= 4 and counts[2] == 1
    assert times[0] < times[1] < times[2] == 6


def test_a_topology_must_gain_enough() -> None:
    network = racks(2, 2, 5e8)
    demand = JobDemand(1, workers_of(network), GIGABIT, models=TREES, auxiliary=())
    # One tree: 2 s on the link between the racks at any number of them.
    single = plan_embedding(all_resources(network), [demand], PlanOptions(least_gain=0.5))
    assert len(single.jobs[0].parts) == 1
    free = plan_embedding(all_resources(network), [demand])
    assert free.seconds == single.seconds == 2
    network = racks(2, 2, 1.5e9)
    for gain, expected in ((0.01, 2), (0.9, 1)):
        answer = plan_embedding(all_resources(network), [demand], PlanOptions(least_gain=gain))
        assert len(answer.jobs[0].parts) == expected


def test_weights_of_models_are_kept() -> None:
    network = racks(2, 3)
    shares = {Model.RING: Fraction(1, 4), Model.IN_NETWORK: Fraction(3, 4)}
    demand = JobDemand(1, workers_of(network), GIGABIT, shares=shares)
    for method in (Method.EXACT, Method.HEURISTIC):
        answer = plan_embedding(all_resources(network), [demand], PlanOptions(method=method))
        weights = {model: Fraction(0) for model in shares}
        for part in answer.jobs[0].parts:
            weights[part.topology.model] += part.weight
        assert weights == shares
        # Five sixths of 2 * 1/4, and 3/4, on each host's link.
        assert answer.seconds == Fraction(5, 6) * Fraction(1, 2) + Fraction(3, 4)


def test_auxiliary_nodes_take_part_where_workers_are_busy() -> None:
    network = racks(1, 4)
    resources = all_resources(network)
    demand = JobDemand(1, ("h1", "h2", "h3"), GIGABIT, models=HOSTS, auxiliary=())
    # Without others: around the ring 2 * 2/3; with h4 as one more server 12/10.
    alone = plan_embedding(resources, [demand], PlanOptions(WeightSteps(60)))
    assert alone.seconds == Fraction(4, 3)
    helped = plan_embedding(
        resources, [replace(demand, auxiliary=("h4",))], PlanOptions(WeightSteps(60))
    )
    assert helped.seconds < alone.seconds
    inner = {name for part in helped.jobs[0].parts for name in part.topology.aggregators}
    assert "h4" in inner
    rings = [p.topology for p in helped.jobs[0].parts if p.topology.model is Model.RING]
    assert all("h4" not in ring.order for ring in rings)


def test_nodes_limit_what_links_would_allow() -> None:
    network = racks(1, 4)
    demand = JobDemand(1, ("h1", "h2", "h3"), GIGABIT, models=frozenset({Model.RING}))
    resources = replace(all_resources(network), nodes={"h2": Fraction(10**8)})
    answer = plan_embedding(resources, [demand])
    assert answer.seconds == Fraction(40, 3) and answer.busiest.startswith("host h2")


def test_nodes_receive_and_send_apart() -> None:
    network = make_topology("leaf-spine:2x2x1", TopologyOptions(1e9, plain=("l1",)))
    resources = replace(all_resources(network), nodes={"ps": Fraction(5 * 10**8)})
    demand = JobDemand(1, ("h1", "h2"), GIGABIT, models=IN_NETWORK, auxiliary=("ps",))
    # Nothing sums on the way: two come in at the server, and one result goes out for both.
    answer = plan_embedding(resources, [demand])
    assert answer.seconds == 4 and answer.busiest == "host ps receiving"


@pytest.mark.slow
def test_slots_are_a_capacity() -> None:
    network = racks(3, 3, uplink=5e8, spines=2)
    jobs = [JobDemand(i + 1, workers_of(network)[i::3], GIGABIT) for i in range(3)]
    scarce = replace(all_resources(network), slots=dict.fromkeys(network.switches, 512))
    for method in (Method.EXACT, Method.HEURISTIC):
        rich = plan_embedding(all_resources(network), jobs, PlanOptions(method=method))
        poor = plan_embedding(scarce, jobs, PlanOptions(method=method))
        assert max(slots_taken(poor.jobs).values()) <= 512 < max(slots_taken(rich.jobs).values())
        assert poor.seconds >= rich.seconds


def test_a_job_of_one_worker_exchanges_nothing() -> None:
    network = racks(2, 2)
    answer = plan_embedding(all_resources(network), [JobDemand(1, ("h1",), GIGABIT)])
    assert answer.seconds == 0 and answer.gap == 0 and answer.verdict is Verdict.OPTIMAL
    assert len(answer.jobs[0].parts) == 1


def test_tidying_keeps_the_busiest_row_and_the_groups() -> None:
    network = racks(2, 3)
    demand = JobDemand(1, workers_of(network), GIGABIT)
    capacities = Capacities(all_resources(network))
    jobs = [Candidates(capacities, demand, Paths(network))]
    options = PlanOptions(WeightSteps(32))
    columns = Columns(jobs, groups_of([demand], options.units), options)
    random = np.random.default_rng(1)
    for _ in range(20):
        chosen = random.integers(0, len(columns), 32)
        units = np.bincount(chosen, minlength=len(columns)).astype(np.int64)
        fewer = sparsify(columns, units)
        assert fewer.sum() == 32 and np.count_nonzero(fewer) <= np.count_nonzero(units)
        assert columns.loads(fewer).max() <= columns.loads(units).max() * (1 + 1e-6)


def few_steps(seed: int) -> tuple[Resources, JobDemand]:
    """Five of six workers in two racks, links as others leave them."""
    network = make_topology("leaf-spine:2x3x1", TopologyOptions(1e9, 6e8))
    chosen = np.random.default_rng(seed).choice(workers_of(network), 5, replace=False)
    demand = JobDemand(1, tuple(sorted(chosen)), GIGABIT, models=TREES, auxiliary=None)
    return with_rates(all_resources(network), seed), demand


def best_of_all(resources: Resources, demand: JobDemand, options: PlanOptions) -> Fraction:
    """The least time over all choices of units on all elastic trees."""
    capacities, paths = Capacities(resources), Paths(resources.network)
    whole = Candidates(capacities, demand, paths).regions
    trees = [aggregation_tree(paths, root, parents) for root, parents in all_trees(whole)]
    trees = [tree for tree in trees if capacities.usable(tree)]
    weight = Fraction(1, options.units)
    return min(
        max(capacities.exact_times([(demand, tree, weight) for tree in choice]))
        for choice in combinations_with_replacement(trees, options.units)
    )


def test_integers_may_want_trees_that_the_relaxed_program_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    resources, demand = few_steps(40)
    options = PlanOptions(WeightSteps(1), gap=0.0, method=Method.EXACT)
    best = best_of_all(resources, demand, options)
    answer = plan_embedding(resources, [demand], options)
    assert answer.seconds == best
    assert (answer.verdict, answer.complete) == (Verdict.OPTIMAL, True)
    assert answer.gap == pytest.approx(0, abs=1e-6)
    # With some of the trees as candidates the best of these is no optimum, and is not called one.
    monkeypatch.setattr(planner, "EVERY", 0)
    monkeypatch.setattr(candidates, "VARIATIONS", 0)
    some = plan_embedding(resources, [demand], options)
    assert some.seconds > best
    assert (some.verdict, some.complete) == (Verdict.BEST_OF_CANDIDATES, False)
    assert some.candidates_gap == pytest.approx(0, abs=1e-6)
    assert some.gap >= float(some.seconds / best) - 1 - 1e-6


@pytest.mark.slow
@given(st.integers(0, 10_000), st.integers(1, 2))
@settings(max_examples=examples(4, of=10))
def test_optimal_is_the_best_of_all_trees(seed: int, steps: int) -> None:
    resources, demand = few_steps(seed)
    options = PlanOptions(WeightSteps(steps), gap=0.0, method=Method.EXACT)
    answer = plan_embedding(resources, [demand], options)
    assert answer.verdict is Verdict.OPTIMAL
    assert answer.seconds == best_of_all(resources, demand, options)


def test_all_trees_are_as_many_as_counted() -> None:
    inner = Region(("c", "d"), ("c", "d"), ())
    part = Region(("b",), ("b", "c", "d"), (inner,))
    whole = Region(("a",), ("a", "b", "c", "d", "e", "f"), (part, Region((), ("e", "f"), ())))
    trees = list(all_trees(whole))
    assert len(trees) == count_trees(whole)
    assert len({(root, tuple(sorted(parents.items()))) for root, parents in trees}) == len(trees)
    assert {tuple(sorted({root, *parents})) for root, parents in trees} <= {
        tuple("abcde"),
        tuple("abcdf"),
    }


def test_trees_of_switches_are_the_best_of_candidates() -> None:
    network = racks(3, 3, uplink=2e8, spines=2)
    demand = JobDemand(1, workers_of(network), GIGABIT, models=IN_NETWORK)
    answer = plan_embedding(all_resources(network), [demand], PlanOptions(method=Method.EXACT))
    assert answer.seconds > 1
    assert answer.verdict is Verdict.BEST_OF_CANDIDATES
    # Where hosts' own links bind, no other tree could be faster.
    wide = plan_embedding(all_resources(racks(3, 3)), [demand], PlanOptions(method=Method.EXACT))
    assert wide.seconds == 1
    assert wide.verdict is Verdict.OPTIMAL
