"""Observes the frames that leave nodes of a world."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Departures:
    """An `Observer` that calls `note` with the node that a frame leaves, and the frame."""

    def __init__(self, note: Callable[[str, bytes], None]) -> None:
        self._note = note

    def left(self, time: float, source: str, target: str, frame: bytes, lost: bool) -> None:
        """See `Observer`."""
        self._note(source, frame)

    def entered(self, *_: Any) -> None:
        """See `Observer`."""

    def handled(self, *_: Any) -> None:
        """See `Observer`."""
