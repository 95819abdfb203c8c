"""Which fragments in flight are lost, from what has come back since: after RACK-TLP (RFC 8985).

The timeout has to outlast a window that waits in queues; this notices most losses earlier. Networks
keep the order of a stream's packets but for a little, so a fragment whose result is missing
while those of later sendings arrive is lost (`overtaken`). After the last sendings nothing arrives
that could show their loss; but then the worker hears nothing at all, whereas a queue, however
long, lets a result out every now and then. So silence is what makes it probe.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from host_agent.codec import every, some
from host_agent.timeout import RoundTrip

NEVER = float("inf")
REORDERING_DEGREE = 3
"""A result that comes after those of fewer later sendings than this is just late, at first."""
LEAST_PATIENCE = 1e-4
"""Seconds that an overtaken fragment is waited for at least."""
SPREAD = 0.25
"""Share of a round trip over which the workers' retransmissions of one fragment are spread."""
LINK_PATIENCE = 2.0
"""Smoothed round trips that an overtaken fragment is waited for where links repair their losses:
requests between neighbours have failed by then."""
STEADY_PROBES = 8
"""So many probes in a row are not further apart than the first, and no timeout comes before them,
where links repair their losses: a probe shows a gap, however many were lost in a row."""
PROBE_FRAGMENTS = 4
"""So many fragments, the last sent, ask into a silence."""
ASK_EVERY = 3
"""Every so many probes in a row one asks the server, around the switches. Where all others have the
result, or have gone around already, and a switch has lost its slots, contributions wait there for
others that nobody sends any more."""


@dataclass(slots=True)
class Progress:
    """When a result last came to a worker, on whichever tree: its trees share a queue."""

    at: float = float("-inf")


def low_high(values: NDArray[np.float64] | NDArray[np.int64]) -> tuple[float, float]:
    """Least and greatest; of one value, in a tenth of the time that reductions take."""
    if len(values) == 1:
        value = values.item()
        return value, value
    return values.min().item(), values.max().item()


class Recovery:
    """Evidence of loss in one stream; per slot of its window, the last sending.

    `order` numbers sendings, also those of one batch, which share an instant. Evidence is the
    newest sending known to be answered. A fragment sent more than once is evidence only if its
    result comes no sooner after the last sending than a result can (else it may answer an
    earlier one, and prove nothing about what still waits in a queue): a smoothed round trip, or
    the shortest one after a sending into a silence, when queues are empty and everything older
    would have come before. So a fragment is sent again at most once a round trip.

    All workers miss the result of what one of them lost, and one repetition may do for all:
    each waits for a different share of a round trip, another one with every fragment. Times in
    seconds.
    """

    def __init__(
        self,
        window: int,
        round_trip: RoundTrip,
        progress: Progress,
        min_probe: float,
        max_probe: float,
    ) -> None:
        self.sent_at = np.zeros(window)
        self.due = NEVER
        """When an overtaken fragment has been waited for long enough."""
        self.answered_at = float("-inf")
        """When a result of the stream last came."""
        self.order = np.zeros(window, dtype=np.int64)
        self._quiet = np.zeros(window, dtype=np.bool_)
        self.overtaken_at = np.full(window, NEVER)
        self._share = np.zeros(window)
        self._link_patience = 0.0
        self._next = 0
        self._newest = -1
        self._void = -1
        self._shortest = NEVER
        self._last_sent_at = float("-inf")
        self._probes = 0
        self._round_trip = round_trip
        self._progress = progress
        self._min_probe = min_probe
        self._max_probe = max_probe

    def join(self, worker: int, workers: int, *, hop_by_hop: bool) -> None:
        """Take a number among the workers, for turns at repairing what all of them miss.

        `hop_by_hop`: links repair their losses, see `LINK_PATIENCE`.
        """
        self._link_patience = LINK_PATIENCE if hop_by_hop else 0.0
        turns = (np.arange(len(self._share)) + worker) % workers
        self._share = SPREAD * turns / workers

    def sent(self, slots: NDArray[np.intp], now: float) -> None:
        """Fragments of idle slots go out, in this order."""
        self.order[slots] = np.arange(self._next, self._next + len(slots))
        self._next += len(slots)
        self.sent_at[slots] = now
        self._last_sent_at = now

    def sent_again(self, slots: NDArray[np.intp], now: float, *, quiet: bool) -> None:
        """Fragments in flight go out once more; `quiet`: into a silence, so past empty queues."""
        self._void = max(self._void, int(low_high(self.order[slots])[1]))
        self.overtaken_at[slots] = NEVER
        self._quiet[slots] = quiet
        self.sent(slots, now)

    def answered(
        self, slots: NDArray[np.intp], once: NDArray[np.bool_], now: float
    ) -> float | None:
        """Results have come; which of their fragments were sent `once`.

        Returns the longest round trip among those, if there are any (Karn's rule).
        """
        self.answered_at = self._progress.at = now
        self._probes = 0
        longest = None
        clean = slots if every(once) else slots[once]
        if len(clean):
            first, last = low_high(self.sent_at[clean])
            longest = now - first
            self._shortest = min(self._shortest, now - last)
        if len(clean) < len(slots):
            self.overtaken_at[slots] = NEVER
            plausible = np.where(
                self._quiet[slots], self._shortest, self._round_trip.smoothed or NEVER
            )
            proof = once | (now - self.sent_at[slots] >= plausible)
            if not every(proof):
                self._void = max(self._void, int(low_high(self.order[slots[~proof]])[1]))
            slots = slots[proof]
            if not some(proof):
                return longest
        self._newest = max(self._newest, int(low_high(self.order[slots])[1]))
        self.overtaken_at[slots] = NEVER
        return longest

    @property
    def stands(self) -> dict[str, int]:
        """Return the numbers of the next sending, the newest answered and the newest void one."""
        return {"next": self._next, "newest": self._newest, "newest_void": self._void}

    def answered_in_order(self, newest: int, oldest: float, latest: float, now: float) -> float:
        """Results have come that leave nothing overtaken (`in_order`), of fragments sent once.

        `newest`: the last sending among them; they were sent between `oldest` and `latest` (s).
        Returns the longest round trip.
        """
        self.answered_at = self._progress.at = now
        self._probes = 0
        self._shortest = min(self._shortest, now - latest)
        self._newest = newest
        return now - oldest

    def sent_in_order(self, count: int, now: float) -> None:
        """Count `count` sendings from idle slots; `order` and `sent_at` are up to date already."""
        self._next += count
        self._last_sent_at = now

    def in_order(self, in_flight: int) -> bool:
        """Whether so many fragments in flight means that none is overtaken; a quick check.

        Sendings after the newest one answered are all in flight, unless some were void: sent once
        more since, or answered without being evidence.
        """
        return in_flight == self._next - 1 - self._newest and self._void <= self._newest

    def lost(self, in_flight: NDArray[np.intp], now: float) -> NDArray[np.intp]:
        """Those of the slots in flight to be sent again now; sets `due` for the others."""
        behind = self._newest - self.order[in_flight]
        overtaken = behind > 0
        slots = in_flight[overtaken]
        since = np.minimum(self.overtaken_at[slots], now)
        self.overtaken_at[slots] = since
        patience = np.where(behind[overtaken] >= REORDERING_DEGREE, 0.25, 1.0) * self._shortest
        patience += (self._share[slots] + self._link_patience) * (self._round_trip.smoothed or 0.0)
        until = since + np.maximum(patience, LEAST_PATIENCE)
        over = until <= now
        self.due = float(until[~over].min(initial=NEVER))
        lost: NDArray[np.intp] = slots[over]
        return lost

    @property
    def probe_due(self) -> float:
        """When a silence is long enough for a probe, if anything is in flight."""
        shortest = self._shortest
        if shortest == NEVER:
            if not self._link_patience:
                return NEVER
            shortest = self._round_trip.timeout / 2
        doublings = max(0, self._probes - STEADY_PROBES) if self._link_patience else self._probes
        patience = max(self._min_probe, 2 * shortest) * 2.0**doublings
        # A probe puts the timeout off, and must not come again and again before it.
        most = 8 * self._max_probe if self._link_patience else self._max_probe
        return max(self._progress.at, self._last_sent_at) + min(patience, most)

    @property
    def probes_steadily(self) -> bool:
        """Whether probes ask into the silence, so that a timeout has nothing to add.

        Not while other trees make progress: there is no silence then, and so no probe.
        """
        return (
            self._link_patience > 0
            and self._probes < STEADY_PROBES
            and self._progress.at <= max(self.answered_at, self._last_sent_at)
        )

    @property
    def asks_server(self) -> bool:
        """Whether the last probe is one that asks the server whether it has the results."""
        return self._probes > 0 and self._probes % ASK_EVERY == 0

    def restart(self) -> None:
        """Forget the silence so far: a new epoch."""
        self._probes = 0

    def probe(self, in_flight: NDArray[np.intp]) -> NDArray[np.intp]:
        """Return the slots to send again into a silence; the next probe waits twice as long."""
        self._probes = min(self._probes + 1, 30)
        if len(in_flight) <= PROBE_FRAGMENTS:
            return in_flight
        newest = np.argpartition(self.order[in_flight], -PROBE_FRAGMENTS)[-PROBE_FRAGMENTS:]
        return in_flight[newest]
