"""The multi-hop planner: a tree for each server, flows summed where they meet ([001 S1][001]).

`tree_problem` defines which trees are allowed and how fast they are. First choice is the best of
some candidates (`multi_hop_candidates`). Where the bound (`multi_hop_bound`) leaves room, or few
switches may sum, a search (`multi_hop_heuristic`) looks for faster trees; the method `exact` then
solves a mixed-integer program (`multi_hop_exact`) for anything faster. A switch without free
slots passes flows on like one that cannot sum; only if no worker's own switch has any left, the
job is refused.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from fractions import Fraction
from random import Random
from typing import NoReturn

from hopsum.collectives.plan import JobPlan, PlanError, Results
from hopsum.network.model import Network, NetworkError
from hopsum.network.units import format_si
from hopsum.planning.model.allocation import Allocator
from hopsum.planning.model.forest import Certificate, Verdict
from hopsum.planning.model.job_plans import check_request, job_plan
from hopsum.planning.model.linear_program import Status
from hopsum.planning.model.request import Method, PlanRequest, SwitchRole
from hopsum.planning.steiner.multi_hop_answer import MultiHopAnswer
from hopsum.planning.steiner.multi_hop_bound import (
    TimeBound,
    least_server_flows,
    next_time,
    time_bound,
)
from hopsum.planning.steiner.multi_hop_candidates import candidate_trees
from hopsum.planning.steiner.multi_hop_exact import solve_exactly
from hopsum.planning.steiner.multi_hop_heuristic import (
    Effort,
    drop_detours,
    given_other_trees,
    improve,
    improve_together,
)
from hopsum.planning.steiner.multi_hop_homes import choose_homes
from hopsum.planning.steiner.tree_problem import (
    SLACK,
    Limits,
    NumberedTree,
    Problem,
    TreeTask,
    build_model,
    exact_time,
    route_of,
)
from hopsum.protocol.wire import MAX_CHILDREN

_SHORT = Effort(trials=6)
_CERTAIN = 1e-6


def plan_multi_hop(network: Network, request: PlanRequest, allocator: Allocator) -> JobPlan:
    """Plan a job; PlanError gives the reason if that is impossible."""
    return plan_of_routes(network, request, solve_multi_hop(network, request, allocator), allocator)


def plan_of_routes(
    network: Network, request: PlanRequest, answer: MultiHopAnswer, allocator: Allocator
) -> JobPlan:
    """Return the job's plan on given routes; PlanError if slots or groups run out."""
    roots = len(answer.routes)
    second = len(request.servers) - roots
    shares = request.shares or (*[1 / roots] * roots, *[0.0] * second)
    routes = (*answer.routes, *answer.routes[:second])
    return job_plan(network, request, routes, shares, _results(request), allocator)


def solve_multi_hop(network: Network, request: PlanRequest, allocator: Allocator) -> MultiHopAnswer:
    """Find routes for a job, and a bound on all routes. Reserves nothing.

    PlanError if there are none, with the reason. The same request gives the same routes, unless
    the verdict is TIME_LIMIT.
    """
    check_request(network, request, roots_at_workers=True)
    if request.shares is not None and len(request.shares) != len(request.servers):
        raise PlanError(f"{len(request.shares)} shares for {len(request.servers)} servers")
    if request.max_aggregating is not None and request.max_aggregating < 0:
        raise PlanError(f"max_aggregating {request.max_aggregating}: expected 0 or more")
    return solve_tasks(
        network,
        _tasks(network, request),
        _limits(network, request, allocator),
        method=request.method,
        gap=request.forest.gap,
        time_limit=request.forest.time_limit,
        seed=request.forest.seed,
    )


def solve_tasks(
    network: Network,
    tasks: Sequence[TreeTask],
    limits: Limits,
    *,
    method: Method = Method.AUTO,
    gap: float = 0.001,
    time_limit: float = 10.0,
    seed: int = 0,
) -> MultiHopAnswer:
    """Find trees for several tasks of one or more jobs that share links.

    The busiest link determines the time of all of them. `gap`: relative gap to the bound at which
    to stop; `time_limit`: seconds for the exact program. Of hosts with several links the trees
    take those that are best together, see `choose_homes`. PlanError, with the reason, if there are
    no trees.
    """
    # What failures have cut off must not affect anything, not even the length of the search.
    network = network.around(host for task in tasks for host in (task.server, *task.workers))

    def solve(tasks: Sequence[TreeTask], method: Method, time_limit: float) -> MultiHopAnswer:
        return _solve_attached(network, tasks, limits, method, gap, time_limit, seed)

    return choose_homes(network, tasks, solve, method, gap, time_limit)


def _solve_attached(
    network: Network,
    tasks: Sequence[TreeTask],
    limits: Limits,
    method: Method,
    gap: float,
    time_limit: float,
    seed: int,
) -> MultiHopAnswer:
    """Find trees for tasks, each host attached to the switch that its task says."""
    started = time.perf_counter()
    search = _Search(network, tasks, limits, method, seed)
    chosen = search.run()
    reached = float("inf") if chosen is None else search.problem.time(chosen)
    bound = time_bound(search.problem, reached)
    kind = "cut" if bound.cut else "links of hosts"
    verdict = Verdict.FEASIBLE
    near = max(gap, _CERTAIN)
    if method is Method.EXACT and not _is_near(reached, bound.time, near):
        left = max(0.1, time_limit - (time.perf_counter() - started))
        exact = solve_exactly(
            search.problem,
            below=reached * (1 - near),
            at_least=bound.time,
            gap=near,
            time_limit=left,
            seed=seed,
        )
        if exact.status is Status.TIME_LIMIT:
            verdict = Verdict.TIME_LIMIT
        if exact.chosen is not None:
            chosen = drop_detours(search.problem, exact.chosen)
            reached = search.problem.time(chosen)
        if exact.bound > bound.time * (1 + SLACK):
            # There may be no possible time of a link between the bound and the time reached.
            least = next_time(search.problem, exact.bound) if len(tasks) == 1 else exact.bound
            bound, kind = TimeBound(min(least, reached)), "mixed-integer program"
        if chosen is None and exact.status is Status.INFEASIBLE:
            search.explain("there is none (proved by a mixed-integer program)")
    if chosen is None:
        search.explain("none was found; the method exact looks further")
    if _is_near(reached, bound.time, near):
        verdict = Verdict.OPTIMAL
    routes = tuple(
        route_of(network, search.problem, number, task, one)
        for number, (task, one) in enumerate(zip(tasks, chosen, strict=True))
    )
    rate = 1 / exact_time(network, zip(tasks, routes, strict=True))
    return MultiHopAnswer(
        routes,
        rate,
        search.certificate(rate, reached, bound, kind),
        verdict,
        time.perf_counter() - started,
    )


def _is_near(reached: float, bound: float, gap: float) -> bool:
    """Return whether a time reaches the bound, or is within a relative gap of it."""
    return reached * (1 - gap) <= bound * (1 + SLACK)


class _Search:
    """The heuristic part: tasks one by one, then each again given the others."""

    def __init__(
        self,
        network: Network,
        tasks: Sequence[TreeTask],
        limits: Limits,
        method: Method,
        seed: int,
    ) -> None:
        self.network, self.tasks, self.method = network, tasks, method
        _check_attached(network, tasks)
        self.problem = build_model(network, tasks, limits)
        self.random = Random(seed)

    def run(self) -> tuple[NumberedTree, ...] | None:
        """Return trees within the limits; None if none were found."""
        problem = self.problem
        found: list[NumberedTree | None] = [None] * len(self.tasks)
        for number, task in enumerate(self.tasks):
            alone = given_other_trees(problem, found, number)
            found[number] = self._one(alone, task)
            if found[number] is None:
                return None
        chosen = tuple(one for one in found if one is not None)
        if len(chosen) > 1 and self.method is Method.HEURISTIC:
            bound = time_bound(problem, problem.time(chosen)).time
            chosen = improve_together(problem, chosen, bound, self.random)
        return chosen

    def _one(self, alone: Problem, task: TreeTask) -> NumberedTree | None:
        starts = candidate_trees(self.network, alone, task)
        first = next((one for one in starts if alone.fits([one])), None)
        if first is None:
            self._check_server_flows()
        reached = float("inf") if first is None else alone.time([first])
        bound = time_bound(alone, reached).time
        if first is not None and reached <= bound * (1 + SLACK):
            return first
        effort = Effort() if self.method is Method.HEURISTIC else _SHORT
        better = improve(alone, starts, bound, self.random, effort)
        if better is None or alone.time([better]) >= reached * (1 - SLACK):
            return first
        return drop_detours(alone, (better,))[0]

    def explain(self, otherwise: str) -> NoReturn:
        """Return a message that says why there are no trees."""
        self._check_server_flows()
        servers = ", ".join(task.server for task in self.tasks)
        raise PlanError(
            f"trees to server {servers} of at most {self.problem.limits.max_switches} switches' "
            f"depth, with at most {self.tasks[0].max_flows} flows at the server: {otherwise}. "
            "Let more switches aggregate, or use several servers"
        )

    def _check_server_flows(self) -> None:
        """Raise PlanError if any tree leads more flows to a server than it can take."""
        for task, numbered in zip(self.tasks, self.problem.tasks, strict=True):
            least = least_server_flows(self.problem.variant((numbered,)), numbered)
            if least > numbered.max_flows:
                raise PlanError(
                    f"{least} flows would reach server {task.server}; at most "
                    f"{numbered.max_flows} can. Let more switches aggregate, use several servers, "
                    "or the algorithm `server`"
                )

    def certificate(
        self, rate: Fraction, reached: float, bound: TimeBound, kind: str
    ) -> Certificate:
        """Return the certificate of the bound."""
        exact = rate if reached <= bound.time * (1 + _CERTAIN) else 1 / Fraction(bound.time)
        names = tuple(self.problem.switches[v] for v in bound.cut)
        shown = format_si(Fraction(exact))
        text = {
            "cut": f"at more than {shown} the flows of the workers at or behind "
            f"{', '.join(names[:8])}{', ...' if len(names) > 8 else ''} do not fit the links "
            "out of there and what switches can sum",
            "links of hosts": f"some host's own link carries no more than {shown}",
        }.get(kind, f"HiGHS proved that no trees carry more than {shown}")
        return Certificate(kind, max(exact, rate), (names,) if names else (), text)


def _results(request: PlanRequest) -> Results:
    if request.results is not None:
        return request.results
    in_network = request.algorithm is SwitchRole.IN_NETWORK
    return Results.REPLICATED if in_network else Results.UNICAST


def _tasks(network: Network, request: PlanRequest) -> tuple[TreeTask, ...]:
    in_network = request.algorithm is SwitchRole.IN_NETWORK
    sums = frozenset(
        name for name, switch in network.switches.items() if in_network and switch.aggregates
    )
    # A second tree at a root takes the way of the first.
    servers = tuple(dict.fromkeys(request.servers))
    equal = Fraction(1, len(servers))
    shares = [Fraction(share) for share in request.shares or ()][: len(servers)]
    shares = shares or [equal] * len(servers)
    return tuple(
        TreeTask(
            server,
            request.workers,
            sums,
            share,
            _results(request),
            MAX_CHILDREN - (server in request.workers) if in_network else None,
        )
        for server, share in zip(servers, shares, strict=True)
    )


def _limits(network: Network, request: PlanRequest, allocator: Allocator) -> Limits:
    able = [name for name, switch in network.switches.items() if switch.aggregates]
    ranges = {name: allocator.room(name, request.job, request.window) for name in able}
    near = {peer for host in request.workers for peer in network.ports(host).values()}
    first = [ranges[name] for name in able if name in near]
    if first and not any(first):
        # No workers' flows would be summed where they first meet, as in the baseline.
        # With all switches to choose from, the allocator names those whose slots are in use.
        ranges = {}
    height = request.forest.max_height
    return Limits(
        max_summing=request.max_aggregating,
        ranges=ranges,
        # A path from a host to the server has one more link than switches.
        max_switches=(request.max_hops if height is None else min(request.max_hops, height)) - 1,
        max_hops=request.max_hops,
    )


def _check_attached(network: Network, tasks: Sequence[TreeTask]) -> None:
    for task in tasks:
        for host in (task.server, *task.workers):
            try:
                switch = task.access(network, host)
            except NetworkError as error:
                raise PlanError(str(error)) from None
            if switch not in network.switches:
                raise PlanError(f"host {host!r} is attached to {switch!r}, which is not a switch")
