"""Virtual time: a queue of events in order of time, ties in order of scheduling.

The queue is compiled (compiled/events.c), and most events of a network are, too: Python is entered
for its own.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable
from math import inf

from hopsum.protocol.errors import OperationError
from hopsum.simulation.compiled.library import Events, library

Action = Callable[[], None]
_MOST = (1 << 64) - 1


class SimulationError(OperationError):
    """A run that cannot continue: no event is scheduled, or the time limit is reached."""


class EventQueue:
    """Events and a clock, in seconds from 0."""

    def __init__(self) -> None:
        self._state = state = Events()
        self.address = ctypes.addressof(state)
        """Of `struct events`."""
        self._schedule = library().events_at
        self._run = library().events_run
        self._actions: dict[int, Action] = {}
        """Of Python's events, by number."""
        self._lasting: list[Action] = []
        self._error: BaseException | None = None
        free = library().events_free
        weakref.finalize(self, lambda: free(ctypes.addressof(state)))

    @property
    def now(self) -> float:
        """The time, seconds."""
        return self._state.now  # type: ignore[no-any-return]

    @property
    def processed(self) -> int:
        """The number of events so far."""
        return self._state.processed  # type: ignore[no-any-return]

    def at(self, time: float, action: Action) -> None:
        """Run `action` at `time`, or immediately if that has passed."""
        self._actions[self._schedule(self.address, time)] = action

    def keep(self, action: Action) -> int:
        """Return a number by which compiled code wants Python to do something, every time."""
        self._lasting.append(action)
        return -len(self._lasting)

    def fail(self, error: BaseException) -> None:
        """Raise an error once the compiled code that has called Python returns."""
        if self._error is None:
            self._error = error
        self._state.interrupted = 1

    def check(self) -> None:
        """Raise the error of a call by compiled code, if there was one."""
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def step(self) -> bool:
        """Run the next event; False if there is none."""
        return self.run(self._state.processed + 1)

    def run(self, most: int = _MOST, limit: float = inf) -> bool:
        """Run events, up to one in which Python takes part; False if there was none.

        None is later than `limit`, and no more have been processed then than `most`.
        """
        before = self._state.processed
        wanted = self._run(self.address, most, limit)
        if self._error is not None:
            self.check()
        self.do(wanted)
        return before != self._state.processed  # type: ignore[no-any-return]

    def do(self, wanted: int) -> None:
        """Do what compiled code wants Python to do: an event, or what is kept; 0: nothing."""
        if wanted > 0:
            self._actions.pop(wanted)()
        elif wanted < 0:
            self._lasting[-wanted - 1]()

    @property
    def next_time(self) -> float | None:
        """Return when the next event is due; None if there is none."""
        due: float = library().events_next(self.address)
        return None if due == inf else due
