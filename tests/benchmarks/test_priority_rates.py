"""Rates under strict priorities: hand-worked cases, and what holds for any."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.priority_rates import priority_rates
from hopsum.timing.max_min import Usage, max_min_rates


def rates(
    capacities: list[float], flows: list[list[int]], levels: list[int], **options: object
) -> list[float]:
    usage = Usage.of([[(link, 1.0) for link in flow] for flow in flows])
    found = priority_rates(usage, np.array(capacities), np.array(levels), **options)  # type: ignore[arg-type]
    return [float(rate) for rate in found]


def test_the_highest_priority_gets_the_link() -> None:
    assert rates([10], [[0], [0]], [0, 1]) == [10, 0]
    assert rates([10], [[0], [0], [0]], [3, 1, 3]) == [0, 10, 0]


def test_one_level_shares_fairly() -> None:
    assert rates([10], [[0], [0]], [5, 5]) == [5, 5]


def test_the_next_level_shares_what_is_left() -> None:
    # The first is held at 4 by its second link.
    assert rates([10, 4], [[0, 1], [0], [0]], [0, 2, 2]) == [4, 3, 3]
    limits = np.array([6.0, np.inf, 1.0])
    assert rates([10], [[0], [0], [0]], [0, 1, 1], limits=limits) == [6, 3, 1]


def test_a_link_without_a_rate_slows_no_job() -> None:
    assert rates([np.inf, 10], [[0], [0, 1], [1]], [0, 1, 2]) == [np.inf, 10, 0]


@st.composite
def cases(draw: st.DrawFn) -> tuple[list[int], list[list[int]], list[int]]:
    links = draw(st.integers(1, 4))
    capacities = draw(st.lists(st.integers(1, 20), min_size=links, max_size=links))
    one = st.lists(st.integers(0, links - 1), min_size=1, max_size=links, unique=True)
    flows = draw(st.lists(one, min_size=1, max_size=6))
    levels = draw(st.lists(st.integers(0, 3), min_size=len(flows), max_size=len(flows)))
    return capacities, flows, levels


@pytest.mark.slow
@given(cases())
def test_links_are_never_over_full_nor_idle_for_nothing(
    case: tuple[list[int], list[list[int]], list[int]],
) -> None:
    capacities, flows, levels = case
    found = rates([*map(float, capacities)], flows, levels)
    loads = [
        sum(rate for rate, flow in zip(found, flows, strict=True) if link in flow)
        for link in range(len(capacities))
    ]
    assert all(
        load <= capacity * (1 + 1e-9) for load, capacity in zip(loads, capacities, strict=True)
    )
    for flow in flows:
        assert any(loads[link] == pytest.approx(capacities[link]) for link in flow)


@pytest.mark.slow
@given(cases())
def test_lower_levels_do_not_affect_higher_ones(
    case: tuple[list[int], list[list[int]], list[int]],
) -> None:
    capacities, flows, levels = case
    found = rates([*map(float, capacities)], flows, levels)
    first = [number for number, level in enumerate(levels) if level == min(levels)]
    usage = Usage.of([[(link, 1.0) for link in flows[number]] for number in first])
    alone = max_min_rates(usage, np.array(capacities, dtype=np.float64))
    assert [found[number] for number in first] == pytest.approx(alone.tolist())
