"""Verification of frames by check lanes (`hopsum.host_agent.integrity`), at workers and servers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hopsum.host_agent.codec import Form, Frames, exponents_of, flags_of, fragments_of, some
from hopsum.host_agent.integrity import Integrity
from hopsum.protocol.wire import Flag

_OVERFLOW = np.uint8(Flag.OVERFLOW)
_ALL_FLAGS = np.uint8(0xFF)
_NEVER_ASKED = float("-inf")


class ResultChecks:
    """A worker's checks of results in a stream with `window` slots."""

    def __init__(self, window: int) -> None:
        self._asked_at = np.full(window, _NEVER_ASKED)
        """Time when the server was last asked because of an invalid result."""

    def bind(self, integrity: Integrity, form: Form) -> None:
        """Take keys and the form of results from a plan."""
        self.integrity = integrity
        self._form = form

    def verify(
        self, frames: Frames, wire: NDArray[np.int64], announced: NDArray[np.uint8]
    ) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Return which results are the server's, and which of these are invalid nevertheless.

        In the latter an exponent was altered on the way up: it is below the one that this worker
        `announced` (n,), or no worker needs it.
        """
        codes = exponents_of(frames)
        genuine, useless = self.integrity.opened(self._form.values(frames), wire, codes)
        return genuine, genuine & (useless | (announced > codes))

    def to_ask(self, slots: NDArray[np.intp], now: float, interval: float) -> NDArray[np.intp]:
        """Return the slots for which the server has not been asked for an interval, and mark them
        as asked."""
        slots = slots[self._asked_at[slots] + interval <= now]
        self._asked_at[slots] = now
        return slots

    def settle(self, slots: NDArray[np.intp]) -> None:
        """Note that results of these slots are valid."""
        self._asked_at[slots] = _NEVER_ASKED

    def wrapped(self, frame: Frames) -> bool:
        """Return whether a flagged result really wrapped around: the flag may be forged."""
        values = self._form.values(frame)
        codes = exponents_of(frame)
        genuine, _ = self.integrity.opened(values, fragments_of(frame), codes, overflow=True)
        return bool(genuine[0])

    def asks(self, frame: Frames) -> bool:
        """Return whether a question for a single contribution is the server's."""
        return bool(self.integrity.asked(self._form.values(frame), fragments_of(frame))[0])


@dataclass(frozen=True, slots=True)
class SealedSums:
    """Sums that can be sent as results: mask of rows, lanes as on the wire, and flags."""

    rows: NDArray[np.bool_]
    raw: Frames
    flags: NDArray[np.uint8]


def seal_sums(
    integrity: Integrity,
    fragments: NDArray[np.int64],
    raw: Frames,
    codes: NDArray[np.uint8],
    flags: NDArray[np.uint8],
    doubted: NDArray[np.bool_],
) -> tuple[list[SealedSums], NDArray[np.bool_]]:
    """Turn valid sums into results; also return which (n,) are invalid.

    A `doubted` sum is one of single contributions, which each show by themselves that they are
    right: if it does not fit, it has wrapped around.
    """
    values = raw.view(">i4").astype(np.int32)
    right, needs = integrity.fits(values, fragments)
    wrapped = ~right & doubted & ((flags & _OVERFLOW) != 0)
    sealed = []
    for rows, keep in (
        (right, ~_OVERFLOW),  # it may have wrapped around and back
        (wrapped, _ALL_FLAGS),
    ):
        if some(rows):
            whole = values[rows]
            if rows is right:
                integrity.seal(whole, fragments[rows], codes[rows], needs[rows])
            else:
                integrity.seal_overflow(whole, fragments[rows], codes[rows])
            sealed.append(SealedSums(rows, whole.astype(">i4").view(np.uint8), flags[rows] & keep))
    return sealed, ~(right | wrapped)


def is_result(integrity: Integrity, form: Form, frame: Frames) -> bool:
    """Return whether a total handed over by a worker is a server's result."""
    overflow = bool(flags_of(frame)[0] & _OVERFLOW)
    values = form.values(frame)
    genuine, _ = integrity.opened(values, fragments_of(frame), exponents_of(frame), overflow)
    return bool(genuine[0])
