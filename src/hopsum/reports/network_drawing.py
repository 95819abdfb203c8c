"""A network as a picture (SVG): hosts below, switches in layers above them, a plan's trees bold."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

from hopsum.collectives.plan import JobPlan
from hopsum.network.layout import MARGIN, WIDTH, Point, Sizes, positions, sizes
from hopsum.network.model import Network

TREE_COLOURS = ("#0b7285", "#e8590c", "#5f3dc4", "#2b8a3e", "#a61e4d", "#1864ab")
STYLE = (
    "text{font:11px system-ui,sans-serif;text-anchor:middle;dominant-baseline:central;fill:#1d2733}"
    ".link{stroke:#c3ccd5;stroke-width:1.2}.switch{fill:#fff;stroke:#5b6b7b;stroke-width:1.4}"
    ".plain{stroke-dasharray:4 3}.host{fill:#f1f3f5;stroke:#adb5bd}.worker{fill:#d0ebff}"
    ".server{fill:#ffe8cc}.sums{stroke-width:2.4}.on{fill:#fff}"
)


def network_svg(
    network: Network,
    plan: JobPlan | None = None,
    link_bytes: Mapping[tuple[str, str], int] | None = None,
    trees: Sequence[Mapping[str, str]] | None = None,
) -> str:
    """Return the network as an SVG element.

    `plan`: its trees are drawn bold, summing switches filled. `link_bytes`: shown when the mouse
    rests on a link, by direction. `trees`: the parents in each tree, where there is no plan.
    Trees that share a link are drawn side by side.
    """
    drawn = [tree.parents for tree in plan.trees] if plan else trees or ()
    places = positions(network)
    size = sizes(network, places)
    height = max((y for _, y in places.values()), default=0.0) + MARGIN
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH:g} {height:g}" '
        f'role="img" aria-label="{escape(network.name)}"><style>{STYLE}</style>'
    ]
    for link in network.links:
        (x1, y1), (x2, y2) = places[link.a], places[link.b]
        parts.append(
            f'<line class="link" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}">'
            f"<title>{escape(_link_title(network, link.a, link.b, link_bytes))}</title></line>"
        )
    parts += _tree_lines(network, places, drawn, link_bytes)
    sums: dict[str, str] = {}
    for tree in plan.trees if plan else ():
        for part in tree.parts.values():
            if part.aggregate:
                sums.setdefault(part.switch, TREE_COLOURS[tree.tree % len(TREE_COLOURS)])
    workers = set(plan.workers) if plan else set()
    servers = {tree.server for tree in plan.trees} if plan else set()
    for name, place in places.items():
        label = network.label(name)
        if name in network.hosts:
            role = " worker" if name in workers else " server" if name in servers else ""
            parts += _host(label, place, size, role)
        else:
            kind = "switch" if network.switches[name].aggregates else "switch plain"
            parts += _switch(label, place, size, kind, sums.get(name))
    parts.append("</svg>")
    return "\n".join(parts)


def _tree_lines(
    network: Network,
    places: Mapping[str, Point],
    trees: Sequence[Mapping[str, str]],
    link_bytes: Mapping[tuple[str, str], int] | None,
) -> list[str]:
    """Return the links of trees, given by the parents in each, side by side."""
    lines = []
    abreast: dict[frozenset[str], list[int]] = {}
    for number, parents in enumerate(trees):
        for pair in parents.items():
            abreast.setdefault(frozenset(pair), []).append(number)
    for number, parents in enumerate(trees):
        colour = TREE_COLOURS[number % len(TREE_COLOURS)]
        for node, parent in parents.items():
            parallel = abreast[frozenset((node, parent))]
            place = parallel.index(number) - (len(parallel) - 1) / 2
            (x1, y1), (x2, y2) = _shifted(
                places, node, parent, place * min(4.0, 14 / len(parallel))
            )
            lines.append(
                f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" '
                f'stroke="{colour}" stroke-width="3" stroke-opacity=".8">'
                f"<title>{escape(_link_title(network, node, parent, link_bytes))}</title></line>"
            )
    return lines


def _host(label: str, place: Point, size: Sizes, role: str) -> list[str]:
    x, y = place
    shape = (
        f'<rect class="host{role}" x="{x - size.host_width / 2:.1f}" y="{y - 11:.1f}" '
        f'width="{size.host_width:g}" height="22" rx="{min(5, size.host_width / 3):g}">'
        f"<title>{escape(label)}</title></rect>"
    )
    name = size.fitted(label, host=True)
    return [shape, f'<text x="{x:.1f}" y="{y:.1f}">{escape(name)}</text>'] if name else [shape]


def _switch(label: str, place: Point, size: Sizes, kind: str, colour: str | None) -> list[str]:
    """Return a switch, filled with the colour of the tree that it sums for."""
    x, y = place
    style = "" if colour is None else f' style="fill:{colour}"'
    shape = (
        f'<circle class="{kind}" cx="{x:.1f}" cy="{y:.1f}" r="{size.switch_radius:g}"{style}>'
        f"<title>{escape(label)}</title></circle>"
    )
    name = size.fitted(label, host=False)
    if not name:
        return [shape]
    on = "" if colour is None else ' class="on"'
    return [shape, f'<text{on} x="{x:.1f}" y="{y:.1f}">{escape(name)}</text>']


def _shifted(places: Mapping[str, Point], a: str, b: str, shift: float) -> tuple[Point, Point]:
    """Return the ends of the line between two nodes, shifted to its side."""
    # Both directions of a link shift the same way.
    (x1, y1), (x2, y2) = places[min(a, b)], places[max(a, b)]
    length = math.hypot(x2 - x1, y2 - y1) or 1.0
    dx, dy = shift * (y1 - y2) / length, shift * (x2 - x1) / length
    return (x1 + dx, y1 + dy), (x2 + dx, y2 + dy)


def _link_title(
    network: Network, a: str, b: str, link_bytes: Mapping[tuple[str, str], int] | None
) -> str:
    first, second = network.label(a), network.label(b)
    if link_bytes is None:
        return f"{first} - {second}"
    return (
        f"{first} → {second}: {link_bytes.get((a, b), 0):,} bytes\n"
        f"{second} → {first}: {link_bytes.get((b, a), 0):,} bytes"
    )
