"""Times that may be unset."""

from __future__ import annotations


def earliest(*times: float | None) -> float | None:
    """Return the first of the times that are set; None: none is."""
    first = None
    for time in times:
        if time is not None and (first is None or time < first):
            first = time
    return first
