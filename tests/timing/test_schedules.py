"""Schedules in time: their alpha-beta costs, bytes on links, repetition, connections."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest

from hopsum.collectives.algorithms.halving_doubling import halving_doubling_all_reduce
from hopsum.collectives.algorithms.level_wise import level_wise_all_reduce
from hopsum.collectives.algorithms.ring import ring_all_reduce
from hopsum.collectives.algorithms.rooted import network_tree
from hopsum.collectives.algorithms.trees import (
    double_tree_all_reduce,
    server_all_reduce,
    tree_all_reduce,
)
from hopsum.collectives.choices import Collective
from hopsum.collectives.schedule import Ranges, Schedule, Step, make_step
from hopsum.network.builder import NetworkBuilder
from hopsum.network.loaders import load_network
from hopsum.network.model import Network
from hopsum.network.paths import PlainRoutes
from hopsum.timing.routes import TCP, LinkArrays
from hopsum.timing.scenario import COARSE, Scenario, Timing
from hopsum.timing.schedules import Transport, add_schedule, agents_transport
from hopsum.timing.tcp_segments import SEGMENT_BYTES
from hopsum.timing.work import Background
from tests.oracles import costs
from tests.support.framing import BARE

RATE, LATENCY = 8e9, 5e-6
MODEL = costs.AlphaBeta(2 * LATENCY, 8 / RATE)
BLOCK = 1024


def star(hosts: int) -> Network:
    return load_network(f"star:{hosts}", link_rate=RATE, latency=LATENCY)


def workers(count: int) -> list[str]:
    return [f"h{i + 1}" for i in range(count)]


def timed(
    network: Network,
    schedule: Schedule,
    transport: Transport | None = None,
    background: tuple[Background, ...] = (),
    hosts: list[str] | None = None,
) -> Timing:
    scenario = Scenario(LinkArrays(network))
    names = hosts or list(schedule.names) or workers(schedule.ranks)
    add_schedule(scenario, schedule, names, transport or Transport(framing=BARE))
    for traffic in background:
        scenario.add_background(traffic, BARE)
    return scenario.run()


def chain(elements: int, block: int, *steps: Step, nodes: int = 3) -> Schedule:
    """Steps that need not be any collective."""
    none = Ranges.of([])
    return Schedule("test", Collective.BROADCAST, nodes, elements, steps, none, none, block=block)


@pytest.mark.parametrize("ranks", [2, 8, 15, 31, 64])
@pytest.mark.parametrize("elements", [2_000, 250_000, 25_000_000])
def test_schedules_take_their_alpha_beta_cost(ranks: int, elements: int) -> None:
    network, size, block = star(ranks), 4.0 * elements, 4.0 * BLOCK
    names = workers(ranks)
    cases: dict[str, tuple[Schedule, float]] = {
        "ring": (ring_all_reduce(ranks, elements), costs.ring(MODEL, ranks, size)),
        "server": (
            server_all_reduce(names, elements, ["ps"], BLOCK),
            costs.server(MODEL, ranks, size, block),
        ),
        "double-tree": (
            double_tree_all_reduce(names, elements, BLOCK),
            costs.double_tree(MODEL, ranks, size, block),
        ),
    }
    if ranks & (ranks - 1) == 0:
        cases["halving-doubling"] = (
            halving_doubling_all_reduce(ranks, elements),
            costs.halving_doubling(MODEL, ranks, size),
        )
    if ranks & (ranks + 1) == 0:
        height = ranks.bit_length() - 1
        cases["tree"] = (
            tree_all_reduce(names, elements, block=BLOCK),
            costs.tree(MODEL, height, 2, size, block),
        )
    ratios = {name: timed(network, s).seconds / cost for name, (s, cost) in cases.items()}
    assert ratios == pytest.approx(dict.fromkeys(cases, 1.0), rel=0.05)


def test_levels_take_their_alpha_beta_cost() -> None:
    # Uplinks as fast as all hosts below: the exchange between racks is a host's own, of 1/8.
    network = load_network(
        "leaf-spine:4x8x1", link_rate=RATE, uplink_rate=8 * RATE, latency=LATENCY
    )
    names = workers(32)
    schedule = level_wise_all_reduce(network_tree(network, names), names, 1_000_000)
    between = costs.AlphaBeta(4 * LATENCY, MODEL.beta)
    expected = costs.level_wise([(MODEL, 8), (between, 4)], 4e6)
    assert timed(network, schedule).seconds == pytest.approx(expected, rel=0.05)


@pytest.mark.parametrize("spec", ["star:6", "leaf-spine:3x2", "fat-tree:4", "torus:2x3"])
def test_bytes_on_links_are_those_of_the_transfers(spec: str) -> None:
    network = load_network(spec, link_rate=RATE)
    names, elements = workers(6), 10_007
    routes = PlainRoutes(network)
    for schedule in (
        ring_all_reduce(6, elements),
        halving_doubling_all_reduce(6, elements),
        double_tree_all_reduce(names, elements, BLOCK),
        server_all_reduce(names, elements, names),
    ):
        expected: dict[tuple[str, str], int] = defaultdict(int)
        for transfer in schedule.transfers():
            ends = names[transfer.source], names[transfer.target]
            for link in pairwise(routes.path(*ends)):
                expected[link] += 4 * (transfer.stop - transfer.start)
        assert timed(network, schedule).loads == dict(expected)


@pytest.mark.parametrize("block", [0, 300])
@pytest.mark.parametrize("spec", ["star:8", "leaf-spine:4x2", "fat-tree:4"])
@pytest.mark.parametrize("latency", [1e-6, 1e-3])
def test_merged_repetitions_take_the_time_of_those_written_out(
    block: int, spec: str, latency: float
) -> None:
    network = load_network(spec, link_rate=1e8, latency=latency)
    schedule = ring_all_reduce(8, 50_000)
    whole = timed(network, schedule, Transport(block=block))
    merged = timed(network, schedule, Transport(block=block, written_out=0))
    assert merged.seconds == pytest.approx(whole.seconds, rel=0.01)
    assert merged.loads == pytest.approx(whole.loads)
    assert merged.events < whole.events


@pytest.mark.parametrize("block", [0, 300])
def test_merged_repetitions_wait_for_the_slowest(block: int) -> None:
    # Transfers between the switches share a slow link; those below one switch wait for them.
    network = load_network("line:2x4", link_rate=1e8, uplink_rate=1e7, latency=1e-5)
    schedule = ring_all_reduce(8, 50_000)
    whole = timed(network, schedule, Transport(block=block))
    merged = timed(network, schedule, Transport(block=block, written_out=0))
    assert merged.seconds == pytest.approx(whole.seconds, rel=0.02)
    sending = 14 / 8 * 2e5 * 8 / 1e7
    assert merged.seconds == pytest.approx(sending, rel=0.1)
    # No rank is done before the others: all end in the last of 14 turns.
    assert merged.times.delivered[-8:].min() > sending * 0.8


def test_blocks_are_passed_on_as_they_come() -> None:
    network = star(3)
    steps = (
        make_step([0], [1], 0, 100_000, combine=False),
        make_step([1], [2], 0, 100_000, combine=False, after=[0]),
    )
    size = 4e5
    whole = timed(network, chain(100_000, 0, *steps)).seconds
    blocks = timed(network, chain(100_000, 1000, *steps)).seconds
    assert whole == pytest.approx(2 * MODEL.message(size))
    assert blocks == pytest.approx(2 * MODEL.alpha + (size + 4000) * MODEL.beta)


def test_the_last_block_is_passed_on_when_it_is_there() -> None:
    # A slow link, then a fast one that has caught up: after the last block only its own time.
    builder = NetworkBuilder("uneven", 80e6, 0.01)
    switch = builder.add_switch("s1")
    for rate in (8e6, 80e6, 80e6):
        builder.link(builder.add_host(), switch, rate)
    steps = (
        make_step([0], [1], 0, 100_000, combine=False),
        make_step([1], [2], 0, 100_000, combine=False, after=[0]),
    )
    seconds = timed(builder.build(), chain(100_000, 1000, *steps)).seconds
    assert seconds == pytest.approx(4e5 / 1e6 + 4 * 0.01 + 4000 / 1e7)


def test_a_step_waits_only_for_what_it_sends() -> None:
    network = star(3)
    slow = make_step([0], [1], 0, 90_000, combine=False)
    other = make_step([1], [2], 90_000, 100_000, combine=False, after=[0])
    needs = make_step([1], [2], 80_000, 100_000, combine=False, after=[0])
    alone = MODEL.message(4.0 * 90_000)
    assert timed(network, chain(100_000, 0, slow, other)).seconds == pytest.approx(alone)
    assert timed(network, chain(100_000, 0, slow, needs)).seconds == pytest.approx(
        alone + MODEL.message(4.0 * 20_000)
    )


def test_a_range_that_arrives_late_is_waited_for_inside_a_transfer() -> None:
    network = load_network("star:3", link_rate=RATE, latency=0.0)
    first = make_step([0], [1], 0, 100_000, combine=False)
    second = make_step([1], [2], 50_000, 60_000, combine=False, after=[0])
    times = timed(network, chain(100_000, 100, first, second)).times
    # The second's last block has arrived at the relay when six tenths have.
    assert times.sent[5] == pytest.approx(6e4 * 4 * MODEL.beta, rel=0.02)


def test_transfers_of_one_connection_follow_each_other_and_those_of_two_share() -> None:
    network = star(2)
    rows = [make_step([0], [1], i * 1000, (i + 1) * 1000, combine=False) for i in range(3)]
    apart = timed(network, chain(3000, 0, *rows, nodes=2)).times
    assert apart.sent.tolist() == pytest.approx([3 * 4000 * MODEL.beta] * 3)
    joined = [
        make_step([0], [1], i * 1000, (i + 1) * 1000, combine=False, after=range(i))
        for i in range(3)
    ]
    together = timed(network, chain(3000, 0, *joined, nodes=2)).times
    assert together.sent.tolist() == pytest.approx([4000 * MODEL.beta * i for i in (1, 2, 3)])


def test_background_takes_its_share() -> None:
    network = star(2)
    step = make_step([0], [1], 0, 1_000_000, combine=False)
    schedule = chain(1_000_000, 0, step, nodes=2)
    alone = timed(network, schedule).seconds - MODEL.alpha
    shared = timed(network, schedule, background=(Background("ps", "h2"),))
    assert shared.seconds - MODEL.alpha == pytest.approx(2 * alone)
    assert shared.loads == timed(network, schedule).loads
    limited = timed(network, schedule, background=(Background("ps", "h2", rate=RATE / 4),))
    assert limited.seconds - MODEL.alpha == pytest.approx(alone * 4 / 3)
    half = Background("ps", "h2", size=2e6)
    assert timed(network, schedule, background=(half,)).seconds - MODEL.alpha == pytest.approx(
        1.5 * alone
    )


def test_overhead_and_rate_of_a_transfer() -> None:
    step = make_step([0], [1], 0, 1000, combine=False)
    transport = Transport(framing=BARE, overhead=0.5, rate=1000.0)
    seconds = timed(star(2), chain(1000, 0, step, nodes=2), transport).seconds
    assert seconds == pytest.approx(4.0 + 0.5 + MODEL.alpha)


def test_one_rank_takes_no_time() -> None:
    assert timed(star(1), ring_all_reduce(1, 100)).seconds == 0.0


@pytest.mark.parametrize(
    "make",
    [ring_all_reduce, halving_doubling_all_reduce],
)
def test_repeated_calls_give_the_same_result(make: Callable[[int, int], Schedule]) -> None:
    network = load_network("fat-tree:4", link_rate=RATE, latency=LATENCY)
    one, other = (timed(network, make(15, 12_345)) for _ in range(2))
    assert one.times.delivered.tobytes() == other.times.delivered.tobytes()


def test_a_thousand_ranks() -> None:
    network = load_network("leaf-spine:32x32", link_rate=100e9, latency=1e-6)
    timing = timed(network, ring_all_reduce(1024, 250_000_000))
    bottom = 2 * 1023 / 1024 * 1e9 * 8 / 100e9
    assert bottom < timing.seconds < 1.1 * bottom
    assert np.isfinite(timing.times.delivered).all()
    assert max(timing.loads.values()) == pytest.approx(2 * 1023 / 1024 * 1e9, rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("spec", "ranks"), [("fat-tree:4", 14), ("leaf-spine:4x8", 25), ("fat-tree:6", 20)]
)
def test_coarse_events_change_the_time_by_less_than_a_hundredth(spec: str, ranks: int) -> None:
    network = load_network(spec, link_rate=RATE, latency=LATENCY)
    names = workers(ranks)
    for schedule in (
        ring_all_reduce(ranks, 1_000_000),
        halving_doubling_all_reduce(ranks, 1_000_000),
        double_tree_all_reduce(names, 1_000_000, BLOCK),
        level_wise_all_reduce(network_tree(network, names), names, 1_000_000),
    ):
        scenario = Scenario(LinkArrays(network))
        add_schedule(scenario, schedule, names)
        exact, coarse = scenario.run(0.0), scenario.run(COARSE)
        assert coarse.seconds == pytest.approx(exact.seconds, rel=0.01)
        assert coarse.events < exact.events


def test_agents_pass_on_segments_unless_there_are_too_many_transfers() -> None:
    small, large = ring_all_reduce(8, 8000), halving_doubling_all_reduce(512, 8000)
    assert agents_transport(small).block == SEGMENT_BYTES // 4
    assert agents_transport(small, 8, overhead=0.5) == Transport(8, TCP, SEGMENT_BYTES // 8, 0.5)
    assert agents_transport(small, block=0).block == 0
    assert agents_transport(large).block is None
    assert agents_transport(large, block=7).block == 7
