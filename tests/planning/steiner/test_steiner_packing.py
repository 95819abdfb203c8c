from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from itertools import combinations

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from hopsum.collectives.plan import PlanError
from hopsum.network.builder import NetworkBuilder
from hopsum.network.loaders import load_network
from hopsum.network.model import Network
from hopsum.planning.model.forest import Forest, ForestOptions, Verdict
from hopsum.planning.model.forest_checker import forest_faults
from hopsum.planning.model.graph import planning_graph
from hopsum.planning.model.placement import place
from hopsum.planning.steiner.packing_problem import PackingProblem
from hopsum.planning.steiner.steiner_packing import pack_trees
from tests.support.machine import PATIENCE
from tests.support.search import examples


def problem_of(
    network: Network, roots: tuple[str, ...], limits: Mapping[str, int] | None = None
) -> PackingProblem:
    """All hosts work but the roots; hosts with several links forward."""
    workers = [name for name in network.hosts if name not in roots]
    passes = frozenset(network.switches) | {h for h in network.hosts if len(network.ports(h)) > 1}
    return PackingProblem(planning_graph(network, workers), roots, passes, 32, limits or {})


def leaf_spine(spec: str, uplink: float) -> PackingProblem:
    network = load_network(spec, link_rate=1.0, uplink_rate=uplink)
    return problem_of(network, place(network).servers)


def combination_network(middles: int, links: int) -> PackingProblem:
    """A root over `middles` switches, and a worker under every set of `links` of them."""
    builder = NetworkBuilder("combination", 1.0)
    builder.add_host("r")
    for i in range(middles):
        builder.link("r", builder.add_switch(f"s{i}"))
    for number, chosen in enumerate(combinations(range(middles), links)):
        builder.add_host(f"t{number}")
        for i in chosen:
            builder.link(f"t{number}", f"s{i}")
    return problem_of(builder.build(), ("r",))


def check_fits(problem: PackingProblem, forest: Forest) -> None:
    """Trees over all workers, whose rates fit the capacities exactly."""
    used: dict[tuple[str, str], Fraction] = {}
    for tree in forest.trees:
        shape = nx.Graph(list(tree.parents.items()))
        assert nx.is_tree(shape)
        assert tree.root in problem.roots
        assert problem.graph.workers <= set(shape)
        inner = {node for node in tree.parents.values() if node != tree.root}
        assert inner <= problem.crossing
        assert dict(tree.flows) == flows_of(problem, tree.root, tree.parents)
        for edge, load in tree.loads(problem.graph).items():
            used[edge] = used.get(edge, Fraction(0)) + load
    for edge, load in used.items():
        assert load <= problem.graph.capacity[edge]
    adding = replace(problem.graph, combines=problem.graph.combines.union(problem.roots))
    assert forest_faults(adding, forest, ForestOptions(), problem.limits) == []


def flows_of(problem: PackingProblem, root: str, parents: Mapping[str, str]) -> dict[str, int]:
    """Flows above each node where they are not one, from the leaves' point of view."""

    def above(node: str) -> int:
        below = sum(above(child) for child, parent in parents.items() if parent == node)
        below += node in problem.graph.workers
        return 1 if node in problem.merging and below else below

    return {node: count for node in parents if (count := above(node)) != 1}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sizes", "optimum"),
    [((3, 2), Fraction(9, 5)), ((4, 2), Fraction(16, 9)), ((4, 3), Fraction(8, 3))],
)
def test_combination_networks(sizes: tuple[int, int], optimum: Fraction) -> None:
    problem = combination_network(*sizes)
    forest = pack_trees(problem, ForestOptions(gap=0.0, time_limit=PATIENCE))
    check_fits(problem, forest)
    assert forest.throughput == forest.bound == optimum
    assert forest.verdict is Verdict.OPTIMAL


@pytest.mark.parametrize(("uplink", "trees"), [(0.25, 4), (0.5, 2), (1.0, 1)])
def test_a_leaf_spine_is_used_to_the_last_link(uplink: float, trees: int) -> None:
    problem = leaf_spine("leaf-spine:4x4", uplink)
    forest = pack_trees(problem, ForestOptions())
    check_fits(problem, forest)
    assert forest.throughput == forest.bound == 1
    assert [tree.rate for tree in forest.trees] == [Fraction(1, trees)] * trees


@pytest.mark.slow
@pytest.mark.parametrize("spec", ["fat-tree:4", "fat-tree:6", "dragonfly:2x1x1"])
def test_other_networks_keep_to_capacities(spec: str) -> None:
    network = load_network(spec, link_rate=1.0, uplink_rate=0.5)
    problem = problem_of(network, place(network).servers)
    forest = pack_trees(problem, ForestOptions(time_limit=PATIENCE))
    check_fits(problem, forest)
    assert forest.throughput > Fraction(1, 2)


@st.composite
def small_networks(draw: st.DrawFn) -> tuple[PackingProblem, int]:
    switches = [f"s{i}" for i in range(draw(st.integers(1, 4)))]
    builder = NetworkBuilder("small")
    for name in switches:
        builder.add_switch(name, draw(st.sampled_from([True, True, False])))
    builder.add_host("ps")
    builder.link("ps", draw(st.sampled_from(switches)), 4.0)
    for i in range(draw(st.integers(1, 3))):
        builder.add_host(f"w{i}")
        for name in draw(st.sets(st.sampled_from(switches), min_size=1, max_size=2)):
            builder.link(f"w{i}", name, float(draw(st.integers(1, 4))))
    tree = set()
    for i in range(1, len(switches)):
        other = draw(st.integers(0, i - 1))
        builder.link(switches[i], switches[other], float(draw(rates)))
        tree.add((switches[other], switches[i]))
    for a, b in combinations(switches, 2):
        if (a, b) not in tree and draw(st.booleans()):
            builder.link(a, b, float(draw(rates)))
    height = draw(st.integers(2, 6))
    return problem_of(builder.build(), ("ps",)), height


rates = st.integers(1, 4)


def all_trees(problem: PackingProblem, height: int) -> list[dict[tuple[str, str], int]]:
    """The loads of every tree no higher than `height`, by enumeration."""
    found = []
    edges = list(problem.edges)
    for size in range(1, len(problem.graph.nodes)):
        for chosen in combinations(edges, size):
            shape = nx.Graph(chosen)
            if "ps" not in shape or not problem.graph.workers <= set(shape):
                continue
            if not nx.is_tree(shape):
                continue
            depth = nx.single_source_shortest_path_length(shape, "ps")
            parents = {v: u for u, v in nx.bfs_edges(shape, "ps")}
            inner = set(parents.values()) - {"ps"}
            leaves = set(parents) - inner
            if max(depth.values()) > height or not inner <= problem.crossing:
                continue
            if not leaves <= problem.graph.workers:
                continue
            flows = flows_of(problem, "ps", parents)
            found.append(
                {problem.graph.edge(n, parent): flows.get(n, 1) for n, parent in parents.items()}
            )
    return found


@pytest.mark.slow
@settings(max_examples=examples(20, of=60))
@given(small_networks())
def test_packings_are_the_optimum_of_all_trees(case: tuple[PackingProblem, int]) -> None:
    problem, height = case
    trees = all_trees(problem, height)
    options = ForestOptions(max_height=height, gap=0.0)
    if not trees:
        with pytest.raises(PlanError, match="no tree is of height"):
            pack_trees(problem, options)
        return
    table = np.array([[tree.get(edge, 0) for tree in trees] for edge in problem.edges])
    capacity = [float(problem.graph.capacity[edge]) for edge in problem.edges]
    optimum = -linprog(-np.ones(len(trees)), A_ub=table, b_ub=capacity).fun
    forest = pack_trees(problem, options)
    check_fits(problem, forest)
    assert float(forest.bound) >= optimum - 1e-9
    assert max(tree.height for tree in forest.trees) <= height
    if problem.merges_everywhere:
        assert float(forest.throughput) == pytest.approx(optimum, rel=1e-6)
        assert forest.verdict is Verdict.OPTIMAL


def test_at_most_k_trees() -> None:
    problem = leaf_spine("leaf-spine:4x2", 0.25)
    for most in (1, 3):
        forest = pack_trees(problem, ForestOptions(max_trees=most))
        check_fits(problem, forest)
        assert len(forest.trees) == most
        assert forest.throughput == forest.bound == Fraction(most, 4)
        assert forest.certificate.kind == "trees"


def test_trees_of_a_least_rate() -> None:
    # Three ways, of 1, 1 and 3: of trees of 2 or more there is one.
    builder = NetworkBuilder("ways", 9.0)
    for leaf, host in (("l1", "ps"), ("l2", "w")):
        builder.link(builder.add_host(host), builder.add_switch(leaf))
    for spine, rate in (("a", 1.0), ("b", 1.0), ("c", 3.0)):
        builder.add_switch(spine)
        builder.link("l1", spine, rate)
        builder.link("l2", spine, rate)
    problem = problem_of(builder.build(), ("ps",))
    assert pack_trees(problem, ForestOptions()).throughput == 5
    assert pack_trees(problem, ForestOptions(min_rate=Fraction(2))).throughput == 3
    with pytest.raises(PlanError, match="no tree of rate 4 joins all workers"):
        pack_trees(problem, ForestOptions(min_rate=Fraction(4)))


def test_slots_limit_trees() -> None:
    network = load_network("leaf-spine:2x2x4", link_rate=1.0, uplink_rate=0.25)
    problem = problem_of(network, place(network).servers, {"l1": 2, "l2": 9})
    forest = pack_trees(problem, ForestOptions())
    check_fits(problem, forest)
    assert len(forest.trees) == 2
    assert forest.throughput == forest.bound == Fraction(1, 2)
    assert "every tree sums at l1, which has slots for 2" in forest.certificate.text
    # A server's switch with one worker sums for as many trees as others leave it to.
    alone = pack_trees(replace(problem, limits={"s1": 0, "l2": 9}), ForestOptions())
    check_fits(replace(problem, limits={}), alone)
    assert alone.bound == 1


def test_more_hosts_than_a_fan_in_leave_a_switch_in_several_flows() -> None:
    """Of 34 flows that meet at l2, 32 are summed: 3 leave."""
    builder = NetworkBuilder("wide", 3.0)
    builder.link(builder.add_host("ps"), builder.add_switch("l1"))
    builder.add_switch("l2")
    builder.link("l1", "l2", 3.0)
    for i in range(34):
        builder.link(builder.add_host(f"w{i}"), "l2")
    problem = problem_of(builder.build(), ("ps",))
    forest = pack_trees(problem, ForestOptions())
    assert forest.throughput == forest.bound == 1
    assert forest.verdict is Verdict.OPTIMAL
    assert "in 3 flows by the links l1-l2" in forest.certificate.text
    builder.switches["l2"] = replace(builder.switches["l2"], aggregates=False)
    plain = problem_of(builder.build(), ("ps",))
    forest = pack_trees(plain, ForestOptions())
    assert forest.bound == Fraction(3, 34)
    assert float(forest.throughput) == pytest.approx(3 / 34)


def test_a_worker_at_the_server_host_does_not_bound_the_others() -> None:
    """Nothing need leave the server, nor workers attached to it."""
    builder = NetworkBuilder("at the server", 4.0)
    builder.add_host("ps")
    for name in ("w1", "w2"):
        builder.link(builder.add_host(name), "ps")
    builder.add_switch("s")
    builder.link("ps", "s", 1.0)
    forest = pack_trees(problem_of(builder.build(), ("ps",)), ForestOptions())
    assert forest.throughput == forest.bound == 4


def two_ways() -> PackingProblem:
    """A quick way of 1 and a slow one of 3 from two workers to the server."""
    builder = NetworkBuilder("two ways", 9.0)
    builder.link(builder.add_host("ps"), builder.add_switch("l1"), latency=0.001)
    builder.add_switch("l2")
    for spine, rate, latency in (("quick", 1.0, 0.001), ("slow", 3.0, 0.01)):
        builder.add_switch(spine)
        builder.link("l1", spine, rate, latency)
        builder.link("l2", spine, rate, latency)
    for name in ("w1", "w2"):
        builder.link(builder.add_host(name), "l2", latency=0.001)
    return problem_of(builder.build(), ("ps",))


def test_trees_of_a_least_delay() -> None:
    problem = two_ways()
    assert pack_trees(problem, ForestOptions(max_delay=0.022)).throughput == 4
    forest = pack_trees(problem, ForestOptions(max_delay=0.021))
    check_fits(problem, forest)
    assert forest.throughput == forest.bound == 1
    assert [tree.delay(problem.graph) for tree in forest.trees] == [pytest.approx(0.004)]
    with pytest.raises(PlanError, match=r"0\.003 s or less: w1 is 0\.004 s away"):
        pack_trees(problem, ForestOptions(max_delay=0.003))


@pytest.mark.slow
@settings(max_examples=examples(10, of=30))
@given(small_networks(), st.integers(2, 6))
def test_equal_latencies_make_a_delay_of_a_height(
    case: tuple[PackingProblem, int], height: int
) -> None:
    problem, _ = case
    graph = replace(problem.graph, latency=dict.fromkeys(problem.graph.latency, 1.0))
    problem = replace(problem, graph=graph)
    options = ForestOptions(max_delay=float(height), gap=0.0)
    trees = all_trees(problem, height)
    if not trees:
        with pytest.raises(PlanError, match=r"no tree (has a delay|joins)"):
            pack_trees(problem, options)
        return
    forest = pack_trees(problem, options)
    check_fits(problem, forest)
    assert max(tree.height for tree in forest.trees) <= height
    best = pack_trees(problem, ForestOptions(max_height=height, gap=0.0))
    assert forest.bound >= best.throughput


def test_several_servers_share_the_load() -> None:
    # Each server's own link carries half: only together do they take what the workers give.
    builder = NetworkBuilder("two", 2.0)
    builder.add_switch("s1")
    for name, rate in (("ps1", 1.0), ("ps2", 1.0), ("w1", 2.0), ("w2", 2.0)):
        builder.link(builder.add_host(name), "s1", rate)
    problem = problem_of(builder.build(), ("ps1", "ps2"))
    forest = pack_trees(problem, ForestOptions())
    check_fits(problem, forest)
    assert forest.throughput == 2
    assert {tree.root for tree in forest.trees} == {"ps1", "ps2"}


def test_the_same_trees_each_time() -> None:
    problem = leaf_spine("leaf-spine:5x2x3", 0.7)
    first, second = (pack_trees(problem, ForestOptions()).trees for _ in range(2))
    assert first == second
