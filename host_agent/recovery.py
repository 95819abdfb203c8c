"""Loss detection for fragments in flight, from later results: after RACK-TLP (RFC 8985).

The timeout must exceed the time of a window in queues; this detects most losses earlier. Networks
mostly keep the order of a stream's packets, so a fragment whose result is missing while those of
later transmissions arrive is lost (`overtaken`). After the last transmissions nothing arrives that
could show their loss; but then no result arrives at all, whereas a queue, however long, releases
one now and then. So silence triggers a probe.
"""

from __future__ import annotations

import ctypes

import numpy as np
from numpy.typing import NDArray

from hopsum.host_agent.codec import every, some
from hopsum.host_agent.timeout import RoundTrip

NEVER = float("inf")
REORDERING_DEGREE = 3
"""Results of later transmissions above which a missing result is considered lost sooner."""
LEAST_PATIENCE = 1e-4
"""Minimum seconds to wait for an overtaken fragment."""
SPREAD = 0.25
"""Fraction of a round trip over which the workers' retransmissions of one fragment are spread."""
LINK_PATIENCE = 2.0
"""Smoothed round trips to wait for an overtaken fragment where links repair their losses: by then
requests between neighbours have failed."""
STEADY_PROBES = 8
"""Number of evenly spaced probes where links repair their losses; no timeout precedes them: a probe
shows a gap, however many frames were lost in a row."""
PROBE_FRAGMENTS = 4
"""Number of fragments in a probe, those sent last."""
PROBE_AGAIN = 0.25
"""Least seconds from which the intervals of further probes grow, unless the first came sooner: a
process may be off the processor for tenths of a second."""
ASK_EVERY = 3
"""Of consecutive probes, one in this many asks the server, bypassing the switches. If all other
workers have the result, or bypass, and a switch has lost its slots, contributions would wait there
for others that are never sent."""


class Progress:
    """Time of a worker's last result on any tree: its trees share a queue."""

    def __init__(self) -> None:
        self.shared = ctypes.c_double(float("-inf"))
        """The same for the pass in C (`hopsum.host_agent.ordinary`)."""

    @property
    def at(self) -> float:
        """The time, in seconds."""
        return self.shared.value

    @at.setter
    def at(self, time: float) -> None:
        self.shared.value = time


def low_high(values: NDArray[np.float64] | NDArray[np.int64]) -> tuple[float, float]:
    """Return minimum and maximum; for one value ten times as fast as numpy's reductions."""
    if len(values) == 1:
        value = values.item()
        return value, value
    return values.min().item(), values.max().item()


class Recovery:
    """Evidence of loss in one stream: per slot of its window, the last transmission.

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
        """Time when an overtaken fragment is considered lost."""
        self.answered_at = float("-inf")
        """Time of the stream's last result."""
        self.order = np.zeros(window, dtype=np.int64)
        self.quiet = np.zeros(window, dtype=np.bool_)
        self.overtaken_at = np.full(window, NEVER)
        self._share = np.zeros(window)
        self._link_patience = 0.0
        self.next = 0
        self.newest = -1
        self.void = -1
        self.shortest = NEVER
        self.last_sent_at = float("-inf")
        self.probes = 0
        self._round_trip = round_trip
        self.progress = progress
        self.min_probe = min_probe
        self._max_probe = max_probe

    def join(self, worker: int, workers: int, *, hop_by_hop: bool) -> None:
        """Set this worker's number, which spreads retransmissions of what all workers miss.

        `hop_by_hop`: links repair their losses, see `LINK_PATIENCE`.
        """
        self._link_patience = LINK_PATIENCE if hop_by_hop else 0.0
        turns = (np.arange(len(self._share)) + worker) % workers
        self._share = SPREAD * turns / workers

    def order_next(self, slots: NDArray[np.intp], now: float) -> None:
        """Note in slots that their fragments are sent next, in this order (see `count_sent`)."""
        self.order[slots] = np.arange(self.next, self.next + len(slots))
        self.sent_at[slots] = now

    def sent_again(self, slots: NDArray[np.intp], now: float, *, quiet: bool) -> None:
        """Note that fragments in flight are retransmitted; `quiet`: as a probe, so past empty
        queues."""
        self.void = max(self.void, int(low_high(self.order[slots])[1]))
        self.overtaken_at[slots] = NEVER
        self.quiet[slots] = quiet
        self.order_next(slots, now)
        self.count_sent(len(slots), now)

    def answered(
        self, slots: NDArray[np.intp], once: NDArray[np.bool_], now: float
    ) -> float | None:
        """Process results; `once`: which of their fragments were sent once.

        Returns the longest round trip among those, if there are any (Karn's rule).
        """
        self.answered_at = self.progress.at = now
        self.probes = 0
        longest = None
        clean = slots if every(once) else slots[once]
        if len(clean):
            first, last = low_high(self.sent_at[clean])
            longest = now - first
            self.shortest = min(self.shortest, now - last)
        if len(clean) < len(slots):
            self.overtaken_at[slots] = NEVER
            plausible = np.where(
                self.quiet[slots], self.shortest, self._round_trip.smoothed or NEVER
            )
            proof = once | (now - self.sent_at[slots] >= plausible)
            if not every(proof):
                self.void = max(self.void, int(low_high(self.order[slots[~proof]])[1]))
            slots = slots[proof]
            if not some(proof):
                return longest
        self.newest = max(self.newest, int(low_high(self.order[slots])[1]))
        self.overtaken_at[slots] = NEVER
        return longest

    def count_sent(self, count: int, now: float) -> None:
        """Count transmissions; the slots' `order` and `sent_at` are up to date already."""
        self.next += count
        self.last_sent_at = now

    def in_order(self, in_flight: int) -> bool:
        """Return whether this number of fragments in flight shows that none is overtaken; a quick
        check.

        Sendings after the newest one answered are all in flight, unless some were void: sent once
        more since, or answered without being evidence.
        """
        return in_flight == self.next - 1 - self.newest and self.void <= self.newest

    def lost(self, in_flight: NDArray[np.intp], now: float) -> NDArray[np.intp]:
        """Return the slots in flight to retransmit now; sets `due` for the others."""
        behind = self.newest - self.order[in_flight]
        overtaken = behind > 0
        slots = in_flight[overtaken]
        since = np.minimum(self.overtaken_at[slots], now)
        self.overtaken_at[slots] = since
        patience = np.where(behind[overtaken] >= REORDERING_DEGREE, 0.25, 1.0) * self.shortest
        patience += (self._share[slots] + self._link_patience) * (self._round_trip.smoothed or 0.0)
        until = since + np.maximum(patience, LEAST_PATIENCE)
        over = until <= now
        self.due = float(until[~over].min(initial=NEVER))
        lost: NDArray[np.intp] = slots[over]
        return lost

    @property
    def probe_due(self) -> float:
        """Time when the next probe is due, if anything is in flight.

        The first comes when a silence exceeds the longest queue; the next ones wait for answers.
        Before any round trip is known, it goes by the initial timeout: the present one may have
        backed off to minutes.
        """
        shortest = self.shortest
        if shortest == NEVER:
            if not self._link_patience:
                return NEVER
            shortest = self._round_trip.initial / 2
        doublings = max(0, self.probes - STEADY_PROBES) if self._link_patience else self.probes
        patience = max(self.min_probe, 2 * shortest)
        if self.probes and self._round_trip.smoothed:
            # Queues were empty at the first probe, so its answer was due after a round trip.
            again = max(PROBE_AGAIN, 2 * max(shortest, self._round_trip.smoothed))
            patience = min(patience, again)
        patience *= 2.0**doublings
        return max(self.progress.at, self.last_sent_at) + min(patience, self.most_patience)

    @property
    def most_patience(self) -> float:
        """Maximum seconds of silence before a probe."""
        # A probe puts the timeout off, and must not come again and again before it.
        return 8 * self._max_probe if self._link_patience else self._max_probe

    @property
    def probes_steadily(self) -> bool:
        """Whether probes are being sent, so that a timeout adds nothing.

        Not while other trees make progress: there is no silence then, and so no probe.
        """
        return (
            self._link_patience > 0
            and self.probes < STEADY_PROBES
            and self.progress.at <= max(self.answered_at, self.last_sent_at)
        )

    @property
    def asks_server(self) -> bool:
        """Whether the last probe asks the server for the results."""
        return self.probes > 0 and self.probes % ASK_EVERY == 0

    def timed_out(self) -> bool:
        """Count a round of timeouts, if it takes the place of a probe: none is due before the first
        round trip where links do not repair their losses. Returns whether it asks the server."""
        if self.probe_due < NEVER:
            return False
        self.probes += 1
        return self.asks_server

    def restart(self) -> None:
        """Restart the probe timer at a new epoch."""
        self.probes = 0

    def probe(self, in_flight: NDArray[np.intp]) -> NDArray[np.intp]:
        """Return the slots of a probe; the next one comes later, see `probe_due`."""
        self.probes = min(self.probes + 1, 30)
        if len(in_flight) <= PROBE_FRAGMENTS:
            return in_flight
        newest = np.argpartition(self.order[in_flight], -PROBE_FRAGMENTS)[-PROBE_FRAGMENTS:]
        return in_flight[newest]
