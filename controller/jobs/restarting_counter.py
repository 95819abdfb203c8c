"""Totals of remote counters that restart from 0 with their process."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class RestartingCounter:
    """The total of a counter over all lives of its process; it never decreases."""

    counted: int = 0
    """The last reported value."""
    before: int = 0
    """Total of earlier lives."""

    def take(self, counted: int) -> None:
        """Process a report; a lower one than the last starts a new life."""
        if counted < self.counted:
            self.before += self.counted
        self.counted = counted

    def total(self, final: int = 0) -> int:
        """Return the sum over all lives; `final`: the last life's final report."""
        return self.before + max(self.counted, final)
