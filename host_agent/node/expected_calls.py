"""The calls of a process that flows may take by themselves, as long as each is as predicted.

A call that the guesses are sure of is submitted without a check
(`hopsum.host_agent.node.process_source`), and so may be those behind it: flows take them
(`hopsum.host_agent.sure_calls`) while the source has nothing to do, and it counts them afterwards.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from hopsum.host_agent.node.guesses import Guesses, Prediction
from hopsum.host_agent.process_calls import Mailbox
from hopsum.host_agent.sure_calls import ExpectedCall, SureCalls
from hopsum.protocol.wire import Reduction

MOST_AHEAD = 64
"""Maximum number of calls that flows may take before the source learns of them."""


class ExpectedCalls:
    """What the sure guesses of a job of `ranks` expect next, one call after the other.

    `small`: as for `Prediction.sure`. The more calls come as expected, the more are looked up.
    """

    def __init__(self, guesses: Guesses, ranks: int, small: int) -> None:
        self._guesses = guesses
        self._ranks = ranks
        self._small = small
        self._ahead: deque[Prediction] = deque()
        self._most = 1
        self._offered: SureCalls | None = None

    def offer(
        self, mailbox: Mailbox, reduction: Reduction, only_tree: Callable[[int], int | None]
    ) -> SureCalls | None:
        """Return the next calls of the rank of `mailbox` for flows to take, or None: none.

        `reduction`: of sums in the switches. `only_tree`: the place of the tree that sums all of
        some elements, see `Worker.only_tree`; flows take calls of one tree.
        """
        if self._offered is None or not self._offered.left:
            if not self._ahead:
                self._ahead.extend(self._guesses.ahead(self._most, self._is_sure))
            self._offered = None
            tree, found = self._on_one_tree(reduction, only_tree)
            if tree is not None:
                self._offered = SureCalls(mailbox, self._ranks, found, tree)
        return self._offered

    def _is_sure(self, following: Prediction) -> bool:
        return following.sure(self._small)

    def _on_one_tree(
        self, reduction: Reduction, only_tree: Callable[[int], int | None]
    ) -> tuple[int | None, Sequence[ExpectedCall]]:
        """Return the calls that flows can take, as far as one tree sums them, and its place."""
        found: list[ExpectedCall] = []
        tree = None
        for each in self._ahead:
            wanted = each.wanted
            expected = wanted.expected(wanted.reduction or reduction, each.remark)
            place = None if expected is None else only_tree(expected.submitted)
            if expected is None or place is None or tree not in (None, place):
                break
            tree = place
            found.append(expected)
        return tree, found

    def next(self) -> Prediction:
        """Remove and return the next call, which flows have taken."""
        following = self._ahead.popleft()
        if not self._ahead:
            self._most = min(2 * self._most, MOST_AHEAD)
        return following

    def skip(self) -> None:
        """Leave out the next call, if any is expected: the source has submitted it itself."""
        if self._ahead:
            self.next()
            if self._offered is not None:
                self._offered.skip()

    def clear(self) -> None:
        """Expect nothing until `offer`: calls, or magnitudes, are not those expected."""
        self._ahead.clear()
        self._most = 1
        self._offered = None
