"""Predictions against closed forms, and against packets followed one by one."""

from __future__ import annotations

import heapq
from collections import defaultdict
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopsum.collectives.plan import DataType, JobPlan, Results
from hopsum.network.loaders import load_network
from hopsum.network.model import Network
from hopsum.planning.model.placement import place
from hopsum.planning.model.request import PlanRequest, SwitchRole
from hopsum.planning.registry import plan_job
from hopsum.protocol.wire import LANE_BYTES, frame_bytes
from hopsum.timing.estimate import estimate
from hopsum.timing.work import PlanWork
from tests.support.search import examples


def planned(network: Network, servers: int = 1, **fields: object) -> JobPlan:
    placement = place(network, None, servers)
    request = PlanRequest(1, 1, placement.workers, placement.servers)
    return plan_job(network, replace(request, **fields))  # type: ignore[arg-type]


def packets_one_by_one(
    network: Network, plan: JobPlan, fragments: int, prologues: int
) -> tuple[dict[tuple[str, str], int], float]:
    """Follow every packet of one tensor on one tree by its stack: bytes on links, and the time.

    `prologues`: how many of the fragments are.
    """
    tree = plan.trees[0]
    links: dict[tuple[str, str], int] = defaultdict(int)
    free: dict[tuple[str, str], float] = defaultdict(float)
    events: list[tuple[float, int, str, tuple[object, ...]]] = []
    counter = iter(range(10**9))

    def send(now: float, u: str, v: str, hops: int, packet: tuple[object, ...]) -> None:
        link, f = network.link(u, v), packet[2]
        assert isinstance(f, int)
        size = frame_bytes(0 if f < prologues else plan.lanes, hops)
        links[u, v] += size
        spent = size * 8 / link.bandwidth if link.bandwidth else 0.0
        free[u, v] = max(free[u, v], now) + spent
        heapq.heappush(events, (free[u, v] + link.latency, next(counter), v, packet))

    def contribute(now: float, w: int, f: int) -> None:
        send(now, plan.workers[w], tree.parents[plan.workers[w]], len(tree.up[w]), ("up", w, f, 0))

    done: dict[int, set[int]] = defaultdict(set)
    seen: dict[tuple[str, int], set[int]] = defaultdict(set)
    finished = 0.0
    first = min(plan.in_flight, fragments)
    for w in range(len(plan.workers)):
        for f in range(prologues or first):
            contribute(0.0, w, f)
    while events:
        now, _, node, (what, w, f, at) = heapq.heappop(events)
        assert isinstance(w, int)
        assert isinstance(f, int)
        assert isinstance(at, int)
        if what == "up" and node == tree.server:
            seen[node, f].add(tree.up[w][-1].child if not tree.singles else w)
            if len(seen[node, f]) == len(tree.server_children):
                root = network.access_switch(node)
                if plan.results is Results.REPLICATED:
                    send(now, node, root, 0, ("copy", 0, f, 0))
                else:
                    for target in range(len(plan.workers)):
                        send(now, node, root, len(tree.down[target]), ("down", target, f, 0))
        elif what == "up":
            entry = tree.up[w][at]
            if entry.aggregate:
                seen[node, f].add(entry.child)
                if len(seen[node, f]) < entry.fan_in:
                    continue
            peer = network.neighbour(node, entry.port)
            send(now, node, peer, len(tree.up[w]) - at - 1, ("up", w, f, at + 1))
        elif node in plan.workers:
            w = plan.workers.index(node)
            done[w].add(f)
            finished = max(finished, now)
            if f < prologues:
                if len(done[w]) == prologues:
                    for g in range(prologues, min(prologues + plan.in_flight, fragments)):
                        contribute(now, w, g)
            elif f + plan.in_flight < fragments:
                contribute(now, w, f + plan.in_flight)
        elif what == "down":
            entry = tree.down[w][at]
            peer = network.neighbour(node, entry.port)
            send(now, node, peer, len(tree.down[w]) - at - 1, ("down", w, f, at + 1))
        else:
            for port in tree.parts[node].ports_down:
                send(now, node, network.neighbour(node, port), 0, ("copy", 0, f, 0))
    assert all(len(done[w]) == fragments for w in range(len(plan.workers)))
    return dict(links), finished


@pytest.mark.slow
@settings(max_examples=examples(20, of=60))
@given(
    spec=st.sampled_from(["star:1", "star:3", "line:3x1", "leaf-spine:2x2", "fat-tree:2"]),
    algorithm=st.sampled_from(SwitchRole),
    results=st.sampled_from(Results),
    window=st.sampled_from([1, 4, 16, 64]),
    lanes=st.sampled_from([32, 256]),
    elements=st.integers(0, 5000),
    data_type=st.sampled_from(DataType),
    latency=st.sampled_from(["0", "20us", "2ms"]),
)
def test_against_packets_followed_one_by_one(
    spec: str,
    algorithm: SwitchRole,
    results: Results,
    window: int,
    lanes: int,
    elements: int,
    data_type: DataType,
    latency: str,
) -> None:
    network = load_network(spec, link_rate="10M", latency=latency)
    plan = planned(network, algorithm=algorithm, results=results, window=window, lanes=lanes)
    prediction = estimate(network, PlanWork(plan, [(elements, data_type)]))
    fragments = -(-elements * data_type.bits // (32 * lanes))
    prologues = 0 if data_type in (DataType.INT32, DataType.INT8) else min(1, fragments)
    if data_type in (DataType.FLOAT16, DataType.BFLOAT16):
        prologues = -(-min(fragments, plan.in_flight) // 4)
    links, seconds = packets_one_by_one(network, plan, fragments + prologues, prologues)
    assert prediction.links == links
    assert prediction.seconds == pytest.approx(seconds, rel=0.08)


def test_one_fragment_in_closed_form() -> None:
    network = load_network("star:4", link_rate="1M", latency="1ms")
    plan = planned(network, lanes=32)
    prediction = estimate(network, PlanWork(plan, [(32, DataType.INT32)]))
    up = [frame_bytes(32, 2), frame_bytes(32, 1)]
    down = frame_bytes(32, 0)
    assert prediction.links == {
        **{(f"h{i}", "s1"): up[0] for i in range(1, 5)},
        **{("s1", f"h{i}"): down for i in range(1, 5)},
        ("s1", "ps"): up[1],
        ("ps", "s1"): down,
    }
    assert prediction.seconds == pytest.approx(8e-6 * (sum(up) + 2 * down) + 4e-3)


def test_a_float_tensor_costs_one_packet_without_lanes_more() -> None:
    network = load_network("star:2")
    plan = planned(network)
    ints = estimate(network, PlanWork(plan, [(2560, DataType.INT32)])).links
    floats = estimate(network, PlanWork(plan, [(2560, DataType.FLOAT32)])).links
    bare = LANE_BYTES * plan.lanes
    assert {link: size * 11 // 10 - bare for link, size in ints.items()} == floats


@pytest.mark.parametrize(
    ("data_type", "wire_bits", "per_lane"),
    [
        (DataType.FLOAT32, 16, 2),
        (DataType.BFLOAT16, 0, 2),
        (DataType.FLOAT16, 32, 1),
        (DataType.INT8, 0, 4),
    ],
)
def test_narrow_values_take_as_many_packets_fewer(
    data_type: DataType, wire_bits: int, per_lane: int
) -> None:
    network = load_network("star:2")
    plan = planned(network)
    elements = 100 * plan.lanes
    work = PlanWork(plan, [(elements, data_type)], wire_bits=wire_bits)
    words = estimate(network, PlanWork(plan, [(elements // per_lane, DataType.INT32)])).links
    fragment = {link: size * per_lane // 100 for link, size in words.items()}
    bare = LANE_BYTES * plan.lanes
    prologues = 0
    if data_type is not DataType.INT8:
        prologues = -(-50 // 4) if per_lane == 2 else 1
    assert estimate(network, work).links == {
        link: size + prologues * (fragment[link] - bare) for link, size in words.items()
    }


def test_the_prologue_of_a_tensor_with_check_lanes_has_lanes() -> None:
    network = load_network("star:2")
    plan = replace(planned(network), integrity=True)
    elements = 10 * plan.values
    ints = estimate(network, PlanWork(plan, [(elements, DataType.INT32)])).links
    floats = estimate(network, PlanWork(plan, [(elements, DataType.FLOAT32)])).links
    assert {link: size * 11 // 10 for link, size in ints.items()} == floats


def test_rounds_and_tensors_add_up() -> None:
    network = load_network("fat-tree:4", link_rate="100M")
    plan = planned(network)
    one = estimate(network, PlanWork(plan, [(1000, DataType.FLOAT32)]))
    two = estimate(network, PlanWork(plan, [(1000, DataType.FLOAT32), (1000, DataType.FLOAT32)], 3))
    assert two.links == {link: 6 * size for link, size in one.links.items()}
    assert two.seconds == pytest.approx(3 * two.seconds_a_round)
    assert one.seconds < two.seconds_a_round <= 2 * one.seconds + 1e-9


def test_a_long_tensor_runs_at_the_rate_of_the_links() -> None:
    network = load_network("fat-tree:4", link_rate="100M")
    plan = planned(network, window=256)
    prediction = estimate(network, PlanWork(plan, [(10_000_000, DataType.INT32)]))
    link, size = prediction.hottest
    assert link[0].startswith("h")
    assert prediction.seconds == pytest.approx(8 * size / 1e8, rel=0.01)


def test_a_small_window_limits_the_rate() -> None:
    network = load_network("star:2", link_rate="1G", latency="1ms")
    plan = planned(network, window=4)
    prediction = estimate(network, PlanWork(plan, [(256 * 400, DataType.INT32)]))
    assert prediction.seconds == pytest.approx(400 / plan.in_flight * 4e-3, rel=0.02)


def test_skipping_ahead_changes_nothing() -> None:
    network = load_network("leaf-spine:2x2", link_rate="10M", latency="50us")
    plan = planned(network, window=16, lanes=32, algorithm=SwitchRole.SERVER)
    fragments = 403
    links, seconds = packets_one_by_one(network, plan, fragments, prologues=0)
    prediction = estimate(network, PlanWork(plan, [(fragments * 32, DataType.INT32)]))
    assert prediction.links == links
    assert prediction.seconds == pytest.approx(seconds, rel=0.01)


def test_two_trees_share_the_data_and_the_links() -> None:
    network = load_network("star:4", servers=2, link_rate="100M")
    plan = planned(network, servers=2)
    prediction = estimate(network, PlanWork(plan, [(256 * 1000, DataType.INT32)]))
    assert prediction.links["s1", "ps1"] == 500 * frame_bytes(256, 1)
    assert prediction.links["h1", "s1"] == 1000 * frame_bytes(256, 2)
    star = load_network("star:4", link_rate="100M")
    whole = estimate(star, PlanWork(planned(star), [(256000, DataType.INT32)]))
    assert prediction.seconds == pytest.approx(whole.seconds, rel=0.05)


def test_unlimited_links_take_only_latency() -> None:
    network = load_network("star:2", latency="1ms")
    prediction = estimate(network, PlanWork(planned(network), [(256, DataType.INT32)]))
    assert prediction.seconds == pytest.approx(4e-3)


def test_nothing_to_send() -> None:
    network = load_network("star:2", link_rate="1M")
    prediction = estimate(network, PlanWork(planned(network), [(0, DataType.FLOAT32)]))
    assert (prediction.links, prediction.seconds) == ({}, 0)
