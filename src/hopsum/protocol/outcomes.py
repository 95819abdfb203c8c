"""Outcomes of a packet at a switch: the cells of the counter `outcomes` in hopsum.p4."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum


class Outcome(IntEnum):
    """Index into the counter; the P4 constants `OUTCOME_*` are the same (a test compares)."""

    AGGREGATED = 0
    """A contribution was added to a slot (or opened it) and the slot is not complete yet."""
    COMPLETED = 1
    """A contribution completed its slot: the sum was sent."""
    DUPLICATE = 2
    """A repeated child in an incomplete slot, or a result that this switch has forwarded
    before: dropped."""
    RE_EMITTED = 3
    """A repeated child in a complete slot: the stored sum was sent again."""
    STALE = 4
    """A fragment older than its slot, or of a cleared one: flagged stale and forwarded."""
    FORWARDED = 5
    """A contribution of an entry that does not aggregate, or flagged stale on its way."""
    BYPASSED = 6
    """A contribution flagged bypass: forwarded."""
    CLEARED = 7
    """A result that cleared its slot."""
    RESULT = 8
    """A result that cleared nothing (no clear flag, or the slot has another owner)."""
    NOT_ADMITTED = 9
    """No admission entry for its job, tree and port, or a child not allowed at that port."""
    MALFORMED = 10
    """An invalid hopsum packet: version, kind, lanes, stack, lengths, fan-in."""
    OVERFLOW = 11
    """A sum wrapped around in some lane (AGGREGATED or COMPLETED counts it too)."""
    INJECTED_LOSS = 12
    """Dropped on purpose by the fault injector (not only hopsum packets)."""
    INSPECTED = 13
    """A slot was read in-band."""
    TAKEN_OVER = 14
    """A contribution took a slot over from an unfinished owner (AGGREGATED counts it too)."""
    PLAIN = 15
    """A packet that is not hopsum's, forwarded by the plain tables (drops are not counted here)."""
    CONGESTED = 16
    """A packet that was queued behind many others at its port: flagged ecn (others count it too;
    each copy of a replicated result by itself), or marked in its IP header if it is not ours."""
    REQUESTED = 17
    """A frame whose number showed that one before it was lost: its sender was asked to send that
    one again (others count it too)."""
    REPEATED = 18
    """A request that was answered: the sum or result lost on the link was sent again."""
    UNANSWERED = 19
    """A request for a sum or result that this switch no longer holds."""
    ANSWERED = 20
    """A contribution that was answered with the kept result."""
    KEPT = 21
    """A result that an empty slot, or one of an older fragment, now keeps."""


NO_PACKETS = frozenset(
    {
        Outcome.OVERFLOW,
        Outcome.INSPECTED,
        Outcome.TAKEN_OVER,
        Outcome.CONGESTED,
        Outcome.REQUESTED,
    }
)
"""Outcomes that count a packet again, or count queries of the controller."""


def packets(counts: Mapping[Outcome, int]) -> int:
    """Return the number of packets that a switch has taken, each counted once."""
    return sum(count for outcome, count in counts.items() if outcome not in NO_PACKETS)


def sums(counts: Mapping[Outcome, int]) -> int:
    """Return the number of sums that a switch has sent, retransmitted ones included."""
    return counts.get(Outcome.COMPLETED, 0) + counts.get(Outcome.RE_EMITTED, 0)
