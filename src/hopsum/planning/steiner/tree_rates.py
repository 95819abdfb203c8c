"""Exact rates for given trees within capacities: at most K trees, none below r."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from math import lcm

from hopsum.planning.model.forest import ForestOptions, RatedTree
from hopsum.planning.model.linear_program import LinearProgram, Status
from hopsum.planning.steiner.packing_problem import PackingProblem

Loads = Mapping[int, int]
"""Flows of a tree on each edge, by edge number."""
SIMPLE = 720_720
"""Rates of a program are taken for the nearest fraction with this denominator, if all are so
near: what 1 to 16 trees, or flows, share equally."""
FINER = 10_000
NEAR = 1e-9
DUST = 1e-7
"""A program's rates below this fraction of the largest capacity count as 0."""


def edge_loads(problem: PackingProblem, tree: RatedTree) -> dict[int, int]:
    """Return the flows of a tree on each edge, by the edge's number."""
    return {
        problem.position[problem.graph.edge(node, parent)]: tree.flows.get(node, 1)
        for node, parent in tree.parents.items()
    }


def choose_rates(
    problem: PackingProblem,
    trees: Sequence[RatedTree],
    options: ForestOptions,
    seconds: float,
) -> tuple[list[float], bool]:
    """Return rates, as fractions of the largest capacity, of the best choice of at most K trees.

    Meets `max_trees`, `min_rate` and the problem's `limits`. Also returns whether optimality was
    proved in the given seconds. All rates are 0 if no choice meets the limits.
    """
    unit = max(problem.graph.capacity.values())
    least = float(options.min_rate / unit)
    program = LinearProgram(
        maximise=True, time_limit=seconds, gap=options.gap / 2, seed=options.seed
    )
    by_edge: dict[int, dict[int, float]] = {}
    by_node: dict[str, dict[int, float]] = {}
    rates, uses = [], []
    for tree in trees:
        loads = edge_loads(problem, tree)
        most = min(float(_capacity(problem, edge) / unit) / n for edge, n in loads.items())
        rate = program.add_variable(1.0, upper=most)
        use = program.add_variable(0.0, upper=1.0, integer=True)
        program.add_constraint({rate: 1.0, use: -most}, upper=0.0)
        if least:
            program.add_constraint({rate: 1.0, use: -least}, lower=0.0)
        for edge, n in loads.items():
            by_edge.setdefault(edge, {})[rate] = float(n)
        for node in summing(problem, tree):
            by_node.setdefault(node, {})[use] = 1.0
        rates.append(rate)
        uses.append(use)
    for edge, terms in by_edge.items():
        program.add_constraint(terms, upper=float(_capacity(problem, edge) / unit))
    for node, terms in by_node.items():
        if node in problem.limits and problem.limits[node] < len(terms):
            program.add_constraint(terms, upper=float(problem.limits[node]))
    if options.max_trees is not None:
        program.add_constraint(dict.fromkeys(uses, 1.0), upper=float(options.max_trees))
    solution = program.solve()
    if solution.values is None:
        return [0.0] * len(trees), solution.status is not Status.TIME_LIMIT
    found = [
        float(solution.values[rate]) if solution.values[use] > 0.5 else 0.0
        for rate, use in zip(rates, uses, strict=True)
    ]
    return found, solution.status is Status.OPTIMAL


def summing(problem: PackingProblem, tree: RatedTree) -> list[str]:
    """Return the nodes at which two or more flows of a tree become one."""
    meeting = Counter(tree.parents.values())
    for node, flows in tree.flows.items():
        meeting[tree.parents[node]] += flows - 1
    return [node for node, flows in meeting.items() if flows > 1 and node in problem.merging]


def meets_limits(
    problem: PackingProblem,
    trees: Sequence[RatedTree],
    rates: Sequence[float],
    options: ForestOptions,
) -> bool:
    """Return whether a program's rates already meet K, r and the limits of nodes."""
    used = [i for i, rate in enumerate(rates) if rate > DUST]
    least = float(options.min_rate / max(problem.graph.capacity.values()))
    at = Counter(node for i in used for node in summing(problem, trees[i]))
    return (
        (options.max_trees is None or len(used) <= options.max_trees)
        and all(rates[i] >= least - DUST for i in used)
        and all(count <= problem.limits.get(node, count) for node, count in at.items())
    )


def exact_rates(
    problem: PackingProblem,
    trees: Sequence[RatedTree],
    wanted: Sequence[float],
    min_rate: Fraction,
) -> tuple[RatedTree, ...]:
    """Return trees with exact rates near the wanted ones, or above, that fit the capacities.

    `wanted`: fractions of the largest capacity. What rounding leaves goes to the largest trees.
    """
    capacities = [problem.graph.capacity[edge] for edge in problem.edges]
    unit = max(capacities)
    used = [i for i, rate in enumerate(wanted) if rate > DUST]
    simple = all(abs(wanted[i] * SIMPLE - round(wanted[i] * SIMPLE)) < NEAR * SIMPLE for i in used)
    # Integer multiples of a grain from here on: sums of fractions get ever larger denominators.
    grain = Fraction(1, SIMPLE if simple else SIMPLE * FINER)
    grain /= lcm(min_rate.denominator, *(capacity.denominator for capacity in capacities))
    room = [int(capacity / grain) for capacity in capacities]
    least, whole = int(min_rate / grain), int(unit / grain)
    rates = {
        i: max(
            least,
            round(wanted[i] * SIMPLE) * whole // SIMPLE if simple else int(wanted[i] * whole),
        )
        for i in used
    }
    loads = {i: edge_loads(problem, trees[i]) for i in rates}
    for edge in range(len(room)):
        _relieve(rates, loads, least, edge, room[edge])
    for i, rate in rates.items():
        for edge, flows in loads[i].items():
            room[edge] -= rate * flows
    for i in sorted(rates, key=lambda i: (-rates[i], i)):
        more = min(room[edge] // flows for edge, flows in loads[i].items())
        rates[i] += more
        for edge, flows in loads[i].items():
            room[edge] -= more * flows
    ranked = sorted((i for i in rates if rates[i]), key=lambda i: (-rates[i], i))
    return tuple(replace(trees[i], rate=rates[i] * grain) for i in ranked)


def _relieve(
    rates: dict[int, int], loads: Mapping[int, Loads], least: int, edge: int, room: int
) -> None:
    """Make rates fit an edge: its trees give up the same fraction of what they have above `least`.

    If that is not enough, the smallest of them is dropped.
    """
    while True:
        here = [i for i in rates if edge in loads[i]]
        base = sum(least * loads[i][edge] for i in here)
        extra = sum((rates[i] - least) * loads[i][edge] for i in here)
        if base + extra <= room:
            return
        if base <= room:
            for i in here:
                rates[i] = least + (rates[i] - least) * (room - base) // extra
            return
        del rates[min(here, key=lambda i: (rates[i], -i))]


def _capacity(problem: PackingProblem, edge: int) -> Fraction:
    return problem.graph.capacity[problem.edges[edge]]
