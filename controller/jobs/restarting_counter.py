"""A counter that somebody else keeps, and begins anew whenever that somebody is restarted."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class RestartingCounter:
    """The total of a counter over all lives of who counts; it never falls."""

    counted: int = 0
    """As it was reported last."""
    before: int = 0
    """What earlier lives had counted."""

    def take(self, counted: int) -> None:
        """Take in a report; one that is lower than the last is of a new life."""
        if counted < self.counted:
            self.before += self.counted
        self.counted = counted

    def total(self, final: int = 0) -> int:
        """Return the sum over all lives; `final`: what the last of them reported at its end."""
        return self.before + max(self.counted, final)
