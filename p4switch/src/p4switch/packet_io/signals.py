"""Signals that end a process, as a file that becomes readable."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from typing import NamedTuple

NUMBERS = (signal.SIGTERM, signal.SIGINT)


class EndSignals(NamedTuple):
    """The ends of a pipe: `noted` is readable once the process is to end; writing does it too."""

    noted: int
    write: int


def note_end_signals() -> EndSignals:
    """From now on SIGTERM and SIGINT only make a pipe readable. For the main thread.

    A handler in Python cannot wake whoever waits: CPython runs it in the main thread, between two
    instructions. A signal that another thread takes, or that comes just before the main thread
    sleeps, would not be noticed before it wakes. The pipe is written by the handler in C.
    """
    noted, write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    for number in NUMBERS:
        signal.signal(number, lambda *_: None)
    return EndSignals(noted, write)


@contextlib.contextmanager
def end_signals() -> Iterator[EndSignals]:
    """Note signals, as `note_end_signals` does, while the block runs; then restore the handlers."""
    before = {number: signal.getsignal(number) for number in NUMBERS}
    end = note_end_signals()
    try:
        yield end
    finally:
        signal.set_wakeup_fd(-1)
        for number, handler in before.items():
            signal.signal(number, handler)
        for descriptor in end:
            os.close(descriptor)
