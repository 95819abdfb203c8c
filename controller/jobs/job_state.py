"""The states of a job, and errors of jobs."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from hopsum.protocol.errors import InputError

LAST_JOB = 0xFFFF
"""Largest job number that fits into a packet."""
MOST_NAME = 63
"""Maximum length of a job's name."""


class JobError(InputError):
    """A job that cannot run or does not exist."""

    exit_code = 1


class JobState(StrEnum):
    """State of a job; `NEXT` has the transitions."""

    QUEUED = "queued"
    """It waits for resources of other jobs."""
    INSTALLING = "installing"
    """It is planned, and its rules are being installed."""
    WAITING = "waiting"
    """Its rules are installed; not all of its agents are ready."""
    RUNNING = "running"
    CHANGING = "changing plan"
    """The rules of its next epoch are being installed; it continues under the old one."""
    DRAINING = "draining"
    """Its outcome is known (`Job.outcome`); switches still hold its rules."""
    FINISHED = "finished"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def over(self) -> bool:
        """Whether it is a final state."""
        return self in ENDS


ENDS = frozenset({JobState.FINISHED, JobState.FAILED, JobState.CANCELLED})
NEXT: Mapping[JobState, frozenset[JobState]] = {
    JobState.QUEUED: frozenset({JobState.INSTALLING, JobState.CANCELLED}),
    JobState.INSTALLING: frozenset(
        {JobState.QUEUED, JobState.WAITING, JobState.DRAINING, JobState.FAILED}
    ),
    JobState.WAITING: frozenset(
        {JobState.RUNNING, JobState.CHANGING, JobState.DRAINING, JobState.FAILED}
    ),
    JobState.RUNNING: frozenset({JobState.CHANGING, JobState.DRAINING, JobState.FAILED}),
    JobState.CHANGING: frozenset({JobState.WAITING, JobState.RUNNING, JobState.DRAINING}),
    JobState.DRAINING: ENDS,
    **dict.fromkeys(ENDS, frozenset[JobState]()),
}
"""Allowed transitions. A job that cannot be recovered after a restart fails from any state."""
