"""Threads that wait for messages read them in turns, without handing them to each other.

A thread that waits for a result reads what comes, whoever it is for, until its own has come; others
that wait meanwhile are woken then, and one goes on. So a lone call costs one wake-up, not two.
Where nobody waits, a thread in the background reads now and then, or all the time for those who ask
it to.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from math import inf

SWEEP_SECONDS = 0.1
"""Interval at which the thread in the background reads what nobody waits for."""

LOOK_SECONDS = 1.0
"""Interval at which the background thread checks for missed deadlines."""

Done = Callable[[], bool]


@dataclass(frozen=True, eq=False, slots=True)
class _BackgroundRead:
    """What the background thread reads for, until `done`; at `deadline` it calls `expire`."""

    done: Done
    deadline: float = inf
    expire: Callable[[], object] = lambda: None


class Turns:
    """Threads that take turns at `read`, and one in the background of this `name`.

    `read` processes one message if it comes within some seconds (infinity: whenever), and returns
    whether it did; it raises EOFError once there are no more. One thread at a time calls it.
    """

    def __init__(self, read: Callable[[float], bool], name: str) -> None:
        self._read = read
        self._turn = threading.Condition()
        self._reading = False
        self._waiting = 0
        """Number of threads that wait for the one that reads."""
        self._over = False
        self._called = threading.Condition()
        self._awaited: list[_BackgroundRead] = []
        self.thread = threading.Thread(target=self._run, name=name, daemon=True)
        self.thread.start()

    def until(self, done: Done, seconds: float = inf) -> bool:
        """Read until something is `done`, for some seconds at most; return whether it is.

        0 seconds: read what has arrived.
        """
        deadline = time.monotonic() + seconds
        while not done() and not self._over:
            left = max(0.0, deadline - time.monotonic())
            if not self._step(done, left) and not left:
                break
        return done()

    def read_for(
        self, done: Done, deadline: float = inf, expire: Callable[[], object] = lambda: None
    ) -> None:
        """Let the thread in the background read until something is done.

        If it is not by `deadline`, of the monotonic clock, the thread calls `expire`.
        """
        with self._called:
            self._awaited.append(_BackgroundRead(done, deadline, expire))
            self._called.notify()

    def stop(self) -> None:
        """Stop reading, in a process forked from the one that reads."""
        self._over = True

    def _step(self, done: Done, seconds: float) -> bool:
        """Read a message, or wait until another thread has; return whether this one did."""
        with self._turn:
            if self._reading:
                self._waiting += 1
                free = lambda: not self._reading or done()  # noqa: E731
                self._turn.wait_for(free, None if seconds == inf else seconds)
                self._waiting -= 1
            if self._reading or self._over or done():
                return False
            self._reading = True
        try:
            return self._read(seconds)
        except EOFError:
            self._over = True
            return False
        finally:
            with self._turn:
                self._reading = False
                if self._waiting:
                    self._turn.notify_all()

    def _run(self) -> None:
        """Read in the background what no thread waits for."""
        while not self._over:
            with self._called:
                self._called.wait_for(lambda: self._awaited, SWEEP_SECONDS)
                awaited = [each for each in self._awaited if not each.done()]
                self._awaited = awaited
            if awaited:
                self._read_for(awaited)
            elif not self._reading:
                self.until(lambda: False, 0.0)

    def _read_for(self, awaited: list[_BackgroundRead]) -> None:
        """Read until the first of them is done, or one should be; then it expires."""
        left = min(each.deadline for each in awaited) - time.monotonic()
        # Another with an earlier deadline may be added.
        self.until(awaited[0].done, min(LOOK_SECONDS, max(0.0, left)))
        now = time.monotonic()
        late = [each for each in awaited if each.deadline <= now and not each.done()]
        for each in late:
            each.expire()
        if late:
            with self._called:
                self._awaited = [each for each in self._awaited if each not in late]
