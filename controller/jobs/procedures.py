"""Procedures: what the job engine does in several steps, with waits in between.

A procedure is a generator. It yields what it waits for (rules to install, a computation, a lock),
and is resumed with the result, or with the error. So it reads like sequential code, and does no
input or output: whoever drives the engine installs the rules and runs the computations.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Any, TypeVar

from hopsum.controller.dataplane.rules import SwitchRules
from hopsum.protocol.errors import OperationError

LOGGER = logging.getLogger("hopsum.jobs")

T = TypeVar("T")


class AbandonedError(OperationError):
    """The requester of a procedure no longer waits for it."""

    def __init__(self) -> None:
        super().__init__("its submission was interrupted")


class SupersededError(OperationError):
    """The rules being installed are out of date: a switch has failed meanwhile."""


@dataclass(frozen=True, slots=True)
class Install:
    """Rules that the switches are to hold; resumes once they have them."""

    rules: Mapping[str, SwitchRules]


@dataclass(frozen=True, slots=True)
class Compute:
    """A computation without side effects that may take seconds; resumes with its result."""

    function: Callable[[], Any]


@dataclass(eq=False, slots=True)
class Lock:
    """A lock of procedures, granted in the order in which they ask."""

    holder: RunningProcedure | None = None
    waiting: deque[RunningProcedure] = field(default_factory=deque)


Wait = Install | Compute | Lock
Procedure = Generator[Wait, Any, T]
Outcome = Callable[[Any, Exception | None], None]
"""Called with the result of a procedure, or its error."""


@dataclass(eq=False, slots=True)
class RunningProcedure:
    """A procedure that has started."""

    number: int
    steps: Procedure[Any]
    done: Outcome | None
    lock: Lock | None = None
    """The lock it waits for."""
    work: int = 0
    """Number of the installation or computation it waits for; 0: none."""
    installs: bool = False
    """Whether that is an installation."""


class Procedures:
    """The procedures in progress. `run` advances those that can go on."""

    def __init__(self) -> None:
        self._numbers = count(1)
        self._running: dict[int, RunningProcedure] = {}
        self._working: dict[int, RunningProcedure] = {}
        """Those that wait for an installation or a computation, by its number."""
        self._ready: deque[tuple[RunningProcedure, Any, Exception | None]] = deque()
        self.requested: list[tuple[int, Install | Compute]] = []
        """Numbered installations and computations that the driver has not taken yet."""
        self.abandoned: list[int] = []
        """Numbers of those whose result no longer matters."""

    def start(self, steps: Procedure[Any], done: Outcome | None = None) -> int:
        """Start a procedure; `done` gets its outcome. Without `done` an error is logged."""
        running = RunningProcedure(next(self._numbers), steps, done)
        self._running[running.number] = running
        self._ready.append((running, None, None))
        return running.number

    def resume(self, work: int, value: Any = None, error: Exception | None = None) -> None:
        """Resume the procedure that waits for an installation or a computation."""
        running = self._working.get(work)
        if running is not None:
            self._go_on(running, value, error)

    def interrupt(self, number: int) -> None:
        """Raise AbandonedError in a procedure that has not ended."""
        running = self._running.get(number)
        if running is not None and (running.work or running.lock):
            self._give_up(running, AbandonedError())

    def supersede(self) -> None:
        """Raise SupersededError in all procedures whose rules are being installed."""
        for running in [*self._working.values()]:
            if running.installs:
                self._give_up(running, SupersededError())

    def _give_up(self, running: RunningProcedure, error: Exception) -> None:
        if running.lock is not None:
            running.lock.waiting.remove(running)
        else:
            self.abandoned.append(running.work)
        self._go_on(running, None, error)

    def _go_on(self, running: RunningProcedure, value: Any, error: Exception | None) -> None:
        self._working.pop(running.work, None)
        running.work, running.lock = 0, None
        self._ready.append((running, value, error))

    def locked(self, lock: Lock, steps: Procedure[T]) -> Procedure[T]:
        """Run a procedure while no other holds the lock."""
        yield lock
        try:
            return (yield from steps)
        finally:
            lock.holder = None
            if lock.waiting:
                self._grant(lock, lock.waiting.popleft())

    def _grant(self, lock: Lock, running: RunningProcedure) -> None:
        lock.holder = running
        self._go_on(running, None, None)

    def run(self) -> None:
        """Advance all procedures as far as possible."""
        while self._ready:
            running, value, error = self._ready.popleft()
            try:
                step = running.steps
                wait = step.send(value) if error is None else step.throw(error)
            except StopIteration as end:
                self._finish(running, end.value, None)
            except Exception as problem:  # noqa: BLE001 - it is the outcome
                self._finish(running, None, problem)
            else:
                self._wait(running, wait)

    def _wait(self, running: RunningProcedure, wait: Wait) -> None:
        if not isinstance(wait, Lock):
            running.work, running.installs = next(self._numbers), isinstance(wait, Install)
            self._working[running.work] = running
            self.requested.append((running.work, wait))
        elif wait.holder is None:
            self._grant(wait, running)
        else:
            running.lock = wait
            wait.waiting.append(running)

    def _finish(self, running: RunningProcedure, value: Any, error: Exception | None) -> None:
        del self._running[running.number]
        if running.done is not None:
            running.done(value, error)
        elif error is not None:
            LOGGER.error("a procedure of the job engine failed", exc_info=error)
