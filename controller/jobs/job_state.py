"""The states of a job, and what is wrong with one."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from protocol.errors import InputError

LAST_JOB = 0xFFFF
"""Of the job numbers in a packet."""
MOST_NAME = 63
"""Letters of a job's name."""


class JobError(InputError):
    """A job that cannot be, or is not there; the message says why and what was expected."""

    exit_code = 1


class JobState(StrEnum):
    """Where a job is on its way; `NEXT` has the steps."""

    QUEUED = "queued"
    """Other jobs hold what it needs."""
    INSTALLING = "installing"
    """It is planned, and switches take its rules."""
    WAITING = "waiting"
    """Its rules are installed; not all of its agents are ready."""
    RUNNING = "running"
    CHANGING = "changing plan"
    """Switches take the rules of its next epoch; it goes on under the old one."""
    DRAINING = "draining"
    """How it ended is known (`Job.outcome`); switches still hold rules of it."""
    FINISHED = "finished"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def over(self) -> bool:
        """Whether nothing more happens to it."""
        return self in ENDS


ENDS = frozenset({JobState.FINISHED, JobState.FAILED, JobState.CANCELLED})
NEXT: Mapping[JobState, frozenset[JobState]] = {
    JobState.QUEUED: frozenset({JobState.INSTALLING, *ENDS}),
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
"""The states that may follow each. One that cannot go on after a restart fails as it is."""
