"""Hosts with several links: the links that the planners choose, against all that there are."""

from __future__ import annotations

from fractions import Fraction
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from hopsum.collectives.plan_checker import check_plans
from hopsum.network.builder import NetworkBuilder
from hopsum.network.model import Network
from hopsum.planning.model.forest import Verdict
from hopsum.planning.model.request import Method, PlanRequest
from hopsum.planning.model.routes import link_loads, make_route
from hopsum.planning.registry import make_plan, plan_job
from hopsum.planning.steiner import multi_hop_homes
from hopsum.planning.steiner.multi_hop import solve_tasks
from hopsum.planning.steiner.tree_problem import Limits, TreeTask
from tests.oracles.in_network_trees import all_parents, best_time, small_network
from tests.support.search import examples

ROUNDING = 1 + Fraction(1, 10**9)
"""Bounds are computed in floating point."""


def random_tasks(random: Random, links: int = 2) -> tuple[Network, list[TreeTask]]:
    """Return a network of hosts with several links, and one tree for them, or two."""
    network = small_network(random, random.randint(2, 3), random.randint(3, 4), links)
    *workers, server = network.hosts
    able = frozenset(name for name in network.switches if random.random() < 0.8)
    if len(network.hosts) == 4 and random.random() < 0.3:
        *workers, other, server = network.hosts
        shares = Fraction(1, 3), Fraction(2, 3)
        return network, [
            TreeTask(at, tuple(workers), able, share)
            for at, share in zip((other, server), shares, strict=True)
        ]
    return network, [TreeTask(server, tuple(workers), able)]


@pytest.mark.slow
@settings(max_examples=examples(12, of=300))
@given(st.integers(0, 10**9))
def test_links_of_hosts_equal_to_all_tried_out(seed: int) -> None:
    network, tasks = random_tasks(Random(seed))
    best = best_time(network, tasks, Limits())
    assert best is not None
    answer = solve_tasks(network, tasks, method=Method.EXACT, limits=Limits())
    assert answer.rate == 1 / best <= answer.bound * ROUNDING
    assert answer.gap <= 0.001 + 1e-9
    assert answer.verdict is Verdict.OPTIMAL
    quick = solve_tasks(network, tasks, Limits())
    assert quick.rate <= 1 / best <= quick.bound * ROUNDING


@pytest.mark.slow
@settings(max_examples=examples(12, of=300))
@given(st.integers(0, 10**9))
def test_many_links_are_chosen_one_by_one(seed: int) -> None:
    """Where not all combinations are tried, the bound holds all the same."""
    network, tasks = random_tasks(Random(seed))
    best = best_time(network, tasks, Limits())
    assert best is not None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(multi_hop_homes, "MOST_TRIED", 1)
        answer = solve_tasks(network, tasks, Limits())
    assert answer.rate <= 1 / best <= answer.bound * ROUNDING


@pytest.mark.slow
@settings(max_examples=examples(12, of=300))
@given(st.integers(0, 10**9))
def test_packings_equal_to_all_trees_packed(seed: int) -> None:
    random = Random(seed)
    network = small_network(random, random.randint(2, 3), random.randint(2, 4), 2)
    *workers, server = network.hosts
    request = PlanRequest(1, 1, tuple(workers), (server,))
    answer = make_plan(network, request, "multi-tree")
    assert answer.job is not None
    best = packed(network, TreeTask(server, tuple(workers), frozenset(network.switches)))
    assert float(answer.forest.throughput) == pytest.approx(best, rel=1e-3)
    assert float(answer.forest.bound) >= best * (1 - 1e-9)
    check_plans(network, [answer.job])


def packed(network: Network, task: TreeTask) -> float:
    """Return the rate of all trees together at most, by a linear program over each of them."""
    links = {link: i for i, link in enumerate(network.directed_links())}
    columns = []
    for parents in all_parents(network, task):
        column = np.zeros(len(links))
        route = make_route(network, task.workers, parents, task.server, task.sums)
        for link, load in link_loads(route, task.results).items():
            column[links[link]] = load
        columns.append(column)
    rates = [network.link(*link).bandwidth for link in links]
    found = linprog(-np.ones(len(columns)), np.array(columns).T, rates)
    return float(-found.fun)


def two_planes() -> Network:
    """Return three workers and a server, each with a slow link to one switch and a fast one."""
    builder = NetworkBuilder("planes", 10e6)
    for switch in ("s1", "s2"):
        builder.add_switch(switch)
    builder.link("s1", "s2", 2e6)
    for host in ("h1", "h2", "h3", "ps"):
        builder.add_host(host)
        for switch in ("s1", "s2"):
            builder.link(host, switch)
    return builder.build()


def test_trees_use_several_links_of_a_host() -> None:
    network = two_planes()
    request = PlanRequest(1, 1, ("h1", "h2", "h3"), ("ps",))
    plan = plan_job(network, request, planner="multi-tree")
    assert [{tree.access(host) for host in network.hosts} for tree in plan.trees] == [
        {"s1"},
        {"s2"},
    ]


def test_hosts_meet_where_all_have_links() -> None:
    """h3 has no link to s1, where the others are by default; between the switches it is slow."""
    network = two_planes().without(links=[("h3", "s1")])
    request = PlanRequest(1, 1, ("h1", "h2", "h3"), ("ps",))
    answer = make_plan(network, request, "multi-hop")
    assert answer.job is not None
    assert answer.forest.throughput == answer.forest.bound == 10e6
    [tree] = answer.job.trees
    assert {tree.access(host) for host in network.hosts} == {"s2"}
