"""docs/images/overview.svg, the README's picture: a tree of sums, and two of the measured figures.

From `benchmarks/results/goodput.json` and `loss.json`; `python -m benchmarks.figures` writes it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from benchmarks.bar_chart import STYLE as CHART_STYLE
from benchmarks.bar_chart import Bar, chart
from hopsum.network.loaders import load_network
from hopsum.network.model import Network
from hopsum.planning.model.allocation import Allocator
from hopsum.planning.model.placement import place
from hopsum.planning.model.request import PlanRequest
from hopsum.planning.registry import plan_job
from hopsum.reports.network_drawing import STYLE, network_svg

TOPOLOGY = "fat-tree:4"
WORKERS = 8
WIDTH = 1000
CHARTS = 455
"""Where the charts begin, below the tree; one is `CHART` high and half of the width."""
CHART = 205
NAMES_ROOM = 172
BARS_ROOM = WIDTH // 2 - 260
TITLE = "Each link carries the gradient once each way, however many workers are below it"
NOTE = (
    f"{TOPOLOGY}: {WORKERS} workers (blue), the parameter server (orange), and the switches of "
    "their aggregation tree (filled)"
)
COLOURS = {"in-network": "#0b7285", "server": "#e8590c", "ring": "#5f3dc4"}
NAMES = {"in-network": "summed in the switches", "server": "at a server", "ring": "around a ring"}


def overview_svg(goodput: Sequence[dict[str, Any]], loss: Sequence[dict[str, Any]]) -> str:
    """Return the picture from the rows of the two results."""
    network = load_network(TOPOLOGY, workers=WORKERS)
    height = CHARTS + CHART
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        f'width="{WIDTH}" height="{height}" role="img" aria-label="hopsum">',
        f"<style>{STYLE}{CHART_STYLE}</style>",
        f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>',
        f'<text class="title" x="20" y="22">{TITLE}</text>',
        f'<g transform="translate(0 20)">{_tree(network)}</g>',
        f'<text class="note" x="20" y="421">{NOTE}</text>',
        *chart(
            20,
            CHARTS,
            NAMES_ROOM,
            BARS_ROOM,
            "Goodput of a worker, Mbit/s",
            f"{TOPOLOGY}, 25 Mbit/s links, Mininet; dashed: what links and headers allow",
            list(_goodput_bars(goodput)),
        ),
        *chart(
            WIDTH // 2 + 20,
            CHARTS,
            NAMES_ROOM,
            BARS_ROOM,
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
    drawn = network_svg(network, plan_job(network, request, Allocator(network)))
    return re.sub(r"<title>.*?</title>|</?svg[^>]*>|<style>.*?</style>", "", drawn)


def _goodput_bars(rows: Sequence[dict[str, Any]]) -> Iterator[Bar]:
    for row in rows:
        if row["topology"] == TOPOLOGY:
            mbit, name = row["goodput"] / 1e6, row["algorithm"]
            yield Bar(NAMES[name], mbit, f"{mbit:.1f}", COLOURS[name], row["limit"] / 1e6)


def _loss_bars(rows: Sequence[dict[str, Any]]) -> Iterator[Bar]:
    here = [row for row in rows if row["topology"] == TOPOLOGY]
    elements = max(row["elements"] for row in here)
    for row in here:
        plain = (row["burst"], row["reorder"], row["latency"]) == (1.0, 0.0, 0.0)
        if row["elements"] == elements and plain:
            name = f"{100 * row['loss']:g} % lost"
            yield Bar(
                name, row["ratio"], f"{row['ratio']:.2f}", COLOURS["in-network"], row["limit"]
            )
