"""`hopsum status`: jobs and their agents, switches, links and slots; once, or live."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.table import Table

from hopsum.cli.command_options import (
    ControllerOption,
    JsonOption,
    connect,
    make_table,
    print_json,
)
from hopsum.cli.console import standard_output
from hopsum.network.units import format_load
from hopsum.protocol import hopsum_pb2 as pb

if TYPE_CHECKING:
    from hopsum.controller.api.client import ControllerClient

LIVE_SECONDS = 1.0
SHOWN_LINKS = 12
"""Maximum number of links shown, the busiest."""


def status(
    controller: ControllerOption = None,
    live: Annotated[bool, typer.Option("--live", help="Refresh every second.")] = False,
    everything: Annotated[
        bool, typer.Option("--all", help="Show every link, including idle ones.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Show the jobs of the running controller and their agents; its switches, links and slots."""
    queries = connect(controller)
    if as_json:
        print_json([job_dict(job) for job in queries.status()])
        return
    console = standard_output()
    if not live:
        console.print(Group(*_view(queries, everything)))
        return
    with Live(console=console, auto_refresh=False) as shown:
        while True:
            shown.update(Group(*_view(queries, everything)), refresh=True)
            time.sleep(LIVE_SECONDS)


def _view(queries: ControllerClient, everything: bool) -> Iterator[RenderableType]:
    jobs = queries.status()
    if not jobs:
        yield "no jobs"
    for job in jobs:
        yield f"[bold]job {job.job}, epoch {job.epoch}: {job.state}[/]"
        if job.waits_for:
            yield f"[yellow]waits: {escape(job.waits_for)}[/]"
        yield make_table(
            ("host", "role", "state", "round", "silent", "detail"),
            [
                (
                    agent.host,
                    agent.role,
                    pb.AgentState.Name(agent.state).lower(),
                    agent.round,
                    f"{agent.silent_seconds:.1f} s",
                    agent.detail,
                )
                for agent in job.agents
            ],
        )
    yield _switches(queries.switches())
    away = [node for node in queries.nodes() if not node.attached]
    use = queries.use()
    if away:
        hosts = ", ".join(f"{node.host} ({node.seconds:.0f} s)" for node in away)
        yield f"[yellow]no agent attached on {hosts}[/]"
    yield from (_links(use, everything), _slots(use))


def _switches(switches: Sequence[pb.SwitchStatus]) -> Table:
    return make_table(
        ("switch", "state", "since", "health"),
        [
            (switch.name, switch.state, f"{switch.seconds:.0f} s", switch.health or "ok")
            for switch in switches
        ],
    )


def _links(use: pb.UseReply, everything: bool) -> Table:
    links = sorted(use.links, key=lambda link: -link.used)
    if not everything:
        busy = links[:SHOWN_LINKS]
        links = [link for link in links if link.health or (link in busy and link.used >= 1)]
    return make_table(
        ("link", "used", "free", "reported", "health"),
        [
            (
                f"{link.sender} -> {link.receiver}",
                format_load(link.used),
                format_load(link.free) if link.HasField("free") else "unlimited",
                f"{link.age:.1f} s ago" if link.HasField("age") else "never",
                link.health or "ok",
            )
            for link in links
        ],
    )


def _slots(use: pb.UseReply) -> Table:
    return make_table(
        ("switch", "slots", "a job at most", "in use", "by job"),
        [
            (
                switch.switch,
                switch.slots,
                switch.quota,
                sum(switch.held.values()),
                ", ".join(f"{job}: {count}" for job, count in sorted(switch.held.items())),
            )
            for switch in use.slots
        ],
    )


def job_dict(job: pb.JobStatus) -> dict[str, Any]:
    """Return a job and its agents, for programs."""
    return {
        "job": job.job,
        "epoch": job.epoch,
        "state": job.state,
        "waits_for": job.waits_for,
        "agents": [
            {
                "host": agent.host,
                "role": agent.role,
                "state": pb.AgentState.Name(agent.state).lower(),
                "round": agent.round,
                "silent_seconds": agent.silent_seconds,
                "detail": agent.detail,
            }
            for agent in job.agents
        ],
    }
