"""Frames between two agents in one process."""

from __future__ import annotations

import os
from typing import cast

import numpy as np

from hopsum.host_agent.io.port import Frames


class MemoryPort:
    """One end of an in-process link; `pair()` makes both."""

    def __init__(self) -> None:
        self.queue: list[Frames] = []
        self._peer: MemoryPort | None = None
        self._read, self.write_end = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    @classmethod
    def pair(cls) -> tuple[MemoryPort, MemoryPort]:
        """Two ports: what one sends, the other receives."""
        a, b = cls(), cls()
        a._peer, b._peer = b, a
        return a, b

    def send(self, frames: Frames) -> int:
        """Send frames (n, length) to the other end; all are accepted."""
        peer = cast(MemoryPort, self._peer)
        if len(frames):
            peer.queue.append(np.array(frames))
            if len(peer.queue) == 1:
                os.write(peer.write_end, b"x")
        return len(frames)

    def receive(self, limit: int = 256) -> list[Frames]:
        """Return received frames, at most `limit`."""
        taken: list[Frames] = []
        while self.queue and limit > 0:
            frames = self.queue.pop(0)
            taken.append(frames[:limit])
            if len(frames) > limit:
                self.queue.insert(0, frames[limit:])
            limit -= len(taken[-1])
        if taken and not self.queue:
            os.read(self._read, 1)
        return taken

    def fileno(self) -> int:
        """Return a descriptor that is readable when frames have arrived."""
        return self._read

    def close(self) -> None:
        """Close this end's pipe."""
        os.close(self._read)
        os.close(self.write_end)
