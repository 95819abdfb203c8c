"""One event loop for all asynchronous runs of a process.

grpc.aio has one poller a process, which goes on waking the loops it has met: when it wakes one that
is closed, a traceback is printed (nothing else happens). So runs that follow each other, as in the
demo and in benchmarks, share a loop that stays open.
"""

from __future__ import annotations

import asyncio
import atexit
from collections.abc import Coroutine
from functools import cache
from typing import Any, TypeVar

_T = TypeVar("_T")


@cache
def _runner() -> asyncio.Runner:
    runner = asyncio.Runner()
    atexit.register(runner.close)
    return runner


def run_async(coroutine: Coroutine[Any, Any, _T]) -> _T:
    """Run a coroutine to its end, as `asyncio.run` does but for the loop's end."""
    return _runner().run(coroutine)
