"""`hopsum plan`: trees, rates, bounds, and the effect of a job on them."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from hopsum.cli.command_options import JsonOption, print_json, print_table
from hopsum.cli.console import standard_output
from hopsum.cli.option_groups import (
    JobGroup,
    NetworkGroup,
    PacketGroup,
    PlannerGroup,
    ShapeGroup,
    with_groups,
)
from hopsum.collectives.operation import width_of
from hopsum.collectives.plan import JobPlan, PlanError
from hopsum.collectives.workload import MOST_ELEMENTS, MOST_TENSORS
from hopsum.controller.dataplane.rule_text import rule_lines, rules_dict, shell_commands
from hopsum.controller.dataplane.rules import SwitchRules
from hopsum.files.output import write_file
from hopsum.library.plans import Plan, default_planner, plan_request, request_of
from hopsum.network.loaders import load_network
from hopsum.network.model import Network
from hopsum.network.units import format_bytes, format_time
from hopsum.planning.model.request import SwitchRole
from hopsum.reports.embedding_report import embedding_dict, embedding_trees, summary
from hopsum.reports.plan_report import forest_dict, forest_trees, plan_dict, plan_tree
from hopsum.timing.estimate import Estimate


class RulesForm(StrEnum):
    """How the entries of switches are printed."""

    TEXT = "text"
    SHELL = "shell"
    """As commands of p4runtime-shell."""


RulesOption = Annotated[
    RulesForm | None,
    typer.Option(
        help="Print what the controller would install on each switch: table entries, groups and "
        "clone sessions; `shell`: as commands of p4runtime-shell (see `hopsum shell`)."
    ),
]


@with_groups
def plan(
    network: NetworkGroup,
    shape: ShapeGroup,
    job: JobGroup,
    packets: PacketGroup,
    trees: PlannerGroup,
    algorithm: Annotated[
        SwitchRole, typer.Option(help="Which algorithm sums.")
    ] = SwitchRole.IN_NETWORK,
    top: Annotated[int, typer.Option(min=0, help="Busiest links to list; 0 for all.")] = 10,
    draw: Annotated[
        Path | None, typer.Option("--draw", "--svg", help="Draw the trees to this file.")
    ] = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="Say which cut or switch limits the rate.")
    ] = False,
    rules: RulesOption = None,
    as_json: JsonOption = False,
) -> None:
    """Plan a job: trees, rates and their bound, what each switch does, bytes on each link."""
    for name, number, most in (
        ("elements", job.elements, MOST_ELEMENTS),
        ("rounds", job.rounds, MOST_TENSORS),
    ):
        if number > most:
            raise PlanError(f"{name} {number}: expected at most {most}")
    workers, servers = job.placed_workers, job.placed_servers
    loaded = load_network(
        network.topology,
        link_rate=network.link,
        uplink_rate=network.uplink,
        latency=network.delay,
        workers=workers if isinstance(workers, int) else None,
        servers=servers if isinstance(servers, int) else 1,
        plain=shape.plain or (),
        hosts_per_switch=shape.hosts_per_switch,
        largest_piece=network.largest_piece,
    )
    chosen = default_planner(loaded) if trees.planner is None else trees.planner
    request = request_of(
        loaded,
        workers,
        chosen,
        servers=servers,
        algorithm=algorithm,
        lanes=packets.lanes,
        window=job.window,
        max_hops=packets.max_hops,
        results=job.results,
        options=trees.options,
        seed=job.seed,
    )
    tensors = [(job.elements, job.dtype)]
    wire_bits = job.wire_bits or 0
    found = plan_request(loaded, request, chosen, tensors, job.rounds, job.collective, wire_bits)
    if draw is not None:
        write_file(draw, found.svg())
    reasons = found.explain(_words(found, job)) if explain else None
    installed = None if rules is None else found.switch_rules()
    if as_json:
        values = _values(found, reasons)
        if installed is not None:
            values["rules"] = rules_dict(installed)
        print_json(values)
    elif installed is not None:
        _show_rules(installed, rules)
    else:
        _show(found, reasons, top)


def _words(found: Plan, job: JobGroup) -> int:
    """Return the words of 32 bits in which a tensor's values are sent."""
    bits = job.wire_bits or job.dtype.bits
    if found.job is not None:
        bits = width_of(found.job, job.collective, job.dtype, job.wire_bits or 0).bits
    return -(-job.elements * bits // 32)


def _values(found: Plan, reasons: list[str] | None) -> dict[str, Any]:
    """Return a plan as an object for JSON."""
    if found.embedding is not None and found.job is not None and found.prediction is not None:
        return embedding_dict(found.embedding, found.job, found.prediction, reasons)
    values = forest_dict(found.network, found.forest, "bit/s" if found.rated else "links")
    if found.why_not:
        values["not_runnable"] = found.why_not
    if found.job is not None and found.prediction is not None:
        plan_dict(values, found.job, found.prediction)
    if reasons is not None:
        values["explanation"] = reasons
    return values


def _show_rules(installed: Mapping[str, SwitchRules], form: RulesForm | None) -> None:
    for switch, rules in installed.items():
        typer.echo(f"# switch {switch}")
        for line in shell_commands(rules) if form is RulesForm.SHELL else rule_lines(rules):
            typer.echo(line)


def _show(found: Plan, reasons: list[str] | None, top: int) -> None:
    console = standard_output()
    job = found.job
    if found.embedding is not None and job is not None:
        branches = embedding_trees(found.network, found.embedding, job)
        line = summary(found.embedding, found.rated)
    else:
        forest = found.forest
        if job is None:
            branches = forest_trees(found.network, forest, found.rate_text)
        else:
            branches = [plan_tree(found.network, job, tree) for tree in job.trees]
        line = (
            f"{forest.planner}: {found.rate_text(forest.throughput)} of "
            f"{found.rate_text(forest.bound)} at most (gap {forest.gap:.2%}, {forest.verdict}) on "
            f"{len(forest.trees)} {'tree' if len(forest.trees) == 1 else 'trees'}, planned in "
            f"{format_time(forest.seconds)}"
        )
    for branch in branches:
        console.print(branch)
    for text in (line, *(reasons or ())):
        console.print(text, highlight=False, soft_wrap=True)
    if found.why_not:
        console.print(f"hopsum run cannot run it: {found.why_not}", highlight=False, soft_wrap=True)
    if job is not None and found.prediction is not None:
        _show_prediction(console, found.network, job, found.prediction, top)


def _show_prediction(
    console: Console, network: Network, job: JobPlan, prediction: Estimate, top: int
) -> None:
    ranked = sorted(prediction.links.items(), key=lambda item: (-item[1], item[0]))
    listed = ranked[:top] if top else ranked
    print_table(
        f"bytes on links ({len(listed)} of {len(ranked)}, busiest first)",
        ("from", "to", "bytes", ""),
        [
            (escape(network.label(u)), escape(network.label(v)), size, format_bytes(size))
            for (u, v), size in listed
        ],
        console,
    )
    limited = all(link.bandwidth is not None for link in network.links)
    seconds = (
        format_time(prediction.seconds) if limited else "none: links have no rate (--link-rate)"
    )
    if limited and prediction.limit:
        ends = escape(" -> ".join(map(network.label, prediction.limit)))
        seconds += f", {prediction.busy:.0%} of it busy on {ends}"
    console.print(
        f"all links {format_bytes(prediction.total_bytes)}; predicted time {seconds}",
        highlight=False,
    )
