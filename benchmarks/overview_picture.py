"""docs/images/overview.svg, the README's picture: a tree of sums, and two of the measured figures.

From `benchmarks/results/goodput.json` and `loss.json`; `python -m benchmarks.figures` writes it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from html import escape
from typing import Any, NamedTuple

from cli.reports.network_drawing import STYLE, network_svg
from network.loaders import load_network
from network.model import Network
from planning.model.allocation import Allocator
from planning.model.placement import place
from planning.model.request import PlanRequest
from planning.registry import make_plan

TOPOLOGY = "fat-tree:4"
WORKERS = 8
WIDTH = 1000
CHARTS = 455
"""Where the charts begin, below the tree; one is `CHART` high and half of the width."""
CHART = 205
BAR = 22
TITLE = "Each link carries the gradient once each way, however many workers are below it"
NOTE = (
    f"{TOPOLOGY}: {WORKERS} workers (blue), the parameter server (orange), and the switches of "
    "their aggregation tree (filled)"
)
COLOURS = {"in-network": "#0b7285", "server": "#e8590c", "ring": "#5f3dc4"}
NAMES = {"in-network": "summed in the switches", "server": "at a server", "ring": "around a ring"}


class Bar(NamedTuple):
    """A bar of a chart; `mark`: a reference value."""

    name: str
    value: float
    label: str
    colour: str
    mark: float | None = None


def overview_svg(goodput: Sequence[dict[str, Any]], loss: Sequence[dict[str, Any]]) -> str:
    """Return the picture from the rows of the two results."""
    network = load_network(TOPOLOGY, workers=WORKERS)
    height = CHARTS + CHART
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        f'width="{WIDTH}" height="{height}" role="img" aria-label="hopsum">',
        f"<style>{STYLE}text.title{{font-size:16px;font-weight:600;text-anchor:start}}"
        "text.note{font-size:12px;text-anchor:start;fill:#5b6b7b}"
        "text.name{font-size:13px;text-anchor:end}text.value{font-size:13px;text-anchor:start}"
        "</style>",
        f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>',
        f'<text class="title" x="20" y="22">{TITLE}</text>',
        f'<g transform="translate(0 20)">{_tree(network)}</g>',
        f'<text class="note" x="20" y="421">{NOTE}</text>',
        *_chart(
            20,
            "Goodput of a worker, Mbit/s",
            f"{TOPOLOGY}, 25 Mbit/s links, Mininet; dashed: what links and headers allow",
            list(_goodput_bars(goodput)),
        ),
        *_chart(
            WIDTH // 2 + 20,
            "Time of an all-reduce with loss on every link",
            "of the lossless time; every sum is exact; dashed: 1 / (1 - loss)",
            list(_loss_bars(loss)),
        ),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _tree(network: Network) -> str:
    """Return the SVG of the network with its plan, without the enclosing document."""
    placement = place(network, WORKERS, 1)
    request = PlanRequest(1, 1, placement.workers, placement.servers)
    drawn = network_svg(network, make_plan(network, request, Allocator(network)))
    return re.sub(r"<title>.*?</title>|</?svg[^>]*>|<style>.*?</style>", "", drawn)


def _goodput_bars(rows: Sequence[dict[str, Any]]) -> Iterator[Bar]:
    for row in rows:
        if row["topology"] == TOPOLOGY:
            mbit, name = row["goodput"] / 1e6, row["algorithm"]
            yield Bar(NAMES[name], mbit, f"{mbit:.1f}", COLOURS[name], row["limit"] / 1e6)


def _loss_bars(rows: Sequence[dict[str, Any]]) -> Iterator[Bar]:
    for row in rows:
        plain = (row["burst"], row["reorder"], row["latency"]) == (1.0, 0.0, 0.0)
        if row["topology"] == TOPOLOGY and plain:
            name = f"{100 * row['loss']:g} % lost"
            yield Bar(
                name, row["ratio"], f"{row['ratio']:.2f}", COLOURS["in-network"], row["limit"]
            )


def _chart(left: int, title: str, note: str, bars: Sequence[Bar]) -> Iterator[str]:
    """Yield horizontal bars, as wide as the longest allows."""
    zero, room = left + 172, WIDTH // 2 - 260
    most = max(max(bar.value, bar.mark or 0) for bar in bars)
    yield f'<text class="title" x="{left}" y="{CHARTS + 14}">{escape(title)}</text>'
    yield f'<text class="note" x="{left}" y="{CHARTS + 36}">{escape(note)}</text>'
    for number, bar in enumerate(bars):
        y = CHARTS + 58 + number * (BAR + 14)
        long = room * bar.value / most
        yield f'<text class="name" x="{zero - 8}" y="{y + BAR / 2:g}">{escape(bar.name)}</text>'
        yield (
            f'<rect x="{zero}" y="{y}" width="{long:.1f}" height="{BAR}" fill="{bar.colour}"/>'
            f'<text class="value" x="{zero + room + 12}" y="{y + BAR / 2:g}">{bar.label}</text>'
        )
        if bar.mark is not None:
            x = zero + room * bar.mark / most
            yield (
                f'<path d="M{x:.1f} {y - 4}v{BAR + 8}" stroke="#1d2733" stroke-dasharray="4 2" '
                'stroke-width="1.5"/>'
            )
