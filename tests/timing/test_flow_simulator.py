"""Flows in time: sharing, waiting, following, background."""

from __future__ import annotations

import numpy as np
import pytest

from hopsum.timing.flow_simulator import FlowTimes, TimingError, simulate_flows
from hopsum.timing.flows import Flows, Routes, join_routes
from hopsum.timing.max_min import Usage


def routes(*links: list[int], delays: list[float] | None = None) -> Routes:
    """Routes of the given links, each used once."""
    usage = Usage.of([[(link, 1.0) for link in row] for row in links])
    unlimited = np.full(len(links), np.inf)
    return Routes(usage, np.zeros(len(links)) if delays is None else np.array(delays), unlimited)


def run(flows: Flows, table: Routes, *capacities: float, resolution: float = 0.0) -> FlowTimes:
    return simulate_flows(flows, table, np.array(capacities), resolution)


def test_flows_share_until_one_is_done() -> None:
    flows = Flows()
    flows.extend([0, 0], [4.0, 12.0])
    times = run(flows, routes([0]), 2.0)
    # Both at 1 until 4; then 8 more at 2.
    assert times.sent.tolist() == [4.0, 8.0]
    assert times.seconds == 8.0


def test_a_flow_waits_for_sending_or_for_delivery() -> None:
    flows = Flows()
    first = flows.add(0, 4.0)
    after_sent = flows.add(1, 2.0, sent=[first])
    after_delivered = flows.add(2, 2.0, delivered=[first, after_sent])
    times = run(flows, routes([0], [1], [2], delays=[8.0, 1.0, 0.5]), 1.0, 1.0, 1.0)
    assert times.started.tolist() == [0.0, 4.0, 12.0]
    assert times.delivered[[first, after_sent, after_delivered]].tolist() == [12.0, 7.0, 14.5]


def test_a_flow_does_not_start_before_its_time() -> None:
    flows = Flows()
    flows.extend([0, 0], [8.0, 2.0], [0.0, 2.0])
    times = run(flows, routes([0]), 2.0)
    assert times.started.tolist() == [0.0, 2.0]
    assert times.sent.tolist() == [5.0, 4.0]


def test_a_follower_is_as_slow_as_its_leader_once_it_has_caught_up() -> None:
    flows = Flows()
    leader = flows.add(0, 8.0)
    follower = flows.add(1, 8.0, start=4.0)
    flows.follows.add(leader, follower, 0)
    times = run(flows, routes([0], [1]), 1.0, 4.0)
    # From 4 on it gains 3 a second on the leader's 4 ahead, then both end together.
    assert times.sent.tolist() == [8.0, 8.0]
    other = Flows()
    other.extend([0, 1], [8.0, 8.0], [0.0, 4.0])
    assert run(other, routes([0], [1]), 1.0, 4.0).sent.tolist() == [8.0, 6.0]


def test_what_a_follower_cannot_use_is_for_others() -> None:
    flows = Flows()
    leader = flows.add(0, 4.0)
    follower = flows.add(1, 4.0)
    flows.add(1, 12.0)
    flows.follows.add(leader, follower, 0)
    assert run(flows, routes([0], [1]), 1.0, 4.0).sent.tolist() == [4.0, 4.0, 4.0]


def test_a_follower_stands_still_until_its_leader_is_there() -> None:
    flows = Flows()
    leader = flows.add(0, 8.0)
    follower = flows.add(1, 2.0)
    # The follower's data is what the leader sends last but 2: it waits until 4 are sent.
    flows.follows.add(leader, follower, 2)
    times = run(flows, routes([0], [1]), 1.0, 4.0)
    assert times.sent.tolist() == [8.0, 6.0]


def test_a_follower_of_a_stalled_flow_stalls() -> None:
    flows = Flows()
    first, second, third = flows.add(0, 8.0), flows.add(1, 2.0), flows.add(2, 2.0)
    flows.follows.add([first, second], [second, third], [2, 0])
    assert run(flows, routes([0], [1], [2]), 1.0, 4.0, 4.0).sent.tolist() == [8.0, 6.0, 6.0]


def test_endless_flows_share_and_do_not_count() -> None:
    flows = Flows()
    flows.extend([0, 0], [4.0, np.inf])
    times = run(flows, routes([0]), 2.0)
    assert times.seconds == 4.0
    assert not np.isfinite(times.sent[1])


def test_background_that_ends_does_not_count() -> None:
    flows = Flows()
    flows.extend([0, 0], [4.0, 100.0])
    foreground = np.array([True, False])
    times = simulate_flows(flows, routes([0]), np.array([2.0]), foreground=foreground)
    assert times.seconds == 4.0


def test_flows_that_wait_for_each_other_are_an_error() -> None:
    flows = Flows()
    one, other = flows.add(0, 1.0), flows.add(0, 1.0)
    flows.sent.add([one, other], [other, one])
    with pytest.raises(TimingError, match="2 flows never end; the first, number 0, waits for 1"):
        run(flows, routes([0]), 1.0)


def test_unlimited_links_take_no_time() -> None:
    flows = Flows()
    flows.add(1, 3.0, delivered=[flows.add(0, 5.0)])
    assert run(flows, routes([0], [0], delays=[0.25, 0.5]), np.inf).seconds == 0.75


def test_no_flows_take_no_time() -> None:
    assert run(Flows(), routes([0]), 1.0).seconds == 0.0


def test_repeated_calls_give_the_same_result() -> None:
    def once() -> FlowTimes:
        rng = np.random.default_rng(5)
        flows = Flows()
        numbers = flows.extend(rng.integers(0, 6, 60), rng.uniform(1, 9, 60))
        flows.delivered.add(numbers[:40], numbers[20:])
        table = routes(*[[i, (i + 1) % 6] for i in range(6)], delays=[0.1] * 6)
        return run(flows, table, *[1.0 + i for i in range(6)])

    assert once().delivered.tobytes() == once().delivered.tobytes()


def test_resolution_joins_events() -> None:
    flows = Flows()
    sizes = 100 + np.arange(50) / 1000
    flows.extend(np.arange(50), sizes)
    table = routes(*[[i] for i in range(50)])
    exact = run(flows, table, *[1.0] * 50)
    joined = run(flows, table, *[1.0] * 50, resolution=1e-3)
    assert exact.events == 50
    assert joined.events == 1
    assert joined.seconds == pytest.approx(exact.seconds, rel=1e-3)


def test_routes_join_into_one_table() -> None:
    table, firsts = join_routes(routes([0, 1]), routes([2], [1, 2], delays=[1.0, 2.0]))
    assert firsts == (0, 1)
    assert table.usage.starts.tolist() == [0, 2, 3, 5]
    assert table.usage.links.tolist() == [0, 1, 2, 1, 2]
    assert table.delays.tolist() == [0.0, 1.0, 2.0]
