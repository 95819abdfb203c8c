"""Max-min fair rates by progressive filling, over whole arrays.

Bertsekas and Gallager, Data Networks, section 6.5.2: all rates rise together until a link is full;
the flows on it stay as they are, the others rise on. Here all links that no later step can relieve
fill in one round, so the number of rounds grows with the length of chains of bottlenecks, not with
the number of links.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

_TIE = 1e-12
"""Shares that differ by less, relatively, are equal: they are quotients of sums."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Link usage of n flows: flow f has entries [starts[f], starts[f + 1]).

    `starts`: (n + 1,). `links`: link numbers, (entries,). `amounts`: what the flow takes of that
    link per unit of its rate, above 0, (entries,); 1 for a flow that crosses it once.
    """

    starts: Integers
    links: Integers
    amounts: Floats

    @classmethod
    def of(cls, flows: Iterable[Sequence[tuple[int, float]]]) -> Usage:
        """Return the usage of flows from the (link, amount) pairs of each."""
        rows = [list(flow) for flow in flows]
        starts = np.zeros(len(rows) + 1, dtype=np.int64)
        np.cumsum([len(row) for row in rows], out=starts[1:])
        return cls(
            starts,
            np.array([link for row in rows for link, _ in row], dtype=np.int64),
            np.array([amount for row in rows for _, amount in row], dtype=np.float64),
        )

    @property
    def flows(self) -> int:
        """Number of flows."""
        return len(self.starts) - 1

    def take(self, flows: Integers) -> Usage:
        """Return the usage of these flows, in this order."""
        lengths = np.diff(self.starts)[flows]
        starts = np.zeros(len(flows) + 1, dtype=np.int64)
        np.cumsum(lengths, out=starts[1:])
        entries = np.arange(starts[-1]) + np.repeat(self.starts[flows] - starts[:-1], lengths)
        return Usage(starts, self.links[entries], self.amounts[entries])

    def loads(self, rates: Floats, links: int) -> Floats:
        """Return the load of flows with these rates (n,) on each link, (links,)."""
        spread = np.repeat(rates, np.diff(self.starts)) * self.amounts
        taken = np.zeros(links)
        np.add.at(taken, self.links, spread)
        return taken


def max_min_rates(
    usage: Usage,
    capacities: Floats,
    weights: Floats | None = None,
    limits: Floats | None = None,
    followers: tuple[Integers, Integers] | None = None,
) -> Floats:
    """Return the weighted max-min fair rates of the flows, (n,); infinite without a limit.

    `capacities`: of each link, (links,), above 0, may be infinite. `weights`: above 0, (n,); a rate
    is the common level times the weight, so one entry of weight k stands for k equal flows.
    `limits`: no rate above these, (n,). `followers`: pairs (leaders, followers) of flow numbers,
    (pairs,) each: a follower's level is not above its leader's; no cycles. O(rounds * entries)
    time.
    """
    count, links = usage.flows, len(capacities)
    weights = np.ones(count) if weights is None else weights
    ceilings = np.full(count, np.inf) if limits is None else limits / weights
    flow_of = np.repeat(np.arange(count), np.diff(usage.starts))
    finite = np.isfinite(capacities[usage.links])
    flow_of, link_of = flow_of[finite], usage.links[finite]
    demand_of = usage.amounts[finite] * weights[flow_of]

    levels = np.full(count, np.inf)
    waiting = np.ones(count, dtype=np.bool_)
    left = capacities.astype(np.float64)
    while True:
        demand = np.bincount(link_of, demand_of, minlength=links)
        with np.errstate(divide="ignore", invalid="ignore"):
            share = np.where(demand > 0, left / demand, np.inf)
        level = ceilings.copy()
        np.minimum.at(level, flow_of, share[link_of])
        level[~waiting] = levels[~waiting]
        if followers is not None:
            _follow(level, *followers)
        # A link is final if all of its flows get least here: other shares can only rise.
        lowest = np.full(links, np.inf)
        np.minimum.at(lowest, link_of, level[flow_of])
        final = share <= lowest * (1 + _TIE)
        stop = waiting & (level >= ceilings * (1 - _TIE))
        stop[flow_of[final[link_of]]] = True
        stop &= waiting
        if followers is not None:
            _stop_followers(stop, waiting, level, *followers)
        levels[stop] = level[stop]
        waiting &= ~stop
        going = stop[flow_of]
        if not going.any():
            return levels * weights
        taken = demand_of[going] * levels[flow_of[going]]
        left -= np.bincount(link_of[going], taken, minlength=links)
        np.maximum(left, 0.0, out=left)
        flow_of, link_of, demand_of = flow_of[~going], link_of[~going], demand_of[~going]


def _follow(level: Floats, leaders: Integers, followers: Integers) -> None:
    """Lower followers' levels to their leaders', along whole chains."""
    while (lower := level[leaders] < level[followers]).any():
        np.minimum.at(level, followers[lower], level[leaders[lower]])


def _stop_followers(
    stop: NDArray[np.bool_],
    waiting: NDArray[np.bool_],
    level: Floats,
    leaders: Integers,
    followers: Integers,
) -> None:
    """Fix a follower's level together with a leader that stops at, or has, its level."""
    while True:
        settled = (stop | ~waiting)[leaders] & (level[leaders] <= level[followers])
        more = followers[settled & (waiting & ~stop)[followers]]
        if not len(more):
            return
        stop[more] = True
