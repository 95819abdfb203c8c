"""Verdicts and intervals as an agent reports them, and back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from host_agent.workload import Interval, Verdict
from protocol import hopsum_pb2 as pb
from protocol.errors import InputError


class ReportError(InputError):
    """A report that makes no sense; the message says why."""


def verdict_message(verdict: Verdict) -> pb.Verdict:
    """The message of a verdict."""
    return pb.Verdict(**asdict(verdict))


def verdict_from(message: pb.Verdict) -> Verdict:
    """The verdict of a message."""
    return Verdict(message.checked, message.wrong, message.max_error, message.error_bound)


def intervals_message(intervals: Sequence[Interval]) -> pb.Intervals:
    """The message of the intervals of a job's calls."""
    return pb.Intervals(
        starts=[start for start, _ in intervals], finishes=[finish for _, finish in intervals]
    )


def intervals_from(message: pb.Intervals) -> list[Interval]:
    """The intervals of a message. Raises ReportError."""
    starts, finishes = message.starts, message.finishes
    if len(starts) != len(finishes):
        raise ReportError(
            f"report: {len(starts)} starts, {len(finishes)} finishes: expected as many"
        )
    return list(zip(starts, finishes, strict=True))
