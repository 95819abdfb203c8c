"""The request to a planner, and the interface of planners."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum

from collectives.plan import WINDOW_EMBEDDED, JobPlan, Results
from network.model import Network
from planning.model.allocation import Allocator
from planning.model.demand import Model
from planning.model.forest import ForestOptions
from protocol.wire import HOPS_DEFAULT, LANES_DEFAULT, Reduction


class Algorithm(StrEnum):
    """Role of the switches in a job."""

    IN_NETWORK = "in-network"
    """They sum wherever two flows meet (001 S3)."""
    SERVER = "server"
    """They only forward: the parameter server sums every worker's own flow. The baseline."""


class Method(StrEnum):
    """Effort of the multi-hop planner."""

    AUTO = "auto"
    """Candidates, and a short search if the bound allows faster trees."""
    HEURISTIC = "heuristic"
    """A longer search."""
    EXACT = "exact"
    """The search, then a mixed-integer programme that finds or proves the optimum."""


@dataclass(frozen=True, slots=True)
class EmbeddingOptions:
    """Options of the planner embedding (002).

    `models`: what a part of the data may go over. `auxiliary`: hosts that may help besides the
    workers (None: it looks for lightly loaded ones); with `relays` also in topologies of hosts,
    else only as servers of trees of switches. `tensor_bytes`: what an iteration exchanges; weights
    do not depend on it. `period`: tensors after which weights may change (0: never).
    """

    models: frozenset[Model] = frozenset(Model)
    auxiliary: tuple[str, ...] | None = None
    relays: bool = True
    tensor_bytes: int = 1 << 20
    period: int = 0


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """Requirements of a job.

    `servers`: one tree for each, rooted there. `shares`: the part of the data on each tree (None:
    equal). `results` None: replicated by the switches if they sum, else one packet a worker (the
    honest parameter server). `window`: slots of a tree at a switch, a power of two. `max_hops`:
    entries of a hop stack, one more than switches on a path. `forest`: what is asked of planners of
    several trees; the planner multi-hop takes its gap, time limit and seed. `method`: how multi-hop
    looks for trees. `max_aggregating`: how many switches may sum for the job, None: any number.
    `before`: the plan of the epoch before, None for a new job; what is fixed for a job's life
    follows from it (planner embedding). That one chooses its servers itself; with `recut` it
    chooses weights anew, which hold from a boundary on. `integrity`: as of `JobPlan`.
    """

    job: int
    epoch: int
    workers: tuple[str, ...]
    servers: tuple[str, ...]
    algorithm: Algorithm = Algorithm.IN_NETWORK
    lanes: int = LANES_DEFAULT
    window: int = WINDOW_EMBEDDED
    results: Results | None = None
    reduction: Reduction = Reduction.SUM
    shares: tuple[float, ...] | None = None
    forest: ForestOptions = field(default_factory=ForestOptions)
    method: Method = Method.AUTO
    max_aggregating: int | None = None
    embedding: EmbeddingOptions = field(default_factory=EmbeddingOptions)
    before: JobPlan | None = None
    recut: bool = False
    max_hops: int = HOPS_DEFAULT
    integrity: bool = False


Planner = Callable[[Network, PlanRequest, Allocator], JobPlan]
"""A planner: a pure function except for the allocator, which it changes only on success."""
