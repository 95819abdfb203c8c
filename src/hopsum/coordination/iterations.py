"""Iterations: the operators requested in this process's own, and the progress of the others.

Each process has its own iteration number ([004 claim 6][004]). A process that will request no more
operators of an iteration reports this up the tree, and the root sends all processes the requests of
the first one to do so. A process that has requested other operators, or ends the iteration without
some of these, knows that they can never start. When no request is pending at any process, the
iteration is over everywhere, with the same operators.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from hopsum.coordination.messages import Probe, Progress, UnmatchedOperator


class ProgressTracker:
    """Progress of the processes of a subtree. `members`: its root's rank and its children's."""

    def __init__(self, members: Sequence[int]) -> None:
        self._over = dict.fromkeys(members, 0)
        self._passed_over = 0
        self._passed_first = 0

    def report(self, member: int, progress: Progress) -> Progress | None:
        """Process a member's progress; return the message to pass up (at the root: down), or None.

        Of the members that end an iteration only the first is reported. None: nothing is new.
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
        """Process progress sent by the root: it need not be reported again."""
        self._passed_first = max(self._passed_first, progress.first)


class Iterations:
    """The iterations of process `rank`.

    `_lowest`: the lowest iteration for which it may still request operators, 0 at first and
    `NO_MORE` once it has left.
    """

    def __init__(self, rank: int) -> None:
        self.number = 0
        """The latest published iteration; 0: none yet, then operators may recur."""
        self.over = 0
        """All iterations below this one are over at all processes."""
        self._rank = rank
        self._lowest = 0
        self._calls: dict[int, Counter[str]] = {}
        self._given_up: set[str] = set()
        self._ended: list[tuple[Progress, Counter[str]]] = []
        """Operators of the first process to end an iteration, while this one may still request."""
        self._unmatched: UnmatchedOperator | None = None
        self._taken = False

    # -- this process

    def begin(self, number: int) -> None:
        """Begin an iteration; all operators of the previous one have started."""
        self.number = number
        self._given_up.clear()

    def call(self, name: str) -> str | None:
        """Record a request for an operator in this iteration; return why it is invalid, or None."""
        calls = self._calls.setdefault(self.number, Counter())
        if self.number:
            if calls[name] and name not in self._given_up:
                return "is ready for it after it was already"
            if self._lowest > self.number:
                return "is ready for it after it ended it"
        self._given_up.discard(name)
        calls[name] += 1
        for ended, wanted in self._ended:
            self._compare_call(self.number, name, ended, wanted)
        return None

    def give_up(self, name: str) -> None:
        """Record that an operator was rejected at all processes: each may request it again."""
        self._given_up.add(name)

    def advance_to(self, iteration: int) -> Progress | None:
        """Request no more operators of lower iterations; return the message for it, if new."""
        if iteration <= self._lowest:
            return None
        since, self._lowest = self._lowest, iteration
        for ended, wanted in self._ended:
            self._compare_end(ended, wanted)
        self._ended = [each for each in self._ended if each[0].first > self._lowest]
        names = tuple(self._calls.get(since, Counter()).elements())
        return Progress(0, since, iteration, self._rank, names)

    def finished_below(self, waits: bool) -> int:
        """Return the number below which all iterations are over at this process.

        `waits`: whether some operator has not started.
        """
        return min(self.number, self._lowest) if waits else self._lowest

    # -- the others

    def adopt(self, progress: Progress) -> None:
        """Process a message of the root."""
        if progress.first > progress.since:
            wanted = Counter(progress.names)
            for iteration, calls in self._calls.items():
                for name in calls:
                    self._compare_call(iteration, name, progress, wanted)
            self._compare_end(progress, wanted)
            if progress.first > self._lowest:
                self._ended.append((progress, wanted))
        self.over = max(self.over, progress.over)
        for iteration in [number for number in self._calls if number < self.over]:
            del self._calls[iteration]

    def _compare_call(
        self, iteration: int, name: str, ended: Progress, wanted: Counter[str]
    ) -> None:
        """Reject operators that the first process to end an iteration has not requested."""
        if ended.since <= iteration < ended.first:
            count = self._calls[iteration][name]
            if count > (wanted[name] if iteration == ended.since else 0):
                self._find_unmatched(iteration, name, count)

    def _compare_end(self, ended: Progress, wanted: Counter[str]) -> None:
        """Check that processes end an iteration with the same operators as the first one."""
        if self.over <= ended.since < self._lowest:
            calls = self._calls.get(ended.since, Counter())
            for name, count in wanted.items():
                if calls[name] < count:
                    self._find_unmatched(ended.since, name, count)

    def _find_unmatched(self, iteration: int, name: str, count: int) -> None:
        if self._unmatched is None:
            self._unmatched = UnmatchedOperator(iteration, name, count)

    def take_unmatched(self) -> UnmatchedOperator | None:
        """Return, once, the first operator found that can never start."""
        if self._taken or self._unmatched is None:
            return None
        self._taken = True
        return self._unmatched

    def never_requests(self, probe: Probe) -> bool:
        """Return whether this process will never request an operator, or fewer times than asked."""
        calls = self._calls.get(probe.iteration, Counter())
        return self.over <= probe.iteration < self._lowest and calls[probe.name] < probe.count
