"""The thread for timed work: digest lists and idle-timeout notifications."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Protocol

SWEEP_SECONDS = 0.25
"""Seconds between sweeps for idle table entries."""

Work = Callable[[bool], int | None]
"""Does due work (with True also the sweep); returns the next deadline in monotonic ns."""


class Clockwork(Protocol):
    """Runs work at its deadlines and, for programs with idle timeouts, at every sweep."""

    def now_ns(self) -> int:
        """Return the clock of deadlines in nanoseconds."""

    def date_ns(self) -> int:
        """Return the nanoseconds since 1970."""

    def configure(self, *, sweep: bool) -> None:
        """Set whether idle entries are checked."""

    def wake(self) -> None:
        """Recompute the deadlines."""

    def close(self) -> None:
        """Stop all work."""


class Timers:
    """A `Clockwork` that is a thread."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self._changed = threading.Condition()
        self._woken = False
        self._closed = False
        self._sweep = False
        self._thread = threading.Thread(target=self._run, name="timers", daemon=True)
        self._thread.start()

    def now_ns(self) -> int:
        """Return the machine's monotonic clock."""
        return time.monotonic_ns()

    def date_ns(self) -> int:
        """Return the machine's date."""
        return time.time_ns()

    def configure(self, *, sweep: bool) -> None:
        """Set whether idle entries are checked."""
        with self._changed:
            self._sweep = sweep
        self.wake()

    def wake(self) -> None:
        """Recompute the deadlines."""
        with self._changed:
            self._woken = True
            self._changed.notify()

    def close(self) -> None:
        """End the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        next_sweep = 0.0
        while True:
            now = time.monotonic()
            sweep = self._sweep and now >= next_sweep
            if sweep:
                next_sweep = now + SWEEP_SECONDS
            deadline = self._work(sweep)
            waits = [next_sweep - now] if self._sweep else []
            if deadline is not None:
                waits.append(deadline / 1e9 - now)
            with self._changed:
                timeout = max(0.0, min(waits)) if waits else None
                self._changed.wait_for(lambda: self._woken or self._closed, timeout)
                self._woken = False
                if self._closed:
                    return
