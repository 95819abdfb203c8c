"""Concurrent work on a network: schedules, plans and other traffic, and its duration."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hopsum.timing.flow_simulator import FlowTimes, simulate_flows
from hopsum.timing.flows import Flows, Routes, join_routes
from hopsum.timing.max_min import Floats, Integers
from hopsum.timing.routes import TCP, Framing, LinkArrays, plain_routes
from hopsum.timing.work import Background, DirectedLink

MANY_FLOWS = 20_000
COARSE = 1e-4
"""Resolution above MANY_FLOWS: chains of hundreds of flows end up to a hundredth too early."""


@dataclass(frozen=True, slots=True)
class Timing:
    """Duration, s, and bytes of frames on each directed link.

    `seconds` and `loads` leave background out. `events`: how often rates could change.
    """

    seconds: float
    loads: dict[DirectedLink, float]
    events: int
    times: FlowTimes


class Scenario:
    """Flows on a network, collected and then run, with one table of routes of several kinds."""

    def __init__(self, links: LinkArrays) -> None:
        self.links = links
        self.flows = Flows()
        self._routes: list[Routes] = []
        self._rows = 0
        self._background: list[Integers] = []

    def add_routes(self, routes: Routes) -> int:
        """Add rows to the table of routes; returns the number of the first."""
        self._routes.append(routes)
        self._rows += routes.usage.flows
        return self._rows - routes.usage.flows

    def add_background(self, traffic: Background, framing: Framing = TCP) -> None:
        """Add other traffic: it shares links, but its duration does not count."""
        source, target = self.links.numbers([traffic.source, traffic.target])
        limit = np.inf if traffic.rate is None else traffic.rate / 8
        routes = plain_routes(
            self.links, np.array([source]), np.array([target]), framing, limits=np.array([limit])
        )
        row = self.add_routes(routes)
        self._background.append(self.flows.extend([row], traffic.size, traffic.start))

    def run(self, resolution: float | None = None) -> Timing:
        """Simulate; see `flow_simulator` for `resolution` and what it raises.

        `resolution` None: exact up to MANY_FLOWS flows, COARSE above.
        """
        if resolution is None:
            resolution = COARSE if len(self.flows) > MANY_FLOWS else 0.0
        if not self._routes:
            nothing = np.zeros(0)
            return Timing(0.0, {}, 0, FlowTimes(nothing, nothing, nothing, 0.0, 0))
        routes, _ = join_routes(*self._routes)
        foreground = np.ones(len(self.flows), dtype=np.bool_)
        for numbers in self._background:
            foreground[numbers] = False
        times = simulate_flows(
            self.flows, routes, self.links.capacities, resolution, foreground=foreground
        )
        rows, sizes, _ = self.flows.arrays()
        volumes = np.zeros(routes.usage.flows)
        np.add.at(volumes, rows[foreground], sizes[foreground])
        loads: Floats = routes.usage.loads(volumes, len(self.links.pairs))
        used = np.flatnonzero(loads)
        return Timing(
            times.seconds,
            {self.links.pairs[i]: float(loads[i]) for i in used},
            times.events,
            times,
        )
