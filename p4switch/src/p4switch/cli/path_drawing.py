"""The picture of `p4switch explain`: the path of a packet from top to bottom, as SVG."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, field
from html import escape

from p4switch.backends.reference.trace import Event, PacketTrace, event_lines, frame_text, place
from p4switch.position import NOWHERE, Position

WIDTH = 820
MARGIN = 20
COLUMNS = 88
"""Characters of a line in a box."""
LINE = 17
PADDING = 9
GAP = 22

STYLE = """
text { font: 13px ui-monospace, Menlo, Consolas, monospace; fill: #222; }
.title { font-weight: 600; } .place { fill: #777; font-size: 11px; }
rect { fill: #f4f5f7; stroke: #9aa3ad; }
path { stroke: #667; fill: none; } marker path { fill: #667; }
.stage rect { fill: #dfe7f5; stroke: #6b87c0; } .state rect { fill: #eaf3ea; stroke: #6fa56f; }
.hit rect { fill: #e8e3f6; stroke: #8b74c4; } .miss rect { fill: #fdf1d6; stroke: #c79a3c; }
.drop rect { fill: #fbdcdc; stroke: #c25151; } .port rect { fill: #fff; stroke: #222; }
"""

_OF_A_STATE = ("extract", "parser_error")


@dataclass(slots=True)
class Box:
    """A step of the path: kind (a class of STYLE), title, lines and place in the source."""

    kind: str
    title: str
    lines: list[str] = field(default_factory=list)
    position: Position = NOWHERE

    @property
    def shown(self) -> list[str]:
        """Return the lines, wrapped to fit."""
        return [part for line in self.lines for part in textwrap.wrap(line, COLUMNS) or [""]]

    @property
    def height(self) -> int:
        """Return the height of the rectangle in pixels."""
        return 2 * PADDING + LINE * (1 + len(self.shown))


def boxes_of(trace: PacketTrace) -> list[Box]:
    """Return the steps of a packet's path; several events may form one step."""
    boxes = [Box("port", f"in at port {trace.port}", [frame_text(trace.frame)])]
    for event in trace.events:
        if event.kind in _OF_A_STATE and boxes[-1].kind == "state":
            boxes[-1].lines += _lines(event)
        elif event.kind in ("stage", "state", "table", "action", "drop"):
            title, *lines = _lines(event)
            kind = event.kind
            if kind == "table":
                kind = "hit" if event.details["hit"] else "miss"
            boxes.append(Box(kind, title, lines, event.position))
        elif boxes[-1].kind == "statements":
            boxes[-1].lines += _lines(event)
        else:
            boxes.append(Box("statements", "statements", list(_lines(event)), event.position))
    for port, frame in trace.out:
        boxes.append(Box("port", f"out at port {port}", [frame_text(frame)]))
    if not trace.out:
        boxes.append(Box("drop", "nothing sent"))
    return boxes


def _lines(event: Event) -> Iterator[str]:
    return (line.strip() for line in event_lines(event, places=False))


def path_svg(trace: PacketTrace) -> str:
    """Return the picture of a packet's path."""
    boxes = boxes_of(trace)
    height = 2 * MARGIN + sum(box.height for box in boxes) + GAP * (len(boxes) - 1)
    return "\n".join(_picture(boxes, height)) + "\n"


def _picture(boxes: list[Box], height: int) -> Iterator[str]:
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" '
        f'viewBox="0 0 {WIDTH} {height}">'
    )
    yield f"<style>{STYLE}</style>"
    yield (
        '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" '
        'markerHeight="8" orient="auto"><path d="M0 0L8 4L0 8z"/></marker></defs>'
    )
    top = MARGIN
    for number, box in enumerate(boxes):
        if number:
            middle = WIDTH // 2
            yield f'<path d="M{middle} {top - GAP}V{top}" marker-end="url(#head)"/>'
        yield from _box(box, top)
        top += box.height + GAP
    yield "</svg>"


def _box(box: Box, top: int) -> Iterator[str]:
    left = MARGIN + PADDING
    yield f'<g class="{box.kind}">'
    yield (
        f'<rect x="{MARGIN}" y="{top}" width="{WIDTH - 2 * MARGIN}" height="{box.height}" rx="5"/>'
    )
    base = top + PADDING + LINE - 4
    title = textwrap.shorten(box.title, COLUMNS, placeholder=" ...")
    yield f'<text class="title" x="{left}" y="{base}">{_text(title)}</text>'
    at = place(box.position).rpartition("/")[2] if box.position != NOWHERE else ""
    # Next to the title if it fits; the text form always has the line.
    if at and len(title) + len(at) < COLUMNS:
        right = WIDTH - MARGIN - PADDING
        anchor = 'text-anchor="end"'
        yield f'<text class="place" x="{right}" y="{base}" {anchor}>{_text(at)}</text>'
    for number, line in enumerate(box.shown, 1):
        yield f'<text x="{left}" y="{base + number * LINE}">{_text(line)}</text>'
    yield "</g>"


def _text(text: str) -> str:
    """Escape a text and remove characters that XML does not allow."""
    return escape("".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text))
