"""Iterations: what a process has called for in its own, and how far the others are.

The iteration number is each process's own (004 claim 6). A process that will call for no more
operators of an iteration says so up the tree, and the root tells everybody what the first process
to do so has called for. Whoever has called for something else, or ends the iteration without
something of it, knows that this operator can never start. Once nothing waits any more at any
process, the iteration is over everywhere, with the same operators.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from coordination.messages import Probe, Progress, Unmatched


class ProgressTracker:
    """How far the processes of a subtree are. `members`: its root's rank and its children's."""

    def __init__(self, members: Sequence[int]) -> None:
        self._over = dict.fromkeys(members, 0)
        self._passed_over = 0
        self._passed_first = 0

    def report(self, member: int, progress: Progress) -> Progress | None:
        """Take in how far a member is; what to pass up (at the root: down), None if nothing new.

        Of those who end an iteration only the first is passed on.
        """
        if member not in self._over:
            return None
        self._over[member] = max(self._over[member], progress.over)
        over = min(self._over.values())
        first = progress.first > self._passed_first
        if not first and over == self._passed_over:
            return None
        self._passed_over = over
        if not first:
            return Progress(over, 0, 0, progress.rank, ())
        self._passed_first = progress.first
        return replace(progress, over=over)

    def adopt(self, progress: Progress) -> None:
        """Take in what the root tells: it need not be told that again."""
        self._passed_first = max(self._passed_first, progress.first)


class Iterations:
    """The iterations of process `rank`.

    It stands at the lowest iteration for which it may still call for operators: 0 at first,
    `NO_MORE` once it has left.
    """

    def __init__(self, rank: int) -> None:
        self.number = 0
        """Published last; 0: none yet, then operators may recur."""
        self.over = 0
        """All iterations below are over everywhere."""
        self._rank = rank
        self._stands = 0
        self._calls: dict[int, Counter[str]] = {}
        self._given_up: set[str] = set()
        self._ended: list[tuple[Progress, Counter[str]]] = []
        """What the first process to end an iteration called for, while this one may still call."""
        self._unmatched: Unmatched | None = None
        self._told = False

    # -- this process

    def begin(self, number: int) -> None:
        """Begin an iteration; all operators of the last have started."""
        self.number = number
        self._given_up.clear()

    def call(self, name: str) -> str | None:
        """Note that the process is ready for an operator in this iteration; else why it cannot."""
        calls = self._calls.setdefault(self.number, Counter())
        if self.number:
            if calls[name] and name not in self._given_up:
                return "is ready for it after it was already"
            if self._stands > self.number:
                return "is ready for it after it ended it"
        self._given_up.discard(name)
        calls[name] += 1
        for ended, wanted in self._ended:
            self._compare_call(self.number, name, ended, wanted)
        return None

    def give_up(self, name: str) -> None:
        """Give up an operator everywhere: every process may call for it anew, or none."""
        self._given_up.add(name)

    def stand(self, iteration: int) -> Progress | None:
        """Call for no operators of lower iterations any more; what that means, if it is new."""
        if iteration <= self._stands:
            return None
        since, self._stands = self._stands, iteration
        for ended, wanted in self._ended:
            self._compare_end(ended, wanted)
        self._ended = [each for each in self._ended if each[0].first > self._stands]
        names = tuple(self._calls.get(since, Counter()).elements())
        return Progress(0, since, iteration, self._rank, names)

    def over_here(self, waits: bool) -> int:
        """All iterations below are over here; `waits`: whether some operator has not started."""
        return min(self.number, self._stands) if waits else self._stands

    # -- the others

    def adopt(self, progress: Progress) -> None:
        """Take in what the root tells."""
        if progress.first > progress.since:
            wanted = Counter(progress.names)
            for iteration, calls in self._calls.items():
                for name in calls:
                    self._compare_call(iteration, name, progress, wanted)
            self._compare_end(progress, wanted)
            if progress.first > self._stands:
                self._ended.append((progress, wanted))
        self.over = max(self.over, progress.over)
        for iteration in [number for number in self._calls if number < self.over]:
            del self._calls[iteration]

    def _compare_call(
        self, iteration: int, name: str, ended: Progress, wanted: Counter[str]
    ) -> None:
        """Nobody may call for what the first to end an iteration has not called for."""
        if ended.since <= iteration < ended.first:
            count = self._calls[iteration][name]
            if count > (wanted[name] if iteration == ended.since else 0):
                self._find_unmatched(iteration, name, count)

    def _compare_end(self, ended: Progress, wanted: Counter[str]) -> None:
        """Nobody may end an iteration without what the first to end it has called for."""
        if self.over <= ended.since < self._stands:
            calls = self._calls.get(ended.since, Counter())
            for name, count in wanted.items():
                if calls[name] < count:
                    self._find_unmatched(ended.since, name, count)

    def _find_unmatched(self, iteration: int, name: str, count: int) -> None:
        if self._unmatched is None:
            self._unmatched = Unmatched(iteration, name, count)

    def take_unmatched(self) -> Unmatched | None:
        """Return the first operator found of which it is clear that it can never start; once."""
        if self._told or self._unmatched is None:
            return None
        self._told = True
        return self._unmatched

    def went_without(self, probe: Probe) -> bool:
        """Whether this process will never call for an operator, or never so often."""
        calls = self._calls.get(probe.iteration, Counter())
        return self.over <= probe.iteration < self._stands and calls[probe.name] < probe.count
