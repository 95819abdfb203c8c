"""An asyncio event loop in virtual time: coroutines and packets share one queue of events.

Nothing waits for real time. Ready callbacks run in order; if there are none, the next event of the
queue is executed, and the clock advances to it. Work for threads (`asyncio.to_thread`) is done
immediately, without advancing virtual time. So a run repeats exactly, with these precautions:

- A timer is an event of the queue like any other, so ties are broken by the order of scheduling.
- Tasks and futures hash to their number, not their address: libraries iterate over sets of them.
- Garbage is collected after a number of events, not by memory use: it ends forgotten coroutines.

Coroutines belong to the process that `PROCESS` names in their context. A process can hang (`hang`):
then none of its callbacks run, and its timers wait, until `resume`.
"""

from __future__ import annotations

import asyncio
import gc
import selectors
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import Executor
from contextvars import Context, ContextVar
from itertools import count
from typing import Any, TypeVar, TypeVarTuple

from hopsum.simulation.events import EventQueue, SimulationError

_T = TypeVar("_T")
_Ts = TypeVarTuple("_Ts")

COLLECT_EVENTS = 1 << 16
"""Number of events between garbage collections."""
PROCESS: ContextVar[str] = ContextVar("PROCESS", default="")
"""The process that runs a coroutine."""


class _Task(asyncio.Task[Any]):
    def __init__(self, number: int, *args: Any, **options: Any) -> None:
        self._number = number
        super().__init__(*args, **options)

    def __hash__(self) -> int:
        return self._number


class _Future(asyncio.Future[Any]):
    def __init__(self, number: int, loop: asyncio.AbstractEventLoop) -> None:
        self._number = number
        super().__init__(loop=loop)

    def __hash__(self) -> int:
        return self._number


class _Selector(selectors.SelectSelector):
    """Selector that executes events instead of waiting for descriptors."""

    def __init__(self, wait: Callable[[], None]) -> None:
        super().__init__()
        self._wait = wait

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        raise SimulationError("there are no sockets or pipes in virtual time")

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            self._wait()
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop on the clock of `queue`; SimulationError if no event is left."""

    _ready: Any

    def __init__(self, queue: EventQueue | None = None) -> None:
        self.queue = queue or EventQueue()
        self._numbers = count()
        self._collect_at = COLLECT_EVENTS
        self._hanging: dict[str, list[asyncio.Handle]] = {}
        """Callbacks of processes that hang, in the order in which they were due."""
        super().__init__(_Selector(self._advance))
        self.set_task_factory(self._make_task)

    def time(self) -> float:
        """Return the virtual time in seconds."""
        return self.queue.now

    def _advance(self) -> None:
        """Execute events until one of them makes a callback ready."""
        while not self._ready:
            if not self.queue.run(self._collect_at):
                raise SimulationError(self._deadlock())
            if self.queue.processed >= self._collect_at:
                self._collect_at += COLLECT_EVENTS
                gc.collect()

    def _deadlock(self) -> str:
        waiting = sorted(
            f"{task.get_name()} ({getattr(task.get_coro(), '__qualname__', task.get_coro())})"
            for task in asyncio.all_tasks(self)
        )
        return (
            f"no event is left at {self.time():.6f} s, and these tasks wait: {', '.join(waiting)}"
        )

    def hang(self, process: str) -> None:
        """Run none of a process's callbacks until `resume`."""
        self._hanging.setdefault(process, [])

    def resume(self, process: str) -> None:
        """Run what has become due while a process was hanging, in that order."""
        self._ready.extend(self._hanging.pop(process, ()))

    def call_soon(
        self,
        callback: Callable[[*_Ts], object],
        *args: *_Ts,
        context: Context | None = None,
    ) -> asyncio.Handle:
        """Call back soon, or when the process no longer hangs."""
        if self._hanging:
            held = self._hanging.get(_process_of(context))
            if held is not None:
                held.append(asyncio.Handle(callback, args, self, context))
                return held[-1]
        return super().call_soon(callback, *args, context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[[*_Ts], object],
        *args: *_Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        """Call back at a virtual time, as an event of the queue."""
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        process = _process_of(context)

        def due() -> None:
            if not handle.cancelled():
                self._hanging.get(process, self._ready).append(handle)

        self.queue.at(when, due)
        return handle

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[*_Ts], _T], *args: *_Ts
    ) -> asyncio.Future[_T]:
        """Do a thread's work immediately; its waiters resume after other ready tasks."""
        future: asyncio.Future[_T] = self.create_future()
        try:
            result = func(*args)
        except Exception as error:  # noqa: BLE001 - it is raised where the work is awaited
            self.call_soon(_settle, future, future.set_exception, error)
        else:
            self.call_soon(_settle, future, future.set_result, result)
        return future

    def create_future(self) -> asyncio.Future[Any]:
        """Return a future that hashes to a number."""
        return _Future(next(self._numbers), self)

    def _make_task(
        self,
        loop: asyncio.AbstractEventLoop,
        coroutine: Coroutine[Any, Any, _T] | Generator[Any, None, _T],
        context: Context | None = None,
    ) -> asyncio.Task[_T]:
        number = next(self._numbers)
        return _Task(number, coroutine, loop=loop, context=context, name=f"task {number}")

    # Its pipe would wake the loop from other threads, of which there are none.

    def _make_self_pipe(self) -> None:
        pass

    def _close_self_pipe(self) -> None:
        pass

    def _write_to_self(self) -> None:
        pass


def _process_of(context: Context | None) -> str:
    return PROCESS.get() if context is None else context.get(PROCESS, "")


def _settle(future: asyncio.Future[Any], settle: Callable[[Any], None], value: Any) -> None:
    if not future.done():
        settle(value)


def collect_earlier_runs() -> None:
    """Collect what earlier runs have left, and keep the collector from all that remains.

    Call it before anything of a run is made: what is older than the call is never collected.
    """
    gc.collect()
    gc.freeze()


def run_virtual(work: Coroutine[Any, Any, _T], queue: EventQueue | None = None) -> _T:
    """Run a coroutine in virtual time; SimulationError if it deadlocks."""
    collected = gc.isenabled()
    gc.disable()
    try:
        with asyncio.Runner(loop_factory=lambda: VirtualLoop(queue)) as runner:
            return runner.run(work)
    finally:
        if collected:
            gc.enable()
