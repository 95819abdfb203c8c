from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopsum.collectives.plan import PlanError
from hopsum.collectives.plan_checker import check_plans
from hopsum.network.loaders import load_network
from hopsum.network.model import Network
from hopsum.planning.model.allocation import Allocator
from hopsum.planning.model.forest import ForestOptions, Verdict
from hopsum.planning.model.placement import place
from hopsum.planning.model.request import Method, PlanRequest
from hopsum.planning.registry import plan_job
from hopsum.planning.steiner import multi_hop
from hopsum.planning.steiner.multi_hop import solve_multi_hop, solve_tasks
from hopsum.planning.steiner.multi_hop_candidates import candidate_trees
from hopsum.planning.steiner.multi_hop_heuristic import Effort, improve
from hopsum.planning.steiner.tree_local_search import MutableTree, Path
from hopsum.planning.steiner.tree_problem import Limits, TreeTask, build_model
from tests.support.search import examples


def with_speeds(network: Network, random: Random) -> Network:
    links = tuple(
        replace(link, bandwidth=random.choice([10.0, 25.0, 40.0])) for link in network.links
    )
    return Network(network.name, network.hosts, network.switches, links)


def random_task(network: Network, workers: int, share: float, random: Random) -> TreeTask:
    server = place(network, 1).servers[0]
    hosts = [name for name in network.hosts if name != server]
    able = random.sample(list(network.switches), round(share * len(network.switches)))
    return TreeTask(server, tuple(random.sample(hosts, workers)), frozenset(able))


@pytest.mark.slow
@settings(max_examples=examples(13, of=40))
@given(st.integers(0, 10**9), st.sampled_from(["fat-tree:4", "leaf-spine:4x4", "dragonfly:4x2x2"]))
def test_a_tree_under_change_counts_right(seed: int, spec: str) -> None:
    random = Random(seed)
    network = with_speeds(load_network(spec), random)
    task = random_task(network, 9, 0.6, random)
    problem = build_model(network, [task], Limits(max_children=random.choice([2, 32])))
    start = candidate_trees(network, problem, task)[0]
    time = problem.time([start]) / random.choice([1, 2, 4])
    tree = MutableTree(problem, start, time)
    for _ in range(20):
        v = random.choice([v for v in range(len(problem.switches)) if tree.inside(v)])
        if random.random() < 0.3:
            tree.set_summing(v, v not in tree.summing)
        elif v != tree.root:
            old = tree.detach(v)
            path = tree.best_path(v, random.random(), random)
            tree.attach(old if path is None or random.random() < 0.3 else path)
        fresh = MutableTree(problem, tree.chosen(), time)
        for name in ("excess", "frames", "meet", "out", "below", "parent", "children"):
            assert getattr(tree, name) == getattr(fresh, name), name
        levels = problem.levels(problem.tasks[0], tree.chosen().parents)
        assert max(levels.values()) <= problem.limits.max_switches
        if not tree.excess:
            out = problem.outflows(problem.tasks[0], tree.chosen())[tree.root]
            assert out <= problem.tasks[0].max_flows
            assert problem.time([tree.chosen()]) <= max(time, problem.floor) * (1 + 1e-9)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("spec", "workers", "share", "most"),
    [
        ("leaf-spine:24x24", 200, 0.5, None),
        ("leaf-spine:24x24", 100, 1.0, 8),
        ("leaf-spine:8x8", 40, 0.4, None),
        ("fat-tree:4", 15, 1.0, 6),
        ("fat-tree:8", 60, 0.5, None),
        ("dragonfly:2", 40, 0.5, None),
    ],
)
def test_near_the_exact_optimum(spec: str, workers: int, share: float, most: int | None) -> None:
    for seed in range(2):
        random = Random(seed)
        network = load_network(spec)
        if seed:
            network = with_speeds(network, random)
        task = random_task(network, workers, share, random)
        limits = Limits(max_summing=most)
        near = solve_tasks(network, [task], limits, method=Method.HEURISTIC)
        best = solve_tasks(network, [task], limits, method=Method.EXACT, time_limit=60)
        assert best.verdict is Verdict.OPTIMAL
        assert best.rate * 95 <= near.rate * 100 <= best.bound * 100
        assert near.rate <= near.bound


@pytest.mark.slow
@pytest.mark.parametrize("method", list(Method))
@pytest.mark.parametrize("most", [None, 3])
def test_plans_of_all_methods_hold(method: Method, most: int | None) -> None:
    for spec, plain in (("fat-tree:4", ["e1", "a2"]), ("leaf-spine:4x4", ["l2", "s1"])):
        network = load_network(spec, plain=plain, servers=2)
        placement = place(network, 8, 2)
        request = PlanRequest(
            1,
            1,
            placement.workers,
            placement.servers,
            forest=ForestOptions(time_limit=0.2),
            method=method,
            max_aggregating=most,
        )
        plan = plan_job(network, request)
        check_plans(network, [plan])
        summing = {name for t in plan.trees for name, at in t.parts.items() if at.aggregate}
        assert summing
        assert most is None or len(summing) <= most


def test_several_trees_avoid_each_other() -> None:
    network = load_network("leaf-spine:4x4", servers=4)
    placement = place(network, None, 4)
    request = PlanRequest(1, 1, placement.workers, placement.servers)
    for method in Method:
        answer = solve_multi_hop(network, replace(request, method=method), Allocator(network))
        assert answer.rate == answer.bound == 1
        spines = {name for route in answer.routes for name in route.parents if name.startswith("s")}
        assert len(spines) == 4


@pytest.mark.parametrize("method", list(Method))
def test_a_tree_may_have_no_share(method: Method) -> None:
    network = load_network("leaf-spine:3x2", servers=2, plain=["l2"])
    placement = place(network, None, 2)
    request = PlanRequest(1, 1, placement.workers, placement.servers, shares=(1.0, 0.0))
    request = replace(request, method=method)
    check_plans(network, [plan_job(network, request)])
    assert solve_multi_hop(network, request, Allocator(network)).rate == Fraction(1, 2)


@pytest.mark.slow
def test_a_large_network() -> None:
    network = load_network("fat-tree:16", plain=["e1", "e7", "a3", "c2"])
    placement = place(network, None, 1)
    request = PlanRequest(1, 1, placement.workers, placement.servers, method=Method.HEURISTIC)
    answer = solve_multi_hop(network, request, Allocator(network))
    assert answer.verdict is Verdict.OPTIMAL
    # Eight workers hang on a switch that cannot sum, and its flows leave it by one link.
    assert 1 / answer.rate == 8


@pytest.mark.slow
@pytest.mark.parametrize("arcs", [0, 100_000])
def test_a_search_looks_at_no_more_arcs_than_it_may(
    arcs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor at many fewer where the time asked for cannot be met; one tree more is hung up."""
    random = Random(0)
    network = with_speeds(load_network("dragonfly:2"), random)
    task = random_task(network, 40, 1.0, random)
    problem = build_model(network, [task], Limits(max_summing=10))
    starts = candidate_trees(network, problem, task)
    looked_at = 0.0
    best_path = MutableTree.best_path

    def counting(tree: MutableTree, v: int, noise: float, random: Random) -> Path | None:
        nonlocal looked_at
        left = tree.work.arcs
        path = best_path(tree, v, noise, random)
        looked_at += left - tree.work.arcs
        return path

    monkeypatch.setattr(MutableTree, "best_path", counting)
    assert improve(problem, starts, 0.0, Random(1), Effort(arcs=arcs)) is not None
    assert arcs <= looked_at <= arcs + 20_000


def test_too_many_flows_are_seen_before_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two switches take at most 62 flows away; of 127 workers, 65 are too many for a server."""
    monkeypatch.setattr(multi_hop, "improve", lambda *_: pytest.fail("searched"))
    network = load_network("fat-tree:8")
    workers = tuple(network.hosts)[1:]
    task = TreeTask("h1", workers, frozenset(network.switches), max_flows=32)
    with pytest.raises(PlanError, match="65 flows would reach server h1; at most 32 can"):
        solve_tasks(
            network, [task], Limits(max_summing=2, max_children=32), method=Method.HEURISTIC
        )
