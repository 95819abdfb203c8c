"""The journey of a fragment as text, and as a sequence diagram."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from xml.sax.saxutils import escape

from hopsum.simulation.fragment_trace import FragmentTrace, Hop

COLUMN = 130
ROW = 26
TOP = 40
MOST_ROWS = 2000
"""Maximum number of frames in a picture; browsers do not show much taller ones."""
UP, DOWN, LOST = "#0b7285", "#5f3dc4", "#c92a2a"


def trace_lines(trace: FragmentTrace) -> Iterator[str]:
    """Return a line for each frame: departure, arrival, kind, and outcome."""
    hops = _in_order(trace)
    if not hops:
        yield f"no frame of fragment {trace.fragment} of job {trace.job} was sent"
        return
    start = hops[0].sent
    yield f"fragment {trace.fragment} of job {trace.job}; milliseconds from its first frame"
    yield "     sent   arrived"
    width = max(len(f"{hop.source} -> {hop.target}") for hop in hops)
    trees = len({hop.tree for hop in hops}) > 1
    for hop in hops:
        ends = f"{hop.source} -> {hop.target}"
        arrival = "     lost" if hop.arrived is None else f"{1e3 * (hop.arrived - start):9.3f}"
        tree = f"tree {hop.tree}: " if trees else ""
        yield (
            f"{1e3 * (hop.sent - start):9.3f} {arrival}  {ends:<{width}}  {tree}{hop.label()}"
            f"{_result(hop)}"
        )


def _in_order(trace: FragmentTrace) -> list[Hop]:
    """Return the frames in order of departure; they are recorded when they are queued."""
    return sorted(trace.hops, key=lambda hop: hop.sent)


def _result(hop: Hop) -> str:
    names = ", ".join(outcome.name.lower() for outcome in hop.outcomes)
    words = names.replace("re_", "re-").replace("_", " ")
    return f"; {hop.target}: {words}" if words else ""


def trace_svg(trace: FragmentTrace) -> str:
    """Return a sequence diagram: a column a node, a row a frame, time from top to bottom."""
    hops = _in_order(trace)[:MOST_ROWS]
    names = _columns(hops)
    x = {name: COLUMN // 2 + COLUMN * place for place, name in enumerate(names)}
    width, height = max(COLUMN * (len(names) + 2), 400), TOP + ROW * (len(hops) + 1)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" font-family="sans-serif" font-size="11">',
        '<defs><marker id="tip" markerWidth="8" markerHeight="8" refX="7" refY="3" orient="auto">'
        '<path d="M0,0 L7,3 L0,6 z" fill="#495057"/></marker></defs>',
        f'<rect width="{width}" height="{height}" fill="white"/>',
    ]
    for name in names:
        parts.append(
            f'<text x="{x[name]}" y="18" text-anchor="middle" font-weight="bold">'
            f"{escape(name)}</text>"
            f'<line x1="{x[name]}" y1="24" x2="{x[name]}" y2="{height}" stroke="#ced4da"/>'
        )
    start = hops[0].sent if hops else 0.0
    for row, hop in enumerate(hops, 1):
        y = TOP + ROW * row - ROW // 2
        first, last = x[hop.source], x[hop.target]
        lost = hop.arrived is None
        colour = LOST if lost else UP if hop.kind == "contribution" else DOWN
        end = (first + last) / 2 if lost else last
        dash = ' stroke-dasharray="4 3"' if lost else ""
        parts.append(
            f'<line x1="{first}" y1="{y}" x2="{end:g}" y2="{y}" stroke="{colour}" '
            f'stroke-width="1.5"{dash} marker-end="url(#tip)"/>'
        )
        if lost:
            parts.append(f'<text x="{end:g}" y="{y + 4}" fill="{LOST}">✕</text>')
        says = f"{1e3 * (hop.sent - start):.3f} ms  {hop.label()}{_result(hop)}"
        parts.append(
            f'<text x="{max(first, last) + 8}" y="{y + 4}" fill="#212529" stroke="white" '
            f'stroke-width="4" paint-order="stroke">{escape(says)}</text>'
        )
    return "\n".join([*parts, "</svg>"]) + "\n"


def _columns(hops: Sequence[Hop]) -> list[str]:
    """Return the nodes from left to right: workers, then each switch after those it sums, server.

    Among nodes of the same height those that the fragment reaches first are first.
    """
    height: dict[str, int] = {}
    for hop in hops:
        below = height.setdefault(hop.source, 0)
        height.setdefault(hop.target, 0)
        if hop.kind == "contribution":
            height[hop.target] = max(height[hop.target], below + 1)
    return sorted(height, key=lambda name: height[name])
