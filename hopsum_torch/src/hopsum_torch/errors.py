"""What a call can end with."""

from __future__ import annotations


class HopsumError(RuntimeError):
    """Of this package; what went wrong, where, what was expected, what to do."""


class SumRefused(HopsumError):
    """A call has no result, at any rank; the next one may have. The message names the ranks."""


class GroupLost(HopsumError):
    """The switches sum for this group no longer: a rank, its agent, or the job is gone."""


class NoAgreement(HopsumError):
    """The ranks do not fit together as a job; the message names those that do not."""
