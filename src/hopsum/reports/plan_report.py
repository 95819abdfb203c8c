"""A plan as text (a tree) and as a dictionary."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import Any

from rich.markup import escape
from rich.tree import Tree

from hopsum.collectives.flows import tree_flows
from hopsum.collectives.plan import JobPlan, TreePlan
from hopsum.network.model import Network, shorten
from hopsum.network.units import format_rate, format_si, format_time
from hopsum.planning.bounds.bidirected_cut import bidirected_cut
from hopsum.planning.bounds.pipelining import PipelinedTree, least_seconds
from hopsum.planning.bounds.relay import relay_bound
from hopsum.planning.bounds.steiner_cut import steiner_cut
from hopsum.planning.bounds.strength import strength
from hopsum.planning.model.forest import Forest
from hopsum.planning.model.graph import Edge, PlanningGraph
from hopsum.planning.model.request import PlanRequest
from hopsum.protocol.wire import LANE_BYTES, MAX_CHILDREN
from hopsum.timing.estimate import Estimate


def plan_tree(network: Network, plan: JobPlan, tree: TreePlan) -> Tree:
    """Return the tree from the server down, with what each switch does."""
    flows = tree_flows(network, plan, tree)
    children: dict[str, list[str]] = {}
    for node, parent in tree.parents.items():
        children.setdefault(parent, []).append(node)
    arriving = len(flows.inputs[tree.server])
    server = escape(network.label(tree.server))
    shown = Tree(
        f"job {plan.job}, tree {tree.tree}: server [bold]{server}[/] takes "
        f"{arriving} {'flow' if arriving == 1 else 'flows'}, "
        f"{tree.share:.0%} of the data, results {plan.results}"
    )

    def grow(branch: Tree, parent: str) -> None:
        for node in children.get(parent, ()):
            rate = format_rate(network.link(node, parent).bandwidth)
            name = escape(network.label(node))
            if node in tree.parts:
                part = tree.parts[node]
                came, went = len(flows.inputs[node]), len(flows.up[node])
                if part.aggregate:
                    role = (
                        f"[green]sums {part.fan_in}[/], slots {part.slot_base} to "
                        f"{part.slot_base + plan.window - 1}"
                    )
                    if went > 1:
                        role += f", passes {went - 1}"
                else:
                    role = f"passes {came}"
                grow(branch.add(f"[bold]{name}[/]: {role} ({rate})"), node)
            else:
                number = plan.workers.index(node)
                branch.add(f"{name}: worker {number} ({rate})")

    grow(shown, tree.server)
    return shown


def forest_trees(network: Network, forest: Forest, rate: Callable[[Fraction], str]) -> list[Tree]:
    """Return the trees of a forest, each from its root down; `rate` formats a rate."""
    shown = []
    for number, tree in enumerate(forest.trees):
        children: dict[str, list[str]] = {}
        for node, parent in tree.parents.items():
            children.setdefault(parent, []).append(node)
        root = escape(network.label(tree.root))
        top = Tree(f"tree {number}: [bold]{root}[/], {rate(tree.rate)}, height {tree.height}")
        branches = {tree.root: top}
        order = [tree.root]
        for node in order:
            for child in children.get(node, ()):
                branches[child] = branches[node].add(escape(network.label(child)))
                order.append(child)
        shown.append(top)
    return shown


def forest_dict(network: Network, forest: Forest, unit: str) -> dict[str, Any]:
    """Return trees, rates and their bound for `--json`. Rates in `unit`; seconds."""
    proof = forest.certificate
    return {
        "planner": forest.planner,
        "throughput": _number(forest.throughput),
        "bound": _number(forest.bound),
        "gap": forest.gap,
        "certificate": {
            "kind": proof.kind,
            "bound": _number(proof.bound),
            "parts": [list(part) for part in proof.parts],
            "text": proof.text,
        },
        "status": forest.verdict.value,
        "seconds": forest.seconds,
        "network": network.name,
        "unit": unit,
        "trees": [
            {
                "root": tree.root,
                "rate": _number(tree.rate),
                "height": tree.height,
                "edges": [[node, parent] for node, parent in tree.parents.items()],
                "parents": dict(tree.parents),
            }
            for tree in forest.trees
        ],
    }


def _number(value: Fraction) -> int | float:
    return value.numerator if value.denominator == 1 else float(value)


def plan_dict(values: dict[str, Any], plan: JobPlan, prediction: Estimate) -> None:
    """Add a job's plan on these trees, and its prediction. Bytes, seconds."""
    values.update(
        {
            "job": plan.job,
            "epoch": plan.epoch,
            "workers": list(plan.workers),
            "lanes": plan.lanes,
            "window": plan.window,
            "results": plan.results.value,
            "reduction": plan.reduction.name.lower(),
            "prediction": {
                "seconds": prediction.seconds,
                "seconds_a_round": prediction.seconds_a_round,
                "total_bytes": prediction.total_bytes,
                "limit": prediction.limit,
                "limit_busy": prediction.busy,
                "links": [
                    {"from": u, "to": v, "bytes": size}
                    for (u, v), size in sorted(prediction.links.items())
                ],
            },
        }
    )
    for shown, tree in zip(values["trees"], plan.trees, strict=True):
        shown.update(_tree_dict(tree))


_KINDS = {"multi-hop": " of one tree for each server"}
"""The plans that a planner's bound holds for, if not all."""


def explanation(
    graph: PlanningGraph, forest: Forest, request: PlanRequest, network: Network, size: int | None
) -> list[str]:
    """Return the bottleneck of the rate, and other bounds.

    The proof of the bound, links without room, switches without slots. `size`: bits of a tensor,
    for bounds on its time; None where links have no rates.
    """
    of = _KINDS.get(forest.planner, "")
    if request.forest.max_trees:
        of = f" of at most {request.forest.max_trees} trees"
    lines = [f"no plan{of} is faster than {format_si(forest.bound)}: {forest.certificate.text}"]
    if forest.throughput == forest.bound:
        lines.append("the plan reaches this bound")
    else:
        lines.append(
            f"the plan reaches {format_si(forest.throughput)}, {1 - forest.gap:.2%} of it; it is "
            f"{forest.verdict} for at most {request.forest.max_trees or 'any number of'} trees"
        )
    lines += _limits(graph, forest, request, network)
    used: dict[Edge, Fraction] = {}
    for tree in forest.trees:
        for edge, load in tree.loads(graph).items():
            used[edge] = used.get(edge, Fraction(0)) + load
    full = [f"{u}-{v}" for (u, v), load in used.items() if load >= graph.capacity[u, v]]
    lines.append(f"links without residual bandwidth: {shorten(full) or 'none'}")
    holding = Counter(node for tree in forest.trees for node in tree.nodes)
    short = [
        f"{name} ({switch.slots} slots, {request.window} a tree)"
        for name, switch in network.switches.items()
        if switch.aggregates and switch.slots // request.window <= holding[name]
    ]
    if short:
        lines.append(f"switches without slots for one more tree: {shorten(short)}")
    if len(graph.workers) > 1:
        lines += _other_bounds(graph, request.forest.time_limit, network)
        if size is not None and forest.trees:
            lines.append(_pipelining(graph, forest, request.lanes, size))
    return lines


def _other_bounds(graph: PlanningGraph, time_limit: float, network: Network) -> list[str]:
    """Return the bounds for any trees, wherever their roots are (`hopsum.planning.bounds`).

    `time_limit`: seconds of each search; a bound holds whenever it ends.
    """
    if graph.every_node_works:
        return [f"strength, for any number of trees: {format_si(strength(graph).bound)}"]
    cut, directed = steiner_cut(graph), bidirected_cut(graph, time_limit=time_limit)
    lines = [
        f"any number of trees: Steiner cut {format_si(cut.bound)}, "
        f"bidirected cut {format_si(directed.bound)}"
    ]
    if network.switches:
        among_hosts = replace(graph, combines=frozenset(network.hosts))
        relay = relay_bound(among_hosts, time_limit)
        lines.append(f"relay, if switches only forwarded: {format_si(relay.bound)}, {relay.text}")
    return lines


def _pipelining(graph: PlanningGraph, forest: Forest, lanes: int, size: int) -> str:
    """Return the duration of optimally pipelined trees, and the least at the bound's rate.

    Trees share the data as they share the rate, so the highest one ends last.
    """
    bits = Fraction(size)
    least = format_time(float(least_seconds(graph, bits, forest.bound)))
    highest = max(forest.trees, key=lambda tree: tree.height)
    edges = (graph.edge(node, parent) for node, parent in highest.parents.items())
    hop = Fraction(str(max(graph.latency[edge] for edge in edges)))
    tree = PipelinedTree(highest.height, hop, bits, forest.throughput)
    chunks = tree.best_chunks(-(-size // (8 * LANE_BYTES * lanes)))
    taken = format_time(float(tree.seconds(chunks)))
    return (
        f"pipelining: a tree of height {tree.height} takes {taken} in {chunks} chunks, and at most "
        f"{format_si(forest.bound)} no plan less than {least}"
    )


def _limits(
    graph: PlanningGraph, forest: Forest, request: PlanRequest, network: Network
) -> list[str]:
    """Return requested and reached height and delay, and the limits that the bound ignores."""
    lines = []
    options = request.forest
    if options.max_height is not None and forest.trees:
        height = max(tree.height for tree in forest.trees)
        lines.append(f"height {height} of at most {options.max_height}")
    if options.max_delay is not None and forest.trees:
        delay = max(tree.delay(graph) for tree in forest.trees)
        lines.append(
            f"delay {format_time(delay)} from the farthest node to its root, of at most "
            f"{format_time(options.max_delay)}"
        )
    if forest.planner == "multi-tree" and network.switches and forest.throughput < forest.bound:
        lines.append(
            f"the bound knows of slots and of the fan-in of {MAX_CHILDREN} only at the "
            "switches of hosts"
            + (
                ""
                if options.max_delay is None
                else ", and of the delay only which links are too slow"
            )
        )
    return lines


def _tree_dict(tree: TreePlan) -> dict[str, Any]:
    return {
        "tree": tree.tree,
        "server": tree.server,
        "share": tree.share,
        "server_children": [list(workers) for workers in tree.server_children],
        "switches": {
            name: {
                "aggregate": part.aggregate,
                "children": {str(child): port for child, port in part.children.items()},
                "ports_up": list(part.ports_up),
                "port_server": part.port_server,
                "ports_down": list(part.ports_down),
                "slot_base": part.slot_base,
                "group": part.group,
            }
            for name, part in tree.parts.items()
        },
        "up": [[f"{hop.pack():08x}" for hop in stack] for stack in tree.up],
        "down": [[f"{hop.pack():08x}" for hop in stack] for stack in tree.down],
    }
