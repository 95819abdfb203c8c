"""Results of planners of trees: trees with rates, a bound, and its certificate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from math import inf

from hopsum.collectives.algorithms.trees import SharedTree
from hopsum.collectives.plan import PlanError
from hopsum.collectives.tree import Tree
from hopsum.planning.model.graph import Edge, PlanningGraph

KEEP = Fraction(95, 100)
"""Fraction of the throughput that mtree keeps when it lowers its trees."""
MOST_GAP = 1e6
MOST_SEED = (1 << 31) - 1
"""Maximum seed of the solver."""


class Verdict(StrEnum):
    """Status of a plan."""

    OPTIMAL = "optimal"
    """Within the requested gap of the bound."""
    BEST_OF_CANDIDATES = "best of the candidates"
    """Best choice of the known candidates; others might be better."""
    FEASIBLE = "feasible"
    """The method is complete; `bound` limits the distance from the optimum."""
    TIME_LIMIT = "time limit"
    """The time limit was reached: another run may find another plan."""


@dataclass(frozen=True)
class RatedTree(Tree):
    """A tree that carries `rate` of the all-reduce up to the root and down again.

    An all-reduce at rate r sends r in both directions of each edge (every node of `parents`
    combines, or forwards a single flow), unless `flows` says that several flows cross an edge
    upwards. `flows`: child end of an edge -> number of flows that leave it upwards, where it is not
    1. A planner's tree may be none: `forest_checker` says what is wrong with it.
    """

    rate: Fraction
    flows: Mapping[str, int]

    def __post_init__(self) -> None:
        """Leave the check to `forest_checker`."""

    def delay(self, graph: PlanningGraph) -> float:
        """Return the latency in seconds from the farthest node to the root."""
        return max((self._delay(node, graph) for node in self.parents), default=0.0)

    def _delay(self, node: str, graph: PlanningGraph) -> float:
        delay = 0.0
        while node != self.root:
            delay += graph.latency[graph.edge(node, self.parents[node])]
            node = self.parents[node]
        return delay

    def loads(self, graph: PlanningGraph) -> dict[Edge, Fraction]:
        """Return the tree's use of each edge's capacity in its busier direction."""
        return {
            graph.edge(node, parent): self.rate * self.flows.get(node, 1)
            for node, parent in self.parents.items()
        }


@dataclass(frozen=True, slots=True)
class Certificate:
    """The reason why no plan of the planner's kind is faster than `bound`.

    `kind` names the argument (`partition`, `cut`, `linear program`, `enumeration`); `parts`: the
    sets of nodes it is about; `text`: the argument in a sentence, with its numbers.
    """

    kind: str
    bound: Fraction
    parts: tuple[tuple[str, ...], ...]
    text: str


@dataclass(frozen=True)
class Forest:
    """The result of a tree planner. Rates are in the units of the graph's capacities."""

    planner: str
    trees: tuple[RatedTree, ...]
    certificate: Certificate
    verdict: Verdict
    seconds: float

    @property
    def throughput(self) -> Fraction:
        """Return the rate of the whole all-reduce: of one worker's data, in capacity units."""
        return sum((tree.rate for tree in self.trees), Fraction(0))

    @property
    def shared_trees(self) -> tuple[SharedTree, ...]:
        """Return the trees for a schedule, with data in proportion to the rates."""
        return tuple(SharedTree(Tree(tree.root, tree.parents), tree.rate) for tree in self.trees)

    @property
    def bound(self) -> Fraction:
        """Return the rate that no plan of the planner's kind exceeds."""
        return self.certificate.bound

    @property
    def gap(self) -> float:
        """Return the relative gap to the bound: 0 is proved optimal."""
        return float(1 - self.throughput / self.bound) if self.bound else 0.0


@dataclass(frozen=True, slots=True)
class ForestOptions:
    """Options of a tree planner.

    `max_trees`: K. `max_height`: H, in edges from any node to its root; `max_delay`: the same in
    seconds of latency. `min_rate`: r, of each tree, in the units of the capacities. `gap`: stop
    within this relative gap of the bound. `time_limit`: seconds.

    For the planner mtree alone: `tree_bandwidth`: b, what a tree takes of its edges while trees
    grow, in the units of the capacities (None: several are tried); `keep`: the fraction of the
    throughput to keep when trees are made lower ([000 step 2][000]; the paper's rho).
    """

    max_trees: int | None = None
    max_height: int | None = None
    max_delay: float | None = None
    min_rate: Fraction = Fraction(0)
    gap: float = 0.001
    time_limit: float = 10.0
    seed: int = 0
    tree_bandwidth: Fraction | None = None
    keep: Fraction = KEEP

    def __post_init__(self) -> None:
        for name, least, most in (
            ("max_trees", 0, None),  # a quota may leave none; planners that need one refuse 0
            ("max_height", 1, None),
            ("max_delay", 0, None),
            ("min_rate", 0, None),
            ("gap", 0, MOST_GAP),
            ("time_limit", 0, None),
            ("seed", 0, MOST_SEED),
        ):
            value = getattr(self, name)
            # Written so that a NaN is refused.
            if value is not None and not least <= value <= (inf if most is None else most):
                more = f"{least} or more" if most is None else f"{least} to {most}"
                raise PlanError(f"{name} {value}: expected {more}")
