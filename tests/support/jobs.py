"""Jobs as the manager takes them, from what their planner is asked."""

from __future__ import annotations

from collectives.choices import DEFAULT_PLANNER
from controller.jobs.job import Job
from controller.jobs.job_spec import JobSpec
from controller.jobs.job_state import JobState
from planning.model.request import PlanRequest
from protocol import hopsum_pb2 as pb

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
