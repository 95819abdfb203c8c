"""`hopsum top`: the state of a running controller, or of a recorded run, in a terminal."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
from google.protobuf.json_format import MessageToDict
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.table import Table

from hopsum.cli.command_options import ControllerOption, JsonOption, connect, make_table, print_json
from hopsum.network.units import format_bytes, format_load
from hopsum.protocol import hopsum_pb2 as pb
from hopsum.protocol.errors import InputError

SECONDS = 1.0
FIRST_SECONDS = 0.25
"""Time before the first screen, in which rates are measured."""
SHOWN_LINKS = 8
"""Maximum number of links shown, the busiest."""
SHOWN_EVENTS = 8
SHOWN_JOBS = 20
"""Maximum number of jobs shown, the newest."""
BAR = 6
"""Characters of a bar from empty to full."""


def top(
    controller: ControllerOption = None,
    once: Annotated[bool, typer.Option("--once", help="Show it once, and exit.")] = False,
    as_json: JsonOption = False,
    replay: Annotated[
        Path | None,
        typer.Option(help="Show the end of this recording of `hopsum run --record` instead."),
    ] = None,
) -> None:
    """Show jobs, switches, busy links and events of the running controller, every second."""
    if replay is not None:
        if controller is not None:
            raise InputError("controller and replay: expected one of them")
        from hopsum.controller.web.recording import read_recording

        frames = read_recording(replay).frames()
        before, state = frames[-2] if len(frames) > 1 else None, frames[-1]
        start: float | None = frames[0].date
        once = True
    else:
        client = connect(controller)
        before, state, start = None, client.state(), None
    if as_json:
        print_json(
            MessageToDict(
                state, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
            )
        )
        return
    console = Console()
    if replay is None:
        # Rates are between two states: the first screen has them too.
        time.sleep(FIRST_SECONDS)
        before, state = state, client.state()
    if once:
        console.print(Group(*view(state, before, start)))
        return
    with Live(console=console, auto_refresh=False, screen=True) as shown:
        while True:
            shown.update(Group(*view(state, before)), refresh=True)
            time.sleep(SECONDS)
            before, state = state, client.state()


def view(
    state: pb.ClusterState, before: pb.ClusterState | None, start: float | None = None
) -> Iterator[RenderableType]:
    """Return the display of a state; with rates, if there is a previous one.

    Dates are in seconds after `start`, where it is given: virtual time has no date.
    """
    yield (
        f"[bold]{escape(state.network.name)}[/]  {_clock(state.date, start)}\n"
        f"jobs {state.active_jobs} of {len(state.jobs)} active  "
        f"switches {state.usable_switches} of {len(state.switches)} in use  "
        f"agents {state.attached_agents} of {len(state.nodes)}"
    )
    yield _jobs(state)
    for job in state.jobs:
        if job.over:
            continue
        if job.trees:
            trees = "1 tree" if len(job.trees) == 1 else f"{len(job.trees)} trees"
            places = sorted({switch for tree in job.trees for switch in tree.sums})
            at = f", sums at {', '.join(places)}" if places else ""
            yield f"[dim]{escape(f'{job.name}: {trees}{at}')}[/]"
        if job.reason:
            yield f"[yellow]{escape(job.name)} waits: {escape(job.reason)}[/]"
    yield _switches(state, before)
    for switch in state.switches:
        if switch.health:
            yield f"[yellow]{escape(switch.name)}: {escape(switch.health)}[/]"
    yield _links(state)
    for event in list(state.events)[-SHOWN_EVENTS:]:
        yield f"[dim]{_clock(event.date, start)}[/]  {event.kind:<10} {escape(event.text)}"


def _jobs(state: pb.ClusterState) -> RenderableType:
    return _table(
        ("job", "name", "state", "priority", "tensors", "epoch", "sent", "resent"),
        [
            (
                str(job.job),
                job.name,
                job.state,
                "" if job.over else str(job.level),
                f"{job.round} of {job.tensors}" if job.tensors else str(job.round),
                str(job.epoch),
                format_bytes(job.sent_bytes),
                _count(job.retransmissions),
            )
            for job in [*state.jobs][: -SHOWN_JOBS - 1 : -1]
        ],
    )


def _switches(state: pb.ClusterState, before: pb.ClusterState | None) -> RenderableType:
    held = {use.switch: (use.taken, use.slots) for use in state.slots}
    old = {switch.name: switch for switch in before.switches} if before is not None else {}
    seconds = state.date - before.date if before is not None else 0.0
    rows = []
    for switch in state.switches:
        rate = ""
        known = switch.HasField("sums")
        then = old.get(switch.name)
        if known and then is not None and then.HasField("sums") and seconds > 0:
            rate = f"{max(0, switch.sums - then.sums) / seconds:,.0f}"
        slots, most = held.get(switch.name, (0, 0))
        rows.append(
            (
                switch.name,
                switch.state,
                _count(switch.packets) if switch.HasField("packets") else "unknown",
                _count(switch.sums) if known else "unknown",
                rate,
                _count(switch.outcomes["duplicate"]) if known else "",
                _count(switch.outcomes["stale"]) if known else "",
                f"{slots} of {most}",
            )
        )
    columns = (
        "switch", "state", "packets", "sums", "sums/s", "duplicates", "stale", "slots held",
    )  # fmt: skip
    return _table(columns, rows)


def _links(state: pb.ClusterState) -> RenderableType:
    rates = {frozenset((link.a, link.b)): link.bandwidth for link in state.network.links}
    busy = sorted(state.links, key=lambda link: -link.used)[:SHOWN_LINKS]
    shown = [link for link in state.links if link.health or (link in busy and link.used >= 1)]
    return _table(
        ("link", "load", "carries", "health"),
        [
            (
                f"{link.sender} -> {link.receiver}",
                _bar(link.used, rates[frozenset((link.sender, link.receiver))])
                if link.HasField("age")
                else "",
                format_load(link.used) if link.HasField("age") else "not measured",
                link.health or "ok",
            )
            for link in sorted(shown, key=lambda link: -link.used)
        ],
    )


NUMBERS = ("job", "priority", "epoch", "resent", "packets", "sums", "sums/s", "duplicates", "stale")
"""Columns that are aligned to the right."""


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """Return a table of which eight columns fit into 80 characters."""
    cells = [[escape(cell) for cell in row] for row in rows]
    return make_table(columns, cells, right=NUMBERS, narrow=True)


def _count(count: int) -> str:
    """Return a count in at most seven characters."""
    for unit, size in (("G", 10**9), ("M", 10**6)):
        if count >= size:
            return f"{count / size:.4g} {unit}"
    return f"{count:,}"


def _bar(part: float, whole: float) -> str:
    """Return a bar of characters; empty if the total is unknown."""
    if not whole:
        return ""
    full = round(BAR * min(1.0, part / whole))
    return "█" * full + "░" * (BAR - full)


def _clock(date: float, start: float | None) -> str:
    if start is not None:
        return f"{max(0.0, date - start):.2f} s"
    return datetime.fromtimestamp(date, UTC).strftime("%H:%M:%S.%f")[:-4] + " UTC"
