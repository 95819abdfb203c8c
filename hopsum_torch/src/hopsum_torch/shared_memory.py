"""Memory that this process and the agent both map, one piece per call."""

from __future__ import annotations

import fcntl
import mmap
import os
from collections import defaultdict
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

LEAST_BYTES = 1 << 12


class Memory:
    """One piece of `bytes` bytes, by its number, initially zero."""

    def __init__(self, number: int, size: int) -> None:
        self.number = number
        self.size = size
        self.pinned = False
        """Whether GPUs copy from and to it directly (`hopsum_torch.pinned`)."""
        self.descriptor = os.memfd_create(f"hopsum {number}", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(self.descriptor, size)
            # The agent maps no memory that could shrink below it.
            fcntl.fcntl(self.descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
            self.bytes: NDArray[np.uint8] = np.frombuffer(
                mmap.mmap(self.descriptor, size), np.uint8
            )
        except BaseException:
            os.close(self.descriptor)
            raise

    def close_descriptor(self) -> None:
        """Close the descriptor once the agent has mapped the memory."""
        os.close(self.descriptor)


class Memories:
    """A pool of pieces of power-of-two size. `announce` reports a new one to the agent.

    The maximum bytes of simultaneous calls stay mapped, rounded up.
    """

    def __init__(self, announce: Callable[[Memory], None]) -> None:
        self._announce = announce
        self._free: defaultdict[int, list[Memory]] = defaultdict(list)
        self._number = 0

    def take(self, size: int) -> Memory:
        """Return a piece of at least `size` bytes. Raises OSError without memory."""
        rounded = max(LEAST_BYTES, 1 << (size - 1).bit_length() if size else 0)
        free = self._free[rounded]
        if free:
            return free.pop()
        made = Memory(self._number, rounded)
        self._number += 1
        try:
            self._announce(made)
        finally:
            made.close_descriptor()
        return made

    def give_back(self, memory: Memory) -> None:
        """Return a piece to the pool."""
        self._free[memory.size].append(memory)
