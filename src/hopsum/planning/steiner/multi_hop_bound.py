"""A lower bound on the time of in-network trees, by maximum flow: the multi-hop planner's bound.

Relax the problem: let the flows of a tree split freely, and let a switch that sums absorb up to
max_children - 1 of them without having to send one. Then every worker's flow must end at the server
or at a switch that absorbs it. If a maximum flow under the links' capacities in a time t cannot
carry them all, no tree takes t or less; the minimum cut is the reason. Link capacities are rounded
down to whole flows, and a link that cannot carry the least that a switch must send is omitted,
which makes the bound stronger than the linear relaxation of `multi_hop_exact`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hopsum.planning.steiner.tree_problem import SLACK, NumberedTask, Problem

_STEPS = 40


@dataclass(frozen=True, slots=True)
class TimeBound:
    """No tree takes less than `time`; `cut`: the switches whose flows cannot leave in less.

    The cut is empty where the links of hosts are the bottleneck.
    """

    time: float
    cut: tuple[int, ...] = ()


def time_bound(problem: Problem, reached: float) -> TimeBound:
    """Return a lower bound on the time of trees, of which some take `reached`.

    The largest bound of any task by itself, given the loads that `problem` already has.
    """
    best = TimeBound(min(problem.floor, reached))
    for task in problem.tasks:
        alone = problem if len(problem.tasks) == 1 else problem.variant((task,))
        found = _task_bound(alone, task, reached)
        if found.time > best.time:
            best = found
    return best


def least_server_flows(problem: Problem, task: NumberedTask) -> int:
    """Return the least number of flows that reach the server in any tree, without a time limit."""
    flow, _ = _relaxed(problem, task, float("inf"), exit_flows=0)
    return max(1, task.workers - flow)


def _task_bound(problem: Problem, task: NumberedTask, reached: float) -> TimeBound:
    capacity, load = np.array(problem.capacity), np.array(problem.load)
    slowest = float(np.max((load + task.share * task.workers) / capacity, initial=0.0))
    reached = min(reached, max(slowest, problem.floor))
    if reached <= problem.floor * (1 + SLACK):
        return TimeBound(problem.floor)
    # First ask whether anything below `reached` is possible: usually it is not.
    low, high = reached * (1 - 4 * SLACK), reached
    flow, cut = _relaxed(problem, task, low)
    if flow < task.workers:
        return TimeBound(reached, cut)
    low, high = problem.floor, low
    flow, cut = _relaxed(problem, task, low)
    if flow == task.workers:
        return TimeBound(low)
    for _ in range(_STEPS):
        if next_time(problem, low) >= high * (1 - 8 * SLACK):
            break
        middle = (low + high) / 2
        flow, side = _relaxed(problem, task, middle)
        if flow == task.workers:
            high = middle
        else:
            low, cut = middle, side
    return TimeBound(min(reached, next_time(problem, low)), cut)


def next_time(problem: Problem, time: float) -> float:
    """Return the next time above one that some link takes for whole flows of the only task."""
    share = problem.tasks[0].share
    capacity, load = np.array(problem.capacity), np.array(problem.load)
    limited = np.isfinite(capacity)
    capacity, load = capacity[limited], load[limited]
    if not len(capacity):
        return time
    flows = np.floor((capacity * time - load) / share * (1 + SLACK) + SLACK) + 1
    return float(np.min((load + share * np.maximum(flows, 1)) / capacity))


def _flows_in(problem: Problem, task: NumberedTask, time: float) -> NDArray[np.int32]:
    """Return the whole flows that each arc can carry in a time, up to the number of workers."""
    capacity, load = np.array(problem.capacity), np.array(problem.load)
    if math.isinf(time):
        return np.full(len(capacity), task.workers, dtype=np.int32)
    room = (capacity * time - load) / task.share
    whole = np.floor(room * (1 + SLACK) + SLACK)
    result: NDArray[np.int32] = np.clip(whole, 0, task.workers).astype(np.int32)
    return result


def _relaxed(
    problem: Problem, task: NumberedTask, time: float, exit_flows: int | None = None
) -> tuple[int, tuple[int, ...]]:
    """Return how many workers' flows end within a time, and the switches on the cut's near side."""
    # Imported here: commands that might not plan start a third of a second sooner.
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import breadth_first_order, maximum_flow

    count = len(problem.switches)
    source, sink, hub, inner_hub = range(count, count + 4)
    away = problem.limits.max_children - 1
    local, sums = np.array(task.local), np.array(task.can_sum)
    tail, head, back = np.array(problem.tail), np.array(problem.head), np.array(problem.back)
    room = _flows_in(problem, task, time)
    least = np.maximum(1, local - np.where(sums, away, 0))
    inner = head >= 0
    down = room[back[inner]]
    along = np.where(down >= 1, np.minimum(room[inner], down) if task.unicast else room[inner], 0)
    along = np.where(along >= least[tail[inner]], along, 0)
    joined = _joined(count, task.root, tail[inner][along > 0], head[inner][along > 0])
    cut_off = np.flatnonzero((local > 0) & ~joined)
    if len(cut_off):
        return 0, tuple(int(v) for v in np.flatnonzero(~joined))
    sums &= joined
    widest = np.zeros(count, dtype=np.int64)
    np.maximum.at(widest, tail[inner], along)
    widest[task.root] = task.workers if exit_flows is not None else room[task.exit]
    must = local > widest
    most = problem.limits.max_summing
    if most is not None and np.count_nonzero(must) >= most:
        sums &= must
    if most is not None and np.count_nonzero(must) > most:
        return 0, tuple(int(v) for v in np.flatnonzero(must))
    if exit_flows is None:
        exit_flows = int(min(room[task.exit], task.max_flows))
    summing = np.flatnonzero(sums)
    # At least one of the flows that begin elsewhere reaches the root.
    elsewhere = task.workers - task.local[task.root]
    widths = [
        local,
        along,
        np.full(len(summing), away),
        np.array([max(0, elsewhere - 1), exit_flows]),
        np.array([task.workers if most is None else min(task.workers, most * away)]),
    ]
    starts = [np.full(count, source), tail[inner], summing, np.array([inner_hub, task.root, hub])]
    hubs = np.where(summing == task.root, hub, inner_hub)
    ends = [np.arange(count), head[inner], hubs, np.array([hub, sink, sink])]
    size = (count + 4, count + 4)
    pairs = (np.concatenate(starts).astype(np.int32), np.concatenate(ends).astype(np.int32))
    graph = csr_array((np.concatenate(widths).astype(np.int32), pairs), shape=size)
    result = maximum_flow(graph, source, sink)
    flow = int(result.flow_value)
    if flow == task.workers:
        return flow, ()
    rest = csr_array(graph - result.flow)
    rest.data = np.maximum(rest.data, 0)
    rest.eliminate_zeros()
    near = breadth_first_order(rest, source, return_predecessors=False)
    return flow, tuple(sorted(int(v) for v in near if v < count))


def _joined(
    count: int, root: int, tail: NDArray[np.int64], head: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """Return which switches have a path to the root."""
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import breadth_first_order

    towards = csr_array((np.ones(len(tail)), (head, tail)), shape=(count, count))
    joined = np.zeros(count, dtype=np.bool_)
    joined[breadth_first_order(towards, root, return_predecessors=False)] = True
    return joined
