"""Sequence numbers between neighbours: frames lost on the link, and their fragments.

The host's half of p4src/include/sequencing.p4; the rules are in docs/protocol.md, Losses on a link
and Losses of unicast results.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

NUMBERS = 1 << 16
HISTORY = 64
"""Numbers after which a missing frame is no longer requested."""
RETRY = 8
"""Numbers after which a request is repeated."""


class SentLog:
    """Log of frames sent to a neighbour on one tree: the fragment of each number."""

    def __init__(self, window: int) -> None:
        self.size = max(2 * HISTORY, 2 * window)
        self.fragments = np.zeros(self.size, dtype=np.int64)
        """Fragments by number, modulo `size`."""
        self.next = 0
        """The next number."""

    def restart(self) -> None:
        """Count from 0: a new epoch."""
        self.next = 0

    def number(self, fragments: NDArray[np.int64]) -> NDArray[np.int64]:
        """Assign numbers (n,) to frames that are sent now, with these fragments."""
        numbers = self.next + np.arange(len(fragments))
        self.fragments[numbers % self.size] = fragments
        self.next += len(fragments)
        return numbers & (NUMBERS - 1)

    def find(self, numbers: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return those numbers that were not sent too long ago, and their fragments."""
        back = (self.next - 1 - numbers) & (NUMBERS - 1)
        known = back < min(self.size, self.next)
        return numbers[known], self.fragments[(self.next - 1 - back[known]) % self.size]


class Arrivals:
    """Frames received from a neighbour on one tree: missing and requested numbers."""

    def __init__(self) -> None:
        self.newest = -1
        """The newest received number, extended beyond 16 bits."""
        self._missing: dict[int, int] = {}
        """By missing number: the newest number when it was requested."""
        self._end_to_end = False

    @property
    def complete(self) -> bool:
        """Whether nothing is missing."""
        return not self._missing

    def restart(self, *, end_to_end: bool = False) -> None:
        """Expect 0 next: a new epoch.

        `end_to_end`: frames come past switches, which remove REPAIR, from a host that does not
        start over within an epoch: what is old is a repair.
        """
        self.newest = -1
        self._missing.clear()
        self._end_to_end = end_to_end

    def take(
        self, numbers: NDArray[np.int64], repairs: NDArray[np.bool_]
    ) -> tuple[list[int], list[int]]:
        """Process the numbers (n,) of frames, in their order.

        `repairs` (n,): which frames were sent again, under their old number. Returns the numbers to
        ask for now, and the rows of frames that had come before.
        """
        count = len(numbers)
        if not self._missing and not np.count_nonzero(repairs):
            first = int(numbers[0])
            expected = (self.newest + 1) & (NUMBERS - 1)
            if first == expected and (
                count == 1 or not np.count_nonzero((np.diff(numbers) - 1) & (NUMBERS - 1))
            ):
                self.newest += count
                return [], []
        asked: list[int] = []
        again: list[int] = []
        for row, (number, repair) in enumerate(
            zip(numbers.tolist(), repairs.tolist(), strict=True)
        ):
            if self._had(number):
                again.append(row)
            else:
                asked += self._take(number, repair)
        return asked, again

    def _had(self, number: int) -> bool:
        """Return whether a number was among the last received."""
        back = (self.newest - number) & (NUMBERS - 1)
        return back < min(HISTORY, self.newest + 1) and self.newest - back not in self._missing

    def _take(self, number: int, repair: bool) -> list[int]:
        newest = self.newest
        lead = (number - newest + NUMBERS // 2) % NUMBERS - NUMBERS // 2
        if repair or -HISTORY < lead <= 0 or (lead < 0 and self._end_to_end):
            self._missing.pop(newest + lead, None)
            return []
        self.newest = newest + lead
        if lead <= -HISTORY:
            self._missing.clear()  # the neighbour has started again
            return []
        for late in range(max(newest + 1, self.newest - HISTORY + 1), self.newest):
            self._missing[late] = newest - RETRY
        asked = []
        for late, before in list(self._missing.items()):
            if late <= self.newest - HISTORY:
                del self._missing[late]
            elif self.newest - before >= RETRY:
                self._missing[late] = self.newest
                asked.append(late & (NUMBERS - 1))
        return asked
