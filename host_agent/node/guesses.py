"""Guesses of a job's next call, from the order of those before: the same at all hosts.

A training makes the same calls in the same order again and again. So it is guessed that what
followed the last calls follows them again. How many of the last calls determine what follows
depends on the model: in a step that reduces layers of sizes A, A and B, A is followed by A and by
B, but two As by B. So what followed is kept for contexts of several lengths, and the longest one
known decides (as in prediction by partial matching, Cleary and Witten, 1984). All that is kept here
comes from calls that all ranks agreed on, or from results that all hosts have.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass, replace

from hopsum.host_agent.node.calls import BARRIER, SUM_FLOAT, CallSpec
from hopsum.host_agent.process_calls import ALL

GUESSED_BYTES = 1 << 16
"""Of a tensor that is submitted before the check of its call is known. A wrong guess costs as much
traffic; waiting costs a round trip, which carries about as much."""
CONFIRMED, CONFIRMED_BYTES = 16, 1 << 18
"""A guess that was right so often in a row may be of a tensor as long: as many round trips saved
are worth what it costs to be wrong once."""
SURE = 8
"""A guess that was right so often in a row needs no check. One that is wrong costs a round trip."""
OTHER = 255
"""Remark of a host that does not make the call expected, or must not send its values."""
CONTEXTS = 1 << 14
"""Maximum number of contexts that are remembered."""
LENGTHS = (1, 2, 4, 8, 16, 32)
"""Numbers of calls of contexts."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """The call predicted after a context, the ranks' greatest magnitude, and how often in a row it
    was right."""

    wanted: CallSpec
    magnitude: int
    times: int = 1

    @property
    def remark(self) -> int:
        """The greatest remark of all hosts if it proves right without a check."""
        return self.magnitude if self.wanted.code == SUM_FLOAT else 0

    def guessed(self, small: int) -> CallSpec | None:
        """Return the tensor to submit with the check; None: none.

        `small`: the most elements of float32 that are summed as integers, once all know the check.
        """
        guess = self.wanted
        most = CONFIRMED_BYTES if self.times >= CONFIRMED else GUESSED_BYTES
        waits = guess.code == SUM_FLOAT and guess.elements <= small
        return guess if guess.values and not waits and self._is_within(most) else None

    def sure(self, small: int) -> bool:
        """Whether its integers, of a barrier a zero, are submitted without a check.

        `small`: as for `guessed`.

        The next call waits for it then. So those are small of which others are called meanwhile,
        as an all-gather during a reduce-scatter.
        """
        alone = self.wanted.code != SUM_FLOAT and self.wanted.target == ALL
        integers = alone or self.wanted.elements <= small
        return (
            self.times >= SURE
            and self.wanted.width is None
            and (self.wanted.values or self.wanted.code == BARRIER)
            and integers
            and self.remark != OTHER
            and self._is_within(GUESSED_BYTES)
        )

    def _is_within(self, most: int) -> bool:
        return self.wanted.elements * self.wanted.type.itemsize <= most


class Guesses:
    """What followed the last calls of a job before."""

    def __init__(self) -> None:
        self._last: tuple[int, ...] = ()
        """The last calls, each as one number."""
        self._contexts: list[tuple[int, ...]] = []
        """The last calls, more and more of them."""
        self._follows: MutableMapping[tuple[int, ...], Prediction] = {}

    def next(self) -> Prediction | None:
        """Return what is expected to follow the last calls.

        `times`: as of the context that has been right most often.
        """
        known = self._known()
        if not known:
            return None
        longest = known[-1]
        times = max([each.times for each in known if each.wanted == longest.wanted])
        return Prediction(longest.wanted, longest.magnitude, times)

    def ahead(self, most: int, wanted: Callable[[Prediction], bool]) -> list[Prediction]:
        """Return the next calls, each predicted as if those before were right.

        At most `most`, and as long as they are `wanted`.
        """
        later = Guesses()
        later._last, later._contexts = self._last, self._contexts
        later._follows = ChainMap({}, self._follows)
        found: list[Prediction] = []
        while len(found) < most and not self._full(len(found) + 1):
            following = later.next()
            if following is None or not wanted(following):
                break
            found.append(following)
            later.remember(following.wanted, following.remark)
        return found

    def doubt(self) -> None:
        """Count anew how often what follows the last calls is right."""
        for context in self._contexts:
            if context in self._follows:
                self._follows[context] = replace(self._follows[context], times=0)

    def remember(self, agreed: CallSpec, magnitude: int) -> None:
        """Note the successor of the last calls, and the ranks' greatest magnitude."""
        if self._full():
            self._follows.clear()
        for context in self._contexts:
            following = self._follows.get(context)
            if following is not None and following.wanted == agreed:
                following = Prediction(agreed, magnitude, following.times + 1)
            elif following is not None and following.times > 1:
                # An exception, such as a loss that is averaged every ten steps?
                following = replace(following, times=0)
            else:
                following = Prediction(agreed, magnitude)
            self._follows[context] = following
        number = agreed.elements << 32 | agreed.word(0)
        last = self._last = (*self._last, number)[-LENGTHS[-1] :]
        self._contexts = [last[-length:] for length in LENGTHS if length <= len(last)]

    def _full(self, more: int = 0) -> bool:
        """Whether there is no room for another call, after some `more`."""
        return len(self._follows) > CONTEXTS - (1 + more) * len(LENGTHS)

    def _known(self) -> list[Prediction]:
        found = map(self._follows.get, self._contexts)
        return [each for each in found if each is not None]
