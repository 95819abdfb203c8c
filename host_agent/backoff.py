"""Pauses between an agent's attempts to reach a controller."""

from __future__ import annotations

from random import Random

from hopsum.protocol.liveness import LAST_PAUSE, PAUSE_SHARE, RECONNECT_PAUSE

JITTER = 0.2
"""Share of a pause that is left to chance, so that agents do not all come at once."""


class Backoff:
    """Pauses that grow with the time for which there has been no controller (s).

    By a fixed share of that time, so exponentially: a short absence, such as that of a leader until
    another one is elected, ends as soon as with constant pauses. `name`: of the agent; others have
    other pauses.
    """

    def __init__(self, name: str, now: float) -> None:
        self._random = Random(name)
        self._absent_since = self._attempted = now

    def attempt(self, now: float) -> None:
        """Note the start of an attempt, at one address or several in turn."""
        self._attempted = now

    def heard(self, now: float) -> None:
        """Note that a controller is there."""
        self._absent_since = now

    def pause(self, now: float) -> float:
        """Return the pause after an attempt; one that took long itself is not followed by more."""
        interval = min(LAST_PAUSE, PAUSE_SHARE * (now - self._absent_since))
        longest = max(RECONNECT_PAUSE, interval - (now - self._attempted))
        return longest * (1 - self._random.uniform(0, JITTER))
