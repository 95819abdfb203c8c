"""The embedding plan of [002][]: weighted logical topologies for every job; and its checker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from hopsum.collectives.plan import PlanError
from hopsum.collectives.schedule import ScheduleError
from hopsum.collectives.tree import Tree
from hopsum.network.model import Network, NetworkError
from hopsum.planning.embedding.capacities import Capacities
from hopsum.planning.embedding.logical_topologies import (
    LogicalTopology,
    Paths,
    aggregation_tree,
    in_network_tree,
    ring,
)
from hopsum.planning.model.demand import JobDemand, Model, Resources
from hopsum.planning.model.forest import Verdict


@dataclass(frozen=True, slots=True)
class Part:
    """A logical topology and the part of every tensor that goes over it, above 0 to 1."""

    topology: LogicalTopology
    weight: Fraction


@dataclass(frozen=True)
class JobEmbedding:
    """A job's topologies; the weights add up to 1."""

    demand: JobDemand
    parts: tuple[Part, ...]

    def seconds(self, capacities: Capacities) -> Fraction:
        """Return the duration of one exchange if the job has all free bandwidth to itself."""
        parts = [(self.demand, part.topology, part.weight) for part in self.parts]
        return max(capacities.exact_times(parts), default=Fraction(0))


@dataclass(frozen=True)
class Embedding:
    """The embeddings of some jobs.

    `seconds`: duration of one iteration's exchange of all jobs on the busiest link or node, the
    objective: max over i of tr(i) / B(i); `busiest` names it. `bound`: lower bound for any mixture
    of the jobs' models with any weights (of trees of switches, for the candidates only).
    `objective`: seconds plus the cost of further topologies; `program_bound` is its lower bound
    for any choice of the candidates with this step of the weights and these limits (`bound` where
    only the heuristic ran). `complete`: all topologies of the jobs' models were candidates.
    `method` names the method that found it; `spent`: seconds of planning.
    """

    jobs: tuple[JobEmbedding, ...]
    seconds: Fraction
    busiest: str
    objective: float
    bound: float
    program_bound: float
    verdict: Verdict
    method: str
    candidates: int
    spent: float
    complete: bool = False

    @property
    def gap(self) -> float:
        """Return the relative gap to the proved bound: 0 is optimal.

        The bound is that for any weights or, where all topologies were candidates, the program's.
        """
        proved = self.program_bound if self.complete else self.bound
        return self.objective / proved - 1 if proved else 0.0

    @property
    def candidates_gap(self) -> float:
        """Return an upper bound on the relative gap to the best choice of the candidates."""
        return self.objective / self.program_bound - 1 if self.program_bound else 0.0

    def job(self, number: int) -> JobEmbedding:
        """Return the embedding of a job by its number; PlanError if there is none."""
        for embedding in self.jobs:
            if embedding.demand.job == number:
                return embedding
        raise PlanError(f"there is no embedding of job {number}")


def slots_taken(jobs: Sequence[JobEmbedding]) -> dict[str, int]:
    """Return the slots that the trees of some jobs hold at each switch."""
    taken: dict[str, int] = {}
    for embedding in jobs:
        for part in embedding.parts:
            for switch in part.topology.slots_at:
                taken[switch] = taken.get(switch, 0) + embedding.demand.window
    return taken


def check_embedding(
    resources: Resources, jobs: Sequence[JobEmbedding], steps: int | None = None
) -> None:
    """Raise PlanError for an embedding that agents and switches cannot run.

    Checks that weights are above 0, add up to 1 and are multiples of 1 / `steps`; that topologies
    reach all of the job's workers and no unknown host, are of the requested models and state their
    traffic and slots correctly; that all links have bandwidth, and switches the slots.
    """
    capacities = Capacities(resources)
    paths = Paths(resources.network)
    for embedding in jobs:
        _check_weights(embedding, steps)
        for part in embedding.parts:
            _check_shape(resources.network, embedding.demand, part.topology)
            _check_traffic(capacities, paths, embedding.demand, part.topology)
    for switch, taken in slots_taken(jobs).items():
        free = resources.slots.get(switch, 0)
        if taken > free:
            raise PlanError(
                f"switch {switch}: the embedding takes {taken} slots and {free} are free; "
                "use fewer trees of switches, or smaller windows"
            )


def _check_weights(embedding: JobEmbedding, steps: int | None) -> None:
    demand = embedding.demand
    weights = [part.weight for part in embedding.parts]
    if any(weight <= 0 for weight in weights) or sum(weights) != 1:
        raise PlanError(
            f"job {demand.job}: weights {', '.join(map(str, weights)) or 'none'}: expected each "
            "above 0, together 1"
        )
    if steps is not None and any((weight * steps).denominator != 1 for weight in weights):
        raise PlanError(
            f"job {demand.job}: weights {', '.join(map(str, weights))}: expected multiples of "
            f"1/{steps}"
        )
    by_model: dict[Model, Fraction] = {}
    for part in embedding.parts:
        model = part.topology.model
        by_model[model] = by_model.get(model, Fraction(0)) + part.weight
    asked: Mapping[Model, Fraction] = demand.shares or by_model
    for model in Model:
        if by_model.get(model, 0) != asked.get(model, 0):
            raise PlanError(
                f"job {demand.job}: weight {by_model.get(model, 0)} on {model}: expected "
                f"{asked.get(model, 0)}"
            )


def _check_shape(network: Network, demand: JobDemand, topology: LogicalTopology) -> None:
    where = f"job {demand.job}, {topology.describe()}"
    if topology.model not in demand.models:
        raise PlanError(f"{where}: {topology.model} is not among the job's models")
    if topology.model is Model.RING:
        if sorted(topology.order) != sorted(demand.workers):
            raise PlanError(f"{where}: expected every worker once, and no other host")
        return
    try:
        tree = Tree(topology.root, topology.parents)
    except ScheduleError as error:
        raise PlanError(f"{where}: {error}") from None
    missing = [worker for worker in demand.workers if worker not in tree.depths]
    switches = network.switches if topology.model is Model.IN_NETWORK else {}
    strange = [n for n in tree.nodes if n not in network.hosts and n not in switches]
    if missing or strange:
        raise PlanError(
            f"{where}: missing {missing or 'none'}, unknown {strange or 'none'}; "
            "expected all workers, and hosts or (in-network) switches of the network"
        )
    relays = [n for n in tree.nodes if n in network.hosts and n not in demand.workers]
    if topology.model is not Model.IN_NETWORK and relays and not demand.relays:
        raise PlanError(f"{where}: {relays[0]} is no worker, and the job wants no relays")
    if topology.model is Model.IN_NETWORK and topology.root in demand.workers:
        raise PlanError(f"{where}: its server is a worker of the job; expected another host")
    if topology.model is Model.PARAMETER_SERVER and max(tree.depths.values()) > 1:
        raise PlanError(f"{where}: expected every worker to send to {topology.root} itself")


def _check_traffic(
    capacities: Capacities, paths: Paths, demand: JobDemand, topology: LogicalTopology
) -> None:
    where = f"job {demand.job}, {topology.describe()}"
    network = capacities.resources.network
    found: LogicalTopology | None
    try:
        if topology.model is Model.RING:
            found = ring(paths, topology.order)
        elif topology.model is Model.IN_NETWORK:
            able = topology.slots_at.__contains__
            found = in_network_tree(
                network, demand.workers, topology.root, topology.parents, able, demand.max_hops
            )
        else:
            found = aggregation_tree(paths, topology.root, topology.parents)
    except NetworkError as error:
        raise PlanError(f"{where}: {error}") from None
    if found is None:
        raise PlanError(f"{where}: too many hops, or too many flows at its server")
    if found.traffic != topology.traffic or found.slots_at != topology.slots_at:
        raise PlanError(f"{where}: its traffic or slots are not those of its tree or ring")
    for row in capacities.loads(topology.traffic):
        if not capacities.free[row]:
            raise PlanError(f"{where}: {capacities.names[row]} has no bandwidth")
