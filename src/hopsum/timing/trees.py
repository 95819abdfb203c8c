"""In-network trees as flows: all packets of a fragment are one flow over all links of its tree.

The flows of a tree progress together, since a worker sends fragment f + W when it has the result of
f: the tree's rate is the least over its links, and at most a window a round trip. With R the round
trip of a fragment alone, P what a second one takes after it and t its time on the busiest link, F
fragments take R + (F - 1) t, or where the window is the limit floor((F - 1) / W) P +
((F - 1) mod W) t + R; the flows here add up to the same, and share links with other flows.

Links are shared as if packets of all flows took turns. Where windows of several flows queue up
behind each other (a parameter server's), the first window comes later than that; a job of many
windows does not notice.
"""

from __future__ import annotations

import numpy as np

from hopsum.collectives.choices import Collective
from hopsum.collectives.flows import TreeFlows, tree_flows
from hopsum.collectives.operation import Lanes, fragments_of, lanes_of, prologue_lanes_of
from hopsum.collectives.plan import DataType, JobPlan
from hopsum.protocol.wire import LANE_BYTES, frame_bytes
from hopsum.timing.flows import Routes
from hopsum.timing.max_min import Usage
from hopsum.timing.pipeline import round_trips
from hopsum.timing.routes import LinkArrays
from hopsum.timing.scenario import Scenario

_BULK, _REST, _TRIP, _PROLOGUE, _AFTER_PROLOGUE, _KINDS = 0, 1, 2, 3, 4, 5


def tree_routes(
    links: LinkArrays, plan: JobPlan, collective: Collective = Collective.ALL_REDUCE
) -> Routes:
    """Return five kinds of flow for each tree of a plan, in bytes of lanes; see `add_plan`."""
    fragment = plan.values * LANE_BYTES
    whole, bare = lanes_of(plan, collective), prologue_lanes_of(plan)
    rows: list[list[tuple[int, float]]] = []
    delays: list[float] = []
    limits: list[float] = []
    for tree in plan.trees:
        flows = tree_flows(links.network, plan, tree)
        data = _amounts(links, flows, whole, fragment)
        prologue = _amounts(links, flows, bare, fragment)
        busiest, first = (
            max(amount * fragment / links.capacities[link] for link, amount in amounts.items())
            for amounts in (data, prologue)
        )
        trip, both = round_trips(links.network, plan, tree, flows, whole, whole)
        period = both - trip
        first_trip, first_two = round_trips(links.network, plan, tree, flows, bare, whole)
        rows += [list(each.items()) for each in (data, data, data, prologue, data)]
        waits = (trip - busiest, first_trip - first, first_two - first_trip - busiest)
        delays += [0.0, 0.0, *(max(0.0, wait) for wait in waits)]
        limits += [plan.in_flight * fragment / period if period else np.inf, *[np.inf] * 4]
    return Routes(Usage.of(rows), np.array(delays), np.array(limits))


def _amounts(links: LinkArrays, flows: TreeFlows, lanes: Lanes, fragment: int) -> dict[int, float]:
    """Return bytes that a packet takes on each link, for each byte of `fragment`."""
    amounts: dict[int, float] = {}
    for groups, size in zip((flows.up, flows.down), lanes, strict=True):
        for flow in (flow for each in groups.values() for flow in each):
            link = links.link[flow.u, flow.v]
            amounts[link] = amounts.get(link, 0.0) + frame_bytes(size, flow.hops) / fragment
    return amounts


def add_plan(
    scenario: Scenario,
    plan: JobPlan,
    elements: int,
    data_type: DataType,
    collective: Collective = Collective.ALL_REDUCE,
    wire_bits: int = 0,
) -> None:
    """Add one collective of a tensor through a plan's trees; `wire_bits`: see `width_of`."""
    first = scenario.add_routes(tree_routes(scenario.links, plan, collective))
    fragment = plan.values * LANE_BYTES
    counts = fragments_of(plan, collective, elements, data_type, wire_bits)
    for number, (prologues, count) in enumerate(counts):
        if not count:
            continue
        row = first + _KINDS * number
        before: list[int] = []
        last = row + _TRIP
        if prologues:
            # No worker sends data before it has the first exponents.
            before = [scenario.flows.add(row + _PROLOGUE, prologues * fragment)]
            last = row + _AFTER_PROLOGUE
        full = (count - 1) // plan.in_flight * plan.in_flight
        bulk = scenario.flows.add(row + _BULK, full * fragment, delivered=before)
        rest = scenario.flows.add(row + _REST, (count - 1 - full) * fragment, sent=[bulk])
        scenario.flows.add(last, fragment, sent=[rest])
