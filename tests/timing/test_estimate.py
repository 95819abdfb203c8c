from __future__ import annotations

import pytest

from hopsum.collectives.algorithms.catalogue import SCHEDULES, make_schedule
from hopsum.collectives.link_volumes import link_volumes
from hopsum.collectives.plan import DataType
from hopsum.collectives.schedule import ScheduleError
from hopsum.collectives.schedule_checker import check_schedule
from hopsum.network.loaders import load_network
from hopsum.network.paths import PlainRoutes
from hopsum.planning.model.placement import place
from hopsum.planning.model.request import PlanRequest
from hopsum.planning.registry import plan_job
from hopsum.timing.estimate import Fidelity, estimate
from hopsum.timing.flow_simulator import TimingError
from hopsum.timing.tcp_segments import SEGMENT_BYTES, SEGMENT_HEADER_BYTES
from hopsum.timing.work import Background, PlanWork, ScheduleWork

# Of the payload: its headers, and an acknowledgement the other way for every two segments.
RING_OVERHEAD = 1 + 1.5 * SEGMENT_HEADER_BYTES / SEGMENT_BYTES


# The ring column of the byte table for all-reduce, in units of the tensor.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("spec", "workers", "units"),
    [("star:4", 4, 12), ("star:8", 8, 28), ("fat-tree:4", 15, 100.8), ("fat-tree:8", 127, 662.7)],
)
def test_ring_link_bytes(spec: str, workers: int, units: float) -> None:
    network = load_network(spec, link_rate="100M")
    elements = workers * 1000
    ranks = place(network, workers).workers
    prediction = estimate(network, ScheduleWork([make_schedule("ring", network, ranks, elements)]))
    assert prediction.total_bytes / (4 * elements) == pytest.approx(units * RING_OVERHEAD, rel=1e-3)


def test_ring_seconds() -> None:
    network = load_network("star:4", link_rate="8M", latency="1ms")
    schedule = make_schedule("ring", network, place(network).workers, 4000)
    prediction = estimate(network, ScheduleWork([schedule], rounds=2))
    sent = 4000 * RING_OVERHEAD
    # A segment at a time goes round: over two links and, stored, through the switch.
    stored = SEGMENT_BYTES + SEGMENT_HEADER_BYTES
    first = SEGMENT_BYTES * RING_OVERHEAD
    round_trip = 6 * ((first + stored) * 8 / 8e6 + 2e-3)
    assert prediction.seconds_a_round == pytest.approx(round_trip + (sent - first) * 8 / 8e6)
    assert prediction.seconds == pytest.approx(2 * prediction.seconds_a_round)
    assert prediction.links["h1", "s1"] == round(2 * 6 * sent)


@pytest.mark.parametrize("algorithm", SCHEDULES)
@pytest.mark.parametrize("spec", ["star:6", "leaf-spine:3x2", "fat-tree:4"])
def test_every_algorithm_is_proved_and_predicted(algorithm: str, spec: str) -> None:
    network = load_network(spec, link_rate="10M")
    ranks = place(network, 5).workers
    schedule = make_schedule(algorithm, network, ranks, 20_000)
    assert schedule.names == ranks
    check_schedule(schedule)
    prediction = estimate(network, ScheduleWork([schedule]))
    volumes = link_volumes(schedule, PlainRoutes(network).path)
    # Headers on top, and acknowledgements of what goes the other way, by routes of their own.
    overhead = SEGMENT_HEADER_BYTES / SEGMENT_BYTES
    routes = PlainRoutes(network)
    answered = link_volumes(schedule, lambda source, target: routes.path(target, source))
    for (u, v), volume in volumes.items():
        expected = 4 * volume * (1 + overhead) + 2 * answered.get((u, v), 0) * overhead
        assert prediction.links[u, v] == pytest.approx(expected, rel=1e-6, abs=1)
    assert prediction.seconds >= 8 * prediction.hottest[1] / 10e6 * 0.999


def test_impossible_schedules_are_refused() -> None:
    network = load_network("torus:2x2")
    with pytest.raises(ScheduleError, match=r"algorithm 'rings': expected one of ring, halving-"):
        make_schedule("rings", network, list(network.hosts), 4)
    with pytest.raises(ScheduleError, match=r"no ranks"):
        make_schedule("ring", network, [], 4)
    with pytest.raises(ScheduleError, match=r"shares \[\]: expected"):
        make_schedule("multi-tree", network, list(network.hosts), 4)


def test_what_limits_the_work_is_named() -> None:
    network = load_network("leaf-spine:2x4x1", link_rate=1e8, uplink_rate=5e7)
    ranks = place(network, 8).workers
    uplink = estimate(network, ScheduleWork([make_schedule("ring", network, ranks, 500_000)]))
    assert uplink.limit in {("l1", "s1"), ("s1", "l1"), ("l2", "s1"), ("s1", "l2")}
    assert 0.9 < uplink.busy <= 1
    far = load_network("star:4", link_rate=1e9, latency="10ms")
    one = make_schedule("tree", far, place(far, 4).workers, 100)
    assert estimate(far, ScheduleWork([one])).busy < 0.01
    unlimited = load_network("star:4", latency="1ms")
    assert estimate(unlimited, ScheduleWork([one])).limit is None


def test_background_has_no_closed_form() -> None:
    network = load_network("star:4", link_rate=1e8)
    placement = place(network, None, 1)
    plan = plan_job(network, PlanRequest(1, 1, placement.workers, placement.servers))
    work = PlanWork(plan, [(1_000_000, DataType.INT32)])
    crossing = [Background("ps", "h1")]
    with pytest.raises(TimingError, match="no closed form"):
        estimate(network, work, Fidelity.CLOSED_FORM, background=crossing)
    alone = estimate(network, work)
    assert estimate(network, work, background=crossing).seconds > 1.5 * alone.seconds
    flows = estimate(network, work, Fidelity.FLOWS)
    assert flows.links == alone.links
    assert flows.seconds == pytest.approx(alone.seconds, rel=0.02)
