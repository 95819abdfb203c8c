"""A job of the cluster: its specification, resources and life cycle."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from hopsum.collectives.plan import JobPlan
from hopsum.collectives.task_messages import workload_from
from hopsum.controller.jobs.job_spec import JobSpec
from hopsum.controller.jobs.job_state import NEXT, JobState
from hopsum.controller.jobs.restarting_counter import RestartingCounter
from hopsum.controller.telemetry.health import Element
from hopsum.planning.model.request import PlanRequest
from hopsum.protocol import hopsum_pb2 as pb

MOST_COUNT = (1 << 64) - 1
"""Maximum of a message's field; agents may report anything."""


@dataclass(slots=True)
class Job:
    """A job. Dates are seconds since 1970.

    `request`: what the planner was asked last, with the hosts that were chosen. `plan`: its answer,
    None before the first. `move` changes the state; only `JobTable` calls it.
    """

    number: int
    spec: JobSpec
    request: PlanRequest
    submitted: float
    state: JobState = JobState.QUEUED
    started: float = 0.0
    """Time when all its agents were ready; 0: not yet."""
    ended: float = 0.0
    """Time when its outcome was known; 0: not yet."""
    reason: str = ""
    """Why it is queued, or ended as it did."""
    outcome: JobState | None = None
    """Its outcome, also while it is draining."""
    round: int = 0
    elements: int = 0
    """Elements of its largest tensor that agents have reported."""
    plan: JobPlan | None = None
    bypassed: frozenset[str] = frozenset()
    """Switches where it was preempted (`sharing`)."""
    avoided: frozenset[Element] = frozenset()
    """Elements that were unreachable when its plan was made."""
    reports: Mapping[str, pb.Report] = field(default_factory=dict)
    sent: dict[str, RestartingCounter] = field(default_factory=dict)
    """Bytes, by host."""
    resent: dict[str, RestartingCounter] = field(default_factory=dict)
    """Fragments and segments, by host."""
    summed: dict[str, RestartingCounter] = field(default_factory=dict)
    """Bytes of tensors, by host."""

    @property
    def epoch(self) -> int:
        """Epoch of its plan, or of its first one."""
        return self.request.epoch

    @property
    def active(self) -> bool:
        """Whether agents should attend it."""
        return self.state in (JobState.WAITING, JobState.RUNNING, JobState.CHANGING)

    @property
    def servers(self) -> tuple[str, ...]:
        """Its servers, which may be workers, and relays."""
        if self.plan is not None:
            return tuple(dict.fromkeys((*self.plan.servers, *self.plan.auxiliary)))
        return () if self.spec.among_hosts else tuple(dict.fromkeys(self.request.servers))

    @property
    def tensors(self) -> int:
        """Total number of tensors that it sums; 0 if unknown."""
        task = self.spec.task
        return workload_from(task.workload).tensors if task.HasField("workload") else 0

    @property
    def iteration_tensors(self) -> int:
        """Number of tensors that an iteration sums; 1 where processes decide."""
        task = self.spec.task
        known = task.HasField("workload") and len(workload_from(task.workload).step_sizes())
        return known or 1

    @property
    def sent_bytes(self) -> int:
        """Bytes that its hosts have sent: of frames, for TCP schedules of payload. Never falls."""
        final = {host: report.sent_bytes for host, report in self.reports.items()}
        return _total(self.sent, final)

    @property
    def retransmissions(self) -> int:
        """Fragments and segments that its hosts have retransmitted. Never falls."""
        final = {host: report.retransmissions for host, report in self.reports.items()}
        return _total(self.resent, final)

    @property
    def summed_bytes(self) -> int:
        """Bytes of the tensors whose sums one of its hosts has. Never falls."""
        most = max((counter.total() for counter in self.summed.values()), default=0)
        return min(MOST_COUNT, most)

    def take_features(self, host: str, features: pb.JobFeatures) -> None:
        """Process a report of a host's agent on the job."""
        self.elements = max(self.elements, features.elements)
        self.sent.setdefault(host, RestartingCounter()).take(features.sent_bytes)
        self.resent.setdefault(host, RestartingCounter()).take(features.retransmissions)
        self.summed.setdefault(host, RestartingCounter()).take(features.summed_bytes)

    @property
    def hosts(self) -> tuple[str, ...]:
        """All its hosts."""
        return tuple(dict.fromkeys((*self.request.workers, *self.servers)))


def _total(counters: Mapping[str, RestartingCounter], final: Mapping[str, int]) -> int:
    """Return the sum over hosts, from what each counted and reported at its end."""
    none = RestartingCounter()
    hosts = {*counters, *final}
    return min(MOST_COUNT, sum(counters.get(h, none).total(final.get(h, 0)) for h in hosts))


def move(
    job: Job, to: JobState, date: float, reason: str = "", outcome: JobState | None = None
) -> None:
    """Move a job to its next state (the only function that does). ValueError for an invalid
    transition.

    `outcome`: for DRAINING, and only there, what follows then.
    """
    drained = job.state is JobState.DRAINING
    if to not in NEXT[job.state] or (drained and to is not job.outcome):
        raise ValueError(f"job {job.number} is {job.state} ({job.outcome}): {to} cannot follow")
    if (outcome in NEXT[JobState.DRAINING]) != (to is JobState.DRAINING):
        raise ValueError(f"job {job.number}: outcome {outcome} with state {to}")
    job.state = to
    if drained:
        return
    job.reason = reason
    if to is JobState.RUNNING and not job.started:
        job.started = date
    job.outcome = to if to.over else outcome
    if job.outcome is not None:
        job.ended, job.bypassed = date, frozenset()
