"""Two-rate three-colour meters, as BMv2 computes them (src/bm_sim/meters.cpp)."""

from __future__ import annotations

from p4switch.targets.v1model.engine import MeterConfig

GREEN, YELLOW, RED = 0, 1, 2


class _Bucket:
    """A token bucket; it counts all tokens since the clock's start, so it does not drift."""

    __slots__ = ("burst", "filled_until", "rate", "tokens")

    def __init__(self, rate: int, burst: int) -> None:
        self.rate = rate
        self.burst = burst
        self.tokens = burst
        self.filled_until = 0  # Tokens added since clock 0.

    def take(self, amount: int, now_us: int) -> bool:
        """Take `amount` tokens if there are as many."""
        since_start = now_us * self.rate // 1_000_000
        self.tokens = min(self.tokens + since_start - self.filled_until, self.burst)
        self.filled_until = since_start
        if self.tokens < amount:
            return False
        self.tokens -= amount
        return True


class Meter:
    """A meter cell. `unit_bytes`: a packet costs its bytes, else 1."""

    __slots__ = ("_committed", "_peak", "unit_bytes")

    def __init__(self, unit_bytes: bool = False) -> None:
        self.unit_bytes = unit_bytes
        self._peak: _Bucket | None = None
        self._committed: _Bucket | None = None

    def configure(self, config: MeterConfig | None) -> None:
        """Restart with full buckets; None: always green."""
        self._peak = self._committed = None
        if config is not None:
            self._peak = _Bucket(config.pir, config.pburst)
            self._committed = _Bucket(config.cir, config.cburst)

    def execute(self, length: int, now_us: int, color: int = GREEN) -> int:
        """Return the colour of a packet of `length` bytes: 0 green, 1 yellow, 2 red.

        The peak rate is checked first; a red packet takes nothing from the committed one.
        `color` is the packet's before (RFC 2698, colour-aware mode): it becomes no better, a red
        one takes nothing, and a yellow one nothing from the committed rate.
        """
        if self._peak is None or self._committed is None:
            return color
        amount = length if self.unit_bytes else 1
        if color == RED or not self._peak.take(amount, now_us):
            return RED
        if color == YELLOW:
            return YELLOW
        return GREEN if self._committed.take(amount, now_us) else YELLOW
