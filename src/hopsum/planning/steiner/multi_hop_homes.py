"""Which of their links hosts with several use, on each tree of the multi-hop planner.

Few combinations are all tried. Of many, a descent changes one host on one tree at a time, while
that relieves the busiest link, or the next busiest ones.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import product
from math import prod

from hopsum.collectives.plan import PlanError, Results
from hopsum.network.model import Network
from hopsum.network.units import format_si
from hopsum.planning.model.forest import Certificate, Verdict
from hopsum.planning.model.request import Method
from hopsum.planning.steiner.multi_hop_answer import MultiHopAnswer
from hopsum.planning.steiner.tree_problem import SLACK, TreeTask, link_times

MOST_TRIED = 64
"""Combinations that are all tried."""
MOST_SOLVED = 256
"""Combinations that a descent tries at most."""

Solve = Callable[[Sequence[TreeTask], Method, float], MultiHopAnswer]
"""Finds routes for tasks whose homes are given, by a method, in a time (s). Raises PlanError."""
Times = tuple[Fraction, ...]


@dataclass(frozen=True, slots=True)
class _Choice:
    """The switches that a host may be attached to on the tree of a task, the fastest link first."""

    task: int
    host: str
    homes: tuple[str, ...]


def choose_homes(
    network: Network,
    tasks: Sequence[TreeTask],
    solve: Solve,
    method: Method,
    gap: float,
    time_limit: float,
) -> MultiHopAnswer:
    """Return the best answer over the links of hosts with several, with a bound over all of them.

    PlanError of the first combination if no combination has an answer.
    """
    started = time.perf_counter()
    choices = tuple(_choices(network, tasks))
    if not choices:
        return solve(tasks, method, time_limit)
    if prod(len(choice.homes) for choice in choices) <= MOST_TRIED:
        found = _try_all(network, tasks, choices, solve, method, gap, time_limit)
    else:
        found = _descend(network, tasks, choices, solve, method, gap, time_limit)
    return replace(found, seconds=time.perf_counter() - started)


def _choices(network: Network, tasks: Sequence[TreeTask]) -> Iterator[_Choice]:
    for number, task in enumerate(tasks):
        for host in dict.fromkeys((task.server, *task.workers)):
            if host in task.homes or host not in network.hosts:
                continue
            near = [peer for peer in network.ports(host).values() if peer in network.switches]
            if len(near) > 1:
                home = network.access_switch(host)
                others = (peer for peer in near if peer != home)
                yield _Choice(number, host, (home, *others))


def _attached(
    tasks: Sequence[TreeTask], choices: Sequence[_Choice], homes: Sequence[str]
) -> tuple[TreeTask, ...]:
    """Return the tasks with a home for each choice."""
    of_task: dict[int, dict[str, str]] = {}
    for choice, home in zip(choices, homes, strict=True):
        of_task.setdefault(choice.task, {})[choice.host] = home
    return tuple(
        replace(task, homes={**task.homes, **of_task.get(number, {})})
        for number, task in enumerate(tasks)
    )


def _try_all(
    network: Network,
    tasks: Sequence[TreeTask],
    choices: Sequence[_Choice],
    solve: Solve,
    method: Method,
    gap: float,
    time_limit: float,
) -> MultiHopAnswer:
    """Try all combinations; the bound is the largest one of any.

    The exact method proves only those whose bound leaves room above the best answer.
    """
    limit = _links_bound(network, tasks)
    quick = Method.AUTO if method is Method.EXACT else method
    best: tuple[MultiHopAnswer, Times] | None = None
    solved: list[tuple[MultiHopAnswer, tuple[TreeTask, ...]]] = []
    reason: PlanError | None = None
    for homes in product(*(choice.homes for choice in choices)):
        attached = _attached(tasks, choices, homes)
        try:
            answer = solve(attached, quick, time_limit)
        except PlanError as error:
            reason = reason or error
            continue
        solved.append((answer, attached))
        best = _better(best, answer, _times(network, attached, answer))
        if limit is not None and best[0].rate >= limit.bound:
            return replace(best[0], certificate=limit, verdict=Verdict.OPTIMAL)
    if best is None:
        assert reason is not None
        raise reason
    if method is Method.EXACT:
        deadline = time.perf_counter() + time_limit
        solved.sort(key=lambda pair: -pair[0].bound)
        for i, (answer, attached) in enumerate(solved):
            if _is_near(best[0], answer.bound, gap):
                break
            left = max(0.1, deadline - time.perf_counter())
            proved = solve(attached, method, left)
            solved[i] = proved, attached
            best = _better(best, proved, _times(network, attached, proved))
    bounding = max((answer for answer, _ in solved), key=lambda answer: answer.bound)
    verdict = Verdict.OPTIMAL
    if not _is_near(best[0], bounding.bound, gap):
        timed_out = any(answer.verdict is Verdict.TIME_LIMIT for answer, _ in solved)
        verdict = Verdict.TIME_LIMIT if timed_out else Verdict.FEASIBLE
    return replace(best[0], certificate=bounding.certificate, verdict=verdict)


def _descend(
    network: Network,
    tasks: Sequence[TreeTask],
    choices: Sequence[_Choice],
    solve: Solve,
    method: Method,
    gap: float,
    time_limit: float,
) -> MultiHopAnswer:
    """Change one choice at a time while that makes the busiest links less busy."""
    limit = _links_bound(network, tasks)
    quick = Method.AUTO if method is Method.EXACT else method
    homes = [choice.homes[0] for choice in choices]
    first = _attached(tasks, choices, homes)
    answer = solve(first, quick, time_limit)
    best = answer, _times(network, first, answer)
    tried, changed = 1, True
    while changed and tried < MOST_SOLVED and not _reaches(best[0], limit):
        changed = False
        for i, choice in enumerate(choices):
            for home in choice.homes:
                if home == homes[i] or tried >= MOST_SOLVED:
                    continue
                tried += 1
                other = [*homes[:i], home, *homes[i + 1 :]]
                attached = _attached(tasks, choices, other)
                try:
                    answer = solve(attached, quick, time_limit)
                except PlanError:
                    continue
                better = _better(best, answer, _times(network, attached, answer))
                if better is not best:
                    best, homes, changed = better, other, True
    found = best[0]
    if method is Method.EXACT and not _reaches(found, limit):
        found = solve(_attached(tasks, choices, homes), method, time_limit)
    if limit is None:
        text = f"with these links of hosts, {found.certificate.text}"
        limit = replace(found.certificate, text=text)
    verdict = Verdict.OPTIMAL if _is_near(found, limit.bound, gap) else Verdict.FEASIBLE
    return replace(found, certificate=limit, verdict=verdict)


def _is_near(answer: MultiHopAnswer, bound: Fraction, gap: float) -> bool:
    # Bounds are computed in floating point.
    return answer.rate * (1 + Fraction(SLACK)) >= bound * (1 - Fraction(gap))


def _reaches(answer: MultiHopAnswer, limit: Certificate | None) -> bool:
    return limit is not None and answer.rate >= limit.bound


def _better(
    best: tuple[MultiHopAnswer, Times] | None, answer: MultiHopAnswer, times: Times
) -> tuple[MultiHopAnswer, Times]:
    """Return the answer whose busiest links are less busy; of equal ones the first."""
    if best is None or times < best[1]:
        return answer, times
    return best


def _times(network: Network, tasks: Sequence[TreeTask], answer: MultiHopAnswer) -> Times:
    return link_times(network, zip(tasks, answer.routes, strict=True))


def _links_bound(network: Network, tasks: Sequence[TreeTask]) -> Certificate | None:
    """Return the rate that the links of some host allow, over all its links; None: any rate.

    A tree uses one link of a host, which carries its share in each direction; all trees together
    no more than all of the host's links.
    """
    rates: dict[str, list[Fraction]] = {}
    loads: dict[str, list[Fraction]] = {}
    for task in tasks:
        down = len(task.remote) if task.results is Results.UNICAST else 1
        for host, load in {**dict.fromkeys(task.remote, 1), task.server: down}.items():
            loads.setdefault(host, []).append(task.share * load)
    for host in loads:
        links = [network.link(host, peer) for peer in network.ports(host).values()]
        if links and all(link.bandwidth is not None for link in links):
            rates[host] = [Fraction(str(link.bandwidth)) for link in links]
    bounds: Mapping[str, Fraction] = {
        host: min(max(found) / max(loads[host]), sum(found, Fraction(0)) / sum(loads[host]))
        for host, found in rates.items()
        if sum(loads[host])
    }
    if not bounds:
        return None
    host = min(bounds, key=lambda name: bounds[name])
    text = f"the links of host {host} carry no more than {format_si(bounds[host])}"
    return Certificate("links of hosts", bounds[host], ((host,),), text)
