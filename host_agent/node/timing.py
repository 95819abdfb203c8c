"""Timeouts for a plan on its network."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import inf
from types import MappingProxyType
from typing import Any

from hopsum.collectives.plan import JobPlan
from hopsum.host_agent.congestion import most_flows, most_in_flight
from hopsum.host_agent.options import STEADY_PROBES, WorkerOptions
from hopsum.network.model import Network
from hopsum.protocol.wire import HOPS_DEFAULT, frame_bytes

SHARING = 6
"""Jobs whose frames may queue for one link before those of one of them count as lost.

A fragment sent again too early is no error, but traffic; one sent again late costs its job time.
"""
SLACK = 0.25
"""Slack of timeouts: on a busy machine a process may not be scheduled for tenths of a second."""
LAST_RESORT = STEADY_PROBES + 1 + 4 + 16 + 64
"""Timeouts, of the length of the first, until a fragment has bypassed the switches and has been
answered: the probes, three timeouts, each four times as long as the one before
(`round_trip_back_off` in datapath/round_trip.h), and the next."""
QUIET_TURNS = 4
"""Results of each worker in a row that are lost, or wait for repairs, before silence shows it."""
GIVEN_ATTEMPTS = 8
"""Least number of timeouts, of the length of the first, before a deadline that is given."""
TCP_QUEUE = 512
"""Frames of TCP streams, which fill queues, that wait at a link."""


def suitable_options(
    network: Network,
    plan: JobPlan,
    given: Mapping[str, Any] = MappingProxyType({}),
    *,
    sharing: int = SHARING,
    slack: float = SLACK,
) -> WorkerOptions:
    """Return options whose timeouts and probes exceed queueing delays, except those `given`.

    The first result comes after a round trip of one packet, and then results keep coming, unless
    they wait behind other flows' windows: of the worker's other trees, for these share its queue,
    of others towards its server, of streams of TCP, and of `sharing` jobs in all. (Results of
    their own for each worker take turns at the server.) A
    timeout sends all that is in flight again, so it also waits for the window's own time. The
    deadline leaves time for all of a worker's attempts: a job does not fail before the last one.
    Before one that is given come `GIVEN_ATTEMPTS`, unless they would be closer than the slack.
    `slack`: seconds for which a process may be off the processor; 0 in virtual time.
    """
    options = WorkerOptions()
    rates = [link.bandwidth for link in network.links if link.bandwidth]
    stacks = (len(stack) for tree in plan.trees for stack in tree.up)
    hops = max(HOPS_DEFAULT, *stacks, 0)
    packet = 8 * frame_bytes(plan.lanes, hops) / min(rates) if rates else 0.0
    latency = max((link.latency for link in network.links), default=0.0)
    each = [most_flows(plan, tree) for tree in plan.trees]
    up, down = (max(ways, default=1) for ways in ([f.up for f in each], [f.down for f in each]))
    fitting = min((most_in_flight(plan, tree) for tree in plan.trees), default=plan.in_flight)
    window = max(up, down) * min(plan.in_flight, fitting) * packet
    windows = sharing * len(plan.trees) * window
    if plan.host_parts:
        windows += TCP_QUEUE * packet
    others = windows if up > 1 else windows - window
    most = given.get("deadline", inf) / GIVEN_ATTEMPTS
    min_timeout = max(options.min_timeout, slack, min(most, 1.5 * windows))
    round_trip = 4 * hops * (packet + latency) + 2 * others
    initial = max(options.min_timeout, slack, min(most, round_trip))
    chosen = replace(
        options,
        initial_timeout=initial,
        min_timeout=min_timeout,
        max_timeout=8 * min_timeout,
        min_probe=max(
            options.min_probe, slack, min(most, max(1.5 * others, QUIET_TURNS * down * packet))
        ),
        deadline=max(options.deadline, LAST_RESORT * max(initial, min_timeout)),
    )
    return replace(chosen, **given)
