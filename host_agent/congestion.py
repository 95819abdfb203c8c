"""How many of a stream's fragments fit the queues of its path (docs/congestion.md).

Of the tree's flows as many fragments may be in flight as a queue holds, where most of them meet:
marks come with results, too late for the first windows of dozens of workers. How marks and round
trips change the window is in datapath/congestion.h.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import inf
from typing import NamedTuple

from hopsum.collectives.plan import JobPlan, Results, TreePlan
from hopsum.network.model import Link, Network
from hopsum.protocol.wire import frame_bytes

LEAST_WINDOW = 4
"""Minimum number of fragments: with fewer, a loss would wait for a timeout."""
SEGMENT_FRAME_BYTES = 1514
"""Bytes of a TCP segment, by which a connection increases its window every round trip."""
NO_QUEUE = 1.5
"""A round trip of up to this many times the propagation and transmission time shows empty queues.
"""


QUEUE_FRAMES = 512
"""Frames of one job in a queue: half of Linux's default txqueuelen, as others may wait there, too.
"""


class StreamPath(NamedTuple):
    """Path of a stream's frames."""

    round_trip: float
    """Seconds from the workers to the server and back with empty queues."""
    step: float
    """Fragments in a TCP connection's segment."""


def stream_path(network: Network, plan: JobPlan, tree: TreePlan) -> StreamPath | None:
    """Return the path along a tree; None if none of its links has a rate.

    The farthest worker determines the round trip, since every result waits for it.
    """
    size = frame_bytes(plan.lanes, 0)

    def links(node: str) -> Iterator[Link]:
        while node != tree.server:
            yield network.link(node, tree.parents[node])
            node = tree.parents[node]

    paths = [list(links(worker)) for worker in plan.workers]
    if all(link.bandwidth is None for path in paths for link in path):
        return None
    longest = max(
        sum(link.latency + 8 * size / (link.bandwidth or inf) for link in path) for path in paths
    )
    return StreamPath(2 * longest, SEGMENT_FRAME_BYTES / size)


def most_in_flight(plan: JobPlan, tree: TreePlan) -> int:
    """Return the number of a worker's fragments that fit a queue with those of all flows.

    At least 1. Trees with the same server share its link.
    """
    trees = sum(other.server == tree.server for other in plan.trees)
    return max(1, QUEUE_FRAMES // (trees * max(most_flows(plan, tree))))


class Flows(NamedTuple):
    """Numbers of a tree's flows on the link that has the most: of sums, and of results."""

    up: int
    down: int


def most_flows(plan: JobPlan, tree: TreePlan) -> Flows:
    """Return the number of a tree's flows, in each direction, on the link that has the most.

    Sums of a switch are a flow, as are the results of each worker unless switches copy them.
    """
    up: dict[str, set[int | str]] = {}
    down: dict[str, int] = {}
    for worker, (node, stack) in enumerate(zip(plan.workers, tree.up, strict=True)):
        flow: int | str = worker
        for hop in stack:
            if node == tree.server:
                break
            up.setdefault(node, set()).add(flow)
            down[node] = down.get(node, 0) + 1
            node = tree.parents[node]
            if hop.aggregate:
                flow = node
    copied = plan.results is Results.REPLICATED
    sums = max((len(each) for each in up.values()), default=1)
    return Flows(sums, 1 if copied else max(down.values(), default=1))
