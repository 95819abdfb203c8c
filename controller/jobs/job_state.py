"""How far a job is, and what is wrong with one."""

from __future__ import annotations

from enum import StrEnum

from protocol.errors import InputError

LAST_JOB = 0xFFFF
"""Of the job numbers in a packet."""


class JobError(InputError):
    """A job that cannot be, or is not there; the message says why and what was expected."""

    exit_code = 1


class JobState(StrEnum):
    """How far a job is."""

    QUEUED = "queued"
    """Other jobs hold what it needs."""
    WAITING = "waiting"
    """Its rules are installed; not all of its agents are ready."""
    RUNNING = "running"
    FINISHED = "finished"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def over(self) -> bool:
        """Whether nothing more happens to it."""
        return self in (JobState.FINISHED, JobState.FAILED, JobState.CANCELLED)
