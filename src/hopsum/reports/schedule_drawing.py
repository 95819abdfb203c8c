"""A schedule as a picture (SVG): a line for every node, turns from left to right, arrows between.

The colour of an arrow says where in the tensor its range lies, its width how long that is; a
receiver adds what comes on a full line and copies what comes on a dashed one.
"""

from __future__ import annotations

from html import escape

from hopsum.collectives.schedule import Schedule, ScheduleError, Transfer

MOST_TRANSFERS = 20_000
TURN = 64.0
ROW = 34.0
LEFT = 90.0
TOP = 64.0
STYLE = (
    "text{font:11px system-ui,sans-serif;fill:#1d2733;dominant-baseline:central}"
    ".node{stroke:#c3ccd5;stroke-width:1}.relay{stroke-dasharray:2 3}.turn{fill:#f1f3f5}"
    ".copy{stroke-dasharray:5 3}line{fill:none}"
)


def schedule_svg(schedule: Schedule) -> str:
    """Return the schedule as an SVG element; every arrow's title describes the transfer.

    Raises ScheduleError for more transfers than a picture can show.
    """
    transfers = list(schedule.transfers())
    if len(transfers) > MOST_TRANSFERS:
        raise ScheduleError(
            f"{schedule.algorithm} schedule: {len(transfers)} transfers: a picture shows at most "
            f"{MOST_TRANSFERS}; draw one of fewer ranks"
        )
    columns = {turn: i for i, turn in enumerate(dict.fromkeys(t.turn for t in transfers))}
    width = LEFT + TURN * max(1, len(columns)) + 20
    height = TOP + ROW * schedule.nodes
    title = (
        f"{schedule.algorithm} {schedule.collective}: {schedule.ranks} ranks, "
        f"{schedule.elements} elements, {len(columns)} turns"
    )
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" role="img" '
        f'aria-label="{escape(title)}"><style>{STYLE}</style>',
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" '
        'markerHeight="7" markerUnits="userSpaceOnUse" orient="auto"><path d="M0 0L8 4L0 8z" '
        'fill="context-stroke"/></marker></defs>',
        f'<text x="10" y="16">{escape(title)}</text>',
    ]
    for (step, repetition), column in columns.items():
        x = LEFT + TURN * column
        parts.append(
            f'<rect class="turn" x="{x + 3:g}" y="{TOP - 20:g}" width="{TURN - 6:g}" '
            f'height="{ROW * schedule.nodes + 10:g}" rx="4"/>'
        )
        label = f"{step}" if schedule.steps[step].repeat == 1 else f"{step}.{repetition}"
        parts.append(f'<text x="{x + 8:g}" y="{TOP - 30:g}">{label}</text>')
    for node in range(schedule.nodes):
        y = TOP + ROW * node
        kind = "node" if node < schedule.ranks else "node relay"
        parts.append(f'<text x="10" y="{y:g}">{escape(schedule.name(node))}</text>')
        parts.append(f'<line class="{kind}" x1="{LEFT:g}" x2="{width:g}" y1="{y:g}" y2="{y:g}"/>')
    stacked: dict[int, int] = {}
    for transfer in transfers:
        column = columns[transfer.turn]
        place = stacked[column] = stacked.get(column, -1) + 1
        parts.append(_arrow(schedule, transfer, LEFT + TURN * column, place))
    parts.append("</svg>")
    return "\n".join(parts)


def _arrow(schedule: Schedule, transfer: Transfer, left: float, place: int) -> str:
    # Arrows of one turn are drawn side by side, in eight lanes.
    x = left + 8 + place % 8 * (TURN - 16) / 8
    size = (transfer.stop - transfer.start) / schedule.elements
    hue = 300 * (transfer.start + transfer.stop) / (2 * schedule.elements)
    does = "adds" if transfer.combine else "copies"
    source, target = schedule.name(transfer.source), schedule.name(transfer.target)
    tip = f"{source} sends {transfer.start} to {transfer.stop}; {target} {does}"
    return (
        f"<line{'' if transfer.combine else ' class=' + chr(34) + 'copy' + chr(34)} "
        f'x1="{x:.1f}" y1="{TOP + ROW * transfer.source:g}" x2="{x + 6:.1f}" '
        f'y2="{TOP + ROW * transfer.target:g}" stroke="hsl({hue:.0f} 65% 42%)" '
        f'stroke-width="{1 + 3 * size:.2f}" marker-end="url(#tip)">'
        f"<title>{escape(tip)}</title></line>"
    )
