"""Guesses of a job's next call, from the order of those before: the same at all hosts.

A training makes the same calls in the same order again and again. So after call A it is guessed
that what followed A the last time follows again. All that is kept here comes from calls that all
ranks agreed on, or from results that all hosts have.
"""

from __future__ import annotations

from dataclasses import dataclass

from host_agent.node.calls import SUM_FLOAT, Wanted

GUESSED_BYTES = 1 << 16
"""Of a tensor that is submitted before the check of its call is known. A wrong guess costs as much
traffic; waiting costs a round trip, which carries about as much."""
CONFIRMED, CONFIRMED_BYTES = 16, 1 << 18
"""A guess that was right so often in a row may be of a tensor as long: as many round trips saved
are worth what it costs to be wrong once."""
SURE = 8
"""A guess that was right so often in a row needs no check. One that is wrong costs a round trip."""
GUESSES = 4096
"""Maximum number of different calls that are remembered."""


@dataclass(slots=True)
class Following:
    """The successor of a call last time, the ranks' greatest magnitude, and how often in a row it
    has followed."""

    wanted: Wanted
    magnitude: int
    times: int = 1

    def guessed(self, small: int) -> Wanted | None:
        """Return the tensor to submit with the check; None: none.

        `small`: the most elements of float32 that are summed as integers, once all know the check.
        """
        guess = self.wanted
        most = CONFIRMED_BYTES if self.times >= CONFIRMED else GUESSED_BYTES
        waits = guess.code == SUM_FLOAT and guess.elements <= small
        return guess if guess.values and not waits and self._is_within(most) else None

    def sure(self, small: int) -> bool:
        """Whether its integers are submitted without a check; `small`: as for `guessed`."""
        integers = self.wanted.code != SUM_FLOAT or self.wanted.elements <= small
        return (
            self.times >= SURE
            and self.wanted.values
            and integers
            and self._is_within(GUESSED_BYTES)
        )

    def _is_within(self, most: int) -> bool:
        return self.wanted.elements * self.wanted.type.itemsize <= most


class Guesses:
    """What followed each call of a job the last time."""

    def __init__(self) -> None:
        self._last: Wanted | None = None
        self._follows: dict[Wanted, Following] = {}

    def next(self) -> Following | None:
        """Return what is expected to follow the last call."""
        return None if self._last is None else self._follows.get(self._last)

    def remember(self, agreed: Wanted, magnitude: int) -> None:
        """Note the successor of the last call, and the ranks' greatest magnitude."""
        if self._last is not None:
            following = self._follows.get(self._last)
            if following is not None and following.wanted == agreed:
                following.times += 1
                following.magnitude = magnitude
            else:
                if len(self._follows) >= GUESSES:
                    self._follows.clear()
                self._follows[self._last] = Following(agreed, magnitude)
        self._last = agreed
