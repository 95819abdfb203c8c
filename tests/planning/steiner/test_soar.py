from __future__ import annotations

from itertools import combinations
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopsum.planning.steiner.low_congestion import least_congestion
from hopsum.planning.steiner.soar import Placement, soar
from hopsum.planning.steiner.tree_problem import Limits, NumberedTree, TreeTask, build_model
from tests.oracles.in_network_trees import all_parents, small_network
from tests.support.search import examples

# Figure 2 of the paper: a binary tree of seven switches with 2, 6, 5 and 4 messages at its leaves.
PARENTS = [-1, 0, 0, 1, 1, 2, 2]
LOCAL = [0, 0, 0, 2, 6, 5, 4]


def busy(
    parents: list[int], local: list[int], cost: list[int], summing: frozenset[int], v: int = -1
) -> tuple[int, int]:
    """Messages that leave a switch, and what they and those below cost."""
    v = parents.index(-1) if v < 0 else v
    messages, total = local[v], 0
    for child in (c for c, parent in enumerate(parents) if parent == v):
        sent, below = busy(parents, local, cost, summing, child)
        messages, total = messages + sent, total + below
    if v in summing:
        messages = min(1, messages)
    return messages, total + messages * cost[v]


def test_the_running_example_of_the_paper() -> None:
    costs = [soar(PARENTS, LOCAL, [1] * 7, most).cost for most in range(5)]
    assert costs == [51, 35, 20, 15, 11]
    assert soar(PARENTS, LOCAL, [1] * 7, 2).summing == {2, 4}
    assert soar(PARENTS, LOCAL, [1] * 7, 7).cost == 7


@pytest.mark.slow
@settings(max_examples=examples(40, of=250))
@given(st.integers(0, 10**9))
def test_equal_to_all_sets_tried_out(seed: int) -> None:
    random = Random(seed)
    count = random.randint(1, 12)
    numbers = random.sample(range(count), count)
    parents = [-1] * count
    for i in range(1, count):
        parents[numbers[i]] = numbers[random.randrange(i)]
    local = [random.randint(0, 4) for _ in parents]
    cost = [random.randint(1, 5) for _ in parents]
    able = [random.random() < 0.8 for _ in parents]
    most = random.randint(0, 5)
    found = soar(parents, local, cost, most, able)
    sets = [
        frozenset(chosen)
        for size in range(most + 1)
        for chosen in combinations([v for v in range(count) if able[v]], size)
    ]
    best = min(busy(parents, local, cost, chosen)[1] for chosen in sets)
    assert found.cost == best
    assert busy(parents, local, cost, found.summing)[1] == best
    assert found.summing in sets


def test_a_thousand_switches() -> None:
    random = Random(1)
    parents, depth = [-1], [1]
    while len(parents) < 1000:
        parent = random.randrange(len(parents))
        if depth[parent] < 12:
            parents.append(parent)
            depth.append(depth[parent] + 1)
    local = [random.randint(0, 30) for _ in parents]
    cost = [random.randint(1, 3) for _ in parents]
    found = soar(parents, local, cost, 64)
    assert len(found.summing) == 64
    assert found.cost == _messages_cost(parents, local, cost, found.summing)
    fewer = soar(parents, local, cost, 63)
    assert fewer.cost > found.cost


def _messages_cost(
    parents: list[int], local: list[int], cost: list[int], summing: frozenset[int]
) -> int:
    messages, total = list(local), 0
    # Parents come before their children in this tree.
    for v in range(len(parents) - 1, -1, -1):
        sent = min(1, messages[v]) if v in summing else messages[v]
        total += sent * cost[v]
        if v:
            messages[parents[v]] += sent
    return total


@pytest.mark.parametrize(
    ("parents", "message"),
    [([-1, -1], "2 switches without a parent"), ([-1, 2, 1], "cycle"), ([], "0 switches")],
)
def test_no_tree(parents: list[int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        soar(parents, [1] * len(parents), [1] * len(parents), 1)


def test_nothing_to_send() -> None:
    assert soar([-1, 0], [0, 0], [1, 1], 2) == Placement(frozenset(), 0)


@pytest.mark.slow
@settings(max_examples=examples(40, of=250))
@given(st.integers(0, 10**9))
def test_least_congestion_equals_all_sets_tried_out(seed: int) -> None:
    random = Random(seed)
    network = small_network(random, random.randint(1, 6), random.randint(2, 9))
    *workers, server = network.hosts
    able = frozenset(name for name in network.switches if random.random() < 0.7)
    task = TreeTask(server, tuple(workers), able, max_flows=random.choice([None, 2]))
    most = random.randint(0, 3)
    limits = Limits(max_summing=most, max_children=random.choice([2, 3, 32]))
    problem = build_model(network, [task], limits)
    number = {name: v for v, name in enumerate(problem.switches)}
    tree = next(all_parents(network, task))
    parents = {
        number[v]: number[parent] for v, parent in tree.items() if v in number and parent in number
    }
    found = least_congestion(problem, parents, most)
    trials = [
        NumberedTree(parents, frozenset(number[name] for name in names))
        for names in combinations(sorted(able), min(most, len(able)))
    ]
    times = [problem.time([one]) for one in trials if problem.fits([one])]
    if not times:
        assert found is None
        return
    assert found is not None
    assert problem.fits([found])
    assert problem.time([found]) == pytest.approx(min(times))
