"""`hopsum plan`: trees, rates, bounds, and the effect of a job on them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from enum import StrEnum
from fractions import Fraction
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from hopsum.cli.cluster_commands import LanesOption
from hopsum.cli.command_options import (
    ELEMENTS,
    ROUNDS,
    SEED,
    CollectiveOption,
    DataTypeOption,
    ElementsOption,
    HostsOption,
    JsonOption,
    KeepOption,
    LargestPieceOption,
    LatencyOption,
    LinkRateOption,
    MaxHeightOption,
    MaxHopsOption,
    MaxTreesOption,
    MinRateOption,
    NamedServersOption,
    NamedWorkersOption,
    PenaltyOption,
    PlainOption,
    PlannerOption,
    ResultsOption,
    RoundsOption,
    SeedOption,
    TopologyOption,
    TreeBandwidthOption,
    UplinkOption,
    WeightStepsOption,
    WindowOption,
    exact_rate,
    link_rate_of,
    print_json,
    print_table,
    seconds,
    servers_of,
    workers_of,
)
from hopsum.cli.console import standard_output
from hopsum.collectives.choices import EMBEDDING, WEIGHT_STEPS, Collective, DataType
from hopsum.collectives.plan import JobPlan, PlanError
from hopsum.collectives.workload import MOST_ELEMENTS, MOST_TENSORS
from hopsum.controller.dataplane.rule_text import rule_lines, rules_dict, shell_commands
from hopsum.controller.dataplane.rules import SwitchRules, rules_for
from hopsum.files.output import write_file
from hopsum.library.plans import (
    Plan,
    default_planner,
    plan_request,
    request_of,
    with_rates,
)
from hopsum.network.loaders import load_network
from hopsum.network.model import Network
from hopsum.network.units import format_bytes, format_time
from hopsum.planning.answers import check_weights, check_without_mtree
from hopsum.planning.model.forest import ForestOptions, keep_of
from hopsum.planning.model.request import (
    Algorithm,
    EmbeddingOptions,
    Method,
    WeightSteps,
)
from hopsum.reports.embedding_report import (
    embedding_dict,
    embedding_trees,
    explain_embedding,
    plan_embedded,
    summary,
)
from hopsum.reports.network_drawing import network_svg
from hopsum.reports.plan_report import (
    forest_dict,
    forest_trees,
    plan_dict,
    plan_tree,
)
from hopsum.timing.estimate import Estimate, estimate
from hopsum.timing.work import PlanWork


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


def plan(
    topology: TopologyOption = "fat-tree:4",
    planner: PlannerOption = None,
    workers: NamedWorkersOption = None,
    servers: NamedServersOption = None,
    collective: CollectiveOption = Collective.ALL_REDUCE,
    max_trees: MaxTreesOption = None,
    max_height: MaxHeightOption = None,
    max_delay: Annotated[
        str | None,
        typer.Option(help="Maximum latency from a node to its root: 0.005, 5ms (trees only)."),
    ] = None,
    min_rate: MinRateOption = None,
    tree_bandwidth: TreeBandwidthOption = None,
    keep: KeepOption = None,
    weight_steps: WeightStepsOption = WEIGHT_STEPS,
    penalty: PenaltyOption = 1,
    gap: Annotated[
        float, typer.Option(min=0, help="Relative gap to the bound at which to stop.")
    ] = 0.001,
    time_limit: Annotated[
        float, typer.Option(min=0, help="Time limit for planning, in seconds.")
    ] = 10.0,
    seed: SeedOption = SEED,
    method: Annotated[Method, typer.Option(help="How multi-hop searches for trees.")] = Method.AUTO,
    max_aggregating: Annotated[
        int | None, typer.Option(min=0, help="Maximum number of switches that sum (multi-hop).")
    ] = None,
    algorithm: Annotated[
        Algorithm, typer.Option(help="Which algorithm sums.")
    ] = Algorithm.IN_NETWORK,
    results: ResultsOption = None,
    elements: ElementsOption = ELEMENTS,
    dtype: DataTypeOption = DataType.FLOAT32,
    rounds: RoundsOption = ROUNDS,
    lanes: LanesOption = 256,
    window: WindowOption = None,
    max_hops: MaxHopsOption = None,
    link_rate: LinkRateOption = None,
    uplink_rate: UplinkOption = None,
    latency: LatencyOption = None,
    plain: PlainOption = None,
    hosts_per_switch: HostsOption = 1,
    largest_piece: LargestPieceOption = False,
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
        ("elements", elements, MOST_ELEMENTS),
        ("rounds", rounds, MOST_TENSORS),
    ):
        if number > most:
            raise PlanError(f"{name} {number}: expected at most {most}")
    named_workers = workers_of(workers)
    named_servers = servers_of(servers, collective)
    loaded = load_network(
        topology,
        link_rate=link_rate_of(topology, link_rate),
        uplink_rate=uplink_rate,
        latency=latency,
        workers=named_workers if isinstance(named_workers, int) else None,
        servers=named_servers if isinstance(named_servers, int) else 1,
        plain=plain or (),
        hosts_per_switch=hosts_per_switch,
        largest_piece=largest_piece,
    )
    request = request_of(
        loaded,
        named_workers,
        planner,
        servers=named_servers,
        algorithm=algorithm,
        lanes=lanes,
        window=window,
        max_hops=max_hops,
        results=results,
        forest=ForestOptions(
            max_trees=max_trees,
            max_height=max_height,
            max_delay=seconds("max-delay", max_delay),
            min_rate=exact_rate("min-rate", min_rate) or Fraction(0),
            gap=gap,
            time_limit=time_limit,
            seed=seed,
            tree_bandwidth=exact_rate("tree-bandwidth", tree_bandwidth),
            keep=keep_of(keep),
        ),
        method=method,
        max_aggregating=max_aggregating,
    )
    chosen = default_planner(loaded) if planner is None else planner
    weights = WeightSteps(weight_steps, penalty)
    check_weights(weights, chosen)
    if chosen == EMBEDDING:
        if max_height is not None or max_delay is not None or min_rate is not None:
            raise PlanError(
                "planner embedding takes topologies as they are, without limits on their height, "
                "delay or rate; leave out --max-height, --max-delay and --min-rate, or use the "
                "planner multi-tree"
            )
        check_without_mtree(request.forest, chosen)
        auxiliary = named_servers if isinstance(named_servers, tuple) else None
        wanted = EmbeddingOptions(
            auxiliary=auxiliary, tensor_bytes=max(1, 4 * elements), weights=weights
        )
        requested = replace(request, servers=(), embedding=wanted)
        rated = with_rates(loaded)
        planned = plan_embedded(rated, requested)
        if draw is not None:
            # Of parts among hosts no tree is drawn: they go by plain routes.
            write_file(draw, network_svg(loaded, planned.plan))
        predicted = estimate(loaded, PlanWork(planned.plan, [(elements, dtype)], rounds))
        reasons = explain_embedding(planned, rated is loaded) if explain else None
        installed = None if rules is None else rules_for(loaded, [planned.plan])
        if as_json:
            values = embedding_dict(planned, predicted, reasons)
            if installed is not None:
                values["rules"] = rules_dict(installed)
            print_json(values)
            return
        if installed is not None:
            _show_rules(installed, rules)
            return
        console = standard_output()
        for branch in embedding_trees(loaded, planned):
            console.print(branch)
        for line in (summary(planned, rated is loaded), *(reasons or ())):
            console.print(line, highlight=False, soft_wrap=True)
        _show_prediction(console, loaded, planned.plan, predicted, top)
        return
    found = plan_request(loaded, request, chosen, [(elements, dtype)], rounds, collective)
    if draw is not None:
        write_file(draw, found.svg())
    reasons = found.explain(elements) if explain else None
    installed = None if rules is None else found.switch_rules()
    if as_json:
        values = forest_dict(loaded, found.forest, "bit/s" if found.rated else "links")
        if found.why_not:
            values["not_runnable"] = found.why_not
        if found.job is not None and found.prediction is not None:
            plan_dict(values, found.job, found.prediction)
        if reasons is not None:
            values["explanation"] = reasons
        if installed is not None:
            values["rules"] = rules_dict(installed)
        print_json(values)
        return
    if installed is not None:
        _show_rules(installed, rules)
        return
    _show(found, reasons, top)


def _show_rules(installed: Mapping[str, SwitchRules], form: RulesForm | None) -> None:
    for switch, rules in installed.items():
        typer.echo(f"# switch {switch}")
        for line in shell_commands(rules) if form is RulesForm.SHELL else rule_lines(rules):
            typer.echo(line)


def _show(found: Plan, reasons: list[str] | None, top: int) -> None:
    console = standard_output()
    forest, job = found.forest, found.job
    if job is not None:
        for tree in job.trees:
            console.print(plan_tree(found.network, job, tree))
    else:
        for branch in forest_trees(found.network, forest, found.rate_text):
            console.print(branch)
    console.print(
        f"{forest.planner}: {found.rate_text(forest.throughput)} of "
        f"{found.rate_text(forest.bound)} at most (gap {forest.gap:.2%}, {forest.verdict}) on "
        f"{len(forest.trees)} {'tree' if len(forest.trees) == 1 else 'trees'}, planned in "
        f"{format_time(forest.seconds)}",
        highlight=False,
        soft_wrap=True,
    )
    for line in reasons or ():
        console.print(line, highlight=False, soft_wrap=True)
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
