"""The picture of `p4switch explain`: a packet's path, or its tree, from top to bottom as SVG."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from html import escape

from p4switch.backends.reference.trace import (
    Branch,
    Event,
    PacketTrace,
    event_lines,
    frame_text,
    place,
)
from p4switch.position import NOWHERE, Position
from p4switch.targets.v1model.engine import Packet

WIDTH = 820
MARGIN = 20
COLUMNS = 88
"""Characters of a line in a box."""
LINE = 17
PADDING = 9
GAP = 22
FORK = 44
"""Between a column and those below it."""

STYLE = """
text { font: 13px ui-monospace, Menlo, Consolas, monospace; fill: #222; }
.title { font-weight: 600; } .place { fill: #777; font-size: 11px; }
rect { fill: #f4f5f7; stroke: #9aa3ad; }
path { stroke: #667; fill: none; } marker path { fill: #667; }
.stage rect { fill: #dfe7f5; stroke: #6b87c0; } .state rect { fill: #eaf3ea; stroke: #6fa56f; }
.hit rect { fill: #e8e3f6; stroke: #8b74c4; } .miss rect { fill: #fdf1d6; stroke: #c79a3c; }
.drop rect { fill: #fbdcdc; stroke: #c25151; } .port rect { fill: #fff; stroke: #222; }
.fork rect { fill: #fff; stroke-dasharray: 5 3; }
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
    return [_arrival(trace), *_steps(trace.events, trace.out, unsent=not trace.out)]


def _arrival(trace: PacketTrace) -> Box:
    return Box("port", f"in at port {trace.port}", [frame_text(trace.frame)])


def _steps(events: Sequence[Event], out: Sequence[Packet], *, unsent: bool) -> list[Box]:
    boxes: list[Box] = []
    for event in events:
        last = boxes[-1].kind if boxes else ""
        if event.kind in _OF_A_STATE and last == "state":
            boxes[-1].lines += _lines(event)
        elif event.kind in ("stage", "state", "table", "action", "drop"):
            title, *lines = _lines(event)
            kind = event.kind
            if kind == "table":
                kind = "hit" if event.details["hit"] else "miss"
            boxes.append(Box(kind, title, lines, event.position))
        elif last == "statements":
            boxes[-1].lines += _lines(event)
        else:
            boxes.append(Box("statements", "statements", list(_lines(event)), event.position))
    boxes += [Box("port", f"out at port {port}", [frame_text(frame)]) for port, frame in out]
    if unsent:
        boxes.append(Box("drop", "nothing sent"))
    return boxes


def _lines(event: Event) -> Iterator[str]:
    return (line.strip() for line in event_lines(event, places=False))


@dataclass(slots=True)
class Column:
    """Boxes one below the other, and the columns side by side that follow the last one."""

    boxes: list[Box]
    below: list[Column] = field(default_factory=list)

    @property
    def columns(self) -> int:
        """Return the greatest number of columns side by side."""
        return max(1, sum(each.columns for each in self.below))

    @property
    def height(self) -> int:
        """Return the height with what is below, in pixels."""
        own = sum(box.height for box in self.boxes) + GAP * (len(self.boxes) - 1)
        return own + max((FORK + each.height for each in self.below), default=0)


def path_svg(trace: PacketTrace) -> str:
    """Return the picture of a packet's path."""
    return _svg(Column(boxes_of(trace)))


def tree_svg(trace: PacketTrace) -> str:
    """Return the picture of a packet's tree, branches side by side."""
    root = _column(trace.tree)
    root.boxes[0] = _arrival(trace)
    return _svg(root)


def _column(branch: Branch) -> Column:
    steps = _steps(branch.events, branch.out, unsent=branch.ends_unsent)
    below = [_column(each) for each in branch.branches]
    return Column([Box("fork", branch.title), *steps], below)


def _svg(root: Column) -> str:
    return "\n".join(_picture(root, root.columns * WIDTH, 2 * MARGIN + root.height)) + "\n"


def _picture(root: Column, width: int, height: int) -> Iterator[str]:
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}">'
    )
    yield f"<style>{STYLE}</style>"
    yield (
        '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" '
        'markerHeight="8" orient="auto"><path d="M0 0L8 4L0 8z"/></marker></defs>'
    )
    yield from _drawn(root, 0, MARGIN)
    yield "</svg>"


def _drawn(column: Column, left: int, top: int) -> Iterator[str]:
    """Yield a column centred over those below it, from the given corner on."""
    middle = left + column.columns * WIDTH // 2
    for number, box in enumerate(column.boxes):
        if number:
            yield f'<path d="M{middle} {top}V{top + GAP}" marker-end="url(#head)"/>'
            top += GAP
        yield from _box(box, middle - WIDTH // 2, top)
        top += box.height
    for each in column.below:
        at = left + each.columns * WIDTH // 2
        turn, end = top + FORK // 2, top + FORK
        yield f'<path d="M{middle} {top}V{turn}H{at}V{end}" marker-end="url(#head)"/>'
        yield from _drawn(each, left, end)
        left += each.columns * WIDTH


def _box(box: Box, start: int, top: int) -> Iterator[str]:
    left = start + MARGIN + PADDING
    yield f'<g class="{box.kind}">'
    yield (
        f'<rect x="{start + MARGIN}" y="{top}" width="{WIDTH - 2 * MARGIN}" '
        f'height="{box.height}" rx="5"/>'
    )
    base = top + PADDING + LINE - 4
    title = textwrap.shorten(box.title, COLUMNS, placeholder=" ...")
    yield f'<text class="title" x="{left}" y="{base}">{_text(title)}</text>'
    at = place(box.position).rpartition("/")[2] if box.position != NOWHERE else ""
    # Next to the title if it fits; the text form always has the line.
    if at and len(title) + len(at) < COLUMNS:
        right = start + WIDTH - MARGIN - PADDING
        anchor = 'text-anchor="end"'
        yield f'<text class="place" x="{right}" y="{base}" {anchor}>{_text(at)}</text>'
    for number, line in enumerate(box.shown, 1):
        yield f'<text x="{left}" y="{base + number * LINE}">{_text(line)}</text>'
    yield "</g>"


def _text(text: str) -> str:
    """Escape a text and remove characters that XML does not allow."""
    return escape("".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text))
