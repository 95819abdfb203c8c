"""Choice of the k switches of a tree that should sum to make the job fastest.

The problem of Segal, Avin and Scalosub (*Constrained In-network Computing with Low Congestion in
Datacenter Networks*, 2022, arXiv 2201.04344), here with at most `max_children` flows in a sum. It
is optimal: for a given time, fewer flows out of a subtree are never worse above it, so one value
per subtree and number of switches suffices.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from hopsum.planning.steiner.candidate_trees import Parents
from hopsum.planning.steiner.tree_problem import SLACK, NumberedTree, Problem

Flows = NDArray[np.float64]
"""[j]: the fewest flows that leave a subtree in which at most j switches sum."""

_STEPS = 40


def least_congestion(problem: Problem, parents: Parents, most: int) -> NumberedTree | None:
    """Choose at most `most` switches to sum so that a tree of the problem's only task is fastest.

    None if any choice lets too many flows reach the server. Up to 40 passes of O(n k^2).
    """
    best = place_within(problem, parents, most, math.inf)
    if best is None:
        return None
    low = problem.floor
    high = problem.time([best])
    for _ in range(_STEPS):
        if high <= low * (1 + SLACK) + SLACK * high:
            break
        middle = (low + high) / 2
        found = place_within(problem, parents, most, middle)
        if found is None:
            low = middle
        else:
            best, high = found, problem.time([found])
    return best


def place_within(problem: Problem, parents: Parents, most: int, time: float) -> NumberedTree | None:
    """Return at most `most` switches with which a tree takes at most `time`; None if impossible."""
    task = problem.tasks[0]
    order = list(problem.inflows(task, NumberedTree(parents, frozenset())))
    children: dict[int, list[int]] = {v: [] for v in order}
    for v in order:
        if v != task.root:
            children[parents[v]].append(v)
    least: dict[int, Flows] = {}
    merged: dict[int, list[Flows]] = {}
    for v in order:
        merged[v] = [np.array([float(task.local[v])])]
        for child in children[v]:
            merged[v].append(min_plus(merged[v][-1], least[child], most + 1))
        plain = merged[v][-1]
        flows = plain
        if task.can_sum[v]:
            sums = np.where(
                plain < 2, plain, np.maximum(1.0, plain - problem.limits.max_children + 1)
            )
            flows = np.append(plain, plain[-1])[: most + 1]
            flows[1:] = np.minimum(flows[1:], sums[: len(flows) - 1])
        room = _room(problem, v, parents, time)
        least[v] = np.where(flows > room, math.inf, flows)
    if math.isinf(least[task.root][-1]):
        return None
    return NumberedTree(parents, frozenset(_trace(problem, order, children, least, merged)))


def _room(problem: Problem, v: int, parents: Parents, time: float) -> float:
    task = problem.tasks[0]
    arc = task.exit if v == task.root else problem.arc[v, parents[v]]
    room = task.max_flows if v == task.root else math.inf
    if math.isfinite(time) and math.isfinite(problem.capacity[arc]):
        flows = (problem.capacity[arc] * time - problem.load[arc]) / task.share
        room = min(room, math.floor(flows * (1 + SLACK) + SLACK))
    return room


def _trace(
    problem: Problem,
    order: list[int],
    children: dict[int, list[int]],
    least: dict[int, Flows],
    merged: dict[int, list[Flows]],
) -> list[int]:
    """Return the switches that give the fewest flows at the root."""
    task = problem.tasks[0]
    given = {task.root: len(least[task.root]) - 1}
    summing = []
    for v in reversed(order):
        number = given[v]
        plain = merged[v][-1]
        if least[v][number] < plain[min(number, len(plain) - 1)]:
            summing.append(v)
            number -= 1
        number = min(number, len(plain) - 1)
        for child, before in zip(reversed(children[v]), reversed(merged[v][:-1]), strict=True):
            given[child], number = split(before, least[child], number)
    return summing


def min_plus(a: Flows, b: Flows, length: int) -> Flows:
    """Return result[..., i] = min over j of a[..., j] + b[..., i - j], up to a length."""
    long, short = (a, b) if a.shape[-1] >= b.shape[-1] else (b, a)
    size = min(length, a.shape[-1] + b.shape[-1] - 1)
    result = np.full((*a.shape[:-1], size), math.inf)
    for j in range(min(short.shape[-1], size)):
        part = result[..., j : j + long.shape[-1]]
        np.minimum(part, long[..., : part.shape[-1]] + short[..., j : j + 1], out=part)
    return result


def split(a: Flows, b: Flows, number: int) -> tuple[int, int]:
    """Return the best split of `number`: (of b, of a)."""
    low, high = max(0, number - len(a) + 1), min(number, len(b) - 1)
    sums = b[low : high + 1] + a[number - high : number - low + 1][::-1]
    part = low + int(np.argmin(sums))
    return part, number - part
