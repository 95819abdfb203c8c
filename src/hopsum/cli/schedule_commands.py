"""`hopsum schedule`: make a collective's schedule, prove one, draw one."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from hopsum.cli.command_options import (
    LevelWiseFormOption,
    PlannerOptionsOption,
    SiblingsOption,
    form_options,
    parse_assignments,
    rate,
)
from hopsum.collectives.algorithms.catalogue import LEVEL_WISE, SCHEDULES, make_schedule
from hopsum.collectives.algorithms.in_network import in_network_all_reduce
from hopsum.collectives.algorithms.level_wise_form import forms_of
from hopsum.collectives.algorithms.trees import multi_tree_all_reduce, server_all_reduce
from hopsum.collectives.choices import FormOptions, Shape
from hopsum.collectives.link_volumes import link_volumes, pair_volumes
from hopsum.collectives.plan import PlanError
from hopsum.collectives.schedule import Schedule, ScheduleError
from hopsum.collectives.schedule_checker import check_schedule
from hopsum.collectives.schedule_json import schedule_from_json, schedule_to_json
from hopsum.collectives.workload import MOST_ELEMENTS, MOST_WORKERS
from hopsum.files.output import write_file
from hopsum.network.loaders import load_network
from hopsum.network.model import Network
from hopsum.network.paths import PlainRoutes
from hopsum.planning.model.forest import ForestOptions
from hopsum.planning.model.graph import planning_graph
from hopsum.planning.model.placement import Placement, place, without_servers
from hopsum.planning.model.request import PlanRequest
from hopsum.planning.registry import HOST_PLANNERS, host_forest, plan_job, with_options
from hopsum.reports.schedule_drawing import schedule_svg

WITH_SERVERS = ("server", "in-network")
ALGORITHMS = (*SCHEDULES, *WITH_SERVERS, "multi-tree")

app = typer.Typer(
    help="Collectives as schedules: make, check, draw.",
    rich_markup_mode=None,
    no_args_is_help=True,
    add_completion=False,
)


@app.command()
def make(
    topology: Annotated[
        str, typer.Option(help="Name (star:8, leaf-spine:4x4, torus:4x4, ...) or file.")
    ] = "star:8",
    algorithm: Annotated[str, typer.Option(help=f"One of {', '.join(ALGORITHMS)}.")] = "ring",
    workers: Annotated[int | None, typer.Option(help="Ranks; default all hosts.")] = None,
    elements: Annotated[
        int, typer.Option(min=0, max=MOST_ELEMENTS, help="Elements of the tensor.")
    ] = 1000,
    link_rate: Annotated[
        str | None, typer.Option(help="Rate of every link; `none`: what the file says.")
    ] = "25Mbit",
    servers: Annotated[
        int,
        typer.Option(min=1, max=MOST_WORKERS, help="Number of servers, for server and in-network."),
    ] = 1,
    planner: Annotated[
        str, typer.Option(help=f"Planner of multi-tree: {', '.join(HOST_PLANNERS)}.")
    ] = "multi-tree",
    planner_option: PlannerOptionsOption = None,
    level_wise_form: LevelWiseFormOption = Shape.AUTO,
    siblings: SiblingsOption = None,
    output: Annotated[
        Path | None, typer.Option(help="Write to this file; default: standard output.")
    ] = None,
) -> None:
    """Make and prove the schedule of an all-reduce, as JSON."""
    needed = servers if algorithm in WITH_SERVERS else 0
    network = load_network(
        topology, link_rate=rate("link-rate", link_rate), workers=workers, servers=needed
    )
    placement = place(network, workers, needed) if needed else without_servers(network, workers)
    form = form_options(level_wise_form, siblings, level_wise=algorithm == LEVEL_WISE)
    if planner not in HOST_PLANNERS:
        raise PlanError(
            f"planner {planner!r:.40} plans no trees of hosts; expected one of "
            f"{', '.join(HOST_PLANNERS)}"
        )
    request = PlanRequest(1, 1, placement.workers, placement.servers)
    options = with_options(request, planner, parse_assignments(planner_option or ())).forest
    schedule = _make(algorithm, network, placement, elements, planner, options, form)
    if algorithm == LEVEL_WISE:
        # Standard output is the schedule's.
        for line in forms_of(network, placement.workers, [elements], form):
            sys.stderr.write(f"level-wise: {line}\n")
    check_schedule(schedule)
    text = schedule_to_json(schedule)
    if output is None:
        sys.stdout.write(text + "\n")
    else:
        write_file(output, text + "\n")


def _make(
    algorithm: str,
    network: Network,
    placement: Placement,
    elements: int,
    planner: str,
    options: ForestOptions,
    form: FormOptions,
) -> Schedule:
    ranks = placement.workers
    match algorithm:
        case "server":
            return server_all_reduce(ranks, elements, placement.servers)
        case "in-network":
            plan = plan_job(network, PlanRequest(1, 1, ranks, placement.servers))
            return in_network_all_reduce(network, plan, elements)
        case "multi-tree":
            forest = host_forest(planning_graph(network, ranks), options, planner)
            return multi_tree_all_reduce(ranks, elements, forest.shared_trees)
        case _ if algorithm not in SCHEDULES:
            raise ScheduleError(f"algorithm {algorithm!r}: expected one of {', '.join(ALGORITHMS)}")
        case _:
            return make_schedule(algorithm, network, ranks, elements, form=form)


@app.command()
def check(
    file: Annotated[Path, typer.Argument(help="A schedule as JSON.")],
    topology: Annotated[
        str | None, typer.Option(help="Also count the bytes on the links of this network.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
) -> None:
    """Prove that a schedule sums every contribution exactly once."""
    schedule = _read(file)
    check_schedule(schedule)
    found = _facts(schedule, None if topology is None else load_network(topology))
    if as_json:
        sys.stdout.write(json.dumps(found) + "\n")
        return
    lines = [f"proved: {schedule.algorithm} {schedule.collective}"]
    links = found.pop("links", [])
    lines += [f"{name.replace('_', ' ')}: {value}" for name, value in found.items()]
    lines += [f"  {u} -> {v}: {volume}" for u, v, volume in links]
    sys.stdout.write("\n".join(lines) + "\n")


def _facts(schedule: Schedule, network: Network | None) -> dict[str, Any]:
    sent = [0] * schedule.nodes
    for source, _, volume in pair_volumes(schedule):
        sent[source] += volume
    facts: dict[str, Any] = {
        "algorithm": schedule.algorithm,
        "collective": schedule.collective.value,
        "ranks": schedule.ranks,
        "relays": schedule.relays,
        "elements": schedule.elements,
        "steps": len(schedule.steps),
        "turns": sum(step.repeat for step in schedule.steps),
        "elements_sent": sum(sent),
        "most_elements_sent_by_a_node": max(sent),
    }
    if network is not None:
        links = link_volumes(schedule, PlainRoutes(network).path)
        facts["elements_on_all_links"] = sum(links.values())
        facts["elements_on_the_hottest_link"] = max(links.values(), default=0)
        facts["links"] = [[u, v, volume] for (u, v), volume in sorted(links.items())]
    return facts


@app.command()
def draw(
    file: Annotated[Path, typer.Argument(help="A schedule as JSON.")],
    output: Annotated[Path, typer.Option(help="Write the picture (SVG) to this file.")],
) -> None:
    """Draw a schedule: nodes as lines, transfers as arrows."""
    write_file(output, schedule_svg(_read(file)) + "\n")


def _read(file: Path) -> Schedule:
    try:
        text = file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ScheduleError(f"schedule {file}: cannot be read: {error}") from None
    return schedule_from_json(text)
