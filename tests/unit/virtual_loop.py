"""An event loop in virtual time, for tests of what waits."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

_T = TypeVar("_T")


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop in which sleeping takes no time: the clock goes on to what is due next.

    It stands still while a thread works (`asyncio.to_thread`), so that a busy machine changes
    nothing.
    """

    def __init__(self) -> None:
        super().__init__()
        self._now = 0.0
        self._threads = 0

    def time(self) -> float:
        return self._now

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> asyncio.Future[Any]:
        future = super().run_in_executor(executor, func, *args)
        self._threads += 1
        future.add_done_callback(self._joined)
        return future

    def _joined(self, future: asyncio.Future[Any]) -> None:
        self._threads -= 1

    def _run_once(self) -> None:
        if not self._ready and self._scheduled and not self._threads:
            self._now = max(self._now, self._scheduled[0].when())
        super()._run_once()


def run_virtual(work: Coroutine[Any, Any, _T]) -> _T:
    """Run a coroutine in virtual time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(work)
