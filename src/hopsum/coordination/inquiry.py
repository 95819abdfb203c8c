"""Inquiries into delayed operators: questions travel down the tree, answers are joined on the way
up."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from hopsum.coordination.messages import Missing, Probe


class Tally:
    """Counts members until all have acknowledged, left or answered."""

    def __init__(self, members: Iterable[int]) -> None:
        self._missing = set(members)

    def add(self, member: int) -> bool:
        """Whether this member was the last one missing."""
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

    def answer(self, member: int, answer: Missing) -> Missing | None:
        """Process the ranks of a member's subtree without a request; return all once all members
        answered."""
        tally, missing = self._open.get(answer.probe, (Tally(()), set()))
        missing.update(answer.ranks)
        if not tally.add(member):
            return None
        del self._open[answer.probe]
        return replace(answer, ranks=tuple(sorted(missing)))
