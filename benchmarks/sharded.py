"""FSDP's collectives at flow level: a concurrent all-gather and reduce-scatter."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.report import Rows
from hopsum.collectives.algorithms.ring import ring_all_reduce
from hopsum.collectives.choices import Collective, DataType
from hopsum.collectives.plan import JobPlan
from hopsum.collectives.schedule import Schedule
from hopsum.collectives.task_messages import workload_message
from hopsum.collectives.workload import PROCESS, WorkloadSpec
from hopsum.controller.jobs.job_request import make_request
from hopsum.controller.jobs.job_spec import JobSpec
from hopsum.experiment.description import Experiment
from hopsum.experiment.prepare import PreparedExperiment, prepare
from hopsum.planning.model.placement import Placement
from hopsum.planning.registry import plan_job
from hopsum.protocol import hopsum_pb2 as pb
from hopsum.protocol.wire import LANE_BYTES
from hopsum.timing.routes import LinkArrays
from hopsum.timing.scenario import Scenario
from hopsum.timing.schedules import add_schedule, agents_transport
from hopsum.timing.trees import add_plan
from tests.support.halves import all_gather_of

ELEMENTS = 252_000
"""Bytes of the tensor that is gathered and scattered (float32)."""
LINK_RATE = 50e6
Add = Callable[[Scenario], None]


def measure(workers: int) -> Rows:
    """Return, for each way on star:N, seconds and bytes on a worker's link in each direction.

    Bytes are in units of the tensor.
    """
    prepared = prepare(
        Experiment(
            topology=f"star:{workers}", workers=workers, elements=ELEMENTS, link_rate=LINK_RATE
        )
    )
    assert prepared.plan is not None
    reduce = ring_all_reduce(workers, ELEMENTS)
    gather = all_gather_of(reduce)
    over_gloo, with_gather = _ring(prepared, reduce), _ring(prepared, gather)
    switches = _plan(prepared.plan)
    rooted = _rooted_plan(prepared)
    ways: dict[str, list[Add]] = {
        # gloo implements reduce-scatter as an all-reduce of which each rank keeps a part.
        "all over gloo": [with_gather, over_gloo],
        "reduce-scatter in the switches": [with_gather, switches],
        "both as all-reduces in the switches": [switches, switches],
        "both over trees rooted at the ranks": [
            _plan(rooted, Collective.ALL_GATHER),
            _plan(rooted, Collective.REDUCE_SCATTER),
        ],
    }
    return [_row(prepared, way, parts) for way, parts in ways.items()]


def _rooted_plan(prepared: PreparedExperiment) -> JobPlan:
    """Return the plan for the processes of the same workers."""
    workers = prepared.placement.workers
    spec = WorkloadSpec(PROCESS, len(workers), 0, 0, DataType.FLOAT32, 0)
    job = JobSpec("ranks", workers, 0, task=pb.Task(workload=workload_message(spec)))
    placed = Placement(workers, workers)
    return plan_job(
        prepared.network, make_request(job, 1, placed, prepared.network, prepared.settings)
    )


def _ring(prepared: PreparedExperiment, schedule: Schedule) -> Add:
    def add(scenario: Scenario) -> None:
        transport = agents_transport(schedule, block=None, overhead=0.0)
        add_schedule(scenario, schedule, prepared.placement.workers, transport)

    return add


def _plan(plan: JobPlan, collective: Collective = Collective.ALL_REDUCE) -> Add:
    def add(scenario: Scenario) -> None:
        add_plan(scenario, plan, ELEMENTS, DataType.FLOAT32, collective)

    return add


def _row(prepared: PreparedExperiment, way: str, parts: list[Add]) -> dict[str, object]:
    scenario = Scenario(LinkArrays(prepared.network))
    for add in parts:
        add(scenario)
    timing = scenario.run()
    worker = prepared.placement.workers[0]
    load = max(size for link, size in timing.loads.items() if worker in link)
    return {
        "ranks": len(prepared.placement.workers),
        "link_rate": LINK_RATE,
        "way": way,
        "seconds": round(timing.seconds, 3),
        "each_way": round(load / (ELEMENTS * LANE_BYTES), 2),
    }
