"""`hopsum plan`: trees, rates, bounds, and the effect of a job on them."""

from __future__ import annotations

from dataclasses import dataclass, replace
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
from hopsum.collectives.choices import WEIGHT_STEPS, Collective, DataType
from hopsum.collectives.plan import WINDOW_EMBEDDED, JobPlan, PlanError
from hopsum.collectives.workload import MOST_ELEMENTS, MOST_TENSORS
from hopsum.controller.jobs.sharing import fitting_window
from hopsum.files.output import write_file
from hopsum.network.loaders import load_network
from hopsum.network.model import Network
from hopsum.network.topologies import is_topology
from hopsum.network.units import format_bytes, format_rate, format_time
from hopsum.planning.answers import Answer, answer, check_weights, check_without_mtree
from hopsum.planning.model.forest import ForestOptions, keep_of
from hopsum.planning.model.graph import planning_graph
from hopsum.planning.model.placement import place_ranks
from hopsum.planning.model.request import (
    Algorithm,
    EmbeddingOptions,
    Method,
    PlanRequest,
    WeightSteps,
)
from hopsum.planning.model.stack_depth import stack_depth
from hopsum.planning.registry import EMBEDDING
from hopsum.reports.embedding_report import (
    embedding_dict,
    embedding_trees,
    explain_embedding,
    plan_embedded,
    summary,
)
from hopsum.reports.network_drawing import network_svg
from hopsum.reports.plan_report import (
    explanation,
    forest_dict,
    forest_trees,
    plan_dict,
    plan_tree,
)
from hopsum.timing.estimate import Estimate, estimate
from hopsum.timing.work import PlanWork


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
    placement = place_ranks(loaded, named_workers, named_servers)
    request = PlanRequest(
        1,
        1,
        placement.workers,
        placement.servers,
        algorithm=algorithm,
        lanes=lanes,
        window=fitting_window(loaded, len(placement.servers), WINDOW_EMBEDDED)
        if window is None
        else window,
        max_hops=stack_depth(loaded, lanes, max_hops),
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
    rated = _with_rates(topology, loaded)
    chosen = planner
    if chosen is None:
        chosen = "multi-hop" if loaded.switches else "multi-tree"
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
        planned = plan_embedded(rated, requested)
        if draw is not None:
            # Of parts among hosts no tree is drawn: they go by plain routes.
            write_file(draw, network_svg(loaded, planned.plan))
        predicted = estimate(loaded, PlanWork(planned.plan, [(elements, dtype)], rounds))
        reasons = explain_embedding(planned, rated is loaded) if explain else None
        if as_json:
            print_json(embedding_dict(planned, predicted, reasons))
            return
        console = standard_output()
        for branch in embedding_trees(loaded, planned):
            console.print(branch)
        for line in (summary(planned, rated is loaded), *(reasons or ())):
            console.print(line, highlight=False, soft_wrap=True)
        _show_prediction(console, loaded, planned.plan, predicted, top)
        return
    found = answer(rated, request, chosen)
    graph = planning_graph(rated, placement.workers)
    prediction = None
    if found.plan is not None:
        work = PlanWork(found.plan, [(elements, dtype)], rounds, collective)
        prediction = estimate(loaded, work)
    if draw is not None:
        write_file(draw, network_svg(loaded, found.plan, trees=_drawn(found)))
    reasons = None
    if explain:
        size = 32 * elements if rated is loaded else None
        reasons = explanation(graph, found.forest, request, rated, size)
    if as_json:
        unit = "bit/s" if rated is loaded else "links"
        values = forest_dict(loaded, found.forest, unit)
        if found.why_not:
            values["not_runnable"] = found.why_not
        if found.plan is not None and prediction is not None:
            plan_dict(values, found.plan, prediction)
        if reasons is not None:
            values["explanation"] = reasons
        print_json(values)
        return
    _show(Shown(loaded, rated is loaded, found, prediction, reasons, top))


def _with_rates(topology: str, network: Network) -> Network:
    """Return the network; a named one without rates gets rate 1 on every link."""
    if not is_topology(topology) or any(link.bandwidth is not None for link in network.links):
        return network
    return replace(network, links=tuple(replace(link, bandwidth=1.0) for link in network.links))


def _drawn(found: Answer) -> list[dict[str, str]]:
    return [dict(tree.parents) for tree in found.forest.trees]


@dataclass(frozen=True, slots=True)
class Shown:
    """The data to show. `real`: links have rates."""

    network: Network
    real: bool
    found: Answer
    prediction: Estimate | None
    reasons: list[str] | None
    top: int

    def rate(self, value: Fraction) -> str:
        """Return a rate as text."""
        return (
            format_rate(float(value))
            if self.real
            else f"{float(value):g} {'link' if value == 1 else 'links'}"
        )


def _show(shown: Shown) -> None:
    console = standard_output()
    forest, job = shown.found.forest, shown.found.plan
    if job is not None:
        for tree in job.trees:
            console.print(plan_tree(shown.network, job, tree))
    else:
        for branch in forest_trees(shown.network, forest, shown.rate):
            console.print(branch)
    console.print(
        f"{forest.planner}: {shown.rate(forest.throughput)} of {shown.rate(forest.bound)} at "
        f"most (gap {forest.gap:.2%}, {forest.verdict}) on {len(forest.trees)} "
        f"{'tree' if len(forest.trees) == 1 else 'trees'}, planned in "
        f"{format_time(forest.seconds)}",
        highlight=False,
        soft_wrap=True,
    )
    for line in shown.reasons or ():
        console.print(line, highlight=False, soft_wrap=True)
    if shown.found.why_not:
        console.print(
            f"hopsum run cannot run it: {shown.found.why_not}", highlight=False, soft_wrap=True
        )
    if job is not None and shown.prediction is not None:
        _show_prediction(console, shown.network, job, shown.prediction, shown.top)


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
