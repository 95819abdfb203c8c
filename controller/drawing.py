"""A network as a picture: SVG, with a plan's trees on it if there is one."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from html import escape

from collectives.network import Network
from collectives.plan import JobPlan

WIDTH = 1000.0
LAYER = 150.0
MARGIN = 40.0
TREE_COLOURS = ("#c2410c", "#1d4ed8", "#15803d", "#7e22ce", "#b91c1c", "#0e7490")


def layers(network: Network) -> list[list[str]]:
    """Nodes by distance from the nearest host, hosts first; in the network's order."""
    distance = dict.fromkeys(network.hosts, 0)
    queue = list(network.hosts)
    for node in queue:
        for peer in network.ports(node).values():
            if peer not in distance:
                distance[peer] = distance[node] + 1
                queue.append(peer)
    rows: list[list[str]] = []
    for node in (*network.hosts, *network.switches):
        while len(rows) <= distance[node]:
            rows.append([])
        rows[distance[node]].append(node)
    return rows


def positions(network: Network) -> dict[str, tuple[float, float]]:
    """Where each node goes: layers above each other, hosts at the bottom; hosts alone in a ring."""
    if not network.switches:
        radius = WIDTH / 2 - MARGIN
        count = len(network.hosts)
        return {
            name: (
                WIDTH / 2 + radius * math.sin(2 * math.pi * i / count),
                WIDTH / 2 - radius * math.cos(2 * math.pi * i / count),
            )
            for i, name in enumerate(network.hosts)
        }
    rows = layers(network)
    height = MARGIN + LAYER * (len(rows) - 1)
    placed: dict[str, tuple[float, float]] = {}
    for level, row in enumerate(rows):
        # Keep a layer above what it leads to: order by the middle of the neighbours below.
        if level:
            row = sorted(row, key=lambda name: _middle(network, name, placed))
        for i, name in enumerate(row):
            x = MARGIN + (WIDTH - 2 * MARGIN) * (i + 0.5) / len(row)
            placed[name] = (x, height - LAYER * level)
    return placed


def _middle(network: Network, name: str, placed: Mapping[str, tuple[float, float]]) -> float:
    below = [placed[peer][0] for peer in network.ports(name).values() if peer in placed]
    return sum(below) / len(below) if below else 0.0


def draw_svg(network: Network, plan: JobPlan | None = None) -> str:
    """The network as an SVG document; a plan's trees are coloured, summing switches filled."""
    places = positions(network)
    height = max(y for _, y in places.values()) + MARGIN
    colours = _tree_colours(plan)
    summing = {
        name
        for tree in (plan.trees if plan else ())
        for name, part in tree.parts.items()
        if part.aggregate
    }
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH:.0f} {height:.0f}" '
        'font-family="sans-serif" font-size="12" text-anchor="middle">',
        f"<title>{escape(network.name)}</title>",
    ]
    for link in network.links:
        trees = colours.get(frozenset((link.a, link.b)), [])
        for number, colour in enumerate(trees or ["#9ca3af"]):
            lines.append(_line(places[link.a], places[link.b], colour, bool(trees), number))
    lines += _nodes(network, places, plan, summing)
    lines.append("</svg>")
    return "\n".join(lines) + "\n"


def _tree_colours(plan: JobPlan | None) -> dict[frozenset[str], list[str]]:
    colours: dict[frozenset[str], list[str]] = {}
    for tree in plan.trees if plan else ():
        for pair in tree.parents.items():
            colour = TREE_COLOURS[tree.tree % len(TREE_COLOURS)]
            colours.setdefault(frozenset(pair), []).append(colour)
    return colours


def _line(
    a: tuple[float, float], b: tuple[float, float], colour: str, bold: bool, number: int
) -> str:
    shift = 3.0 * number
    return (
        f'<line x1="{a[0] + shift:.1f}" y1="{a[1]:.1f}" x2="{b[0] + shift:.1f}" y2="{b[1]:.1f}" '
        f'stroke="{colour}" stroke-width="{2.5 if bold else 1}"/>'
    )


def _nodes(
    network: Network,
    places: Mapping[str, tuple[float, float]],
    plan: JobPlan | None,
    summing: Iterable[str],
) -> list[str]:
    servers = {tree.server for tree in plan.trees} if plan else set()
    lines = []
    for name, (x, y) in places.items():
        if name in network.hosts:
            fill = "#fde68a" if name in servers else "#e5e7eb"
            if plan and name in plan.workers:
                fill = "#bbf7d0"
            shape = f'<circle cx="{x:.1f}" cy="{y:.1f}" r="14" fill="{fill}" stroke="#374151"/>'
        else:
            fill = "#fdba74" if name in summing else "#ffffff"
            dash = "" if network.switches[name].aggregates else ' stroke-dasharray="4 3"'
            shape = (
                f'<rect x="{x - 20:.1f}" y="{y - 13:.1f}" width="40" height="26" rx="4" '
                f'fill="{fill}" stroke="#374151"{dash}/>'
            )
        lines += [shape, f'<text x="{x:.1f}" y="{y + 4:.1f}">{escape(name)}</text>']
    return lines
