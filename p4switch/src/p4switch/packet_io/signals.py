"""Signals for a process, as a file descriptor that becomes readable."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from typing import NamedTuple

RELOAD = signal.SIGUSR1
NUMBERS = (signal.SIGTERM, signal.SIGINT, RELOAD)


class EndSignals(NamedTuple):
    """The ends of a pipe: the numbers of signals can be read at `noted`; writing also ends it."""

    noted: int
    write: int


@contextlib.contextmanager
def end_signals() -> Iterator[EndSignals]:
    """Make the signals NUMBERS only make a pipe readable while the block runs.

    For the main thread.

    A handler in Python cannot wake a waiting thread: CPython runs it in the main thread, between
    two instructions. A signal that another thread receives, or that arrives just before the main
    thread sleeps, would go unnoticed until it wakes. The handler in C writes to the pipe.
    """
    end = EndSignals(*os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC))
    descriptor = signal.set_wakeup_fd(end.write, warn_on_full_buffer=False)
    before = {number: signal.signal(number, lambda *_: None) for number in NUMBERS}
    try:
        yield end
    finally:
        signal.set_wakeup_fd(descriptor)
        for number, handler in before.items():
            signal.signal(number, handler)
        for each in end:
            os.close(each)
