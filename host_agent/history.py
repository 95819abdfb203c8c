"""History: the last result of each slot of a window, for retransmission by a worker or server."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hopsum.host_agent.codec import Form, Frames, raw_lanes, reductions_of

EMPTY = -1
"""Fragment number of an empty slot."""


class History:
    """The last result of each of `window` slots, as in frames."""

    def __init__(self, window: int, lanes: int) -> None:
        self.fragment = np.full(window, EMPTY, dtype=np.int64)
        self.lanes = raw_lanes(lanes, window)
        self.code = np.zeros(window, dtype=np.uint8)
        self.flags = np.zeros(window, dtype=np.uint8)
        self.reduction = np.zeros(window, dtype=np.uint8)

    def keep(
        self,
        slots: NDArray[np.int64],
        fragments: NDArray[np.int64],
        raw: Frames,
        codes: NDArray[np.uint8],
        reductions: NDArray[np.uint8],
    ) -> None:
        """Replace the results of slots (n,), each named once; `raw`: their lanes as on the wire."""
        self.fragment[slots] = fragments
        self.lanes[slots] = raw
        self.code[slots] = codes
        self.reduction[slots] = reductions

    def has(self, slots: NDArray[np.int64], fragments: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return which of the fragments (n,) are the last ones of their slots."""
        same: NDArray[np.bool_] = self.fragment[slots] == fragments
        return same

    def is_older(self, slots: NDArray[np.int64], fragments: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return which slots are empty, or have an older fragment than these (n,)."""
        kept = self.fragment[slots]
        older: NDArray[np.bool_] = (kept == EMPTY) | is_newer(fragments, kept)
        return older

    @property
    def filled(self) -> NDArray[np.intp]:
        """Return the slots with a result."""
        return np.flatnonzero(self.fragment != EMPTY)

    def oldest_first(self) -> NDArray[np.intp]:
        """Return the slots with a result, in the order of their fragments."""
        slots = self.filled
        if not len(slots):
            return slots
        kept = self.fragment[slots]
        age: NDArray[np.int64] = ((kept[0] - kept + (1 << 31)) & 0xFFFFFFFF) - (1 << 31)
        return slots[np.argsort(-age)]

    def make(self, form: Form, slots: NDArray[np.int64]) -> Frames:
        """Return the results of slots as frames of a form."""
        frames = form.make(self.fragment[slots], self.code[slots], self.flags[slots])
        form.raw(frames)[...] = self.lanes[slots]
        reductions_of(frames)[...] = self.reduction[slots]
        return frames


def is_newer(a: NDArray[np.int64], b: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return whether fragment numbers are newer, as serial numbers of 32 bits."""
    distance = (a - b) & 0xFFFFFFFF
    newer: NDArray[np.bool_] = (distance > 0) & (distance < 1 << 31)
    return newer
