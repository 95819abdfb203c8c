"""Jobs as the manager takes them, and small networks with a plan."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from hopsum.collectives.choices import DEFAULT_PLANNER, Coordination, DataType
from hopsum.collectives.plan import JobPlan
from hopsum.collectives.task_messages import workload_message
from hopsum.collectives.workload import WorkloadSpec
from hopsum.controller.jobs.job import Job
from hopsum.controller.jobs.job_spec import JobSpec
from hopsum.controller.jobs.job_state import JobState
from hopsum.network.loaders import load_network
from hopsum.network.model import Network
from hopsum.planning.model.placement import place
from hopsum.planning.model.request import PlanRequest
from hopsum.planning.registry import plan_job
from hopsum.protocol import hopsum_pb2 as pb
from tests.support.machine import PATIENCE

GOING = frozenset(state for state in JobState if not state.over)
"""The states of jobs of which more is to come."""


def job_of(
    request: PlanRequest, task: pb.Task | None = None, planner: str = DEFAULT_PLANNER
) -> Job:
    """Return a job that asks for just this, submitted at the beginning of 1970."""
    spec = JobSpec(
        f"job{request.job}",
        request.workers,
        request.servers,
        planner=planner,
        task=task or pb.Task(),
    )
    return Job(request.job, spec, request, 0.0)


def training_with_vectors(spec: JobSpec) -> JobSpec:
    """Return a job as a training whose workers' bit vectors the switches combine."""
    workload = WorkloadSpec("digits", 2, 0, 1, DataType.FLOAT32, 1, coordinate=True)
    task = pb.Task(workload=workload_message(workload))
    return replace(spec, task=task, coordination=Coordination.SWITCHES)


def star_request(hosts: int = 2, job: int = 1) -> tuple[Network, PlanRequest]:
    network = load_network(f"star:{hosts}")
    placement = place(network)
    return network, PlanRequest(job, 1, placement.workers, placement.servers)


def star(hosts: int = 2, job: int = 1) -> tuple[Network, JobPlan]:
    network, request = star_request(hosts, job)
    return network, plan_job(network, request)


async def reached(job: Job, state: JobState) -> None:
    """Return when a job is in a state: planning is done in a thread."""
    async with asyncio.timeout(PATIENCE):
        while job.state is not state:
            await asyncio.sleep(0.01)
