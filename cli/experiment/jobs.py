"""An experiment's jobs as the agents of either world get them, and what these report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from google.protobuf.json_format import MessageToDict

from cli.experiment.prepare import EPOCH, Prepared, worker_options
from cli.experiment.result import Measured
from collectives.plan import DataType, JobPlan
from host_agent.task import Task
from host_agent.workload import (
    VECTORS,
    Verdict,
    WorkloadSpec,
    call_seconds,
    intervals_from,
    reduce_seconds,
    verdict_from,
)
from protocol import hopsum_pb2 as pb


def plan_of(prepared: Prepared) -> JobPlan:
    """The plan that agents attend for: of a ring, one without trees, that names the workers."""
    if prepared.plan is not None:
        return prepared.plan
    experiment = prepared.experiment
    return JobPlan(
        prepared.job,
        EPOCH,
        prepared.placement.workers,
        (),
        experiment.lanes,
        experiment.window or 1,
    )


def task_of(prepared: Prepared) -> Task:
    """What the job's agents do."""
    experiment = prepared.experiment
    return Task(
        prepared.workload,
        experiment.algorithm.value if experiment.algorithm.among_hosts else None,
        worker_options(prepared),
        trees=prepared.trees,
        form=experiment.form,
        coordination=prepared.coordination,
        vectors=None if prepared.vectors is None else prepared.vectors.plan.job,
    )


def vectors_task(prepared: Prepared, workers: int) -> Task:
    """What the agents of the job of bit vectors do."""
    workload = WorkloadSpec(VECTORS, workers, 0, 0, DataType.INT32, 0)
    return Task(workload, options=worker_options(prepared))


def measured(
    reports: Sequence[pb.Report],
    links: Mapping[tuple[str, str], int],
    switches: Mapping[str, Mapping[str, int]],
) -> Measured:
    """What a run gave, from its workers' reports."""
    verdict = Verdict()
    for report in reports:
        verdict.merge(verdict_from(report.verdict))
    intervals = [intervals_from(report.intervals) for report in reports]
    return Measured(
        seconds=reduce_seconds(intervals),
        links=links,
        switches=switches,
        retransmissions=sum(report.retransmissions for report in reports),
        verdict=verdict,
        outcome=MessageToDict(reports[0].outcome, preserving_proto_field_name=True),
        calls=call_seconds(intervals),
    )
