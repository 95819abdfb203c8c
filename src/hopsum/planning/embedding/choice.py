"""The choice: units of weight for the candidates of all jobs at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from hopsum.collectives.choices import MOST_WEIGHT_STEPS
from hopsum.collectives.plan import PlanError
from hopsum.planning.embedding.candidates import Candidates
from hopsum.planning.embedding.capacities import Vector
from hopsum.planning.embedding.embedding_plan import JobEmbedding, Part
from hopsum.planning.model.demand import JobDemand, Model
from hopsum.planning.model.request import Method, WeightSteps

FINE = WeightSteps(MOST_WEIGHT_STEPS)
UNLIMITED = 2**31 - 1
Units = NDArray[np.int64]
"""Units of weight (columns,)."""


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """Options of an embedding plan.

    `weights`: their step. `least_gain`: the least relative reduction of the objective by each
    topology beyond a job's first. `max_topologies`: per job. `gap`: relative gap at which an answer
    is good enough; `time_limit`: seconds of planning; `nodes`: limit of branch-and-bound nodes, for
    an effort that does not depend on the machine.
    """

    weights: WeightSteps = FINE
    least_gain: float = 0.0
    max_topologies: int | None = None
    method: Method = Method.AUTO
    gap: float = 0.01
    time_limit: float = 10.0
    seed: int = 0
    nodes: int = UNLIMITED

    def __post_init__(self) -> None:
        if self.max_topologies is not None and self.max_topologies < 1:
            raise PlanError(f"at most {self.max_topologies} topologies a job: expected 1 or more")
        if not self.least_gain >= 0 or not self.gap >= 0 or not self.time_limit > 0:
            raise PlanError(
                f"least gain {self.least_gain}, gap {self.gap}, time limit {self.time_limit}: "
                "expected 0 or more, 0 or more, and above 0 s"
            )

    @property
    def units(self) -> int:
        """Return q: the weights are multiples of 1 / q."""
        return self.weights.units


@dataclass(frozen=True, slots=True)
class Group:
    """Candidates that share `units` of a job's data, over these models."""

    job: int
    models: frozenset[Model]
    units: int


def groups_of(demands: Sequence[JobDemand], units: int) -> tuple[Group, ...]:
    """Return a group for each job, or one for each model of a job with `shares`."""
    groups = []
    for number, demand in enumerate(demands):
        if demand.shares is None:
            groups.append(Group(number, demand.models, units))
        else:
            for model, share in demand.shares.items():
                if share:
                    groups.append(Group(number, frozenset({model}), int(share * units)))
    return tuple(groups)


class Columns:
    """All candidates of all jobs at one moment, as a matrix.

    `times` (columns, rows): seconds that one unit of weight takes of each row. `group` and `job`
    (columns,): the numbers of each column's. `slots` (columns, switches): what it holds if used.
    """

    def __init__(
        self, jobs: Sequence[Candidates], groups: Sequence[Group], options: PlanOptions
    ) -> None:
        self.jobs, self.groups, self.options = jobs, groups, options
        self.names: list[tuple[int, int]] = []
        """Job, and index in its `found`."""
        number = {(g.job, model): i for i, g in enumerate(groups) for model in g.models}
        group, rows = [], []
        for job, candidates in enumerate(jobs):
            for place, topology in enumerate(candidates.found):
                if (job, topology.model) in number:
                    self.names.append((job, place))
                    group.append(number[job, topology.model])
                    rows.append(candidates.times[place])
        self.times: NDArray[np.float64] = np.array(rows) / options.units
        self.group = np.array(group)
        self.job = np.array([groups[g].job for g in group])
        resources = jobs[0].resources
        self.switches = list(resources.slots)
        self.free_slots = np.array([resources.slots[name] for name in self.switches], dtype=int)
        place_of = {name: i for i, name in enumerate(self.switches)}
        self.slots = np.zeros((len(self.names), len(self.switches)), dtype=int)
        for column, (job, place) in enumerate(self.names):
            for switch in jobs[job].found[place].slots_at:
                self.slots[column, place_of[switch]] = jobs[job].demand.window

    def __len__(self) -> int:
        return len(self.names)

    def loads(self, units: Units) -> Vector:
        """Return the seconds (rows,) that each row is busy."""
        used = np.flatnonzero(units)
        loads: Vector = units[used].astype(float) @ self.times[used]
        return loads

    def carried(self, before: Columns, units: Units) -> Units:
        """Return units of a smaller set of columns as units of these columns."""
        places = {name: column for column, name in enumerate(self.names)}
        moved = np.zeros(len(self), dtype=np.int64)
        for column in np.flatnonzero(units):
            moved[places[before.names[column]]] = units[column]
        return moved

    def objective(self, units: Units, reference: float) -> float:
        """Return the busiest row's seconds, plus `least_gain` * `reference` a further topology."""
        further = int(np.count_nonzero(units)) - len(self.groups)
        worst = float(self.loads(units).max(initial=0.0))
        return worst + self.options.least_gain * reference * further

    def holds(self, units: Units) -> bool:
        """Return whether slots and numbers of topologies are within limits."""
        used = units > 0
        if (self.slots[used].sum(axis=0) > self.free_slots).any():
            return False
        most = self.options.max_topologies
        return most is None or bool((np.bincount(self.job[used]) <= most).all())

    def embeddings(self, units: Units) -> tuple[JobEmbedding, ...]:
        """Return the topologies that the units stand for, the heaviest of a job first."""
        parts: list[list[Part]] = [[] for _ in self.jobs]
        for column in np.flatnonzero(units):
            job, place = self.names[column]
            weight = Fraction(int(units[column]), self.options.units)
            parts[job].append(Part(self.jobs[job].found[place], weight))
        return tuple(
            JobEmbedding(job.demand, tuple(sorted(found, key=lambda part: -part.weight)))
            for job, found in zip(self.jobs, parts, strict=True)
        )
