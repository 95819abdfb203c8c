"""Who has not asked for an operator? Questions go down the tree, answers come up joined."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


class Tally:
    """Counts members until all are in: acknowledgements, farewells, answers."""

    def __init__(self, members: Iterable[int]) -> None:
        self._missing = set(members)

    def add(self, member: int) -> bool:
        """Whether this member was the last one missing."""
        if member not in self._missing:
            return False
        self._missing.discard(member)
        return not self._missing


class Inquiries:
    """The questions under way at one process; `members`: its own rank and its children's."""

    def __init__(self, members: Sequence[int]) -> None:
        self._members = members
        self._open: dict[str, tuple[Tally, set[int]]] = {}

    def begin(self, name: str) -> bool:
        """Ask about an operator; False if that question is under way."""
        if name in self._open:
            return False
        self._open[name] = Tally(self._members), set()
        return True

    def answer(self, member: int, name: str, ranks: Iterable[int]) -> tuple[int, ...] | None:
        """Take in who of a member's subtree has not asked; all of them once everybody answered."""
        tally, missing = self._open.get(name, (Tally(()), set()))
        missing.update(ranks)
        if not tally.add(member):
            return None
        del self._open[name]
        return tuple(sorted(missing))
