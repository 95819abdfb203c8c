"""Errors of calls."""

from __future__ import annotations


class HopsumError(RuntimeError):
    """Base class: the message says what failed, where, what was expected, and what to do."""


class SumRefused(HopsumError):
    """A call has no result at any rank; later calls may succeed. The message names the ranks."""


class GroupLost(HopsumError):
    """The switches no longer sum for this group: a rank, its agent, or the job is gone."""


class NoAgreement(HopsumError):
    """The ranks cannot form a job; the message names those at fault."""
