"""Max-min fair rates: known cases, an exact reference, and what makes rates max-min fair."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopsum.timing.max_min import Usage, max_min_rates

Case = tuple[list[int], list[list[tuple[int, int]]]]


def rates(capacities: list[float], flows: list[list[int]], **options: object) -> list[float]:
    usage = Usage.of([[(link, 1.0) for link in flow] for flow in flows])
    found = max_min_rates(usage, np.array(capacities), **options)  # type: ignore[arg-type]
    return [float(rate) for rate in found]


def filling(capacities: list[int], flows: list[list[tuple[int, int]]]) -> list[Fraction]:
    """Progressive filling one bottleneck at a time, in exact numbers."""
    left = [Fraction(capacity) for capacity in capacities]
    waiting = set(range(len(flows)))
    found = [Fraction(0)] * len(flows)
    while waiting:
        demand = [Fraction(0)] * len(left)
        for flow in waiting:
            for link, amount in flows[flow]:
                demand[link] += amount
        level = min(left[link] / demand[link] for link in range(len(left)) if demand[link])
        full = {i for i in range(len(left)) if demand[i] and left[i] / demand[i] == level}
        for flow in [f for f in waiting if any(link in full for link, _ in flows[f])]:
            found[flow] = level
            waiting.remove(flow)
            for link, amount in flows[flow]:
                left[link] -= level * amount
    return found


@st.composite
def cases(draw: st.DrawFn) -> Case:
    links = draw(st.integers(1, 6))
    capacities = draw(st.lists(st.integers(1, 40), min_size=links, max_size=links))
    entry = st.tuples(st.integers(0, links - 1), st.integers(1, 3))
    flow = st.lists(entry, min_size=1, max_size=links, unique_by=lambda item: item[0])
    return capacities, draw(st.lists(flow, min_size=1, max_size=8))


def test_bottlenecks_behind_each_other() -> None:
    # Bertsekas and Gallager, figure 6.15: three flows meet on one link, the rest is the others'.
    assert rates([1.0, 1.0, 1.0], [[0], [0, 1], [0], [1, 2]]) == pytest.approx(
        [1 / 3, 1 / 3, 1 / 3, 2 / 3]
    )


def test_limits_leave_the_rest_to_others() -> None:
    assert rates([8.0], [[0], [0], [0]], limits=np.array([1.0, np.inf, np.inf])) == [1.0, 3.5, 3.5]


def test_a_weight_stands_for_so_many_equal_flows() -> None:
    assert rates([8.0, 2.0], [[0], [0], [0, 1]]) == [3.0, 3.0, 2.0]
    assert rates([8.0, 2.0], [[0], [0, 1]], weights=np.array([2.0, 1.0])) == [6.0, 2.0]


def test_unlimited_links_give_unlimited_rates() -> None:
    assert rates([np.inf, 4.0], [[0], [0, 1], []]) == [np.inf, 4.0, np.inf]


def test_no_flows() -> None:
    assert rates([1.0], []) == []


def test_followers_leave_the_rest_to_others() -> None:
    # Flow 0 gets 1 on link 0; flow 1 follows it on link 1; flow 2 has what is left there.
    followers = (np.array([0]), np.array([1]))
    assert rates([1.0, 8.0], [[0], [1], [1]], followers=followers) == [1.0, 1.0, 7.0]


def test_a_follower_of_a_follower() -> None:
    followers = (np.array([1, 0]), np.array([2, 1]))
    found = rates([2.0, 8.0, 8.0], [[0], [1], [2], [2]], followers=followers)
    assert found == [2.0, 2.0, 2.0, 6.0]


def test_a_leader_faster_than_its_follower_does_not_matter() -> None:
    followers = (np.array([0]), np.array([1]))
    assert rates([8.0, 2.0], [[0], [1]], followers=followers) == [8.0, 2.0]


@pytest.mark.slow
@given(cases())
def test_rates_are_those_of_progressive_filling(case: Case) -> None:
    capacities, flows = case
    usage = Usage.of([[(link, float(amount)) for link, amount in flow] for flow in flows])
    found = max_min_rates(usage, np.array(capacities, dtype=np.float64))
    assert found == pytest.approx([float(rate) for rate in filling(capacities, flows)], rel=1e-9)


@pytest.mark.slow
@given(cases(), st.randoms(use_true_random=False))
def test_with_followers_every_flow_has_a_reason_to_stop(case: Case, random: object) -> None:
    capacities, flows = case
    pairs = [(f // 2, f) for f in range(1, len(flows)) if random.random() < 0.5]  # type: ignore[attr-defined]
    table = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
    usage = Usage.of([[(link, float(amount)) for link, amount in flow] for flow in flows])
    found = max_min_rates(
        usage, np.array(capacities, dtype=np.float64), followers=(table[0], table[1])
    )
    loads = usage.loads(found, len(capacities))
    assert (loads <= np.array(capacities) * (1 + 1e-9)).all()
    for flow, entries in enumerate(flows):
        leaders = [found[leader] for leader, follower in pairs if follower == flow]
        assert all(found[flow] <= rate * (1 + 1e-9) for rate in leaders)
        as_leader = any(found[flow] == pytest.approx(rate) for rate in leaders)
        full = [
            link
            for link, _ in entries
            if loads[link] == pytest.approx(capacities[link])
            and all(
                found[other] <= found[flow] * (1 + 1e-9)
                for other, uses in enumerate(flows)
                if any(link == used for used, _ in uses)
            )
        ]
        assert as_leader or full


def test_loads_count_every_crossing() -> None:
    usage = Usage.of([[(0, 1.0), (1, 2.0)], [(1, 0.5)]])
    assert usage.loads(np.array([4.0, 2.0]), 3).tolist() == [4.0, 9.0, 0.0]
    assert usage.take(np.array([1])).loads(np.array([2.0]), 3).tolist() == [0.0, 1.0, 0.0]
