"""An embedding plan as text and as a dictionary: topologies, weights, bottlenecks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

from rich.markup import escape
from rich.tree import Tree

from hopsum.collectives.plan import JobPlan, PlanError
from hopsum.network.model import Network
from hopsum.network.units import format_time
from hopsum.planning.embedding.capacities import Capacities
from hopsum.planning.embedding.embedding_plan import Part
from hopsum.planning.embedding.job_planner import EmbeddedJob
from hopsum.planning.embedding.planner import plan_embedding
from hopsum.planning.model.demand import Model
from hopsum.reports.plan_report import plan_dict, plan_tree
from hopsum.timing.estimate import Estimate

BUSIEST = 5
"""Maximum number of links and nodes that are named."""


def _time(embedded: EmbeddedJob, seconds: Fraction | float, real: bool) -> str:
    """Return a time as text; where links have no rates (not `real`), in tensors sent on one."""
    if real:
        return format_time(float(seconds))
    return f"{float(seconds) / embedded.demand.bits:.4g} x a tensor on a link"


def embedding_trees(network: Network, planned: EmbeddedJob, plan: JobPlan) -> list[Tree]:
    """Return a drawing of every part with its weight, the heaviest first."""
    trees = iter(plan.trees)
    shown = []
    for part in planned.embedding.parts:
        if part.topology.model is Model.IN_NETWORK:
            top = plan_tree(network, plan, next(trees))
            top.label = f"{_weight(part)} in-network; of what the switches sum: {top.label}"
        else:
            top = _host_tree(network, part)
        shown.append(top)
    return shown


def _host_tree(network: Network, part: Part) -> Tree:
    topology = part.topology
    top = Tree(f"{_weight(part)} {topology.describe()}")
    children: dict[str, list[str]] = {}
    for node, parent in topology.parents.items():
        children.setdefault(parent, []).append(node)
    branches = {topology.root: top}
    order = [topology.root]
    for node in order:
        for child in children.get(node, ()):
            branches[child] = branches[node].add(escape(network.label(child)))
            order.append(child)
    return top


def _weight(part: Part) -> str:
    return f"[bold]{float(part.weight):.1%}[/] of every tensor:"


def summary(planned: EmbeddedJob, real: bool) -> str:
    """Return one line: the time, its bound, and the method."""
    found = planned.found
    count = len(planned.embedding.parts)
    return (
        f"embedding: {_time(planned, found.seconds, real)} an iteration on {count} "
        f"{'topology' if count == 1 else 'topologies'} of {found.candidates} candidates, at least "
        f"{_time(planned, found.bound, real)} with any weights; in steps of "
        f"1/{planned.options.units} and with few topologies {found.verdict} (gap {found.gap:.2%} "
        f"{'of all topologies' if found.complete else 'of the bound'}, "
        f"{found.candidates_gap:.2%} of the candidates), "
        f"planned in {format_time(found.spent)} by the {found.method}"
    )


def explain_embedding(planned: EmbeddedJob, real: bool) -> list[str]:
    """Return the bottlenecks of an embedding: the busiest links and nodes.

    Also the time of each model alone, for which it is planned by itself.
    """
    demand, resources = planned.demand, planned.resources
    capacities = Capacities(resources)
    times = capacities.exact_times(
        [(demand, part.topology, part.weight) for part in planned.embedding.parts]
    )
    ranked = sorted(range(len(times)), key=lambda row: -times[row])[:BUSIEST]
    listed = [f"{capacities.names[i]} {_time(planned, times[i], real)}" for i in ranked if times[i]]
    alone = [f"{model} {_alone(planned, model, real)}" for model in Model if model in demand.models]
    lines = [
        f"the busiest decides: {', '.join(listed) or 'nothing is sent'}",
        f"one model alone: {'; '.join(alone)}",
    ]
    full = [name for name, free in resources.slots.items() if free < demand.window]
    if full:
        lines.append(f"switches without {demand.window} slots: {', '.join(full)}")
    return lines


def _alone(planned: EmbeddedJob, model: Model, real: bool) -> str:
    only = replace(planned.demand, models=frozenset({model}))
    try:
        found = plan_embedding(planned.resources, [only], planned.options)
    except PlanError:
        return "impossible"
    return _time(planned, found.seconds, real)


def embedding_dict(
    planned: EmbeddedJob,
    plan: JobPlan,
    prediction: Estimate,
    reasons: Sequence[str] | None,
) -> dict[str, Any]:
    """Return the object for `--json`: bytes, seconds (at 1 bit/s if links have no rate)."""
    found = planned.found
    values: dict[str, Any] = {
        "planner": "embedding",
        "seconds_an_iteration": float(found.seconds),
        "bound": found.bound,
        "gap": found.gap,
        "candidates_gap": found.candidates_gap,
        "all_topologies_were_candidates": found.complete,
        "busiest": found.busiest,
        "status": found.verdict.value,
        "method": found.method,
        "candidates": found.candidates,
        "weight_steps": planned.options.weights.steps,
        "penalty": planned.options.weights.penalty,
        "seconds": found.spent,
        "parts": [
            {
                "model": part.topology.model.value,
                "weight": str(part.weight),
                "order": list(part.topology.order),
                "root": part.topology.root,
                "parents": dict(part.topology.parents),
                "slots_at": sorted(part.topology.slots_at),
            }
            for part in planned.embedding.parts
        ],
        "trees": [{} for _ in plan.trees],
    }
    plan_dict(values, plan, prediction)
    if reasons is not None:
        values["explanation"] = list(reasons)
    return values
