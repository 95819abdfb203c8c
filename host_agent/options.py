"""A worker's options."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

STEADY_PROBES = 8
"""Evenly spaced probes where links repair their losses; no timeout precedes them: a probe shows a
gap, however many frames were lost in a row."""


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """Options of a worker. Times in seconds."""

    initial_timeout: float = 0.25
    """Timeout before the first round trip is measured."""
    min_timeout: float = 0.02
    max_timeout: float = 1.0
    min_probe: float = 0.01
    """Time without a result, or two round trips if that is longer, after which a probe is sent.
    Doubles while no result arrives."""
    bypass_after: int = 6
    """Timeouts of a fragment, or four times as many retransmissions of any kind, after which it
    bypasses the switches' slots."""
    deadline: float = 60.0
    """Time without a result of a fragment after which the job fails."""
    first_fragment: int = 0
    """Number of the first fragment; not 0 to test the wrap at 2^32."""
    scale_workers: int | None = None
    """Worker count that the float32 scale is made for; None: that of the worker's first plan.
    The same at every worker for the life of the job, and never below the worker count."""

    def __post_init__(self) -> None:
        for name in ("initial_timeout", "min_timeout", "max_timeout", "min_probe", "deadline"):
            value = getattr(self, name)
            if not 0 < value < inf:
                raise ValueError(f"option {name} {value!r:.40}: expected seconds, above 0")
        for name, most in (("bypass_after", 1 << 31), ("first_fragment", 0xFFFFFFFF)):
            value = getattr(self, name)
            if not 0 <= value <= most:
                raise ValueError(f"option {name} {value!r:.40}: expected 0 to {most}")
        workers = self.scale_workers
        if workers is not None and not 0 < workers <= 0xFFFF:
            raise ValueError(f"option scale_workers {workers!r:.40}: expected 1 to {0xFFFF}")
