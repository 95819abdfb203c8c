"""A plan's all-reduce as a schedule, in which switches combine ([001 S3, S4][001])."""

from __future__ import annotations

from hopsum.collectives.choices import Collective
from hopsum.collectives.flows import TreeFlows, tree_flows
from hopsum.collectives.plan import JobPlan, Results, TreePlan, tensor_ranges
from hopsum.collectives.schedule import (
    Ranges,
    Schedule,
    Step,
    check_counts,
    make_step,
)
from hopsum.network.model import Network

_Pair = tuple[str, str]


def in_network_all_reduce(network: Network, plan: JobPlan, elements: int) -> Schedule:
    """Return what a plan does to a tensor of `elements`, hop by hop; a block is a fragment.

    Ranks are the plan's workers; servers and switches that sum or replicate are relays. A switch
    that only forwards is on the way between them. Proving this schedule proves that the plan sums
    every worker's contribution once. The plan must hold (`plan_checker`).
    """
    check_counts("in-network", len(plan.workers), elements)
    levels = []
    for tree in plan.trees:
        flows = tree_flows(network, plan, tree)
        levels.append((_upwards(plan, tree, flows), _downwards(plan, tree, flows)))
    nodes = dict.fromkeys(plan.workers)
    for up, down in levels:
        nodes |= dict.fromkeys(end for pairs in (*up, *down) for pair in pairs for end in pair)
    names = tuple(nodes)
    numbers = {name: number for number, name in enumerate(names)}
    steps: list[Step] = []
    ranges = tensor_ranges(plan, elements)
    for (up, down), (start, stop) in zip(levels, ranges, strict=True):
        after: tuple[int, ...] = ()
        moves = [(pairs, True) for pairs in up] + [(pairs, False) for pairs in down]
        for pairs, combine in moves:
            sources = [numbers[u] for u, _ in pairs]
            targets = [numbers[v] for _, v in pairs]
            steps.append(make_step(sources, targets, start, stop, combine=combine, after=after))
            after = (len(steps) - 1,)
    whole = Ranges.whole(range(len(plan.workers)), elements)
    return Schedule(
        "in-network",
        Collective.ALL_REDUCE,
        len(plan.workers),
        elements,
        tuple(steps),
        whole,
        whole,
        relays=len(names) - len(plan.workers),
        block=plan.values,
        names=names,
    )


def _upwards(plan: JobPlan, tree: TreePlan, flows: TreeFlows) -> list[list[_Pair]]:
    """Return senders and receivers of sums, by level, skipping nodes that only forward."""
    origins: dict[str, list[tuple[str, int]]] = {name: [] for name in flows.inputs}
    levels: dict[int, list[_Pair]] = {}
    for node, leaving in flows.up.items():
        if node not in tree.parts:
            origins[leaving[0].v].append((node, 0))
            continue
        merged = flows.summed[node]
        passing = [origin for i, origin in enumerate(origins[node]) if i not in merged]
        if merged:
            level = max(origins[node][i][1] for i in merged)
            levels.setdefault(level, []).extend((origins[node][i][0], node) for i in merged)
            passing.insert(0, (node, level + 1))
        origins[tree.parents[node]] += passing
    last = max((level for _, level in origins[tree.server]), default=0)
    levels.setdefault(last, []).extend((name, tree.server) for name, _ in origins[tree.server])
    return [levels[level] for level in sorted(levels)]


def _downwards(plan: JobPlan, tree: TreePlan, flows: TreeFlows) -> list[list[_Pair]]:
    """Return senders and receivers of results, by level."""
    if plan.results is Results.UNICAST:
        return [[(tree.server, worker) for worker in plan.workers]]
    depths = {tree.server: 0}
    levels: dict[int, list[_Pair]] = {}
    for node, leaving in flows.down.items():
        for flow in leaving:
            depths[flow.v] = depths[node] + 1
            levels.setdefault(depths[node], []).append((node, flow.v))
    return [levels[level] for level in sorted(levels)]
