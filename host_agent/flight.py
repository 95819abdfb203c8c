"""Fragments in flight of a stream: transmissions, retransmissions and their times."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hopsum.host_agent.codec import NO_LANES, Frames, every, flags_of, reductions_of, some
from hopsum.host_agent.congestion import CongestionWindow
from hopsum.host_agent.link_repairs import LinkRepairs
from hopsum.host_agent.options import WorkerOptions, WorkerStatistics
from hopsum.host_agent.recovery import NEVER, PROBE_FRAGMENTS, Progress, Recovery, low_high
from hopsum.host_agent.timeout import RoundTrip
from hopsum.protocol.wire import Flag

IDLE = -1
BYPASS = np.uint8(Flag.BYPASS)


class Flight:
    """State per slot of a stream's window: the fragment in flight, or the next one. Times in
    seconds.

    `fragment`: its number; `wire`: its number on the wire while it is in flight, else IDLE;
    `frames`: what went out, which the stream makes room for.
    """

    def __init__(
        self,
        window: int,
        options: WorkerOptions,
        links: LinkRepairs,
        output: list[Frames],
        statistics: WorkerStatistics,
        progress: Progress,
    ) -> None:
        first = options.first_fragment
        self.fragment = first + (np.arange(window, dtype=np.int64) - first) % window
        self.wire = np.full(window, IDLE, dtype=np.int64)
        self.frames: Frames
        self.open = 0
        """Number of fragments in flight."""
        self.first_sent_at = np.zeros(window)
        """Time when its deadline was last postponed (`postpone`)."""
        self.due = np.full(window, NEVER)
        self.next_due = NEVER
        self.tries = np.zeros(window, dtype=np.int32)
        self.timeouts = np.zeros(window, dtype=np.int32)
        self.round_trip = RoundTrip(
            options.initial_timeout, options.min_timeout, options.max_timeout
        )
        self.recovery = Recovery(
            window, self.round_trip, progress, options.min_probe, options.max_timeout
        )
        self.congestion = CongestionWindow(window)
        self._options = options
        self._links = links
        self._output = output
        self._statistics = statistics

    def bind(self, worker: int, workers: int, *, hop_by_hop: bool, numbered: bool) -> None:
        """Set this worker's number among the workers of a plan.

        `hop_by_hop`: links repair their losses. `numbered`: frames have numbers on the link.
        """
        self.recovery.join(worker, workers, hop_by_hop=hop_by_hop)
        self.recovery.restart()
        self.round_trip.patient = hop_by_hop
        self.round_trip.restart()
        # Each of the timeouts is four times as long as the one before it then.
        self._enough = -(-self._options.bypass_after // (2 if hop_by_hop else 1))
        self._numbered = numbered

    @property
    def deadline(self) -> float:
        """Latest time at which `tick` has something to do; NEVER: no timer."""
        if not self.open:
            return NEVER
        return min(self.next_due, self.recovery.due, self.recovery.probe_due)

    @property
    def slots(self) -> NDArray[np.intp]:
        """The slots whose fragments are in flight."""
        return np.flatnonzero(self.wire != IDLE)

    def idle(self, end: int) -> NDArray[np.intp]:
        """Return idle slots whose next fragment is before `end`, in order of fragments.

        No more than may be in flight at present. But the oldest ones always go, as many as may be
        in flight: all others' results may wait for them.
        """
        slots = np.flatnonzero((self.wire == IDLE) & (self.fragment < end))
        slots = slots[np.argsort(self.fragment[slots])]
        if self.congestion.limited:
            limit = self.congestion.limit
            oldest = np.searchsorted(self.fragment[slots], self.fragment.min() + limit)
            slots = slots[: max(int(oldest), limit - self.open)]
        return slots

    def send(
        self, slots: NDArray[np.intp], wire: NDArray[np.int64], frames: Frames, now: float
    ) -> None:
        """Send the fragments of idle slots for the first time."""
        if self._numbered:
            self._links.number(frames, wire)
        self.frames[slots] = frames
        self.wire[slots] = wire
        self.tries[slots] = 1
        self.timeouts[slots] = 0
        self.first_sent_at[slots] = now
        self.recovery.order_next(slots, now)
        due = self.due_after(now)
        self.due[slots] = due
        self._output.append(frames)
        self.open += len(frames)
        self.recovery.count_sent(len(frames), now)
        self.next_due = min(self.next_due, due)
        self._statistics.sent += len(frames)

    def answered(
        self, slots: NDArray[np.intp], now: float, *, marked: bool = False
    ) -> NDArray[np.int64]:
        """Make slots idle whose results have arrived, and return their fragments.

        `marked`: a result met a long queue. Sends again what these results show to be lost.
        """
        # Those of packets without lanes are too short to expect of others.
        measured = (self.tries[slots] == 1) & (reductions_of(self.frames)[slots] != NO_LANES)
        round_trip = self.recovery.answered(slots, measured, now)
        if round_trip is not None:
            self.round_trip.sample(round_trip)
        fragments = self.fragment[slots]
        self.wire[slots] = IDLE
        self.due[slots] = NEVER
        self.fragment[slots] = fragments + len(self.fragment)
        in_flight = self.open
        self.open -= len(slots)
        self._statistics.accepted += len(slots)
        in_order = self.recovery.in_order(self.open)
        if not in_order:
            self.congestion.overtaken(self.recovery.next)
        if marked or self.congestion.limited:
            once = slots[self.tries[slots] == 1]
            if len(once):
                newest = int(low_high(self.recovery.order[once])[1])
                shortest = now - low_high(self.recovery.sent_at[once])[1]
                self.heed_congestion(newest, shortest, in_flight, marked=marked)
        if not in_order:
            self._repair(now)
        return fragments

    def heed_congestion(
        self, newest: int, round_trip: float, in_flight: int, *, marked: bool
    ) -> None:
        """Let the window follow what results say of queues.

        They are of fragments sent once, `newest` the last sending of them and `round_trip` the
        shortest of theirs (s). `in_flight`: with them. `marked`: one of them met a long queue.
        """
        following = self.recovery.next
        self.congestion.answered(newest, following, in_flight, round_trip, marked=marked)

    def due_after(self, now: float) -> float:
        """Return when fragments that are sent now time out."""
        return now + min(self.round_trip.timeout, self._options.deadline)

    # -- sending again

    def tick(self, now: float) -> int | None:
        """Retransmit fragments that timed out; return the slot of one past the deadline."""
        if self.recovery.due <= now:
            self._repair(now)
        if self.next_due <= now:
            overdue = self._expire_due(now)
            if overdue is not None:
                return overdue
        if self.recovery.probe_due <= now:
            slots = self.recovery.probe(self.slots)
            self._statistics.probes += len(slots)
            self.try_again(slots, now, quiet=True, ask=self.recovery.asks_server)
        return None

    def postpone(self, now: float) -> None:
        """Restart the deadlines of fragments in flight."""
        self.first_sent_at[self.slots] = now

    def stop(self) -> None:
        """Stop all timers."""
        self.due[:] = NEVER
        self.next_due = NEVER

    def resume(self, now: float) -> None:
        """Retransmit fragments in flight at once, with fresh retry counts.

        Where others have results that are missing here they do not send again; so the server is
        asked for the oldest ones.
        """
        self.round_trip.restart()
        self.recovery.restart()
        self.send_all_again(now)
        slots = self.slots
        oldest = slots[np.argsort(self.fragment[slots])][:PROBE_FRAGMENTS]
        if len(oldest):
            self._send_again(oldest, now, quiet=False, ask=True)

    def send_all_again(self, now: float) -> None:
        """Retransmit fragments in flight under a new epoch."""
        slots = self.slots
        if len(slots):
            self.tries[slots] = 2
            self.timeouts[slots] = 0
            self.first_sent_at[slots] = now
            self._send_again(slots, now, quiet=False)

    def _repair(self, now: float) -> None:
        """Retransmit fragments that results of later transmissions show to be lost."""
        slots = self.recovery.lost(self.slots, now)
        if len(slots):
            self._statistics.fast_retransmissions += len(slots)
            self.try_again(slots, now, quiet=False)

    def _expire_due(self, now: float) -> int | None:
        slots = np.flatnonzero(self.due <= now)
        # While results arrive, fragments that are not overtaken are queued.
        until = self.recovery.answered_at + self.round_trip.timeout
        if self.recovery.probes_steadily:
            until = max(until, now + self.round_trip.timeout)
        if until > now:
            latest = self.first_sent_at[slots] + self._options.deadline
            self.due[slots] = np.minimum(until, latest)
            slots = slots[latest <= now]
        overdue = self._expire(slots, now) if len(slots) else None
        self.next_due = float(self.due.min())
        return overdue

    def _expire(self, slots: NDArray[np.intp], now: float) -> int | None:
        # Compared as `due` is computed: differences are rounded, and might never be enough.
        oldest = int(slots[np.argmin(self.first_sent_at[slots])])
        if self.first_sent_at[oldest] + self._options.deadline <= now:
            return oldest
        again = self.round_trip.back_off(now, float(self.recovery.sent_at[slots].max()))
        self._statistics.timeouts += len(slots)
        self.timeouts[slots] += 1
        if again and self.recovery.timed_out():
            slots = slots[np.argsort(self.fragment[slots])]
            self.try_again(slots[:PROBE_FRAGMENTS], now, quiet=True, ask=True)
            slots = slots[PROBE_FRAGMENTS:]
        if len(slots):
            self.try_again(slots, now, quiet=True)
        return None

    def try_again(
        self, slots: NDArray[np.intp], now: float, *, quiet: bool, ask: bool = False
    ) -> None:
        """Retransmit fragments in flight, bypassing the switches after too many failures.

        `ask`: this once around the switches, to the server: it answers with the results of those
        that it has finished, and keeps the others. `quiet`: into a silence (`Recovery.sent_again`).
        """
        self.tries[slots] += 1
        # Lost packets are no reason to go around a switch; a switch that never sums is.
        most = 4 * self._options.bypass_after
        bypass = slots[(self.timeouts[slots] >= self._enough) | (self.tries[slots] > most)]
        if len(bypass):
            flags_of(self.frames)[bypass] = Flag.BYPASS
            self._statistics.bypassed += len(bypass)
        self._send_again(slots, now, quiet=quiet, ask=ask)

    def go_around(self, slots: NDArray[np.intp], now: float) -> None:
        """Retransmit fragments in flight, bypassing the switches from now on."""
        flags_of(self.frames)[slots] = Flag.BYPASS
        self.try_again(slots, now, quiet=False)

    def _send_again(
        self, slots: NDArray[np.intp], now: float, *, quiet: bool, ask: bool = False
    ) -> None:
        slots = slots[np.argsort(self.fragment[slots])]
        frames = self.frames[slots]
        if ask:
            flags_of(frames)[...] |= BYPASS
        self._number(frames, self.wire[slots])
        self._output.append(frames)
        self.recovery.sent_again(slots, now, quiet=quiet)
        due = self.due_after(now)
        self.next_due = min(self.next_due, due)
        self.due[slots] = np.minimum(due, self.first_sent_at[slots] + self._options.deadline)
        self._statistics.retransmissions += len(slots)

    def _number(self, frames: Frames, wire: NDArray[np.int64]) -> None:
        """Give retransmitted frames numbers on the link, except those that no switch may add."""
        if not self._numbered:
            return
        summed = (flags_of(frames) & BYPASS) == 0
        if every(summed):
            self._links.number(frames, wire)
        elif some(summed):
            rows = frames[summed]
            self._links.number(rows, wire[summed])
            frames[summed] = rows
