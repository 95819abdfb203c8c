"""Signals that end a process, as a file that becomes readable."""

from __future__ import annotations

import os
import signal
from typing import NamedTuple


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
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    return EndSignals(noted, write)
