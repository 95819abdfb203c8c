"""Flows in time: max-min fair rates between events, dependencies, delays.

A flow sends its size over a route at the rate that max-min sharing gives it; between two events all
rates are constant. Its last unit arrives `delay` after it was sent. A flow starts once those that
it waits for have been sent or delivered. Nothing is random: the same flows give the same times.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hopsum.protocol.errors import OperationError
from hopsum.timing.flows import Flows, Routes
from hopsum.timing.max_min import Floats, Integers, max_min_rates

_SAME_TIME = 1e-9
"""Flows that end within this part of the time since the last event end together."""
_NONE_LEFT = 1e-9
"""A flow, or its lead over a follower, is used up at this part of its size."""
_KEPT_RATES = 1024


class TimingError(OperationError):
    """Flows that cannot finish; the message says which wait for what."""


@dataclass(frozen=True, slots=True)
class FlowTimes:
    """When each flow started, was sent and was delivered, s, (n,); infinite if it never was.

    `seconds`: when the last foreground flow was delivered. `events`: how often rates could change.
    """

    started: Floats
    sent: Floats
    delivered: Floats
    seconds: float
    events: int


def simulate_flows(
    flows: Flows,
    routes: Routes,
    capacities: Floats,
    resolution: float = 0.0,
    foreground: NDArray[np.bool_] | None = None,
) -> FlowTimes:
    """Run the flows to the end; return their times. `capacities`: of links, units/s, (links,).

    `foreground`: which flows to run to the end, (n,); None: all that end.

    `resolution`: events within this part of the time that the busiest link takes for all it carries
    are processed at once; a chain of n flows may end n times that too early. Raises TimingError if
    flows that end wait for each other, or have no bandwidth. O(events * (active flows + what a
    change of rates costs)) time.
    """
    return _Simulation(flows, routes, capacities, resolution, foreground).run()


class _Successors:
    """Dependencies between flows, as rows of flow numbers."""

    def __init__(self, pairs: Integers, count: int) -> None:
        order = np.argsort(pairs[0], kind="stable")
        self._later: Integers = pairs[1][order]
        self._first = np.searchsorted(pairs[0][order], np.arange(count + 1))
        self.predecessors = np.bincount(pairs[1], minlength=count)

    def of(self, flows: Integers) -> Integers:
        """Return the flows that wait for any of these, once for each."""
        first = self._first[flows]
        lengths = self._first[flows + 1] - first
        ends = np.cumsum(lengths)
        if not len(ends) or not ends[-1]:
            return self._later[:0]
        entries: Integers = np.arange(ends[-1]) + np.repeat(first - ends + lengths, lengths)
        return self._later[entries]


class _Rates:
    """Max-min rates of the active flows; equal flows and equal situations are solved once."""

    def __init__(self, routes: Routes, capacities: Floats) -> None:
        self._routes, self._capacities = routes, capacities
        self._known: dict[bytes, Floats] = {}
        self._active = np.zeros(routes.usage.flows, dtype=np.int64)

    def change(self, routes: Integers, by: int) -> None:
        """Add active flows of these routes (each once per entry)."""
        np.add.at(self._active, routes, by)

    def of(self, routes: Integers) -> Floats:
        """Return the rates of the active flows, that have these routes."""
        key = self._active.tobytes()
        rates = self._known.get(key)
        if rates is None:
            kinds = np.flatnonzero(self._active)
            number = self._active[kinds].astype(np.float64)
            limits = self._routes.limits[kinds] * number
            usage = self._routes.usage.take(kinds)
            rates = np.zeros(len(self._active))
            rates[kinds] = max_min_rates(usage, self._capacities, number, limits) / number
            if len(self._known) >= _KEPT_RATES:
                self._known.clear()
            self._known[key] = rates
        return rates[routes]

    def coupled(self, routes: Integers, going: Integers, followers: Integers) -> Floats:
        """Return the rates if only flows at positions `going` send, and some follow others.

        `followers`: positions (leaders, followers), (2, pairs), all of them going.
        """
        place = np.full(len(routes), -1, dtype=np.int64)
        place[going] = np.arange(len(going))
        rates = np.zeros(len(routes))
        rates[going] = max_min_rates(
            self._routes.usage.take(routes[going]),
            self._capacities,
            limits=self._routes.limits[routes[going]],
            followers=(place[followers[0]], place[followers[1]]),
        )
        return rates


class _Simulation:
    def __init__(
        self,
        flows: Flows,
        routes: Routes,
        capacities: Floats,
        resolution: float,
        foreground: NDArray[np.bool_] | None,
    ) -> None:
        count = len(flows)
        self._route, self._size, self._start = flows.arrays()
        self._left = self._size.copy()
        self._ends = np.isfinite(self._size)
        self._wanted = self._ends if foreground is None else foreground & self._ends
        self._delays = routes.delays
        self._rates = _Rates(routes, capacities)
        volumes = np.zeros(routes.usage.flows)
        np.add.at(volumes, self._route[self._wanted], self._size[self._wanted])
        loads = routes.usage.loads(volumes, len(capacities))
        self._together = resolution * float((loads / capacities).max(initial=0.0))
        self._close = resolution * float(loads[np.isfinite(capacities)].max(initial=0.0))
        self._after_sent = _Successors(flows.sent.columns(), count)
        self._after_delivered = _Successors(flows.delivered.columns(), count)
        self._missing = self._after_sent.predecessors + self._after_delivered.predecessors
        self._follows = flows.follows.columns()
        pairs = self._follows.shape[1]
        self._pairs = _Successors(
            np.stack([self._follows[:2].ravel(), np.tile(np.arange(pairs), 2)]), count
        )
        self._live = np.zeros(0, dtype=np.int64)
        self._active = np.zeros(0, dtype=np.int64)
        self._queue: list[tuple[float, int, Integers, bool]] = []
        self._queued = 0
        self._started = np.full(count, np.inf)
        self._sent = np.full(count, np.inf)
        self._delivered = np.full(count, np.inf)

    def run(self) -> FlowTimes:
        """Process events until every finite flow is delivered."""
        now, events = 0.0, 0
        wanted = int(self._wanted.sum())
        self._begin(np.flatnonzero(self._missing == 0), now)
        wanted -= self._due(now, now)
        while wanted:
            events += 1
            rates, meeting = self._current_rates()
            needed = self._needed(rates)
            due = self._queue[0][0] - now if self._queue else np.inf
            meeting = max(meeting, self._together)
            step = max(0.0, min(float(needed.min(initial=np.inf)), meeting, due))
            if not np.isfinite(step):
                self._complain()
            now += step
            self._left[self._active] -= np.where(np.isfinite(rates), rates, 0.0) * step
            together = step * (1 + _SAME_TIME) + self._together
            self._finish(np.flatnonzero(needed <= together), now)
            wanted -= self._due(now + step * _SAME_TIME + self._together, now)
        ended = self._delivered[self._wanted]
        seconds = float(ended.max()) if len(ended) else 0.0
        return FlowTimes(self._started, self._sent, self._delivered, seconds, events)

    def _current_rates(self) -> tuple[Floats, float]:
        """Return the rates of the active flows, and when a follower next meets its leader, s."""
        routes = self._route[self._active]
        over = np.isfinite(self._sent[self._follows[:2, self._live]]).any(axis=0)
        self._live = self._live[~over]
        if not len(self._live):
            return self._rates.of(routes), np.inf
        leaders, followers, offsets = self._follows[:, self._live]
        lead = self._left[followers] - self._left[leaders] + offsets
        least = np.maximum(self._close, _NONE_LEFT * self._size[followers])
        position = np.full(len(self._route), -1, dtype=np.int64)
        position[self._active] = np.arange(len(self._active))
        going = np.ones(len(self._active), dtype=np.bool_)
        going[position[followers[lead < -least]]] = False
        close = (lead <= least) & going[position[followers]]
        # Followers of a stalled flow are stalled.
        while True:
            halted = close & ~going[position[leaders]] & going[position[followers]]
            if not halted.any():
                break
            going[position[followers[halted]]] = False
        close &= going[position[followers]]
        if going.all() and not close.any():
            rates = self._rates.of(routes)
        else:
            pairs = np.stack([position[leaders[close]], position[followers[close]]])
            rates = self._rates.coupled(routes, np.flatnonzero(going), pairs)
        gaining = rates[position[followers]] - rates[position[leaders]]
        apart = ~close
        ahead = apart & (lead < -least) & (gaining < 0)
        behind = apart & (lead > least) & (gaining > 0)
        meet = np.concatenate((lead[ahead] / gaining[ahead], lead[behind] / gaining[behind]))
        return rates, float(meet.min(initial=np.inf))

    def _needed(self, rates: Floats) -> Floats:
        """Return the seconds until each active flow is sent at these rates."""
        left = self._left[self._active]
        left = np.where(left > _NONE_LEFT * self._size[self._active], left, 0.0)
        with np.errstate(divide="ignore", invalid="ignore"):
            needed = np.where(left > 0, left / rates, 0.0)
        needed[~self._ends[self._active]] = np.inf
        return needed

    def _finish(self, positions: Integers, now: float) -> None:
        if not len(positions):
            return
        flows = self._active[positions]
        self._active = np.delete(self._active, positions)
        self._left[flows] = 0.0
        self._sent[flows] = now
        self._rates.change(self._route[flows], -1)
        delays = self._delays[self._route[flows]]
        for delay in np.unique(delays):
            self._push(now + float(delay), flows[delays == delay], True)
        self._release(self._after_sent.of(flows), now)

    def _due(self, until: float, now: float) -> int:
        """Deliver and start the flows that are due; return the number delivered."""
        delivered = 0
        while self._queue and self._queue[0][0] <= until:
            time, _, flows, delivery = heapq.heappop(self._queue)
            if not delivery:
                self._activate(flows, now)
                continue
            self._delivered[flows] = time
            delivered += int(self._wanted[flows].sum())
            self._release(self._after_delivered.of(flows), now)
        return delivered

    def _release(self, later: Integers, now: float) -> None:
        if len(later):
            np.subtract.at(self._missing, later, 1)
            self._begin(np.unique(later[self._missing[later] == 0]), now)

    def _begin(self, flows: Integers, now: float) -> None:
        starts = self._start[flows]
        for start in np.unique(starts[starts > now]):
            self._push(float(start), flows[starts == start], False)
        self._activate(flows[starts <= now], now)

    def _activate(self, flows: Integers, now: float) -> None:
        if len(flows):
            self._started[flows] = now
            self._active = np.concatenate((self._active, flows))
            self._rates.change(self._route[flows], 1)
            pairs = np.unique(self._pairs.of(flows))
            if len(pairs):
                both = np.isfinite(self._started[self._follows[:2, pairs]]).all(axis=0)
                self._live = np.concatenate((self._live, pairs[both]))

    def _push(self, time: float, flows: Integers, delivery: bool) -> None:
        heapq.heappush(self._queue, (time, self._queued, flows, delivery))
        self._queued += 1

    def _complain(self) -> None:
        stuck = np.flatnonzero(self._wanted & ~np.isfinite(self._delivered))
        first = int(stuck[0])
        what = (
            "has no bandwidth left on its route"
            if first in self._active
            else f"waits for {int(self._missing[first])} flows that wait themselves"
        )
        raise TimingError(
            f"{len(stuck)} flows never end; the first, number {first}, {what}: expected "
            "dependencies without a cycle and capacities above 0"
        )
