"""Messages to be sent to one client of StreamChannel."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator

from p4switch.proto import p4r
from p4switch.targets.v1model.engine import ControlError

LARGEST_BACKLOG = 4096
"""Maximum packet-ins that wait for a slow client; further ones are dropped."""
LARGEST_QUEUE = 2 * LARGEST_BACKLOG
"""Maximum messages of all kinds that wait for a client; its stream ends if there are more."""


class Outbox:
    """A queue from any thread to the one that serves a stream."""

    def __init__(self) -> None:
        self._messages: deque[p4r.StreamMessageResponse] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self.error: ControlError | None = None
        """Why the stream ends, if not because the client left."""
        self.dropped = 0

    def put(self, message: p4r.StreamMessageResponse) -> None:
        """Queue a message that must not be lost; if too many wait, end the stream after those."""
        with self._changed:
            if self._closed:
                return
            if len(self._messages) >= LARGEST_QUEUE:
                self.close(ControlError("RESOURCE_EXHAUSTED", "the client does not read"))
                return
            self._messages.append(message)
            self._changed.notify()

    def offer(self, message: p4r.StreamMessageResponse) -> None:
        """Queue a message, or drop it if too many wait."""
        with self._changed:
            if self._closed:
                return
            if len(self._messages) >= LARGEST_BACKLOG:
                self.dropped += 1
                return
            self._messages.append(message)
            self._changed.notify()

    def close(self, error: ControlError | None = None) -> None:
        """End the stream after the queued messages."""
        with self._changed:
            if not self._closed:
                self._closed = True
                self.error = error
            self._changed.notify()

    def __iter__(self) -> Iterator[p4r.StreamMessageResponse]:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._messages or self._closed)
                if not self._messages:
                    return
                message = self._messages.popleft()
            yield message
