"""Duration of a pipelined tree, and a lower bound on that of any all-reduce."""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from fractions import Fraction
from math import isqrt

from hopsum.collectives.plan import PlanError
from hopsum.planning.model.graph import PlanningGraph


@dataclass(frozen=True, slots=True)
class PipelinedTree:
    """An all-reduce over a tree whose data are pipelined in chunks.

    `height`: edges from the farthest node to the root. `hop`: fixed seconds per chunk and edge (the
    alpha of Luo, Wang and Xing, TNSE 2024). `size` of a worker's data in the units of `rate` times
    a second (bits, for bit/s).
    """

    height: int
    hop: Fraction
    size: Fraction
    rate: Fraction

    def __post_init__(self) -> None:
        if self.height < 1:
            raise PlanError(f"a tree of height {self.height}: expected at least 1")
        if self.rate <= 0 or self.size <= 0 or self.hop < 0:
            raise PlanError(
                f"a pipelined tree of rate {self.rate}, size {self.size} and latency {self.hop}: "
                "expected rate and size above 0, and latency at least 0"
            )

    def seconds(self, chunks: int) -> Fraction:
        """Return the seconds until the last of `chunks` equal chunks has gone up and down.

        (2h - 1 + n) (a + M / (n r)): each of 2h hops takes a chunk a + M / (n r) after the one
        before it.
        """
        if chunks < 1:
            raise PlanError(f"{chunks} chunks: expected at least 1")
        return (2 * self.height - 1 + chunks) * (self.hop + self.size / (chunks * self.rate))

    def best_chunks(self, at_most: int) -> int:
        """Return the number of chunks, up to a limit, with the least duration.

        Near sqrt((2h - 1) M / (a r)), where the time is
        t* = (2h - 1) a + M / r + 2 sqrt((2h - 1) a M / r); for a = 0 more chunks are always faster,
        with the limit t* = M / r.
        """
        if not self.hop:
            return at_most
        ideal = (2 * self.height - 1) * self.size / (self.hop * self.rate)
        below = isqrt(ideal.numerator // ideal.denominator)
        near = {min(max(chunks, 1), at_most) for chunks in (below, below + 1)}
        return min(sorted(near), key=self.seconds)


def least_seconds(graph: PlanningGraph, size: Fraction, rate: Fraction) -> Fraction:
    """Return the least seconds of any all-reduce: max(latency of the farthest workers, M / rate).

    `size` of a worker's data in the units of the capacities times a second; `rate`: a bound on the
    rate, such as `strength`.
    """
    if rate <= 0:
        raise PlanError(f"{graph.name}: a bound of {rate} on the rate: expected above 0")
    farthest = max(_farthest(graph, worker) for worker in graph.workers)
    return max(farthest, size / rate)


def _farthest(graph: PlanningGraph, start: str) -> Fraction:
    """Return the latency from a node to its farthest worker, in seconds (Dijkstra)."""
    done: dict[str, Fraction] = {}
    queue = [(Fraction(0), graph.index[start])]
    while queue:
        delay, number = heapq.heappop(queue)
        node = graph.nodes[number]
        if node in done:
            continue
        done[node] = delay
        for peer in graph.neighbours[node]:
            if peer not in done:
                step = Fraction(str(graph.latency[graph.edge(node, peer)]))
                heapq.heappush(queue, (delay + step, graph.index[peer]))
    return max(done[worker] for worker in graph.workers if worker in done)
