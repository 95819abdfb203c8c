"""One event loop for all asynchronous runs of a process.

grpc.aio has one poller per process, which keeps waking every loop it has ever used: if that is
closed, it prints a traceback (otherwise harmless). So consecutive runs, as in the demo and in
benchmarks, share a loop that stays open.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import signal
import threading
from collections.abc import Coroutine, Iterator
from functools import cache
from types import FrameType
from typing import Any, NoReturn, TypeVar

from hopsum.protocol.errors import Interrupted

_T = TypeVar("_T")


@cache
def _runner() -> asyncio.Runner:
    runner = asyncio.Runner()
    atexit.register(_close, runner)
    return runner


def _close(runner: asyncio.Runner) -> None:
    # Python 3.12.1 refuses the thread that waits for those of `to_thread` (python/cpython#113964).
    with contextlib.suppress(RuntimeError):
        runner.close()


def run_async(coroutine: Coroutine[Any, Any, _T]) -> _T:
    """Run a coroutine like `asyncio.run`, but keep the loop.

    SIGINT cancels it, and in a block of `terminable` also SIGTERM; once it has ended, raises
    KeyboardInterrupt or Interrupted.
    """
    if not _terminable():
        return _runner().run(coroutine)
    terminated = False

    async def run() -> _T:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None

        def terminate() -> None:
            nonlocal terminated
            terminated = True
            task.cancel()

        loop.add_signal_handler(signal.SIGTERM, terminate)
        try:
            return await coroutine
        finally:
            loop.remove_signal_handler(signal.SIGTERM)
            signal.signal(signal.SIGTERM, _raise)

    try:
        return _runner().run(run())
    except asyncio.CancelledError:
        if terminated:
            raise Interrupted(signal.SIGTERM) from None
        raise


@contextlib.contextmanager
def interruption() -> Iterator[asyncio.Event]:
    """Make SIGINT and SIGTERM only set an event while the block runs, in a coroutine.

    The loop outlives the block: later runs in it must be cancelled by these signals again.
    """
    event = asyncio.Event()
    loop = asyncio.get_running_loop()
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number in before:
        loop.add_signal_handler(number, event.set)
    try:
        yield event
    finally:
        for number, handler in before.items():
            loop.remove_signal_handler(number)
            signal.signal(number, handler)


@contextlib.contextmanager
def terminable() -> Iterator[None]:
    """Let SIGTERM raise Interrupted while the block runs, in the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, _raise)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _terminable() -> bool:
    main = threading.current_thread() is threading.main_thread()
    return main and signal.getsignal(signal.SIGTERM) is _raise


def _raise(number: int, frame: FrameType | None) -> NoReturn:
    raise Interrupted(signal.SIGTERM)
