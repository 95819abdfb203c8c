"""A server's counters, and what it says of a fragment that is late."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class ServerStatistics:
    """What a server has counted, in packets."""

    received: int = 0
    """Contributions of its job and tree."""
    sums: int = 0
    """Complete sums of a child's subtree taken in."""
    singles: int = 0
    """Bypassed contributions of one worker taken in."""
    repeats: int = 0
    """Contributions held or covered already."""
    handed_over: int = 0
    """Totals taken over from workers' last windows."""
    results: int = 0
    """Fragments finished."""
    result_frames: int = 0
    """Frames sent for them at their completion."""
    answered: int = 0
    """Packets of finished fragments answered from the history."""
    requests: int = 0
    """Sums asked for again, lost on the link from the neighbour."""
    repaired: int = 0
    """Results sent again because the neighbour asked: lost on the link to it."""
    stale: int = 0
    """Questions about fragments that are not finished: ignored."""
    older: int = 0
    """Packets of an older epoch, or of a fragment older than the history: ignored."""
    newer: int = 0
    """Packets of an epoch this server has not adopted yet: dropped."""
    refused: int = 0
    """Packets that do not fit: unknown child or worker, another weight, a total out of window."""
    foreign: int = 0
    """Frames that are no contributions of this job and tree."""
    overflowed: int = 0
    """Fragments finished whose sum wrapped around."""
    corrupt: int = 0
    """Sums, totals and single contributions that check lanes show to be altered or forged."""
    asked: int = 0
    """Questions to workers for their single contributions to such sums."""


@dataclass(frozen=True, slots=True)
class Missing:
    """The oldest unfinished fragment: its number, since when (seconds), and who is missing."""

    fragment: int
    since: float
    workers: tuple[str, ...]
