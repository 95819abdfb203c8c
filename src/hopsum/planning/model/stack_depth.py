"""Number of hop-stack entries that switches are compiled for: those on a path, and the server's."""

from __future__ import annotations

from collections import deque

from hopsum.collectives.plan import PlanError
from hopsum.network.model import Network
from hopsum.protocol.wire import HOPS_DEFAULT, LayoutError, check_hops, most_hops


def stack_depth(network: Network, lanes: int, asked: int | None = None) -> int:
    """Return the number of stack entries for a network: `asked`, or as many as it may need.

    By default HOPS_DEFAULT, or more where the network's shortest paths are longer: an upper bound
    on their length (twice the eccentricity of a switch), if the lanes leave room for it. PlanError
    if `asked` exceeds what a packet has room for.
    """
    if asked is not None:
        try:
            return check_hops(asked, lanes)
        except LayoutError as error:
            raise PlanError(str(error)) from None
    return min(most_hops(lanes), max(HOPS_DEFAULT, _most_switches(network) + 1))


def _most_switches(network: Network) -> int:
    """Return an upper bound on the number of switches on a shortest path."""
    near = {
        name: [peer for peer in network.ports(name).values() if peer in network.switches]
        for name in network.switches
    }
    most = 0
    levels: dict[str, int] = {}
    for start in network.switches:
        if start in levels:
            continue
        levels[start] = last = 1
        queue = deque([start])
        while queue:
            node = queue.popleft()
            last = levels[node]
            for peer in near[node]:
                if peer not in levels:
                    levels[peer] = last + 1
                    queue.append(peer)
        # From any switch to `start` and on to any other: `start` counts once.
        most = max(most, 2 * last - 1)
    return min(most, len(network.switches))
