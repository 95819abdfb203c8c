"""The default window of a job: plans, runs and jobs of a cluster take it from here.

A window is the number of slots of a tree at a switch, a power of two; half as many fragments of
the tree are in flight.
"""

from __future__ import annotations

from fractions import Fraction
from heapq import heappop, heappush
from math import inf

from hopsum.collectives.choices import EMBEDDING, MULTI_TREE
from hopsum.collectives.plan import WINDOW_EMBEDDED
from hopsum.network.model import Network
from hopsum.planning.model.request import PlanRequest, SwitchRole
from hopsum.protocol.wire import frame_bytes

BUSY_SECONDS = 0.02
"""Round trip, beyond that of the links, for which a window keeps links busy: agents and switches in
software often wait for a processor for some milliseconds."""
COMMON_WINDOW = 64
"""Lower limit where one tree carries the tensor, and the window where trees share links with TCP's
streams, which wait behind bursts of a window."""
LEAST_WINDOW = 16
"""Lower limit where many trees share a tensor and the links, or many jobs a switch."""
QUEUE_FRAMES = 512
"""Maximum number of frames of one job queued for a link: below the 1000 of Linux's queues, so that
several jobs fit."""
EXPECTED_TREES = 8
"""Trees of the planner multi-tree where the request does not limit their number."""
SPARE_WINDOWS = 8
"""Windows that free slots hold before a job gets one above `COMMON_WINDOW`: others find room, too.
"""
QUOTA = Fraction(1, 2)
"""Default maximum fraction of a switch's slots that one job may hold."""


def default_window(
    network: Network,
    request: PlanRequest,
    planner: str,
    *,
    quota: Fraction = QUOTA,
    free: float = inf,
    spare: int = 0,
    most: int = WINDOW_EMBEDDED,
    immediate: bool = False,
) -> int:
    """Return the window of a job that does not ask for one; `request.window` is ignored.

    The half in flight fills the workers' links for a round trip and `BUSY_SECONDS`; all workers
    go at the rate of the slowest. Trees with their roots at the workers carry a part of a tensor
    each, or gather and scatter at once, and share the links: their windows are parts of that, since
    queues that stand are marked, and then some trees shrink and others do not. All windows together
    fit `QUEUE_FRAMES` and the `quota` of the smallest switch that sums, less `spare` slots; where
    not even windows of one slot do, the window is 1.

    `free`: the fewest slots that such a switch has left; of these, others find room for
    `SPARE_WINDOWS` times a window above `COMMON_WINDOW`, and next to an `immediate` job, which
    starts on free slots or not at all, for as many windows above `LEAST_WINDOW`. `most`: the
    engine's maximum.
    """
    trees = _trees(request, planner)
    in_network = request.algorithm is SwitchRole.IN_NETWORK
    if planner == EMBEDDING:
        window = COMMON_WINDOW
    else:
        at_workers = in_network and set(request.workers) <= set(request.servers)
        shares = 1 << (len(request.servers) - 1).bit_length() if at_workers else 1
        window = _busy_window(network, request, _least_slots(network, Fraction(1), free), shares)
    if not in_network:
        # The windows of all workers meet in a server's queue, and take no slots.
        sharing = len(request.workers) * len(request.servers) // max(1, len(set(request.servers)))
        return max(1, _fitting(min(window, most), QUEUE_FRAMES // max(sharing, trees)))
    window = _fitting(window, max(LEAST_WINDOW, QUEUE_FRAMES // trees))
    if immediate:
        while window > LEAST_WINDOW and window * trees * SPARE_WINDOWS > free:
            window //= 2
    rooms = _least_slots(network, quota, spare=spare)
    return max(1, _fitting(min(window, most), rooms / trees))


def _busy_window(network: Network, request: PlanRequest, free: float, shares: int) -> int:
    """Return the smallest window that keeps the links busy, from `COMMON_WINDOW` on.

    At most `WINDOW_EMBEDDED`, and if larger than `COMMON_WINDOW` one of which `SPARE_WINDOWS` fit
    the `free` slots. `shares`: trees that share the links; several have windows from `LEAST_WINDOW`
    on.
    """
    most = min(WINDOW_EMBEDDED, free / SPARE_WINDOWS)
    rate = min(
        max(
            (link.bandwidth or inf for link in network.links if worker in (link.a, link.b)),
            default=inf,
        )
        for worker in request.workers
    )
    seconds = BUSY_SECONDS + 2 * _farthest(network, request)
    in_flight = rate * seconds / (8 * frame_bytes(request.lanes, 1)) / shares
    window = COMMON_WINDOW if shares == 1 else LEAST_WINDOW
    while window < 2 * in_flight and 2 * window <= most:
        window *= 2
    return window


def _trees(request: PlanRequest, planner: str) -> int:
    """Return the number of trees that a planner may make, at least 1."""
    if planner == EMBEDDING:
        return 1
    if planner != MULTI_TREE or request.algorithm is not SwitchRole.IN_NETWORK:
        return max(1, len(request.servers))
    most = request.forest.max_trees
    return max(1, EXPECTED_TREES if most is None else most)


def _farthest(network: Network, request: PlanRequest) -> float:
    """Return the latency in seconds from the first server to the worker farthest from it."""
    near: dict[str, list[tuple[float, str]]] = {}
    for link in network.links:
        near.setdefault(link.a, []).append((link.latency, link.b))
        near.setdefault(link.b, []).append((link.latency, link.a))
    root = (request.servers or request.workers)[0]
    found: dict[str, float] = {}
    queue = [(0.0, root)]
    while queue:
        seconds, node = heappop(queue)
        if node in found:
            continue
        found[node] = seconds
        for latency, other in near.get(node, ()):
            heappush(queue, (seconds + latency, other))
    return max(found.get(worker, 0.0) for worker in request.workers)


def _least_slots(network: Network, quota: Fraction, free: float = inf, *, spare: int = 0) -> float:
    """Return the fewest slots that a job may hold at a switch that sums; inf: there is none."""
    rooms = [int(quota * s.slots) - spare for s in network.switches.values() if s.aggregates]
    return min([free, *rooms])


def _fitting(window: int, most: float) -> int:
    """Return the largest power of two of at most both, 0 below 1."""
    return (1 << int(min(window, most)).bit_length()) >> 1
