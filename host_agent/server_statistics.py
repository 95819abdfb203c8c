"""A server's counters, and its report on a late fragment."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class ServerStatistics:
    """A server's counters, in packets."""

    received: int = 0
    """Contributions of its job and tree."""
    sums: int = 0
    """Complete sums of a child's subtree accepted."""
    singles: int = 0
    """Bypassed contributions of one worker accepted."""
    repeats: int = 0
    """Duplicate or covered contributions."""
    handed_over: int = 0
    """Totals handed over by workers."""
    results: int = 0
    """Fragments finished."""
    result_frames: int = 0
    """Result frames sent at their completion."""
    answered: int = 0
    """Packets of finished fragments answered from the history."""
    requests: int = 0
    """Sums requested again: lost on the link from the neighbour."""
    repaired: int = 0
    """Results retransmitted on a neighbour's request: lost on the link to it."""
    stale: int = 0
    """Questions about fragments that are not finished: ignored."""
    older: int = 0
    """Packets of an older epoch, or of a fragment older than the history: ignored."""
    newer: int = 0
    """Packets of an epoch this server has not adopted yet: dropped."""
    refused: int = 0
    """Invalid packets: unknown child or worker, wrong weight, a total outside the window."""
    foreign: int = 0
    """Frames that are not contributions of this job and tree."""
    overflowed: int = 0
    """Fragments finished whose sum wrapped around."""
    corrupt: int = 0
    """Sums, totals and single contributions that check lanes show to be altered or forged."""
    asked: int = 0
    """Questions to workers for single contributions to such sums."""


@dataclass(frozen=True, slots=True)
class Missing:
    """The oldest unfinished fragment: its number, opening time (seconds), and missing workers."""

    fragment: int
    since: float
    workers: tuple[str, ...]
