"""Sequence numbers between neighbours, as docs/protocol.md has them (Losses on a link)."""

from __future__ import annotations

NUMBERS = 1 << 16
KEPT = 64
"""The newest number and the 63 before it: which of these came is known."""
AGAIN = 8
"""Numbers after which a request on a link is repeated."""


class SentNumbers:
    """Numbers of the frames sent to a neighbour, from 0; the fragments of the last `kept`."""

    def __init__(self, kept: int) -> None:
        self._kept = max(kept, 2 * KEPT)
        self.next = 0
        self._fragments: dict[int, int] = {}

    def number(self, fragment: int) -> int:
        """Assign the next number."""
        self._fragments[self.next] = fragment
        self._fragments.pop(self.next - self._kept, None)
        self.next += 1
        return (self.next - 1) % NUMBERS

    def find(self, number: int) -> int | None:
        """The fragment sent under a number; None if that is too long ago, or is to come."""
        newest = self.next - 1
        return self._fragments.get(newest - (newest - number) % NUMBERS)


class Arrivals:
    """Numbers received from a neighbour, which may start over within an epoch."""

    def __init__(self) -> None:
        self._newest = -1
        """Extended beyond 16 bits."""
        self._missing: dict[int, int] = {}
        """By missing number: the newest one when it was last requested."""

    def take(self, number: int, *, repair: bool, window: int = 0) -> tuple[bool, list[int]]:
        """Take a number in; return whether it had come before, and which to request now.

        `window`: that of a host past all switches (Losses past all switches).
        """
        newest = self._newest
        back = (newest - number) % NUMBERS
        if back < min(KEPT, newest + 1) and newest - back not in self._missing:
            return True, []
        lead = (number - newest + NUMBERS // 2) % NUMBERS - NUMBERS // 2
        if repair or -KEPT < lead <= 0 or (lead < 0 and window):
            self._missing.pop(newest + lead, None)
            return False, []
        self._newest += lead
        if lead <= -KEPT:  # it has started over
            self._missing.clear()
            return False, []
        oldest, again = self._newest - KEPT + 1, max(AGAIN, window // 4)
        for late in range(max(newest + 1, oldest), self._newest):
            self._missing[late] = newest - again
        self._missing = {late: at for late, at in self._missing.items() if late >= oldest}
        due = [late for late, at in self._missing.items() if self._newest - at >= again]
        self._missing.update(dict.fromkeys(due, self._newest))
        return False, [late % NUMBERS for late in due]
