"""FSDP's collectives at flow level: a concurrent all-gather and reduce-scatter."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.report import Rows
from cli.experiment.description import Experiment
from cli.experiment.prepare import Prepared, prepare
from collectives.algorithms.ring import ring_all_gather, ring_all_reduce
from collectives.plan import DataType
from collectives.schedule import Schedule
from protocol.wire import LANE_BYTES, LANES_DEFAULT, frame_bytes
from timing.routes import LinkArrays
from timing.scenario import Scenario
from timing.schedules import add_schedule, agents_transport
from timing.trees import add_plan

ELEMENTS = 252_000
"""Bytes of the tensor that is gathered and scattered (float32)."""
LINK_RATE = 50e6
Add = Callable[[Scenario], None]


def measure(workers: int) -> Rows:
    """Return, for each way on star:N, seconds and bytes on a worker's link in each direction.

    Bytes are in units of the tensor. What is not built is computed: both over trees rooted at the
    ranks, with a frame without lanes the other way for each fragment (docs/decisions/0013).
    """
    prepared = prepare(
        Experiment(
            topology=f"star:{workers}", workers=workers, elements=ELEMENTS, link_rate=LINK_RATE
        )
    )
    gather, reduce = ring_all_gather(workers, ELEMENTS), ring_all_reduce(workers, ELEMENTS)
    over_gloo, with_gather = _ring(prepared, reduce), _ring(prepared, gather)
    switches = _plan(prepared)
    ways: dict[str, list[Add]] = {
        # gloo implements reduce-scatter as an all-reduce of which each rank keeps a part.
        "all over gloo": [with_gather, over_gloo],
        "reduce-scatter in the switches": [with_gather, switches],
        "both as all-reduces in the switches": [switches, switches],
    }
    rows = [_row(prepared, way, parts) for way, parts in ways.items()]
    frames = sum(frame_bytes(lanes, 1) for lanes in (LANES_DEFAULT, 0))
    load = frames / (LANES_DEFAULT * LANE_BYTES)
    seconds = load * ELEMENTS * LANE_BYTES * 8 / LINK_RATE
    rooted = "both over trees rooted at the ranks (computed)"
    return [*rows, _as_row(workers, rooted, seconds, load)]


def _ring(prepared: Prepared, schedule: Schedule) -> Add:
    def add(scenario: Scenario) -> None:
        transport = agents_transport(schedule, block=None, overhead=0.0)
        add_schedule(scenario, schedule, prepared.placement.workers, transport)

    return add


def _plan(prepared: Prepared) -> Add:
    def add(scenario: Scenario) -> None:
        assert prepared.plan is not None
        add_plan(scenario, prepared.plan, ELEMENTS, DataType.FLOAT32)

    return add


def _row(prepared: Prepared, way: str, parts: list[Add]) -> dict[str, object]:
    scenario = Scenario(LinkArrays(prepared.network))
    for add in parts:
        add(scenario)
    timing = scenario.run()
    worker = prepared.placement.workers[0]
    load = max(size for link, size in timing.loads.items() if worker in link)
    return _as_row(
        len(prepared.placement.workers), way, timing.seconds, load / (ELEMENTS * LANE_BYTES)
    )


def _as_row(workers: int, way: str, seconds: float, load: float) -> dict[str, object]:
    return {
        "ranks": workers,
        "link_rate": LINK_RATE,
        "way": way,
        "seconds": round(seconds, 3),
        "each_way": round(load, 2),
    }
