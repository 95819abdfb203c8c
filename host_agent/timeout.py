"""When to send again: RFC 6298's adaptive timeout."""

from __future__ import annotations


def earliest(*times: float | None) -> float | None:
    """Return the first of the times that are set; None: none is."""
    first = None
    for time in times:
        if time is not None and (first is None or time < first):
            first = time
    return first


class RoundTrip:
    """The smoothed round-trip time of one stream, and the timeout it leads to (RFC 6298).

    Karn's rule is the caller's: only fragments sent once are samples. `back_off` doubles the
    timeout at most once a round, however many fragments expire in it; the next sample ends it.
    `patient`: others repair losses, and timeouts are for what they cannot: it takes the timeout
    times four, and up to eight times `most`. `initial`: the first timeout. Times in seconds.
    """

    def __init__(self, initial: float, least: float, most: float) -> None:
        self.initial = self.timeout = initial
        self.patient = False
        self.smoothed: float | None = None
        self.variation = 0.0
        self.least = least
        self.most = most
        self._backed_off_at = float("-inf")

    def sample(self, seconds: float) -> None:
        """Take in one measured round trip."""
        if self.smoothed is None:
            self.smoothed = seconds
            self.variation = seconds / 2
        else:
            self.variation += (abs(self.smoothed - seconds) - self.variation) / 4
            self.smoothed += (seconds - self.smoothed) / 8
        self.timeout = min(self.most, max(self.least, self.smoothed + 4 * self.variation))

    def restart(self) -> None:
        """Forget the back-off: a new epoch."""
        self.timeout = min(self.most, self.timeout)

    def back_off(self, now: float, last_sent: float) -> bool:
        """Double the timeout: something sent last at `last_sent` has timed out.

        Returns whether a new round of timeouts begins with it.
        """
        if last_sent < self._backed_off_at:
            return False
        factor, most = (4, 8 * self.most) if self.patient else (2, self.most)
        self.timeout = min(most, factor * self.timeout)
        self._backed_off_at = now
        return True
