"""The request to a planner, and the interface of planners."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum

from hopsum.collectives.choices import MOST_WEIGHT_STEPS, WEIGHT_STEPS
from hopsum.collectives.plan import WINDOW_EMBEDDED, JobPlan, PlanError, Results
from hopsum.network.model import Network
from hopsum.planning.model.allocation import Allocator
from hopsum.planning.model.demand import Model
from hopsum.planning.model.forest import ForestOptions
from hopsum.protocol.wire import HOPS_DEFAULT, LANES_DEFAULT, Reduction


class SwitchRole(StrEnum):
    """Role of the switches in a job."""

    IN_NETWORK = "in-network"
    """They sum wherever two flows meet ([001 S3][001])."""
    SERVER = "server"
    """They only forward: the parameter server sums every worker's flow. The baseline."""


class Method(StrEnum):
    """Effort of the planners multi-hop and embedding."""

    AUTO = "auto"
    """Candidates, and a short search if the bound allows faster trees. Embedding: exact for jobs of
    at most `embedding.planner.LARGEST` workers."""
    HEURISTIC = "heuristic"
    """A longer search. Embedding: search, and rounding of the program without integers."""
    EXACT = "exact"
    """The search, then a mixed-integer program that finds or proves the optimum."""


@dataclass(frozen=True, slots=True)
class WeightSteps:
    """The step of an embedding's weights ([002][]): they are multiples of `penalty` / `steps`.

    The penalty raises the step, so that a job has fewer topologies. Raises PlanError.
    """

    steps: int = WEIGHT_STEPS
    penalty: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.steps <= MOST_WEIGHT_STEPS:
            raise PlanError(f"weight-steps {self.steps}: expected 1 to {MOST_WEIGHT_STEPS}")
        if not 1 <= self.penalty <= self.steps:
            raise PlanError(
                f"penalty {self.penalty}: expected 1 to the number of weight steps, {self.steps}"
            )

    @property
    def units(self) -> int:
        """Return q: the weights, whose sum is 1, are multiples of 1 / q."""
        return self.steps // self.penalty


DEFAULT_WEIGHTS = WeightSteps()


@dataclass(frozen=True, slots=True)
class EmbeddingOptions:
    """Options of the planner embedding ([002][]).

    `models`: the models that may carry parts of the data. `auxiliary`: hosts that may help besides
    the workers (None: lightly loaded ones are chosen); with `relays` also in topologies of hosts,
    else only as servers of trees of switches. `tensor_bytes`: bytes exchanged in an iteration;
    weights do not depend on it. `period`: tensors between possible changes of the weights (0:
    never). `weights`: their step.
    """

    models: frozenset[Model] = frozenset(Model)
    auxiliary: tuple[str, ...] | None = None
    relays: bool = True
    tensor_bytes: int = 1 << 20
    period: int = 0
    weights: WeightSteps = DEFAULT_WEIGHTS


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """Requirements of a job.

    `servers`: the root of each tree; all workers twice: see `JobPlan.rooted`. `shares`: the
    fraction of the data on each tree (None: equal, but none on a host's second tree).
    `results` None: replicated by the switches if they sum, else one packet per worker (as a
    parameter server without switches' help sends them). `window`: slots of a tree at a switch, a
    power of two. `max_hops`: entries of a hop stack, one more than switches on a path. `forest`:
    options of the planners of several trees; multi-hop uses its gap, time limit and seed. `method`:
    how multi-hop searches for trees. `max_aggregating`: number of switches that may sum for the
    job, None: any. `before`: the plan of the previous epoch, None for a new job; the planner
    embedding takes from it what is fixed for a job's lifetime. That planner chooses its servers
    itself; with `recut` it chooses new weights, which take effect at a boundary. `integrity`: as of
    `JobPlan`.
    """

    job: int
    epoch: int
    workers: tuple[str, ...]
    servers: tuple[str, ...]
    algorithm: SwitchRole = SwitchRole.IN_NETWORK
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
