"""Flows as data: routes, sizes and dependencies."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike

from hopsum.timing.max_min import Floats, Integers, Usage


@dataclass(frozen=True, slots=True)
class Routes:
    """Resources used by flows of each of k kinds. `usage`: of links, per unit of rate.

    `delays`: from sending the last unit to its arrival, s, (k,). `limits`: no flow of the kind is
    faster, units/s, (k,).
    """

    usage: Usage
    delays: Floats
    limits: Floats


def join_routes(*parts: Routes) -> tuple[Routes, tuple[int, ...]]:
    """Return all rows of several Routes in one, and the number of the first row of each part."""
    counts = [part.usage.flows for part in parts]
    entries = np.cumsum([0, *(len(part.usage.links) for part in parts)])
    starts = [part.usage.starts[:-1] + entries[i] for i, part in enumerate(parts)]
    usage = Usage(
        np.concatenate((*starts, entries[-1:])),
        np.concatenate([part.usage.links for part in parts]),
        np.concatenate([part.usage.amounts for part in parts]),
    )
    delays = np.concatenate([part.delays for part in parts])
    limits = np.concatenate([part.limits for part in parts])
    firsts = np.cumsum([0, *counts[:-1]])
    return Routes(usage, delays, limits), tuple(int(first) for first in firsts)


class Table:
    """Rows of whole numbers, gathered array by array."""

    def __init__(self, columns: int) -> None:
        self._parts: list[Integers] = [np.zeros((columns, 0), dtype=np.int64)]

    def add(self, *columns: ArrayLike) -> None:
        """Add rows by their columns (n,); a scalar applies to all."""
        arrays = np.broadcast_arrays(*(np.asarray(column, np.int64) for column in columns))
        self._parts.append(np.stack([np.atleast_1d(array) for array in arrays]))

    def columns(self) -> Integers:
        """Return all rows, (columns, rows)."""
        return np.concatenate(self._parts, axis=1)


@dataclass
class Flows:
    """Flows to simulate, numbered from 0 in the order they are added.

    `sent`, `delivered`: rows (earlier, later): the later flow starts once the earlier has been
    sent, or delivered. `follows`: rows (leader, follower, offset): what is left of the follower is
    the same data as what is left of the leader up to `offset` units before the leader's end. From
    when both have started the follower cannot send what the leader has not sent, and stops or slows
    down where it would.
    """

    sent: Table = field(default_factory=lambda: Table(2))
    delivered: Table = field(default_factory=lambda: Table(2))
    follows: Table = field(default_factory=lambda: Table(3))
    _routes: list[Integers] = field(default_factory=list)
    _sizes: list[Floats] = field(default_factory=list)
    _starts: list[Floats] = field(default_factory=list)
    _count: int = 0

    def __len__(self) -> int:
        return self._count

    def add(
        self,
        route: int,
        size: float,
        *,
        sent: Iterable[int] = (),
        delivered: Iterable[int] = (),
        start: float = 0.0,
    ) -> int:
        """Add a flow that waits for flows `sent` and `delivered`; returns its number."""
        number = int(self.extend([route], size, start)[0])
        for earlier in sent:
            self.sent.add(earlier, number)
        for earlier in delivered:
            self.delivered.add(earlier, number)
        return number

    def extend(self, routes: ArrayLike, sizes: ArrayLike, starts: ArrayLike = 0.0) -> Integers:
        """Add flows by arrays; returns their numbers (n,).

        `routes`: rows of `Routes`, (n,). `sizes`: in units, bytes for instance; infinite for a flow
        that never ends. `starts`: not before these times, s.
        """
        rows = np.atleast_1d(np.asarray(routes, dtype=np.int64))
        self._routes.append(rows)
        self._sizes.append(np.broadcast_to(np.asarray(sizes, dtype=np.float64), rows.shape))
        self._starts.append(np.broadcast_to(np.asarray(starts, dtype=np.float64), rows.shape))
        self._count += len(rows)
        return np.arange(self._count - len(rows), self._count)

    def arrays(self) -> tuple[Integers, Floats, Floats]:
        """Return routes, sizes and starts of all flows, (n,) each."""
        none = np.zeros(0)
        return (
            np.concatenate([none.astype(np.int64), *self._routes]),
            np.concatenate([none, *self._sizes]),
            np.concatenate([none, *self._starts]),
        )
