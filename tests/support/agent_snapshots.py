"""What agents keep, to compare ways that must do the same."""

from __future__ import annotations

from typing import Any

import numpy as np

Snapshot = dict[str, Any]


def look(found: Snapshot, prefix: str, owner: Any) -> None:
    """Add what an object keeps to a snapshot."""
    names = getattr(owner, "__dict__", None) or {n: getattr(owner, n) for n in owner.__slots__}
    for name, value in names.items():
        if isinstance(value, np.ndarray):
            found[prefix + name] = value.tobytes()
        elif isinstance(value, (int, float, dict)):
            found[prefix + name] = repr(value)


def snapshot_of_stream(stream: Any) -> Snapshot:
    """Everything that a stream keeps, but for its forms, which never change here."""
    found: Snapshot = {}
    look(found, "stream.", stream)
    for part in ("_flight", "_results", "_statistics"):
        look(found, f"stream.{part}.", getattr(stream, part))
    look(found, "congestion.", stream._flight.congestion)
    look(found, "recovery.", stream._flight.recovery)
    look(found, "round_trip.", stream._flight.round_trip)
    look(found, "stream.sent.", stream._links.sent)
    look(found, "stream.arrivals.", stream._links.arrivals[0])
    # Scratch of either way, and what says nothing of slots that have sent no fragment.
    del found["stream._last"], found["stream._flight.frames"]
    found["in flight"] = stream._flight.frames[stream._flight.slots].tobytes()
    return found
