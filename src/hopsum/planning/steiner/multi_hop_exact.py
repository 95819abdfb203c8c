"""The fastest in-network trees, as a mixed-integer program.

The published models (ARO, Luo et al., ToN 2024) maximise a rate and multiply it by the number of
flows on a link, which is quadratic. Here the time t = 1 / rate is minimised: for f flows on a link
of bandwidth c the constraint f <= c t is linear. Several trees share the links and t.

Variables of every tree: x_a, whether arc a leads to its switch's next hop; y_a, the flows on it;
level_v, the number of switches from v to the root, which excludes cycles and limits the depth;
sums_v, whether v sums, where that is a choice (few switches may sum, or slots are scarce); and,
where results are one packet per worker, down_a, the workers on the far side of a. `tree_problem`
defines the allowed trees.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from hopsum.planning.model.linear_program import INFINITY, LinearProgram, Status
from hopsum.planning.steiner.candidate_trees import Parents
from hopsum.planning.steiner.tree_problem import SLACK, NumberedTask, NumberedTree, Problem

_Values = Callable[[int], float]


@dataclass(frozen=True, slots=True)
class ExactAnswer:
    """Result of the program: trees (None: none found), and a lower bound on the time of others.

    With `status` INFEASIBLE no trees take less than the requested time.
    """

    chosen: tuple[NumberedTree, ...] | None
    bound: float
    status: Status


def solve_exactly(
    problem: Problem,
    *,
    below: float = INFINITY,
    at_least: float = 0.0,
    gap: float = 1e-6,
    time_limit: float = INFINITY,
    seed: int = 0,
) -> ExactAnswer:
    """Find the fastest trees among those that take less than `below`.

    `at_least`: a known lower bound on the time. `gap`: relative; `time_limit`: seconds. The same
    input gives the same trees unless the time limit is reached.
    """
    if max(at_least, problem.floor) > below:
        return ExactAnswer(None, below, Status.INFEASIBLE)
    model = _Model(problem, below, at_least, gap, time_limit, seed)
    if any(task_model.cut_off for task_model in model.tasks):
        return ExactAnswer(None, below, Status.INFEASIBLE)
    solution = model.program.solve()
    bound = (
        max(at_least, solution.bound * model.unit) if math.isfinite(solution.bound) else at_least
    )
    if solution.status is Status.INFEASIBLE:
        return ExactAnswer(None, below, Status.INFEASIBLE)
    if solution.values is None:
        return ExactAnswer(None, bound, solution.status)
    values = solution.values
    found = tuple(task.read(lambda column: float(values[column])) for task in model.tasks)
    return ExactAnswer(found, bound, solution.status)


class _Model:
    """The program: constraints that the trees share, and a `_TaskModel` for each."""

    def __init__(
        self,
        problem: Problem,
        below: float,
        at_least: float,
        gap: float,
        time_limit: float,
        seed: int,
    ) -> None:
        self.problem = problem
        self.below = below
        # Scaling: bandwidths are 10^6 and more, and times small; the solver needs both near 1.
        limited = [capacity for capacity in problem.capacity if math.isfinite(capacity)]
        self.unit = 1 / max(limited, default=1.0)
        self.program = LinearProgram(maximise=False, time_limit=time_limit, gap=gap, seed=seed)
        least = max(problem.floor, at_least) / self.unit
        self.time = self.program.add_variable(1.0, lower=least, upper=max(least, below / self.unit))
        self.carried: list[dict[int, float]] = [{} for _ in problem.capacity]
        self.tasks = [_TaskModel(self, task) for task in problem.tasks]
        self._add_capacities()
        self._add_ranges()
        self._add_most_summing()

    def room(self, arc: int, share: float) -> float:
        """Return the whole flows of a tree that an arc can carry in less time than `below`."""
        capacity = self.problem.capacity[arc]
        if math.isinf(capacity) or math.isinf(self.below):
            return INFINITY
        room = (capacity * self.below - self.problem.load[arc]) / share
        return math.floor(room * (1 + SLACK) + SLACK)

    def _add_capacities(self) -> None:
        """Require that all frames on a link, in one direction, take at most the time t."""
        for arc, terms in enumerate(self.carried):
            capacity = self.problem.capacity[arc] * self.unit
            if terms and math.isfinite(capacity):
                self.program.add_constraint(
                    {**terms, self.time: -capacity}, upper=-self.problem.load[arc]
                )

    def _add_ranges(self) -> None:
        """Let a switch sum for no more trees than it has slots for."""
        for v, ranges in enumerate(self.problem.ranges):
            terms = {task.sums[v]: 1.0 for task in self.tasks if v in task.sums}
            if len(terms) > ranges:
                self.program.add_constraint(terms, upper=ranges)

    def _add_most_summing(self) -> None:
        """Limit the number of switches that sum for any tree."""
        most = self.problem.limits.max_summing
        if most is None:
            return
        any_tree = {}
        for v in sorted({v for task in self.tasks for v in task.sums}):
            columns = [task.sums[v] for task in self.tasks if v in task.sums]
            any_tree[v] = columns[0]
            if len(columns) > 1:
                any_tree[v] = self.program.add_variable(upper=1.0)
                for column in columns:
                    self.program.add_constraint({column: 1.0, any_tree[v]: -1.0}, upper=0.0)
        self.program.add_constraint(dict.fromkeys(any_tree.values(), 1.0), upper=most)


@dataclass
class _TaskModel:
    """One tree: its variables and its own constraints."""

    model: _Model
    task: NumberedTask
    next_hop: dict[int, int] = field(default_factory=dict)
    flows: dict[int, int] = field(default_factory=dict)
    down: dict[int, int] = field(default_factory=dict)
    sums: dict[int, int] = field(default_factory=dict)
    cut_off: bool = False

    def __post_init__(self) -> None:
        self.problem = self.model.problem
        self.program = self.model.program
        self.away = self.problem.limits.max_children - 1
        self.arrivals: dict[int, list[int]] = {}
        self.departures: dict[int, list[int]] = {}
        self.hops = self._hops()
        self._add_sums()
        self._add_arcs()
        self.cut_off = any(
            count and v != self.task.root and v not in self.departures
            for v, count in enumerate(self.task.local)
        )
        if not self.cut_off:
            self._add_next_hops()
            self._add_flows()
            self._add_levels()
            if self.task.unicast:
                self._add_results()
            self._add_exit()

    def _hops(self) -> dict[int, int]:
        """Return the fewest switches from each to the root, both included, within the limit."""
        hops = {self.task.root: 1}
        queue = [self.task.root]
        for v in queue:
            if hops[v] < self.problem.limits.max_switches:
                for arc in self.problem.leaving[v]:
                    if self.problem.head[arc] not in hops:
                        hops[self.problem.head[arc]] = hops[v] + 1
                        queue.append(self.problem.head[arc])
        return hops

    def _add_sums(self) -> None:
        """Add variables for whether a switch sums, only where something limits it."""
        scarce = self.problem.limits.max_summing is not None
        for v, able in enumerate(self.task.can_sum):
            if able and (scarce or self.problem.ranges[v] < len(self.problem.tasks)):
                self.sums[v] = self.program.add_variable(upper=1.0, integer=True)

    def _taken_away(self, v: int) -> tuple[dict[int, float], float]:
        """Return the flows that a switch absorbs: its variable's coefficient, and a constant."""
        if v in self.sums:
            return {self.sums[v]: float(self.away)}, 0.0
        return {}, float(self.away) if self.task.can_sum[v] else 0.0

    def _add_arcs(self) -> None:
        """Add x and y for the arcs towards the root that can carry what the switch must send."""
        problem, task = self.problem, self.task
        for arc, (v, u) in enumerate(zip(problem.tail, problem.head, strict=True)):
            if u < 0 or v == task.root or v not in self.hops or u not in self.hops:
                continue
            if self.hops[u] >= problem.limits.max_switches:
                continue
            most = min(self.model.room(arc, task.share), task.workers)
            least = max(1, task.local[v] - (self.away if task.can_sum[v] else 0))
            if most < least or self.model.room(problem.back[arc], task.share) < 1:
                continue
            x = self.program.add_variable(upper=1.0, integer=True)
            y = self.program.add_variable(upper=most)
            self.next_hop[arc], self.flows[arc] = x, y
            self.program.add_constraint({y: 1.0, x: -most}, upper=0.0)
            self.program.add_constraint({y: 1.0, x: -least}, lower=0.0)
            self.departures.setdefault(v, []).append(arc)
            self.arrivals.setdefault(u, []).append(arc)
            self.model.carried[arc][y] = task.share
            if not task.unicast:
                self.model.carried[problem.back[arc]][x] = task.share

    def _add_next_hops(self) -> None:
        """Require one next hop at every switch of the tree, and at those that some flow enters."""
        for v, arcs in self.departures.items():
            leaving = {self.next_hop[arc]: 1.0 for arc in arcs}
            worked = self.task.local[v] > 0
            self.program.add_constraint(leaving, lower=float(worked), upper=1.0)
            for arc in self.arrivals.get(v, ()):
                if not worked:
                    self.program.add_constraint({**leaving, self.next_hop[arc]: -1.0}, lower=0.0)
        for v, arcs in self.arrivals.items():
            # A dead end: no arc leaves it.
            if v != self.task.root and v not in self.departures:
                for arc in arcs:
                    self.program.set_bounds(self.next_hop[arc], 0.0, 0.0)

    def _add_flows(self) -> None:
        """Require flow conservation at every switch, less what it absorbs by summing."""
        for v, arcs in self.departures.items():
            terms, besides = self._taken_away(v)
            terms.update((self.flows[arc], 1.0) for arc in arcs)
            local = self.task.local[v]
            if v in self.sums and local > 1:
                # The same for the flows that begin there: redundant, but far tighter.
                own = {**terms, self.sums[v]: float(min(self.away, local - 1))}
                self.program.add_constraint(own, lower=local)
            terms.update((self.flows[arc], -1.0) for arc in self.arrivals.get(v, ()))
            self.program.add_constraint(terms, lower=local - besides)

    def _add_levels(self) -> None:
        """Require that a switch is deeper than its next hop (Miller, Tucker and Zemlin 1960)."""
        deepest = self.problem.limits.max_switches
        level = {
            v: self.program.add_variable(lower=hops, upper=1.0 if v == self.task.root else deepest)
            for v, hops in self.hops.items()
        }
        for arc, x in self.next_hop.items():
            v, u = self.problem.tail[arc], self.problem.head[arc]
            # Without the arc: level_v - level_u >= hops_v - deepest holds anyway.
            slack = deepest - self.hops[v]
            self.program.add_constraint(
                {level[v]: 1.0, level[u]: -1.0, x: -(1.0 + slack)}, lower=-slack
            )

    def _add_results(self) -> None:
        """Add the load of unicast results: one packet per worker below, on the way back."""
        for arc, x in self.next_hop.items():
            self.down[arc] = self.program.add_variable()
            most = min(self.model.room(self.problem.back[arc], self.task.share), self.task.workers)
            self.program.add_constraint({self.down[arc]: 1.0, x: -most}, upper=0.0)
            self.model.carried[self.problem.back[arc]][self.down[arc]] = self.task.share
        for v, arcs in self.departures.items():
            terms = {self.down[arc]: 1.0 for arc in arcs}
            terms.update((self.down[arc], -1.0) for arc in self.arrivals.get(v, ()))
            self.program.add_constraint(terms, lower=self.task.local[v], upper=self.task.local[v])

    def _add_exit(self) -> None:
        """Add the flows from the root to the server."""
        root, task = self.task.root, self.task
        terms, besides = self._taken_away(root)
        leaving = self.program.add_variable(
            lower=1.0, upper=min(task.max_flows, self.model.room(task.exit, task.share))
        )
        terms[leaving] = 1.0
        terms.update((self.flows[arc], -1.0) for arc in self.arrivals.get(root, ()))
        self.program.add_constraint(terms, lower=task.local[root] - besides)
        if task.workers > task.local[root]:
            # Redundant, but not for the relaxation: the rest of the tree must enter the root.
            into = {self.next_hop[arc]: 1.0 for arc in self.arrivals.get(root, ())}
            self.program.add_constraint(into, lower=1.0)
        self.model.carried[task.exit][leaving] = task.share

    def read(self, value: _Values) -> NumberedTree:
        """Return the tree of a solution."""
        task = self.task
        parents: Parents = {
            self.problem.tail[arc]: self.problem.head[arc]
            for arc, x in self.next_hop.items()
            if value(x) > 0.5
        }
        summing = {
            v
            for v, able in enumerate(task.can_sum)
            if able and (v not in self.sums or value(self.sums[v]) > 0.5)
        }
        return NumberedTree(self.problem.pruned(task, parents), frozenset(summing))
