"""Horizontal bars as SVG, for the documents' pictures of measured figures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from typing import NamedTuple

STYLE = (
    "text.title{font-size:16px;font-weight:600;text-anchor:start}"
    "text.note{font-size:12px;text-anchor:start;fill:#5b6b7b}"
    "text.name{font-size:13px;text-anchor:end}text.value{font-size:13px;text-anchor:start}"
)
HEAD = 58
"""Height of title and note, px."""
WIDTH = 720
THIN = 16
GAP = 7


class Bar(NamedTuple):
    """A bar of a chart; `mark`: a reference value, drawn as a dashed line."""

    name: str
    value: float
    label: str
    colour: str
    mark: float | None = None


def chart(
    left: int, top: int, names: int, room: int, title: str, note: str, bars: Sequence[Bar],
    thick: int = 22, gap: int = 14,
) -> Iterator[str]:  # fmt: skip
    """Yield the elements of a chart: bars of at most `room` px, right of names of `names` px."""
    zero = left + names
    over = min(4, gap // 2 - 1)
    most = max(max(bar.value, bar.mark or 0) for bar in bars)
    yield f'<text class="title" x="{left}" y="{top + 14}">{escape(title)}</text>'
    yield f'<text class="note" x="{left}" y="{top + 36}">{escape(note)}</text>'
    for number, bar in enumerate(bars):
        y = top + HEAD + number * (thick + gap)
        long = room * bar.value / most
        yield f'<text class="name" x="{zero - 8}" y="{y + thick / 2:g}">{escape(bar.name)}</text>'
        yield (
            f'<rect x="{zero}" y="{y}" width="{long:.1f}" height="{thick}" fill="{bar.colour}"/>'
            f'<text class="value" x="{zero + room + 12}" y="{y + thick / 2:g}">{bar.label}</text>'
        )
        if bar.mark is not None:
            x = zero + room * bar.mark / most
            yield (
                f'<path d="M{x:.1f} {y - over}v{thick + 2 * over}" stroke="#1d2733" '
                'stroke-dasharray="4 2" stroke-width="1.5"/>'
            )


def chart_svg(title: str, note: str, bars: Sequence[Bar]) -> str:
    """Return a picture with one chart."""
    height = HEAD + len(bars) * (THIN + GAP) + 10
    names = 20 + 7 * max(len(bar.name) for bar in bars)
    values = 30 + 8 * max(len(bar.label) for bar in bars)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        f'width="{WIDTH}" height="{height}" role="img" aria-label="{escape(title)}">',
        "<style>text{font-family:system-ui,sans-serif;dominant-baseline:central;fill:#1d2733}"
        f"{STYLE}</style>",
        f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>',
        *chart(10, 0, names, WIDTH - 20 - names - values, title, note, bars, thick=THIN, gap=GAP),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"
