"""Errors that end a job at an agent."""

from __future__ import annotations

from hopsum.protocol.errors import InputError, OperationError


class JobFailed(OperationError):
    """A job cannot continue at this worker; the message names the fragment and what to do.

    `job`, `tree`, `fragment`: the first fragment concerned (the number on the wire).
    """

    def __init__(self, job: int, tree: int, fragment: int, message: str) -> None:
        super().__init__(f"job {job}, tree {tree}, fragment {fragment}: {message}")
        self.job = job
        self.tree = tree
        self.fragment = fragment


class CallError(InputError):
    """An invalid call; the message says what was wrong and what was expected."""
