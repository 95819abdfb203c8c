"""Node positions in drawings of a network: hosts at the bottom, switches in layers above."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise

import networkx as nx

from hopsum.network.model import Network

WIDTH = 1000.0
LAYER = 110.0
MARGIN = 40.0
HOST_WIDTH = 40.0
SWITCH_RADIUS = 17.0
LETTER = 7.2
"""Width of a letter of a node's name."""
LEAST_LETTERS = 3
"""A name with fewer letters is not shortened but left out."""
MOST_LETTERS = 12
"""Maximum number of letters for which a node is widened, where there is room."""

Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes at which the nodes of a drawing do not overlap: a host's box, a switch's circle."""

    host_width: float
    switch_radius: float

    def fitted(self, name: str, *, host: bool) -> str:
        """Return what is drawn of the name of a node: its beginning where it is too long.

        Nothing where nodes are crowded.
        """
        letters = int((self.host_width if host else 2 * self.switch_radius) / LETTER)
        if len(name) <= letters:
            return name
        return f"{name[: letters - 1]}…" if letters > LEAST_LETTERS else ""


def positions(network: Network) -> dict[str, Point]:
    """Return node positions: layers by distance from the hosts, or a circle without switches."""
    if not network.switches:
        names = list(network.hosts)
        radius = 170.0
        return {
            name: (
                WIDTH / 2 + radius * math.sin(2 * math.pi * i / len(names)),
                radius + MARGIN - radius * math.cos(2 * math.pi * i / len(names)),
            )
            for i, name in enumerate(names)
        }
    hosts = [name for name in network.hosts if network.graph.degree(name)]
    level = nx.multi_source_dijkstra_path_length(network.graph, set(hosts), weight=None)
    layers: dict[int, list[str]] = {}
    for node in (*network.hosts, *network.switches):
        layers.setdefault(int(level.get(node, 0)), []).append(node)
    top = max(layers)
    places: dict[str, Point] = {}
    for height in range(top + 1):
        nodes = layers.get(height, [])
        if height:
            nodes = sorted(nodes, key=lambda n: (_mean_x(network, n, places), nodes.index(n)))
        step = (WIDTH - 2 * MARGIN) / max(len(nodes), 1)
        for i, node in enumerate(nodes):
            places[node] = (MARGIN + step * (i + 0.5), MARGIN + (top - height) * LAYER)
    return places


def sizes(network: Network, places: Mapping[str, Point]) -> Sizes:
    """Return sizes of nodes at `positions`."""
    hosts = _room(point for name, point in places.items() if name in network.hosts)
    switches = _room(point for name, point in places.items() if name in network.switches)
    host_width = max(HOST_WIDTH, _name_width(network, network.hosts))
    radius = max(SWITCH_RADIUS, _name_width(network, network.switches) / 2)
    return Sizes(min(host_width, 0.8 * hosts), min(radius, 0.45 * switches))


def _name_width(network: Network, nodes: Iterable[str]) -> float:
    longest = max((len(network.label(name)) for name in nodes), default=0)
    return LETTER * (min(longest, MOST_LETTERS) + 1)


def _room(points: Iterable[Point]) -> float:
    """Return the least distance of neighbours; `positions` are in the order of layers."""
    return min((math.dist(a, b) for a, b in pairwise(points)), default=WIDTH)


def _mean_x(network: Network, node: str, places: Mapping[str, Point]) -> float:
    below = [places[peer][0] for peer in network.graph.neighbors(node) if peer in places]
    return sum(below) / len(below) if below else WIDTH / 2
