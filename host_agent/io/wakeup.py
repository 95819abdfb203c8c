"""A descriptor by which other threads wake an event loop."""

from __future__ import annotations

import os
import threading


class Wakeup:
    """Readable from `set` to `clear`. All methods may be called from any thread, at any time.

    After `close` nothing is written any more: the kernel gives the number to the next file.
    """

    def __init__(self) -> None:
        self._descriptor = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._lock = threading.Lock()
        self._closed = False
        self._set = False
        """Whether it is readable; setting or clearing again makes no system call."""

    def fileno(self) -> int:
        """Return the descriptor to poll; it must not be polled after `close`."""
        return self._descriptor

    def set(self) -> None:
        """Make the descriptor readable."""
        with self._lock:
            if not self._closed and not self._set:
                os.eventfd_write(self._descriptor, 1)
                self._set = True

    def clear(self) -> None:
        """Make the descriptor unreadable."""
        with self._lock:
            if not self._closed and self._set:
                os.eventfd_read(self._descriptor)
                self._set = False

    def close(self) -> None:
        """Close the descriptor if it is open."""
        with self._lock:
            if not self._closed:
                self._closed = True
                os.close(self._descriptor)
