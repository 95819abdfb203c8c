"""Embedding plans for one or several jobs at once ([002][])."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hopsum.collectives.plan import PlanError
from hopsum.planning.embedding.candidates import Candidates
from hopsum.planning.embedding.capacities import Capacities
from hopsum.planning.embedding.choice import Columns, Group, PlanOptions, Units, groups_of
from hopsum.planning.embedding.embedding_plan import (
    Embedding,
    check_embedding,
)
from hopsum.planning.embedding.heuristic import bound_of, round_weights, search
from hopsum.planning.embedding.logical_topologies import Paths
from hopsum.planning.embedding.program import relax, solve_integers
from hopsum.planning.embedding.sparsify import sparsify
from hopsum.planning.model.demand import JobDemand, Model, Resources, check_demands
from hopsum.planning.model.forest import Verdict
from hopsum.planning.model.request import Method

LARGEST = 80
"""Total number of workers above which the heuristic is used."""
EVERY = 400
"""Maximum topologies of a job, without trees of switches, for all to become candidates."""
HEURISTIC_PART = 0.3
"""Maximum fraction of the time limit that passes before the program starts."""


def plan_embedding(
    resources: Resources, demands: Sequence[JobDemand], options: PlanOptions | None = None
) -> Embedding:
    """Plan all jobs at once, minimizing the time of the busiest link or node (max-min over jobs).

    PlanError for demands that cannot be met; it names them and the reason.
    """
    options = options or PlanOptions()
    started = time.monotonic()
    check_demands(resources, demands, options.units)
    capacities = Capacities(resources)
    paths = Paths(resources.network)
    jobs = [Candidates(capacities, demand, paths) for demand in demands]
    groups = groups_of(demands, options.units)
    workers = sum(len(demand.workers) for demand in demands)
    exact = options.method is Method.EXACT or (options.method is Method.AUTO and workers <= LARGEST)
    part = HEURISTIC_PART if exact else 1.0
    columns, units = search(jobs, groups, options, started + part * options.time_limit)
    answer = _Answer(
        columns, units, bound_of(columns, units), None, "program" if exact else "heuristic"
    )
    if not _good_enough(answer, options):
        deadline = started + options.time_limit
        answer = _by_program(jobs, groups, options, answer, deadline, integers=exact)
    if answer.units is None:
        raise PlanError(
            f"jobs {', '.join(str(demand.job) for demand in demands)}: no choice of topologies "
            "keeps within the free slots, the weights asked for and the topologies allowed; use "
            "smaller windows, other models, or allow more topologies"
        )
    return _embedding(capacities, answer, options, started)


@dataclass(frozen=True)
class _Answer:
    columns: Columns
    units: Units | None
    bound: float
    program_bound: float | None
    method: str
    complete: bool = False
    """Whether all topologies of the jobs' models were candidates."""


def _good_enough(answer: _Answer, options: PlanOptions) -> bool:
    if answer.units is None:
        return False
    seconds = float(answer.columns.loads(answer.units).max(initial=0.0))
    return answer.columns.objective(answer.units, seconds) <= answer.bound * (1 + options.gap)


def _by_program(
    jobs: Sequence[Candidates],
    groups: Sequence[Group],
    options: PlanOptions,
    first: _Answer,
    deadline: float,
    *,
    integers: bool,
) -> _Answer:
    """Round the relaxed program; if that is not good enough, solve it with `integers`."""
    method = "program" if integers else "heuristic"
    scale = float(first.columns.times.max()) * options.units
    if first.units is not None:
        scale = float(first.columns.loads(first.units).max())
    columns, relaxed = relax(jobs, groups, options, scale, deadline)
    units = None if first.units is None else columns.carried(first.columns, first.units)
    now = time.monotonic()
    rounded = round_weights(columns, relaxed.weights, now + (deadline - now) / 2)
    if rounded is not None and (
        units is None or columns.objective(rounded, scale) < columns.objective(units, scale)
    ):
        units = rounded
    bound = max(first.bound, relaxed.bound)
    answer = _Answer(columns, units, bound, None, method)
    if not integers or _good_enough(answer, options):
        return answer
    every = [candidates.complete(EVERY) for candidates in jobs]
    complete = all(every)
    if not complete:
        for candidates in jobs:
            candidates.vary(relaxed.prices, options.seed)
    columns, relaxed = relax(jobs, groups, options, scale, deadline)
    units = None if units is None else columns.carried(answer.columns, units)
    bound = max(bound, relaxed.bound)
    left = max(0.1, deadline - time.monotonic())
    chosen = solve_integers(columns, relaxed, units, scale, left)
    best = units
    if chosen.units is not None and (
        units is None or columns.objective(chosen.units, scale) < columns.objective(units, scale)
    ):
        best = chosen.units
    return _Answer(columns, best, bound, max(bound, chosen.bound), method, complete)


def _least(resources: Resources, demands: Sequence[JobDemand]) -> float:
    """Return a lower bound in seconds for any topology: workers send data and receive sums."""
    waiting: dict[str, int] = {}
    for demand in demands:
        for worker in demand.workers if len(demand.workers) > 1 else ():
            waiting[worker] = waiting.get(worker, 0) + demand.bits
    times = [bits / rate for host, bits in waiting.items() if (rate := resources.host_rate(host))]
    return float(max(times, default=0))


def _embedding(
    capacities: Capacities, answer: _Answer, options: PlanOptions, started: float
) -> Embedding:
    assert answer.units is not None
    units = sparsify(answer.columns, answer.units)
    jobs = answer.columns.embeddings(units)
    check_embedding(capacities.resources, jobs, options.units)
    times = capacities.exact_times(
        [(job.demand, part.topology, part.weight) for job in jobs for part in job.parts]
    )
    busiest = max(range(len(times)), key=times.__getitem__)
    seconds = times[busiest]
    scale = float(seconds)
    program_bound = answer.bound if answer.program_bound is None else answer.program_bound
    reached = answer.columns.objective(units, scale) if scale else 0.0
    spent = time.monotonic() - started
    slack = 1e-12 * scale
    enough = 1 + options.gap
    least = _least(capacities.resources, [job.demand for job in jobs])
    verdict = Verdict.FEASIBLE
    if reached <= (program_bound if answer.complete else least) * enough + slack:
        verdict = Verdict.OPTIMAL
    elif reached <= answer.bound * enough + slack:
        # The bound holds for all topologies except trees of switches.
        switched = any(Model.IN_NETWORK in job.demand.models for job in jobs)
        verdict = Verdict.BEST_OF_CANDIDATES if switched else Verdict.OPTIMAL
    elif reached <= program_bound * enough + slack:
        verdict = Verdict.BEST_OF_CANDIDATES
    elif spent >= options.time_limit:
        verdict = Verdict.TIME_LIMIT
    return Embedding(
        jobs=jobs,
        seconds=seconds,
        busiest=capacities.names[busiest] if seconds else "",
        objective=reached,
        bound=min(answer.bound, scale),
        program_bound=min(program_bound, reached),
        complete=answer.complete,
        verdict=verdict,
        method=answer.method,
        candidates=int(np.size(answer.units)),
        spent=spent,
    )
