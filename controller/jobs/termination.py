"""Termination: how jobs end, by their agents, their owners or a failure."""

from __future__ import annotations

import logging

from hopsum.controller.jobs import events
from hopsum.controller.jobs.admission import Admission
from hopsum.controller.jobs.engine_state import EngineState
from hopsum.controller.jobs.job import Job
from hopsum.controller.jobs.job_request import vectors_name
from hopsum.controller.jobs.job_state import JobState
from hopsum.controller.jobs.procedures import Procedure
from hopsum.protocol import hopsum_pb2 as pb

LOGGER = logging.getLogger("hopsum.engine")


class Termination:
    """Ends jobs, and lets their agents and hosts know."""

    def __init__(self, state: EngineState, admission: Admission) -> None:
        self._state = state
        self._admission = admission

    def cancel(self, job: Job, reason: str) -> Procedure[None]:
        """Cancel an active job; a finished one stays as it ended.

        Its agents are notified at once; unreachable switches lose its rules when they are back.
        """
        if job.outcome is None and self._dismiss(job, JobState.CANCELLED, reason):
            yield from self._admission.clear(job)

    def end(self, job: Job, outcome: JobState, reason: str = "") -> None:
        """Release a job's agents, rules and slots, then start queued jobs that fit."""
        if self._dismiss(job, outcome, reason):
            self._state.procedures.start(self._admission.clear(job))

    def _dismiss(self, job: Job, outcome: JobState, reason: str) -> bool:
        """End a job and release its agents; return whether its rules must be removed now."""
        jobs, active = self._state.jobs, self._state.plans.active.get(job.number)
        if active is not None:
            active.progress, active.ending = None, True
        installed = job.active or job.outcome is not None
        if job.state is JobState.QUEUED:
            jobs.move(job, outcome, reason)
        elif job.outcome is None:
            reports = None if active is None or not job.active else active.tracker.reports()
            jobs.drain(job, outcome, reason, reports)
        LOGGER.info("job %d (%s): %s %s", job.number, job.spec.name, outcome, reason)
        if outcome is not JobState.FINISHED:
            self._cancel_vectors(job)
            command = pb.NodeCommand(leave=pb.LeaveJob(job=job.number, reason=reason))
            # Processes may wait for a queued one.
            for host in job.hosts:
                self._state.send(events.SendToHost(host, command))
        return installed

    def _cancel_vectors(self, job: Job) -> None:
        """Cancel the companion job that combines a job's bit vectors."""
        companion = self._state.jobs.get(job.spec.task.vectors)
        # Records of earlier versions have any job's number that a submission named.
        if companion is not None and companion.spec.name == vectors_name(job.spec.name):
            steps = self.cancel(companion, f"job {job.spec.name} has ended")
            self._state.procedures.start(steps)
