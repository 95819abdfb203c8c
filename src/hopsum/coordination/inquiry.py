"""Inquiries into delayed operators: questions go down the tree, merged answers come up."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from hopsum.coordination.messages import MissingRanks, Probe


class Tally:
    """Counts members until all have acknowledged, left or answered."""

    def __init__(self, members: Iterable[int]) -> None:
        self._missing = set(members)

    def add(self, member: int) -> bool:
        """Record a member; return whether it was the last one missing."""
        if member not in self._missing:
            return False
        self._missing.discard(member)
        return not self._missing


class Inquiries:
    """The pending questions at one process; `members`: its own rank and its children's."""

    def __init__(self, members: Sequence[int]) -> None:
        self._members = members
        self._open: dict[Probe, tuple[Tally, set[int]]] = {}

    def begin(self, probe: Probe) -> bool:
        """Ask about an operator; return False if that question is pending."""
        if probe in self._open:
            return False
        self._open[probe] = Tally(self._members), set()
        return True

    def answer(self, member: int, answer: MissingRanks) -> MissingRanks | None:
        """Add the missing ranks of a member's subtree; return all once all have answered."""
        tally, missing = self._open.get(answer.probe, (Tally(()), set()))
        missing.update(answer.ranks)
        if not tally.add(member):
            return None
        del self._open[answer.probe]
        return replace(answer, ranks=tuple(sorted(missing)))
