"""Resources of embeddings, as rows: free bandwidth of directed links, and of hosts each way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from hopsum.planning.embedding.logical_topologies import LogicalTopology
from hopsum.planning.model.demand import DirectedLink, JobDemand, Resources

Vector = NDArray[np.float64]


class Capacities:
    """Rows of `Resources`: a row for every directed link, and two for every host in `nodes`.

    `names` say what each is, for messages; `free`: bit/s.
    """

    def __init__(self, resources: Resources) -> None:
        self.resources = resources
        self.of_link = {link: i for i, link in enumerate(resources.links)}
        self.names = [f"link {u}->{v}" for u, v in resources.links]
        self.free = list(resources.links.values())
        out: dict[str, int] = {}
        into: dict[str, int] = {}
        for host, free in resources.nodes.items():
            out[host], into[host] = len(self.free), len(self.free) + 1
            self.names += [f"host {host} sending", f"host {host} receiving"]
            self.free += [free, free]
        self._rows = {
            (u, v): [row, *([out[u]] if u in out else ()), *([into[v]] if v in into else ())]
            for (u, v), row in self.of_link.items()
        }
        # A unit on a row without bandwidth takes forever.
        self.seconds = np.array([1 / float(f) if f else np.inf for f in self.free])

    def __len__(self) -> int:
        return len(self.free)

    def rows_of(self, link: DirectedLink) -> list[int]:
        """Return the rows that a unit on a directed link uses."""
        return self._rows[link]

    def loads(self, traffic: Mapping[DirectedLink, Fraction]) -> dict[int, Fraction]:
        """Return the units in each row."""
        loads: dict[int, Fraction] = {}
        for link, units in traffic.items():
            for row in self.rows_of(link):
                loads[row] = loads.get(row, Fraction(0)) + units
        return loads

    def usable(self, topology: LogicalTopology) -> bool:
        """Return whether all links that it uses have free bandwidth."""
        return all(self.free[row] for link in topology.traffic for row in self.rows_of(link))

    def times(self, demand: JobDemand, topology: LogicalTopology) -> Vector:
        """Return the seconds (rows,) that each row takes for all of a job's data on a topology."""
        times = np.zeros(len(self))
        for link, units in topology.traffic.items():
            times[self.rows_of(link)] += float(units)
        # A row without bandwidth does not matter if nothing is sent over it.
        used = times > 0
        times[used] *= demand.bits * self.seconds[used]
        return times

    def exact_times(
        self, parts: Sequence[tuple[JobDemand, LogicalTopology, Fraction]]
    ) -> list[Fraction]:
        """Return the seconds that each row takes for these shares of jobs' data on topologies."""
        bits = [Fraction(0)] * len(self)
        for demand, topology, weight in parts:
            for row, units in self.loads(topology.traffic).items():
                bits[row] += demand.bits * weight * units
        return [
            load / free if load else Fraction(0) for load, free in zip(bits, self.free, strict=True)
        ]
